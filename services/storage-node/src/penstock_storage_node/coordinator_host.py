"""The shell around coordinators: one for each partition of their topic that this node leads.

Rules: a coordinator is made when leadership is taken and reads its partition from log start to the end that
the log had then (CoordinatorLoaderImpl); until it is through and the high watermark covers that end, whoever asks
is answered COORDINATOR_LOAD_IN_PROGRESS. It is closed in the same step in which leadership ends. Its writes
are appended like acks=all and answered through `Leadership.wait_all`; that wait has no deadline,
since a coordinator must know whether a record counts. Clients have theirs (see `kafka`).

Reading records is pure Python: it goes in slices of at most a millisecond, so that the loop stays
free (rule "The loop stays free").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from penstock_core.errors import ErrorCode, PenstockError
from penstock_kafka.records.batch import BatchInfo, iter_batches, read_header
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.read import read_records
from penstock_kafka.wire.groups import group_partition
from penstock_kafka.wire.primitives import Malformed
from penstock_runtime.lifecycle import Lifecycle
from penstock_storage_node.log import LogState, Origin, ReadJob
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replication.leadership import Leadership

TICK_MS = 50
RUNG_AT_ONCE = 10
"""Timers of one coordinator that ring before others do anything."""
RUNG_PAUSE_S = 0.002
LOAD_READ_BYTES = 256 * 1024
LOAD_SLICE_S = 0.001
LOAD_RETRY_S = 0.5
WRITES_MAX = 20_000
"""Writes of one coordinator that wait for the high watermark; beyond it requests are refused."""
_NEVER_MS = 1 << 62
_LOOK_MS = 1_000
"""Nothing waits longer without a look: the clock need not be the event loop's."""

Done = Callable[[ErrorCode], None]


class Coordinator(Protocol):
    """What lives in a partition."""

    @property
    def closed(self) -> bool:
        """Leadership is over."""

    @property
    def next_timer_ms(self) -> int:
        """`tick` has nothing to do before that time."""

    def tell_earlier(self, told: Callable[[], None]) -> None:
        """Have `told` called whenever `next_timer_ms` comes earlier than it was."""

    def tick(self, most: int | None = None) -> int:
        """Ring the timers that are due, `most` of them; how many rang."""

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take in one record. Raises Malformed for damage."""

    def close(self) -> None:
        """Leadership is lost."""


S = TypeVar("S", bound=Coordinator)


class _Waiter:
    """One write of a coordinator, waiting for the high watermark."""

    __slots__ = ("_done", "_log")

    def __init__(self, log: CoordinatorLog, done: Done) -> None:
        self._log = log
        self._done = done

    def acknowledge(self, error: ErrorCode) -> None:
        self._log.waiting -= 1
        # There is no deadline, so "timed out" says that leadership ended.
        if error is ErrorCode.REQUEST_TIMED_OUT:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
            error = ErrorCode.NONE  # it is below the high watermark all the same
        try:
            self._done(error)
        except Exception as e:
            self._log.lifecycle.fail_with(e)


class _OnceCommitted:
    """The end of a log that was read, waiting for the high watermark; or for the end of the leadership."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def acknowledge(self, error: ErrorCode) -> None:
        del error  # the coordinator is closed in the step in which leadership ends
        if not self.over.done():
            self.over.set_result(None)


class CoordinatorLog:
    """What a coordinator has of its partition: one term of leading it."""

    def __init__(self, manager: ReplicaManager, partition: Partition, leadership: Leadership) -> None:
        self._manager = manager
        self._partition = partition
        self._leadership = leadership
        self._start_end = partition.log.log_end_offset
        self.lifecycle = manager.lifecycle
        self.waiting = 0

    @property
    def record_bytes_max(self) -> int:
        """The largest batch that the partition takes."""
        return self._partition.replica.settings.max_message_bytes

    def append(self, records: Sequence[tuple[bytes, bytes | None]], done: Done) -> int:
        """Append in one batch, and say where it begins; `done` is called once the high watermark covers it, or
        leadership is over. Raises PenstockError, and then nothing was written."""
        self._require_writable()
        now_ms = self._manager.wall_ms()
        batch = build_batch([NewRecord(key, value, now_ms) for key, value in records])
        return self._write(batch, read_header(batch), done, Origin.CLIENT)

    def _require_writable(self) -> None:
        """Raises PenstockError where nothing can be appended."""
        partition, leadership = self._partition, self._leadership
        replica = partition.replica
        if replica.leadership is not leadership or partition.closed:
            raise PenstockError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{replica.name} is led elsewhere")
        if partition.log.state is LogState.FAILED:
            raise PenstockError(ErrorCode.KAFKA_STORAGE_ERROR, f"the disk under {replica.name} failed")
        if leadership.under_min_isr or self.waiting >= WRITES_MAX:
            raise PenstockError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{replica.name} has {len(leadership.isr)} replicas in sync and {self.waiting} writes waiting",
            )

    def _write(self, batch: bytes, info: BatchInfo, done: Done, origin: Origin) -> int:
        partition, leadership, manager = self._partition, self._leadership, self._manager
        replica = partition.replica
        if len(batch) > replica.settings.max_message_bytes:
            raise PenstockError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{len(batch)} bytes, max.message.bytes of {replica.topic} is"
                f" {replica.settings.max_message_bytes}",
            )
        appended = partition.append(batch, info, manager.clock_ms(), origin)
        self.waiting += 1
        leadership.wait_all(appended.last_offset + 1, _NEVER_MS, _Waiter(self, done))
        if not manager.drain.effects.empty:
            manager.drain.schedule()
        return appended.base_offset

    def when_start_covered(self, done: Done) -> None:
        """`done(NONE)` once the high watermark has reached the end that the log had when leadership began."""
        if self._partition.replica.high_watermark >= self._start_end:
            done(ErrorCode.NONE)
            return
        self.waiting += 1
        self._leadership.wait_all(self._start_end, _NEVER_MS, _Waiter(self, done))


