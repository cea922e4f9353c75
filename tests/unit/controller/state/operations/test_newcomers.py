"""Nodes that get their share by themselves: only where it is asked for, once, and never against somebody's will."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock_controller.state.operations.newcomers import (
    CREATED_BY,
    LIVE_MS,
    REST_MS,
    TOGETHER_MS,
    count_replicas,
    nodes_to_fill,
    obstacle,
)
from penstock_core.config.catalog import AUTO_REBALANCE, CLUSTER
from penstock_core.ids import NodeId
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.turns import all_at_once
from support.moved_cluster import MovedCluster, Replicas

SPREAD: Replicas = {("t", n): ((1, 2), (2, 3), (3, 1))[n % 3] for n in range(12)}
NOW_MS = 1_700_000_000_000


class Grown(MovedCluster):
    """Three nodes with 8 replicas each, and a fourth one that has none."""

    def __init__(self, node_count: int = 4, *, auto: str = "true") -> None:
        super().__init__(SPREAD, node_count)
        config = pb.ConfigRecord(resource_type=CLUSTER, key=AUTO_REBALANCE, value=auto)
        self._apply([pb.MetadataRecord(config=config)])
        self.live_ms = dict.fromkeys(range(1, 4), 10**9) | dict.fromkeys(range(4, node_count + 1), LIVE_MS)

    def steady(self, node_id: NodeId, for_ms: int) -> bool:
        return self.live_ms[node_id] >= for_ms

    def due(self, now_ms: int = NOW_MS) -> list[int]:
        return list(nodes_to_fill(self.image, all_at_once(count_replicas(self.image)), self.steady, now_ms))

    def operate(self, kind: str, node_id: int = 4, **fields: object) -> None:
        fields.setdefault("state", pb.OPERATION_STATE_DONE)
        record = pb.OperationRecord(
            operation_id=self.image.version + 1,
            kind=kind,
            parameters=pb.OperationParameters(node_ids=[node_id]),
            **fields,  # type: ignore[arg-type]
        )
        self._apply([pb.MetadataRecord(operation=record)])


def test_a_node_that_has_been_live_for_a_minute_and_has_nothing_is_due() -> None:
    grown = Grown()
    assert grown.due() == [4]
    assert obstacle(grown.image, [NodeId(4)], NOW_MS) == ""
    grown.live_ms[4] = LIVE_MS - 1
    assert grown.due() == []


@pytest.mark.parametrize("auto", ["false", "no"])
def test_nothing_is_done_unasked(auto: str) -> None:
    grown = Grown(auto=auto)
    assert grown.due() == []
    assert "switched off" in obstacle(grown.image, [NodeId(4)], NOW_MS)


def test_few_is_less_than_half_of_what_the_others_have() -> None:
    few: Replicas = {**SPREAD, **{("u", n): (4,) for n in range(3)}}
    grown = Grown()
    grown.image = MovedCluster(few, 4).image
    config = pb.ConfigRecord(resource_type=CLUSTER, key=AUTO_REBALANCE, value="true")
    grown._apply([pb.MetadataRecord(config=config)])
    # 27 replicas on 4 nodes: 3 are less than half of 6.75, 4 are not.
    assert grown.due() == [4]
    grown.image = MovedCluster({**few, ("u", 3): (4,)}, 4).image
    grown._apply([pb.MetadataRecord(config=config)])
    assert grown.due() == []


def test_those_that_come_one_after_another_are_filled_together_but_none_waits_for_ever() -> None:
    grown = Grown(5)
    grown.live_ms[5] = 1_000
    assert grown.due() == []
    grown.live_ms[4] = TOGETHER_MS
    assert grown.due() == [4]
    grown.live_ms |= {4: LIVE_MS + 5_000, 5: LIVE_MS}
    assert grown.due() == [4, 5]


@pytest.mark.parametrize("change", ["fenced", "disk_full", "disk_failed", "in_controlled_shutdown"])
def test_a_node_that_is_not_well_is_left_alone(change: str) -> None:
    grown = Grown()
    node = replace(grown.image.nodes[NodeId(4)], **{change: True})  # type: ignore[arg-type]
    grown._apply([pb.MetadataRecord(node=node.to_pb())])
    assert grown.due() == []
    assert obstacle(grown.image, [NodeId(4)], NOW_MS) == "node 4 is not to be filled by itself any more"


@pytest.mark.parametrize("policy", [{"cordoned": True}, {"draining": True}])
def test_a_cordoned_node_is_left_alone(policy: dict[str, bool]) -> None:
    grown = Grown()
    record = pb.NodePolicyRecord(node_id=4, operation_id=1, **policy)
    grown._apply([pb.MetadataRecord(node_policy=record)])
    assert grown.due() == []


def test_never_two_for_one_node_nor_beside_another_operation() -> None:
    grown = Grown()
    grown.operate("node-add", created_by=CREATED_BY, state=pb.OPERATION_STATE_RUNNING, moves_total=6)
    assert grown.due() == []
    assert "another operation has begun" in obstacle(grown.image, [NodeId(4)], NOW_MS)
    for kind, state, node_id in [
        ("node-drain", pb.OPERATION_STATE_RUNNING, 4),
        ("rebalance", pb.OPERATION_STATE_PAUSED, 1),
        ("rolling-restart", pb.OPERATION_STATE_PENDING, 1),
        ("reassignment", pb.OPERATION_STATE_RUNNING, 1),
    ]:
        grown = Grown()
        grown.operate(kind, node_id, state=state, moves_total=1)
        assert grown.due() == [], kind
    # Without moves it is about the node alone.
    grown = Grown()
    grown.operate("node-uncordon", state=pb.OPERATION_STATE_RUNNING)
    assert grown.due() == []


@pytest.mark.parametrize("state", [pb.OPERATION_STATE_CANCELLED, pb.OPERATION_STATE_FAILED])
def test_what_somebody_cancelled_is_not_begun_again_until_somebody_does_something_with_the_node(
    state: pb.OperationState.ValueType,
) -> None:
    grown = Grown()
    grown.operate("node-add", created_by=CREATED_BY, state=state, finished_ms=NOW_MS)
    assert grown.due(NOW_MS + 10 * REST_MS) == []
    grown.operate("node-uncordon", created_by="User:admin", finished_ms=NOW_MS)
    assert grown.due() == [4]


def test_one_that_ended_well_rests_for_a_while() -> None:
    grown = Grown()
    grown.operate("node-add", created_by=CREATED_BY, finished_ms=NOW_MS)
    assert grown.due(NOW_MS + REST_MS - 1) == []
    assert grown.due(NOW_MS + REST_MS) == [4]


def test_a_level_without_operations_has_none() -> None:
    grown = Grown()
    level = pb.FeatureRecord(name="metadata.level", level=2)
    grown._apply([pb.MetadataRecord(feature=level)])
    assert grown.due() == []
