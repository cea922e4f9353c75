"""What people should know before they start an operation, though nothing stops it: a sentence each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock_controller.state import directories
from penstock_controller.state.nodes import is_full
from penstock_controller.state.operations.plans.requests import Asked, Kind
from penstock_controller.state.operations.plans.situation import Situation
from penstock_core.config.catalog import topic_config
from penstock_core.config.topic import default_min_insync_replicas
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage, TopicImage

_NAMED_MAX = 10


def cautions_of(image: MetadataImage, asked: Asked, now: Situation) -> list[str]:
    """In the order of what they are about: nodes, then topics."""
    found = _of_nodes(image, asked, now)
    for topic in asked.topics[:_NAMED_MAX]:
        if asked.kind is Kind.SET_REPLICATION_FACTOR:
            found += _of_factor(image, topic, asked.factor)
    if asked.kind is Kind.SET_REPLICATION_FACTOR and len(asked.topics) > _NAMED_MAX:
        found.append(f"The same may be so for {len(asked.topics) - _NAMED_MAX} further topics.")
    return found


def no_leader_caution(partitions: Sequence[str]) -> str:
    """Of partitions that are to be copied and have nobody to copy from."""
    more = len(partitions) - _NAMED_MAX
    named = ", ".join(partitions[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
    return f"Without a leader nothing can be copied; these wait until one is back: {named}."


def evenness_caution(replicas: int) -> str:
    """Of an operation that empties nodes and moves more than they hold."""
    return f"To leave the others even, {replicas:,} more replicas are copied than are on the nodes that are emptied."


def refill_caution(node_ids: Iterable[NodeId], replicas: int) -> list[str]:
    """Of nodes that fetch again what they held."""
    if not replicas:
        return []
    named = ", ".join(str(n) for n in sorted(node_ids))
    many = f"{replicas:,} replicas" if replicas > 1 else "1 replica"
    return [f"Node {named} fetches {many} again; the time is from when it is up with an empty directory."]


def _of_nodes(image: MetadataImage, asked: Asked, now: Situation) -> list[str]:
    found = []
    for node_id in sorted(asked.node_ids):
        if asked.kind is Kind.NODE_UNCORDON and not image.operations.is_cordoned(node_id):
            found.append(f"Node {node_id} is not cordoned: nothing changes for it.")
        if asked.kind is Kind.NODE_ADD and is_full(image, node_id):
            found.append(
                f"The disk of node {node_id} is full: it gets no replicas until there is room again."
            )
        if asked.kind is Kind.NODE_REPLACE and not asked.leaving:
            found += _of_replaced(image, node_id)
    if asked.moves_replicas and asked.replacement is None:
        away = [n for n in sorted(now.pinned) if n not in asked.excluded and not image.nodes[n].active]
        if away:
            found.append(f"{_nodes(away)} not live: replicas there stay as far as they can.")
    return found


def _of_replaced(image: MetadataImage, node_id: NodeId) -> list[str]:
    """Of a node that is replaced in its place: which directories it may not come back with."""
    had = [r.directory_id.hex() for r in directories.former(image, node_id)]
    if had:
        return [
            f"Node {node_id} has another directory than it had ({', '.join(had)}), which is refused for good once this "
            "is done."
        ]
    if not image.nodes[node_id].active:
        return []
    return [
        f"Node {node_id} is up with the directory that it had; stop it, and start it again with an empty directory: "
        "its replicas are then made anew. Begun before that, this may end at once, with nothing done."
    ]


def _of_factor(image: MetadataImage, topic: TopicImage, factor: int) -> list[str]:
    first = topic.partitions.get(0)
    if first is None:
        return []
    found = []
    before = first.factor
    if factor == 1 < before:
        found.append(
            f"{topic.name}: with a replication factor of 1 its records are lost with the one node that holds them, and "
            "cannot be read while that is down."
        )
    wanted = topic_config(image, topic.name).get("min.insync.replicas", "").strip()
    if wanted.isdecimal():
        if factor < int(wanted):
            found.append(
                f"{topic.name}: min.insync.replicas is {wanted}, and counts as {factor} with {factor} replicas."
            )
        return found
    old, new = default_min_insync_replicas(before), default_min_insync_replicas(factor)
    if new > old:
        found.append(
            f"{topic.name}: min.insync.replicas is not set and follows the replication factor; acks=all then needs "
            f"{new} replicas in sync instead of {old}, as soon as a partition has them."
        )
    elif new < old:
        found.append(
            f"{topic.name}: min.insync.replicas is not set and follows the replication factor; acks=all then needs "
            f"only {new} replica in sync instead of {old}."
        )
    return found


def _nodes(node_ids: Iterable[NodeId]) -> str:
    names = [str(n) for n in node_ids]
    return f"Node {names[0]} is" if len(names) == 1 else f"Nodes {', '.join(names)} are"


def too_slow_caution() -> str:
    """What is said where copying would never catch up."""
    return "partitions are written faster than they may be copied: give a higher --throttle, or wait for a quieter hour"
