"""Nodes that get their share by themselves (`penstock.rebalance.auto`): which of them, and when. Pure.

What begins is an ordinary `node-add`. Whoever cancelled one, or saw it fail, isn't asked again and again: such a node
waits until a person did something with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Final

from penstock_controller.state.nodes import SCAN_COUNT
from penstock_controller.state.operations.engine.kinds import live_operations, nodes_of, takes_turns
from penstock_controller.state.operations.plans.gates import OPERATIONS_LEVEL
from penstock_core.config.catalog import auto_rebalance
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.levels import level_of
from penstock_core.metadata.operations import ENDED
from penstock_proto.v1 import metadata_pb2 as pb

CREATED_BY: Final = "penstock.rebalance.auto"
"""Who began such an operation."""
LIVE_MS: Final = 60_000
"""A node has been live for that long."""
TOGETHER_MS: Final = 120_000
"""So long at most one waits for others that came after it, so that nothing moves twice."""
REST_MS: Final = 600_000
"""After one such operation, before the next one for the same node."""

Steady = Callable[[NodeId, int], bool]
"""Whether a node has been live for so many ms."""


def count_replicas(image: MetadataImage) -> Generator[None, None, Mapping[NodeId, int]]:
    """Replicas of each node. In steps of SCAN_COUNT partitions."""
    found: Counter[NodeId] = Counter()
    seen = 0
    for topic in image.topics.values():
        for partition in topic.partitions.values():
            found.update(partition.replicas)
            seen += 1
            if seen % SCAN_COUNT == 0:
                yield
    return found


def may_fill(image: MetadataImage) -> bool:
    """Whether such an operation may begin at all: it is asked for, and no other one moves data or restarts anything."""
    return (
        auto_rebalance(image)
        and level_of(image) >= OPERATIONS_LEVEL
        and not any(takes_turns(record) or record.moves_total for record in live_operations(image))
    )


def nodes_to_fill(
    image: MetadataImage, replicas: Mapping[NodeId, int], steady: Steady, now_ms: int
) -> tuple[NodeId, ...]:
    """Nodes that are to get their share now, together. `now_ms`: wall clock."""
    if not may_fill(image):
        return ()
    usable = [n for n in sorted(image.nodes) if is_usable(image, n)]
    few = [n for n in usable if _has_few(replicas, usable, n) and not rests(image, n, now_ms)]
    due = tuple(n for n in few if steady(n, LIVE_MS))
    if len(due) < len(few) and not any(steady(n, TOGETHER_MS) for n in due):
        return ()
    return due


def obstacle(image: MetadataImage, node_ids: Iterable[NodeId], now_ms: int) -> str:
    """Why they may not be filled any more, as of an image that is newer than the decision; empty when they may."""
    if not may_fill(image):
        return f"{CREATED_BY} was switched off, or another operation has begun"
    gone = [n for n in node_ids if not is_usable(image, n) or rests(image, n, now_ms)]
    return f"node {gone[0]} is not to be filled by itself any more" if gone else ""


def is_usable(image: MetadataImage, node_id: NodeId) -> bool:
    """Whether it is up and takes replicas, as far as people and its disk are concerned."""
    node = image.nodes.get(node_id)
    return (
        node is not None
        and node.active
        and not node.disk_full
        and not node.disk_failed
        and not image.operations.is_cordoned(node_id)
    )


def rests(image: MetadataImage, node_id: NodeId, now_ms: int) -> bool:
    """Whether what was last done with the node says that it is to be left alone."""
    newest: pb.OperationRecord | None = None
    for record in image.operations.operations.values():
        if node_id in nodes_of(record) and (newest is None or record.operation_id > newest.operation_id):
            newest = record
    if newest is None:
        return False
    if newest.state not in ENDED:
        return True
    if newest.created_by != CREATED_BY:
        return False
    return newest.state != pb.OPERATION_STATE_DONE or now_ms - newest.finished_ms < REST_MS


def _has_few(replicas: Mapping[NodeId, int], usable: list[NodeId], node_id: NodeId) -> bool:
    """Less than half of what one has on average."""
    return 2 * replicas.get(node_id, 0) * len(usable) < sum(replicas.get(n, 0) for n in usable)
