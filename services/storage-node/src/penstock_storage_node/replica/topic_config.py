"""Settings of topics as they count on this node, and their effect on its partitions while it runs.

A topic's own value comes first, then this node's, then the cluster's (`penstock_core.config.catalog`).
min.insync.replicas depends on a partition's replication factor as well, which a reassignment
changes; it has to be right before the state that brings another factor is adopted, so that a
leader never acknowledges by an ISR that the controllers count as too small.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock_core.config.catalog import CLUSTER, NODE, TOPIC, topic_config
from penstock_core.config.topic import TopicConfig
from penstock_core.metadata.image import PartitionImage, TopicImage
from penstock_proto.v1 import metadata_pb2
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replica.registry import PartitionRegistry


class DynamicTopicConfigs:
    """Topic settings of one node; parsed once for each topic and replication factor."""

    def __init__(
        self,
        registry: PartitionRegistry,
        clock_ms: Callable[[], int],
        schedule: Callable[[], None],
        mark_compacted: Callable[[Partition], None],
    ) -> None:
        self._registry = registry
        self._clock_ms = clock_ms
        self._schedule = schedule
        self._mark_compacted = mark_compacted
        self._known: dict[tuple[str, int], TopicConfig] = {}

    def clear(self) -> None:
        """Parse anew what is asked for next."""
        self._known.clear()

    def of(self, topic: TopicImage, state: PartitionImage) -> TopicConfig:
        """Settings of one partition."""
        key = (topic.name, state.factor)
        settings = self._known.get(key)
        if settings is None:
            config = topic_config(self._registry.image, topic.name, self._registry.node_id)
            settings = self._known[key] = TopicConfig.from_config(config, state.factor)
        return settings

    def on_record(self, record: metadata_pb2.ConfigRecord) -> None:
        """A setting was changed."""
        registry = self._registry
        kind, name = record.resource_type, record.resource_name
        if kind == TOPIC:
            self.clear()
            self.update(name)
        elif kind == CLUSTER or (kind == NODE and name == str(registry.node_id)):
            self.clear()
            for topic_id in {key.topic_id for key in registry.partitions}:
                self.update(registry.topic_name(topic_id))

    def update(self, name: str) -> None:
        """Have the partitions of a topic follow its settings."""
        registry = self._registry
        topic = registry.image.topic(name)
        if topic is None:
            return
        for state in topic.partitions.values():
            partition = registry.partitions.get(state.key)
            if partition is not None:
                self._use(partition, self.of(topic, state))

    def before(self, state: PartitionImage) -> None:
        """A state of a partition is about to be adopted; see the module's text."""
        topic = self._registry.image.topics.get(state.topic_id)
        partition = self._registry.partitions.get(state.key)
        if topic is not None and partition is not None:
            self._use(partition, self.of(topic, state))

    def _use(self, partition: Partition, settings: TopicConfig) -> None:
        if settings == partition.replica.settings:
            return
        partition.log.update_settings(settings)
        partition.replica.update_settings(settings, self._clock_ms())
        self._mark_compacted(partition)
        if partition.replica.wants_fsync:
            partition.flush(everything=True)  # what was written while it was not
        self._schedule()
