"""The log checker: which promises of a log did this history see broken?

Classes are those of Jepsen's checker for Kafka (jepsen/tests/kafka.clj), written anew, as
far as they mean something for a log without transactions. Everything that names a place
counts as evidence of what stands there: polls, acknowledgements, and replicas' files.

| class | meaning |
|---|---|
| LOST_WRITE | acknowledged, at or below the highest offset read, read by nobody (or acked without offset) |
| UNSEEN | acknowledged beyond all that was read: lost too where the last reader read to the end |
| DUPLICATE | one value at two places |
| INCONSISTENT_OFFSETS | two values at one place, between any two readers, replicas or acks |
| INT/EXT_NONMONOTONIC_POLL | a reader went back without a seek, within one poll / between two |
| INT/EXT_POLL_SKIP | a reader passed over an offset at which something stands |
| INT/EXT_NONMONOTONIC_SEND | a process' later send got the lower offset, within one burst / between two |
| INT_SEND_SKIP | others' records stand between those of one burst: allowed, counted |
| ABORTED_READ | a record was read whose send failed definitely (G1a); sends that ended as INFO may be read |
| UNKNOWN_VALUE | a record was read that nobody sent (or that is damaged) |

What speaks of transactions is in `transaction_checker`, which uses this for all else:

| class | meaning |
|---|---|
| PRECOMMITTED_READ | a transaction was given its own write before it was committed |
| TORN | a transaction of which something was read, and something by nobody |
| CIRCULAR_READS | transactions that read one another's writes in a circle (G1c by write-read edges) |
| WRITE_CYCLE | records of transactions stand in another order in one partition than in another (G0): allowed, counted |

Theory: offsets are the version order, so nothing needs a search: three passes with dict
look-ups. A place is one integer, partition and offset, to spare a tuple per row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from chaos.history import NO_OFFSET, History, Polls, Sends, Status

OFFSET_BITS = 48
EXAMPLES_MAX = 5


class Anomaly(StrEnum):
    """What can be wrong; the module's text says what each one means."""

    LOST_WRITE = "lost-write"
    UNSEEN = "unseen"
    DUPLICATE = "duplicate"
    INCONSISTENT_OFFSETS = "inconsistent-offsets"
    INT_NONMONOTONIC_POLL = "int-nonmonotonic-poll"
    EXT_NONMONOTONIC_POLL = "nonmonotonic-poll"
    INT_POLL_SKIP = "int-poll-skip"
    EXT_POLL_SKIP = "poll-skip"
    INT_NONMONOTONIC_SEND = "int-nonmonotonic-send"
    EXT_NONMONOTONIC_SEND = "nonmonotonic-send"
    INT_SEND_SKIP = "int-send-skip"
    ABORTED_READ = "G1a-aborted-read"
    UNKNOWN_VALUE = "unknown-value"
    PRECOMMITTED_READ = "precommitted-read"
    TORN = "torn-transaction"
    CIRCULAR_READS = "G1c-circular-reads"
    WRITE_CYCLE = "G0-write-cycle"


TRANSACTIONAL = frozenset(
    {Anomaly.PRECOMMITTED_READ, Anomaly.TORN, Anomaly.CIRCULAR_READS, Anomaly.WRITE_CYCLE}
)
"""What only a history with transactions can show."""

ALLOWED = frozenset({Anomaly.INT_SEND_SKIP, Anomaly.WRITE_CYCLE})
"""Not promised by any log: a burst shares its partition with other producers, and so does a transaction."""


@dataclass
class Found:
    """Occurrences of one class; the first few of them in words."""

    count: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass
