"""The shell around shards: one for each partition of `__consumer_offsets` that this node leads.

Rules: a shard is made when leadership is taken and reads its partition from log start to the end that
the log had then (CoordinatorLoaderImpl); until it is through and the high watermark covers that end, its
groups are answered COORDINATOR_LOAD_IN_PROGRESS. It is closed in the same step in which leadership ends. Its writes
are appended like acks=all and answered through `Leadership.wait_all`; that wait has no deadline,
since a shard must know whether a record counts. Clients have theirs (`kafka.groups`).

Reading records is pure Python: it goes in slices of at most a millisecond, so that the loop stays
free (rule "The loop stays free").
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock_core.config.catalog import group_interval_ms
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicId
from penstock_core.metadata.image import MetadataImage
from penstock_core.topics import OFFSETS_TOPIC
from penstock_kafka.records.batch import read_header
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.read import read_all
from penstock_kafka.wire.groups import group_partition
from penstock_kafka.wire.primitives import Malformed
from penstock_runtime.lifecycle import Lifecycle
from penstock_storage_node.groups.holdings import NodeHoldings, Owner
from penstock_storage_node.groups.records import Record
from penstock_storage_node.groups.shard import Shard
from penstock_storage_node.groups.store import Done
from penstock_storage_node.log import LogState, ReadJob
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replication.leadership import Leadership
from penstock_storage_node.settings import GroupSettings

TICK_MS = 50
RUNG_AT_ONCE = 10
"""Timers of one shard that ring before others do anything."""
RUNG_PAUSE_S = 0.002
LOAD_READ_BYTES = 256 * 1024
LOAD_SLICE_S = 0.001
LOAD_RETRY_S = 0.5
WRITES_MAX = 20_000
"""Writes of one shard that wait for the high watermark; beyond it requests are refused."""
_NEVER_MS = 1 << 62
_REFUSED_LOG_INTERVAL_S = 10.0
GROUP_STATES: Final = (
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Stable",
)
"""Named as clients are told."""


class _Waiter:
    """One write of a shard, waiting for the high watermark."""

    __slots__ = ("_done", "_log")

    def __init__(self, log: _PartitionLog, done: Done) -> None:
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
        del error  # the shard is closed in the step in which leadership ends
        if not self.over.done():
            self.over.set_result(None)


class _PartitionLog:
    """`Log` for a shard: one term of leading one partition."""

    def __init__(self, manager: ReplicaManager, partition: Partition, leadership: Leadership) -> None:
        self._manager = manager
        self._partition = partition
        self._leadership = leadership
        self.lifecycle = manager.lifecycle
        self.waiting = 0

    def append(self, records: Sequence[Record], done: Done) -> None:
        """See `Log`."""
        partition, leadership, manager = self._partition, self._leadership, self._manager
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
        now_ms = manager.wall_ms()
        batch = build_batch([NewRecord(key, value, now_ms) for key, value in records])
        if len(batch) > replica.settings.max_message_bytes:
            raise PenstockError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{len(batch)} bytes, max.message.bytes of {replica.topic} is"
                f" {replica.settings.max_message_bytes}",
            )
        appended = partition.append(batch, read_header(batch), manager.clock_ms())
        self.waiting += 1
        leadership.wait_all(appended.last_offset + 1, _NEVER_MS, _Waiter(self, done))
        if not manager.drain.effects.empty:
            manager.drain.schedule()


class _Topics:
    """`Topics` from the node's metadata."""

    def __init__(self, manager: ReplicaManager) -> None:
        self._manager = manager

    def partition_count(self, topic: str) -> int:
        found = self._manager.registry.image.topic(topic)
        return 0 if found is None else len(found.partitions)

    def topic_id(self, topic: str) -> TopicId | None:
        return self._manager.registry.image.topic_ids.get(topic)

    def topic_name(self, topic_id: TopicId) -> str | None:
        return self._manager.registry.topic_name(topic_id) or None

    def names(self) -> Sequence[str]:
        return list(self._manager.registry.image.topic_ids)

    def token(self) -> object:
        return self._manager.registry.image.topics


class _Hosted:
    """A shard with its place. `ready` once its log is read."""

    __slots__ = ("leadership", "partition", "ready", "shard")

    def __init__(self, partition: Partition, leadership: Leadership, shard: Shard) -> None:
        self.partition = partition
        self.leadership = leadership
        self.shard = shard
        self.ready = False


