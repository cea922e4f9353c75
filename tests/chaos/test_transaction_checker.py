"""The checker of transactions: random histories of a right log hold, each planted fault and each wrong log is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import assume, find, given, settings
from hypothesis import strategies as st

import support.hypothesis_profile
from chaos.checker import ALLOWED, TRANSACTIONAL, Anomaly
from chaos.history import Polls, Status, Transaction, TransactionalHistory
from chaos.transaction_checker import check_transactions, circles

assert support.hypothesis_profile

PARTITIONS = 2
PRODUCERS = 3
READER, RAW_READER, LAST_READER = 100, 200, 300
ACTIONS = (
    "write",
    "write",
    "write",
    "poll",
    "poll",
    "commit",
    "commit",
    "abort",
    "commit unheard",
    "abort unheard",
)

Step = tuple[str, int, int]
"""What is done, by which producer, in which partition."""
ONE_STEP = st.tuples(st.sampled_from(ACTIONS), st.integers(0, PRODUCERS - 1), st.integers(0, PARTITIONS - 1))
STEPS = st.lists(ONE_STEP, max_size=60)


@dataclass
class Entry:
    value: int
    owner: int
    """Its transaction."""


@dataclass
class ModelLog:
    """A transactional log that does what is written in Kafka's rules, but for one fault that it can be given."""

    fault: str = ""
    history: TransactionalHistory = field(default_factory=TransactionalHistory)
    logs: list[list[Entry | None]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    """None is a marker."""
    fate: dict[tuple[int, int], bool] = field(default_factory=dict)
    """Of each transaction that is decided, by partition: whether it is committed there."""
    open: dict[int, int] = field(default_factory=dict)
    """The transaction of each producer that has one."""
    places: dict[tuple[int, int], int] = field(default_factory=dict)
    """How far each reader is in each partition."""
    op: int = 0

    def run(self, steps: list[Step]) -> TransactionalHistory:
        for what, who, partition in steps:
            self.op += 1
            if what == "write":
                self.write(who, partition)
            elif what == "poll":
                self.poll(READER + who, partition, self.open.get(who))
            elif who in self.open:
                self.end(who, commits=what.startswith("commit"), heard=not what.endswith("unheard"))
        for who in list(self.open):
            self.end(who, commits=False, heard=False)
        for partition in range(PARTITIONS):
            self.op += 1
            self.poll(LAST_READER, partition, None)
            for offset, entry in enumerate(self.logs[partition]):
                if entry is not None:
                    self.history.raw.add(RAW_READER, self.op, 0, partition, offset, entry.value)
        return self.history

    def write(self, who: int, partition: int) -> None:
        if who not in self.open:
            self.open[who] = len(self.history.transactions)
            self.history.transactions.append(Transaction(who))
        owner = self.open[who]
        value = len(self.history.sends)
        row = self.history.sends.invoke(who, self.op, partition, value)
        self.history.transactions[owner].rows.append(row)
        # Of every fifth record nobody hears where it is.
        if value % 5:
            self.history.sends.complete(row, Status.OK, len(self.logs[partition]))
        self.logs[partition].append(Entry(value, owner))

    def end(self, who: int, *, commits: bool, heard: bool) -> None:
        owner = self.open.pop(who)
        one = self.history.transactions[owner]
        if heard:
            one.outcome = Status.OK if commits else Status.FAIL
        for number, partition in enumerate(sorted({self.history.sends.partition[row] for row in one.rows})):
            tears = self.fault == "one marker says otherwise" and number > 0
            turned = self.fault == "decides against what was answered"
            self.fate[owner, partition] = commits != (tears or turned)
            self.logs[partition].append(None)

    def poll(self, reader: int, partition: int, within: int | None) -> None:
        """Up to the last stable offset; records of aborted transactions are passed over."""
        log = self.logs[partition]
        place = (reader, partition)
        for offset in range(self.places.get(place, 0), len(log)):
            entry = log[offset]
            fate = None if entry is None else self.fate.get((entry.owner, partition))
            if entry is not None and fate is None and self.fault != "no last stable offset":
                break
            self.places[place] = offset + 1
            if entry is None or (fate is False and self.fault != "aborted records are given out"):
                continue
            self.history.polls.add(reader, self.op, 0, partition, offset, entry.value)
            if within is not None:
                self.history.transactions[within].reads.append(entry.value)


@given(STEPS)
def test_a_log_that_keeps_its_promises_is_clean(steps: list[Step]) -> None:
    verdict = check_transactions(ModelLog().run(steps))
    assert not verdict.forbidden, verdict.lines()


WRONG = {
    "no last stable offset": (Anomaly.ABORTED_READ, Anomaly.PRECOMMITTED_READ, Anomaly.CIRCULAR_READS),
    "aborted records are given out": (Anomaly.ABORTED_READ,),
    "one marker says otherwise": (Anomaly.TORN,),
    "decides against what was answered": (Anomaly.LOST_WRITE, Anomaly.UNSEEN, Anomaly.ABORTED_READ),
}


@pytest.mark.parametrize(
    ("fault", "anomaly"), [(fault, anomaly) for fault, all_of in WRONG.items() for anomaly in all_of]
)
def test_a_log_with_a_fault_is_found(fault: str, anomaly: Anomaly) -> None:
    find(
        STEPS,
        lambda steps: anomaly in check_transactions(ModelLog(fault).run(steps)).found,
        settings=settings(max_examples=3_000, database=None),
    )


# --- one fault planted into a right history ------------------------------------------------------

Choose = Callable[[list[int]], int]
Plant = Callable[[TransactionalHistory, Choose], set[Anomaly]]
"""Returns what has to be found: one of these at least."""


def read_an_aborted_record(history: TransactionalHistory, choose: Choose) -> set[Anomaly]:
    row = choose([row for one in history.transactions if one.outcome == Status.FAIL for row in one.rows])
    sends = history.sends
    history.polls.add(900, 1, 0, sends.partition[row], 1 << 40, sends.value[row])
    return {Anomaly.ABORTED_READ}


def read_ones_own(history: TransactionalHistory, choose: Choose) -> set[Anomaly]:
    one = history.transactions[choose(list(range(len(history.transactions))))]
    one.reads.append(history.sends.value[one.rows[-1]])
    return {Anomaly.PRECOMMITTED_READ}


def tear(history: TransactionalHistory, choose: Choose) -> set[Anomaly]:
    """Nobody reads one record of a transaction, committed or not heard of."""
    polled = set(history.polls.value)
    transactions = history.transactions
    number = choose(
        [
            number
            for number, one in enumerate(transactions)
            if len(one.rows) > 1 and {history.sends.value[row] for row in one.rows} <= polled
        ]
    )
    drop(history.polls, {history.sends.value[choose(transactions[number].rows)]})
    return {Anomaly.TORN}


def lose(history: TransactionalHistory, choose: Choose) -> set[Anomaly]:
    one = history.transactions[choose(committed(history))]
    drop(history.polls, {history.sends.value[row] for row in one.rows})
    return {Anomaly.LOST_WRITE, Anomaly.UNSEEN}


def lose_what_was_aborted(history: TransactionalHistory, choose: Choose) -> set[Anomaly]:
    """It was acknowledged and is not in the log."""
    sends = history.sends
    rows = [row for one in history.transactions if one.outcome == Status.FAIL for row in one.rows]
    drop(history.raw, {sends.value[choose([row for row in rows if sends.status[row] == Status.OK])]})
    return {Anomaly.LOST_WRITE, Anomaly.UNSEEN}


def double(history: TransactionalHistory, choose: Choose) -> set[Anomaly]:
    row = choose(list(range(len(history.polls))))
    history.polls.add(900, 1, 0, history.polls.partition[row], 1 << 40, history.polls.value[row])
    return {Anomaly.DUPLICATE}


def double_in_the_log(history: TransactionalHistory, choose: Choose) -> set[Anomaly]:
    row = choose(list(range(len(history.raw))))
    history.raw.add(900, 1, 0, history.raw.partition[row], 1 << 40, history.raw.value[row])
    return {Anomaly.DUPLICATE}


def read_in_a_circle(history: TransactionalHistory, choose: Choose) -> set[Anomaly]:
    numbers = committed(history)
    assume(len(numbers) > 2)
    circle = [history.transactions[number] for number in numbers[:3]]
    for one, other in zip(circle, circle[1:] + circle[:1], strict=True):
        one.reads.append(history.sends.value[other.rows[0]])
    return {Anomaly.CIRCULAR_READS}


def committed(history: TransactionalHistory) -> list[int]:
    return [number for number, one in enumerate(history.transactions) if one.outcome == Status.OK]


def drop(polls: Polls, values: set[int]) -> None:
    rows = [row for row in range(len(polls)) if polls.value[row] not in values]
    for name in ("process", "op", "position", "partition", "offset", "value"):
        column = getattr(polls, name)
        column[:] = type(column)("q", [column[row] for row in rows])


PLANTS: list[Plant] = [
    read_an_aborted_record, read_ones_own, tear, lose, lose_what_was_aborted, double, double_in_the_log,
    read_in_a_circle,
]  # fmt: skip


@pytest.mark.parametrize("plant", PLANTS, ids=lambda function: function.__name__)
@given(data=st.data())
@settings(max_examples=60)
def test_a_planted_fault_is_found(plant: Plant, data: st.DataObject) -> None:
    steps = data.draw(st.lists(ONE_STEP, min_size=25, max_size=60))
    history = ModelLog().run(steps)

    def choose(among: list[int]) -> int:
        assume(among)
        return data.draw(st.sampled_from(among))

    expected = plant(history, choose)
    verdict = check_transactions(history)
    assert expected & set(verdict.forbidden), verdict.lines()


def test_writes_in_several_orders_are_counted_and_allowed() -> None:
    """G0: two producers write by turns."""
    steps: list[Step] = [
        *(
            ("write", 0, 0),
            ("write", 1, 0),
            ("write", 1, 1),
            ("write", 0, 1),
            ("commit", 0, 0),
            ("commit", 1, 0),
        ),
    ]
    verdict = check_transactions(ModelLog().run(steps))
    assert {kind: found.count for kind, found in verdict.found.items()} == {Anomaly.WRITE_CYCLE: 1}
    assert not verdict.forbidden
    assert Anomaly.WRITE_CYCLE in ALLOWED


def test_every_class_is_planted() -> None:
    assert {anomaly for all_of in WRONG.values() for anomaly in all_of} >= TRANSACTIONAL - ALLOWED


def test_circles_are_found_in_deep_graphs() -> None:
    deep = {number: {number + 1} for number in range(50_000)} | {50_000: set[int]()}
    assert circles(deep) == []
    (circle,) = circles(deep | {50_000: {49_000}})
    assert sorted(circle) == list(range(49_000, 50_001))