class Hosted(Generic[S]):
    """A coordinator with its place. `ready` once its log is read."""

    __slots__ = ("leadership", "partition", "ready", "shard")

    def __init__(self, partition: Partition, leadership: Leadership, shard: S) -> None:
        self.partition = partition
        self.leadership = leadership
        self.shard = shard
        self.ready = False


class CoordinatorHost(Generic[S]):
    """All coordinators of one topic on this node."""

    log_class: type[CoordinatorLog] = CoordinatorLog
    topic: ClassVar[str]
    what: ClassVar[str]
    """What is coordinated, as in "group"."""

    def __init__(self, manager: ReplicaManager, lifecycle: Lifecycle, tick_ms: int = TICK_MS) -> None:
        """`tick_ms`: timers ring together that are due within so long."""
        self._manager = manager
        self._lifecycle = lifecycle
        self._clock_s = manager.clocks.s
        self._tick_ms = tick_ms
        self._earlier = asyncio.Event()
        """Something may ring earlier than it seemed."""
        self._hosted: dict[int, Hosted[S]] = {}
        self.loaded_records = 0
        self.bad_records = 0

    # -- for each kind ------------------------------------------------------------------------

    def make(self, partition: Partition, leadership: Leadership) -> S:
        """The coordinator of a partition."""
        raise NotImplementedError

    def serve(self, hosted: Hosted[S]) -> None:
        """Its log is read, and covered by the high watermark."""
        raise NotImplementedError

    def counts(self, shard: S) -> dict[str, Any]:
        """What it has loaded, for the log."""
        raise NotImplementedError

    def take(self, shard: S, key: bytes, value: bytes | None, offset: int, batch: BatchInfo) -> None:
        """One record of its log, in order. Raises Malformed."""
        del offset, batch
        shard.replay(key, value)

    def take_control(self, shard: S, data: bytes, batch: BatchInfo) -> None:
        """A control batch of its log, which begins at `batch.position` of `data`."""

    # -- looking up --------------------------------------------------------------------------

    def find(self, name: str) -> S:
        """The coordinator of a name. Raises as `hosted`."""
        return self.hosted(name).shard

    def hosted(self, name: str) -> Hosted[S]:
        """The coordinator of a name, with its place. Raises COORDINATOR_NOT_AVAILABLE without the topic,
        NOT_COORDINATOR when another node leads, COORDINATOR_LOAD_IN_PROGRESS."""
        topic = self._manager.registry.image.topic(self.topic)
        if topic is None:
            raise PenstockError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"topic {self.topic} is not there: ask FindCoordinator",
            )
        index = group_partition(name, len(topic.partitions))
        hosted = self._hosted.get(index)
        # A role that stops resigns before it closes what rests on it.
        if hosted is None or hosted.partition.replica.leadership is not hosted.leadership:
            raise PenstockError(
                ErrorCode.NOT_COORDINATOR,
                f"node {self._manager.registry.node_id} does not coordinate {self.what} {name} ({self.topic}-{index})",
            )
        if not hosted.ready:
            raise PenstockError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic}-{index} is being read: ask again"
            )
        return hosted

    def shards(self) -> Iterator[S]:
        """Those that serve."""
        return (hosted.shard for hosted in self._hosted.values() if hosted.ready)

    @property
    def loading_count(self) -> int:
        """Coordinators whose partition is still being read."""
        return sum(not hosted.ready for hosted in self._hosted.values())

    @property
    def is_whole(self) -> bool:
        """Whether all is read that the metadata give to this node, logs that are not even open yet included."""
        topic = self._manager.registry.image.topic(self.topic)
        if topic is None:
            return True
        node_id = self._manager.registry.node_id
        mine = (number for number, partition in topic.partitions.items() if partition.leader == node_id)
        found = map(self._hosted.get, mine)
        return all(hosted is not None and hosted.ready for hosted in found)

    # -- leadership --------------------------------------------------------------------------

    def on_lead(self, partition: Partition) -> None:
        """This node leads a partition from now on."""
        leadership = partition.replica.leadership
        if partition.replica.topic != self.topic or leadership is None:
            return
        self.on_stop(partition)
        hosted = Hosted(partition, leadership, self.make(partition, leadership))
        self._hosted[partition.key.partition] = hosted
        self._lifecycle.create_task(self._load(hosted), f"load {partition.name}")

    def on_stop(self, partition: Partition) -> None:
        """It does no more."""
        if partition.replica.topic != self.topic:
            return
        hosted = self._hosted.get(partition.key.partition)
        if hosted is not None and hosted.partition is partition:
            del self._hosted[partition.key.partition]
            self._close(hosted)

    def _close(self, hosted: Hosted[S]) -> None:
        hosted.shard.close()

    # -- loading -----------------------------------------------------------------------------

    async def _load(self, hosted: Hosted[S]) -> None:
        started_s = self._clock_s()
        offset = hosted.partition.log.log_start_offset
        end = hosted.partition.log.log_end_offset
        count = 0
        while offset < end and not hosted.shard.closed:
            try:
                found = hosted.partition.read(offset, LOAD_READ_BYTES, end)
                if isinstance(found, ReadJob):
                    found = await hosted.partition.run_read(found)
                if found.next_offset <= offset:
                    # Never "loaded": what lies behind this place would look as if it had never been.
                    raise PenstockError(ErrorCode.CORRUPT_MESSAGE, f"nothing can be read below {end}")
                # Undecodable: once more from here; to replay a record twice changes nothing.
                count += await self._replay(hosted.shard, b"".join(found.buffers))
            except (PenstockError, OSError) as e:
                self._lifecycle.log.warning(
                    "coordinator cannot read its log yet",
                    partition=hosted.partition.name,
                    offset=offset,
                    reason=str(e),
                )
                await asyncio.sleep(LOAD_RETRY_S)
                offset = max(offset, hosted.partition.log.log_start_offset)
                continue
            offset = found.next_offset
        if not hosted.shard.closed:
            await self._committed(hosted, end)
        if hosted.shard.closed:
            return
        self.serve(hosted)
        hosted.ready = True
        hosted.shard.tell_earlier(self._earlier.set)
        self._earlier.set()
        self._note_loaded(hosted, count, self._clock_s() - started_s)

    def _note_loaded(self, hosted: Hosted[S], count: int, took_s: float) -> None:
        if count:
            self._lifecycle.log.info(
                "coordinator loaded",
                partition=hosted.partition.name,
                records=count,
                **self.counts(hosted.shard),
                ms=round(took_s * 1000),
            )

    async def _committed(self, hosted: Hosted[S], end: int) -> None:
        """Wait until the high watermark has reached `end`, or leadership is over: what lies beyond it may never
        have been, and whoever was told of it would be told something else by another leader."""
        waiter = _OnceCommitted()
        hosted.leadership.wait_all(end, _NEVER_MS, waiter)
        if not self._manager.drain.effects.empty:
            self._manager.drain.schedule()
        await waiter.over

    async def _replay(self, shard: S, data: bytes) -> int:
        count = 0
        until_s = self._clock_s() + LOAD_SLICE_S
        for batch in iter_batches(data):
            if batch.is_control:
                self.take_control(shard, data, batch)
                continue
            for record in read_records(data, batch):
                count += 1
                if record.key is not None:
                    try:
                        self.take(shard, record.key, record.value, record.offset, batch)
                    except Malformed as e:
                        self._bad_record(record.offset, e.message)
                if self._clock_s() >= until_s:
                    await asyncio.sleep(0)
                    until_s = self._clock_s() + LOAD_SLICE_S
        self.loaded_records += count
        return count

    def _bad_record(self, offset: int, reason: str) -> None:
        self.bad_records += 1
        self._lifecycle.log.error(
            "record of a coordinator cannot be read", topic=self.topic, offset=offset, reason=reason
        )

    # -- time ----------------------------------------------------------------------------------

    async def _until_due(self) -> None:
        """Wait until a timer is due; a node whose coordinators wait for nothing does nothing."""
        loop = asyncio.get_running_loop()
        while True:
            self._earlier.clear()
            wait_ms = min((shard.next_timer_ms for shard in self.shards()), default=_NEVER_MS)
            wait_ms -= self._manager.clock_ms()
            if wait_ms <= 0:
                return
            timer = loop.call_later(min(wait_ms, _LOOK_MS) / 1000, self._earlier.set)
            try:
                await self._earlier.wait()
            finally:
                timer.cancel()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_ms / 1000)
            await self._until_due()
            now_ms = self._manager.clock_ms()
            due = [shard for shard in self.shards() if shard.next_timer_ms <= now_ms]
            # However many timers end together, others are served in between.
            while due:
                rang = 0
                for shard in due:
                    rang += shard.tick(RUNG_AT_ONCE)
                    if rang >= RUNG_AT_ONCE:
                        rang = 0
                        await asyncio.sleep(RUNG_PAUSE_S)
                due = [shard for shard in due if not shard.closed and shard.next_timer_ms <= now_ms]
