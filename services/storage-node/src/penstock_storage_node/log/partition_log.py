"""One partition's log: what the loop appends to, what the disk pool writes.

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

Offsets: flushed <= written <= log_end, and log_start <= log_end. Staged data (written..log_end) are
read from memory, the rest from the page cache. In durability "fsync" a job that is
complete is flushed; in "replicated" it is only written, and `next_flush_job` flushes
segments after they were closed.

Threads: methods marked (loop) run on one thread and make no system call, but for reads
of what is in the page cache. Those marked (pool) block. `truncate_*` and `close` need
the log for themselves: no job out, nobody appending or reading.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import ErrorCode, InvariantBroken, PenstockError
from penstock_core.failpoints import hit
from penstock_core.ids import TopicId
from penstock_storage_node.log import reading, recovery, retention, timestamps
from penstock_storage_node.log.compaction import plan as cleaning_plan
from penstock_storage_node.log.compaction import swap
from penstock_storage_node.log.compaction.plan import CleaningPlan
from penstock_storage_node.log.compaction.rewrite import CleanedGroup, CleanRequest
from penstock_storage_node.log.fs import FileSystem
from penstock_storage_node.log.job_order import JobOrder
from penstock_storage_node.log.jobs import (
    FULL_ERRORS,
    UNFLUSHED_MARKER,
    ReadData,
    ReadJob,
    create_with,
    remove_marker,
    save_indexes,
    segment_paths,
    sync_segment,
)
from penstock_storage_node.log.log_core import Appended, Duplicate, LogState
from penstock_storage_node.log.reading import BlockingFiles, CachedFiles, Files, Found, Need, Stuck, Wanted
from penstock_storage_node.log.segment import Segment, file_stem, load_head

__all__ = ["Appended", "Duplicate", "LogState", "PartitionLog"]

READ_TRIES_MAX = 6
"""Of a read in the pool: index head to load, damaged, a gap, and all again for the next segment."""

READ_SEGMENTS_MAX = 1000
"""Empty segments that one read passes over before it gives up."""


class PartitionLog(JobOrder):
    """See the module. Made by `open` or `create`, usually through LogDirectory."""

    __slots__ = ()

    # ------------------------------------------------------------------ opening

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        directory: Path,
        settings: TopicConfig,
        *,
        topic: str,
        partition: int,
        topic_id: TopicId,
        clock_ms: Callable[[], int],
        recovery_point: int | None,
        clean: bool,
        log_start_offset: int | None = None,
        may_have_gaps: bool = False,
        lower_recovery_point: Callable[[int], None] | None = None,
        mark_gaps: Callable[[], None] | None = None,
    ) -> PartitionLog:
        """Open what is on disk, repairing it as needed (pool). Raises PenstockError or OSError.

        `recovery_point`: offset below which everything was flushed, as checkpointed
        (None: not known). `may_have_gaps`: it is or was compacted, or follows such a log.
        `clean`: the last process closed all logs, nothing needs a scan. `lower_recovery_point` makes a
        lower recovery point durable; it is called before anything below it is cut off. `mark_gaps`
        (pool) makes durable that the log may have gaps, before the first one is written.
        """
        recovered = recovery.recover(
            fs,
            str(directory),
            settings,
            now_ms=clock_ms(),
            recovery_point=recovery_point,
            is_clean=clean,
            log_start_offset=log_start_offset,
            may_have_gaps=may_have_gaps,
        )
        log = cls(
            fs,
            str(directory),
            settings,
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            clock_ms=clock_ms,
            lower_recovery_point=lower_recovery_point,
            mark_gaps=mark_gaps,
            recovered=recovered,
        )
        log._is_marked = fs.exists(f"{directory}/{UNFLUSHED_MARKER}")
        log.may_lack_acked = log._is_marked and not clean
        return log

    @classmethod
    def create(
        cls,
        fs: FileSystem,
        directory: Path,
        settings: TopicConfig,
        *,
        topic: str,
        partition: int,
        topic_id: TopicId,
        clock_ms: Callable[[], int],
        lower_recovery_point: Callable[[int], None] | None = None,
        mark_gaps: Callable[[], None] | None = None,
    ) -> PartitionLog:
        """An empty log in a directory that exists and is empty (pool). Raises OSError."""
        return cls.open(
            fs,
            directory,
            settings,
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            clock_ms=clock_ms,
            recovery_point=0,
            clean=True,
            lower_recovery_point=lower_recovery_point,
            mark_gaps=mark_gaps,
        )

    # ------------------------------------------------------------------ reading (loop)

    def read(
        self, offset: int, max_bytes: int, upper_offset: int, *, min_one: bool = True
    ) -> ReadData | ReadJob:
        """Whole batches from the one that holds `offset` on, with base offsets below `upper_offset`.

        At most `max_bytes`, but for the first batch when `min_one` (KIP-74). May end
        early (at a segment's end, or where memory begins): read on from `next_offset`.
        A ReadJob when the data aren't at hand. Raises OFFSET_OUT_OF_RANGE.
        """
        if offset < self._start or offset > self._end:
            raise self._out_of_range(offset)
        upper_offset = min(upper_offset, self._end)
        if offset >= upper_offset:
            return reading.empty(offset)
        if offset >= self._written:
            return self._read_staged(offset, max_bytes, upper_offset, min_one)
        if self.state is LogState.FAILED and offset >= self._flushed:
            raise self._refusal()
        wanted = Wanted(offset, max_bytes, upper_offset, min_one)
        if not self.is_swapping:
            try:
                found = self._read_files(CachedFiles(self._fs), wanted)
            except OSError as error:
                raise self._unreadable(error) from error
            if isinstance(found, ReadData):
                return found
        return ReadJob(lambda: self._read_in_pool(wanted))

    def _out_of_range(self, offset: int) -> PenstockError:
        return PenstockError(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} of {self} is outside {self._start}..{self._end}"
        )

    def _read_staged(self, offset: int, max_bytes: int, upper_offset: int, min_one: bool) -> ReadData:
        chunks = (
            self._job_chunks
            if self._job_chunks and offset <= self._job_chunks[-1].last_offset
            else self._staged
        )
        first = max(bisect_right(chunks, offset, key=_base_offset) - 1, 0)
        return reading.read_buffers(chunks, first, offset, max_bytes, upper_offset, min_one=min_one)

    def _read_files(self, files: Files, wanted: Wanted) -> ReadData | Stuck:
        segments, hints, offset = self._segments, self._hints, wanted.offset
        index = max(bisect_right(segments, offset, key=_segment_base) - 1, 0)
        hint = hints.get(offset)
        for segment in segments[index : index + READ_SEGMENTS_MAX]:
            if files.may_block:  # what the cache does not have the disk gives, and then reads on ahead
                segment.found_bytes = segment.written
            found = reading.read_segment(segment, files, wanted, hint)
            if isinstance(found, Found):
                if found.size_bytes:
                    reading.remember(hints, found.next_offset, segment, found.end_position)
                return found
            if found is not None:
                return Stuck(segment, found)
        return reading.empty(offset)

    def _read_in_pool(self, wanted: Wanted) -> ReadData:
        files, stuck = BlockingFiles(self._fs), None
        for _ in range(READ_TRIES_MAX):
            try:
                if stuck is not None:
                    self._unstick(stuck)
                found = self._read_files(files, wanted)
            except FileNotFoundError:  # retention was faster
                raise self._out_of_range(self._start - 1) from None
            except OSError as error:
                raise self._unreadable(error) from error
            if isinstance(found, ReadData):
                return found
            stuck = found
        raise PenstockError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"indexes of {self} at {wanted.offset} are in work: try again"
        )

    def _unstick(self, stuck: Stuck) -> None:
        segment = stuck.segment
        if stuck.need is Need.INDEX:
            load_head(self._fs, segment)
            return
        size = segment.written  # first: the log may grow meanwhile
        reading.trust(self._fs, segment, size, self.end_of(segment))
        if stuck.need is Need.MENDED_INDEX:
            self.index_fault_count += 1
            timestamps.mend_head(self._fs, segment, self.settings.index_interval_bytes)

    def _unreadable(self, error: OSError) -> PenstockError:
        return PenstockError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"{self} can't be read ({error.strerror}): check the disk"
        )

    def _segment_of(self, offset: int) -> Segment:
        segments = self._segments
        return segments[max(bisect_right(segments, offset, key=_segment_base) - 1, 0)]

    def offset_for_timestamp(self, timestamp_ms: int, upper_offset: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with that timestamp or later, below `upper_offset` (pool)."""
        staged = [chunk.data for chunk in (*self._job_chunks, *self._staged)]
        find, fs = timestamps.find_in_files, self._fs
        found = self._look_up(lambda segments: find(fs, segments, timestamp_ms, self._start, upper_offset))
        return found or timestamps.find_in_memory(staged, timestamp_ms, upper_offset)

    def offset_of_max_timestamp(self, upper_offset: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the record with the largest timestamp below `upper_offset` (pool)."""
        staged = [chunk.data for chunk in (*self._job_chunks, *self._staged)]
        find, fs = timestamps.find_largest, self._fs
        return self._look_up(lambda segments: find(fs, segments, staged, self._start, upper_offset))

    def _look_up(self, find: Callable[[Sequence[Segment]], tuple[int, int] | None]) -> tuple[int, int] | None:
        """`find` among the segments, anew when retention has taken some of them away meanwhile."""
        for _ in range(READ_TRIES_MAX):
            segments = self._segments
            try:
                return find(segments)
            except OSError as error:
                if not isinstance(error, FileNotFoundError) or self._segments is segments:
                    raise self._unreadable(error) from error
        raise PenstockError(
            ErrorCode.OFFSET_NOT_AVAILABLE, f"retention outran the look-up in {self}: ask again"
        )

    # ------------------------------------------------------------------ retention (loop)

    def delete_old_segments(self, high_watermark: int, now_ms: int) -> Callable[[], None] | None:
        """Let go of segments that retention or `raise_log_start` has passed; only below the high watermark.

        What it returns runs in the pool, while nobody cuts the log or swaps files: it renames and
        unlinks, what an earlier removal left over included, or reads what is needed to decide next
        time. None: nothing to do.
        """
        if self.state not in (LogState.OK, LogState.FULL):
            return None
        self._producers.expire(now_ms)
        segments = self._segments
        verdict = retention.decide(segments, self.settings, high_watermark, self._start, now_ms)
        if verdict.roll_active and self._end == self._written and self.state is LogState.OK:
            self._roll(now_ms)
            self._staged.append(Appended(self._end, self._end - 1, [], 0, self._segments[-1]))
        flushing = self._flushing()
        gone = tuple(takewhile(lambda segment: segment not in flushing, segments[: verdict.count]))
        if gone:
            self._segments = self._segments[len(gone) :]
            self._hints = {}
            self._unflushed = [segment for segment in self._unflushed if segment not in gone]
            self._start = max(self._start, self._segments[0].base_offset)
            self._epochs.truncate_from_start(self._start)
            self._leaving.update((segment.base_offset, segment) for segment in gone)
        leaving, unknown = list(self._leaving.values()), verdict.unknown
        return (lambda: self._remove(leaving, unknown)) if leaving or unknown else None

    def _remove(self, leaving: Sequence[Segment], unknown: Sequence[Segment]) -> None:
        if leaving:
            retention.remove(self._fs, self._directory, leaving)
            for segment in leaving:
                self._leaving.pop(segment.base_offset, None)
        timestamps.load_timestamps(self._fs, unknown)

    def raise_log_start(self, offset: int) -> None:
        """Hide what lies before `offset` (DeleteRecords, a leader's higher start); files go with retention."""
        self._start = max(self._start, min(offset, self._end))

    # ------------------------------------------------------------------ compaction

    def plan_cleaning(
        self, cleaned_until: int, high_watermark: int, now_ms: int, first_open_transaction: int | None
    ) -> CleaningPlan | None:
        """What could be compacted now, None for nothing (pool: it may read timestamps).

        `first_open_transaction` is for the caller to read on the loop, together with the high watermark.
        """
        cut_count = self.cut_count
        for _ in range(READ_TRIES_MAX):
            found = cleaning_plan.plan(
                self._segments,
                self.settings,
                cleaned_until=cleaned_until,
                log_start_offset=self._start,
                high_watermark=high_watermark,
                first_open_transaction=first_open_transaction,
                now_ms=now_ms,
                cut_count=cut_count,
            )
            if not isinstance(found, cleaning_plan.Unknown):
                return found
            timestamps.load_timestamps(self._fs, found.segments)
        return None

    def cleaning_request(self, plan: CleaningPlan, now_ms: int, map_bytes: int) -> CleanRequest:
        """What the cleaner needs to know for a plan (loop)."""
        producers = self._producers.last_data_offsets()
        return cleaning_plan.request(plan, self.settings, self._directory, producers, now_ms, map_bytes)

    def can_swap(self, sources: Sequence[Segment], plan: CleaningPlan) -> bool:
        """Whether these sources of a plan stand in the log as they did then (loop, or alone in the pool)."""
        if self.state is not LogState.OK or self.cut_count != plan.cut_count:
            return False
        return cleaning_plan.still_stand(plan, sources, self._segments)

    def swap_files(self, group: CleanedGroup, sources: Sequence[Segment], plan: CleaningPlan) -> bool:
        """Exchange the files of `sources` for a compacted segment's; `adopt_swapped` has to follow.

        Alone in the pool; False when the log has changed so that they no longer fit. Raises
        OSError; the log is then FAILED.
        """
        if not self.can_swap(sources, plan):
            return False
        try:
            swap.swap_in(self._fs, self._directory, group, sources)
        except OSError:
            self.state = LogState.FAILED
            raise
        return True

    def adopt_swapped(self, group: CleanedGroup, sources: Sequence[Segment]) -> Callable[[], None]:
        """Use the new segment from now on (loop); what it returns removes the old files (pool)."""
        segments = self._segments
        first = segments.index(sources[0])
        new = swap.new_segment(self._directory, group, self._fs, sources[-1])
        self._segments = (*segments[:first], new, *segments[first + len(sources) :])
        self._hints = {}
        return lambda: swap.sweep(self._fs, sources)

    def update_settings(self, settings: TopicConfig) -> None:
        """Take changed topic settings; durability counts from the next job on."""
        self.settings = settings

    # ------------------------------------------------------------------ for itself alone (pool)

    def _require_alone(self, what: str) -> None:
        if self.is_busy:
            raise InvariantBroken(f"{what} of {self} while a job is out")

    def truncate_to(self, offset: int) -> int:
        """Drop everything from `offset` on; durable on return, before later appends can be.

        Returns the new log end: `offset`, or less when that lies in the middle of a batch or
        behind a gap that compaction left. Raises OSError; the log is then FAILED.
        """
        self._require_alone("truncation")
        if offset >= self._end:
            # No data to cut, but an epoch that begins here may be one the leader lacks:
            # kept, it would make the two logs diverge again at every comparison (Kafka:
            # UnifiedLog.truncateTo).
            self._epochs.truncate_from_end(self._end)
            recovery.save_epochs(self._fs, self._directory, self._epochs)
            return self._end
        if self.state not in (LogState.OK, LogState.FULL):
            raise self._refusal()
        if offset < self._start:
            self.truncate_fully_and_start_at(offset)
            return offset
        if offset > self._written and not self._write_all():
            return self._end
        try:
            # Whatever needs space comes before anything is cut.
            target = self._segment_of(offset)
            first = self._start
            if target.base_offset < first and recovery.end_if_cut(self._fs, target, offset) < first:
                # The log start lies in the batch that goes with `offset`, or in a gap before it.
                self.truncate_fully_and_start_at(first)
                return first
            if target.is_on_disk:
                save_indexes(self._fs, target, target.offset_index.count, target.time_index.count)
            # Not to `offset`: the batch that it lies in goes too.
            self._lower_checkpoint(max(target.base_offset, self._start))
        except OSError as error:
            if error.errno not in FULL_ERRORS:
                self.state = LogState.FAILED
            raise
        try:
            return self._truncate_files(offset)
        except OSError:
            self.state = LogState.FAILED
            raise

    def _write_all(self) -> bool:
        """Write what is staged, here and now. False: the disk is full, and truncation has to wait."""
        while (job := self.next_job(retry=True)) is not None:
            try:
                job.run()
            except OSError as error:
                self.fail(job, error)
                raise
            self.complete(job)
        return not self._staged

    def _lower_checkpoint(self, offset: int) -> None:
        self.cut_count += 1
        if offset < self._flushed:
            # First here: a checkpoint that is being written may look at us at any moment.
            before, self._flushed = self._flushed, offset
            if self._lower_recovery_point is not None:
                try:
                    self._lower_recovery_point(offset)
                except OSError:
                    self._flushed = before  # nothing is cut
                    raise

    def _drop_staged(self) -> None:
        self._staged = []
        self.staged_bytes = 0
        self._snapshots.clear()
        self._hints = {}

    def _truncate_files(self, offset: int) -> int:
        fs = self._fs
        hit("log.truncate.before_cut")
        self._drop_staged()
        on_disk = [segment for segment in self._segments if segment.is_on_disk]
        kept = [segment for segment in on_disk if segment.base_offset <= offset] or on_disk[:1]
        target, gone = kept[-1], on_disk[len(kept) :]
        recovery.remove_segments(fs, gone)
        if gone:
            fs.sync_directory(self._directory)
        hit("log.truncate.after_segments")
        end_offset = recovery.cut_segment(fs, target, offset, self.settings)
        hit("log.truncate.after_cut")
        self._segments = tuple(kept)
        self._unflushed = [s for s in self._unflushed if s in kept and s is not target]
        self._end = self._written = end_offset
        self._flushed = end_offset if not self._unflushed else min(self._flushed, end_offset)
        self._epochs.truncate_from_end(end_offset)
        recovery.save_epochs(self._fs, self._directory, self._epochs)
        recovery.rebuild_producers(fs, self._directory, kept, self._producers, end_offset, self._clock_ms())
        fs.sync_directory(self._directory)
        self.cut_count += 1
        self.state = LogState.OK
        return end_offset

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the log is then empty and begins at `offset`. Durable on return."""
        self._require_alone("truncation")
        if self.state not in (LogState.OK, LogState.FULL):
            raise self._refusal()
        fs, before = self._fs, self._start
        self._start = min(before, offset)  # first, for checkpoints that are being written
        try:
            self._lower_checkpoint(self._start)
        except OSError as error:
            self._start = before
            if error.errno not in FULL_ERRORS:
                self.state = LogState.FAILED
            raise
        try:
            self._drop_staged()
            on_disk = [segment for segment in self._segments if segment.is_on_disk]
            recovery.remove_segments(fs, [*self._leaving.values(), *on_disk])
            self._leaving.clear()  # files of these names are new ones from now on
            self._epochs.clear()
            recovery.save_epochs(self._fs, self._directory, self._epochs)
            self._producers.clear()
            recovery.remove_snapshots(fs, self._directory)
            fs.sync_directory(self._directory)
            segment = recovery.first_segment(fs, self._directory, offset, self._clock_ms())
        except OSError:
            self.state = LogState.FAILED
            raise
        self._segments = (segment,)
        self._unflushed = []
        self._start = self._end = self._written = self._flushed = offset
        self.cut_count += 1
        self.state = LogState.OK

    def close(self, clean: bool) -> None:
        """Close the files; `clean`: first write and flush all, indexes and producers included.

        Raises OSError (and PenstockError on a full or failed disk): then no clean-shutdown
        marker may be written.
        """
        if self.state is LogState.CLOSED:
            return
        self._require_alone("close")
        try:
            if clean:
                self._finish()
        finally:
            self.state = LogState.CLOSED
            for segment in self._segments:
                for path in segment_paths(segment):
                    self._fs.files.forget(path)
                self._fs.index_heads.forget(segment.offset_index.path)

    def _finish(self) -> None:
        if self.state is LogState.FAILED:
            raise self._refusal()
        self._write_all()
        fs, last = self._fs, self._segments[-1]
        last.close_time_index()
        save_indexes(fs, last, last.offset_index.count, last.time_index.count)
        for segment in (*(s for s in self._unflushed if s is not last), last):
            sync_segment(fs, segment, indexes=True)
        if self._end > self._segments[0].base_offset:
            path = f"{self._directory}/{file_stem(self._end)}.snapshot"
            create_with(fs, path, self._producers.encode_snapshot(), sync=True)
        recovery.save_epochs(self._fs, self._directory, self._epochs)
        if self._epochs.is_dirty:
            raise PenstockError(ErrorCode.KAFKA_STORAGE_ERROR, f"disk of {self} is full: not closed cleanly")
        fs.sync_directory(self._directory)
        if self._is_marked:
            remove_marker(fs, self._directory)
            self._is_marked = False
        self._unflushed = []
        self._flushed = self._end


def _base_offset(chunk: Appended) -> int:
    return chunk.base_offset


def _segment_base(segment: Segment) -> int:
    return segment.base_offset
