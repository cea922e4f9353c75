"""Reading exactly once while a node, a gateway or an executor is killed in mid-read: make spark-source-test.

ROUNDS and SEED say how often and with what dice; both are printed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from conformance.wire import leaders_known
from pyspark_penstock.jobs import audit
from support.cluster import running_cluster, start_ready
from support.kafka import Load, create_topic, describe, read_all, wait_for_full_isr
from support.spark_sink_runs import RUN_TIMEOUT_S, STARTUP, members
from support.spark_standalone import standalone_spark
from support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.local.cluster import LocalCluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.timeout(86_400),
    pytest.mark.skipif(
        "PENSTOCK_SPARK_SOURCE" not in os.environ, reason="of the long form: make spark-source-test"
    ),
]

ROUNDS = int(os.environ.get("ROUNDS") or 1)
SEED = int(os.environ.get("SEED") or random.randrange(1 << 32))
PARTITIONS = 4
BEFORE = 24_000
"""Records that are there when the read begins."""
AFTER_KILL = 600
PER_S = 300
"""It goes on while Spark starts, a minute and more on a busy machine, and all of it is read."""
VALUE_BYTES = 1_000
"""A task has megabytes to read, so that what it stops at is not on its way to it as a whole."""
WAIT_S = 400.0
DRIVER = Path(__file__).parents[1] / "support" / "spark_source_faults.py"

Place = tuple[int, int, bytes]
"""Partition, offset, value."""


@pytest.fixture(scope="module")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    print(f"\nROUNDS={ROUNDS} SEED={SEED}")
    with running_cluster(tmp_path_factory.mktemp("cluster"), gateways=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone_spark(tmp_path_factory.mktemp("spark")) as address:
        yield address


class Reading:
    """A driver of its own, and all that it has started."""

    def __init__(self, directory: Path, gateway: str, master: str, **given: str) -> None:
        directory.mkdir()
        self.directory = directory
        words = [str(DRIVER), "--directory", str(directory), "--gateway", gateway, "--master", master]
        words += [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
        confs = STARTUP | {"spark.executor.memory": "600m", "spark.cores.max": "4"}
        words += [word for name, value in confs.items() for word in ("--conf", f"{name}={value}")]
        with (directory / "log.txt").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words],
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(DRIVER.parents[1])},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_in_a_task(self) -> tuple[int, int]:
        """Process id of the Python worker that has received some of a task's rows and waits, and the partition."""

        def there() -> bool:
            assert self.process.poll() is None, self.said()
            return (self.directory / "reached").exists()

        wait_for(there, "a task in the middle of its rows", RUN_TIMEOUT_S)
        worker, partition = (self.directory / "reached").read_text().split()
        return int(worker), int(partition)

    def tell(self, name: str) -> None:
        (self.directory / name).touch()

    def check_done(self) -> None:
        code = self.process.wait(RUN_TIMEOUT_S)
        assert code == 0, self.said()

    def said(self) -> str:
        return (self.directory / "log.txt").read_text()[-3000:]

    def kill(self) -> None:
        self.tell("go")  # a worker of an executor is in no session of ours
        for pid in members(self.process.pid):
            os.kill(pid, signal.SIGKILL)
        self.process.wait(RUN_TIMEOUT_S)

    def rows(self) -> Counter[Place]:
        """What was written, by pyarrow alone."""
        found: Counter[Place] = Counter()
        for path in self.directory.glob("out/batch=*/part-*.parquet"):
            # As a file: of a path with a = in it a data set makes a column.
            columns = pq.ParquetFile(path).read().to_pydict()
            found.update(zip(columns["partition"], columns["offset"], columns["value"], strict=True))
        return found


def executor_of(worker: int) -> int:
    """The JVM above a Python worker."""
    pid = worker
    while pid > 1:
        if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    raise AssertionError(f"no executor is above process {worker}")


