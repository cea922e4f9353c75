"""How well a cluster's partitions and nodes are, in numbers: kept by what changed between two images. Pure.

An image shares with the one before it every topic and every partition that did not change, so telling what did is
comparing identities; only what changed is counted anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from penstock_controller.state.nodes import wanted_min_isr
from penstock_controller.state.observations.spread import Spread, present, racks_of
from penstock_controller.state.partitions import Rules
from penstock_core.ids import NO_NODE, NodeId, TopicId
from penstock_core.metadata import MetadataImage, NodeImage, PartitionImage, TopicImage
from penstock_core.metadata.operations import NodePolicy

NODE_STATES: Final = ("live", "fenced", "cordoned", "draining", "disk_full", "disk_failed")
"""What a node is said to be: the first that fits, from the right."""

_STEP: Final = 1_000
"""Work between two chances for others to run (below 0.1 ms), in comparisons."""
_COUNT_WORK: Final = 60
"""What counting a partition takes of it."""


def _nobody(_node_id: NodeId) -> bool:
    return False


_UNSET: Final = Rules(_nobody, 0)


@dataclass(slots=True)
class Counts:
    """Of one image. Partitions by what is wrong with them; one may be in several of these."""

    topics: int = 0
    partitions: int = 0
    offline: int = 0
    """Without a leader."""
    under_replicated: int = 0
    """As `PartitionImage.under_replicated` (KIP-352)."""
    under_min_isr: int = 0
    """They take no acks=all."""
    at_min_isr: int = 0
    """One in-sync replica fewer, and they take no acks=all."""
    not_preferred: int = 0
    """The first replica does not lead, as Kafka's PreferredReplicaImbalanceCount has it: offline ones too."""
    reassigning: int = 0
    domain_unsafe: int = 0
    """They would take no acks=all with one node, host or rack lost, were all others in sync."""
    replicas: Counter[NodeId] = field(default_factory=Counter)
    leaders: Counter[NodeId] = field(default_factory=Counter)
    spread: Spread = field(default_factory=lambda: Spread({}), compare=False)

    def add(self, partition: PartitionImage, min_isr: int, sign: int) -> None:
        """Count a partition (`sign` 1), or take it out of the count as it went in (-1)."""
        self.partitions += sign
        in_sync, leader = len(partition.isr), partition.leader
        if in_sync < min_isr:
            self.under_min_isr += sign
        elif in_sync == min_isr:
            self.at_min_isr += sign
        if partition.under_replicated:
            self.under_replicated += sign
        if partition.reassigning:
            self.reassigning += sign
        if not self.spread.is_safe(present(partition), min_isr):
            self.domain_unsafe += sign
        if leader == NO_NODE:
            self.offline += sign
        else:
            self.leaders[leader] += sign
        if leader != partition.replicas[0]:
            self.not_preferred += sign
        for node_id in partition.replicas:
            self.replicas[node_id] += sign


@dataclass(slots=True)
class _Topic:
    """A topic as it is counted."""

    image: TopicImage
    config: Mapping[str, str]
    rules: Rules


