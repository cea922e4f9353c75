"""Whoever has the last lines of a log alone still learns which tests failed, and of what."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.failures import FILE_VARIABLE

TESTS = """
import pytest

@pytest.fixture
def broken():
    raise OSError("no room")

def test_passes(): pass

def test_fails():
    assert "mill" == "weir"

def test_never_starts(broken): pass
"""
CONFTEST = """
from support.failures import wanted

def pytest_configure(config):
    if not hasattr(config, "workerinput") and (failures := wanted()):
        config.pluginmanager.register(failures)
"""


def test_what_failed_stands_in_the_file_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_broken.py").write_text("import not_there_at_all\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    told = tmp_path / "told"
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    env |= {"PYTHONPATH": str(Path(__file__).parents[1]), FILE_VARIABLE: str(told)}

    def run(*args: str) -> str:
        told.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args]
        run = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False
        )
        assert run.returncode != 0, run.stdout + run.stderr
        return told.read_text()

    text = run("--numprocesses", "2", "test_it.py")
    assert "FAILED test_it.py::test_fails (call)" in text
    assert "'mill' == 'weir'" in text
    assert "FAILED test_it.py::test_never_starts (setup)" in text
    assert "OSError: no room" in text
    assert "test_passes" not in text.replace("def test_passes", "")
    text = run("test_broken.py")
    assert "FAILED test_broken.py (collection)" in text
    assert "not_there_at_all" in text
