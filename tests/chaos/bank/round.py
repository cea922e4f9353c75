"""A round of the bank: a cluster of its own, eight members, orders, and one fault after another.

Promised, and how it is looked at:

* *At any moment* a reader of committed bookings is given nothing of a transaction that was aborted or is open, and
  passes over nothing that was committed. Every member reads while its own transaction is open, two readers more all the
  time; the checker holds what they were given against what the members told. So who was given one side of a transfer,
  and has read on in the other side's partition, was given that too. More is not promised: a reader polls one partition
  after another, and Kafka shows a transaction partition by partition.
* *At a pause*, once every last stable offset is at its watermark, by a deadline: a reader from the start finds each
  order done once, both sides of it, on the right accounts, and the sum is 0. There is one before the first fault and
  after each; at the end both ways in are read.
* *At the end* all classes of the checker of transactions are 0, over all that members, readers and the replicas' files
  say; the files of in-sync replicas hold the same; no process of the cluster has died by itself; and each fatal error
  of a member is explained (`told`).
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from chaos.bank.books import BOOKINGS, PARTITIONS, Booking, wrong_in
from chaos.bank.faults import BankScene, Fault, in_order, needs_of
from chaos.bank.members import Members
from chaos.bank.orders import Books, OrderFlow
from chaos.checker import ALLOWED, TRANSACTIONAL, Anomaly, Verdict
from chaos.cluster import Cluster
from chaos.history import Polls, Status, TransactionalHistory
from chaos.janitor import Janitor
from chaos.load import Reader
from chaos.replicas import read_replica
from chaos.run import compare_replicas
from chaos.scene import Phases
from chaos.transaction_checker import check_transactions
from penstock_core.topics import OFFSETS_TOPIC
from support.transactions import is_decided
from support.waiting import wait_for

PROTOCOLS = ("classic", "consumer")
HOLD_S = (3.0, 6.0)
RATE_PER_S = 25.0
FIRST_ORDERS = 40
"""Done before a fault: the bank is open."""
DONE_WITHIN_S = 300.0
LIVE_GATEWAY, LIVE_DIRECT, FIRST_LATER = 1, 2, 10
REPLICA_PROCESS = 500
NOTE_CHARS_MAX = 600

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What a round is made of."""

    faults: tuple[str, ...]
    hold_s: tuple[float, float] = HOLD_S
    rate_per_s: float = RATE_PER_S
    protocol: str = ""
    """Of the group; by the dice if empty."""
    members: int = 8


@dataclass
class Step:
    """A fault and the pause after it, in s."""

    fault: str
    what: str
    held_s: float
    done_in_s: float
    """From the pause until every order was done and decided."""


@dataclass
class Result:
    """A row of the table."""

    number: int
    seed: int
    protocol: str = ""
    status: str = "ok"
    """ok, or what went wrong: failed, anomalies, fatal."""
    orders: int = 0
    committed: int = 0
    aborted: int = 0
    unknown: int = 0
    told_to_abort: int = 0
    steps: list[Step] = field(default_factory=list)
    fatal: list[str] = field(default_factory=list)
    not_explained: int = 0
    anomalies: dict[str, int] = field(default_factory=dict)
    """What no log may show, by class."""
    allowed: dict[str, int] = field(default_factory=dict)
    reads: int = 0
    """Pauses at which a reader from the start found all as it should be."""
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    directory: str = ""

    @property
    def good(self) -> bool:
        return self.status == "ok"

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"good": self.good}


