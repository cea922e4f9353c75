"""Which partitions this node holds, and the metadata that say so: all that most handlers need.

Only `manager` and `roles` change what stands here; everybody else looks.
"""

from __future__ import annotations

import asyncio

from penstock_core.config.catalog import verifies_partitions
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NO_NODE, NodeId, TopicId, TopicPartition
from penstock_core.metadata.image import MetadataImage
from penstock_storage_node.replica.partition import Partition


class PartitionRegistry:
    """The partitions of one node. Lives on the event loop."""

    def __init__(self) -> None:
        self.node_id = NO_NODE
        """NO_NODE until the node is registered."""
        self.node_epoch = -1
        self.image = MetadataImage()
        self.partitions: dict[TopicPartition, Partition] = {}
        self.leading: dict[Partition, None] = {}
        """Those that this node leads, in the order in which it began to."""
        self.being_created: dict[TopicPartition, asyncio.Future[None]] = {}
        """Partitions whose directory is being made: done when it is there, or could not be made."""

    def locate(self, topic: str, topic_id: TopicId | None, index: int) -> Partition:
        """The partition that a client names. Raises PenstockError with the code for it.

        UNKNOWN_TOPIC_OR_PARTITION or UNKNOWN_TOPIC_ID when the metadata know no such thing;
        NOT_LEADER_OR_FOLLOWER when they do and it isn't here (yet).
        """
        wanted = topic_id
        if wanted is None:
            wanted = self.image.topic_ids.get(topic)
            if wanted is None:
                raise PenstockError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} does not exist")
        partition = self.partitions.get(TopicPartition(wanted, index))
        if partition is not None:
            return partition
        known = self.image.topics.get(wanted)
        if known is None:
            raise PenstockError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {wanted.hex()}")
        if index not in known.partitions:
            raise PenstockError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {known.name} has {len(known.partitions)} partitions, none is {index}",
            )
        raise PenstockError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {self.node_id} holds no {known.name}-{index}"
        )

    def opening(self, topic: str, topic_id: TopicId | None, index: int) -> asyncio.Future[None] | None:
        """For a partition whose directory is being made: what ends when it is there, or could not be made."""
        wanted = self.image.topic_ids.get(topic) if topic_id is None else topic_id
        return None if wanted is None else self.being_created.get(TopicPartition(wanted, index))

    def topic_name(self, topic_id: TopicId) -> str:
        """Name of a topic, "" when unknown."""
        topic = self.image.topics.get(topic_id)
        return "" if topic is None else topic.name

    def verifies_partitions(self) -> bool:
        """Whether this node asks coordinators about partitions that producers have added themselves."""
        return verifies_partitions(self.image, self.node_id)

    def under_replicated_count(self) -> int:
        """Led partitions with fewer replicas in sync than they have; those that a move adds do not count (KIP-352)."""
        count = 0
        for partition in self.leading:
            led, known = partition.replica.leadership, self.image.partition(*partition.key)
            if led is not None and known is not None:
                count += len(led.isr) < known.factor
        return count

    def is_eligible(self, node: NodeId, node_epoch: int) -> bool:
        """Whether a follower may join an ISR: known, not fenced, and the process that the metadata know (KIP-903)."""
        known = self.image.nodes.get(node)
        return known is not None and known.active and node_epoch in (-1, known.node_epoch)

    def is_full(self, node: NodeId) -> bool:
        """Whether a node has said that its disk has no space left (decision 0023)."""
        known = self.image.nodes.get(node)
        return known is not None and known.disk_full
