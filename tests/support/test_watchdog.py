"""A test that hangs costs itself, not the run, and the run says at what it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HANGS = """
import ctypes
import time
import pytest

@pytest.fixture
def held():
    yield
    library = ctypes.PyDLL(None)  # keeps the interpreter to itself
    while True:
        library.sleep(3600)

def test_before(): pass

@pytest.mark.timeout(1)
def test_that_hangs(held):
    while True:
        time.sleep(3600)

def test_after(): pass
"""
CONFTEST = """
from support.progress import Progress
from support.watchdog import Watchdog

def pytest_configure(config):
    config.pluginmanager.register(Watchdog(300, grace_s=1))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(0.2))
"""


def test_a_teardown_that_nothing_interrupts_ends_with_its_process(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(HANGS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    env["PYTHONPATH"] = str(Path(__file__).parents[1])
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rf", "--numprocesses", "1", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    text = run.stdout + run.stderr
    assert run.returncode == 1, text
    assert "Timeout (0:00:0" in text
    assert "in held" in text
    assert "crashed while running 'test_it.py::test_that_hangs'" in text
    assert "2 passed" in text
    assert "1 tests done, at test_it.py::test_that_hangs (" in text