class Round:
    """See the module's text."""

    def __init__(
        self, scene: BankScene, members: Members, plan: Plan, dice: random.Random, result: Result, say: Say
    ) -> None:
        self._scene, self._members, self._plan, self._result, self._say = scene, members, plan, result, say
        self._dice = dice
        self._cluster = scene.cluster
        self._books = Books()
        self._orders = OrderFlow(self._cluster.clients(), plan.rate_per_s, random.Random(dice.random()))
        self._live = [
            self._books.reader(LIVE_GATEWAY, self._cluster.clients("kafka"), "read_committed"),
            self._books.reader(LIVE_DIRECT, self._cluster.clients("direct"), "read_committed"),
        ]
        self._read: list[Polls] = []
        self._raw: list[Polls] = []
        self._process = FIRST_LATER

    def carry_out(self, faults: Sequence[Fault]) -> None:
        """All faults; raises AssertionError at the first promise that is not kept."""
        for reader in self._live:
            reader.start()
        self._members.wait_ready()
        self._orders.flow()
        self._wait_for_bookings(FIRST_ORDERS)
        self._pause("before the first fault")
        for fault in faults:
            self._one(fault)
        for use in ("kafka", "direct"):
            self._read_all(use, "at the end")

    def finish(self) -> None:
        """End the load. What was read stays."""
        self._orders.stop()
        self._members.stop()
        for reader in self._live:
            reader.finish()

    def mend(self) -> None:
        """After a failure: what can be mended, so that it can still be judged."""
        if self._cluster.network is not None:
            self._cluster.network.mend()
        self._cluster.start(*self._cluster.names)
        self._scene.wait_in_sync()

    def judge(self) -> Verdict:
        """Over all that was told and read, and the replicas' files: the cluster is down afterwards."""
        self._raw.append(self._read_back("kafka", "read_uncommitted"))
        dead = [name for name in self._cluster.names if not self._cluster.is_running(name)]
        assert not dead, f"{dead[0]} ended by itself: {self._cluster.last_words(dead[0])}"
        traces = self._cluster.traces()
        assert not traces, f"a stack trace in the log of {traces}"
        placed = self._scene.placed(BOOKINGS)
        self._scene.wait_in_sync()
        self._cluster.down()
        on_disk = {}
        for name in self._cluster.nodes:
            node_id = self._cluster.state.member(name).id
            held = [partition for partition, nodes in placed.items() if node_id in nodes]
            data = self._cluster.data_dir(name)
            on_disk[node_id] = read_replica(data, REPLICA_PROCESS + node_id, BOOKINGS, held, self._books.note)
        history = TransactionalHistory()
        for told in self._members.told():
            told.into(history)
        for polls in (*(reader.polls for reader in self._live), *self._read):
            history.polls.extend(polls)
        for polls in (*self._raw, *on_disk.values()):
            history.raw.extend(polls)
        self._count(history)
        verdict = check_transactions(history)
        compare_replicas(placed, on_disk)
        assert not self._books.conflicts, f"bookings that contradict one another: {self._books.conflicts[:3]}"
        return verdict

    # --- inside ------------------------------------------------------------------

    def _one(self, fault: Fault) -> None:
        scene = self._scene
        self._members.during = fault.name
        self._orders.flow()
        self._wait_for_bookings(1)
        scene.phases = Phases(0, self._dice.uniform(*self._plan.hold_s), 0)
        noted = len(scene.notes)
        before = len(self._orders.orders)
        fault.inject(scene)
        begun_s, healed_s = scene.fault_s, scene.heal_s
        assert begun_s is not None and healed_s is not None, f"{fault.name} set no marks"
        assert len(self._orders.orders) > before, f"no orders came during {fault.name}"
        what = "; ".join(scene.notes[noted:])
        done_in_s = self._pause(f"after {fault.name} ({what})")
        scene.wait_in_sync()
        self._result.steps.append(Step(fault.name, what, round(healed_s - begun_s, 2), round(done_in_s, 2)))
        self._say(
            f"  {fault.name}: {what + ', ' if what else ''}{healed_s - begun_s:.1f} s, "
            f"{len(self._orders.orders)} orders done {done_in_s:.1f} s after the pause"
        )

    def _wait_for_bookings(self, more: int) -> None:
        """Until so many more are visible to who comes in by a gateway."""
        goal = len(self._live[0].polls) + more
        self._await(lambda: len(self._live[0].polls) >= goal, f"{more} more bookings")

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        """Within the deadline; else it is told what members were told last."""
        try:
            wait_for(condition, what, DONE_WITHIN_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self._troubles()}") from None

    def _pause(self, when: str) -> float:
        """No more orders; all are done within the deadline, and a reader from the start finds them. How long the
        orders took, in s."""
        self._members.check()
        count = self._orders.pause()
        begun_s = time.monotonic()
        goal = 2 * count
        try:
            self._await(lambda: len(self._live[0].polls) >= goal, "all orders")
        except AssertionError as error:
            # What the reader below says is worth more than that something is missing.
            self._say(f"  {len(self._live[0].polls)} of {goal} bookings {when}: {error}")
        places = (
            (BOOKINGS, PARTITIONS),
            (OFFSETS_TOPIC, len(self._scene.coordinators.partitions(OFFSETS_TOPIC))),
        )
        for topic, partitions in places:
            decided = partial(is_decided, self._cluster.bootstrap(), topic, partitions)
            self._await(decided, f"every last stable offset of {topic} at its watermark {when}")
        took_s = time.monotonic() - begun_s
        self._read_all("direct" if self._result.reads % 2 else "kafka", when)
        return took_s

    def _read_all(self, use: str, when: str) -> None:
        polls = self._read_back(use, "read_committed")
        self._read.append(polls)
        found: list[Booking] = self._books.read_by(polls)
        wrong = wrong_in(self._orders.orders, found)
        assert not wrong, f"{when}, read by {use}: {' | '.join(wrong)}"
        self._result.reads += 1
        self._result.orders = len(self._orders.orders)

    def _read_back(self, use: str, isolation: str) -> Polls:
        self._process += 1
        reader: Reader = self._books.reader(self._process, self._cluster.clients(use), isolation, to_end=True)
        reader.read_until_told()
        return reader.polls

    def _troubles(self) -> str:
        """What members were told last."""
        told = self._members.told()
        aborts = [f"{one.member}: {one.aborts[-1]}" for one in told if one.aborts]
        return f"ended members {[one.line() for one in self._members.ended][-3:]}, aborts {aborts[-4:]}"

    def _count(self, history: TransactionalHistory) -> None:
        outcomes = Counter(one.outcome for one in history.transactions)
        result = self._result
        result.committed = outcomes[Status.OK]
        result.aborted = outcomes[Status.FAIL]
        result.unknown = outcomes[Status.INFO]


