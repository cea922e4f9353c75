"""The shipped classes with an observer: they do what they do, and the checker hears of it.

No decision is taken here. Each override calls the shipped method and then tells the checker
what has changed.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, TypeVar
from zlib import crc32

from penstock_controller.active.command_queue import CommandQueue
from penstock_controller.quorum.events import Outcome
from penstock_controller.quorum.machine import Machine
from penstock_controller.state.generation import Context, Generated
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_kafka.records.batch import BatchInfo, Buffer, iter_batches
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_storage_node.cluster.heartbeat_freshness import HeartbeatFreshness
from penstock_storage_node.cluster.registration import Registration
from penstock_storage_node.log.fs import read_file
from penstock_storage_node.log.partition_log import Appended, PartitionLog
from penstock_storage_node.replication.replica import PartitionReplica
from simulation.invariants import Checker, Entry

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
        self.shadow: list[Entry] = []
        self.verified = 0
        """Entries of `shadow` that were compared with the truth."""
        for segment in self._segments:
            for info in iter_batches(read_file(self._fs, segment.path)):
                self.shadow.append(entry_of(info))
        _the_checker().on_log(self)

    def append_as_leader(self, batch: Buffer, info: BatchInfo, leader_epoch: int) -> Any:
        result = super().append_as_leader(batch, info, leader_epoch)
        if isinstance(result, Appended):
            self._note(entry_of(info, result.base_offset, leader_epoch))
            _the_checker().on_log(self)
        return result

    def append_as_follower(self, records: Buffer, leader_epoch: int, **kwargs: Any) -> int:
        before = self._end
        last = super().append_as_follower(records, leader_epoch, **kwargs)
        for info in iter_batches(records):
            if before <= info.base_offset <= last:
                self._note(entry_of(info))
        _the_checker().on_log(self)
        return last

    def _note(self, entry: Entry) -> None:
        self.shadow.append(entry)
        _the_checker().on_append(self, entry)

    def _cut_shadow(self) -> None:
        keep = bisect_left(self.shadow, self._end, key=lambda entry: entry.base)
        del self.shadow[keep:]
        self.verified = min(self.verified, keep)
        _the_checker().on_log(self)

    def truncate_to(self, offset: int) -> int:
        try:
            return super().truncate_to(offset)
        finally:
            self._cut_shadow()

    def truncate_fully_and_start_at(self, offset: int) -> None:
        try:
            super().truncate_fully_and_start_at(offset)
        finally:
            if self._end == offset:
                self.shadow.clear()
                self.verified = 0
            self._cut_shadow()

    def complete(self, job: Any) -> None:
        super().complete(job)
        _the_checker().on_log(self)


class CheckedReplica(PartitionReplica):
    """A replica whose watermark and leadership are watched."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._watermark: int | None = None
        self.watermark_epoch = -2
        self.is_cut = False
        super().__init__(*args, **kwargs)

    @property
    def checked_log(self) -> CheckedLog:
        assert isinstance(self.log, CheckedLog)
        return self.log

    @property
    def high_watermark(self) -> int:
        assert self._watermark is not None
        return self._watermark

    @high_watermark.setter
    def high_watermark(self, value: int) -> None:
        old, self._watermark = self._watermark, value
        if old is not None and old != value:
            _the_checker().on_watermark(self, old, value)

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


def listening(note_term: Callable[[Any, int], bool]) -> Callable[[Any, int], bool]:
    """`ControllerClient.note_term`, whatever it is now, with a memory of its own of what was heard."""

    def note(client: Any, term: int) -> bool:
        client.checked_term = max(getattr(client, "checked_term", 0), term)
        return note_term(client, term)

    return note


class CheckedRegistration(Registration):
    """A node's session, whose orders must not come from controllers that are known to be deposed."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._freshness = _CheckedFreshness(self._on_answer)
        self.reply_term = 0

    async def _reply(self, stream: Any) -> api.NodeHeartbeatReply:
        reply = await super()._reply(stream)
        self.reply_term = reply.controller_term
        return reply

    def _on_answer(self) -> None:
        heard_term: int = self._controllers.checked_term  # type: ignore[attr-defined]
        _the_checker().on_order(f"node {self._node_id}", self.reply_term, heard_term)


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
