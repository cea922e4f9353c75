"""The disk pool: threads that do what would block the event loop.

Two lanes, so that reads never wait behind flushes and the other way round. Results come
back to the loop in batches: one wake-up per batch of finished jobs, not one per job. A job
does file work and little else: the interpreter lock is the event loop's.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")

READ_THREADS = 2
"""Threads of the read lane."""

Done = Callable[[Any, BaseException | None], None]


class _Job:
    __slots__ = ("done", "error", "result", "run")

    def __init__(self, run: Callable[[], Any], done: Done) -> None:
        self.run = run
        self.done = done
        self.result: Any = None
        self.error: BaseException | None = None


class DiskPool:
    """Runs jobs off the loop. Use it from the loop's thread only."""

    def __init__(self, threads: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._writes: SimpleQueue[_Job | None] = SimpleQueue()
        self._reads: SimpleQueue[_Job | None] = SimpleQueue()
        self._finished: deque[_Job] = deque()
        self._wake_lock = threading.Lock()
        self._waking = False
        self._stopped = False
        self.jobs_done = 0
        """Jobs whose result has reached the loop."""
        self.jobs_waiting = 0
        """Jobs handed in and not done."""
        self._threads = [
            threading.Thread(target=self._work, args=(queue,), name=f"disk-{lane}-{i}", daemon=True)
            for lane, queue, count in (("write", self._writes, threads), ("read", self._reads, READ_THREADS))
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def write(self, run: Callable[[], Any], done: Done) -> None:
        """Run a write, a flush or any change; `done(result, error)` is called on the loop."""
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
        for thread in self._threads:
            (self._reads if "-read-" in thread.name else self._writes).put(None)
        for thread in self._threads:
            thread.join(timeout_s)

    def _work(self, queue: SimpleQueue[_Job | None]) -> None:
        while (job := queue.get()) is not None:
            try:
                job.result = job.run()
            except BaseException as e:
                job.error = e
            self._finished.append(job)
            with self._wake_lock:
                if self._waking:
                    continue
                self._waking = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                return  # the loop has closed: nobody wants results any more

    def _deliver(self) -> None:
        with self._wake_lock:
            self._waking = False
        finished = self._finished
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
