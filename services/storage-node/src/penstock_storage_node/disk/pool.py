"""The disk pool: threads that do what would block the event loop.

Three lanes, so that reads never wait behind flushes, nor a commit behind the removal of a big
file: commits (write jobs of logs), other changes, reads. Results come back to the loop in
batches: one wake-up per batch of finished jobs, not one per job. A job does file work and
little else: the interpreter lock is the event loop's.

A commit is two steps: write, by whichever thread is free, then flush, by itself or together
with others (see `group_commit`).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Generic, TypeVar

from penstock_storage_node.disk.group_flush import FlushBatcher, GroupFlush
from penstock_storage_node.log import WriteJob

T = TypeVar("T")

READ_THREADS = 2
"""Threads of the read lane."""
CHANGE_THREADS = 2
"""Threads of the lane for changes that are no commits."""

Done = Callable[[Any, BaseException | None], None]


@dataclass(slots=True)
class FlushDone:
    """One flush that was carried out."""

    grouped: bool
    """One `syncfs` for all of `jobs`, in place of one file's fdatasync."""
    jobs: int
    size_bytes: int
    """Written by those jobs."""
    seconds: float
    failed: bool


class _Job:
    __slots__ = ("commit", "done", "error", "result", "run")

    def __init__(self, run: Callable[[], Any], done: Done, commit: WriteJob | None = None) -> None:
        self.run = run
        self.done = done
        self.commit = commit
        self.result: Any = None
        self.error: BaseException | None = None


class DiskPool:
    """Runs jobs off the loop. Use it from the loop's thread only."""

    def __init__(self, threads: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._commits: SimpleQueue[_Job | None] = SimpleQueue()
        self._writes: SimpleQueue[_Job | None] = SimpleQueue()
        self._reads: SimpleQueue[_Job | None] = SimpleQueue()
        self._finished: deque[_Job] = deque()
        self._flushes: deque[FlushDone] = deque()
        self._batcher = FlushBatcher(threads)
        self._waiting: dict[int, _Job] = {}
        """Written commits that wait for a flush, by the id of their WriteJob."""
        self.on_flush: Callable[[FlushDone], None] | None = None
        """Called on the loop for every flush of commits, before its jobs' `done`."""
        self._wake_lock = threading.Lock()
        self._waking = False
        self._stopped = False
        self._commit_threads = threads
        self.jobs_done = 0
        """Jobs whose result has reached the loop."""
        self.jobs_waiting = 0
        """Jobs handed in and not done."""
        self._threads = [
            threading.Thread(target=self._work, args=(queue,), name=f"disk-{lane}-{i}", daemon=True)
            for lane, queue, count in self._lanes(threads)
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _lanes(self, threads: int) -> list[tuple[str, SimpleQueue[_Job | None], int]]:
        return [
            ("commit", self._commits, threads),
            ("change", self._writes, CHANGE_THREADS),
            ("read", self._reads, READ_THREADS),
        ]

    def use_group_flush(self, group: GroupFlush | None) -> None:
        """From now on commits may share a flush; None: each its own."""
        self._batcher.group = group

    @property
    def unflushed_jobs(self) -> int:
        """Commits on their way to the disk."""
        return self._batcher.unflushed_count

    def commit(self, job: WriteJob, done: Done) -> None:
        """Write a job and, if it is durable, flush it; `done(None, error)` is called on the loop."""
        self.jobs_waiting += 1
        self._batcher.on_handed_in()
        self._commits.put(_Job(job.write, done, job))

    def write(self, run: Callable[[], Any], done: Done) -> None:
        """Run any change that is no commit; `done(result, error)` is called on the loop."""
        self.jobs_waiting += 1
        self._writes.put(_Job(run, done))

    def read(self, run: Callable[[], Any], done: Done) -> None:
        """Run a read; `done(result, error)` is called on the loop."""
        self.jobs_waiting += 1
        self._reads.put(_Job(run, done))

    async def run(self, run: Callable[[], T]) -> T:
        """Run a change and wait for its result."""
        waiter: _Waiter[T] = _Waiter(self._loop)
        self.write(run, waiter)
        return await waiter.future

    async def run_read(self, run: Callable[[], T]) -> T:
        """Run a read and wait for its result."""
        waiter: _Waiter[T] = _Waiter(self._loop)
        self.read(run, waiter)
        return await waiter.future

    def stop(self, timeout_s: float = 5.0) -> None:
        """Let the jobs that were handed in run, then end the threads. Blocks."""
        if self._stopped:
            return
        self._stopped = True
        for _, queue, count in self._lanes(self._commit_threads):
            for _ in range(count):
                queue.put(None)
        for thread in self._threads:
            thread.join(timeout_s)
        group, self._batcher.group = self._batcher.group, None
        if group is not None:
            group.close()

    def _work(self, queue: SimpleQueue[_Job | None]) -> None:
        while (job := queue.get()) is not None:
            self._run(job)
            del job  # it may hold a large batch, and this thread may wait for long

    def _run(self, job: _Job) -> None:
        try:
            job.result = job.run()
        except BaseException as e:
            job.error = e
        if job.commit is None:
            self._finish([job])
            return
        if job.error is not None:
            self._batcher.on_not_written()
            self._finish([job])
        else:
            self._waiting[id(job.commit)] = job
            if self._batcher.on_written(job.commit):
                self._flush_alone(job.commit)
        while jobs := self._batcher.take():
            self._flush_together(jobs)

    def _flush_alone(self, commit: WriteJob) -> None:
        started_s = perf_counter()
        error: BaseException | None = None
        try:
            commit.sync()
        except BaseException as e:
            error = e
        took_s = perf_counter() - started_s
        if commit.fsync:
            commit.flush_took_s = took_s
            self._batcher.note(took_s, grouped=False)
            self._flushes.append(FlushDone(False, 1, commit.size_bytes, took_s, error is not None))
        self._settle([commit], error)

    def _flush_together(self, commits: Sequence[WriteJob]) -> None:
        started_s = perf_counter()
        error: BaseException | None = None
        group = self._batcher.group
        try:
            if group is None:
                raise RuntimeError("jobs were gathered without a group flush")
            group.sync()
        except BaseException as e:
            error = e
        took_s = perf_counter() - started_s
        self._batcher.note(took_s, grouped=True)
        self._batcher.on_flushed()
        size_bytes = sum(commit.size_bytes for commit in commits)
        self._flushes.append(FlushDone(True, len(commits), size_bytes, took_s, error is not None))
        for commit in commits:
            commit.flush_took_s = took_s
            commit.release()
        self._settle(commits, error)

    def _settle(self, commits: Sequence[WriteJob], error: BaseException | None) -> None:
        jobs = [self._waiting.pop(id(commit)) for commit in commits]
        for job in jobs:
            job.error = error
        self._finish(jobs)

    def _finish(self, jobs: list[_Job]) -> None:
        self._finished.extend(jobs)
        with self._wake_lock:
            if self._waking:
                return
            self._waking = True
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            return  # the loop has closed: nobody wants results any more

    def _deliver(self) -> None:
        with self._wake_lock:
            self._waking = False
        flushes, finished = self._flushes, self._finished
        while flushes:
            flush = flushes.popleft()
            if self.on_flush is not None:
                self.on_flush(flush)
        while finished:
            job = finished.popleft()
            self.jobs_done += 1
            self.jobs_waiting -= 1
            job.done(job.result, job.error)


class _Waiter(Generic[T]):
    """A future that a job's `done` resolves."""

    __slots__ = ("future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[T] = loop.create_future()

    def __call__(self, result: T, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)
