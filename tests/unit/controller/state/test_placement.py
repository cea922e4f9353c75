"""Replicas of new partitions go to as many domains of every level as there are."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock_controller.state import topics
from penstock_controller.state.generation import Context
from penstock_controller.state.operations.planner.domains import Domains
from penstock_controller.state.placement import Load, place_steps
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import controller_pb2 as api
from penstock_runtime.turns import all_at_once
from unit.controller.state.operations.images import cluster, node

RACK = st.lists(st.sampled_from("abc"), max_size=3).map("/".join)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    racks=st.dictionaries(st.integers(1, 12).map(NodeId), RACK, min_size=1),
    partitions=st.integers(1, 20),
    factor=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_each_partition_is_spread_as_well_as_can_be(
    racks: dict[NodeId, str], partitions: int, factor: int, seed: int
) -> None:
    factor = min(factor, len(racks))
    domains = Domains(racks)
    best = domains.best(factor, frozenset(racks))
    placed = all_at_once(place_steps(racks, partitions, factor, Load(), Load(), random.Random(seed)))
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert domains.cost(replicas) == best


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    zones=st.integers(1, 3),
    hosts=st.integers(1, 3),
    per_host=st.integers(1, 2),
    partitions=st.integers(1, 30),
    seed=st.integers(0, 2**32),
)
def test_nodes_stay_even_where_domains_are_alike(
    zones: int, hosts: int, per_host: int, partitions: int, seed: int
) -> None:
    paths = [f"z{z}/h{h}" for z in range(zones) for h in range(hosts) for _ in range(per_host)]
    racks = {NodeId(n): path for n, path in enumerate(paths, 1)}
    factor = min(3, zones)
    placed = all_at_once(place_steps(racks, partitions, factor, Load(), Load(), random.Random(seed)))
    held, led = Counter[NodeId](), Counter[NodeId]()
    for replicas in placed:
        held.update(replicas)
        led[replicas[0]] += 1
    for counts in (held, led):
        found = [counts[n] for n in racks]
        assert max(found) - min(found) <= 1


def held_by(image: MetadataImage, low: set[int], factor: int) -> set[int]:
    """Nodes that get replicas of a new topic of 12 partitions."""
    ctx = Context(image, random.Random(1), low=lambda n: n in low)
    wanted = api.NewTopic(name="t", partition_count=12, replication_factor=factor)
    made = topics.create_topics(ctx, api.CreateTopicsRequest(topics=[wanted]))
    assert not made.reply.topics[0].error.code
    partitions = [r.partition for r in made.all_records() if r.HasField("partition")]
    assert len(partitions) == 12
    return {n for p in partitions for n in p.replicas}


def test_disks_with_little_room_get_new_replicas_only_where_nobody_else_can() -> None:
    image = cluster([node(1), node(2), node(3), node(4, disk_full=True)], {})
    assert held_by(image, set(), 2) == {1, 2, 3}
    assert held_by(image, {2}, 2) == {1, 3}
    assert held_by(image, {2}, 3) == {1, 2, 3, 4}
    assert held_by(image, {1, 2, 3}, 1) == {1, 2, 3, 4}
