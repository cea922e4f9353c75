"""A log's state on the loop, and staging: the first of three layers of `PartitionLog`.

`LogCore` gives offsets, keeps producers and epochs, and decides which segment a batch
goes to; it makes no system call. `JobOrder` above it hands staged data to the disk, and
`PartitionLog` opens, reads, truncates and closes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicId
from penstock_kafka.records.batch import (
    CRC_START,
    LOG_APPEND_TIME_BIT,
    PREFIX_BYTES,
    BatchInfo,
    Buffer,
    iter_batches,
    stamp,
)
from penstock_kafka.records.crc import crc32c
from penstock_storage_node.log.epochs import LeaderEpochs
from penstock_storage_node.log.fs import FileSystem
from penstock_storage_node.log.producer_state import ProducerEntry, ProducerState, coordinator_epoch
from penstock_storage_node.log.segment import Segment

if TYPE_CHECKING:
    from penstock_storage_node.log.jobs import FlushJob, WriteJob
    from penstock_storage_node.log.recovery import Recovered


@dataclass(slots=True)
class Appended:
    """Staged batches: one as a leader, or a run of them as a follower."""

    base_offset: int
    last_offset: int
    data: list[Buffer]
    """The bytes as stored, to send on to followers. Not to be changed."""
    size_bytes: int
    segment: Segment
    log_append_time_ms: int = -1
    """Set on topics with message.timestamp.type=LogAppendTime."""


@dataclass(slots=True)
class Duplicate:
    """The producer's batch is in the log already: success, once these offsets are committed."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int = -1


class LogState(Enum):
    OK = "ok"
    FULL = "full"
    FAILED = "failed"
    CLOSED = "closed"


