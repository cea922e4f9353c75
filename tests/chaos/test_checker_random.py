"""The log checker on random histories of a log that keeps its promises, and of one that breaks one.

`PENSTOCK_CHECKER_SEED` repeats a run.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest

from chaos.checker import ALLOWED, Anomaly, check
from chaos.history import NO_OFFSET, History, Status

ROUNDS = 60
PARTITIONS = 3
PRODUCERS = 3
READERS = (100, 101, 102)


def seed() -> int:
    return int(os.environ.get("PENSTOCK_CHECKER_SEED") or random.SystemRandom().randrange(1 << 32))


class ModelLog:
    """A log of some partitions, with gaps as transactions' markers leave them, and clients of it."""

    def __init__(self, dice: random.Random, sends_count: int) -> None:
        self.dice = dice
        self.logs: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
        self.history = History()
        ends = [0] * PARTITIONS
        op = 0
        for value in range(sends_count):
            op += dice.random() < 0.3
            partition = dice.randrange(PARTITIONS)
            row = self.history.sends.invoke(dice.randrange(PRODUCERS), op, partition, value)
            ends[partition] += dice.random() < 0.05
            fate = dice.random()
            if fate < 0.05:
                self.history.sends.complete(row, Status.FAIL)
                continue
            written = fate > 0.1
            if written:
                self.logs[partition][ends[partition]] = value
                if fate > 0.15:
                    offset = ends[partition] if fate > 0.2 else NO_OFFSET
                    self.history.sends.complete(row, Status.OK, offset)
                ends[partition] += 1
        for reader in READERS:
            self._read(reader)

    def _read(self, reader: int) -> None:
        """Read everything in polls of random length; now and then seek back and read again."""
        rest = [sorted(log.items()) for log in self.logs]
        places = [0] * PARTITIONS
        op = position = 0
        while any(places[p] < len(rest[p]) for p in range(PARTITIONS)):
            op += 1
            if self.dice.random() < 0.05:
                position += 1
                places = [self.dice.randint(0, place) for place in places]
            for p in range(PARTITIONS):
                until = min(len(rest[p]), places[p] + self.dice.randrange(8))
                for offset, value in rest[p][places[p] : until]:
                    self.history.polls.add(reader, op, position, p, offset, value)
                places[p] = until


