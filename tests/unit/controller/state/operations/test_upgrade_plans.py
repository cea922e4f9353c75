"""Upgrades: planned by what every process understands, done in the command that sets the level."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock_controller.state.operations.plans.upgrade import (
    UPGRADE,
    Controllers,
    plan_upgrade,
    start_upgrade,
)
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata.levels import level_of, require_records
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import metadata_pb2 as meta
from penstock_proto.v1 import operations_pb2 as pb
from unit.controller.state.test_nodes import Cluster

NEW = common.ProcessInfo(version="2.0", feature_level=FEATURE_LEVEL)
OLD = common.ProcessInfo(version="1.0", feature_level=2)
ALL: Controllers = {1: NEW, 2: NEW, 3: NEW}
NOW_MS = 1_700_000_000_000


def wanted(level: int = 0, *, downgrade: bool = False) -> pb.PlanRequest:
    parameters = meta.OperationParameters(level=level, downgrade=downgrade)
    return pb.PlanRequest(kind=UPGRADE, parameters=parameters)


def start(
    cluster: Cluster, request: pb.PlanRequest, controllers: Controllers = ALL, plan_id: str = ""
) -> pb.StartOperationResponse:
    """What it comes to, applied; nothing of it is above the level that the cluster has at that place."""
    asked = pb.StartOperationRequest(request=request, plan_id=plan_id, principal="User:admin")
    made = start_upgrade(cluster.context, asked, controllers, NOW_MS)
    assert not (made.reply.error.code and made.records)
    require_records(cluster.image, made.records)
    if made.records:
        cluster.do(made)
    return made.reply


def old_cluster() -> Cluster:
    cluster = Cluster(level=2)
    cluster.register(1, process=NEW)
    cluster.unfence(1)
    return cluster


def test_the_plan_lists_every_process_with_what_it_understands() -> None:
    plan = plan_upgrade(old_cluster().image, wanted(), {1: NEW, 2: OLD, 3: None})
    assert [(s.name, s.role, s.version, s.feature_level, s.action) for s in plan.steps] == [
        ("controller-1", "controller", "2.0", FEATURE_LEVEL, f"understands level {FEATURE_LEVEL}"),
        ("controller-2", "controller", "1.0", 2, "understands level 2"),
        ("controller-3", "controller", "", 0, "does not answer"),
        ("node-1", "storage-node", "2.0", FEATURE_LEVEL, f"understands level {FEATURE_LEVEL}"),
    ]
    assert (plan.metadata_level, plan.parameters.level) == (2, FEATURE_LEVEL)
    (gate,) = (gate for gate in plan.gates if gate.blocking)
    assert gate.name == "versions"
    assert list(gate.items) == ["controller-2 (understands level 2)", "controller-3 (does not answer)"]


def test_the_level_rises_with_its_operation_in_one_command() -> None:
    cluster = old_cluster()
    approved = plan_upgrade(cluster.image, wanted(), ALL).plan_id
    reply = start(cluster, wanted(), plan_id=approved)
    assert level_of(cluster.image) == FEATURE_LEVEL
    (record,) = cluster.image.operations.operations.values()
    assert record == reply.operation.record
    assert (record.kind, record.state, record.created_by) == (
        UPGRADE,
        meta.OPERATION_STATE_DONE,
        "User:admin",
    )
    assert record.operation_id == cluster.image.version


def test_a_level_without_operations_is_reached_and_not_recorded() -> None:
    cluster = Cluster(level=1)
    reply = start(cluster, wanted(2))
    assert reply.operation.record.state == meta.OPERATION_STATE_DONE
    assert level_of(cluster.image) == 2
    assert not cluster.image.operations.operations


def test_nothing_is_begun_while_a_process_is_behind_or_the_plan_is_another() -> None:
    cluster = old_cluster()
    reply = start(cluster, wanted(), {1: NEW, 2: OLD, 3: NEW})
    assert reply.error.code == ErrorCode.POLICY_VIOLATION
    assert "controller-2 (understands level 2)" in reply.error.message
    assert start(cluster, wanted(), plan_id="0" * 16).error.code == ErrorCode.POLICY_VIOLATION
    assert level_of(cluster.image) == 2


def test_it_waits_for_what_goes_from_process_to_process() -> None:
    cluster = Cluster(level=3)
    cluster.register(1, process=NEW)
    steps = [meta.OperationStep(name="node-1", role="storage-node")]
    rolling = meta.OperationRecord(
        operation_id=7, kind="rolling-restart", state=meta.OPERATION_STATE_PAUSED, steps=steps
    )
    image = cluster.image.apply([meta.MetadataRecord(operation=rolling)], cluster.image.version + 1)
    plan = plan_upgrade(image, wanted(), ALL)
    assert [(gate.name, list(gate.items)) for gate in plan.gates if gate.blocking] == [
        ("conflict", ["operation 7"])
    ]
    asked = pb.StartOperationRequest(request=wanted(), plan_id=plan.plan_id)
    reply = start_upgrade(replace(cluster.context, image=image), asked, ALL, NOW_MS).reply
    assert [gate.name for gate in reply.plan.gates if gate.blocking] == ["conflict"]
    assert "wait until it is done, or cancel it (operation 7)" in reply.error.message


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (wanted(FEATURE_LEVEL + 1), "install a newer build on them first"),
        (wanted(1), "does not go back to 1 unless --downgrade"),
        (wanted(FEATURE_LEVEL, downgrade=True), "is no downgrade"),
        (
            pb.PlanRequest(kind=UPGRADE, parameters=meta.OperationParameters(topics=["t"])),
            "no parameter topics",
        ),
    ],
)
def test_a_level_that_cannot_be_is_refused_by_name(request_: pb.PlanRequest, says: str) -> None:
    with pytest.raises(PenstockError, match=says):
        plan_upgrade(Cluster(level=2).image, request_, ALL)


def test_back_from_what_is_not_in_use_forgets_what_was_remembered() -> None:
    cluster = old_cluster()
    start(cluster, wanted())
    known = meta.ConfigRecord(resource_type="cluster", key="k", value="v", set_by="User:a", set_ms=1)
    cluster.image = cluster.image.apply([meta.MetadataRecord(config=known)], cluster.image.version + 1)
    reply = start(cluster, wanted(2, downgrade=True))
    assert not reply.error.code, reply.error
    assert level_of(cluster.image) == 2
    assert not cluster.image.operations.operations
    assert cluster.image.config("cluster", "") == {"k": "v"}
    # It is what a cluster of that level may have.
    require_records(cluster.image, list(cluster.image.to_records()))


def test_a_directory_that_was_replaced_holds_the_level_once_it_is_retired() -> None:
    cluster = old_cluster()
    start(cluster, wanted())
    left = meta.RetiredDirectoryRecord(directory_id=b"a" * 16, node_id=1, replaced_by=b"b" * 16)
    version = cluster.image.version + 1
    before = cluster.image.apply([meta.MetadataRecord(retired_directory=left)], version)
    cluster.image = before
    assert not start(cluster, wanted(2, downgrade=True)).error.code
    assert not cluster.image.operations.retired, "it is refused by nobody, and nobody need know of it"
    left.operation_id = 77
    cluster.image = before.apply([meta.MetadataRecord(retired_directory=left)], version + 1)
    plan = plan_upgrade(cluster.image, wanted(2, downgrade=True), ALL)
    assert [list(gate.items) for gate in plan.gates if gate.blocking] == [
        [f"directory {(b'a' * 16).hex()} of node 1 (retired)"]
    ]


def test_there_is_no_way_back_from_what_is_in_use() -> None:
    cluster = old_cluster()
    start(cluster, wanted())
    policy = meta.NodePolicyRecord(node_id=1, cordoned=True, operation_id=1)
    cluster.image = cluster.image.apply([meta.MetadataRecord(node_policy=policy)], cluster.image.version + 1)
    plan = plan_upgrade(cluster.image, wanted(2, downgrade=True), ALL)
    assert [list(gate.items) for gate in plan.gates if gate.blocking] == [["node 1 (cordoned)"]]
    below = plan_upgrade(Cluster(level=2).image, wanted(downgrade=True), ALL)
    assert [list(gate.items) for gate in below.gates if gate.blocking] == [["secrets of the cluster"]]


def test_transactions_hold_the_level_until_the_feature_is_taken_back() -> None:
    cluster = old_cluster()
    start(cluster, wanted())
    assert not start(cluster, wanted(3, downgrade=True)).error.code
    start(cluster, wanted())
    version = meta.FeatureRecord(name="transaction.version", level=1, version=cluster.context.version)
    cluster.image = cluster.image.apply([meta.MetadataRecord(feature=version)], cluster.image.version + 1)
    plan = plan_upgrade(cluster.image, wanted(3, downgrade=True), ALL)
    assert [list(gate.items) for gate in plan.gates if gate.blocking] == [["transaction.version 1"]]
