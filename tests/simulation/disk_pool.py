"""The disk pool without threads: each job runs as one event, after the time that a disk takes.

Who flushes what is decided by the shipped `group_commit.Gathering`; a commit is two events
(write, flush), so a crash may come between. A disk may be slow, or hang.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock_storage_node.disk.group_flush import FlushBatcher, GroupFlush
from penstock_storage_node.disk.pool import FlushDone
from penstock_storage_node.log import WriteJob

if TYPE_CHECKING:
    from simulation.process import Process

T = TypeVar("T")
Done = Callable[[Any, BaseException | None], None]

WRITE_US_MAX = 500
SYNC_US_MIN, SYNC_US_MAX = 200, 4_000
THREADS = 4


class SimDiskPool:
    """Stands in for `DiskPool`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._rng = process.world.rng
        self._batcher = FlushBatcher(THREADS)
        self._waiting: dict[int, Done] = {}
        self.on_flush: Callable[[FlushDone], None] | None = None
        self.jobs_done = 0
        self.jobs_waiting = 0
        self.slowness = 1.0
        self.is_hung = False
        self._hanging: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    # --- the interface of DiskPool

    def use_group_flush(self, group: GroupFlush | None) -> None:
        self._batcher.group = group

    @property
    def unflushed_jobs(self) -> int:
        return self._batcher.unflushed_count

    def commit(self, job: WriteJob, done: Done) -> None:
        self.jobs_waiting += 1
        self._batcher.on_handed_in()
        self._after(self._rng.random() * WRITE_US_MAX, self._write_commit, job, done)

    def write(self, run: Callable[[], Any], done: Done) -> None:
        self.jobs_waiting += 1
        self._after(self._sync_us(), self._run, run, done)

    def read(self, run: Callable[[], Any], done: Done) -> None:
        self.jobs_waiting += 1
        self._after(self._rng.random() * WRITE_US_MAX, self._run, run, done)

    async def run(self, run: Callable[[], T]) -> T:
        future: asyncio.Future[T] = self._process.loop.create_future()
        self.write(run, _setter(future))
        return await future

    async def run_read(self, run: Callable[[], T]) -> T:
        future: asyncio.Future[T] = self._process.loop.create_future()
        self.read(run, _setter(future))
        return await future

    def stop(self, timeout_s: float = 5.0) -> None:
        del timeout_s

    # --- faults

    def hang(self) -> None:
        """No job makes progress."""
        self.is_hung = True

    def unhang(self) -> None:
        """They go on."""
        self.is_hung = False
        hanging, self._hanging = self._hanging, []
        for call, args in hanging:
            self._after(self._sync_us(), call, *args)

    # --- inside

    def _sync_us(self) -> float:
        return SYNC_US_MIN + self._rng.random() * (SYNC_US_MAX - SYNC_US_MIN)

    def _after(self, delay_us: float, call: Callable[..., object], *args: Any) -> None:
        self._process.after(int(delay_us * self.slowness) + 1, self._start, call, args)

    def _start(self, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        if self.is_hung:
            self._hanging.append((call, args))
            return
        self._process.world.current = self._process
        call(*args)

    def _run(self, run: Callable[[], Any], done: Done) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = run()
        except Exception as e:
            error = e
        self._finish(done, result, error)

    def _write_commit(self, job: WriteJob, done: Done) -> None:
        try:
            job.write()
        except Exception as e:
            self._batcher.on_not_written()
            self._take()
            self._finish(done, None, e)
            return
        self._waiting[id(job)] = done
        if self._batcher.on_written(job):
            delay_us = self._sync_us()
            self._after(delay_us, self._flush_alone, job, delay_us)
        self._take()

    def _take(self) -> None:
        jobs = self._batcher.take()
        if jobs:
            delay_us = self._sync_us() * 1.5
            self._after(delay_us, self._flush_together, jobs, delay_us)

    def _flush_alone(self, job: WriteJob, took_us: float) -> None:
        error: BaseException | None = None
        try:
            job.sync()
        except Exception as e:
            error = e
        if job.fsync:
            self._batcher.note(took_us / 1e6, grouped=False)
        self._take()
        self._finish(self._waiting.pop(id(job)), None, error)

    def _flush_together(self, jobs: Sequence[WriteJob], took_us: float) -> None:
        error: BaseException | None = None
        group = self._batcher.group
        assert group is not None
        try:
            group.sync()
        except Exception as e:
            error = e
        self._batcher.note(took_us / 1e6, grouped=True)
        self._batcher.on_flushed()
        self._take()
        for job in jobs:
            job.release()
            self._finish(self._waiting.pop(id(job)), None, error)

    def _finish(self, done: Done, result: Any, error: BaseException | None) -> None:
        self._process.loop.call_now(self._deliver, done, result, error)

    def _deliver(self, done: Done, result: Any, error: BaseException | None) -> None:
        self.jobs_done += 1
        self.jobs_waiting -= 1
        done(result, error)


def _setter(future: asyncio.Future[Any]) -> Done:
    def done(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    return done