class Verdict:
    """What a history shows."""

    sent: int = 0
    acked: int = 0
    failed: int = 0
    unknown: int = 0
    polled: int = 0
    found: dict[Anomaly, Found] = field(default_factory=dict)

    def add(self, anomaly: Anomaly, text: str) -> None:
        found = self.found.setdefault(anomaly, Found())
        found.count += 1
        if found.count <= EXAMPLES_MAX:
            found.examples.append(text)

    def count(self, *anomalies: Anomaly) -> int:
        return sum(self.found[one].count for one in anomalies if one in self.found)

    def take(self, other: Verdict) -> None:
        """What another history of the same run shows."""
        for name in ("sent", "acked", "failed", "unknown", "polled"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for anomaly, found in other.found.items():
            mine = self.found.setdefault(anomaly, Found())
            mine.count += found.count
            mine.examples = (mine.examples + found.examples)[:EXAMPLES_MAX]

    @property
    def lost(self) -> int:
        return self.count(Anomaly.LOST_WRITE, Anomaly.UNSEEN)

    @property
    def duplicated(self) -> int:
        return self.count(Anomaly.DUPLICATE)

    @property
    def forbidden(self) -> dict[Anomaly, Found]:
        """What was found and may not be."""
        return {one: found for one, found in self.found.items() if one not in ALLOWED}

    def lines(self) -> list[str]:
        """For people: a line a class that may not be, with examples."""
        return [f"{one}: {found.count}; {'; '.join(found.examples)}" for one, found in self.forbidden.items()]


def check(history: History) -> Verdict:
    """All anomalies of a history."""
    sends, polls = history.sends, history.polls
    verdict = Verdict(
        sent=len(sends),
        acked=sends.count(Status.OK),
        failed=sends.count(Status.FAIL),
        unknown=sends.count(Status.INFO),
        polled=len(polls),
    )
    places = _Places(verdict)
    for partition, offset, value in zip(polls.partition, polls.offset, polls.value, strict=True):
        places.note(partition << OFFSET_BITS | offset, value)
    polled = set(polls.value)
    highest = _highest(polls)
    for partition, offset, value, status in _columns(sends):
        if status == Status.OK and offset != NO_OFFSET:
            places.note(partition << OFFSET_BITS | offset, value)
    _check_delivery(sends, polled, highest, verdict)
    _check_polls(polls, places, verdict)
    _check_sends(sends, places, verdict)
    return verdict


class _Places:
    """What stands where, from all evidence; finds values at two places and places with two values."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._at: dict[int, int] = {}
        self._of: dict[int, int] = {}
        self._sorted: list[int] | None = None
        self._told: set[tuple[int, int]] = set()

    def note(self, place: int, value: int) -> None:
        if self._at.setdefault(place, value) != value:
            self._tell(
                Anomaly.INCONSISTENT_OFFSETS,
                (place, value),
                f"{_name(place)} holds {self._at[place]} and {value}",
            )
        if value >= 0 and self._of.setdefault(value, place) != place:
            self._tell(
                Anomaly.DUPLICATE,
                (value, place),
                f"{value} stands at {_name(self._of[value])} and {_name(place)}",
            )

    def between(self, first: int, last: int) -> int | None:
        """The first place after `first` and before `last` at which something stands."""
        if self._sorted is None:
            self._sorted = sorted(self._at)
        index = bisect_left(self._sorted, first + 1)
        if index < len(self._sorted) and self._sorted[index] < last:
            return self._sorted[index]
        return None

    def _tell(self, anomaly: Anomaly, what: tuple[int, int], text: str) -> None:
        # The same second value seen by five readers is one anomaly.
        if what not in self._told:
            self._told.add(what)
            self._verdict.add(anomaly, text)


def _check_delivery(sends: Sends, polled: set[int], highest: dict[int, int], verdict: Verdict) -> None:
    """Acked and never read; failed and read; read and never sent."""
    failed_or_known = set(sends.value)
    for value in polled - failed_or_known:
        verdict.add(Anomaly.UNKNOWN_VALUE, f"{value} was read and never sent")
    for partition, offset, value, status in _columns(sends):
        if status == Status.OK:
            if value in polled:
                continue
            if offset <= highest.get(partition, -1):
                where = "without an offset" if offset == NO_OFFSET else f"at {partition}/{offset}"
                verdict.add(Anomaly.LOST_WRITE, f"{value}, acked {where}, was read by nobody")
            else:
                verdict.add(
                    Anomaly.UNSEEN, f"{value}, acked at {partition}/{offset}, is beyond all that was read"
                )
        elif status == Status.FAIL and value in polled:
            verdict.add(Anomaly.ABORTED_READ, f"{value} was read though its send failed for good")


def _check_polls(polls: Polls, places: _Places, verdict: Verdict) -> None:
    """Does each reader move on, without passing over anything?"""
    last: dict[tuple[int, int], tuple[int, int, int]] = {}
    rows = zip(polls.process, polls.op, polls.position, polls.partition, polls.offset, strict=True)
    for process, op, position, partition, offset in rows:
        key = (process, partition)
        before = last.get(key)
        last[key] = (offset, op, position)
        if before is None or before[2] != position or before[0] + 1 == offset:
            continue
        inside = before[1] == op
        text = f"process {process} read {partition}/{offset} after {before[0]}"
        if offset <= before[0]:
            kind = Anomaly.INT_NONMONOTONIC_POLL if inside else Anomaly.EXT_NONMONOTONIC_POLL
            verdict.add(kind, text)
            continue
        base = partition << OFFSET_BITS
        skipped = places.between(base | before[0], base | offset)
        if skipped is not None:
            verdict.add(
                Anomaly.INT_POLL_SKIP if inside else Anomaly.EXT_POLL_SKIP,
                f"{text}, and skipped {_name(skipped)}",
            )


def _check_sends(sends: Sends, places: _Places, verdict: Verdict) -> None:
    """Do the offsets of a process' acked sends to a partition rise in the order of its calls?"""
    last: dict[tuple[int, int], tuple[int, int]] = {}
    rows = zip(sends.process, sends.op, sends.partition, sends.offset, sends.value, strict=True)
    for process, op, partition, offset, value in rows:
        if offset == NO_OFFSET:
            continue
        key = (process, partition)
        before = last.get(key)
        last[key] = (offset, op)
        if before is None or before[0] + 1 == offset:
            continue
        inside = before[1] == op
        if offset <= before[0]:
            kind = Anomaly.INT_NONMONOTONIC_SEND if inside else Anomaly.EXT_NONMONOTONIC_SEND
            verdict.add(kind, f"process {process}: {value} got {partition}/{offset} after {before[0]}")
        elif inside:
            base = partition << OFFSET_BITS
            other = places.between(base | before[0], base | offset)
            if other is not None:
                verdict.add(Anomaly.INT_SEND_SKIP, f"process {process}: {value} after {_name(other)}")


def _highest(polls: Polls) -> dict[int, int]:
    highest: dict[int, int] = {}
    for partition, offset in zip(polls.partition, polls.offset, strict=True):
        if offset > highest.get(partition, -1):
            highest[partition] = offset
    return highest


def _columns(sends: Sends) -> Iterator[tuple[int, int, int, int]]:
    return zip(sends.partition, sends.offset, sends.value, sends.status, strict=True)


def _name(place: int) -> str:
    return f"{place >> OFFSET_BITS}/{place & (1 << OFFSET_BITS) - 1}"
