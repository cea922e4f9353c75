"""Exactly-once writing with a kill at every point: each row counts once. The long form: make spark-sink-test.

ROUNDS and SEED say how often and with what dice; both are printed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cli import transaction_wire
from penstock.cli.main import run
from penstock_kafka.wire.groups import transaction_partition
from support.cluster import running_cluster, start_ready
from support.kafka import busiest_leader, create_topic, describe, produce, read_all, wait_for_full_isr
from support.spark_sink_faults import DRIVER_POINTS, LOSER_POINTS, TASK_POINTS
from support.spark_sink_runs import Run
from support.spark_standalone import standalone_spark
from support.waiting import wait_for

if TYPE_CHECKING:
    from penstock.local.cluster import LocalCluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.timeout(86_400),
    pytest.mark.skipif(
        "PENSTOCK_SPARK_SINK" not in os.environ, reason="of the long form: make spark-sink-test"
    ),
]

ROUNDS = int(os.environ.get("ROUNDS") or 1)
SEED = int(os.environ.get("SEED") or random.randrange(1 << 32))
COUNT = 24_000
PER_TRIGGER = 8_000
BATCHES = COUNT // PER_TRIGGER
WAIT_S = 400.0
OPEN_AT_MOST_S = 30.0
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.cores.max": "4",
    "spark.executor.memory": "600m",
}


@pytest.fixture(scope="module")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    print(f"\nROUNDS={ROUNDS} SEED={SEED}")
    with running_cluster(tmp_path_factory.mktemp("cluster"), gateways=2) as cluster:
        create_topic(cluster.bootstrap, "source", 3, 3)
        produce(cluster.bootstrap, "source", COUNT, keys=100)
        yield cluster


class Copying:
    """One topic that is written by several drivers, one after another or beside one another."""

    def __init__(self, cluster: LocalCluster, directory: Path, name: str, dice: random.Random) -> None:
        self.cluster = cluster
        self.name = name
        self.dice = dice
        self._directory = directory
        self._runs: list[Run] = []
        create_topic(cluster.bootstrap, name, 3, 3)

    def run(self, point: str = "", **more: Any) -> Run:
        made = Run(
            self.cluster.gateway,
            self._directory / f"{self.name}-{len(self._runs)}",
            source="source",
            topic=self.name,
            checkpoint=self._directory / f"{self.name}-checkpoint",
            sink=f"sink-{self.name}",
            tasks=self.dice.choice([1, 2, 3, 5]) if "tasks" not in more else more.pop("tasks"),
            per_trigger=PER_TRIGGER,
            point=point,
            batch=self.dice.randrange(BATCHES),
            **more,
        )
        self._runs.append(made)
        return made

    def end(self) -> None:
        for each in self._runs:
            each.kill()

    def check(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Each row once, nothing open, and the cluster's entry says what the checkpoint says."""
        wanted = Counter(record.value for record in read_all(self.cluster.bootstrap, "source", WAIT_S))
        wait_for(lambda: stages_open(self.cluster, self.name) == [], "no stage is open", OPEN_AT_MOST_S)
        found = read_all(self.cluster.bootstrap, self.name, WAIT_S, **{"isolation.level": "read_committed"})
        counted = Counter(record.value for record in found)
        assert sum(counted.values()) == COUNT
        assert counted == wanted
        capsys.readouterr()
        assert (
            run(
                [
                    "spark",
                    "sink",
                    "describe",
                    f"sink-{self.name}",
                    "--gateway",
                    self.cluster.gateway,
                    "--json",
                ]
            )
            == 0
        )
        said = json.loads(capsys.readouterr().out)
        checkpoint = self._directory / f"{self.name}-checkpoint"
        committed = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
        query = json.loads((checkpoint / "metadata").read_text())["id"]
        assert (said["query_id"], said["epoch"], said["state"], said["open"]) == (
            query,
            committed,
            "done",
            [],
        )


