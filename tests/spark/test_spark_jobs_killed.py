"""`archive` killed at random moments, as a command: it ends equal to the topic. The long form: make spark-jobs-test."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from support.cluster import running_cluster
from support.kafka import create_topic, produce

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(
        "PENSTOCK_SPARK_JOBS" not in os.environ, reason="of the long form: make spark-jobs-test"
    ),
]

KILLS = 10
COUNT = 300_000
PARTITIONS = 3
TIMEOUT_S = 1200


def command(*words: str) -> list[str]:
    return [
        sys.executable, "-m", "penstock.cli.main", "spark", "run", *words, "--master", "local[2]",
        "--conf", "spark.driver.memory=1g", "--json",
    ]  # fmt: skip


def test_an_archive_that_is_killed_ten_times(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with running_cluster(tmp_path / "cluster", controllers=1, nodes=1) as cluster:
        create_topic(cluster.bootstrap, "flights", PARTITIONS, 1)
        produce(cluster.bootstrap, "flights", COUNT, keys=100)
        where = ["--gateway", cluster.gateway]
        archive = command("archive", "--topic", "flights", "--to", str(tmp_path / "a"), *where)
        whole_s = run_until_killed(archive, None)
        assert whole_s is not None, "an archive that nobody kills"
        archive = command("archive", "--topic", "flights", "--to", str(tmp_path / "b"), *where)
        ended = 0
        for _ in range(KILLS):
            is_all = dice.random() < 0.5
            ended += run_until_killed(archive, whole_s * dice.uniform(0.3, 1.0), is_all) is not None
            produce(cluster.bootstrap, "flights", 1_000, keys=100)
        print(f"{ended} of {KILLS} runs had ended before they were killed")
        done = subprocess.run(archive, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["archive"]["rows"] == COUNT + KILLS * 1_000
        audit = command("audit", "--topic", "flights", "--archive", str(tmp_path / "b"), *where)
        audited = subprocess.run(audit, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert audited.returncode == 0, audited.stdout + audited.stderr
    check_offsets(tmp_path / "b", result["to"]["flights"])


def run_until_killed(command: list[str], after_s: float | None, is_all: bool = True) -> float | None:
    """How long it took, or None where it was killed: with all that it had started, or alone, and then Spark's JVM may
    live on for a while."""
    began_s = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        code = process.wait(after_s or TIMEOUT_S)
        assert code == 0
    except subprocess.TimeoutExpired:
        (os.killpg if is_all else os.kill)(process.pid, signal.SIGKILL)
        process.wait()
        return None
    return time.monotonic() - began_s


def check_offsets(directory: Path, ends: dict[str, int]) -> None:
    """By the manifests and no Spark: each offset once."""
    found: dict[int, list[int]] = {}
    for path in (directory / "_penstock" / "manifest").glob("*.json"):
        for item in json.loads(path.read_text())["files"]:
            table = pq.read_table(directory / item["path"], columns=["offset"], partitioning=None)
            found.setdefault(item["partition"], []).extend(table["offset"].to_pylist())
    assert {str(part): sorted(offsets) for part, offsets in found.items()} == {
        part: list(range(end)) for part, end in ends.items()
    }