def lose(history: History, dice: random.Random) -> Anomaly:
    """Nobody reads a record that was acked before one which is read."""
    sends = history.sends
    row = dice.choice([r for r in range(len(sends) // 2) if sends.status[r] == Status.OK])
    _drop_polls(history, sends.value[row])
    return Anomaly.LOST_WRITE


def cut_the_end(history: History, dice: random.Random) -> Anomaly:
    """What was acked last is read by nobody."""
    sends = history.sends
    value = history.sends.invoke(0, 1 << 40, 0, len(sends))
    end = 1 + max(o for o, p in zip(history.polls.offset, history.polls.partition, strict=True) if p == 0)
    sends.complete(value, Status.OK, end)
    return Anomaly.UNSEEN


def double(history: History, dice: random.Random) -> Anomaly:
    polls = history.polls
    row = dice.randrange(len(polls))
    end = 1 + max(o for o, p in zip(polls.offset, polls.partition, strict=True) if p == polls.partition[row])
    polls.add(900, 1, 0, polls.partition[row], end, polls.value[row])
    return Anomaly.DUPLICATE


def disagree(history: History, dice: random.Random) -> Anomaly:
    polls, sends = history.polls, history.sends
    row = dice.randrange(len(polls))
    other = sends.invoke(0, 1 << 40, polls.partition[row], len(sends))
    polls.add(900, 1, 0, polls.partition[row], polls.offset[row], sends.value[other])
    return Anomaly.INCONSISTENT_OFFSETS


def go_back(history: History, dice: random.Random) -> Anomaly:
    polls = history.polls
    row = dice.randrange(len(polls))
    for _ in range(2):
        polls.add(900, 1, 0, polls.partition[row], polls.offset[row], polls.value[row])
    return Anomaly.INT_NONMONOTONIC_POLL


def skip(history: History, dice: random.Random) -> Anomaly:
    polls = history.polls
    rows = sorted((polls.offset[r], polls.value[r]) for r in range(len(polls)) if polls.partition[r] == 0)
    first, last = rows[0], rows[-1]
    polls.add(900, 1, 0, 0, *first)
    polls.add(900, 2, 0, 0, *last)
    return Anomaly.EXT_POLL_SKIP


def reorder(history: History, dice: random.Random) -> Anomaly:
    """Two acked sends of one process to one partition swap their places, in the log and in the acks."""
    sends, polls = history.sends, history.polls
    acked: dict[tuple[int, int], list[int]] = {}
    for row in range(len(sends)):
        if sends.offset[row] >= 0:
            acked.setdefault((sends.process[row], sends.partition[row]), []).append(row)
    rows = max(acked.values(), key=len)
    first, last = sorted(dice.sample(rows, 2))
    places = {sends.value[first]: sends.offset[last], sends.value[last]: sends.offset[first]}
    swapped = {sends.value[first]: sends.value[last], sends.value[last]: sends.value[first]}
    for row in (first, last):
        sends.offset[row] = places[sends.value[row]]
        sends.op[row] = (1 << 40) + row  # bursts of their own, in the order of their calls
    for row in range(len(polls)):
        polls.value[row] = swapped.get(polls.value[row], polls.value[row])
    return Anomaly.EXT_NONMONOTONIC_SEND


def read_a_failure(history: History, dice: random.Random) -> Anomaly:
    sends = history.sends
    row = sends.invoke(0, 1 << 40, 0, len(sends))
    sends.complete(row, Status.FAIL)
    end = 1 + max(o for o, p in zip(history.polls.offset, history.polls.partition, strict=True) if p == 0)
    history.polls.add(900, 1, 0, 0, end, sends.value[row])
    return Anomaly.ABORTED_READ


def make_up(history: History, dice: random.Random) -> Anomaly:
    end = 1 + max(o for o, p in zip(history.polls.offset, history.polls.partition, strict=True) if p == 0)
    history.polls.add(900, 1, 0, 0, end, 1 << 40)
    return Anomaly.UNKNOWN_VALUE


def _drop_polls(history: History, value: int) -> None:
    polls = history.polls
    kept = History().polls
    for row in range(len(polls)):
        if polls.value[row] != value:
            kept.add(
                polls.process[row], polls.op[row], polls.position[row],
                polls.partition[row], polls.offset[row], polls.value[row],
            )  # fmt: skip
    history.polls = kept


BREAKS: list[Callable[[History, random.Random], Anomaly]] = [
    lose, cut_the_end, double, disagree, go_back, skip, reorder, read_a_failure, make_up,
]  # fmt: skip
SIDE_EFFECTS = {
    # A record that is gone is passed over by readers where its ack told the place.
    Anomaly.LOST_WRITE: {Anomaly.INT_POLL_SKIP, Anomaly.EXT_POLL_SKIP},
    # Moving one of them past others of its process is more than one wrong order.
    Anomaly.EXT_NONMONOTONIC_SEND: {Anomaly.INT_NONMONOTONIC_SEND},
}


def test_a_log_that_keeps_its_promises_is_clean() -> None:
    first = seed()
    print(f"PENSTOCK_CHECKER_SEED={first}")
    for round_number in range(ROUNDS):
        dice = random.Random(first + round_number)
        verdict = check(ModelLog(dice, dice.randrange(1, 400)).history)
        assert not verdict.forbidden, (first + round_number, verdict.lines())


@pytest.mark.parametrize("broken", BREAKS, ids=lambda function: function.__name__)
def test_one_broken_promise_is_found(broken: Callable[[History, random.Random], Anomaly]) -> None:
    first = seed()
    print(f"PENSTOCK_CHECKER_SEED={first}")
    for round_number in range(ROUNDS):
        dice = random.Random(first + round_number)
        history = ModelLog(dice, dice.randrange(100, 400)).history
        expected = broken(history, dice)
        verdict = check(history)
        assert expected in verdict.found, (first + round_number, verdict.lines())
        others = set(verdict.found) - {expected} - SIDE_EFFECTS.get(expected, set()) - ALLOWED
        assert not others, (first + round_number, verdict.lines())


def test_a_million_records() -> None:
    count = 1_000_000
    rows = range(count)
    history = History()
    sends, polls = history.sends, history.polls
    for column, values in (
        (sends.process, (row % 2 for row in rows)), (sends.op, (row // 50 for row in rows)),
        (sends.partition, (row % 6 for row in rows)), (sends.value, rows),
        (sends.status, (int(Status.OK) for _ in rows)), (sends.offset, (row // 6 for row in rows)),
        (polls.process, (9 for _ in rows)), (polls.op, (row // 500 for row in rows)),
        (polls.position, (0 for _ in rows)), (polls.partition, (row % 6 for row in rows)),
        (polls.offset, (row // 6 for row in rows)), (polls.value, rows),
    ):  # fmt: skip
        column.extend(values)
    begun_s = time.process_time()
    verdict = check(history)
    print(f"{time.process_time() - begun_s:.1f} processor seconds for a million records")
    assert not verdict.forbidden
    assert verdict.polled == verdict.acked == count
