"""Processes are started by one that imports meanwhile what they share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.local import launch
from penstock.local.launch import Job, Launcher
from support.waiting import wait_for


@pytest.fixture(autouse=True)
def _nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PRELOADED", ())


def job(directory: Path, number: int) -> Job:
    """Writes how fast nothing is done into its log."""
    return Job("timeit", ["-n", "1", "-r", "1", "pass"], str(directory), str(directory / f"{number}.log"))


@pytest.mark.parametrize("count", [1, 3])
def test_each_job_runs_in_a_process_of_its_own(tmp_path: Path, count: int) -> None:
    with Launcher(count) as launcher:
        pids = launcher.start([job(tmp_path, number) for number in range(count)])
    assert len(set(pids)) == count
    for number in range(count):
        log = tmp_path / f"{number}.log"
        wait_for(lambda log=log: log.exists() and "1 loop" in log.read_text(), f"what {log} tells")  # type: ignore[misc]


def test_one_that_is_given_no_jobs_ends() -> None:
    with Launcher(3) as launcher:
        process = launcher._process
    assert process is not None
    assert process.returncode == 0


def test_one_that_died_meanwhile_is_an_error(tmp_path: Path) -> None:
    with Launcher(3) as launcher:
        assert launcher._process is not None
        launcher._process.kill()
        with pytest.raises(subprocess.CalledProcessError):
            launcher.start([job(tmp_path, number) for number in range(3)])
