"""Exactly-once writing with a kill at every point: each row counts once. The long form: make spark-sink-test.

Which case strikes at which point of the guide is a table of docs/results/spark.md. Each case strikes one victim in each
micro-batch, in an order by dice, while whoever has come to the point is held there, on a Spark with speculation on two
hosts. ROUNDS and SEED say how often and with what dice; both are printed.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Producer

from support.cluster import running_cluster, start_ready
from support.kafka import client_config, create_topic, produce, wait_for_full_isr
from support.spark_sink_copying import BATCHES, COUNT, GATES, SOURCE, WAIT_S, Copying, TooSlow
from support.spark_sink_faults import COPY_WROTE, DRIVER_POINTS, FIRST_WROTE, TASK_POINTS
from support.spark_standalone import standalone_spark
from support.waiting import wait_for

if TYPE_CHECKING:
    from penstock.local.cluster import LocalCluster
    from support.spark_sink_runs import Run

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
PAUSE_MS = 4_000
"""How long a coordinator is held at a failpoint, while somebody else is killed."""
LOSERS = 2
"""Micro-batches of a case in which a speculative copy wins."""
SETTINGS = {
    # Small, so that a node's successor has read all of it at once, and leaders are back with their nodes.
    "controller": {"transaction_state_log_num_partitions": "8", "leader_rebalance_interval_ms": "500"},
}


class Failpoint(NamedTuple):
    """Where a coordinator is held or killed, at which hit; and a leader, where that is said by a point of its own."""

    name: str
    hit: int = 1
    of_leader: str = ""


FAILPOINTS = {
    "unit-before-append": Failpoint("transactions.unit.before_append"),
    "unit-after-append": Failpoint("transactions.unit.after_append"),
    "unit-covered": Failpoint("transactions.unit.covered"),
    # One leader has been sent its markers, and the next one has not.
    "markers-before-send": Failpoint("transactions.markers.before_send", hit=2),
    # One end is known; and of two stages a leader has ended one.
    "markers-written": Failpoint(
        "transactions.markers.written", hit=2, of_leader="transactions.marker.after_append"
    ),
}
TASK_VICTIMS = ("task", "leader", "coordinator", "gateway")
DRIVER_VICTIMS = ("driver", "leader", "coordinator", "gateway")
STALE = (
    r"\S*RefusedUnitError: sink {sink} has micro-batch \d+ of this query, and this is {batch}: the checkpoint was "
    r"put back, or an older driver still runs; go on with the newest checkpoint, or choose another sinkId"
)
FOREIGN = (
    r"\S*RefusedUnitError: sink {sink} belongs to query [0-9a-f-]+, and this is [0-9a-f-]+; choose another sinkId, or "
    r'set option\("sinkTakeover", "true"\) if that query is never to go on'
)
LOST = (
    r"\S*RefusedUnitError: micro-batch \d+ of sink {sink} was not committed, for stage {sink}-\d+-\d+-\d+ had ended: "
    r"it was open for longer than stagingTimeoutMs, or another driver has repeated it; nothing of it counts, and it is "
    r"repeated when the query starts again"
)
ENDED = (
    r"\S*StageEndedError: stage {sink}-\d+-\d+-\d+ has ended \(.*\): it was open for longer than stagingTimeoutMs, or "
    r"another attempt at the task has begun; Spark repeats the task, and raise stagingTimeoutMs if tasks take so long"
)
CONCURRENT = r".*\[CONCURRENT_STREAM_LOG_UPDATE\] .*"
"""Spark's own word, where the sink has nothing to refuse: the other driver has its log of the same micro-batch."""


