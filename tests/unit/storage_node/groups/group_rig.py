"""A shard of the group coordinator in simulated time, with a log that is a list: a record's place is its offset.

After every step, whoever takes it, the shard's own invariants are looked at (`Shard.validate`).
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicId
from penstock_kafka.records.batch import BatchInfo, read_header
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_storage_node.groups.classic.group import ClassicGroup, JoinResult, SyncResult
from penstock_storage_node.groups.classic.protocol import JoinRequest, SyncRequest
from penstock_storage_node.groups.offsets import CommitRequest, Found, NewOffset
from penstock_storage_node.groups.records import Record
from penstock_storage_node.groups.shard import Shard
from penstock_storage_node.groups.store import Done, InTransaction, Written
from penstock_storage_node.settings import GroupSettings

WALL_BASE_MS = 1_700_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms

    def wall(self) -> int:
        return WALL_BASE_MS + self.now_ms


class FakeTopics:
    """Topics by partition count."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.remade: dict[str, TopicId] = {}
        """Topics that have another id than `id_of` says."""
        self._token = object()

    @staticmethod
    def id_of(topic: str) -> TopicId:
        return TopicId(topic.encode().ljust(16, b"\0")[:16])

    def partition_count(self, topic: str) -> int:
        return self.counts.get(topic, 0)

    def topic_id(self, topic: str) -> TopicId | None:
        return self.remade.get(topic, self.id_of(topic)) if topic in self.counts else None

    def topic_name(self, topic_id: TopicId) -> str | None:
        return next((t for t in self.counts if self.topic_id(t) == topic_id), None)

    def names(self) -> Sequence[str]:
        return list(self.counts)

    def token(self) -> object:
        return self._token

    def set(self, **counts: int) -> None:
        """Have these topics, and no others."""
        self.counts = counts
        self._token = object()


@dataclass(frozen=True)
class FakeMarker:
    """The end of a producer's transaction, in place of a record."""

    producer_id: int
    commits: bool


class Open:
    """`Admitted` for a transaction that is open."""

    def check(self, info: BatchInfo) -> None:
        pass

    def appended(self, info: BatchInfo) -> None:
        pass


class FakeLog:
    """Records and markers in order; the high watermark follows when told to, or at once."""

    def __init__(self, *, hold: bool = False) -> None:
        self.records: list[Record | FakeMarker] = []
        self.producers: list[int] = []
        """Of each record, -1 outside of transactions."""
        self.times: list[int] = []
        """Of each record, in ms since 1970."""
        self.wall_ms: Callable[[], int] = lambda: 0
        self.epochs: dict[int, int] = {}
        """By producer: a lower one is refused."""
        self.committed = 0
        self.hold = hold
        self.refuse: ErrorCode | None = None
        self.batch_bytes_max: int | None = None
        """Larger batches are refused, as `max.message.bytes` has it."""
        self.after_step: Callable[[], None] = lambda: None
        self.on_advance: list[Callable[[], None]] = []
        """For faults that tests plant: called once the high watermark has risen."""
        self._ends: list[int] = []
        self._waiting: list[tuple[int, Done]] = []

    def append(self, records: Sequence[Record], done: Done) -> int:
        return self._append(records, -1, done)

    def append_in_transaction(
        self, records: Sequence[Record], transaction: InTransaction, done: Done
    ) -> Written:
        producer_id = transaction.producer_id
        if transaction.epoch < self.epochs.get(producer_id, 0):
            raise PenstockError(ErrorCode.INVALID_PRODUCER_EPOCH, "an old epoch")
        batch = build_batch(
            [NewRecord(key, value) for key, value in records],
            producer_id=producer_id,
            producer_epoch=transaction.epoch,
            transactional=True,
        )
        info = read_header(batch)
        transaction.admitted.check(info)
        base_offset = self._append(records, producer_id, done)
        self.epochs[producer_id] = transaction.epoch
        transaction.admitted.appended(info)
        begun_at = self.begun_at(producer_id, len(self.records))
        assert begun_at is not None
        return Written(base_offset, begun_at)

    def _append(self, records: Sequence[Record | FakeMarker], producer_id: int, done: Done) -> int:
        if self.refuse is not None:
            raise PenstockError(self.refuse, "refused by the test")
        if self.batch_bytes_max is not None:
            size = sum(len(each.key) + len(each.value or b"") for each in records if isinstance(each, Record))
            if size > self.batch_bytes_max:
                raise PenstockError(ErrorCode.MESSAGE_TOO_LARGE, "refused by the test")
        base_offset = len(self.records)
        self.records += records
        self.producers += [producer_id] * len(records)
        self.times += [self.wall_ms()] * len(records)
        self._ends.append(len(self.records))
        self._waiting.append((len(self.records), done))
        return base_offset

    def append_marker(self, marker: FakeMarker, done: Done) -> int:
        """As the leader of the partition does."""
        return self._append([marker], marker.producer_id, done)

    def begun_at(self, producer_id: int, end: int) -> int | None:
        """Where the transaction of a producer began that is open at `end`."""
        found = None
        for offset in range(end):
            if self.producers[offset] == producer_id:
                is_over = isinstance(self.records[offset], FakeMarker)
                found = None if is_over else offset if found is None else found
        return found

    def advance(self, to: int | None = None) -> None:
        """Commit everything, or up to `to`."""
        self.committed = len(self.records) if to is None else to
        while self._waiting and self._waiting[0][0] <= self.committed:
            self._waiting.pop(0)[1](ErrorCode.NONE)
            self.after_step()
        late, self.on_advance = self.on_advance, []
        for each in late:
            each()

    def whole(self, end: int) -> int:
        """The end of the batch that `end` is in."""
        return next((each for each in self._ends if each >= end), 0)

    def lose(self, kept: int) -> None:
        """Leadership ends; the next leader has the first `kept` records, and the rest of the last one's
        batch: a log never ends within a batch."""
        assert kept >= self.committed
        kept = self.whole(kept)
        self._ends = [end for end in self._ends if end <= kept]
        waiting, self._waiting = self._waiting, []
        for _, done in waiting:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        del self.records[kept:], self.producers[kept:], self.times[kept:]


