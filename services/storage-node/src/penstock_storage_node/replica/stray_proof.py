"""What the metadata say of a log that was set aside: whether it may go by itself, and why not.

It is superfluous where they prove that nothing is lost with it: they know its topic by id, this node is none of the
partition's replicas, and every one of those is in sync. Of a topic that they do not know nothing is proved: a quorum
that was restored from an old backup, or a wrong one, must not have data deleted.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock_core.ids import NO_NODE, NodeId
from penstock_core.metadata.image import MetadataImage
from penstock_storage_node.log.strays import StrayIdentity


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one stray. `reason` is for people."""

    topic: str
    """"" when the metadata do not know it."""
    is_superfluous: bool
    reason: str


def judge(image: MetadataImage, node_id: NodeId, of: StrayIdentity | None) -> Verdict:
    """By the metadata of now."""
    if of is None:
        return Verdict("", False, "it does not say which partition it is of")
    topic = image.topics.get(of.topic_id)
    if topic is None:
        return Verdict("", False, f"the cluster knows no topic with the id {of.topic_id.hex()}")
    name = f"{topic.name}-{of.partition}"
    state = topic.partitions.get(of.partition)
    if state is None:
        return Verdict(topic.name, False, f"topic {topic.name} has no partition {of.partition}")
    if node_id in state.replicas:
        return Verdict(topic.name, False, f"this node is a replica of {name}, with another log")
    if state.leader == NO_NODE or state.recovering or set(state.isr) != set(state.replicas):
        return Verdict(topic.name, False, f"not every replica of {name} is in sync")
    if state.unconfirmed:
        return Verdict(
            topic.name, False, f"{name} was restored, and its replicas have not told yet what they hold"
        )
    nodes = ", ".join(map(str, state.replicas))
    return Verdict(topic.name, True, f"{name} is in sync on node{'s' * (len(state.replicas) > 1)} {nodes}")
