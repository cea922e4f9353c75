"""What penstock-spark asks for, with all that it pulls in, is no more than Spark's own images have."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PULLED_IN = {"penstock-spark", "penstock-core", "penstock-proto"}
PROTOBUF = (6, 31, 1)
"""PySpark names none: it is the oldest that grpcio-status takes, of the version that PySpark asks for."""


def floors(requirements: list[str]) -> dict[str, tuple[int, ...]]:
    """The lower bounds; where there are several, the highest."""
    found: dict[str, tuple[int, ...]] = {}
    for text in requirements:
        match = re.match(r"([A-Za-z0-9_.-]+)\s*>=\s*([0-9.]+)", text)
        if match:
            version = tuple(int(part) for part in match[2].strip(".").split("."))
            found[match[1]] = max(found.get(match[1], version), version)
    return found


def of_project(folder: str) -> list[str]:
    document = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())
    dependencies: list[str] = document["project"]["dependencies"]
    return dependencies


def pulled_in() -> Iterator[tuple[str, list[str]]]:
    """penstock-spark and our packages that come with it, each with what it asks for."""
    paths = [*ROOT.glob("*/pyproject.toml"), *ROOT.glob("*/*/pyproject.toml")]
    folders = {tomllib.loads(path.read_text())["project"]["name"]: str(path.parent) for path in paths}
    waiting, seen = ["penstock-spark"], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        asked = of_project(folders[name])
        yield name, asked
        waiting += [
            own for own in folders if any(re.match(rf"{own}\s*(\[.*\])?\s*==", text) for text in asked)
        ]


def test_floors_are_sparks_own() -> None:
    spark = floors(requires("pyspark") or []) | {"protobuf": PROTOBUF}
    found = dict(pulled_in())
    assert found.keys() == PULLED_IN
    ours = floors([text for asked in found.values() for text in asked])
    both = sorted(ours.keys() & spark.keys())
    assert both == ["grpcio", "numpy", "protobuf", "pyarrow"]
    assert {name: ours[name] for name in both if ours[name] > spark[name]} == {}


@pytest.mark.parametrize("package", ["numpy", "pyarrow", "grpcio", "protobuf"])
def test_nothing_newer_is_excluded(package: str) -> None:
    for name, asked in pulled_in():
        for text in asked:
            if re.match(rf"{package}\b", text):
                assert re.fullmatch(rf"{package}\s*>=[0-9.]+", text), f"{name}: {text}"


def test_the_stubs_run_on_the_oldest_that_they_ask_for() -> None:
    """What was generated looks at the versions that it runs on, and raises where they are older than its compiler."""
    asked = floors(of_project("proto"))
    stubs = [path.read_text() for path in (ROOT / "proto" / "src").rglob("*_pb2*.py")]
    grpc = [match[1] for text in stubs for match in re.finditer(r"GRPC_GENERATED_VERSION = '([\d.]+)'", text)]
    protobuf = [
        match.groups()
        for text in stubs
        for match in re.finditer(r"Domain\.PUBLIC,\s*(\d+),\s*(\d+),\s*(\d+),", text)
    ]
    assert len(grpc) > 1
    assert len(protobuf) > 1
    assert asked["grpcio"] + (0,) >= max(tuple(map(int, version.split("."))) for version in grpc)
    assert asked["protobuf"] >= max(tuple(map(int, version)) for version in protobuf)