@pytest.fixture(scope="module")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    print(f"\nROUNDS={ROUNDS} SEED={SEED}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_FAILPOINTS", "@faults")
        patch.setenv("PENSTOCK_ALLOW_FAILPOINTS", "true")
        directory = tmp_path_factory.mktemp("cluster")
        with running_cluster(directory, controllers=1, gateways=2, settings=SETTINGS, steady=True) as cluster:
            create_topic(cluster.bootstrap, SOURCE, 3, 3)
            produce(cluster.bootstrap, SOURCE, COUNT, keys=100)
            # The coordinators' topic is made by who first asks for one: each case looks at its leaders beforehand.
            asking = Producer(client_config(cluster.bootstrap, **{"transactional.id": "first"}))
            asking.init_transactions(WAIT_S)
            yield cluster


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone_spark(tmp_path_factory.mktemp("spark")) as address:
        yield address


@pytest.fixture
def copying(
    penstock: LocalCluster, master: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Copying]:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name).strip("-")
    made = Copying(penstock, master, tmp_path, name[:60], random.Random(f"{SEED} {name}"))
    try:
        yield made
    finally:
        made.end()
        print(
            f"SEED={SEED} {name}: {len(made.struck)} struck, {', '.join(made.struck)}; {made.again} runs again"
        )


each_round = pytest.mark.parametrize("number", range(ROUNDS))


@each_round
@pytest.mark.parametrize("point", TASK_POINTS)
def test_kills_while_a_task_is_held(copying: Copying, point: str, number: int) -> None:
    copying.hold(point)
    copying.start()
    for batch, victim in micro_batches(copying, TASK_VICTIMS):
        with struck(copying, batch, victim, point):
            held = copying.reached(point, batch)
            if point == "task-before":
                copying.check_not_begun(batch, held["partition"], held["attempt"])
            else:
                copying.check_open(batch, [(held["partition"], held["attempt"])])
            if victim == "task":
                os.kill(held["pid"], signal.SIGKILL)
                wait_for(partial(is_gone, held["pid"]), "the task's process is gone")
                continue
            with killed(copying, victim):
                copying.go(point, batch)
    copying.finish()
    copying.check()


@each_round
@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_kills_while_the_driver_is_held(copying: Copying, point: str, number: int) -> None:
    copying.hold(point)
    copying.start()
    for batch, victim in micro_batches(copying, DRIVER_VICTIMS):
        with struck(copying, batch, victim, point):
            copying.reached(point, batch)
            if point == "driver-before":
                copying.check_open_in_number(batch, driver_of(copying).tasks)
            else:
                copying.check_decided(batch)
            if victim == "driver":
                driver_of(copying).kill()
                copying.start()
                continue
            with killed(copying, victim):
                copying.go(point, batch)
    copying.finish()
    copying.check()


@each_round
@pytest.mark.parametrize("point", FAILPOINTS)
def test_kills_while_the_coordinator_decides(copying: Copying, point: str, number: int) -> None:
    """Between the driver's call and its answer, and behind it: it is the coordinator who is killed or held there."""
    failpoint, cluster = FAILPOINTS[point], copying.cluster
    copying.hold("driver-before")
    copying.start()
    for batch, victim in micro_batches(copying, DRIVER_VICTIMS):
        with struck(copying, batch, victim, "driver-before"):
            copying.reached("driver-before", batch)
            copying.check_open_in_number(batch, driver_of(copying).tasks)
            coordinator, leader = copying.coordinator(), copying.leader()
            if victim == "coordinator" or (victim == "leader" and failpoint.of_leader):
                who = coordinator if victim == "coordinator" else leader
                name = failpoint.name if victim == "coordinator" else failpoint.of_leader
                with armed(copying, who, f"{name}=kill@{failpoint.hit}"):
                    copying.go("driver-before", batch)
                    wait_for_hit(copying, who, name)
                wait_for(lambda: who not in cluster.alive(), f"{who} is dead")  # noqa: B023
                start_ready(cluster, who)
                continue
            with armed(copying, coordinator, f"{failpoint.name}=pause:{PAUSE_MS}@{failpoint.hit}"):
                copying.go("driver-before", batch)
                wait_for_hit(copying, coordinator, failpoint.name)
                if victim == "driver":
                    driver_of(copying).kill()
                else:
                    who = leader if victim == "leader" else "gateway-1"
                    cluster.kill(who)
            if victim == "driver":
                copying.start()
            else:
                start_ready(cluster, who)
    copying.finish()
    copying.check()


