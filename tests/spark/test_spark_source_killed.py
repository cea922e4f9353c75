"""Reading exactly once while a node, a gateway or an executor is killed in mid-read: make spark-source-test.

A victim is the leader of what a task reads, the one gateway of two that the driver was told of, or the task's executor.
It gets its `kill -9` while a task is seen to stand in the middle of its rows, more than a megabyte of them to come.

* `test_rounds`, for each `fetchMode`: one session with one streaming query that goes on over all ROUNDS while the topic
  is written. In each round each victim is hit under a task of the stream and under one of a batch read, in an order by
  dice, is started again or replaced, and the query is seen to go on: the micro-batch in which the task stood is
  done, and a later one. At the end of each round the rows of the query and of the three batch reads in Parquet are
  those that confluent-kafka reads, and `audit` finds nothing.
* `test_a_fresh_query`, each case once: a session of its own, killed in its first micro-batches or its only batch. Here
  driver and workers know nothing yet but the plan of a moment ago: no other gateway by experience, no commit in the
  checkpoint. The query of many rounds can't show that.

ROUNDS and SEED say how often and with what dice; both are printed.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conformance.wire import leaders_known
from penstock.cli.spark_checkpoint import read_checkpoint
from pyspark_penstock.jobs import audit
from support.cluster import running_cluster, start_ready
from support.kafka import Load, create_topic, delete_topic, produce, read_all, read_from, wait_for_full_isr
from support.spark_source_faults import put
from support.spark_source_runs import WAIT_S, Place, Reading, arm, check, check_batch, strike, written
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
PER_TRIGGER = 8_000
BURST = 10_000
"""Records before a task of the stream is to stop: its micro-batch has all it may, 2,000 in some partition."""
AFTER_KILL = 600
PER_S = 300
"""It goes on while Spark starts, a minute and more on a busy machine, and all of it is read."""
VALUE_BYTES = 1_000
"""A task has megabytes to read, so that what it stops at is not on its way to it as a whole."""
STOP_AFTER_MAX = 3
VICTIMS = ("node", "gateway", "executor")
KINDS = ("stream", "batch")


@pytest.fixture(scope="module")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    print(f"\nROUNDS={ROUNDS} SEED={SEED}")
    with running_cluster(tmp_path_factory.mktemp("cluster"), gateways=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone_spark(tmp_path_factory.mktemp("spark")) as address:
        yield address


class Rounds:
    """The query of one session over all rounds, and what is in its topic."""

    def __init__(
        self, spark: SparkSession, cluster: LocalCluster, topic: str, mode: str, dice: random.Random
    ) -> None:
        self._spark = spark
        self._cluster = cluster
        self._topic = topic
        self._mode = mode
        self._dice = dice
        self._ends = dict.fromkeys(range(PARTITIONS), 0)
        """Of what has been counted."""
        self._produced = 0
        self._before: Counter[Place] = Counter()
        """Records of the round before, with which batch reads begin."""
        self._begins = dict(self._ends)
        """Where those begin."""
        self._due: Counter[Place] = Counter()
        """Counted, and not yet looked for in what the query has read."""
        self._first_batch_id = 0
        """Of the round."""

    def fill(self) -> None:
        """What is there when the query begins."""
        self._put_in(BEFORE)
        self._due = self._before = self._count(BEFORE)

    def run(self, number: int, reading: Reading) -> None:
        """One round: six kills, then all is counted. Raises AssertionError, which names the round."""
        begun_s = time.monotonic()
        bursts = 0
        reads: list[tuple[Path, int]] = []
        order = [(kind, victim) for kind in KINDS for victim in VICTIMS]
        self._dice.shuffle(order)
        try:
            with self._load() as load:
                for kind, victim in order:
                    name = f"{number}-{kind}-{victim}"
                    if kind == "stream":
                        bursts += BURST
                        self._hit_stream(reading, load, name, victim)
                    else:
                        at_least = self._before.total() + bursts + len(load.ledger.acked)
                        reads.append((self._hit_batch(reading, load, name, victim), at_least))
            self._check(reading, bursts + len(load.ledger.acked), reads)
        except AssertionError as error:
            raise AssertionError(f"{self._mode}, round {number} (SEED={SEED}): {error}") from error
        print(
            f"{time.strftime('%H:%M:%S')} {self._mode}: round {number} of {ROUNDS}, "
            f"{sum(self._ends.values())} records by now, 0 lost, 0 doubled, {time.monotonic() - begun_s:.0f} s",
            flush=True,
        )

    def check_all(self, reading: Reading) -> None:
        """When it has ended: no micro-batch of an earlier round has more or less than was counted."""
        places = reading.places()
        assert places.total() == len(places) == sum(self._ends.values())
        assert all(offset < self._ends[partition] for partition, offset in places)

    def _load(self) -> Load:
        doors = self._cluster.bootstrap
        return Load(doors, self._topic, rate_per_s=PER_S, value_bytes=VALUE_BYTES, timeout_s=WAIT_S)

    def _put_in(self, count: int) -> None:
        doors = self._cluster.bootstrap
        produce(doors, self._topic, count, value_bytes=VALUE_BYTES, keys=64, timeout_s=WAIT_S)

    def _hit_stream(self, reading: Reading, load: Load, name: str, victim: str) -> None:
        directory = reading.directory
        # Held behind a micro-batch, so that the next one has the burst, and not its first records alone.
        (directory / "holding").unlink(missing_ok=True)
        (directory / "hold").touch()
        reading.wait_for((directory / "holding").exists, "a micro-batch is held")
        self._put_in(BURST)
        arm(directory, name, self._dice.randrange(STOP_AFTER_MAX))
        (directory / "hold").unlink()
        self._hit(reading, load, directory, name, victim)

    def _hit_batch(self, reading: Reading, load: Load, name: str, victim: str) -> Path:
        """Directory of what it has read."""
        directory = reading.directory / name
        directory.mkdir()
        arm(directory, name, self._dice.randrange(STOP_AFTER_MAX))
        starts = ", ".join(f'"{partition}": {offset}' for partition, offset in self._begins.items())
        put(reading.directory / "order", f'{name} {{"{self._topic}": {{{starts}}}}}')
        self._hit(reading, load, directory, name, victim)
        reading.wait_for((directory / "done").exists, f"the batch read {name}")
        return directory

    def _hit(self, reading: Reading, load: Load, directory: Path, name: str, victim: str) -> None:
        cluster = self._cluster
        worker, partition = reading.wait_until_in_a_task(directory, name)
        standing = reading.committed() + 1
        dead, connected = strike(cluster, self._topic, victim, worker, partition)
        (directory / f"go-{name}").touch()
        print(
            f"{time.strftime('%H:%M:%S')} {self._mode}: {name} at partition {partition}, {dead or 'executor'}"
            f"{'' if connected else ', to which the task has no connection'}",
            flush=True,
        )
        # Whom a task is sure to have asked for rows; `auto` may be at a gateway for a minute.
        assert connected or (self._mode, victim) not in (("gateway", "gateway"), ("direct", "node"))
        if dead:
            load.wait_for_acks(self._dice.randrange(1, AFTER_KILL), WAIT_S)
            start_ready(cluster, dead)
            wait_for_full_isr(cluster.bootstrap, self._topic, WAIT_S)
        else:
            reading.wait_for_executors()
        reading.wait_for_commit(standing + 1)

    def _check(self, reading: Reading, produced: int, reads: list[tuple[Path, int]]) -> None:
        everything = self._count(produced)
        reading.wait_for(lambda: self._is_read(reading), "the query has read all")
        last = reading.committed()
        check(reading.rows(self._first_batch_id), self._due + everything)
        of_batches = self._before + everything
        for directory, records_min in reads:
            check_batch(written(directory.glob("out/batch=0/part-*.parquet")), of_batches, records_min)
        found = audit(self._spark, topic=self._topic, gateway=self._cluster.gateway)
        assert found["findings"] == []
        assert sum(part["records"] for part in found["partitions"]) == self._produced
        self._first_batch_id = last + 1
        self._due = Counter()
        self._before = everything

    def _count(self, produced: int) -> Counter[Place]:
        """What confluent-kafka reads behind what was counted before."""
        records = read_from(self._cluster.bootstrap, self._topic, self._ends, WAIT_S)
        everything = Counter((item.partition, item.offset, item.value) for item in records)
        assert everything.total() == len(everything) == produced, (
            f"{everything.total()} of {produced} records"
        )
        self._begins = dict(self._ends)
        for partition, offset, _ in everything:
            self._ends[partition] = max(self._ends[partition], offset + 1)
        self._produced += produced
        return everything

    def _is_read(self, reading: Reading) -> bool:
        offsets = read_checkpoint(reading.directory / "checkpoint").sources[0].starting_offsets or {}
        return offsets.get(self._topic) == {str(partition): end for partition, end in self._ends.items()}


@pytest.mark.parametrize("mode", ["gateway", "direct", "auto"])
def test_rounds(spark: SparkSession, penstock: LocalCluster, master: str, tmp_path: Path, mode: str) -> None:
    topic = f"rounds-{mode}"
    make_topic(penstock, topic)
    rounds = Rounds(spark, penstock, topic, mode, random.Random(f"{SEED} {topic}"))
    rounds.fill()
    directory = tmp_path / "reading"
    directory.mkdir()
    reading = Reading(
        directory, penstock.gateway.split(",")[0], master,
        kind="rounds", topic=topic, mode=mode, per_trigger=str(PER_TRIGGER),
    )  # fmt: skip
    try:
        reading.wait_for_commit(0)
        for number in range(1, ROUNDS + 1):
            rounds.run(number, reading)
        (directory / "produced").touch()
        reading.check_done()
    finally:
        reading.kill()
    rounds.check_all(reading)
    delete_topic(penstock.bootstrap, topic)  # a gigabyte, after 20 rounds


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("mode", ["gateway", "direct", "auto"])
def test_a_fresh_query(
    spark: SparkSession,
    penstock: LocalCluster,
    master: str,
    tmp_path: Path,
    mode: str,
    victim: str,
    kind: str,
) -> None:
    topic = f"killed-{mode}-{victim}-{kind}"
    dice = random.Random(f"{SEED} {topic}")
    make_topic(penstock, topic)
    doors = penstock.bootstrap
    with Load(doors, topic, rate_per_s=20_000, value_bytes=VALUE_BYTES, timeout_s=WAIT_S) as load:
        load.wait_for_acks(BEFORE, WAIT_S)
    before = len(load.ledger.acked)
    directory = tmp_path / "reading"
    directory.mkdir()
    arm(directory, "one", dice.randrange(STOP_AFTER_MAX))
    reading = Reading(
        directory, penstock.gateway.split(",")[0], master,
        kind=kind, topic=topic, mode=mode, per_trigger=str(dice.choice([8_000, 12_000])),
    )  # fmt: skip
    try:
        with Load(doors, topic, rate_per_s=PER_S, value_bytes=VALUE_BYTES, timeout_s=WAIT_S) as more:
            dead, _ = strike(penstock, topic, victim, *reading.wait_until_in_a_task(directory, "one"))
            (directory / "go-one").touch()
            if dead:
                more.wait_for_acks(dice.randrange(1, AFTER_KILL), WAIT_S)
                start_ready(penstock, dead)
            more.wait_for_acks(AFTER_KILL, WAIT_S)
        (directory / "produced").touch()
        reading.check_done()
    finally:
        reading.kill()
    wait_for_full_isr(doors, topic, WAIT_S)
    everything = Counter((item.partition, item.offset, item.value) for item in read_all(doors, topic, WAIT_S))
    produced = before + len(more.ledger.acked)
    assert everything.total() == produced
    rows = reading.rows()
    if kind == "stream":
        check(rows, everything)
    else:
        check_batch(rows, everything, BEFORE)
    found = audit(spark, topic=topic, gateway=penstock.gateway)
    assert found["findings"] == []
    assert sum(part["records"] for part in found["partitions"]) == produced
    print(f"{time.strftime('%H:%M:%S')} {topic}: {rows.total()} of {produced} records, 0 lost, 0 doubled")


def make_topic(cluster: LocalCluster, topic: str) -> None:
    create_topic(cluster.bootstrap, topic, PARTITIONS, 3)
    for address in cluster.bootstrap.split(","):
        known = partial(leaders_known, address, topic)
        wait_for(lambda: known() == PARTITIONS, f"{topic} known at {address}", WAIT_S)  # noqa: B023
