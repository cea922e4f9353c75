"""Counts of the cluster: kept by what changed, they are what counting everything gives."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from penstock_controller.state.nodes import rules_for
from penstock_controller.state.operations import cluster_counts
from penstock_controller.state.operations.cluster_counts import (
    ClusterCounts,
    Counts,
    imbalance_ratio,
    node_states,
    sharing_nodes,
)
from penstock_core.ids import NO_NODE, NodeId, TopicId
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_core.metadata.operations import NodePolicy
from penstock_proto.v1 import metadata_pb2 as pb
from unit.controller.state.operations.images import cluster, ids, node, partition

NODES = range(1, 6)
TOPICS = "abcdef"


def counted(image: MetadataImage) -> Counts:
    """By looking at everything."""
    counts = Counts(topics=len(image.topics))
    domains = [{n for n in image.nodes if in_domain(image.nodes[n].rack, d)} for d in domains_of(image)]
    domains = [each for each in domains if len(each) < len(image.nodes)]
    domains += [{n} for n in image.nodes if len(image.nodes) > 1]
    for topic in image.topics.values():
        rules = rules_for(image, topic)
        for each in topic.partitions.values():
            min_isr = rules.effective_min_isr(each)
            counts.partitions += 1
            counts.offline += each.leader == NO_NODE
            counts.under_replicated += len(each.isr) < len(each.replicas) - len(each.adding_replicas)
            counts.under_min_isr += len(each.isr) < min_isr
            counts.at_min_isr += len(each.isr) == min_isr
            counts.not_preferred += each.leader != each.replicas[0]
            there = set(each.replicas) - set(each.adding_replicas)
            counts.domain_unsafe += any(len(there - lost) < min_isr for lost in domains)
            counts.reassigning += bool(each.adding_replicas or each.removing_replicas)
            counts.replicas.update(each.replicas)
            counts.leaders.update([each.leader] if each.leader != NO_NODE else [])
    return counts


def domains_of(image: MetadataImage) -> set[str]:
    """Every path that some node is in, in a cluster whose racks all have two levels or none."""
    racks = {each.rack for each in image.nodes.values()}
    return racks | {rack.partition("/")[0] for rack in racks}


def in_domain(rack: str, domain: str) -> bool:
    return rack == domain or rack.startswith(f"{domain}/")


class History:
    """Images of a cluster to which anything happens."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.image = MetadataImage()
        self.made = 0
        self.on([pb.MetadataRecord(node=pb.NodeRecord(node_id=n)) for n in NODES])

    def on(self, records: list[pb.MetadataRecord]) -> None:
        self.image = self.image.apply(records, self.image.version + 1)

    def some_partition(self, topic_id: TopicId, number: int) -> pb.MetadataRecord:
        rng = self.rng
        replicas = ids(rng.sample(NODES, rng.randint(1, 4)))
        isr = tuple(n for n in replicas if rng.random() < 0.7)
        made = PartitionImage(
            topic_id,
            number,
            replicas,
            isr,
            rng.choice(isr) if isr else NO_NODE,
            leader_epoch=rng.randrange(100),  # type: ignore[arg-type]
            partition_epoch=1,
            adding_replicas=replicas[-1:] if len(replicas) > 1 and rng.random() < 0.2 else (),
        )
        return pb.MetadataRecord(partition=made.to_pb())

    def happen(self) -> None:
        rng, image = self.rng, self.image
        what = rng.choice(
            ("topic", "partitions", "partitions", "remove", "config", "nothing", "whole", "rack")
        )
        if what == "topic" and len(image.topics) < len(TOPICS):
            name = rng.choice([each for each in TOPICS if each not in image.topic_ids])
            self.made += 1
            topic_id = TopicId(self.made.to_bytes(16, "big"))
            record = pb.MetadataRecord(topic=pb.TopicRecord(topic_id=topic_id, name=name))
            self.on([record, *(self.some_partition(topic_id, n) for n in range(rng.randint(0, 12)))])
        elif what == "partitions" and image.topics:
            chosen = [rng.choice(list(image.topics)) for _ in range(rng.randint(1, 5))]
            self.on([self.some_partition(each, rng.randrange(15)) for each in chosen])
        elif what == "remove" and image.topics:
            gone = rng.choice(list(image.topics))
            self.on([pb.MetadataRecord(topic_removed=pb.TopicRemovedRecord(topic_id=gone))])
        elif what == "config":
            self.config()
        elif what == "rack":
            rack = rng.choice(("", "a/1", "a/2", "b/1"))
            self.on([pb.MetadataRecord(node=pb.NodeRecord(node_id=rng.choice(NODES), rack=rack))])
        elif what == "nothing":
            self.on([pb.MetadataRecord(producer_ids=pb.ProducerIdsRecord(next_producer_id=image.version))])
        elif what == "whole":
            # As a snapshot that came: the same, and shares nothing with what was.
            self.image = MetadataImage.from_records(list(image.to_records()), image.version)

    def config(self) -> None:
        rng = self.rng
        kind, name = rng.choice((("cluster", ""), *(("topic", name) for name in self.image.topic_ids)))
        record = pb.ConfigRecord(resource_type=kind, resource_name=name, key="min.insync.replicas")
        if rng.random() < 0.7:
            record.value = rng.choice(("1", "2", "3"))
        self.on([pb.MetadataRecord(config=record)])


