"""Staged data to disk: write and flush jobs in order.

At most one write job and one flush job of a log are out at a time. What a job found out
is applied here when its `run` has returned, so a reader on the loop never sees an offset
as written or flushed that is not. In durability "fsync" a job that is complete is flushed;
in "replicated" it is only written, and `next_flush_job` flushes segments after they were
closed.

Everything is for the loop, but for `write_all` and `finish`, which run in the pool and need
the log for themselves: no job out, nobody appending or reading.
"""

from __future__ import annotations

from penstock_core.errors import ErrorCode, InvariantBroken, PenstockError
from penstock_storage_node.log import recovery
from penstock_storage_node.log.aborted_index import ENTRY_BYTES
from penstock_storage_node.log.checkpoints import encode_epochs
from penstock_storage_node.log.jobs import (
    FULL_ERRORS,
    FlushJob,
    WriteJob,
    WritePlan,
    WriteStep,
    create_with,
    remove_marker,
    save_indexes,
    sync_segment,
)
from penstock_storage_node.log.ports import LogPorts
from penstock_storage_node.log.segment import Segment, file_stem
from penstock_storage_node.log.state import Appended, LogData, LogState


class LogWriter:
    """The write and flush jobs of one log."""

    __slots__ = ("_checkpoints", "_data", "_flush_job", "_fs", "_is_marked", "_job")

    def __init__(self, data: LogData, ports: LogPorts, *, is_marked: bool) -> None:
        self._data = data
        self._fs = ports.fs
        self._checkpoints = ports.checkpoints
        self._job: WriteJob | None = None
        self._flush_job: FlushJob | None = None
        self._is_marked = is_marked
        """UNFLUSHED_MARKER is there: the files may hold acknowledged data that no flush covers."""

    @property
    def is_busy(self) -> bool:
        """A job is out: nothing that needs the log for itself may start."""
        return self._job is not None or self._flush_job is not None

    def require_alone(self, what: str) -> None:
        """Raises InvariantBroken while a job is out (loop or pool)."""
        if self.is_busy:
            raise InvariantBroken(f"{what} of {self._data} while a job is out")

    # ------------------------------------------------------------------ write jobs (loop)

    def next_job(self, *, retry: bool = False) -> WriteJob | None:
        """See `PartitionLog.next_job`."""
        data = self._data
        if self._job is not None or not data.staged:
            return None
        if data.state is not LogState.OK and not (retry and data.state is LogState.FULL):
            return None
        data.in_flight, data.staged = data.staged, []
        self._job = job = WriteJob(self._fs, self._plan(data.in_flight), self._checkpoints)
        return job

    def _plan(self, chunks: list[Appended]) -> WritePlan:
        data = self._data
        steps: list[WriteStep] = []
        step: WriteStep | None = None
        for chunk in chunks:
            if step is None or step.segment is not chunk.segment:
                if step is not None:
                    step.plan_indexes(closes=True)
                step = self._first_step(chunk.segment, steps) if step is None else WriteStep(chunk.segment, 0)
                step.snapshot = data.snapshots.get(chunk.segment.base_offset)
                steps.append(step)
            step.buffers.extend(chunk.data)
            step.size += chunk.size_bytes
        if step is not None:
            step.plan_indexes(closes=False)
        epochs = None
        if data.epochs.is_dirty:
            data.epochs.is_dirty = False
            epochs = encode_epochs(data.epochs.entries)
        return WritePlan(
            data.directory,
            steps,
            base_offset=chunks[0].base_offset,
            end_offset=chunks[-1].last_offset + 1,
            fsync=data.settings.is_fsync,
            unflushed=data.unflushed[:],
            epochs=epochs,
            is_marked=self._is_marked,
            marks_gaps=data.has_new_gaps and not data.gaps_are_known,
        )

    def _first_step(self, segment: Segment, steps: list[WriteStep]) -> WriteStep:
        """The first step of a job; the segment before it is closed here when the roll came first."""
        segments = self._data.segments
        if not segment.is_on_disk and len(segments) > 1:
            index = segments.index(segment) - 1
            if index >= 0:
                closing = WriteStep(segments[index], segments[index].written)
                closing.plan_indexes(closes=True)
                steps.append(closing)
        return WriteStep(segment, segment.written)

    def complete(self, job: WriteJob) -> None:
        """Apply a job whose `run` returned."""
        self._take_back(job)
        data, plan = self._data, job.plan
        for step in plan.steps:
            segment = step.segment
            segment.written = step.position + step.size
            segment.is_on_disk = True
            segment.is_directory_synced = segment.is_directory_synced or plan.fsync
            data.snapshots.pop(segment.base_offset, None)
            segment.aborted.mark_saved(len(step.aborted) // ENTRY_BYTES)
            if step.offset_entries or step.closes:
                segment.offset_index.mark_saved(step.offset_entries)
                segment.time_index.mark_saved(step.time_entries)
            if step.closes:
                segment.offset_index.release()
                self._fs.aborted_rows.forget(segment.aborted.path)  # of a start, when it had fewer
                segment.aborted.release()
                segment.is_closed_on_disk = True
                segment.is_sealed = plan.fsync
            if not plan.fsync and (step.size or step.closes) and segment not in data.unflushed:
                data.unflushed.append(segment)
        data.staged_bytes -= job.size_bytes
        data.in_flight = []
        if plan.marks_gaps:
            data.has_new_gaps, data.gaps_are_known = False, True
        data.written = plan.end_offset
        if plan.fsync:
            data.flushed = plan.end_offset
            for segment in data.unflushed:
                segment.is_sealed = segment.is_closed_on_disk
            data.unflushed.clear()
        if data.state is LogState.FULL:
            data.state = LogState.OK

    def fail(self, job: WriteJob, error: BaseException) -> None:
        """Apply a job whose `run` raised: the log becomes FULL (data stay staged) or FAILED."""
        self._take_back(job)
        data, outcome = self._data, job.outcome
        data.staged = data.in_flight + data.staged
        data.in_flight = []
        if job.plan.epochs is not None:
            data.epochs.is_dirty = True
        is_full = isinstance(error, OSError) and error.errno in FULL_ERRORS
        # A flush that failed is final whatever its reason: the cache may have let the pages go.
        is_full = is_full and outcome.is_cut_back and not outcome.is_written
        if data.state in (LogState.OK, LogState.FULL):
            data.state = LogState.FULL if is_full else LogState.FAILED

    def _take_back(self, job: WriteJob) -> None:
        if job is not self._job:
            raise InvariantBroken(f"{self._data} got back a write job that it did not give out")
        self._job = None
        self._is_marked = job.outcome.is_marked

    # ------------------------------------------------------------------ flush jobs (loop)

    def next_flush_job(self, *, everything: bool = False) -> FlushJob | None:
        """See `PartitionLog.next_flush_job`."""
        data = self._data
        if self._flush_job is not None or data.state not in (LogState.OK, LogState.FULL):
            return None
        segments = [s for s in data.unflushed if everything or s.is_closed_on_disk]
        if not segments and everything and data.flushed < data.written:
            # Retention has let go of all that no flush covered: what is left to flush is where the log ends.
            segments = [s for s in data.segments if s.is_on_disk][-1:]
        if not segments:
            return None
        whole = len(segments) >= len(data.unflushed)
        end_offset = data.written if whole else data.end_of(segments[-1])
        rows = [(s, s.written, s.is_closed_on_disk) for s in segments]
        self._flush_job = FlushJob(self._fs, data.directory, rows, end_offset)
        return self._flush_job

    def flushing(self) -> set[Segment]:
        """What jobs that are out open by name. Gone, it would look like a failed flush, which is final."""
        found = {segment for segment, _, _ in self._flush_job.segments} if self._flush_job else set()
        return found.union(self._job.sync_segments) if self._job else found

    def complete_flush(self, job: FlushJob) -> None:
        """Apply a flush job whose `run` returned."""
        data = self._data
        self._flush_job = None
        data.flushed = max(data.flushed, job.end_offset)
        for segment, written, was_closed in job.segments:
            segment.is_directory_synced = True
            segment.is_sealed = was_closed
            is_done = segment.written == written and segment.is_closed_on_disk == was_closed
            if is_done and segment in data.unflushed:
                data.unflushed.remove(segment)

    def fail_flush(self, job: FlushJob, error: BaseException) -> None:
        """A failed flush is final: the log is FAILED."""
        del job, error
        self._flush_job = None
        self._data.state = LogState.FAILED

    # ------------------------------------------------------------------ alone (pool)

    def write_all(self) -> bool:
        """Write what is staged, here and now. False: the disk is full, and it stays staged. Raises OSError."""
        while (job := self.next_job(retry=True)) is not None:
            try:
                job.run()
            except OSError as error:
                self.fail(job, error)
                raise
            self.complete(job)
        return not self._data.staged

    def finish(self) -> None:
        """Write and flush everything, indexes and producers included. Raises OSError, PenstockError."""
        data, fs = self._data, self._fs
        if data.state is LogState.FAILED:
            raise data.refusal()
        self.write_all()
        last = data.segments[-1]
        last.close_time_index()
        save_indexes(fs, last, last.offset_index.count, last.time_index.count)
        for segment in (*(s for s in data.unflushed if s is not last), last):
            sync_segment(fs, segment, indexes=True)
        if data.end > data.segments[0].base_offset and data.damage is None:
            path = f"{data.directory}/{file_stem(data.end)}.snapshot"
            create_with(fs, path, data.producers.encode_snapshot(), sync=True)
        recovery.save_epochs(fs, data.directory, data.epochs)
        if data.epochs.is_dirty:
            raise PenstockError(ErrorCode.KAFKA_STORAGE_ERROR, f"disk of {data} is full: not closed cleanly")
        fs.sync_directory(data.directory)
        if self._is_marked:
            remove_marker(fs, data.directory)
            self._is_marked = False
        data.unflushed = []
        data.flushed = data.end
