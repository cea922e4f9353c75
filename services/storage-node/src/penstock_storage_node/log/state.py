"""What is known of one log, and the steps that only change that: no system call, no thread of its own.

State machine
  OK      appends are staged; one write job at a time carries them to disk (group
          commit: what arrives meanwhile is the next job).
  FULL    a job met a full disk and cut the file back to its known end. Staged data stay
          in memory, appends are refused with KAFKA_STORAGE_ERROR, reads go on.
          `next_job(retry=True)` tries the same data again; success leads back to OK.
  FAILED  an I/O error or a failed flush. What the page cache then holds may be lost
          without another error, so nothing is retried; appends are refused, reads are
          served below the flushed offset, until the process opens the log again.
  CLOSED  by `close`.

Offsets: flushed <= written <= log_end and log_start <= log_end. The log start may be raised
beyond what is flushed or written. Staged data (written..log_end) are read from memory, the
rest from the page cache.

`LogData` belongs to the loop, but for the time of a cut or a close, when a thread of the pool
has it for itself (see `truncation`). Beside that a thread of the pool may read what is marked
so: `segments`, the offsets, `settings`, `cut_count`, `checkpoint`. Each of these is exchanged
as a whole, never changed in place. `hints` and `leaving` are dicts that both sides change by
single calls.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import ErrorCode, InvariantBroken, PenstockError
from penstock_core.ids import TopicId
from penstock_kafka.records.batch import (
    CRC_START,
    LOG_APPEND_TIME_BIT,
    PREFIX_BYTES,
    BatchInfo,
    Buffer,
    iter_batches,
    read_header,
    stamp,
)
from penstock_kafka.records.crc import crc32c
from penstock_kafka.records.markers import Marker, build_marker, read_marker
from penstock_storage_node.log.damage import DamagedData
from penstock_storage_node.log.epochs import LeaderEpochs
from penstock_storage_node.log.index import IndexHeads
from penstock_storage_node.log.producer_state import Origin, ProducerState
from penstock_storage_node.log.segment import Segment


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
    """See the module."""

    OK = "ok"
    FULL = "full"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Whose log it is."""

    topic: str
    partition: int
    topic_id: TopicId

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(slots=True)
class Recovered:
    """What a log begins with when it is opened."""

    segments: tuple[Segment, ...]
    epochs: LeaderEpochs
    producers: ProducerState
    log_start_offset: int
    log_end_offset: int
    was_scanned: bool
    """Not trusted: everything from the recovery point on was read."""
    flush_point: int
    """The recovery point as it was on disk."""
    is_marked: bool = False
    """The unflushed marker is there (see `jobs`)."""
    may_lack_acked: bool = False
    """It was there after a stop that wasn't clean."""
    damage: DamagedData | None = None
    """See `LogData.damage`."""


