"""What penstock-spark asks for is no more than Spark's own images have."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3] / "spark" / "pyproject.toml"


def floors(requirements: list[str]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for text in requirements:
        match = re.match(r"([A-Za-z0-9_.-]+)\s*>=\s*([0-9.]+)", text)
        if match:
            version = tuple(int(part) for part in match[2].strip(".").split("."))
            found[match[1]] = min(found.get(match[1], version), version)
    return found


@pytest.mark.parametrize("package", ["numpy", "pyarrow", "grpcio"])
def test_floors_are_sparks_own(package: str) -> None:
    ours = floors(tomllib.loads(PROJECT.read_text())["project"]["dependencies"])
    assert ours[package] <= floors(requires("pyspark") or [])[package]