@each_round
@pytest.mark.parametrize("what", ["killed", "finishes"])
def test_a_speculative_copy_wins(copying: Copying, what: str, number: int) -> None:
    """A first attempt has an open stage with some of its rows when its copy has written all: then the copy wins and
    Spark kills the first; or the first writes all of its rows too, and one of the two is the loser."""
    holds = ["task-in", COPY_WROTE, "driver-before", *([FIRST_WROTE] if what == "finishes" else [])]
    copying.hold(*holds)
    copying.start(tasks=4)
    for batch, _ in micro_batches(copying, ["loser"] * LOSERS):
        with struck(copying, batch, f"loser {what}", *holds):
            first = copying.reached("task-in", batch)
            copying.check_open(batch, [(0, 0)])
            both = [(0, 0), (0, copying.reached(COPY_WROTE, batch)["attempt"])]
            copying.check_open(batch, both)
            if what == "finishes":
                copying.go("task-in", batch)
                copying.reached(FIRST_WROTE, batch)
                copying.go(FIRST_WROTE, batch)
            copying.go(COPY_WROTE, batch)
            copying.reached("driver-before", batch)
            copying.check_open(batch, both)
            copying.go("driver-before", batch)
            if what == "killed":
                wait_for(partial(is_gone, first["pid"]), "Spark has killed the loser", WAIT_S)
    copying.finish()
    copying.check()


@each_round
@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_a_driver_that_was_stopped_wakes(copying: Copying, point: str, number: int) -> None:
    """Its successor on the same checkpoint has written everything: it is refused."""
    batch = copying.dice.randrange(BATCHES - 1)
    copying.hold(point, batch=batch, gated=False)
    copying.start(cores=2)
    copying.reached(point, batch)
    first = driver_of(copying)
    copying.start(cores=2)
    copying.wait_for_end()
    copying.go(point, batch)
    says = STALE if point == "driver-before" else CONCURRENT
    check_refused(first, says.format(sink=copying.sink, batch=batch))
    copying.struck.append(f"{batch}: driver wakes")
    copying.check()


@each_round
def test_two_drivers_write_at_once(copying: Copying, number: int) -> None:
    """On one checkpoint, both with tasks that begin at the same time: one of them is refused, or both are, and one
    that comes then goes on."""
    copying.hold()
    copying.start(cores=2, tasks=2)
    copying.wait_at_gate(0)
    first = driver_of(copying)
    copying.start(cores=2, tasks=2)
    copying.wait_at_gate(0)
    both = [first, driver_of(copying)]
    for batch in range(GATES):
        copying.open_gate(batch)
    refused = [run for run in both if run.wait()]
    assert refused
    for run in refused:
        check_refused(run, "|".join((STALE, LOST, ENDED, CONCURRENT)).format(sink=copying.sink, batch=r"\d+"))
        copying.struck.append(run.last_line())
    if len(refused) == 2:
        copying.start()
        copying.finish()
    copying.check()


@each_round
def test_a_foreign_query_is_refused(copying: Copying, number: int) -> None:
    """While the one that the sink belongs to is in the middle of a micro-batch; it goes on as if nothing were."""
    batch = copying.dice.randrange(1, BATCHES)
    copying.hold("driver-before", batch=batch, gated=False)
    copying.start(cores=2)
    copying.reached("driver-before", batch)
    first = driver_of(copying)
    copying.start(cores=2, checkpoint="foreign")
    check_refused(driver_of(copying), FOREIGN.format(sink=copying.sink))
    copying.struck.append(f"{batch}: foreign query")
    copying.driver = first
    copying.finish()
    copying.check()


