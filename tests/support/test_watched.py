"""What a test leaves of its clusters when it fails, and when its process is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from penstock.local.cluster import LocalCluster
from penstock.local.processes import ProcessState, process_state
from support.waiting import wait_for

TESTS = Path(__file__).resolve().parents[1]
HARNESS = """
import sys
from pathlib import Path
from support.cluster import running_cluster

with running_cluster(Path(sys.argv[1]), single=True):
    print("up", flush=True)
    sys.stdin.read()
"""
FAILING = """
import pytest
from support.watched import watched

@pytest.fixture
def cluster(tmp_path):
    (tmp_path / "node-1").mkdir()
    (tmp_path / "node-1" / "log.txt").write_text("the weir is closed")
    with watched(tmp_path):
        yield

def test_fails(cluster):
    assert "mill" == "weir"

def test_passes():
    pass
"""


def test_no_process_of_a_cluster_outlives_a_harness_that_is_killed(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(directory)],
        cwd=TESTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with harness:
        assert harness.stdout is not None
        assert harness.stdout.readline() == "up\n"
        records = LocalCluster(directory).state.processes
        assert records
        assert all(process_state(r.pid, r.identity) is ProcessState.RUNNING for r in records)
        os.kill(harness.pid, signal.SIGKILL)
    wait_for(
        lambda: all(process_state(r.pid, r.identity) is ProcessState.DEAD for r in records),
        "every process of its cluster is gone",
        30.0,
    )
    assert LocalCluster(directory).state.processes, "what is there to look into stays"


def test_a_fixture_s_cluster_shows_its_logs_where_a_test_fails(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAILING)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "support.watched",
        str(tmp_path),
    ]
    told = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 1 passed" in told.stdout
    assert "--- node-1\nthe weir is closed\n" in told.stdout
