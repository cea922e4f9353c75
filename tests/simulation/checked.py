"""The shipped classes with an observer: they do what they do, and the checker hears of it.

No decision is taken here. Each override calls the shipped method and then tells the checker
what has changed.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from zlib import crc32

from penstock_controller.active.command_queue import CommandQueue
from penstock_controller.quorum.events import Outcome
from penstock_controller.quorum.machine import Machine
from penstock_controller.state.generation import Context, Generated
from penstock_core.config.topic import LONG_MAX
from penstock_core.ids import TopicPartition
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_kafka.records.batch import BatchInfo, Buffer, iter_batches, read_header
from penstock_kafka.records.markers import Marker
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.controller_client import ControllerClient
from penstock_storage_node.cluster.heartbeat_freshness import HeartbeatFreshness
from penstock_storage_node.cluster.registration import Registration
from penstock_storage_node.log.checkpoints import RETIRED_FILE
from penstock_storage_node.log.compaction.plan import CleaningPlan
from penstock_storage_node.log.compaction.rewrite import CLEANED, CleanedGroup, CleanRequest
from penstock_storage_node.log.fs import read_file
from penstock_storage_node.log.log import PartitionLog
from penstock_storage_node.log.producer_state import Origin
from penstock_storage_node.log.segment import Segment
from penstock_storage_node.log.state import Appended
from penstock_storage_node.replication.replica import PartitionReplica
from penstock_storage_node.replication.state import ReplicaState
from penstock_storage_node.rpc.paced_inlet import PacedInlet, size_of
from simulation.invariants import Checker, Entry
from simulation.log_checks import KEYED

R = TypeVar("R")

_checker: Checker | None = None


def install(checker: Checker | None) -> None:
    """Whom to tell, for one run."""
    global _checker
    _checker = checker


def _the_checker() -> Checker:
    assert _checker is not None
    return _checker


def entry_of(info: BatchInfo, base_offset: int | None = None, epoch: int | None = None) -> Entry:
    """A batch as the checker knows it."""
    base = info.base_offset if base_offset is None else base_offset
    return Entry(
        base,
        base + info.last_offset_delta,
        info.leader_epoch if epoch is None else epoch,
        info.crc,
        (info.producer_id, info.producer_epoch, info.base_sequence),
    )


class CheckedLog(PartitionLog):
    """A log with a list of what it holds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        checker = _the_checker()
        process = checker.world.current
        assert process is not None
        self.host = process.name
        self.key = TopicPartition(self.topic_id, self.partition)
        self.is_tracked = checker.logs.is_tracked(self.topic)
        """Records of it may go: see `log_checks`."""
        self.replica: CheckedReplica | None = None
        self.shadow: list[Entry] = []
        self.verified = 0
        """Entries of `shadow` that were compared with the truth."""
        self.facts: dict[int, tuple[int, int]] = {}
        """Of a tracked log, by base offset: bytes and newest timestamp of each batch."""
        self.seen_start = 0
        self.first_cut = LONG_MAX
        """Where the first batch began that the last truncation took, beyond everything when it took none."""
        self.cut_from = 0
        """Where it ended before."""
        self._requested_ms = 0
        self._new: list[Entry] = []
        """Of the segment that is being swapped in."""
        for segment in self.segments:
            self.shadow += self._entries_in(segment.path)
        checker.on_log(self)
        if self.is_tracked:
            checker.logs.on_open(self)

    def _entries_in(self, path: str) -> list[Entry]:
        data = read_file(self._fs, path)
        found = []
        for info in iter_batches(data):
            entry = entry_of(info)
            found.append(entry)
            if self.is_tracked:
                self._note_facts(entry, info, data[info.position : info.position + info.size_bytes])
        return found

    def _note_facts(self, entry: Entry, info: BatchInfo, batch: Buffer) -> None:
        self.facts[entry.base] = (info.size_bytes, info.max_timestamp)
        if self.topic == KEYED:
            _the_checker().logs.note(self.key, entry, info, batch)

    @property
    def high_watermark(self) -> int:
        """That of its replica, 0 before it has one."""
        return 0 if self.replica is None else self.replica.high_watermark

    @property
    def leads(self) -> bool:
        """Whether its replica leads."""
        return self.replica is not None and self.replica.leadership is not None

    def append_as_leader(
        self, batch: Buffer, info: BatchInfo, leader_epoch: int, origin: Origin = Origin.CLIENT
    ) -> Any:
        transactions = _the_checker().transactions if info.is_transactional else None
        result = super().append_as_leader(batch, info, leader_epoch, origin)
        if isinstance(result, Appended):
            entry = entry_of(info, result.base_offset, leader_epoch)
            if self.is_tracked:
                self._note_facts(entry, info, batch)
            if transactions is not None:
                transactions.on_append(self, entry, batch, info)
            self._note(entry)
            _the_checker().on_log(self)
        return result

    def append_marker(
        self, producer_id: int, producer_epoch: int, marker: Marker, leader_epoch: int
    ) -> Appended:
        checker = _the_checker()
        if checker.transactions is not None:
            checker.transactions.before_marker(self, producer_id, producer_epoch, marker)
        result = super().append_marker(producer_id, producer_epoch, marker, leader_epoch)
        batch = b"".join(result.data)
        info = read_header(batch)
        entry = entry_of(info, result.base_offset, leader_epoch)
        if self.is_tracked:
            self._note_facts(entry, info, batch)
        if checker.transactions is not None:
            checker.transactions.on_append(self, entry, batch, info)
        self._note(entry)
        checker.on_log(self)
        return result

    def append_as_follower(self, records: Buffer, leader_epoch: int, **kwargs: Any) -> int:
        before = self.log_end_offset
        last = super().append_as_follower(records, leader_epoch, **kwargs)
        for info in iter_batches(records):
            if before <= info.base_offset <= last:
                entry = entry_of(info)
                if self.is_tracked:
                    batch = memoryview(records)[info.position : info.position + info.size_bytes]
                    self._note_facts(entry, info, batch)
                    _the_checker().logs.on_follower_batch(self, before, entry)
                    before = entry.last + 1
                self._note(entry)
        _the_checker().on_log(self)
        return last

    def _note(self, entry: Entry) -> None:
        self.shadow.append(entry)
        _the_checker().on_append(self, entry)

    def delete_old_segments(
        self, high_watermark: int, now_ms: int, *idle_max_ms: int
    ) -> Callable[[], None] | None:
        before, start = self.segments, self.log_start_offset
        work = super().delete_old_segments(high_watermark, now_ms, *idle_max_ms)
        if self.is_tracked:
            left = set(map(id, self.segments))
            gone = [segment for segment in before if id(segment) not in left]
            if gone:
                ends = [segment.base_offset for segment in before[1:]][: len(gone)]
                _the_checker().logs.on_retention(self, gone, ends, start)
            _the_checker().logs.on_start(self)
        return work

    def raise_log_start(self, offset: int) -> None:
        super().raise_log_start(offset)
        if self.is_tracked:
            _the_checker().logs.on_start(self)

    def cleaning_request(self, plan: CleaningPlan, now_ms: int, map_bytes: int) -> CleanRequest:
        self._requested_ms = _the_checker().world.wall_ms(self.host)
        return super().cleaning_request(plan, now_ms, map_bytes)

    def swap_files(self, group: CleanedGroup, sources: Sequence[Segment], plan: CleaningPlan) -> bool:
        checker = _the_checker()
        if set(map(id, sources)) <= set(map(id, self.segments)) and self.can_swap(sources, plan):
            # Before: a crash in the middle may leave it to the next start.
            low, high = self._range_of(group, sources)
            new = self._new = self._entries_in(f"{sources[0].path}{CLEANED}")
            old, left = self.shadow[low:high], [*self.shadow[:low], *new, *self.shadow[high:]]
            checker.logs.on_swap(self, old, new, left, self._requested_ms)
            checker.world.log_life.before_swap(self.host)
        return super().swap_files(group, sources, plan)

    def _range_of(self, group: CleanedGroup, sources: Sequence[Segment]) -> tuple[int, int]:
        """Where its sources' batches stand in `shadow`."""
        bases = [segment.base_offset for segment in self.segments]
        end = bases[bases.index(sources[-1].base_offset) + 1]
        shadow = self.shadow
        low, high = (bisect_left(shadow, at, key=lambda entry: entry.base) for at in (group.base_offset, end))
        return low, high

    def adopt_swapped(self, group: CleanedGroup, sources: Sequence[Segment]) -> Callable[[], None]:
        low, high = self._range_of(group, sources)
        sweep = super().adopt_swapped(group, sources)
        old, new = self.shadow[low:high], self._new
        for base in {entry.base for entry in old} - {entry.base for entry in new}:
            del self.facts[base]
        self.shadow[low:high] = new
        # What was compared with the truth goes on counting: the new entries are compared with the old ones.
        seen = min(max(self.verified - low, 0), len(old))
        if seen == len(old):
            self.verified += len(new) - len(old)
        elif seen:
            self.verified = low + bisect_left(new, old[seen].base, key=lambda entry: entry.base)
        return sweep

    def _cut_shadow(self) -> None:
        end = self.log_end_offset
        is_empty = self.segment_count == 1 and self.first_segment_offset == end
        keep = 0 if is_empty else bisect_left(self.shadow, end, key=lambda entry: entry.base)
        if keep < len(self.shadow):
            self.first_cut = min(self.first_cut, self.shadow[keep].base)
        for entry in self.shadow[keep:]:
            self.facts.pop(entry.base, None)
        del self.shadow[keep:]
        self.verified = min(self.verified, keep)
        _the_checker().on_log(self)

    def truncate_to(self, offset: int) -> int:
        self.first_cut, self.cut_from = LONG_MAX, self.log_end_offset
        try:
            end = super().truncate_to(offset)
        finally:
            self._cut_shadow()
        # What is at hand of it: to read its file would be an event of its own.
        for row in self.segments[-1].aborted.rows or ():
            if row.last_offset >= end:
                _the_checker().fail("the aborted index is right", f"{self} was cut to {end}, and has {row}")
        return end

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self.first_cut, self.cut_from = LONG_MAX, self.log_end_offset
        try:
            super().truncate_fully_and_start_at(offset)
        finally:
            self._cut_shadow()

    def complete(self, job: Any) -> None:
        super().complete(job)
        _the_checker().on_log(self)


