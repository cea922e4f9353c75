"""What becomes of partitions when a storage node stops: which would go dark or below min ISR. One partition at a time,
and over all of them with a memory, so that only topics that changed are looked at again."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from penstock_controller.state.nodes import wanted_min_isr
from penstock_controller.state.partitions import Rules
from penstock_core.ids import NO_NODE, NodeId, TopicId
from penstock_core.metadata import MetadataImage, PartitionImage, TopicImage

AT_ONCE: Final = 20_000
"""Partitions looked at in one go: one or two milliseconds."""


class Harm(IntEnum):
    """What one partition suffers."""

    NONE = 0
    SHORT = 1
    """Fewer replicas in sync than acknowledgements need."""
    DARK = 2
    """The node has its only replica."""


def _nobody(_node_id: NodeId) -> bool:
    return False


def min_isr_rules(image: MetadataImage, topic: TopicImage) -> Rules:
    """To reckon `effective_min_isr` with, and nothing else."""
    return Rules(_nobody, wanted_min_isr(image, topic.name))


def harm_of_stop(partition: PartitionImage, rules: Rules, node_id: NodeId) -> Harm:
    """What the partition suffers while the node is away."""
    if node_id not in partition.isr:
        return Harm.NONE
    settled = [n for n in partition.replicas if n not in partition.adding_replicas]
    if settled == [node_id]:
        return Harm.DARK
    return Harm.SHORT if len(partition.isr) - 1 < rules.effective_min_isr(partition) else Harm.NONE


def is_ill(partition: PartitionImage, rules: Rules) -> bool:
    """Whether it is offline, or below min ISR."""
    return partition.leader == NO_NODE or len(partition.isr) < rules.effective_min_isr(partition)


@dataclass(slots=True)
class Found:
    """Partitions by what is to be said of them; names as `flights-3`."""

    ill: list[str] = field(default_factory=list)
    """Offline or below min ISR."""
    short: list[str] = field(default_factory=list)
    """Would be below min ISR without the node."""
    dark: list[str] = field(default_factory=list)
    """Would have no replica at all without the node."""
    behind: list[str] = field(default_factory=list)
    """The node has a replica that is not in sync, though somebody leads."""
    unled: list[PartitionImage] = field(default_factory=list)
    """The node is the preferred leader, in sync, and does not lead."""

    def add(self, other: Found) -> None:
        """Those of another topic too."""
        self.ill += other.ill
        self.short += other.short
        self.dark += other.dark
        self.behind += other.behind
        self.unled += other.unled

    def __bool__(self) -> bool:
        return bool(self.ill or self.short or self.dark or self.behind or self.unled)


class StopLook:
    """All partitions as they concern one node. What it remembers only saves looking twice."""

    def __init__(self, node_id: NodeId, at_once: int = AT_ONCE) -> None:
        self.node_id = node_id
        self._at_once = at_once
        self._configs: object = None
        self._seen: dict[TopicId, TopicImage] = {}
        self._found: dict[TopicId, Found] = {}

    def look(self, image: MetadataImage) -> Found | None:
        """As of this image; None while some topics have yet to be looked at: call again."""
        if image.configs is not self._configs:
            self._configs = image.configs
            self._seen, self._found = {}, {}
        looked = 0
        for topic_id, topic in image.topics.items():
            if self._seen.get(topic_id) is topic:
                continue
            if looked >= self._at_once:
                return None
            looked += len(topic.partitions)
            self._seen[topic_id] = topic
            self._found.pop(topic_id, None)
            if found := self._look_at(topic, min_isr_rules(image, topic)):
                self._found[topic_id] = found
        for gone in self._seen.keys() - image.topics.keys():
            del self._seen[gone]
            self._found.pop(gone, None)
        whole = Found()
        for some in self._found.values():
            whole.add(some)
        return whole

    def _look_at(self, topic: TopicImage, rules: Rules) -> Found:
        found, node_id = Found(), self.node_id
        for number, partition in topic.partitions.items():
            name = f"{topic.name}-{number}"
            if is_ill(partition, rules):
                found.ill.append(name)
            if node_id not in partition.replicas:
                continue
            harm = harm_of_stop(partition, rules, node_id)
            if harm is Harm.DARK:
                found.dark.append(name)
            elif harm is Harm.SHORT:
                found.short.append(name)
            if node_id not in partition.isr:
                if partition.leader != NO_NODE and node_id not in partition.adding_replicas:
                    found.behind.append(name)
            elif partition.replicas[0] == node_id and partition.leader != node_id:
                found.unled.append(partition)
        return found
