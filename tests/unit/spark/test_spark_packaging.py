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


def test_the_stubs_run_on_the_oldest_that_they_ask_for() -> None:
    """What was generated looks at the versions that it runs on, and raises where they are older than its compiler."""
    proto = PROJECT.parents[1] / "proto"
    asked = floors(tomllib.loads((proto / "pyproject.toml").read_text())["project"]["dependencies"])
    stubs = [path.read_text() for path in (proto / "src").rglob("*_pb2*.py")]
    grpc = [match[1] for text in stubs for match in re.finditer(r"GRPC_GENERATED_VERSION = '([\d.]+)'", text)]
    protobuf = [
        match.groups()
        for text in stubs
        for match in re.finditer(r"Domain\.PUBLIC,\s*(\d+),\s*(\d+),\s*(\d+),", text)
    ]
    assert len(grpc) > 1
    assert len(protobuf) > 1
    assert asked["grpcio"] >= max(tuple(map(int, version.split("."))) for version in grpc)
    assert asked["protobuf"] >= max(tuple(map(int, version)) for version in protobuf)
