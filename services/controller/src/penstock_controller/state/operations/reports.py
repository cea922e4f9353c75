"""What storage nodes told of their disks and replicas: soft state of the active controller, gone with its term.

Nothing here is in the metadata, and nothing of it decides what is acknowledged. What is not known is None; whoever
needs it has to wait, or to refuse.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock_core.ids import NO_NODE, NodeId, TopicId, TopicPartition
from penstock_core.metadata import PartitionImage
from penstock_proto.v1 import operations_pb2 as pb

GROWTH_MS: Final = 20_000
"""Over so long at most it is measured how fast a replica grows, where it is told that often."""


@dataclass(slots=True)
class Growth:
    """How a replica's size has changed, by two earlier points half of the time apart at least, and the newest.

    Only a change is told, so a size that nobody speaks of any more stays what it was: a burst that is over, say the
    filling of a topic, counts no more once its last change is that old.
    """

    from_bytes: int
    from_ms: int
    since_bytes: int
    since_ms: int
    bytes: int
    ms: int

    @classmethod
    def begin(cls, size_bytes: int, now_ms: int) -> Growth:
        """It has this size now, and what it was before counts not."""
        return cls(size_bytes, now_ms, size_bytes, now_ms, size_bytes, now_ms)

    def take(self, size_bytes: int, now_ms: int) -> None:
        """It has this size now. A smaller one (old segments were deleted) begins anew."""
        if size_bytes < self.bytes:
            self.from_bytes, self.from_ms = size_bytes, now_ms
            self.since_bytes, self.since_ms = size_bytes, now_ms
        elif self.ms - self.since_ms >= GROWTH_MS // 2:
            self.from_bytes, self.from_ms = self.since_bytes, self.since_ms
            self.since_bytes, self.since_ms = self.bytes, self.ms
        self.bytes, self.ms = size_bytes, now_ms

    def bytes_per_s(self, now_ms: int) -> float:
        """Until now: what isn't told any more has not grown."""
        if now_ms - self.ms >= GROWTH_MS:
            return 0.0
        if now_ms - self.from_ms <= GROWTH_MS:
            grown_bytes, passed_ms = self.bytes - self.from_bytes, now_ms - self.from_ms
        else:
            grown_bytes, passed_ms = self.bytes - self.since_bytes, now_ms - self.since_ms
        return 1000 * grown_bytes / passed_ms if passed_ms > 0 else 0.0


@dataclass(slots=True)
class NodeState:
    """What one node told last."""

    node_epoch: int
    disk_total_bytes: int = 0
    disk_free_bytes: int = 0
    log_bytes: int = 0
    sizes: dict[TopicPartition, int] = field(default_factory=dict)
    """Bytes of its replicas. Once `is_whole`, one that is not here is empty."""
    is_whole: bool = False
    """Every replica was told."""
    growth: dict[TopicPartition, Growth] = field(default_factory=dict)
    """Of replicas whose size changed since they were first told of."""
    produce_counts: tuple[int, ...] = ()
    catch_up_in_bytes: int = 0
    catch_up_out_bytes: int = 0
    received_bytes: int = 0
    """From clients, since it started; and so on."""
    sent_bytes: int = 0
    loop_cpu_ms: int = 0
    stray_logs: int = 0
    stray_bytes: int = 0
    unclaimed_slots: tuple[str, ...] = ()
    reported_ms: int = 0
    """By the controller's monotonic clock."""

    def drop_empty(self, report: pb.NodeReport) -> None:
        """Keep nothing of replicas that are empty, or gone: all is told, so not to be here says it."""
        if report.last_of_all:
            empty = [key for key, size_bytes in self.sizes.items() if not size_bytes]
        else:
            told = [each for each in report.sizes if not each.size_bytes]
            empty = [TopicPartition(TopicId(each.topic_id), each.partition) for each in told]
        for key in empty:
            self.sizes.pop(key, None)
            self.growth.pop(key, None)


class Reports:
    """The newest of every node."""

    def __init__(self) -> None:
        self._nodes: dict[NodeId, NodeState] = {}

    def take(self, node_id: NodeId, node_epoch: int, report: pb.NodeReport, now_ms: int) -> None:
        """A node of this registration reports."""
        state = self._nodes.get(node_id)
        if state is None or state.node_epoch != node_epoch:
            state = self._nodes[node_id] = NodeState(node_epoch)
        if report.first_of_all:
            state.sizes = {}
            state.growth = {}
            state.is_whole = False
        for each in report.sizes:
            key = TopicPartition(TopicId(each.topic_id), each.partition)
            before = state.sizes.get(key)
            state.sizes[key] = each.size_bytes
            if (growth := state.growth.get(key)) is not None:
                growth.take(each.size_bytes, now_ms)
            elif before is not None and before != each.size_bytes:
                state.growth[key] = Growth.begin(each.size_bytes, now_ms)
        state.is_whole = state.is_whole or report.last_of_all
        if state.is_whole:
            state.drop_empty(report)
        state.disk_total_bytes = report.disk_total_bytes
        state.disk_free_bytes = report.disk_free_bytes
        state.log_bytes = report.log_bytes
        state.produce_counts = tuple(report.produce_counts)
        state.catch_up_in_bytes = report.catch_up_in_bytes
        state.catch_up_out_bytes = report.catch_up_out_bytes
        state.received_bytes = report.received_bytes
        state.sent_bytes = report.sent_bytes
        state.loop_cpu_ms = report.loop_cpu_ms
        state.stray_logs = report.stray_logs
        state.stray_bytes = report.stray_bytes
        state.unclaimed_slots = tuple(report.unclaimed_slots)
        state.reported_ms = now_ms

    def wants_all(self, node_id: NodeId, node_epoch: int) -> bool:
        """Whether the node has yet to tell the size of every replica in this term and registration."""
        state = self._nodes.get(node_id)
        return state is None or state.node_epoch != node_epoch or not state.is_whole

    def keep(self, node_ids: Collection[NodeId]) -> None:
        """All other nodes are gone."""
        for gone in self._nodes.keys() - node_ids:
            del self._nodes[gone]

    def clear(self) -> None:
        """A new term begins: whatever was known is old."""
        self._nodes.clear()

    def node(self, node_id: NodeId) -> NodeState | None:
        """What a node told last; None when it told nothing."""
        return self._nodes.get(node_id)

    def nodes(self) -> Iterator[tuple[NodeId, NodeState]]:
        """All that told something."""
        return iter(self._nodes.items())

    def replica_bytes(self, node_id: NodeId, key: TopicPartition) -> int | None:
        """Size of one replica; 0 for one that a whole report does not name."""
        state = self._nodes.get(node_id)
        if state is None:
            return None
        return state.sizes.get(key, 0 if state.is_whole else None)

    def written_bytes_per_s(self, partition: PartitionImage) -> float:
        """How fast a partition grows, as its leader's replica does; 0 where that is not known."""
        state = None if partition.leader == NO_NODE else self._nodes.get(partition.leader)
        growth = None if state is None else state.growth.get(partition.key)
        return 0.0 if state is None or growth is None else growth.bytes_per_s(state.reported_ms)

    def partition_bytes(self, partition: PartitionImage) -> int | None:
        """Size of a partition: its leader's, without a leader the largest that is known."""
        if partition.leader != NO_NODE:
            return self.replica_bytes(partition.leader, partition.key)
        known = [self.replica_bytes(n, partition.key) for n in partition.replicas]
        return max((size for size in known if size is not None), default=None)


__all__ = ["Growth", "NodeState", "Reports"]