class ClusterCounts:
    """The counts of the newest image that was looked at as a whole."""

    def __init__(self) -> None:
        self.counts: Counts | None = None
        """None until the first look has ended."""
        self.is_looking = False
        """A look is under way; it ends before another begins."""
        self._now = Counts()
        self._topics: dict[TopicId, _Topic] = {}
        self._seen: tuple[object, object] = (None, None)
        self._nodes: object = None
        """Nodes whose racks are those of the counts."""
        self._cluster_config: Mapping[str, str] = {}

    def is_behind(self, image: MetadataImage) -> bool:
        """Whether something that counts may have changed since the last look."""
        return (
            image.topics is not self._seen[0] or image.configs is not self._seen[1] or self._is_moved(image)
        )

    def _is_moved(self, image: MetadataImage) -> bool:
        """Whether nodes are in other domains than they were, or others are there."""
        if image.nodes is not self._nodes:
            if racks_of(image) != self._now.spread.racks:
                return True
            self._nodes = image.nodes
        return False

    def update(self, image: MetadataImage) -> None:
        """Look at what changed, all at once."""
        for _ in self.update_steps(image):
            pass

    def update_steps(self, image: MetadataImage) -> Generator[None, None, None]:
        """The same in steps; `counts` are of the image before until the last."""
        self.is_looking = True
        if self._is_moved(image):
            # What is safe may be another for each partition: they are counted anew.
            self._now = Counts(spread=Spread.of(image))
            self._topics = {}
            self._nodes = image.nodes
        if image.configs is not self._seen[1]:
            yield from self._take_configs(image)
        work = 0
        for topic_id, topic in image.topics.items():
            known = self._topics.get(topic_id)
            if known is None:
                known = self._topics[topic_id] = _begun(image, topic)
                work += _COUNT_WORK
            if known.image is not topic:
                work = yield from self._change(known, topic, known.rules, work)
            work += 1
            if work >= _STEP:
                work = 0
                yield
        if len(self._topics) > len(image.topics):
            yield from self._forget(image)
        self._now.topics = len(image.topics)
        now = self._now
        self.counts = replace(now, replicas=now.replicas.copy(), leaders=now.leaders.copy())
        self._seen = image.topics, image.configs
        self.is_looking = False

    def _take_configs(self, image: MetadataImage) -> Generator[None, None, None]:
        """Topics whose min ISR is another now are counted anew."""
        cluster_config = image.config("cluster", "")
        is_other = cluster_config is not self._cluster_config
        self._cluster_config = cluster_config
        work = 0
        for known in self._topics.values():
            config = image.config("topic", known.image.name)
            if is_other or config is not known.config:
                known.config = config
                min_isr = wanted_min_isr(image, known.image.name)
                if min_isr != known.rules.min_isr:
                    work = yield from self._change(
                        known, known.image, Rules(_nobody, min_isr), work, anew=True
                    )
                work += _COUNT_WORK
            work += 1
            if work >= _STEP:
                work = 0
                yield

    def _forget(self, image: MetadataImage) -> Generator[None, None, None]:
        work = 0
        for topic_id in list(self._topics):
            if topic_id not in image.topics:
                known = self._topics.pop(topic_id)
                work = yield from self._change(
                    known, replace(known.image, partitions={}), known.rules, work + _COUNT_WORK
                )
            work += 1
            if work >= _STEP:
                work = 0
                yield

    def _change(
        self, known: _Topic, topic: TopicImage, rules: Rules, work: int, *, anew: bool = False
    ) -> Generator[None, None, int]:
        """Count the topic as it is now, in place of how it was; `anew` every partition, else those that changed.

        Takes and returns the work that was done in the step that goes on.
        """
        now, before, old_rules = self._now, known.image.partitions, known.rules
        kept = 0
        for number, partition in topic.partitions.items():
            old = before.get(number)
            kept += old is not None
            if old is not partition or anew:
                if old is not None:
                    now.add(old, old_rules.effective_min_isr(old), -1)
                now.add(partition, rules.effective_min_isr(partition), 1)
                work += _COUNT_WORK
            work += 1
            if work >= _STEP:
                work = 0
                yield
        if kept < len(before):
            for number, old in before.items():
                if number not in topic.partitions:
                    now.add(old, old_rules.effective_min_isr(old), -1)
                    work += _COUNT_WORK
                    if work >= _STEP:
                        work = 0
                        yield
        known.image, known.rules = topic, rules
        return work


def _begun(image: MetadataImage, topic: TopicImage) -> _Topic:
    """A topic of which nothing is counted yet."""
    min_isr = wanted_min_isr(image, topic.name)
    rules = Rules(_nobody, min_isr) if min_isr else _UNSET
    return _Topic(TopicImage(topic.topic_id, topic.name), image.config("topic", topic.name), rules)


# --- nodes ------------------------------------------------------------------------------------


def node_states(image: MetadataImage) -> dict[str, int]:
    """How many nodes are in each of NODE_STATES."""
    states = dict.fromkeys(NODE_STATES, 0)
    for node_id, node in image.nodes.items():
        states[_state_of(node, image.operations.policies.get(node_id))] += 1
    return states


def _state_of(node: NodeImage, policy: NodePolicy | None) -> str:
    if node.disk_failed:
        return "disk_failed"
    if node.disk_full:
        return "disk_full"
    if policy is not None and policy.draining:
        return "draining"
    if policy is not None and policy.cordoned:
        return "cordoned"
    return "fenced" if node.fenced else "live"


def sharing_nodes(image: MetadataImage) -> list[NodeId]:
    """Nodes over which replicas, leaders and bytes are to be even: live ones that are not cordoned or drained."""
    cordoned = image.operations.is_cordoned
    return [n for n, node in image.nodes.items() if not node.fenced and not cordoned(n)]


def imbalance_ratio(held: Collection[int]) -> float:
    """Of what each node has: the largest over the mean, less 1; 0 where there is nothing."""
    total = sum(held)
    return max(held) * len(held) / total - 1 if total else 0.0


__all__ = [
    "NODE_STATES",
    "ClusterCounts",
    "Counts",
    "imbalance_ratio",
    "node_states",
    "sharing_nodes",
]
