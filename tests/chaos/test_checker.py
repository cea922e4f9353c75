"""The log checker: each class of anomaly planted by hand is found, and nothing else is."""

from __future__ import annotations

import pytest

from chaos.checker import ALLOWED, TRANSACTIONAL, Anomaly, check
from chaos.history import NO_OFFSET, UNREADABLE, History, Status


def log_of(*sends: tuple[int, int, int, int], polls: tuple[tuple[int, int, int, int], ...] = ()) -> History:
    """Sends (process, op, value, offset) and polls (process, op, value, offset), all of partition 0."""
    history = History()
    for process, op, value, offset in sends:
        row = history.sends.invoke(process, op, 0, value)
        history.sends.complete(row, Status.OK, offset)
    for process, op, value, offset in polls:
        history.polls.add(process, op, 0, 0, offset, value)
    return history


THREE = ((1, 1, 10, 0), (1, 2, 11, 1), (1, 3, 12, 2))
READ = ((9, 1, 10, 0), (9, 1, 11, 1), (9, 2, 12, 2))

PLANTED: dict[str, tuple[History, dict[Anomaly, int]]] = {
    "clean": (log_of(*THREE, polls=READ), {}),
    "empty": (History(), {}),
    "acked below what was read": (log_of(*THREE, polls=(READ[2],)), {Anomaly.LOST_WRITE: 2}),
    "acked without an offset, nowhere": (
        log_of(*THREE, (1, 4, 13, NO_OFFSET), polls=READ), {Anomaly.LOST_WRITE: 1},
    ),
    "acked beyond what was read": (log_of(*THREE, polls=READ[:2]), {Anomaly.UNSEEN: 1}),
    "acked and nothing read at all": (log_of(*THREE), {Anomaly.UNSEEN: 3}),
    "value read at two offsets": (
        log_of(*THREE, polls=(*READ, (9, 3, 12, 3))), {Anomaly.DUPLICATE: 1},
    ),
    "acked at one offset, read at another": (
        log_of((1, 1, 10, 0), (1, 2, 11, 1), polls=((9, 1, 10, 0), (9, 1, 11, 2))),
        {Anomaly.DUPLICATE: 1, Anomaly.INT_POLL_SKIP: 1},
    ),
    "two readers, two values": (
        log_of(*THREE, polls=(*READ, (8, 1, 10, 0), (8, 1, 12, 1))),
        {Anomaly.INCONSISTENT_OFFSETS: 1, Anomaly.DUPLICATE: 1},
    ),
    "two acks for one offset": (
        log_of((1, 1, 10, 0), (2, 1, 11, 0), polls=((9, 1, 10, 0),)),
        {Anomaly.INCONSISTENT_OFFSETS: 1, Anomaly.LOST_WRITE: 1},
    ),
    "back within a poll": (
        log_of(*THREE, polls=((9, 1, 10, 0), (9, 1, 11, 1), (9, 1, 10, 0), (9, 2, 11, 1), (9, 2, 12, 2))),
        {Anomaly.INT_NONMONOTONIC_POLL: 1},
    ),
    "back between polls": (
        log_of(*THREE, polls=(*READ, (9, 3, 12, 2))), {Anomaly.EXT_NONMONOTONIC_POLL: 1},
    ),
    "skip within a poll": (
        log_of(*THREE, polls=((9, 1, 10, 0), (9, 1, 12, 2), (8, 1, 11, 1))), {Anomaly.INT_POLL_SKIP: 1},
    ),
    "skip between polls": (
        log_of(*THREE, polls=((9, 1, 10, 0), (9, 2, 12, 2), (8, 1, 11, 1))), {Anomaly.EXT_POLL_SKIP: 1},
    ),
    "a gap where nothing stands": (
        log_of((1, 1, 10, 0), (1, 2, 11, 5), polls=((9, 1, 10, 0), (9, 1, 11, 5))), {},
    ),
    "later send lower, in a burst": (
        log_of((1, 1, 10, 1), (1, 1, 11, 0), polls=((9, 1, 11, 0), (9, 1, 10, 1))),
        {Anomaly.INT_NONMONOTONIC_SEND: 1},
    ),
    "later send lower": (
        log_of((1, 1, 10, 1), (1, 2, 11, 0), polls=((9, 1, 11, 0), (9, 1, 10, 1))),
        {Anomaly.EXT_NONMONOTONIC_SEND: 1},
    ),
    "another producer within a burst": (
        log_of((1, 1, 10, 0), (2, 1, 11, 1), (1, 1, 12, 2), polls=READ), {Anomaly.INT_SEND_SKIP: 1},
    ),
    "read and never sent": (
        log_of(*THREE, polls=(*READ, (9, 3, 99, 3))), {Anomaly.UNKNOWN_VALUE: 1},
    ),
    "read and damaged": (
        log_of(*THREE, polls=(*READ, (9, 3, UNREADABLE, 3))), {Anomaly.UNKNOWN_VALUE: 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", PLANTED)
def test_planted(what: str) -> None:
    history, expected = PLANTED[what]
    verdict = check(history)
    assert {kind: found.count for kind, found in verdict.found.items()} == expected, verdict.lines()
    assert set(verdict.forbidden) == set(expected) - ALLOWED


@pytest.mark.parametrize(
    ("status", "expected"), [(Status.FAIL, {Anomaly.ABORTED_READ}), (Status.INFO, set()), (Status.OK, set())]
)
def test_only_a_definite_failure_may_not_be_read(status: Status, expected: set[Anomaly]) -> None:
    history = log_of(*THREE, polls=(*READ, (9, 3, 13, 3)))
    history.sends.complete(history.sends.invoke(1, 4, 0, 13), status)
    assert set(check(history).found) == expected


def test_failed_and_unknown_sends_need_not_be_there() -> None:
    history = log_of(*THREE, polls=READ)
    history.sends.complete(history.sends.invoke(1, 4, 0, 13), Status.FAIL)
    history.sends.invoke(1, 5, 0, 14)
    verdict = check(history)
    assert not verdict.found
    assert (verdict.sent, verdict.acked, verdict.failed, verdict.unknown) == (5, 3, 1, 1)


def test_a_reader_that_seeks_may_go_anywhere() -> None:
    history = log_of(*THREE, polls=READ)
    for position, offset in ((1, 2), (2, 0)):
        history.polls.add(9, 3, position, 0, offset, 10 + offset)
    assert not check(history).found


def test_partitions_do_not_meet() -> None:
    history = History()
    for partition in range(3):
        for offset in range(4):
            value = 10 * partition + offset
            row = history.sends.invoke(1, offset, partition, value)
            history.sends.complete(row, Status.OK, offset)
            history.polls.add(9, 1, 0, partition, offset, value)
    assert not check(history).found


def test_every_class_is_planted() -> None:
    planted = {kind for _, expected in PLANTED.values() for kind in expected} | {Anomaly.ABORTED_READ}
    assert planted == set(Anomaly) - TRANSACTIONAL


def test_lines_name_values_and_places() -> None:
    history, _ = PLANTED["acked below what was read"]
    (line,) = check(history).lines()
    assert "lost-write: 2" in line
    assert "10, acked at 0/0" in line