def strike(cluster: LocalCluster, topic: str, victim: str, worker: int, partition: int) -> str:
    """Kills it; returns the name of a process that is to be started again, or ""."""
    if victim == "executor":
        executor = executor_of(worker)
        os.kill(executor, signal.SIGKILL)
        wait_for(partial(is_gone, executor), "the executor is gone", WAIT_S)
        return ""
    # The driver knows but the first gateway.
    name = (
        "gateway-1" if victim == "gateway" else f"node-{describe(cluster.bootstrap, topic)[partition].leader}"
    )
    cluster.kill(name)
    return name


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def check(rows: Counter[Place], everything: Counter[Place], *, whole: bool) -> None:
    """Each record once; of a batch read those below its ends, which joins to the log's start without a gap."""
    doubled = [place for place, count in rows.items() if count > 1]
    assert not doubled, f"{len(doubled)} records are there twice, the first is {min(doubled)}"
    if not whole:
        ends: Counter[int] = Counter()
        for partition, offset, _ in rows:
            ends[partition] = max(ends[partition], offset + 1)
        everything = Counter({place: 1 for place in everything if place[1] < ends[place[0]]})
        assert rows.total() >= BEFORE
    lost = everything - rows
    assert not lost, f"{lost.total()} records are lost, the first is {min(lost)}"
    assert rows == everything


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("kind", ["stream", "batch"])
@pytest.mark.parametrize("victim", ["node", "gateway", "executor"])
@pytest.mark.parametrize("mode", ["gateway", "direct", "auto"])
def test_every_record_once(
    spark: SparkSession,
    penstock: LocalCluster,
    master: str,
    tmp_path: Path,
    mode: str,
    victim: str,
    kind: str,
    number: int,
) -> None:
    topic = f"killed-{mode}-{victim}-{kind}-{number}"
    dice = random.Random(f"{SEED} {topic}")
    create_topic(penstock.bootstrap, topic, PARTITIONS, 3)
    for address in penstock.bootstrap.split(","):
        known = partial(leaders_known, address, topic)
        wait_for(lambda: known() == PARTITIONS, f"{topic} known at {address}", WAIT_S)  # noqa: B023
    doors = penstock.bootstrap
    with Load(doors, topic, rate_per_s=20_000, value_bytes=VALUE_BYTES, timeout_s=WAIT_S) as load:
        load.wait_for_acks(BEFORE, WAIT_S)
    before = len(load.ledger.acked)
    reading = Reading(
        tmp_path / "reading", penstock.gateway.split(",")[0], master, kind=kind, topic=topic, mode=mode,
        per_trigger=str(dice.choice([8_000, 12_000])), stop_after=str(dice.randrange(3)),
    )  # fmt: skip
    try:
        with Load(doors, topic, rate_per_s=PER_S, value_bytes=VALUE_BYTES, timeout_s=WAIT_S) as more:
            dead = strike(penstock, topic, victim, *reading.wait_until_in_a_task())
            reading.tell("go")
            if dead:
                more.wait_for_acks(dice.randrange(1, AFTER_KILL), WAIT_S)
                start_ready(penstock, dead)
            more.wait_for_acks(AFTER_KILL, WAIT_S)
        reading.tell("produced")
        reading.check_done()
    finally:
        reading.kill()
    wait_for_full_isr(doors, topic, WAIT_S)
    everything = Counter((item.partition, item.offset, item.value) for item in read_all(doors, topic, WAIT_S))
    produced = before + len(more.ledger.acked)
    assert everything.total() == produced
    rows = reading.rows()
    check(rows, everything, whole=kind == "stream")
    found = audit(spark, topic=topic, gateway=penstock.gateway)
    assert found["findings"] == []
    assert sum(part["records"] for part in found["partitions"]) == produced
    print(f"{time.strftime('%H:%M:%S')} {topic}: {rows.total()} of {produced} records, 0 lost, 0 doubled")
