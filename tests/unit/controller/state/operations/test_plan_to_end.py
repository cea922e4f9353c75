"""From a request over its plan to the end of the operation: what was planned is what is done, and there is no more."""

from __future__ import annotations

import random

import pytest

from penstock_controller.state.operations.plans.plan import PlanView, plan_steps
from penstock_core.ids import NodeId
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api
from penstock_runtime.turns import all_at_once
from support.moved_cluster import MovedCluster

GIB = 1024**3


def cluster_of(seed: int) -> MovedCluster:
    rng = random.Random(seed)
    replicas = {
        (topic, i): rng.sample(range(1, 6), factor)
        for topic, factor in (("a", 3), ("b", 2), ("c", 1))
        for i in range(rng.randint(1, 12))
    }
    racks = {n: f"zone-{n % 3}" for n in range(1, 7)} if seed % 2 else None
    cluster = MovedCluster(replicas, node_count=6, racks=racks, rng=rng)
    for n in range(1, 7):
        report = api.NodeReport(
            disk_total_bytes=100 * GIB, disk_free_bytes=90 * GIB, first_of_all=True, last_of_all=True
        )
        for p in cluster.partitions():
            if n in p.replicas:
                report.sizes.add(topic_id=p.topic_id, partition=p.partition, size_bytes=1_000)
        cluster.reports.take(NodeId(n), n, report, 0)
    return cluster


def planned(cluster: MovedCluster, kind: str, **parameters: object) -> api.Plan:
    request = api.PlanRequest(kind=kind, parameters=pb.OperationParameters(**parameters))  # type: ignore[arg-type]
    if kind == "node-replace":
        # One for one, wherever it stands.
        request.allowed_gates.append("racks")
    view = PlanView(reports=cluster.reports, alive=lambda _: True)
    return all_at_once(plan_steps(cluster.image, request, view))


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("rebalance", {}),
        ("node-drain", {"node_ids": [2]}),
        ("node-remove", {"node_ids": [2, 3]}),
        ("node-replace", {"node_ids": [1], "replacement_node_id": 6}),
        ("node-add", {"node_ids": [6]}),
        ("set-replication-factor", {"topics": ["a", "b"], "replication_factor": 2}),
        ("leader-elect", {}),
    ],
)
@pytest.mark.parametrize("seed", range(6))
def test_what_was_planned_is_done_and_then_there_is_nothing_to_do(
    kind: str, parameters: dict[str, object], seed: int
) -> None:
    cluster = cluster_of(seed)
    if kind == "leader-elect":
        cluster.die(1)
        cluster.rise(1)
        cluster.catch_up()
    plan = planned(cluster, kind, **parameters)
    assert plan.runnable, plan.gates
    operation = cluster.start(plan)
    record = cluster.finish(operation)
    assert record.state == pb.OPERATION_STATE_DONE, record
    assert (record.moves_done, record.moves_total) == (len(plan.moves), len(plan.moves))
    for move in plan.moves:
        partition = cluster.partition(move.topic, move.partition)
        assert partition.replicas == tuple(move.to)
        assert not partition.reassigning
    if kind not in ("node-remove", "node-replace"):
        after = planned(cluster, kind, **parameters)
        assert not after.moves
        assert not after.totals.leader_changes or kind != "leader-elect"