class _CheckedState(ReplicaState):
    """Tells of every move of the high watermark."""

    def __init__(self, of: ReplicaState, replica: CheckedReplica) -> None:
        self._watermark: int | None = None
        super().__init__(of.key, of.topic, of.node_id, of.log, of.settings, of.high_watermark)
        self._replica = replica

    @property
    def high_watermark(self) -> int:
        assert self._watermark is not None
        return self._watermark

    @high_watermark.setter
    def high_watermark(self, value: int) -> None:
        old, self._watermark = self._watermark, value
        if old is not None and old != value:
            _the_checker().on_watermark(self._replica, old, value)


class CheckedReplica(PartitionReplica):
    """A replica whose watermark and leadership are watched."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.watermark_epoch = -2
        self.is_cut = False
        super().__init__(*args, **kwargs)
        self.state = _CheckedState(self.state, self)  # before there is a role that takes it
        log = self.checked_log
        log.replica = self
        if log.is_tracked:
            _the_checker().logs.on_replica(self)

    @property
    def checked_log(self) -> CheckedLog:
        assert isinstance(self.log, CheckedLog)
        return self.log

    def lead(self, state: PartitionImage, now_ms: int) -> None:
        if state.leader_epoch == self.leader_epoch and state.leader == self.node_id:
            process = asyncio.get_running_loop().process  # type: ignore[attr-defined]
            _the_checker().on_lead(self, process.boots)
        super().lead(state, now_ms)

    def on_truncated(self) -> bool:
        _the_checker().on_cut(self)
        self.is_cut = True
        try:
            return super().on_truncated()
        finally:
            self.is_cut = False


class _CheckedFreshness(HeartbeatFreshness):
    """Told of every answer that counts, one that says no included."""

    def __init__(self, on_answer: Callable[[], None]) -> None:
        super().__init__()
        self._on_answer = on_answer

    def answered(self, metadata_version: int, now_ms: float) -> None:
        self._on_answer()
        super().answered(metadata_version, now_ms)


class CheckedControllerClient(ControllerClient):
    """The ways to the controllers, with a memory of its own of what was heard."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.checked_term = 0

    def note_term(self, term: int) -> bool:
        self.checked_term = max(self.checked_term, term)
        return super().note_term(term)


