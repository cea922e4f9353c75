"""A shard of the transaction coordinator in simulated time, with a log that is a list of batches.

After every step, whoever takes it, the shard's own invariants are looked at (`Shard.validate`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from penstock_core.errors import ErrorCode, PenstockError
from penstock_storage_node.settings import TransactionSettings
from penstock_storage_node.transactions.effects import MarkersDue, MarkersWithdrawn, TopicPartitionName
from penstock_storage_node.transactions.records import (
    StateRecord,
    TransactionValue,
    put_key,
    put_value,
    read_key,
    read_value,
)
from penstock_storage_node.transactions.shard import Shard
from penstock_storage_node.transactions.state import Add, Answer, End, Verify
from penstock_storage_node.transactions.unit_records import Unit
from penstock_storage_node.transactions.units import AbortStage, CommitUnit, Triple
from penstock_storage_node.transactions.writes import Done

WALL_BASE_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000
GRACE_MS = 5_000
LATE_MS = TIMEOUT_MS + GRACE_MS
"""When a transaction of that timeout is aborted."""
A0 = TopicPartitionName("a", 0)
A1 = TopicPartitionName("a", 1)
B0 = TopicPartitionName("b", 0)
NONE = ErrorCode.NONE


class FakeLog:
    """Batches in order; the high watermark follows when told to."""

    def __init__(self) -> None:
        self.batches: list[list[StateRecord]] = []
        self.committed = 0
        """Batches that the high watermark covers."""
        self.refuse: ErrorCode | None = None
        self.record_bytes_max = 1 << 20
        self._waiting: list[tuple[int, Done]] = []

    def append(self, records: Sequence[StateRecord], done: Done) -> None:
        if self.refuse is not None:
            raise PenstockError(self.refuse, "refused by the test")
        if sum(len(key) + len(value or b"") for key, value in records) > self.record_bytes_max:
            raise PenstockError(ErrorCode.MESSAGE_TOO_LARGE, "too large for the test")
        self.batches.append(list(records))
        self._waiting.append((len(self.batches), done))

    def when_start_covered(self, done: Done) -> None:
        self._waiting.append((len(self.batches), done))
        self.advance(self.committed)

    def advance(self, to: int) -> None:
        """The high watermark covers so many batches."""
        self.committed = to
        while self._waiting and self._waiting[0][0] <= to:
            self._waiting.pop(0)[1](NONE)

    def lose(self, kept: int) -> None:
        """Leadership ends; the next leader has the first `kept` batches."""
        assert kept >= self.committed
        self._waiting.clear()
        del self.batches[kept:]

    def newest(self, name: str, batches: int | None = None) -> TransactionValue | None:
        """What the log says of an id."""
        found = None
        for record in itertools.chain.from_iterable(self.batches[:batches]):
            if read_key(record.key) == name:
                found = None if record.value is None else read_value(record.value)
        return found


class Rig:
    """One shard, its log, its clock and what it wants sent."""

    def __init__(self, *, version: int = 2, hold: bool = False) -> None:
        self.now_ms = 1_000_000
        self.wall_offset_ms = WALL_BASE_MS
        self.version = version
        self.hold = hold
        """The high watermark stands still."""
        self.hold_markers = False
        self.log = FakeLog()
        self.settings = TransactionSettings()
        self.next_id = 1_000
        self.ids_gone = False
        self.room = True
        self.unknown: set[TopicPartitionName] = set()
        self.sent: list[MarkersDue] = []
        """Ever."""
        self.due: list[MarkersDue] = []
        """Not written so far."""
        self.epoch = 0
        self.shard = self.make_shard()
        self.shard.loaded()

    def make_shard(self) -> Shard:
        self.epoch += 1
        self.scheduled = False
        return Shard(
            self.log,
            self.settings,
            state_partition=7,
            coordinator_epoch=self.epoch,
            clock_ms=lambda: self.now_ms,
            wall_ms=self.wall_ms,
            version=lambda: self.version,
            take_id=self._take_id,
            exists=lambda partition: partition not in self.unknown,
            has_room=lambda: self.room,
            send=self._send,
            schedule=self._scheduled,
        )

    def wall_ms(self) -> int:
        return self.wall_offset_ms + self.now_ms

    def _take_id(self) -> int | None:
        if self.ids_gone:
            return None
        self.next_id += 1
        return self.next_id

    def _scheduled(self) -> None:
        self.scheduled = True

    def _send(self, effect: MarkersDue | MarkersWithdrawn) -> None:
        if isinstance(effect, MarkersWithdrawn):
            assert effect == MarkersWithdrawn(7, self.epoch)
            self.due.clear()
        else:
            assert (effect.state_partition, effect.coordinator_epoch) == (7, self.epoch)
            self.sent.append(effect)
            self.due.append(effect)

    # -- time and the world ----------------------------------------------------------------------

    def turn(self) -> None:
        """The end of a turn of the loop."""
        self.shard.validate()
        if self.scheduled:
            self.scheduled = False
            self.shard.end_turn()
            self.shard.validate()

    def cover(self, batches: int | None = None) -> None:
        self.log.advance(len(self.log.batches) if batches is None else batches)
        self.shard.validate()

    def write_markers(self) -> None:
        due, self.due = self.due, []
        for each in due:
            self.shard.markers_written(each.producer_id, each.producer_epoch, each.partitions)
            self.shard.validate()

    def settle(self) -> None:
        """Let the log and the markers come to rest, unless they are held."""
        self.turn()
        while not self.hold and (
            self.log.committed < len(self.log.batches)
            or self.scheduled
            or (self.due and not self.hold_markers)
        ):
            self.cover()
            if not self.hold_markers:
                self.write_markers()
            self.turn()

    def pass_ms(self, ms: int) -> None:
        until_ms = self.now_ms + ms
        while self.now_ms < until_ms:
            self.now_ms = min(max(self.now_ms, self.shard.next_timer_ms), until_ms)
            self.shard.tick()
            self.settle()
            if self.shard.next_timer_ms <= self.now_ms < until_ms:
                self.now_ms += 1

    def fail_over(self, kept: int | None = None, *, covered: bool = True) -> None:
        """Another node takes over with the first `kept` batches (all of them by default)."""
        self.shard.close()
        self.log.lose(len(self.log.batches) if kept is None else kept)
        self.shard = self.make_shard()
        for record in itertools.chain.from_iterable(self.log.batches):
            self.shard.replay(record.key, record.value)
        self.shard.loaded()
        if covered:
            self.cover()

    def put(self, name: str, value: TransactionValue, version: int = 1) -> None:
        """Have a record in the log before the shard reads it (`fail_over`)."""
        self.log.batches.append([StateRecord(put_key(name), put_value(value, version))])
        self.log.committed = len(self.log.batches)

    def value(self, name: str = "t") -> TransactionValue:
        return dict(self.shard.values())[name]

    # -- requests --------------------------------------------------------------------------------

    def init(self, name: str = "t", timeout_ms: int = TIMEOUT_MS, **changes: Any) -> list[Answer]:
        """An InitProducerId; the list gets its answer."""
        answers: list[Answer] = []
        self.shard.init_producer(name, timeout_ms, answers.append, **changes)
        self.settle()
        return answers

    def add(
        self, pair: tuple[int, int], *partitions: TopicPartitionName, name: str = "t", version: int = 2
    ) -> list[Answer]:
        answers: list[Answer] = []
        self.shard.add(name, Add(*pair, frozenset(partitions), version), answers.append)
        self.settle()
        return answers

    def verify(self, pair: tuple[int, int], *partitions: TopicPartitionName, name: str = "t") -> list[Answer]:
        answers: list[Answer] = []
        self.shard.add(name, Verify(*pair, frozenset(partitions)), answers.append)
        self.settle()
        return answers

    def end(
        self, pair: tuple[int, int], *, commit: bool = True, name: str = "t", version: int = 2
    ) -> list[Answer]:
        answers: list[Answer] = []
        self.shard.end(name, End(*pair, commit, version), answers.append)
        self.settle()
        return answers

    def stage(
        self, unit: Unit, name: str = "s-0-0-0", timeout_ms: int = TIMEOUT_MS, **changes: Any
    ) -> list[Answer]:
        """A BeginStage."""
        answers: list[Answer] = []
        self.shard.stage(name, unit, timeout_ms, answers.append, **changes)
        self.settle()
        return answers

    def staged(self, unit: Unit, name: str = "s-0-0-0", *partitions: TopicPartitionName) -> Triple:
        """A stage with rows in these partitions."""
        (answer,) = self.stage(unit, name)
        assert (answer.error, answer.verdict) == (NONE, None), answer
        triple = Triple(name, answer.producer_id, answer.producer_epoch)
        if partitions:
            assert codes(self.add(triple[1:], *partitions, name=name)) == [NONE]
        return triple

    def commit(self, unit: Unit, *triples: Triple, **changes: Any) -> list[Answer]:
        """A CommitUnit."""
        answers: list[Answer] = []
        self.shard.unit(unit.sink, CommitUnit(unit, triples, **changes), answers.append)
        self.settle()
        return answers

    def abort_stage(self, sink: str, triple: Triple) -> list[Answer]:
        answers: list[Answer] = []
        self.shard.unit(sink, AbortStage(sink, triple), answers.append)
        self.settle()
        return answers

    def producer(self, name: str = "t", **changes: Any) -> tuple[int, int]:
        """A producer id and epoch."""
        (answer,) = self.init(name, **changes)
        assert answer.error is NONE, answer
        return answer.producer_id, answer.producer_epoch


def codes(*lists: list[Answer]) -> list[ErrorCode | None]:
    """The answers' errors, None where there is none so far."""
    return [answers[0].error if answers else None for answers in lists]