@pytest.mark.parametrize("seed", range(40))
def test_they_are_what_counting_everything_gives(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(seed)
    monkeypatch.setattr(cluster_counts, "_STEP", history.rng.choice((1, 50, 1_000)))
    kept = ClusterCounts()
    for _ in range(60):
        for _ in range(history.rng.randint(1, 3)):
            history.happen()
        looked_at, before = history.image, kept.counts
        for _ in kept.update_steps(looked_at):
            # The metadata go on, and until the look has ended it tells of the image before.
            if history.rng.random() < 0.05:
                history.happen()
            assert kept.counts is before
        assert not kept.is_behind(looked_at)
        assert kept.counts == counted(looked_at)
        if history.image.topics is not looked_at.topics or history.image.configs is not looked_at.configs:
            assert kept.is_behind(history.image)


def test_a_look_counts_only_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    image = cluster(NODES, {name: [(1, 2, 3)] * 50 for name in TOPICS})
    kept = ClusterCounts()
    kept.update(image)
    calls = Counter[int]()
    add = Counts.add

    def counting(self: Counts, partition: PartitionImage, min_isr: int, sign: int) -> None:
        calls[sign] += 1
        add(self, partition, min_isr, sign)

    monkeypatch.setattr(Counts, "add", counting)
    smaller = replace(partition("a", 7, (1, 2, 3)), isr=ids((1,)))
    changed = image.apply([pb.MetadataRecord(partition=smaller.to_pb())], image.version + 1)
    kept.update(changed)
    assert calls == {1: 1, -1: 1}
    assert kept.counts is not None
    assert (kept.counts.under_replicated, kept.counts.under_min_isr) == (1, 1)
    # A node that goes or comes is no change of topics.
    fenced = replace(changed, nodes={**changed.nodes, NodeId(1): node(1, fenced=True)})
    assert not kept.is_behind(fenced)
    # A setting of one topic.
    record = pb.ConfigRecord(resource_type="topic", resource_name="b", key="min.insync.replicas", value="3")
    kept.update(changed.apply([pb.MetadataRecord(config=record)], changed.version + 1))
    assert calls == {1: 51, -1: 51}
    assert kept.counts.at_min_isr == 50


def test_a_step_of_very_many_partitions_is_short() -> None:
    image = cluster(NODES, {"a": [(1, 2, 3)] * 3_000} | {f"t{n}": [(1, 2)] for n in range(2_000)})
    most = cluster_counts._STEP // cluster_counts._COUNT_WORK
    assert sum(1 for _ in ClusterCounts().update_steps(image)) >= 5_000 / most


def test_a_node_is_in_the_gravest_state_that_is_so() -> None:
    nodes = [node(1), node(2, fenced=True), node(3), node(4), node(5, disk_full=True), node(6), node(7)]
    nodes[5] = replace(nodes[5], disk_failed=True, disk_full=True)
    image = cluster(nodes, {}, cordoned=(2, 3, 6))
    policies = {**image.operations.policies, NodeId(4): NodePolicy(cordoned=True, draining=True)}
    image = replace(image, operations=replace(image.operations, policies=policies))
    assert node_states(image) == {
        "live": 2,
        "fenced": 0,
        "cordoned": 2,
        "draining": 1,
        "disk_full": 1,
        "disk_failed": 1,
    }
    # Where things are to be even: a node that an operator keeps empty is no imbalance, one with a full disk is.
    assert sharing_nodes(image) == [1, 5, 7]


@pytest.mark.parametrize(
    ("held", "ratio"), [([], 0.0), ([0, 0], 0.0), ([4, 4, 4], 0.0), ([6, 3, 3], 0.5), ([3, 0, 0], 2.0)]
)
def test_imbalance_is_the_most_over_the_mean(held: list[int], ratio: float) -> None:
    assert imbalance_ratio(held) == ratio
