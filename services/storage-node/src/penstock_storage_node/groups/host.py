"""The shell around shards of the group coordinator; what all coordinators share is in `coordinator_host`."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock_core.config.catalog import group_interval_ms
from penstock_core.errors import PenstockError
from penstock_core.ids import TopicId
from penstock_core.metadata.image import MetadataImage
from penstock_core.topics import OFFSETS_TOPIC
from penstock_kafka.records.batch import BatchInfo, read_header
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.markers import read_marker
from penstock_runtime.lifecycle import Lifecycle
from penstock_storage_node.coordinator_host import TICK_MS, CoordinatorHost, CoordinatorLog, Hosted
from penstock_storage_node.groups.holdings import NodeHoldings, Owner
from penstock_storage_node.groups.records import Record
from penstock_storage_node.groups.shard import Shard
from penstock_storage_node.groups.store import Done, InTransaction, Written
from penstock_storage_node.log import Origin
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replication.leadership import Leadership
from penstock_storage_node.settings import GroupSettings

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


class OffsetsLog(CoordinatorLog):
    """What a shard has of its partition."""

    def append_in_transaction(
        self, records: Sequence[Record], transaction: InTransaction, done: Done
    ) -> Written:
        """See `store.Log`."""
        self._require_writable()
        producer_id, admitted, now_ms = transaction.producer_id, transaction.admitted, self._manager.wall_ms()
        batch = build_batch(
            [NewRecord(key, value, now_ms) for key, value in records],
            producer_id=producer_id,
            producer_epoch=transaction.epoch,
            transactional=True,
        )
        info = read_header(batch)
        admitted.check(info)
        base_offset = self._write(batch, info, done, Origin.COORDINATOR)
        admitted.appended(info)
        producer = self._partition.log.producer(producer_id)
        return Written(base_offset, base_offset if producer is None else producer.transaction_first_offset)


class GroupHost(CoordinatorHost[Shard]):
    """All shards of this node."""

    log_class: type[OffsetsLog] = OffsetsLog
    shard_class = Shard
    topic: ClassVar[str] = OFFSETS_TOPIC
    what: ClassVar[str] = "group"

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
        super().__init__(manager, lifecycle, tick_ms)
        self.settings = settings
        self.topics = _Topics(manager)
        self._expiry_interval_ms = expiry_interval_ms
        self._new_uuid = new_uuid
        self.holdings = NodeHoldings(settings, self._refused)
        self._refused_logged_s = -_REFUSED_LOG_INTERVAL_S
        self._deleted: set[str] = set()
        """Topics that this process saw deleted, and that are not there again."""

    def start(self) -> None:
        """Begin to tick."""
        self._lifecycle.create_task(self._tick(), "group timers")
        self._lifecycle.create_task(self._expire(), "group expiry")

    def make(self, partition: Partition, leadership: Leadership) -> Shard:
        """See `CoordinatorHost`."""
        return self.shard_class(
            self.log_class(self._manager, partition, leadership),
            self.topics,
            self.settings,
            clock_ms=self._manager.clock_ms,
            wall_ms=self._manager.wall_ms,
            new_id=lambda: str(self._new_uuid()),
            setting_ms=lambda *asked: group_interval_ms(self._manager.registry.image, *asked),
            node=self.holdings,
        )

    def serve(self, hosted: Hosted[Shard]) -> None:
        """See `CoordinatorHost`."""
        hosted.shard.resume()
        # One that the metadata do not know and did not delete may be on the nodes still, and be taken again: a log of
        # offsets may be adopted before the topics that they are of, and after an import they may lack some.
        hosted.shard.forget_deleted(lambda name: name not in self._deleted)

    def on_marker(self, partition: Partition, producer_id: int, offset: int, *, commits: bool) -> None:
        """A marker that the high watermark covers, in a partition that this node leads; in the order of the log."""
        hosted = self._hosted.get(partition.key.partition)
        if hosted is not None and hosted.partition is partition:
            hosted.shard.end_transaction(producer_id, offset, commits=commits)

    def take(self, shard: Shard, key: bytes, value: bytes | None, offset: int, batch: BatchInfo) -> None:
        """See `CoordinatorHost`: what a transaction commits waits for its marker."""
        producer_id = batch.producer_id if batch.is_transactional else -1
        shard.replay(key, value, offset, producer_id, batch.max_timestamp)

    def take_control(self, shard: Shard, data: bytes, batch: BatchInfo) -> None:
        """See `CoordinatorHost`: a marker ends a transaction here too."""
        try:
            marker = read_marker(data, batch, batch.position)
        except PenstockError as e:
            self._bad_record(batch.base_offset, e.message)
            return
        if marker is not None:
            shard.replay_marker(batch.producer_id, batch.base_offset, commits=marker.commits)

    def counts(self, shard: Shard) -> dict[str, Any]:
        """See `CoordinatorHost`."""
        return {"groups": len(shard.groups)}

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

    def on_metadata(self, old: MetadataImage, new: MetadataImage) -> None:
        """Offsets of deleted topics go, of those too whose names were given again before this node heard of it."""
        if old.topic_ids is new.topic_ids or old.version < new.restored_version:
            return  # what restored metadata lack was not deleted
        gone = frozenset(name for name, _ in old.topic_ids.items() - new.topic_ids.items())
        self._deleted = {name for name in self._deleted | gone if name not in new.topic_ids}
        if gone:
            for shard in self.shards():
                shard.forget_topics(gone)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._expiry_interval_ms / 1000)
            for shard in list(self.shards()):
                after = shard.expire()
                while after and not shard.closed:
                    await asyncio.sleep(0)
                    after = shard.expire(after)