def stages_open(cluster: LocalCluster, name: str) -> list[str]:
    """Transactions of a sink that are not ended."""
    found, unknown = transaction_wire.list_transactions(transaction_wire.read_cluster(cluster.bootstrap))
    assert not unknown
    return [
        each.transactional_id
        for each in found
        if each.transactional_id.startswith(f"sink-{name}-")
        and not each.state.startswith(("Complete", "Empty"))
    ]


@pytest.fixture
def copying(penstock: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Copying]:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name).strip("-")
    made = Copying(penstock, tmp_path, name[:60], random.Random(f"{SEED} {name}"))
    try:
        yield made
    finally:
        made.end()


each_round = pytest.mark.parametrize("number", range(ROUNDS))


@each_round
@pytest.mark.parametrize("point", TASK_POINTS)
def test_a_task_is_killed(
    copying: Copying, point: str, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    first = copying.run(point)
    first.check_done()
    assert first.has_struck()
    copying.check(capsys)


@each_round
@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_a_driver_is_killed(
    copying: Copying, point: str, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next one has other partitions for the same rows."""
    first = copying.run(point, tasks=2)
    first.wait_until("reached")
    first.kill()
    copying.run(tasks=3).check_done()
    copying.check(capsys)


@each_round
@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_a_driver_that_was_stopped_wakes(
    copying: Copying, point: str, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    first = copying.run(point)
    first.wait_until("reached")
    copying.run().check_done()
    first.go_on()
    first.wait()
    copying.check(capsys)


@each_round
def test_drivers_are_killed_at_random(
    copying: Copying, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        one = copying.run()
        try:
            one.process.wait(copying.dice.uniform(5, 25))
            break
        except subprocess.TimeoutExpired:
            one.kill()
    copying.run().check_done()
    copying.check(capsys)


@each_round
@pytest.mark.parametrize("what", ["leader", "coordinator", "gateway"])
def test_a_process_of_the_cluster_is_killed(
    copying: Copying, what: str, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the middle of it, and again while the driver commits."""
    cluster = copying.cluster
    first = copying.run("driver-before")
    first.wait_until("reached")
    victim = victim_of(cluster, copying.name, what)
    cluster.kill(victim)
    first.go_on()
    if copying.dice.random() < 0.5:
        time.sleep(copying.dice.uniform(0, 3))
    start_ready(cluster, victim)
    first.check_done()
    wait_for_full_isr(cluster.bootstrap, copying.name, WAIT_S)
    copying.check(capsys)


@each_round
def test_processes_of_the_cluster_are_killed_while_tasks_write(
    copying: Copying, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, stop = copying.cluster, threading.Event()
    problems: list[BaseException] = []

    def trouble() -> None:
        try:
            while not stop.wait(copying.dice.uniform(2, 6)):
                victim = copying.dice.choice(["node-1", "node-2", "node-3", "gateway-1", "gateway-2"])
                cluster.kill(victim)
                stop.wait(copying.dice.uniform(0, 3))
                start_ready(cluster, victim)
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=trouble)
    thread.start()
    try:
        copying.run().check_done()
    finally:
        stop.set()
        thread.join()
    assert problems == []
    wait_for_full_isr(cluster.bootstrap, copying.name, WAIT_S)
    copying.check(capsys)


def victim_of(cluster: LocalCluster, topic: str, what: str) -> str:
    if what == "gateway":
        return "gateway-1"
    if what == "leader":
        return busiest_leader(cluster.bootstrap, topic)
    places = describe(cluster.bootstrap, "__transaction_state")
    return f"node-{places[transaction_partition(f'sink-{topic}', len(places))].leader}"


@each_round
@pytest.mark.parametrize("point", LOSER_POINTS)
def test_a_speculative_copy_wins(
    copying: Copying, workers: str, point: str, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Copies never run on the host of the original, so there are two."""
    first = copying.run(point, tasks=4, master=workers, confs=SPECULATION)
    first.check_done()
    assert first.has_struck()
    copying.check(capsys)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone_spark(tmp_path_factory.mktemp("spark")) as master:
        yield master