class CheckedShard(Shard):
    """A shard that is looked at after every step."""


def _checked(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def checked(shard: Shard, *args: Any, **kwargs: Any) -> Any:
        result = step(shard, *args, **kwargs)
        shard.validate()
        return result

    return checked


STEPS = (
    "join",
    "sync",
    "heartbeat",
    "leave",
    "consumer_heartbeat",
    "commit",
    "end_transaction",
    "delete_offsets",
    "delete_group",
    "forget_topics",
    "tick",
    "expire",
)
for _step in STEPS:
    setattr(CheckedShard, _step, _checked(getattr(Shard, _step)))


class Rig:
    """One shard, its log and its clock."""

    def __init__(self, settings: GroupSettings | None = None, *, hold: bool = False) -> None:
        self.clock = Clock()
        self.log = FakeLog(hold=hold)
        self.log.wall_ms = self.clock.wall
        self.topics = FakeTopics()
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=0)
        self.own_settings: dict[tuple[str, str], int] = {}
        """Of single groups: by group id and name."""
        self._ids = itertools.count(1)
        self.shard = self.make()
        self.shard.resume()
        self.log.after_step = lambda: self.shard.validate()

    def make(self) -> Shard:
        """One that knows nothing of its log yet."""
        return CheckedShard(
            self.log,
            self.topics,
            self.settings,
            clock_ms=self.clock,
            wall_ms=self.clock.wall,
            new_id=lambda: f"id{next(self._ids)}",
            setting_ms=lambda group, name, default_ms: self.own_settings.get((group, name), default_ms),
        )

    def settle(self) -> None:
        """Let the high watermark catch up, unless it is held."""
        while not self.log.hold and self.log.committed < len(self.log.records):
            self.log.advance()

    def pass_ms(self, ms: int, step_ms: int = 50) -> None:
        """Time goes by."""
        until_ms = self.clock.now_ms + ms
        while self.clock.now_ms < until_ms:
            self.clock.now_ms = min(self.clock.now_ms + step_ms, until_ms)
            self.shard.tick()
            self.settle()

    def fail_over(self, kept: int | None = None) -> None:
        """Another node takes over with the first `kept` records (all of them by default)."""
        self.shard.close()
        self.log.lose(len(self.log.records) if kept is None else kept)
        self.shard = self.make()
        for offset, record in enumerate(self.log.records):
            if isinstance(record, FakeMarker):
                self.shard.replay_marker(record.producer_id, offset, commits=record.commits)
            else:
                producer_id, at_ms = self.log.producers[offset], self.log.times[offset]
                self.shard.replay(record.key, record.value, offset, producer_id, at_ms)
        self.log.committed = len(self.log.records)
        self.shard.resume()
        self.shard.validate()

    # -- requests -----------------------------------------------------------------------

    def join(self, group: str, member_id: str = "", **changes: Any) -> list[JoinResult]:
        """A JoinGroup; the list gets its answer."""
        answers: list[JoinResult] = []
        values: dict[str, Any] = {
            "instance_id": None,
            "protocol_type": "consumer",
            "protocols": (("range", subscription("t")),),
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "client_id": "c",
            "client_host": "/127.0.0.1",
        } | changes
        self.shard.join(JoinRequest(group, member_id, **values), answers.append)
        self.settle()
        return answers

    def enter(self, group: str, **changes: Any) -> tuple[str, list[JoinResult]]:
        """Join as a new member: the id that was given, and the second JoinGroup's answers."""
        first = self.join(group, **changes)
        assert first[0].error is ErrorCode.MEMBER_ID_REQUIRED, first
        return first[0].member_id, self.join(group, first[0].member_id, **changes)

    def sync(
        self,
        group: str,
        member_id: str,
        generation: int,
        assignments: Sequence[tuple[str, bytes]] = (),
        **changes: Any,
    ) -> list[SyncResult]:
        """A SyncGroup; the list gets its answer."""
        answers: list[SyncResult] = []
        values: dict[str, Any] = {"instance_id": None, "protocol_type": None, "protocol": None} | changes
        request = SyncRequest(group, member_id, generation=generation, assignments=assignments, **values)
        self.shard.sync(request, answers.append)
        self.settle()
        return answers

    def commit(
        self, group: str, member_id: str, generation: int, items: dict[tuple[str, int], int], **changes: Any
    ) -> list[list[ErrorCode]]:
        """An OffsetCommit of offsets by (topic, partition); the list gets its answer."""
        answers: list[list[ErrorCode]] = []
        new = [NewOffset(topic, partition, offset, -1, "") for (topic, partition), offset in items.items()]
        values: dict[str, Any] = {"instance_id": None} | changes
        request = CommitRequest(group, member_id, generation=generation, items=new, **values)
        self.shard.commit(request, lambda codes: answers.append(list(codes)))
        self.settle()
        return answers

    def commit_in(
        self, producer: tuple[int, int], group: str, items: dict[tuple[str, int], int], **changes: Any
    ) -> list[list[ErrorCode]]:
        """A TxnOffsetCommit of a producer (id, epoch), by a member or by nobody."""
        values: dict[str, Any] = {"member_id": "", "generation": -1} | changes
        return self.commit(group, items=items, transaction=InTransaction(*producer, Open()), **values)

    def mark(self, producer_id: int, *, commits: bool) -> None:
        """The leader appends a marker, and tells the shard once it is safe."""
        shard = self.shard

        def safe(error: ErrorCode) -> None:
            if not error:
                shard.end_transaction(producer_id, offset, commits=commits)

        offset = self.log.append_marker(FakeMarker(producer_id, commits), safe)
        self.settle()

    def stable_offsets(
        self, group: str, *keys: tuple[str, int], in_doubt: bool = False
    ) -> list[tuple[ErrorCode, dict[tuple[str, int], int], set[tuple[str, int]]]]:
        """An OffsetFetch that requires stable offsets; the list gets error, offsets, and what is unstable."""
        answers: list[tuple[ErrorCode, dict[tuple[str, int], int], set[tuple[str, int]]]] = []

        def reply(error: ErrorCode, found: Found, unstable: frozenset[tuple[str, int]]) -> None:
            known = {key: value.offset for key, value in found if value is not None and key not in unstable}
            answers.append((error, known, set(unstable)))

        self.shard.fetch_stable(group, None, -1, keys or None, reply, in_doubt=in_doubt)
        return answers

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        """All offsets of a group, by OffsetFetch."""
        error, found = self.shard.fetch(group, None, -1, None)
        assert not error
        return {key: value.offset for key, value in found if value is not None}

    def heartbeat(self, group: str, member_id: str, generation: int) -> ErrorCode:
        return self.shard.heartbeat(group, member_id, None, generation)

    def stable(self, group: str, count: int, **changes: Any) -> list[str]:
        """A group of `count` members with assignments; the leader first."""
        ids: list[str] = []
        for _ in range(count):
            member_id, _answer = self.enter(group, **changes)
            for known in ids:
                self.join(group, known, **changes)
            ids.append(member_id)
        found = self.shard.groups[group]
        assert isinstance(found, ClassicGroup)
        generation, leader = found.generation, found.leader
        ids.sort(key=lambda each: each != leader)
        for member_id in ids[1:]:
            self.sync(group, member_id, generation)
        self.sync(group, ids[0], generation, [(each, each.encode()) for each in ids])
        return ids


def subscription(*topics: str) -> bytes:
    """A ConsumerProtocolSubscription of version 0."""
    out = b"\0\0" + len(topics).to_bytes(4, "big")
    for topic in topics:
        out += len(topic).to_bytes(2, "big") + topic.encode()
    return out + b"\xff\xff\xff\xff"


def fresh_seeds(count: int) -> list[int]:
    """Seeds for randomised tests, other ones each run; tests print theirs."""
    rng = random.SystemRandom()
    return [rng.randrange(1 << 32) for _ in range(count)]