class CheckedRegistration(Registration):
    """A node's session, whose orders must not come from controllers that are known to be deposed."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._freshness = _CheckedFreshness(self._on_answer)
        self.reply_term = 0

    async def register(self) -> None:
        directory = self._directory
        if directory.fs.exists(f"{directory.path}/{RETIRED_FILE}"):
            _the_checker().fail(
                "a retired directory never holds a role again",
                f"node {self._node_id} is to register with {directory.path}, which says that it was retired",
            )
        await super().register()

    async def _reply(self, stream: Any) -> api.NodeHeartbeatReply:
        reply = await super()._reply(stream)
        self.reply_term = reply.controller_term
        return reply

    def _on_answer(self) -> None:
        heard_term: int = self._controllers.checked_term  # type: ignore[attr-defined]
        _the_checker().on_order(f"node {self._node_id}", self.reply_term, heard_term)


class CheckedInlet(PacedInlet):
    """What waits for a node's rate, and tells what goes ahead of it."""

    def _let_through(self, session: int) -> None:
        waiting = sum(size_of(frame) for frame in self._waiting)
        super()._let_through(session)
        checker = _the_checker()
        process, operator = checker.world.current, checker.world.operator
        if operator is not None and process is not None:
            left = sum(size_of(frame) for frame in self._waiting)
            operator.throttles.let_through(process.name, waiting - left)