class GroupHost:
    """All shards of this node."""

    log_class = _PartitionLog
    shard_class = Shard

    def __init__(
        self,
        manager: ReplicaManager,
        lifecycle: Lifecycle,
        settings: GroupSettings,
        *,
        expiry_interval_ms: int,
        new_uuid: Callable[[], uuid.UUID] = uuid.uuid4,
        tick_ms: int = TICK_MS,
    ) -> None:
        self.settings = settings
        self.topics = _Topics(manager)
        self._manager = manager
        self._lifecycle = lifecycle
        self._expiry_interval_ms = expiry_interval_ms
        self._clock_s = manager.clocks.s
        self._new_uuid = new_uuid
        self._tick_ms = tick_ms
        self._hosted: dict[int, _Hosted] = {}
        self.holdings = NodeHoldings(settings, self._refused)
        self._refused_logged_s = -_REFUSED_LOG_INTERVAL_S
        self.loaded_records = 0
        self.bad_records = 0

    def start(self) -> None:
        """Begin to tick."""
        self._lifecycle.create_task(self._tick(), "group timers")
        self._lifecycle.create_task(self._expire(), "group expiry")

    # -- looking up --------------------------------------------------------------------------

    def find(self, group_id: str) -> Shard:
        """The shard of a group. Raises COORDINATOR_NOT_AVAILABLE without the topic,
        NOT_COORDINATOR when another node leads, COORDINATOR_LOAD_IN_PROGRESS."""
        topic = self._manager.registry.image.topic(OFFSETS_TOPIC)
        if topic is None:
            raise PenstockError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"topic {OFFSETS_TOPIC} is not there: ask FindCoordinator",
            )
        index = group_partition(group_id, len(topic.partitions))
        hosted = self._hosted.get(index)
        # A role that stops resigns before it closes what rests on it.
        if hosted is None or hosted.partition.replica.leadership is not hosted.leadership:
            raise PenstockError(
                ErrorCode.NOT_COORDINATOR,
                f"node {self._manager.registry.node_id} does not coordinate group {group_id} ({OFFSETS_TOPIC}-{index})",
            )
        if not hosted.ready:
            raise PenstockError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{OFFSETS_TOPIC}-{index} is being read: ask again"
            )
        return hosted.shard

    def shards(self) -> Iterator[Shard]:
        """Those that serve."""
        return (hosted.shard for hosted in self._hosted.values() if hosted.ready)

    def families(self) -> Iterator[Metric]:
        """How many groups there are in which state, for a scrape."""
        states: Counter[str] = Counter(dict.fromkeys(GROUP_STATES, 0))
        for shard in self.shards():
            for group in shard.groups.values():
                states[str(group.state)] += 1
        family = GaugeMetricFamily(
            "penstock_node_groups", "Consumer groups that this node coordinates, by state.", labels=("state",)
        )
        for state, count in states.items():
            family.add_metric((state,), count)
        yield family
        yield GaugeMetricFamily(
            "penstock_node_group_members",
            "Members of groups that this node coordinates, with ids that were given out.",
            value=self.holdings.member_count,
        )
        yield GaugeMetricFamily(
            "penstock_node_group_member_bytes",
            "What members of groups have said of themselves and were assigned; group_memory_max_bytes at most.",
            value=self.holdings.held_bytes,
        )
        refused = CounterMetricFamily(
            "penstock_node_group_refusals",
            "Members and groups that were refused, by the setting that bounds them.",
            labels=("setting",),
        )
        for setting, number in self.holdings.refused.items():
            refused.add_metric((setting,), float(number))
        yield refused

    def _refused(self, owner: Owner, setting: str) -> None:
        now_s = self._clock_s()
        # One line for all that comes meanwhile; the counter has them all.
        if now_s - self._refused_logged_s >= _REFUSED_LOG_INTERVAL_S:
            self._refused_logged_s = now_s
            self._lifecycle.log.warning(
                "a member of a group, or a group, is refused: raise the setting if that is one's own",
                whose=str(owner),
                setting=setting,
            )

    @property
    def loading_count(self) -> int:
        """Shards that are still being read."""
        return sum(not hosted.ready for hosted in self._hosted.values())

    # -- leadership --------------------------------------------------------------------------

    def on_lead(self, partition: Partition) -> None:
        """This node leads a partition from now on."""
        leadership = partition.replica.leadership
        if partition.replica.topic != OFFSETS_TOPIC or leadership is None:
            return
        self.on_stop(partition)
        shard = self.shard_class(
            self.log_class(self._manager, partition, leadership),
            self.topics,
            self.settings,
            clock_ms=self._manager.clock_ms,
            wall_ms=self._manager.wall_ms,
            new_id=lambda: str(self._new_uuid()),
            setting_ms=lambda *asked: group_interval_ms(self._manager.registry.image, *asked),
            node=self.holdings,
        )
        hosted = _Hosted(partition, leadership, shard)
        self._hosted[partition.key.partition] = hosted
        self._lifecycle.create_task(self._load(hosted), f"load {partition.name}")

    def on_stop(self, partition: Partition) -> None:
        """It does no more."""
        if partition.replica.topic != OFFSETS_TOPIC:
            return
        hosted = self._hosted.get(partition.key.partition)
        if hosted is not None and hosted.partition is partition:
            del self._hosted[partition.key.partition]
            hosted.shard.close()

    def on_metadata(self, old: MetadataImage, new: MetadataImage) -> None:
        """Offsets of deleted topics go."""
        if old.topic_ids is new.topic_ids:
            return
        gone = frozenset(old.topic_ids.keys() - new.topic_ids.keys())
        if gone:
            for shard in self.shards():
                shard.forget_topics(gone)

    # -- loading -----------------------------------------------------------------------------

    async def _load(self, hosted: _Hosted) -> None:
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
                    # Never "loaded": commits behind this place would look as if they had never been.
                    raise PenstockError(ErrorCode.CORRUPT_MESSAGE, f"nothing can be read below {end}")
                # Undecodable: once more from here; to replay a record twice changes nothing.
                count += await self._replay(hosted.shard, b"".join(found.buffers))
            except (PenstockError, OSError) as e:
                self._lifecycle.log.warning(
                    "group coordinator cannot read its log yet",
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
        hosted.shard.resume()
        hosted.ready = True
        if count:
            self._lifecycle.log.info(
                "group coordinator loaded",
                partition=hosted.partition.name,
                records=count,
                groups=len(hosted.shard.groups),
                ms=round((self._clock_s() - started_s) * 1000),
            )

    async def _committed(self, hosted: _Hosted, end: int) -> None:
        """Wait until the high watermark has reached `end`, or leadership is over: what lies beyond it may never
        have been, and members that were told of it would share a generation with others."""
        waiter = _OnceCommitted()
        hosted.leadership.wait_all(end, _NEVER_MS, waiter)
        if not self._manager.drain.effects.empty:
            self._manager.drain.schedule()
        await waiter.over

    async def _replay(self, shard: Shard, data: bytes) -> int:
        count = 0
        until_s = self._clock_s() + LOAD_SLICE_S
        for record in read_all(data):
            count += 1
            if record.key is not None:
                try:
                    shard.replay(record.key, record.value)
                except Malformed as e:
                    self.bad_records += 1
                    self._lifecycle.log.error(
                        "record of a group cannot be read", offset=record.offset, reason=e.message
                    )
            if self._clock_s() >= until_s:
                await asyncio.sleep(0)
                until_s = self._clock_s() + LOAD_SLICE_S
        self.loaded_records += count
        return count

    # -- time ----------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_ms / 1000)
            now_ms = self._manager.clock_ms()
            due = [shard for shard in self.shards() if shard.next_timer_ms <= now_ms]
            # However many rebalances end together, others are served in between.
            while due:
                rang = 0
                for shard in due:
                    rang += shard.tick(RUNG_AT_ONCE)
                    if rang >= RUNG_AT_ONCE:
                        rang = 0
                        await asyncio.sleep(RUNG_PAUSE_S)
                due = [shard for shard in due if not shard.closed and shard.next_timer_ms <= now_ms]

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._expiry_interval_ms / 1000)
            for shard in list(self.shards()):
                after = shard.expire()
                while after and not shard.closed:
                    await asyncio.sleep(0)
                    after = shard.expire(after)
