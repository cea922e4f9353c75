"""The cluster's own record: it is founded once, and no producer id is given out twice."""

from __future__ import annotations

import pytest

from penstock_controller.state import cluster as cluster_state
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata.levels import KIND_LEVELS, NAME_LEVELS, level_of
from penstock_proto.v1 import controller_pb2 as api
from unit.controller.state.test_nodes import Cluster


def test_producer_id_blocks_never_overlap() -> None:
    cluster = Cluster()
    blocks = []
    for _ in range(3):
        made = cluster_state.allocate_producer_ids(cluster.context, api.AllocateProducerIdsRequest(owner="x"))
        cluster.do(made)
        blocks.append((made.reply.first_producer_id, made.reply.count))
    assert blocks == [(0, 1000), (1000, 1000), (2000, 1000)]


@pytest.mark.parametrize(
    ("linked", "levels", "level", "silent"),
    [
        ({1, 2, 3}, {1: FEATURE_LEVEL, 2: 2, 3: 1}, 1, ()),
        ({1, 2}, {1: FEATURE_LEVEL, 2: 2, 3: 1}, 2, ()),
        ({1}, {1: FEATURE_LEVEL, 2: None}, FEATURE_LEVEL, ()),
        ({1, 2, 3}, {1: FEATURE_LEVEL, 2: None, 3: 2}, 2, (2,)),
        ({1, 2}, {1: FEATURE_LEVEL + 1, 2: FEATURE_LEVEL + 2}, FEATURE_LEVEL, ()),
        ({1, 4}, {1: FEATURE_LEVEL}, FEATURE_LEVEL, (4,)),
    ],
)
def test_a_cluster_begins_at_the_lowest_level_of_the_controllers_that_are_linked(
    linked: set[int], levels: dict[int, int | None], level: int, silent: tuple[int, ...]
) -> None:
    assert cluster_state.founding_level(linked, levels) == (level, silent)


@pytest.mark.parametrize("level", range(1, FEATURE_LEVEL + 1))
def test_what_a_lower_level_does_not_know_is_not_in_a_new_cluster(level: int) -> None:
    made = cluster_state.found_cluster(Cluster(level=level).context, level)
    assert not made.records
    image = Cluster(level=level).image
    assert level_of(image) == level
    assert {KIND_LEVELS[r.WhichOneof("record") or ""] for r in image.to_records()} <= set(range(1, level + 1))
    assert all(NAME_LEVELS[name] <= level for name in image.features)
    assert image.features.get("transaction.version", 0) == (2 if level >= 4 else 0)


def test_cluster_is_founded_once() -> None:
    cluster = Cluster()
    assert len(cluster.image.cluster_id) == 16
    assert not cluster_state.found_cluster(cluster.context, 1).records