@each_round
def test_drivers_are_killed_at_random(copying: Copying, number: int) -> None:
    for _ in range(3):
        one = copying.start()
        try:
            one.process.wait(copying.dice.uniform(5, 25))
            break
        except subprocess.TimeoutExpired:
            one.kill()
            copying.struck.append("driver")
    copying.start()
    copying.finish()
    copying.check()


@each_round
def test_processes_of_the_cluster_are_killed_while_tasks_write(copying: Copying, number: int) -> None:
    cluster, stop = copying.cluster, threading.Event()
    problems: list[BaseException] = []

    def trouble() -> None:
        try:
            while not stop.wait(copying.dice.uniform(2, 6)):
                victim = copying.dice.choice(["node-1", "node-2", "node-3", "gateway-1", "gateway-2"])
                cluster.kill(victim)
                copying.struck.append(victim)
                stop.wait(copying.dice.uniform(0, 3))
                start_ready(cluster, victim)
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=trouble)
    copying.start()
    thread.start()
    try:
        copying.finish()
    finally:
        stop.set()
        thread.join()
    assert problems == []
    wait_for_full_isr(cluster.bootstrap, copying.name, WAIT_S)
    copying.check()


# -- strikes ------------------------------------------------------------------------------------


def micro_batches(copying: Copying, victims: list[str] | tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """A micro-batch for each victim, on a cluster that is whole, and its gate is open. One that the machine was too
    slow for is struck again in a later one."""
    waiting = deque(copying.dice.sample(victims, len(victims)))
    for batch in range(BATCHES):
        if not waiting:
            return
        copying.wait_at_gate(batch)
        copying.settle()
        copying.open_gate(batch)
        before = len(copying.struck)
        yield batch, waiting[0]
        if len(copying.struck) > before:
            waiting.popleft()
    assert not waiting, f"{waiting} not struck in {BATCHES} micro-batches: this machine is too slow"


@contextmanager
def struck(copying: Copying, batch: int, victim: str, *points: str) -> Iterator[None]:
    """One strike. Where the machine is too slow for it nobody is held any more."""
    try:
        yield
    except TooSlow as slow:
        print(f"not struck in micro-batch {batch}, {victim}: {slow}")
    else:
        copying.struck.append(f"{batch}: {victim}")
    finally:
        for point in points:
            copying.go(point, batch)


@contextmanager
def killed(copying: Copying, victim: str) -> Iterator[None]:
    """A process of the cluster is dead, and is started again behind it."""
    names = {"leader": copying.leader, "coordinator": copying.coordinator}
    name = names[victim]() if victim in names else "gateway-1"
    copying.cluster.kill(name)
    try:
        yield
    finally:
        start_ready(copying.cluster, name)


@contextmanager
def armed(copying: Copying, name: str, entry: str) -> Iterator[None]:
    """A process of the cluster meets a failpoint."""
    faults = copying.cluster.directory / name / "faults"
    copying.hits_before = hits(copying, name)
    faults.write_text(entry)
    try:
        yield
    finally:
        faults.unlink()


def hits(copying: Copying, name: str) -> int:
    return len(re.findall(r"^failpoint transactions\.", copying.cluster.log_file(name).read_text(), re.M))


def wait_for_hit(copying: Copying, name: str, failpoint: str) -> None:
    """Raises TooSlow where the driver ended before it, since a stage had ended."""

    def is_hit() -> bool:
        if hits(copying, name) > copying.hits_before:
            return True
        if driver_of(copying).has_ended():
            copying.check_slow(driver_of(copying))
            raise TooSlow(failpoint)
        return False

    wait_for(is_hit, f"{name} is at {failpoint}")


def driver_of(copying: Copying) -> Run:
    assert copying.driver is not None
    return copying.driver


def is_gone(pid: int) -> bool:
    """Whether a process has ended, waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def check_refused(run: Run, says: str) -> None:
    """It ends with exit code 1 and one sentence."""
    assert run.wait() == 1, run.said()
    assert re.fullmatch(says, run.last_line()), run.last_line()
