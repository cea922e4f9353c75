"""Clusters of a given size: real placement and image, topics of 100 partitions, so topics grow with partitions."""

from __future__ import annotations

import random
from dataclasses import dataclass

from bench.planner import drained, image_of, racks_of

from penstock_controller.state.operations.reports import Reports
from penstock_controller.state.placement import Load, place_steps
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage

FACTOR = 3
PARTITIONS_PER_NODE = 1_000
PARTITIONS_PER_TOPIC = 100


@dataclass(frozen=True)
class Cluster:
    """What an active controller knows."""

    nodes: int
    partitions: int
    image: MetadataImage
    reports: Reports


def placed(nodes: int, topics: int, seed: int) -> list[list[list[NodeId]]]:
    """Replicas of all partitions, topic by topic, as CreateTopics places them."""
    rng, load, racks = random.Random(seed), Load(), racks_of(nodes)
    found = []
    for _ in range(topics):
        topic = drained(place_steps(racks, PARTITIONS_PER_TOPIC, FACTOR, load, Load(), rng))
        drained(load.add_all(topic))
        found.append(topic)
    return found


def make(nodes: int, per_node: int = PARTITIONS_PER_NODE, seed: int = 1) -> Cluster:
    """A cluster in which each node leads about `per_node` partitions."""
    topics = nodes * per_node // PARTITIONS_PER_TOPIC
    image, reports = image_of(nodes, placed(nodes, topics, seed))
    return Cluster(nodes, topics * PARTITIONS_PER_TOPIC, image, reports)
