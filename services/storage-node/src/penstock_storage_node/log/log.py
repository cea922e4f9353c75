"""One partition's log: what the loop appends to, what the disk pool writes.

`PartitionLog` is the face of four parts. `LogData` (`state`) is what is known, with the rules of
its state machine; `LogWriter` (`writer`) carries staged data to the disk; `LogReader` (`reader`)
gives data out; `LogTruncation` (`truncation`) cuts. Opening, closing, retention and compaction
are put together here.

Threads: methods marked (loop) run on one thread and make no system call, but for reads
of what is in the page cache. Those marked (pool) block. `truncate_*` and `close` need
the log for themselves: no job out, nobody appending or reading. Attributes and properties
are for the loop, `checkpoint`, the offsets, `cut_count` and `end_of` for any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from penstock_core.config.topic import TopicConfig
from penstock_kafka.records.batch import BatchInfo, Buffer
from penstock_kafka.records.markers import Marker
from penstock_storage_node.log import recovery, retention, timestamps
from penstock_storage_node.log.aborted_index import Rows
from penstock_storage_node.log.compaction import plan as cleaning_plan
from penstock_storage_node.log.compaction import swap
from penstock_storage_node.log.compaction.plan import CleaningBounds, CleaningPlan
from penstock_storage_node.log.compaction.rewrite import CleanedGroup, CleanRequest
from penstock_storage_node.log.damage import DamagedData
from penstock_storage_node.log.jobs import FlushJob, ReadData, ReadJob, WriteJob, segment_paths
from penstock_storage_node.log.ports import Checkpointed, LogPorts
from penstock_storage_node.log.producer_state import PRODUCER_IDLE_MAX_MS, Origin, ProducerEntry
from penstock_storage_node.log.reader import AbortedJob, LogReader
from penstock_storage_node.log.segment import Segment, forget_indexes
from penstock_storage_node.log.sizes import SizedRange
from penstock_storage_node.log.state import Appended, Duplicate, LogData, LogIdentity, LogState, Recovered
from penstock_storage_node.log.truncation import LogTruncation
from penstock_storage_node.log.writer import LogWriter

PLAN_TRIES_MAX = 6
"""Compaction planned anew after timestamps were read."""


class PartitionLog:
    """See the module. Made by `open` or `create`, usually through LogDirectory."""

    __slots__ = (
        "_checkpoints",
        "_data",
        "_fs",
        "_reader",
        "_truncation",
        "_writer",
        "flush_point",
        "is_deleted",
        "may_lack_acked",
        "partition",
        "recovered_from_unclean",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        ports: LogPorts,
        directory: str,
        settings: TopicConfig,
        identity: LogIdentity,
        recovered: Recovered,
    ) -> None:
        self.topic = identity.topic
        self.partition = identity.partition
        self.topic_id = identity.topic_id
        self.recovered_from_unclean = recovered.was_scanned
        self.flush_point = recovered.flush_point
        """Recovery point as it was on disk at open: a smaller log end means that flushed data were lost."""
        self.may_lack_acked = recovered.may_lack_acked
        """Opened after an unclean stop in a time when acks did not wait for a flush."""
        self.is_deleted = False
        """Its directory's name is free or another log's: nothing may be noted under it any more."""
        self._fs = ports.fs
        self._checkpoints = ports.checkpoints
        self._data = LogData(
            identity,
            directory,
            settings,
            recovered,
            heads=ports.fs.index_heads,
            clock_ms=ports.clock_ms,
            idle_clock_ms=ports.idle_clock_ms,
        )
        self._writer = LogWriter(self._data, ports, is_marked=recovered.is_marked)
        self._reader = LogReader(self._data, ports.fs)
        self._truncation = LogTruncation(self._data, self._writer, ports)

    # ------------------------------------------------------------------ opening and closing (pool)

    @classmethod
    def open(
        cls,
        ports: LogPorts,
        directory: Path,
        settings: TopicConfig,
        identity: LogIdentity,
        checkpointed: Checkpointed,
    ) -> PartitionLog:
        """Open what is on disk, repairing it as needed (pool). Raises PenstockError or OSError."""
        clocks_ms = ports.clock_ms(), ports.idle_clock_ms()
        recovered = recovery.recover(ports.fs, str(directory), settings, checkpointed, *clocks_ms)
        return cls(ports, str(directory), settings, identity, recovered)

    @classmethod
    def create(
        cls, ports: LogPorts, directory: Path, settings: TopicConfig, identity: LogIdentity
    ) -> PartitionLog:
        """An empty log in a directory that exists and is empty (pool). Raises OSError."""
        nothing = Checkpointed(recovery_point=0, is_clean=True)
        return cls.open(ports, directory, settings, identity, nothing)

    def close(self, clean: bool) -> None:
        """Close the files; `clean`: first write and flush all, indexes and producers included.

        In the pool, with the log for itself. Raises OSError (and PenstockError on a full or failed
        disk): then no clean-shutdown marker may be written.
        """
        data = self._data
        if data.state is LogState.CLOSED:
            return
        self._writer.require_alone("close")
        try:
            if clean:
                self._writer.finish()
        finally:
            data.state = LogState.CLOSED
            for segment in data.segments:
                for path in segment_paths(segment):
                    self._fs.files.forget(path)
                forget_indexes(self._fs, segment)

    # ------------------------------------------------------------------ what is known

    def __str__(self) -> str:
        return str(self._data)

    @property
    def directory(self) -> Path:
        return Path(self._data.directory)

    @property
    def settings(self) -> TopicConfig:
        return self._data.settings

    def update_settings(self, settings: TopicConfig) -> None:
        """Take changed topic settings; durability counts from the next job on (loop)."""
        self._data.settings = settings

    @property
    def state(self) -> LogState:
        return self._data.state

    @property
    def log_start_offset(self) -> int:
        """First offset that may be read."""
        return self._data.start

    @property
    def log_end_offset(self) -> int:
        """Next offset to be given; staged data included."""
        return self._data.end

    @property
    def written_offset(self) -> int:
        """End of what the files hold."""
        return self._data.written

    @property
    def flushed_offset(self) -> int:
        """End of what a flush has returned for."""
        return self._data.flushed

    @property
    def staged_bytes(self) -> int:
        """Bytes in memory only: bound it, and stop taking more."""
        return self._data.staged_bytes

    @property
    def cut_count(self) -> int:
        """Rises when a cut begins and when it is done: plans made before or meanwhile count no more."""
        return self._data.cut_count

    @property
    def index_fault_count(self) -> int:
        """Reads that met a wrong index entry (they are answered all the same)."""
        return self._reader.index_fault_count

    @property
    def latest_epoch(self) -> int:
        """Newest leader epoch known, with data or without; -1 for none."""
        return self._data.epochs.latest

    @property
    def last_batch_epoch(self) -> int:
        """Leader epoch of the last batch, -1 in an empty log (KIP-595's last fetched epoch)."""
        return self._data.last_batch_epoch

    @property
    def size_bytes(self) -> int:
        """Of all segments, staged data included."""
        return self._data.size_bytes

    def bytes_between(self, low: int, high: int) -> int:
        """About how many bytes the records from `low` up to `high` take; 0 only when there are none.

        Within a segment the records count as equally big: this is for metrics.
        """
        return self._data.bytes_between(low, high)

    @property
    def has_unflushed(self) -> bool:
        """Whether bytes are staged, or written and covered by no flush."""
        return self._data.has_unflushed

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Oldest first, the last is the active one. For tests and tools; not to be changed."""
        return self._data.segments

    @property
    def first_segment_offset(self) -> int:
        """Where the files begin; below the log start after `raise_log_start`."""
        return self._data.segments[0].base_offset

    @property
    def segment_count(self) -> int:
        return len(self._data.segments)

    def end_of(self, segment: Segment) -> int:
        """Where the segment after one begins, the log's end for the active one (never blocks)."""
        return self._data.end_of(segment)

    @property
    def damage(self) -> DamagedData | None:
        """A batch that the disk gave back wrong when the log was opened or cut (loop).

        Its transaction may count as open for good, and no reader of decided records would ever come by: who has this
        log has to act on it as on a read that failed.
        """
        return self._data.damage

    @property
    def producer_count(self) -> int:
        return len(self._data.producers)

    def producers(self) -> Iterator[tuple[int, ProducerEntry]]:
        """Every producer that is remembered, by id. Not to be changed."""
        return self._data.producers.entries()

    def producer(self, producer_id: int) -> ProducerEntry | None:
        """What is remembered of a producer (loop). Not to be changed, but for `vouched_epoch`."""
        return self._data.producers.get(producer_id)

    def is_duplicate(self, info: BatchInfo) -> bool:
        """Whether a batch with a producer id is here already (`ProducerState.is_duplicate`)."""
        return self._data.producers.is_duplicate(info)

    @property
    def first_open_transaction(self) -> int | None:
        """Offset of the first record of the oldest open transaction (loop)."""
        return self._data.producers.first_open_transaction

    def last_stable_offset(self, high_watermark: int) -> int:
        """End of what readers of decided records may see (loop); see `transactions`."""
        data = self._data
        return data.producers.transactions.last_stable_offset(high_watermark, data.start)

    def is_next_of_producer(self, info: BatchInfo) -> bool:
        """Whether a batch with a producer id is the one that must come next (`ProducerState.is_next`)."""
        return self._data.producers.is_next(info)

    def is_producer_new_since(self, info: BatchInfo, start_offset: int) -> bool:
        """Whether its producer has written nothing from there on (`ProducerState.is_new_since`)."""
        return self._data.producers.is_new_since(info, start_offset)

    @property
    def is_busy(self) -> bool:
        """A job is out: nothing that needs the log for itself may start."""
        return self._writer.is_busy

    def epoch_entries(self) -> list[tuple[int, int]]:
        """(leader epoch, start offset), oldest first."""
        return self._data.epochs.entries

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest known epoch <= `epoch`, its end offset), (-1, -1) when unknown (KIP-101, KIP-279)."""
        return self._data.epochs.end_offset_for(epoch, self._data.end)

    def epoch_starts_between(self, from_offset: int, to_offset: int) -> tuple[tuple[int, int], ...]:
        """(leader epoch, start offset) of those that begin in from_offset <= start < to_offset."""
        return self._data.epochs.starts_between(from_offset, to_offset)

    def epoch_at(self, offset: int) -> int:
        """Leader epoch of the record at `offset`, -1 when unknown."""
        return self._data.epochs.epoch_at(offset)

    def checkpoint(self) -> int:
        """Recovery point to persist: everything below is on disk, leader epochs included.

        It stays inside a closed segment until that one's indexes are on disk too.
        """
        return self._data.checkpoint()

    def validate(self) -> None:
        """For tests and the simulator: raises InvariantBroken when the log's parts contradict one another.

        Only while no thread has the log for itself (loop).
        """
        self._data.validate()

    # ------------------------------------------------------------------ appending (loop)

    def append_as_leader(
        self, batch: Buffer, info: BatchInfo, leader_epoch: int, origin: Origin = Origin.CLIENT
    ) -> Appended | Duplicate:
        """Stage one batch that `accept_produced` has passed; its memory must stay as it is until written.

        Raises KAFKA_STORAGE_ERROR (full or failed disk), INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE,
        OUT_OF_ORDER_SEQUENCE_NUMBER, RECORD_LIST_TOO_LARGE, FENCED_LEADER_EPOCH.
        """
        return self._data.append_as_leader(batch, info, leader_epoch, origin)

    def append_marker(
        self, producer_id: int, producer_epoch: int, marker: Marker, leader_epoch: int
    ) -> Appended:
        """Stage the marker that ends a producer's transaction here, or that none was open; its fences are the caller's.

        Raises KAFKA_STORAGE_ERROR (full or failed disk), FENCED_LEADER_EPOCH.
        """
        return self._data.append_marker(producer_id, producer_epoch, marker, leader_epoch)

    def append_as_follower(
        self,
        records: Buffer,
        leader_epoch: int,
        *,
        base_offset: int | None = None,
        epoch_starts: Sequence[tuple[int, int]] = (),
    ) -> int:
        """Stage a leader's batches as they are; returns the last offset in the log.

        `leader_epoch` is the session's: batches of a later epoch, and what follows
        them, are left out (KAFKA-18723). `base_offset`: where the leader says that the
        batches begin (its own compaction may have taken the first ones); without it the
        first batch must begin right at the log end. `epoch_starts`: (leader epoch, start offset)
        of those that the leader knows to begin among these batches or in gaps before them. All or
        nothing is appended. Raises CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE (gap or overlap), KAFKA_STORAGE_ERROR.
        """
        return self._data.append_as_follower(records, leader_epoch, base_offset, epoch_starts)

    def start_epoch(self, leader_epoch: int) -> None:
        """New leader: record that `leader_epoch` begins at the log end, before serving (loop).

        Only while that is the role, and no cut is under way. The file follows with the next write
        job, before its data are flushed: see `epochs`. Raises FENCED_LEADER_EPOCH.
        """
        self._data.start_epoch(leader_epoch)

    # ------------------------------------------------------------------ write and flush jobs (loop)

    def next_job(self, *, retry: bool = False) -> WriteJob | None:
        """Everything staged, as one job; None while one is out or nothing is staged.

        In state FULL only with `retry`: try that about once a second.
        """
        return self._writer.next_job(retry=retry)

    def complete(self, job: WriteJob) -> None:
        """Apply a job whose `run` returned."""
        self._writer.complete(job)

    def fail(self, job: WriteJob, error: BaseException) -> None:
        """Apply a job whose `run` raised: the log becomes FULL (data stay staged) or FAILED."""
        self._writer.fail(job, error)

    def next_flush_job(self, *, everything: bool = False) -> FlushJob | None:
        """Flush of closed segments, with `everything` of all that is written; None when there is nothing to do."""
        return self._writer.next_flush_job(everything=everything)

    def complete_flush(self, job: FlushJob) -> None:
        """Apply a flush job whose `run` returned."""
        self._writer.complete_flush(job)

    def fail_flush(self, job: FlushJob, error: BaseException) -> None:
        """A failed flush is final: the log is FAILED."""
        self._writer.fail_flush(job, error)

    # ------------------------------------------------------------------ reading

    def read(
        self, offset: int, max_bytes: int, upper_offset: int, *, min_one: bool = True
    ) -> ReadData | ReadJob:
        """Whole batches from the one that holds `offset` on, with base offsets below `upper_offset` (loop).

        At most `max_bytes`, but for the first batch when `min_one` (KIP-74). May end
        early (at a segment's end, or where memory begins): read on from `next_offset`.
        A ReadJob when the data aren't at hand. Raises OFFSET_OUT_OF_RANGE.
        """
        return self._reader.read(offset, max_bytes, upper_offset, min_one)

    def aborted_between(self, offset: int, end_offset: int) -> Rows | AbortedJob:
        """Aborted transactions with records or a marker in offset <= it < end_offset, by rising markers (loop).

        `end_offset`: where a read ended (`ReadData.next_offset`), at most the last stable offset. A job for the pool
        when an index is not at hand.
        """
        return self._reader.aborted_between(offset, end_offset)

    def size_range(self, start: int, end: int, cut_bytes: int, cuts_max: int) -> SizedRange:
        """Bytes of the offsets from `start` on below `end`, and cuts of that range; see `sizes.size_range` (pool)."""
        return self._reader.size_range(start, end, cut_bytes, cuts_max)

    def offset_for_timestamp(self, timestamp_ms: int, upper_offset: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with that timestamp or later, below `upper_offset` (pool)."""
        return self._reader.offset_for_timestamp(timestamp_ms, upper_offset)

    def offset_of_max_timestamp(self, upper_offset: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the record with the largest timestamp below `upper_offset` (pool)."""
        return self._reader.offset_of_max_timestamp(upper_offset)

    # ------------------------------------------------------------------ retention (loop)

    def delete_old_segments(
        self, high_watermark: int, now_ms: int, producer_idle_max_ms: int = PRODUCER_IDLE_MAX_MS
    ) -> Callable[[], None] | None:
        """Let go of segments that retention or `raise_log_start` has passed; only below the high watermark. And of
        producers that have been idle for that long, by the clock that nobody sets.

        What it returns runs in the pool, while nobody cuts the log or swaps files: it renames and
        unlinks, what an earlier removal left over included, or reads what is needed to decide next
        time. None: nothing to do.
        """
        data = self._data
        if data.state not in (LogState.OK, LogState.FULL):
            return None
        data.producers.expire(data.idle_clock_ms(), producer_idle_max_ms)
        segments = data.segments
        verdict = retention.decide(segments, data.settings, high_watermark, data.start, now_ms)
        if verdict.roll_active and data.end == data.written and data.state is LogState.OK:
            data.close_active_segment(now_ms)
        flushing = self._writer.flushing()
        gone = tuple(takewhile(lambda segment: segment not in flushing, segments[: verdict.count]))
        if gone:
            data.let_go(gone)
        leaving, unknown = list(data.leaving.values()), verdict.unknown
        return (lambda: self._remove(leaving, unknown)) if leaving or unknown else None

    def _remove(self, leaving: Sequence[Segment], unknown: Sequence[Segment]) -> None:
        data = self._data
        if leaving:
            retention.remove(self._fs, data.directory, leaving)
            for segment in leaving:
                data.leaving.pop(segment.base_offset, None)
        timestamps.load_timestamps(self._fs, unknown)

    def raise_log_start(self, offset: int) -> None:
        """Hide what lies before `offset` (DeleteRecords, a leader's higher start); files go with retention."""
        self._data.raise_start(offset)

    # ------------------------------------------------------------------ compaction

    @property
    def tombstones_gone_below(self) -> int:
        """Below it tombstones may be missing, and no record is there that one of them was for; 0: none are."""
        return self._checkpoints.tombstones_gone_below

    @property
    def clean_until(self) -> int:
        """Below it no record is there for which a later tombstone was written below it."""
        return max(self._checkpoints.cleaned_until, self._checkpoints.tombstones_gone_below)

    def plan_cleaning(self, cleaned_until: int, last_stable_offset: int, now_ms: int) -> CleaningPlan | None:
        """What could be compacted now, None for nothing (pool: it may read timestamps and aborted indexes).

        `last_stable_offset` is for the caller to read on the loop.
        """
        data = self._data
        cut_count = data.cut_count
        for _ in range(PLAN_TRIES_MAX):
            segments = data.segments
            bounds = CleaningBounds(cleaned_until, data.start, last_stable_offset)
            found = cleaning_plan.plan(segments, data.settings, bounds, now_ms=now_ms, cut_count=cut_count)
            if not isinstance(found, cleaning_plan.Unknown):
                if found is not None and found.is_due:
                    first = found.sources[0].base_offset
                    found.aborted = self._reader.aborted_between_in_pool(first, found.end)
                return found
            timestamps.load_timestamps(self._fs, found.segments)
        return None

    def cleaning_request(self, plan: CleaningPlan, now_ms: int, map_bytes: int) -> CleanRequest:
        """What the cleaner needs to know for a plan (loop)."""
        data = self._data
        producers = data.producers.last_data_offsets()
        return cleaning_plan.request(plan, data.settings, data.directory, producers, now_ms, map_bytes)

    def can_swap(self, sources: Sequence[Segment], plan: CleaningPlan) -> bool:
        """Whether these sources of a plan stand in the log as they did then (loop, or alone in the pool)."""
        data = self._data
        if data.state is not LogState.OK or data.cut_count != plan.cut_count:
            return False
        return cleaning_plan.still_stand(plan, sources, data.segments)

    def swap_files(self, group: CleanedGroup, sources: Sequence[Segment], plan: CleaningPlan) -> bool:
        """Exchange the files of `sources` for a compacted segment's; `adopt_swapped` has to follow.

        Alone in the pool; False when the log has changed so that they no longer fit. Raises
        OSError; the log is then FAILED.
        """
        if not self.can_swap(sources, plan):
            return False
        try:
            swap.swap_in(self._fs, self._data.directory, group, sources)
        except OSError:
            self._data.state = LogState.FAILED
            raise
        return True

    def adopt_swapped(self, group: CleanedGroup, sources: Sequence[Segment]) -> Callable[[], None]:
        """Use the new segment from now on (loop); what it returns removes the old files (pool)."""
        new = swap.new_segment(self._data.directory, group, self._fs, sources[-1])
        self._data.exchange(tuple(sources), new)
        return lambda: swap.sweep(self._fs, sources)

    @property
    def is_swapping(self) -> bool:
        """Files of closed segments are being exchanged: reads of files go to the pool, and wait there."""
        return self._data.is_swapping

    @is_swapping.setter
    def is_swapping(self, value: bool) -> None:
        self._data.is_swapping = value

    # ------------------------------------------------------------------ cutting (pool, alone)

    def truncate_to(self, offset: int) -> int:
        """Drop everything from `offset` on; durable on return, before later appends can be.

        Returns the new log end: `offset`, or less when that lies in the middle of a batch or
        behind a gap that compaction left. Raises OSError; the log is then FAILED.
        """
        return self._truncation.truncate_to(offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the log is then empty and begins at `offset`. Durable on return."""
        self._truncation.truncate_fully_and_start_at(offset)