def run_round(number: int, seed: int, plan: Plan, parent: Path, say: Say, *, keep: bool = False) -> Result:
    """One round. What it leaves is kept when something went wrong, or with `keep`."""
    begun_s = time.monotonic()
    # By both numbers, so that a round does the same alone as among others.
    dice = random.Random(f"{seed} {number}")
    result = Result(number, seed, plan.protocol or dice.choice(PROTOCOLS))
    faults = in_order(plan.faults, dice)
    directory = Path(tempfile.mkdtemp(prefix=f"round-{number}-", dir=parent))
    result.directory = str(directory)
    say(f"round {number}, protocol {result.protocol}: {', '.join(fault.name for fault in faults)}")
    members: Members | None = None
    try:
        with Janitor() as janitor, Cluster(directory, needs_of(faults), janitor) as cluster:
            members = Members(cluster, result.protocol, directory / "members", janitor, plan.members)
            scene = BankScene(cluster, dice, members)
            for topic in scene.topics:
                scene.create_topic(topic, PARTITIONS)
            with members:
                _carry_out_and_judge(Round(scene, members, plan, dice, result, say), faults, result)
    except AssertionError as error:
        result.status = "failed"
        result.notes.append(str(error)[:NOTE_CHARS_MAX])
    except Exception as error:
        result.status = "failed"
        last = traceback.extract_tb(error.__traceback__)[-1]
        words = f"{type(error).__name__}: {error} ({last.name}:{last.lineno})"
        result.notes.append(words[:NOTE_CHARS_MAX])
    if members is not None:
        _take_fatal(members, result)
    result.seconds = round(time.monotonic() - begun_s, 1)
    if result.good and not keep:
        shutil.rmtree(directory, ignore_errors=True)
        result.directory = ""
    return result


def _carry_out_and_judge(one: Round, faults: Sequence[Fault], result: Result) -> None:
    failure: Exception | None = None
    try:
        one.carry_out(faults)
    except Exception as error:
        # Still judged: which class of the checker it is says more than what came late.
        failure = error
        with suppress(AssertionError):
            one.mend()
    try:
        one.finish()
        verdict = one.judge()
    except AssertionError as second:
        raise AssertionError(f"{failure}; then {second}" if failure else str(second)) from None
    result.anomalies = {str(kind): found.count for kind, found in verdict.forbidden.items()}
    result.allowed = {str(kind): found.count for kind, found in verdict.found.items() if kind in ALLOWED}
    if verdict.forbidden:
        result.status = "anomalies"
        result.notes.extend(line[:NOTE_CHARS_MAX] for line in verdict.lines())
    if failure is not None:
        raise failure


def _take_fatal(members: Members, result: Result) -> None:
    """What ended members by itself, and whether that is explained."""
    result.told_to_abort = sum(len(told.aborts) for told in members.told())
    result.fatal = [ended.line() for ended in members.ended]
    result.not_explained = sum(not ended.explanation for ended in members.ended)
    if result.not_explained and result.good:
        result.status = "fatal"


def totals(results: Sequence[Result]) -> dict[str, int]:
    """How often each class of the checker was met, those that were not too."""
    found: dict[str, int] = defaultdict(int)
    for kind in (
        Anomaly.LOST_WRITE,
        Anomaly.UNSEEN,
        Anomaly.DUPLICATE,
        Anomaly.ABORTED_READ,
        *sorted(TRANSACTIONAL),
    ):
        if kind not in ALLOWED:
            found[str(kind)] = 0
    for result in results:
        for name, count in result.anomalies.items():
            found[name] += count
    return dict(found)