class LogCore:
    """State of one log; see `partition_log` for its rules."""

    __slots__ = (
        "_clock_ms",
        "_directory",
        "_end",
        "_epochs",
        "_flush_job",
        "_flushed",
        "_fs",
        "_has_new_gaps",
        "_hints",
        "_is_marked",
        "_job",
        "_job_chunks",
        "_leaving",
        "_lower_recovery_point",
        "_mark_gaps",
        "_producers",
        "_segments",
        "_snapshots",
        "_staged",
        "_start",
        "_unflushed",
        "_written",
        "cut_count",
        "flush_point",
        "index_fault_count",
        "is_deleted",
        "is_swapping",
        "may_lack_acked",
        "partition",
        "recovered_from_unclean",
        "settings",
        "staged_bytes",
        "state",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        settings: TopicConfig,
        *,
        topic: str,
        partition: int,
        topic_id: TopicId,
        clock_ms: Callable[[], int],
        lower_recovery_point: Callable[[int], None] | None,
        mark_gaps: Callable[[], None] | None,
        recovered: Recovered,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.settings = settings
        self.state = LogState.OK
        self.staged_bytes = 0
        """Bytes in memory only: bound it, and stop taking more."""
        self.recovered_from_unclean = recovered.was_scanned
        self.flush_point = recovered.flush_point
        """Recovery point as it was on disk at open: a smaller log end means that flushed data were lost."""
        self.cut_count = 0
        """Rises when a cut begins and when it is done: plans made before or meanwhile count no more."""
        self.may_lack_acked = False
        """Opened after an unclean stop in a time when acks did not wait for a flush."""
        self._is_marked = False
        self.is_deleted = False
        """Its directory's name is free or another log's: nothing may be noted under it any more."""
        self.index_fault_count = 0
        """Reads that met a wrong index entry (they are answered all the same)."""
        self.is_swapping = False
        """Files of closed segments are being exchanged: reads of files go to the pool, and wait there."""
        self._fs = fs
        self._directory = directory
        self._clock_ms = clock_ms
        self._lower_recovery_point = lower_recovery_point
        self._mark_gaps = mark_gaps
        self._has_new_gaps = False
        """A leader's batches left offsets out, and the disk may not know yet that this log has gaps."""
        self._segments: tuple[Segment, ...] = recovered.segments
        self._epochs: LeaderEpochs = recovered.epochs
        self._producers: ProducerState = recovered.producers
        self._start = recovered.log_start_offset
        self._end = self._written = self._flushed = recovered.log_end_offset
        self._staged: list[Appended] = []
        self._job: WriteJob | None = None
        self._job_chunks: list[Appended] = []
        self._snapshots: dict[int, bytes] = {}
        """Producer snapshots by base offset of staged segments, until they are written."""
        self._flush_job: FlushJob | None = None
        self._unflushed: list[Segment] = []
        """Segments with written bytes that no flush covers, oldest first."""
        self._leaving: dict[int, Segment] = {}
        """Let go, by base offset, until their files are gone (taken out in the pool)."""
        self._hints: dict[int, tuple[Segment, int]] = {}

    # ------------------------------------------------------------------ what is known

    @property
    def directory(self) -> Path:
        return Path(self._directory)

    @property
    def log_start_offset(self) -> int:
        """First offset that may be read."""
        return self._start

    @property
    def log_end_offset(self) -> int:
        """Next offset to be given; staged data included."""
        return self._end

    @property
    def written_offset(self) -> int:
        """End of what the files hold."""
        return self._written

    @property
    def flushed_offset(self) -> int:
        """End of what a flush has returned for."""
        return self._flushed

    @property
    def latest_epoch(self) -> int:
        """Newest leader epoch known, with data or without; -1 for none."""
        return self._epochs.latest

    @property
    def last_batch_epoch(self) -> int:
        """Leader epoch of the last batch, -1 in an empty log (KIP-595's last fetched epoch)."""
        return self._epochs.epoch_at(self._end - 1) if self._end > self._start else -1

    @property
    def size_bytes(self) -> int:
        """Of all segments, staged data included."""
        return sum(segment.size for segment in self._segments)

    def bytes_between(self, low: int, high: int) -> int:
        """About how many bytes the records from `low` up to `high` take; 0 only when there are none.

        Within a segment the records count as equally big: this is for metrics.
        """
        total = 0.0
        ends = [segment.base_offset for segment in self._segments[1:]] + [self._end]
        for segment, end in zip(self._segments, ends, strict=True):
            inside = min(high, end) - max(low, segment.base_offset)
            if inside > 0:
                total += segment.size * inside / (end - segment.base_offset)
        return max(round(total), 1) if low < min(high, self._end) else 0

    @property
    def has_unflushed(self) -> bool:
        """Whether bytes are staged, or written and covered by no flush."""
        return self._end > self._flushed or bool(self._unflushed)

    @property
    def first_segment_offset(self) -> int:
        """Where the files begin; below the log start after `raise_log_start`."""
        return self._segments[0].base_offset

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def producer_count(self) -> int:
        return len(self._producers)

    def producers(self) -> Iterator[tuple[int, ProducerEntry]]:
        """Every producer that is remembered, by id. Not to be changed."""
        return self._producers.entries()

    @property
    def first_open_transaction(self) -> int | None:
        """Offset of the first record of the oldest open transaction (loop)."""
        return self._producers.first_open_transaction

    def is_next_of_producer(self, info: BatchInfo) -> bool:
        """Whether a batch with a producer id is the one that must come next (`ProducerState.is_next`)."""
        return self._producers.is_next(info)

    @property
    def is_busy(self) -> bool:
        """A job is out: nothing that needs the log for itself may start."""
        return self._job is not None or self._flush_job is not None

    def epoch_entries(self) -> list[tuple[int, int]]:
        """(leader epoch, start offset), oldest first."""
        return self._epochs.entries

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest known epoch <= `epoch`, its end offset), (-1, -1) when unknown (KIP-101, KIP-279)."""
        return self._epochs.end_offset_for(epoch, self._end)

    def epoch_at(self, offset: int) -> int:
        """Leader epoch of the record at `offset`, -1 when unknown."""
        return self._epochs.epoch_at(offset)

    def checkpoint(self) -> int:
        """Recovery point to persist: everything below is on disk, leader epochs included.

        It stays inside a closed segment until that one's indexes are on disk too.
        """
        point = self._flushed
        segments = self._segments
        for index in range(len(segments) - 2, -1, -1):
            if segments[index].is_sealed:
                break
            point = min(point, segments[index + 1].base_offset - 1)
        # A log start may have passed what is flushed: a follower hears of it while it catches up.
        return max(point, min(self._start, self._flushed))

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    # ------------------------------------------------------------------ appending (loop)

    def append_as_leader(self, batch: Buffer, info: BatchInfo, leader_epoch: int) -> Appended | Duplicate:
        """Stage one batch that `accept_produced` has passed; its memory must stay as it is until written.

        Raises KAFKA_STORAGE_ERROR (full or failed disk), INVALID_PRODUCER_EPOCH,
        OUT_OF_ORDER_SEQUENCE_NUMBER, RECORD_LIST_TOO_LARGE, FENCED_LEADER_EPOCH.
        """
        if self.state is not LogState.OK:
            raise self._refusal()
        if info.producer_id >= 0:
            known = self._producers.check(info, self)
            if known is not None:
                timestamp = info.max_timestamp if info.attributes & LOG_APPEND_TIME_BIT else -1
                return Duplicate(known[0], known[1], timestamp)
        base_offset = self._end
        if leader_epoch != self._epochs.latest:
            self._assign_epoch(leader_epoch, base_offset)
        last_offset = base_offset + info.last_offset_delta
        size = len(batch)
        if size > self.settings.segment_bytes:
            raise PenstockError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"batch of {size} bytes is above segment.bytes={self.settings.segment_bytes} of {self}",
            )
        now_ms = self._clock_ms()
        segment = self._segment_for(size, last_offset, info.max_timestamp, now_ms)
        if info.producer_id >= 0:
            self._producers.update(info, base_offset, now_ms)
        segment.note(last_offset, size, info.max_timestamp, self.settings.index_interval_bytes)
        staged = Appended(
            base_offset,
            last_offset,
            [stamp(base_offset, leader_epoch, batch), memoryview(batch)[PREFIX_BYTES:]],
            size,
            segment,
            info.max_timestamp if info.attributes & LOG_APPEND_TIME_BIT else -1,
        )
        self._staged.append(staged)
        self.staged_bytes += size
        self._end = last_offset + 1
        return staged

    def append_as_follower(
        self, records: Buffer, leader_epoch: int, *, base_offset: int | None = None
    ) -> int:
        """Stage a leader's batches as they are; returns the last offset in the log.

        `leader_epoch` is the session's: batches of a later epoch, and what follows
        them, are left out (KAFKA-18723). `base_offset`: where the leader says that the
        batches begin (its own compaction may have taken the first ones); without it the
        first batch must begin right at the log end. All or nothing is appended. Raises
        CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE (gap or overlap), KAFKA_STORAGE_ERROR.
        """
        if self.state is not LogState.OK:
            raise self._refusal()
        view = memoryview(records)
        infos = self._check_replicated(view, leader_epoch, base_offset)
        now_ms = self._clock_ms()
        interval = self.settings.index_interval_bytes
        run: Appended | None = None
        for info in infos:
            size, last_offset = info.size_bytes, info.last_offset
            segment = self._segment_for(size, last_offset, info.max_timestamp, now_ms)
            if run is not None and run.segment is not segment:
                self._stage_run(run, view)
                run = None
            if run is None:
                run = Appended(info.base_offset, last_offset, [view[info.position :]], 0, segment)
            if info.leader_epoch != self._epochs.latest:
                if info.leader_epoch < self._epochs.latest:
                    # Led here once, without a record: the leader never heard of it (Kafka: UnifiedLog
                    # assigns every batch's epoch, LeaderEpochFileCache drops what is not monotonic).
                    self._epochs.truncate_from_end(self._end)
                self._epochs.assign(info.leader_epoch, info.base_offset)
            if info.producer_id >= 0:
                self._producers.replay(info, now_ms, coordinator_epoch(view, info.position, info))
            segment.note(last_offset, size, info.max_timestamp, interval)
            run.size_bytes += size
            run.last_offset = last_offset
            self._end = last_offset + 1
        if run is not None:
            self._stage_run(run, view)
        return self._end - 1

    def _stage_run(self, run: Appended, view: memoryview) -> None:
        run.data[0] = memoryview(run.data[0])[: run.size_bytes]
        self._staged.append(run)
        self.staged_bytes += run.size_bytes

    def _check_replicated(
        self, view: memoryview, leader_epoch: int, base_offset: int | None
    ) -> list[BatchInfo]:
        expected = self._end
        if base_offset is not None and base_offset != expected:
            raise PenstockError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"batches begin at {base_offset}, {self} ends at {expected}"
            )
        epoch = self._epochs.epoch_at(expected - 1)
        infos: list[BatchInfo] = []
        position = 0
        for info in iter_batches(view):
            position = info.position + info.size_bytes
            if info.leader_epoch > leader_epoch:
                return infos
            is_next = info.base_offset == expected or (
                base_offset is not None and info.base_offset > expected
            )
            if not is_next or info.last_offset_delta < 0:
                raise PenstockError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"batch of offsets {info.base_offset}..{info.last_offset} does not follow {expected} of {self}",
                )
            if info.leader_epoch < epoch:
                raise PenstockError(
                    ErrorCode.CORRUPT_MESSAGE,
                    f"batch at {info.base_offset} of {self} has leader epoch {info.leader_epoch} after {epoch}",
                )
            if crc32c(view[info.position + CRC_START : position]) != info.crc:
                raise PenstockError(
                    ErrorCode.CORRUPT_MESSAGE, f"batch at {info.base_offset} of {self} has a wrong CRC"
                )
            self._has_new_gaps = self._has_new_gaps or info.base_offset > expected
            expected, epoch = info.next_offset, info.leader_epoch
            infos.append(info)
        if position != len(view):
            raise PenstockError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{len(view) - position} bytes after the last whole batch for {self}",
            )
        return infos

    def start_epoch(self, leader_epoch: int) -> None:
        """New leader: record that `leader_epoch` begins at the log end, before serving (loop).

        Only while that is the role, and no cut is under way. The file follows with the next write
        job, before its data are flushed: see `epochs`.
        """
        if leader_epoch < self._epochs.latest:
            raise PenstockError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"leader epoch {leader_epoch} of {self} is older than {self._epochs.latest}",
            )
        self._epochs.assign(leader_epoch, self._end)

    def _assign_epoch(self, leader_epoch: int, base_offset: int) -> None:
        if leader_epoch < self._epochs.latest:
            raise PenstockError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"append with leader epoch {leader_epoch} to {self}, which knows {self._epochs.latest}",
            )
        self._epochs.assign(leader_epoch, base_offset)

    def _refusal(self) -> PenstockError:
        if self.state is LogState.FULL:
            message = f"disk of {self} is full: free space, writing goes on by itself"
        elif self.state is LogState.FAILED:
            message = f"disk of {self} failed: mend it and restart the node"
        else:
            message = f"{self} is closed"
        return PenstockError(ErrorCode.KAFKA_STORAGE_ERROR, message)

    def _segment_for(self, size: int, last_offset: int, timestamp: int, now_ms: int) -> Segment:
        """The segment that the next batch goes to: the active one, or a new one (Kafka: shouldRoll)."""
        segment = self._segments[-1]
        settings = self.settings
        if segment.size == 0:
            return segment
        if segment.has_room(
            size, last_offset, settings.segment_bytes, settings.segment_index_bytes
        ) and segment.age_for_roll_ms(timestamp, now_ms) <= settings.roll_ms - segment.jitter_ms(settings):
            return segment
        return self._roll(now_ms)

    def _roll(self, now_ms: int) -> Segment:
        old = self._segments[-1]
        old.close_time_index()
        old.closed_ms = now_ms
        segment = Segment(self._directory, self._end, self._fs.index_heads, now_ms)
        self._snapshots[segment.base_offset] = self._producers.encode_snapshot()
        self._segments = (*self._segments, segment)
        return segment
