"""Nodes and partitions of an image, with what was reported of them, as the planner wants them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Final

from penstock_controller.state.nodes import is_full
from penstock_controller.state.operations.planner.shape import PlanNode, PlanPartition
from penstock_controller.state.operations.plans.requests import Asked, Kind, may_serve
from penstock_controller.state.operations.reports import Reports
from penstock_core.ids import NO_NODE, NodeId, TopicPartition
from penstock_core.metadata import MetadataImage, PartitionImage, TopicImage
from penstock_core.metadata.operations import ENDED, OperationMove

_A_STEP: Final = 128
"""Partitions or moves looked at between two steps."""


@dataclass(frozen=True, slots=True)
class Situation:
    """All nodes by id, and all partitions by topic and number."""

    nodes: tuple[PlanNode, ...]
    partitions: tuple[PlanPartition, ...]
    images: tuple[PartitionImage, ...]
    """Of `partitions`, in the same order."""
    untold: frozenset[TopicPartition]
    """Partitions whose size nobody told: they count as empty."""
    pinned: frozenset[NodeId]
    """Nodes that lose no replica by this plan, and get none."""
    pinned_leaders: frozenset[NodeId]
    """Those of them that stay preferred where they are, too."""

    @property
    def takers(self) -> frozenset[NodeId]:
        """Nodes that may get replicas."""
        return frozenset(n.node_id for n in self.nodes if n.takes and n.keeps)

    def without_disks(self) -> Situation:
        """As if every disk had room."""
        return replace(self, nodes=tuple(replace(n, disk_total_bytes=None) for n in self.nodes))


def settled(partition: PartitionImage) -> tuple[NodeId, ...]:
    """Replicas of a partition once its reassignment is done."""
    return tuple(n for n in partition.replicas if n not in partition.removing_replicas)


def look(
    image: MetadataImage, asked: Asked, reports: Reports, alive: Callable[[NodeId], bool]
) -> Generator[None, None, Situation]:
    """Nodes and partitions as they are, told what the request makes of them."""
    coming = yield from _coming(image)
    nodes, pinned, pinned_leaders = [], set(), set()
    for node_id in sorted(image.nodes):
        live = may_serve(image, node_id, alive)
        cordoned = image.operations.is_cordoned(node_id) and node_id not in asked.coming
        leaves = node_id in asked.leaving
        takes = live and not cordoned and not leaves and not is_full(image, node_id)
        takes = takes and node_id not in asked.excluded
        if not leaves and (cordoned or not live or node_id in asked.excluded):
            pinned.add(node_id)
            # A node that is down for a while comes back to what it led; a cordoned one is not to lead.
            if not live or node_id in asked.excluded:
                pinned_leaders.add(node_id)
        state = reports.node(node_id)
        known = state is not None and state.disk_total_bytes > 0
        total = state.disk_total_bytes if state is not None and known else None
        used = state.disk_total_bytes - state.disk_free_bytes if state is not None and known else 0
        rack = image.nodes[node_id].rack
        nodes.append(PlanNode(node_id, rack, takes, not leaves, total, used + coming[node_id]))
    partitions, images, untold = [], [], set()
    leaving: Counter[NodeId] = Counter()
    for count, (topic, partition) in enumerate(_by_name(image), 1):
        size = reports.partition_bytes(partition)
        if size is None:
            untold.add(partition.key)
        partitions.append(_planned(asked, topic, partition, size or 0))
        for node_id in partition.removing_replicas:
            leaving[node_id] += size or 0
        images.append(partition)
        if count % _A_STEP == 0:
            yield
    return Situation(
        tuple([replace(n, leaving_bytes=leaving[n.node_id]) for n in nodes]),
        tuple(partitions),
        tuple(images),
        frozenset(untold),
        frozenset(pinned),
        frozenset(pinned_leaders),
    )


def _by_name(image: MetadataImage) -> Iterator[tuple[TopicImage, PartitionImage]]:
    for topic in sorted(image.topics.values(), key=lambda t: t.name):
        for number in sorted(topic.partitions):
            yield topic, topic.partitions[number]


def _planned(asked: Asked, topic: TopicImage, partition: PartitionImage, size_bytes: int) -> PlanPartition:
    replicas = settled(partition)
    is_of_factor = asked.kind is Kind.SET_REPLICATION_FACTOR
    changes = is_of_factor and asked.covers(topic.name)
    return PlanPartition(
        key=partition.key,
        topic=topic.name,
        replicas=replicas,
        # Who may yet lead is not to go before who may not.
        isr=frozenset((*partition.isr, *partition.elr)),
        leader=partition.leader if partition.leader != NO_NODE else partition.last_known_leader,
        factor=asked.factor if changes else len(replicas),
        size_bytes=size_bytes,
        # What is the matter with other topics takes no room from those that are asked for.
        stays=is_of_factor and not changes,
    )


def _coming(image: MetadataImage) -> Generator[None, None, Counter[NodeId]]:
    """Bytes that operations under way have yet to bring, by node."""
    found: Counter[NodeId] = Counter()
    count = 0
    for operation_id, moves in image.operations.moves.items():
        operation = image.operations.operations.get(operation_id)
        if operation is None or operation.state in ENDED:
            continue
        for move in moves.values():
            _add_coming(image, move, found)
            count += 1
            if count % _A_STEP == 0:
                yield
    return found


def _add_coming(image: MetadataImage, move: OperationMove, found: Counter[NodeId]) -> None:
    partition = image.partition(move.key.topic_id, move.key.partition)
    added = [n for n in move.replicas if n not in move.replicas_before]
    if partition is None or move.skipped or not added:
        return
    for node_id in added:
        if node_id not in partition.isr:
            found[node_id] += move.bytes // len(added)