class CheckedMachine(Machine):
    """A state machine whose history is compared with that of the others."""

    def apply(self, data: bytes) -> Outcome:
        before = self.image
        outcome = super().apply(data)
        if self.image is not before:
            command = pb.MetadataCommand.FromString(data)
            records = list(command.records)
            if command.part:
                records = list(self.image.to_records())
            # Not of `data`: the order in which a map is encoded differs from process to process.
            crc = crc32(command.SerializeToString(deterministic=True))
            _the_checker().on_applied("a controller", self.image, records, crc)
        return outcome

    def reset(self, image: MetadataImage) -> None:
        _the_checker().on_reset("a controller", image)
        super().reset(image)


class CheckedCommandQueue(CommandQueue):
    """A worker whose answers are checked for linearizability."""

    checker: Checker

    async def submit(self, generate: Callable[[Context], Generated[R]]) -> R:
        floor = self.checker.answered_version
        used = [0]

        def watched(ctx: Context) -> Generated[R]:
            used[0] = ctx.image.version
            return generate(ctx)

        reply = await super().submit(watched)
        self.checker.on_answer(used[0], floor, 0)
        return reply

    def _answer(self, batch: Any, outcome: Outcome, version: int) -> None:
        super()._answer(batch, outcome, version)
        if outcome is Outcome.APPLIED:
            self.checker.on_answer(version, 0, version)