class LogData:
    """The state of one log. Its methods are for the loop; those that the pool may call say so."""

    __slots__ = (
        "_heads",
        "clock_ms",
        "cut_count",
        "damage",
        "directory",
        "end",
        "epochs",
        "flushed",
        "gaps_are_known",
        "has_new_gaps",
        "hints",
        "identity",
        "idle_clock_ms",
        "in_flight",
        "is_swapping",
        "leaving",
        "producers",
        "segments",
        "settings",
        "snapshots",
        "staged",
        "staged_bytes",
        "start",
        "state",
        "unflushed",
        "written",
    )

    def __init__(
        self,
        identity: LogIdentity,
        directory: str,
        settings: TopicConfig,
        recovered: Recovered,
        *,
        heads: IndexHeads,
        clock_ms: Callable[[], int],
        idle_clock_ms: Callable[[], int],
    ) -> None:
        self.identity = identity
        self.directory = directory
        self.settings = settings
        self.state = LogState.OK
        self.segments: tuple[Segment, ...] = recovered.segments
        """Oldest first, at least one; the last is the active one."""
        self.epochs: LeaderEpochs = recovered.epochs
        self.producers: ProducerState = recovered.producers
        self.damage = recovered.damage
        """A batch that the disk gave back wrong when the log was opened or cut. Where `producers` lack
        it, its transaction may count as open for good; no snapshot is made then, so that the next start sees it too."""
        self.start = recovered.log_start_offset
        """First offset that may be read."""
        self.end = self.written = self.flushed = recovered.log_end_offset
        self.staged: list[Appended] = []
        """What no write job has taken yet, in order."""
        self.in_flight: list[Appended] = []
        """What the write job that is out has taken."""
        self.staged_bytes = 0
        """Of both. Bytes in memory only: bound it, and stop taking more."""
        self.snapshots: dict[int, bytes] = {}
        """Producer snapshots by base offset of staged segments, until they are written."""
        self.unflushed: list[Segment] = []
        """Segments with written bytes that no flush covers, oldest first."""
        self.has_new_gaps = False
        """A leader's batches left offsets out, and the disk may not know yet that this log has gaps."""
        self.gaps_are_known = False
        """A write job has made it durable that the log may have gaps."""
        self.cut_count = 0
        """Rises when a cut begins and when it is done: plans made before or meanwhile count no more."""
        self.is_swapping = False
        """Files of closed segments are being exchanged: reads of files go to the pool, and wait there."""
        self.leaving: dict[int, Segment] = {}
        """Let go, by base offset, until their files are gone (taken out in the pool)."""
        self.hints: dict[int, tuple[Segment, int]] = {}
        """Where reads ended: segment and position by the offset that comes next."""
        self._heads = heads
        self.clock_ms = clock_ms
        self.idle_clock_ms = idle_clock_ms
        """By which producers go idle: nobody sets it."""

    def __str__(self) -> str:
        return str(self.identity)

    # ------------------------------------------------------------------ what is known

    @property
    def size_bytes(self) -> int:
        """Of all segments, staged data included."""
        return sum(segment.size for segment in self.segments)

    @property
    def last_batch_epoch(self) -> int:
        """Leader epoch of the last batch, -1 in an empty log (KIP-595's last fetched epoch)."""
        return self.epochs.epoch_at(self.end - 1) if self.end > self.start else -1

    @property
    def has_unflushed(self) -> bool:
        """Whether bytes are staged, or written and covered by no flush."""
        return self.end > self.flushed or bool(self.unflushed)

    def bytes_between(self, low: int, high: int) -> int:
        """About how many bytes the records from `low` up to `high` take; 0 only when there are none.

        Within a segment the records count as equally big: this is for metrics.
        """
        total = 0.0
        ends = [segment.base_offset for segment in self.segments[1:]] + [self.end]
        for segment, end in zip(self.segments, ends, strict=True):
            inside = min(high, end) - max(low, segment.base_offset)
            if inside > 0:
                total += segment.size * inside / (end - segment.base_offset)
        return max(round(total), 1) if low < min(high, self.end) else 0

    def checkpoint(self) -> int:
        """Recovery point to persist: everything below is on disk, leader epochs included (loop or pool).

        It stays inside a closed segment until that one's indexes are on disk too.
        """
        point = self.flushed
        segments = self.segments
        for index in range(len(segments) - 2, -1, -1):
            if segments[index].is_sealed:
                break
            point = min(point, segments[index + 1].base_offset - 1)
        # A log start may have passed what is flushed: a follower hears of it while it catches up.
        return max(point, min(self.start, self.flushed))

    def segment_of(self, offset: int) -> Segment:
        """The segment that holds `offset`, or where it would stand (loop or pool)."""
        segments = self.segments
        return segments[max(bisect_right(segments, offset, key=_segment_base) - 1, 0)]

    def end_of(self, segment: Segment) -> int:
        """Where the segment after one begins, the log's end for the active one (loop or pool)."""
        segments = self.segments
        after = bisect_right(segments, segment.base_offset, key=_segment_base)
        return segments[after].base_offset if after < len(segments) else self.end

    def refusal(self) -> PenstockError:
        """Why a log whose state isn't OK takes no appends."""
        if self.state is LogState.FULL:
            message = f"disk of {self} is full: free space, writing goes on by itself"
        elif self.state is LogState.FAILED:
            message = f"disk of {self} failed: mend it and restart the node"
        else:
            message = f"{self} is closed"
        return PenstockError(ErrorCode.KAFKA_STORAGE_ERROR, message)

    # ------------------------------------------------------------------ appending

    def append_as_leader(
        self, batch: Buffer, info: BatchInfo, leader_epoch: int, origin: Origin = Origin.CLIENT
    ) -> Appended | Duplicate:
        """See `PartitionLog.append_as_leader`."""
        if self.state is not LogState.OK:
            raise self.refusal()
        if info.producer_id >= 0:
            known = self.producers.check(info, self, origin)
            if known is not None:
                timestamp = info.max_timestamp if info.attributes & LOG_APPEND_TIME_BIT else -1
                return Duplicate(known[0], known[1], timestamp)
        return self._stage(batch, info, leader_epoch, None)

    def append_marker(
        self, producer_id: int, producer_epoch: int, marker: Marker, leader_epoch: int
    ) -> Appended:
        """See `PartitionLog.append_marker`."""
        if self.state is not LogState.OK:
            raise self.refusal()
        batch = build_marker(producer_id, producer_epoch, marker, self.clock_ms(), base_offset=self.end)
        return self._stage(batch, read_header(batch), leader_epoch, marker)

    def _stage(self, batch: Buffer, info: BatchInfo, leader_epoch: int, marker: Marker | None) -> Appended:
        base_offset = self.end
        if leader_epoch != self.epochs.latest:
            self._assign_epoch(leader_epoch, base_offset)
        last_offset = base_offset + info.last_offset_delta
        size = len(batch)
        if size > self.settings.segment_bytes:
            raise PenstockError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"batch of {size} bytes is above segment.bytes={self.settings.segment_bytes} of {self}",
            )
        now_ms = self.clock_ms()
        segment = self._segment_for(size, last_offset, info.max_timestamp, now_ms)
        if marker is not None:
            self._replay_marker(segment, info, marker)
        elif info.producer_id >= 0:
            self.producers.update(info, base_offset, self.idle_clock_ms())
        segment.note(last_offset, size, info.max_timestamp, self.settings.index_interval_bytes)
        staged = Appended(
            base_offset,
            last_offset,
            [stamp(base_offset, leader_epoch, batch), memoryview(batch)[PREFIX_BYTES:]],
            size,
            segment,
            info.max_timestamp if info.attributes & LOG_APPEND_TIME_BIT else -1,
        )
        self.staged.append(staged)
        self.staged_bytes += size
        self.end = last_offset + 1
        return staged

    def _replay_marker(self, segment: Segment, info: BatchInfo, marker: Marker | None) -> None:
        aborted = self.producers.replay(info, self.idle_clock_ms(), marker)
        if aborted is not None:
            segment.aborted.append(aborted)

    def append_as_follower(
        self,
        records: Buffer,
        leader_epoch: int,
        base_offset: int | None,
        epoch_starts: Sequence[tuple[int, int]] = (),
    ) -> int:
        """See `PartitionLog.append_as_follower`."""
        if self.state is not LogState.OK:
            raise self.refusal()
        view = memoryview(records)
        infos = self._check_replicated(view, leader_epoch, base_offset)
        now_ms = self.clock_ms()
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
            if info.leader_epoch != self.epochs.latest:
                if info.leader_epoch < self.epochs.latest:
                    # Led here once, without a record: the leader never heard of it (Kafka: UnifiedLog
                    # assigns every batch's epoch, LeaderEpochFileCache drops what is not monotonic).
                    self.epochs.truncate_from_end(self.end)
                self.epochs.assign_batch(info.leader_epoch, info.base_offset, self.end, epoch_starts)
            if info.producer_id >= 0:
                marker = read_marker(view, info, info.position) if info.is_control else None
                self._replay_marker(segment, info, marker)
            segment.note(last_offset, size, info.max_timestamp, interval)
            run.size_bytes += size
            run.last_offset = last_offset
            self.end = last_offset + 1
        if run is not None:
            self._stage_run(run, view)
        return self.end - 1

    def _stage_run(self, run: Appended, view: memoryview) -> None:
        run.data[0] = memoryview(run.data[0])[: run.size_bytes]
        self.staged.append(run)
        self.staged_bytes += run.size_bytes

    def _check_replicated(
        self, view: memoryview, leader_epoch: int, base_offset: int | None
    ) -> list[BatchInfo]:
        expected = self.end
        if base_offset is not None and base_offset != expected:
            raise PenstockError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"batches begin at {base_offset}, {self} ends at {expected}"
            )
        epoch = self.epochs.epoch_at(expected - 1)
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
            if info.is_control:
                read_marker(view, info, info.position)  # raises before anything is changed
            self.has_new_gaps = self.has_new_gaps or info.base_offset > expected
            expected, epoch = info.next_offset, info.leader_epoch
            infos.append(info)
        if position != len(view):
            raise PenstockError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{len(view) - position} bytes after the last whole batch for {self}",
            )
        return infos

    def start_epoch(self, leader_epoch: int) -> None:
        """See `PartitionLog.start_epoch`."""
        if leader_epoch < self.epochs.latest:
            raise PenstockError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"leader epoch {leader_epoch} of {self} is older than {self.epochs.latest}",
            )
        self.epochs.assign(leader_epoch, self.end)

    def _assign_epoch(self, leader_epoch: int, base_offset: int) -> None:
        if leader_epoch < self.epochs.latest:
            raise PenstockError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"append with leader epoch {leader_epoch} to {self}, which knows {self.epochs.latest}",
            )
        self.epochs.assign(leader_epoch, base_offset)

    def _segment_for(self, size: int, last_offset: int, timestamp: int, now_ms: int) -> Segment:
        """The segment that the next batch goes to: the active one, or a new one (Kafka: shouldRoll)."""
        segment = self.segments[-1]
        settings = self.settings
        if segment.size == 0:
            return segment
        roll_ms = settings.roll_ms
        if settings.segment_jitter_ms > 0:
            roll_ms -= segment.jitter_ms(settings)
        if (
            segment.has_room(size, last_offset, settings.segment_bytes, settings.segment_index_bytes)
            and segment.age_for_roll_ms(timestamp, now_ms) <= roll_ms
        ):
            return segment
        return self._roll(now_ms)

    def _roll(self, now_ms: int) -> Segment:
        old = self.segments[-1]
        old.close_time_index()
        old.closed_ms = now_ms
        segment = Segment(self.directory, self.end, self._heads, now_ms)
        if self.damage is None:
            self.snapshots[segment.base_offset] = self.producers.encode_snapshot()
        self.segments = (*self.segments, segment)
        return segment

    # ------------------------------------------------------------------ losing data

    def close_active_segment(self, now_ms: int) -> None:
        """Have the next write job end the active segment and begin another."""
        self._roll(now_ms)
        self.staged.append(Appended(self.end, self.end - 1, [], 0, self.segments[-1]))

    def let_go(self, gone: tuple[Segment, ...]) -> None:
        """The oldest segments count no more; their files are `leaving`."""
        # The start first: a read in the pool looks at it after it looked at the segments.
        self.start = max(self.start, self.segments[len(gone)].base_offset)
        self.segments = self.segments[len(gone) :]
        self.hints = {}
        self.unflushed = [segment for segment in self.unflushed if segment not in gone]
        self.epochs.truncate_from_start(self.start)
        self.leaving.update((segment.base_offset, segment) for segment in gone)

    def raise_start(self, offset: int) -> None:
        """See `PartitionLog.raise_log_start`."""
        self.start = max(self.start, min(offset, self.end))

    def exchange(self, old: tuple[Segment, ...], new: Segment) -> None:
        """`new` stands for neighbouring closed segments from now on."""
        first = self.segments.index(old[0])
        self.segments = (*self.segments[:first], new, *self.segments[first + len(old) :])
        self.hints = {}

    def drop_staged(self) -> None:
        """Forget what is in memory only (pool, alone)."""
        self.staged = []
        self.staged_bytes = 0
        self.snapshots.clear()
        self.hints = {}

    def shorten(self, kept: list[Segment], end_offset: int) -> None:
        """The files of `kept` are all there is, the last one cut and flushed (pool, alone)."""
        target = kept[-1]
        self.segments = tuple(kept)
        self.unflushed = [s for s in self.unflushed if s in kept and s is not target]
        self.end = self.written = end_offset
        self.flushed = end_offset if not self.unflushed else min(self.flushed, end_offset)
        self.epochs.truncate_from_end(end_offset)

    def begin_anew(self, segment: Segment) -> None:
        """One empty segment is all there is (pool, alone)."""
        self.segments = (segment,)
        self.unflushed = []
        self.start = self.end = self.written = self.flushed = segment.base_offset

    # ------------------------------------------------------------------ is it in order

    def validate(self) -> None:
        """For tests and the simulator: raises InvariantBroken when the parts contradict one another.

        Only while no thread has the log for itself. A log that is FAILED or CLOSED promises nothing:
        a cut may have ended in the middle.
        """
        if self.state is LogState.FAILED or self.state is LogState.CLOSED:
            return
        if not (self.flushed <= self.written <= self.end and self.start <= self.end):
            raise InvariantBroken(
                f"{self}: start {self.start}, flushed {self.flushed}, written {self.written}, end {self.end}"
            )
        segments = self.segments
        if not segments[0].base_offset <= self.start or segments[-1].base_offset > self.end:
            bases = [segment.base_offset for segment in segments]
            raise InvariantBroken(f"{self}: segments {bases} of a log from {self.start} to {self.end}")
        if self.staged or self.in_flight:
            self._validate_staged()
        elif self.staged_bytes or self.written != self.end:
            raise InvariantBroken(
                f"{self}: nothing is staged, {self.staged_bytes} bytes count as staged,"
                f" written up to {self.written} of {self.end}"
            )
        if len(segments) > 1:
            self._validate_segments()

    def _validate_staged(self) -> None:
        total, expected = 0, self.written
        for chunk in (*self.in_flight, *self.staged):
            if chunk.base_offset < expected or chunk.segment not in self.segments:
                raise InvariantBroken(f"{self}: staged from {chunk.base_offset} where {expected} comes next")
            expected = chunk.last_offset + 1
            total += chunk.size_bytes
        if total != self.staged_bytes or expected != self.end:
            raise InvariantBroken(
                f"{self}: {total} bytes up to {expected} are staged,"
                f" {self.staged_bytes} up to {self.end} count as staged"
            )

    def _validate_segments(self) -> None:
        for segment, after in pairwise(self.segments):
            if segment.base_offset >= after.base_offset:
                raise InvariantBroken(f"{self}: segment {after.base_offset} after {segment.base_offset}")
            if segment.written > segment.size or (after.written and segment.written != segment.size):
                raise InvariantBroken(
                    f"{self}: segment {segment.base_offset} has {segment.written} of {segment.size} bytes written"
                )


def _segment_base(segment: Segment) -> int:
    return segment.base_offset
