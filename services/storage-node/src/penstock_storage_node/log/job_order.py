"""The order of write and flush jobs: the middle layer of `PartitionLog` (loop only).

At most one write job and one flush job of a log are out at a time. What a job found out
is applied here when its `run` has returned, so a reader on the loop never sees an offset
as written or flushed that is not.
"""

from __future__ import annotations

from bisect import bisect_right

from penstock_core.errors import InvariantBroken
from penstock_storage_node.log.checkpoints import LEADER_EPOCH_FILE, encode_epochs
from penstock_storage_node.log.jobs import FULL_ERRORS, FlushJob, WriteJob, WriteStep
from penstock_storage_node.log.log_core import Appended, LogCore, LogState
from penstock_storage_node.log.segment import Segment


class JobOrder(LogCore):
    """Staged data to disk, one job at a time."""

    __slots__ = ()

    def next_job(self, *, retry: bool = False) -> WriteJob | None:
        """Everything staged, as one job; None while one is out or nothing is staged.

        In state FULL only with `retry`: try that about once a second.
        """
        if self._job is not None or not self._staged:
            return None
        if self.state is not LogState.OK and not (retry and self.state is LogState.FULL):
            return None
        chunks, self._staged = self._staged, []
        self._job_chunks = chunks
        self._job = job = self._make_job(chunks)
        return job

    def _make_job(self, chunks: list[Appended]) -> WriteJob:
        steps: list[WriteStep] = []
        step: WriteStep | None = None
        for chunk in chunks:
            if step is None or step.segment is not chunk.segment:
                if step is not None:
                    step.plan_indexes(closes=True)
                step = self._first_step(chunk.segment, steps) if step is None else WriteStep(chunk.segment, 0)
                step.snapshot = self._snapshots.get(chunk.segment.base_offset)
                steps.append(step)
            step.buffers.extend(chunk.data)
            step.size += chunk.size_bytes
        if step is not None:
            step.plan_indexes(closes=False)
        epochs = None
        if self._epochs.is_dirty:
            self._epochs.is_dirty = False
            epochs = (f"{self._directory}/{LEADER_EPOCH_FILE}", encode_epochs(self._epochs.entries))
        return WriteJob(
            self._fs,
            self._directory,
            steps,
            base_offset=chunks[0].base_offset,
            end_offset=chunks[-1].last_offset + 1,
            epochs=epochs,
            fsync=self.settings.is_fsync,
            unflushed=self._unflushed[:],
            is_marked=self._is_marked,
            mark_gaps=self._mark_gaps if self._has_new_gaps else None,
        )

    def _first_step(self, segment: Segment, steps: list[WriteStep]) -> WriteStep:
        """The first step of a job; the segment before it is closed here when the roll came first."""
        if not segment.is_on_disk and len(self._segments) > 1:
            index = self._segments.index(segment) - 1
            if index >= 0:
                closing = WriteStep(self._segments[index], self._segments[index].written)
                closing.plan_indexes(closes=True)
                steps.append(closing)
        return WriteStep(segment, segment.written)

    def complete(self, job: WriteJob) -> None:
        """Apply a job whose `run` returned."""
        self._take_back(job)
        for step in job.steps:
            segment = step.segment
            segment.written = step.position + step.size
            segment.is_on_disk = True
            segment.is_directory_synced = segment.is_directory_synced or job.fsync
            self._snapshots.pop(segment.base_offset, None)
            if step.offset_entries or step.closes:
                segment.offset_index.mark_saved(step.offset_entries)
                segment.time_index.mark_saved(step.time_entries)
            if step.closes:
                segment.offset_index.release()
                segment.is_closed_on_disk = True
                segment.is_sealed = job.fsync
            if not job.fsync and (step.size or step.closes) and segment not in self._unflushed:
                self._unflushed.append(segment)
        self.staged_bytes -= job.size_bytes
        self._job_chunks = []
        self._is_marked = job.is_marked
        if job.has_marked_gaps:
            self._has_new_gaps, self._mark_gaps = False, None
        self._written = job.end_offset
        if job.fsync:
            self._flushed = job.end_offset
            for segment in self._unflushed:
                segment.is_sealed = segment.is_closed_on_disk
            self._unflushed.clear()
        if self.state is LogState.FULL:
            self.state = LogState.OK

    def fail(self, job: WriteJob, error: BaseException) -> None:
        """Apply a job whose `run` raised: the log becomes FULL (data stay staged) or FAILED."""
        self._take_back(job)
        self._is_marked = job.is_marked
        self._staged = self._job_chunks + self._staged
        self._job_chunks = []
        if job.writes_epochs:
            self._epochs.is_dirty = True
        is_full = isinstance(error, OSError) and error.errno in FULL_ERRORS
        # A flush that failed is final whatever its reason: the cache may have let the pages go.
        is_full = is_full and job.is_cut_back and not job.is_written
        if self.state in (LogState.OK, LogState.FULL):
            self.state = LogState.FULL if is_full else LogState.FAILED

    def _take_back(self, job: WriteJob) -> None:
        if job is not self._job:
            raise InvariantBroken(f"{self} got back a write job that it did not give out")
        self._job = None

    def next_flush_job(self, *, everything: bool = False) -> FlushJob | None:
        """Flush of closed segments, with `everything` of all that is written; None when there is nothing to do."""
        if self._flush_job is not None or self.state not in (LogState.OK, LogState.FULL):
            return None
        segments = [s for s in self._unflushed if everything or s.is_closed_on_disk]
        if not segments:
            return None
        whole = len(segments) == len(self._unflushed)
        end_offset = self._written if whole else self.end_of(segments[-1])
        rows = [(s, s.written, s.is_closed_on_disk) for s in segments]
        self._flush_job = FlushJob(self._fs, self._directory, rows, end_offset)
        return self._flush_job

    def _flushing(self) -> set[Segment]:
        """What jobs that are out open by name. Gone, it would look like a failed flush, which is final."""
        found = {segment for segment, _, _ in self._flush_job.segments} if self._flush_job else set()
        return found.union(self._job.sync_segments) if self._job else found

    def end_of(self, segment: Segment) -> int:
        """Where the segment after one begins, the log's end for the active one (never blocks)."""
        segments = self._segments
        after = bisect_right(segments, segment.base_offset, key=lambda each: each.base_offset)
        return segments[after].base_offset if after < len(segments) else self._end

    def complete_flush(self, job: FlushJob) -> None:
        self._flush_job = None
        self._flushed = max(self._flushed, job.end_offset)
        for segment, written, was_closed in job.segments:
            segment.is_directory_synced = True
            segment.is_sealed = was_closed
            is_done = segment.written == written and segment.is_closed_on_disk == was_closed
            if is_done and segment in self._unflushed:
                self._unflushed.remove(segment)

    def fail_flush(self, job: FlushJob, error: BaseException) -> None:
        """A failed flush is final: the log is FAILED."""
        del job, error
        self._flush_job = None
        self.state = LogState.FAILED
