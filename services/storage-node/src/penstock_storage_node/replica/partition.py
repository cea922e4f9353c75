"""One partition on this node: its replica state machine, its log, and their work in the disk pool.

Rules. One write job per log is out at a time; what is appended meanwhile goes with the next
one (group commit). Operations that need the log to themselves (cut it, close it) wait until no
job and no read is out, and nothing else starts before they are done.
A failed write or flush is final (`LogState.FAILED`): the partition serves no more until
the node has been started anew. A full disk is retried once a second.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicPartition
from penstock_kafka.records.batch import BatchInfo
from penstock_kafka.records.markers import Marker
from penstock_storage_node.disk.pool import DiskPool
from penstock_storage_node.log import (
    Appended,
    Duplicate,
    LogDirectory,
    LogState,
    Origin,
    PartitionLog,
    ReadData,
    ReadJob,
    WriteJob,
)
from penstock_storage_node.metrics import NodeMetrics
from penstock_storage_node.replica.log_access import LogAccess, Verdict, Work
from penstock_storage_node.replica.memory_budget import MemoryBudget
from penstock_storage_node.replica.sizes import ReplicaSizes
from penstock_storage_node.replication.replica import PartitionReplica
from penstock_storage_node.replication.sender import Buffer, ReplicationSession

LOCAL_MARKS_MAX = 16
"""Write jobs or flushes whose end is remembered: acks are for one of the last few."""
FULL_RETRY_MS = 1000
"""How often a log on a full disk tries to write again."""


class DrainPort(Protocol):
    """Whoever carries out what a pass of the event loop has gathered (see `drain`)."""

    def touch(self, partition: Partition) -> None:
        """`partition` has something to write."""

    def schedule(self) -> None:
        """Carry out effects before the loop waits again."""

    def progress(self, partition: Partition, now_ms: int) -> None:
        """The log of `partition` was written or flushed further."""


class FailurePort(Protocol):
    """Whoever judges failures of the disk (see `failures`)."""

    def write_failed(self, partition: Partition, error: BaseException) -> None:
        """A write, a flush or a change of `partition`'s files failed."""

    def read_failed(self, partition: Partition, error: BaseException) -> BaseException:
        """A read failed; returns what to tell the reader."""


@dataclass(frozen=True, slots=True)
class PartitionPorts:
    """What all partitions of a node work with."""

    pool: DiskPool
    directory: LogDirectory
    clock_ms: Callable[[], int]
    clock_s: Callable[[], float]
    metrics: NodeMetrics
    budget: MemoryBudget
    drain: DrainPort
    failures: FailurePort
    sizes: ReplicaSizes


