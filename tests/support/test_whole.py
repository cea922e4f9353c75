"""What `make test` leaves out is named, and nothing is named that is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.whole import VARIABLE, gone, named

TESTS = """
import pytest

def test_short(): pass

@pytest.mark.parametrize("way", ["proxy", "direct"])
def test_ways(way): pass

def test_long(): pass
"""
CONFTEST = """
from support import whole

def pytest_collection_modifyitems(items):
    if not whole.is_whole():
        whole.skip(items, frozenset({"test_it.py::test_long", "test_it.py::test_ways[direct]"}))
"""


@pytest.mark.parametrize(("value", "outcome"), [("", "2 passed, 2 skipped"), ("1", "4 passed")])
def test_what_is_named_waits_for_the_whole(tmp_path: Path, value: str, outcome: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", f"--rootdir={tmp_path}", "test_it.py"],
        cwd=tmp_path,
        env=os.environ | {VARIABLE: value, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert outcome in done.stdout
    assert ("make test WHOLE=1" in done.stdout) is not bool(value)


def test_names_that_no_test_has_are_found() -> None:
    ids = ["a.py::test_x[1]", "a.py::test_x[2]", "a.py::test_y"]
    names = named("# why\n\na.py::test_x\na.py::test_x[2]\n  a.py::test_y\n")
    assert len(names) == 3
    assert gone(ids, names) == []
    more = names | {"a.py::test_x[3]", "a.py::test_z", "b.py::test_x"}
    assert gone(ids, more) == ["a.py::test_x[3]", "a.py::test_z"], "b.py was not collected"