class Partition:
    """Shell of one replica. Lives on the event loop."""

    __slots__ = (
        "_exclusive",
        "_flush_begun_ms",
        "_ports",
        "_retry_at_ms",
        "_share",
        "_start_change",
        "_swapping",
        "access",
        "compacting",
        "key",
        "local_marks",
        "log",
        "name",
        "readers",
        "replica",
        "saved_log_start_offset",
        "sessions",
        "traffic",
    )

    def __init__(self, ports: PartitionPorts, replica: PartitionReplica, log: PartitionLog) -> None:
        self.key: TopicPartition = replica.key
        self.name = replica.name
        self.replica = replica
        self.log = log
        self.readers: dict[Callable[[], None], None] = {}
        """Called, in the order in which they came, when the high watermark rises or leadership ends."""
        self.sessions: dict[ReplicationSession, None] = {}
        """Followers' sessions while this node leads."""
        self.access = LogAccess()
        self.local_marks: deque[tuple[int, float, float]] = deque(maxlen=LOCAL_MARKS_MAX)
        """While this node leads: (effective end, when it came to be), for timing alone."""
        self.traffic = ports.metrics.topics.of(replica.topic)
        self._ports = ports
        self._share = ports.budget.share(lambda: log.staged_bytes, lambda: self.access.alone is not None)
        self._flush_begun_ms = 0
        self._exclusive: deque[
            tuple[Callable[[], Any], asyncio.Future[Any], Callable[[Any], None] | None]
        ] = deque()
        self._retry_at_ms = 0
        self._swapping: asyncio.Future[None] | None = None
        self._start_change: asyncio.Future[None] | None = None
        self.saved_log_start_offset = log.log_start_offset
        """Log start that is on disk."""
        self.compacting = False
        """A compaction reads closed segments: retention leaves them alone meanwhile."""

    # -- writing ------------------------------------------------------------------

    def append(
        self, batch: Buffer, info: BatchInfo, now_ms: int, origin: Origin = Origin.CLIENT
    ) -> Appended | Duplicate:
        """Append as leader: stage for the disk, push to followers. The caller has checked the
        leadership and the batch. Raises PenstockError of the producer state or the log."""
        log = self.log
        old_end = log.log_end_offset
        result = log.append_as_leader(memoryview(batch), info, self.replica.leader_epoch, origin)
        if isinstance(result, Appended):
            self._push(result, old_end, now_ms)
        return result

    def append_marker(self, producer_id: int, producer_epoch: int, marker: Marker, now_ms: int) -> Appended:
        """As `append`, of a marker that ends a producer's transaction. The caller has checked its fences too."""
        log = self.log
        old_end = log.log_end_offset
        result = log.append_marker(producer_id, producer_epoch, marker, self.replica.leader_epoch)
        self._push(result, old_end, now_ms)
        return result

    def _push(self, appended: Appended, old_end: int, now_ms: int) -> None:
        leadership = self.replica.leadership
        if leadership is not None:
            leadership.on_append(old_end, now_ms)
        self._share.update()
        if self.sessions:
            for session in self.sessions:
                session.sender.on_append(
                    session,
                    appended.base_offset,
                    appended.last_offset + 1,
                    appended.data,
                    appended.size_bytes,
                )
        self._ports.drain.touch(self)

    def count_staged(self) -> None:
        """The log was appended to by another way than `append`."""
        self._share.update()

    def note_size(self) -> None:
        """The log has other files, or more or less in them, than before."""
        self._ports.sizes.note(self.key)

    def forget_staged(self) -> None:
        """The log is deleted: nothing of it will be written any more."""
        self._share.close()

    def validate(self) -> None:
        """For tests and the simulator: raises InvariantBroken when log, role or access contradict themselves."""
        self.access.validate()
        self.replica.validate()
        if self.access.alone is None:  # else a thread may be at it
            self.log.validate()

    def kick(self) -> None:
        """Start whatever may start now."""
        access = self.access
        if not access.may_write:
            work = access.next_alone()
            if work is not None:
                self._start_alone(work)
            return
        retry = False
        if self.log.state is LogState.FULL:
            retry = self._ports.clock_ms() >= self._retry_at_ms
            if not retry:
                return
        job = self.log.next_job(retry=retry)
        if job is not None:
            access.is_writing = True
            started_s = self._ports.clock_s()
            self._ports.pool.commit(job, lambda _, error: self._on_written(job, error, started_s))

    def _on_written(self, job: WriteJob, error: BaseException | None, started_s: float) -> None:
        self.access.is_writing = False
        now_ms = self._ports.clock_ms()
        if error is None:
            self.log.complete(job)
            self.note_size()
            self._share.update()
            done_s = self._ports.clock_s()
            self._ports.metrics.observe_write_job(done_s - started_s)
            self._mark_local(done_s, job.flush_took_s)
            self._ports.drain.progress(self, now_ms)
            if not job.fsync:
                self._flush_if_many()
        else:
            self.log.fail(job, error)
            self._retry_at_ms = now_ms + FULL_RETRY_MS
            self._ports.failures.write_failed(self, error)
        self.kick()

    def _mark_local(self, now_s: float, flush_took_s: float = 0.0) -> None:
        if self.replica.leadership is not None:
            self.local_marks.append((self.replica.state.effective_end_offset, now_s, flush_took_s))

    def local_done(self, end_offset: int) -> tuple[float, float]:
        """When this node, as leader, had all below `end_offset` as its topic's durability asks for, and how long the
        flush just before took, in s; 0: forgotten."""
        for done_offset, at_s, flush_took_s in self.local_marks:
            if done_offset >= end_offset:
                return at_s, flush_took_s
        return 0.0, 0.0

    def flush(self, *, everything: bool) -> None:
        """Flush written data of a log that does not flush with each write."""
        if self.access.ask(Work.FLUSH) is not Verdict.RUN:
            return
        job = self.log.next_flush_job(everything=everything)
        if job is None:
            return
        self.access.is_flushing = True
        self._flush_begun_ms = self._ports.clock_ms()

        def done(_: object, error: BaseException | None) -> None:
            self.access.is_flushing = False
            if error is None:
                self.log.complete_flush(job)
                self._mark_local(self._ports.clock_s())
                self._ports.drain.progress(self, self._ports.clock_ms())
                self._flush_if_many()  # what was written meanwhile
            else:
                self.log.fail_flush(job, error)
                self._ports.failures.write_failed(self, error)
            self.kick()

        self._ports.pool.write(job.run, done)

    def _flush_if_many(self) -> None:
        """flush.messages. To be called whenever a reason not to flush has gone, too."""
        log = self.log
        if log.written_offset - log.flushed_offset >= log.settings.flush_messages:
            self.flush(everything=True)

    def flush_if_due(self, now_ms: int) -> None:
        """flush.ms, where a log does not flush with each write."""
        log = self.log
        if log.flushed_offset < log.written_offset and now_ms - self._flush_begun_ms >= log.settings.flush_ms:
            self.flush(everything=True)

    def exclusive(self, run: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run `run` in the pool while nothing else touches the log; in order of the calls."""
        return self._enqueue(run, None)

    def _enqueue(self, run: Callable[[], Any], apply: Callable[[Any], None] | None) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._exclusive.append((run, future, apply))
        self.access.stand_in_line(Work.ALONE if apply is None else Work.SWAP)
        self.kick()
        return future

    async def swap(self, run: Callable[[], Any], apply: Callable[[Any], None]) -> None:
        """Exchange files of closed segments: `run` alone in the pool, then `apply` (with its result) on the loop.

        Unlike during `exclusive` the partition serves all the while: reads of files wait a moment.
        """
        over = self._swapping = asyncio.get_running_loop().create_future()
        swapped = self._enqueue(run, apply)

        def finish(done: asyncio.Future[Any]) -> None:
            done.exception()  # whoever waits for `swap` hears of it, if anybody does
            self._swapping = None
            over.set_result(None)

        swapped.add_done_callback(finish)
        await asyncio.shield(swapped)

    def _start_alone(self, work: Work) -> None:
        run, future, apply = self._exclusive.popleft()
        self.log.is_swapping = work is Work.SWAP

        def done(result: Any, error: BaseException | None) -> None:
            if error is None and apply is not None:
                apply(result)
            self.log.is_swapping = False
            self.access.end_alone()
            self.note_size()
            self._share.update()
            if error is None:
                if not future.done():
                    future.set_result(result)
            else:
                if not isinstance(error, PenstockError):
                    self._ports.failures.write_failed(self, error)
                if not future.done():
                    future.set_exception(error)
            # What waits for this future runs before anything else may start.
            asyncio.get_running_loop().call_soon(self._resume)

        self._ports.pool.write(run, done)

    def _resume(self) -> None:
        self.kick()
        self._flush_if_many()

    @property
    def busy(self) -> bool:
        """True while the log belongs to an exclusive operation, or one waits."""
        return self.access.is_busy

    @property
    def closed(self) -> bool:
        """The node is no replica of it any more."""
        return self.access.is_closed

    def close(self) -> None:
        """Nothing but what ends the partition starts from now on."""
        self.access.is_closed = True

    # -- reading ------------------------------------------------------------------

    def tell_damage(self) -> None:
        """What opening or cutting the log has met counts as if a read had; whenever it may be time to act on it."""
        damage = self.log.damage
        if damage is not None and not self.access.is_closed:
            self._ports.failures.read_failed(self, damage)

    def read(
        self, offset: int, max_bytes: int, upper_offset: int, *, min_one: bool = True
    ) -> ReadData | ReadJob:
        """As `PartitionLog.read`; a ReadJob goes to `run_read`."""
        if self.access.ask(Work.READ) is Verdict.REFUSE:
            raise PenstockError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name} changes its role just now")
        try:
            return self.log.read(offset, max_bytes, upper_offset, min_one=min_one)
        except PenstockError as e:
            raise self._ports.failures.read_failed(self, e) from e.__cause__

    def start_read(self, job: ReadJob, done: Callable[[ReadData, BaseException | None], None]) -> None:
        """Run a read in the pool."""
        if self._swapping is not None:
            self._swapping.add_done_callback(lambda _: self.start_read(job, done))
            return
        self.access.looking += 1

        def finish(result: ReadData, error: BaseException | None) -> None:
            self._end_look()
            done(result, None if error is None else self._ports.failures.read_failed(self, error))

        self._ports.pool.read(job.run, finish)

    async def run_read(self, job: ReadJob) -> ReadData:
        """Run a read in the pool and wait for it."""
        data: ReadData = await self.look_up(job.run)
        return data

    async def look_up(self, run: Callable[[], Any]) -> Any:
        """Run anything that only reads this log in the pool."""
        while self._swapping is not None:
            await asyncio.shield(self._swapping)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(result: Any, error: BaseException | None) -> None:
            if future.cancelled():  # whoever waited is gone; the thread was at the files until now
                self._end_look()
                if error is not None:
                    self._ports.failures.read_failed(self, error)
            elif error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self.access.looking += 1
        self._ports.pool.read(run, done)
        try:
            return await future
        except (PenstockError, OSError) as e:
            raise self._ports.failures.read_failed(self, e) from e.__cause__
        finally:
            if not future.cancelled():
                self._end_look()

    def _end_look(self) -> None:
        self.access.looking -= 1
        if self.access.has_waiting:
            self.kick()

    def beside(self, run: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run work on files of closed segments in the pool, begun before this returns: whatever needs the
        log for itself, or exchanges files, waits until it is done."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.access.looking += 1

        def done(result: Any, error: BaseException | None) -> None:
            self._end_look()
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(self._ports.failures.read_failed(self, error))

        self._ports.pool.write(run, done)
        return future

    # -- log start ----------------------------------------------------------------

    def raise_log_start(self, offset: int) -> None:
        """As leader: hide what lies before `offset`, here and on the followers."""
        if offset <= self.log.log_start_offset:
            return
        self.log.raise_log_start(offset)
        for session in self.sessions:
            session.sender.mark(session)
        self._ports.drain.schedule()

    async def save_log_start(self) -> None:
        """Put the log start on disk. Raises OSError."""
        log, ports = self.log, self._ports
        offset = log.log_start_offset
        await ports.pool.run(lambda: ports.directory.offsets.write_log_start(log))
        self.saved_log_start_offset = max(self.saved_log_start_offset, offset)

    async def log_start_change(self) -> None:
        """Wait until a replica's log start has changed, or the leadership has."""
        if self._start_change is None:
            self._start_change = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._start_change)

    def wake_log_start(self) -> None:
        """A replica's log start has changed: whoever waits looks again."""
        change, self._start_change = self._start_change, None
        if change is not None:
            change.set_result(None)

    # -- roles --------------------------------------------------------------------

    def wake_readers(self) -> None:
        """Readers that wait for records, or that must hear of lost leadership, look again."""
        readers, self.readers = self.readers, {}
        for reader in readers:
            reader()

    def end_sessions(self, code: ErrorCode, message: str) -> None:
        """Followers must open anew, here or elsewhere."""
        for session in list(self.sessions):
            session.sender.end(session, code, message)
        self.sessions.clear()


async def wait_for_change(partitions: Sequence[Partition], deadline_s: float) -> None:
    """Until a high watermark of them rises, a leadership ends, or the loop's clock passes `deadline_s`."""
    loop = asyncio.get_running_loop()
    changed: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not changed.done():
            changed.set_result(None)

    timer = loop.call_at(deadline_s, wake)
    for partition in partitions:
        partition.readers[wake] = None
    try:
        await changed
    finally:
        timer.cancel()
        for partition in partitions:
            partition.readers.pop(wake, None)


class LeadershipWatcher(Protocol):
    """Whoever lives in partitions that this node leads (see `groups.host`)."""

    def on_lead(self, partition: Partition) -> None:
        """Leadership of `partition` has begun."""

    def on_stop(self, partition: Partition) -> None:
        """Its role ends, whatever it was; before waiting writes are answered."""
