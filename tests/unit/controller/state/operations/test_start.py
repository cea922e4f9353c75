"""How operations begin, and what people may say to them."""

from __future__ import annotations

import pytest

from penstock_controller.state.generation import NextCommand
from penstock_controller.state.operations.engine.start import control_operation, start_operation
from penstock_core.errors import ErrorCode
from penstock_core.ids import NodeId
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api
from support.moved_cluster import MovedCluster

PAIR = {("t", 0): (1, 2), ("t", 1): (1, 2)}


def start(cluster: MovedCluster, plan: api.Plan, plan_id: str = "") -> api.StartOperationResponse:
    request = api.StartOperationRequest(plan_id=plan_id, principal="User:admin")
    made = start_operation(cluster.ctx, request, plan, 5_000)
    assert bool(made.all_records()) == (not made.reply.error.code)
    return made.reply


def test_it_is_recorded_with_all_that_was_approved() -> None:
    cluster = MovedCluster(PAIR)
    plan = cluster.plan("rebalance", {("t", 0): (1, 3), ("t", 1): (3, 2)}, goals=["replicas"])
    plan.throttle.bytes_per_s = 1_000_000
    request = api.StartOperationRequest(plan_id=plan.plan_id, principal="User:admin")
    request.request.allowed_gates.append("racks")
    made = start_operation(cluster.ctx, request, plan, 5_000)
    version = cluster.ctx.version
    record = made.reply.operation.record
    assert record == pb.OperationRecord(
        operation_id=version,
        kind="rebalance",
        parameters=pb.OperationParameters(goals=["replicas"]),
        plan_id=plan.plan_id,
        state=pb.OPERATION_STATE_RUNNING,
        phase="beginning",
        created_by="User:admin",
        created_ms=5_000,
        started_ms=5_000,
        throttle=pb.OperationThrottle(bytes_per_s=1_000_000),
        allowed_gates=["racks"],
        moves_total=2,
        bytes_total=200,
    )
    assert (made.reply.plan, made.reply.version) == (plan, version)
    after = cluster.image.apply(made.all_records(), version)
    assert after.operations.operations[version] == record
    moves = {
        m.key.partition: (m.replicas_before, m.replicas) for m in after.operations.moves[version].values()
    }
    assert moves == {0: ((1, 2), (1, 3)), 1: ((1, 2), (3, 2))}


def test_an_operation_has_a_version_of_its_own() -> None:
    cluster = MovedCluster(PAIR)
    plan = cluster.plan("node-uncordon", {}, node_ids=[1])
    first = start_operation(cluster.ctx, api.StartOperationRequest(), plan, 0)
    ctx = cluster.ctx.after(first.all_records())
    with pytest.raises(NextCommand):
        start_operation(ctx, api.StartOperationRequest(), cluster.plan("rebalance", {}), 0)


def test_a_plan_that_a_gate_refuses_is_not_begun() -> None:
    cluster = MovedCluster(PAIR)
    plan = cluster.plan("rebalance", {("t", 0): (1, 3)})
    plan.runnable = False
    plan.gates.add(name="disk-room", blocking=True, detail="node 3 lacks room", items=["node 3"])
    reply = start(cluster, plan)
    assert reply.error.code == ErrorCode.POLICY_VIOLATION
    assert "disk-room: node 3 lacks room" in reply.error.message
    assert not reply.HasField("operation")
    assert [gate.name for gate in reply.plan.gates] == ["disk-room"]


def test_another_plan_than_the_approved_one_is_not_begun() -> None:
    cluster = MovedCluster(PAIR)
    plan = cluster.plan("rebalance", {("t", 0): (1, 3)})
    reply = start(cluster, plan, plan_id="feedfeedfeedfeed")
    assert "plan-changed" in reply.error.message
    assert not reply.plan.runnable
    assert [(g.name, g.ok, g.blocking) for g in reply.plan.gates] == [("plan-changed", False, True)]


@pytest.mark.parametrize(
    ("what", "item"),
    [
        ("reassigned", "t-0 (being reassigned)"),
        ("moved", "t-0 (has other replicas)"),
        ("deleted", "t-0 (is not there)"),
        ("operation", "t-0 (operation "),
    ],
)
def test_what_the_plan_stands_on_must_be_as_it_was(what: str, item: str) -> None:
    cluster = MovedCluster(PAIR)
    plan = cluster.plan("rebalance", {("t", 0): (1, 3)})
    if what == "reassigned":
        cluster.reassign("t", 0, 1, 4)
    elif what == "moved":
        cluster.reassign("t", 0, 2, 1)
    elif what == "deleted":
        cluster.delete("t")
    else:
        cluster.start(cluster.plan("rebalance", {("t", 0): (1, 4)}))
    reply = start(cluster, plan)
    (gate,) = reply.plan.gates
    assert gate.name == "plan-changed"
    assert gate.items[0].startswith(item)
    assert item in reply.error.message


def test_two_operations_are_not_about_the_same_node() -> None:
    cluster = MovedCluster(PAIR)
    plan = cluster.plan("node-uncordon", {}, node_ids=[1])
    drain = cluster.start(cluster.plan("node-drain", {("t", 0): (2, 3)}, node_ids=[1]))
    assert start(cluster, plan).plan.gates[0].items == [f"node 1 (operation {drain})"]
    assert start(cluster, cluster.plan("node-drain", {}, node_ids=[9])).plan.gates[0].items == [
        "node 9 (is not there)"
    ]


def test_a_node_that_was_cordoned_since_gets_nothing() -> None:
    cluster = MovedCluster(PAIR)
    plan = cluster.plan("set-replication-factor", {("t", 0): (1, 2, 3)})
    cluster.start(cluster.plan("node-drain", {}, node_ids=[3]))
    reply = start(cluster, plan)
    assert reply.plan.gates[0].items == ["node 3 (is cordoned)"]
    assert "node 3 (is cordoned)" in reply.error.message
    gone = cluster.plan("rebalance", {("t", 0): (1, 9)})
    assert start(cluster, gone).plan.gates[0].items == ["node 9 (is not there)"]
    # Whoever takes it back may fill it again.
    back = start(cluster, cluster.plan("node-uncordon", {("t", 0): (1, 4)}, node_ids=[4]))
    assert not back.error.code


def test_a_node_that_an_operation_fills_is_not_emptied_beside_it() -> None:
    cluster = MovedCluster(PAIR)
    drain = cluster.plan("node-drain", {}, node_ids=[3])
    filled = cluster.start(cluster.plan("set-replication-factor", {("t", 0): (1, 2, 3)}))
    reply = start(cluster, drain)
    assert reply.plan.gates[0].items == [f"t-0 (operation {filled})"]


def test_nodes_that_are_to_be_emptied_take_nothing_from_the_start() -> None:
    for kind, extra in (
        ("node-drain", {}),
        ("node-remove", {}),
        ("node-replace", {"replacement_node_id": 3}),
    ):
        cluster = MovedCluster(PAIR)
        operation = cluster.start(cluster.plan(kind, {}, node_ids=[1], **extra))
        policy = cluster.image.operations.policies[NodeId(1)]
        assert (policy.cordoned, policy.draining, policy.operation_id) == (True, True, operation)
        assert list(cluster.image.operations.policies) == [1]


def test_added_nodes_are_cordoned_no_more() -> None:
    cluster = MovedCluster(PAIR)
    cluster.finish(cluster.start(cluster.plan("node-drain", {}, node_ids=[3])))
    cluster.start(cluster.plan("node-add", {("t", 0): (1, 3)}, node_ids=[3]))
    assert not cluster.image.operations.policies


# --- control ---------------------------------------------------------------------------------


def test_an_operation_that_is_not_there_or_has_ended_is_named() -> None:
    cluster = MovedCluster(PAIR)
    ended = cluster.start(cluster.plan("node-uncordon", {}, node_ids=[1]))
    cluster.finish(ended)
    assert "there is no operation 999" in cluster.control(999, api.OPERATION_CONTROL_PAUSE)
    message = cluster.control(ended, api.OPERATION_CONTROL_CANCEL)
    assert message == f"operation {ended} (node-uncordon) has ended: done"


def test_saying_the_same_twice_changes_nothing() -> None:
    cluster = MovedCluster(PAIR)
    operation = cluster.start(cluster.plan("rebalance", {("t", 0): (1, 3)}))
    cluster.settle(operation)
    for what in (api.OPERATION_CONTROL_PAUSE, api.OPERATION_CONTROL_RESUME, api.OPERATION_CONTROL_CANCEL):
        assert not cluster.control(operation, what)
        version = cluster.image.version
        assert not cluster.control(operation, what)
        assert cluster.image.version == version
    message = cluster.control(operation, api.OPERATION_CONTROL_RESUME)
    assert "is being cancelled" in message
    # A gateway asks again where the answer was lost with a controller: that one may have ended the operation by then.
    assert cluster.finish(operation).state == pb.OPERATION_STATE_CANCELLED
    version = cluster.image.version
    assert not cluster.control(operation, api.OPERATION_CONTROL_CANCEL)
    assert cluster.image.version == version
    assert "has ended: cancelled" in cluster.control(operation, api.OPERATION_CONTROL_PAUSE)


def test_a_pause_says_by_whom() -> None:
    cluster = MovedCluster(PAIR)
    operation = cluster.start(cluster.plan("rebalance", {("t", 0): (1, 3)}))
    cluster.control(operation, api.OPERATION_CONTROL_PAUSE)
    record = cluster.operation(operation)
    assert (record.reason, record.paused_by_hand) == ("paused by User:admin", True)
    cluster.control(operation, api.OPERATION_CONTROL_RESUME)
    record = cluster.operation(operation)
    assert (record.reason, record.paused_by_hand, record.state) == ("", False, pb.OPERATION_STATE_RUNNING)


def test_the_throttle_changes_as_it_goes() -> None:
    cluster = MovedCluster(PAIR)
    operation = cluster.start(cluster.plan("rebalance", {("t", 0): (1, 3)}))

    def throttled(throttle: pb.OperationThrottle) -> api.ControlOperationResponse:
        request = api.ControlOperationRequest(
            operation_id=operation, control=api.OPERATION_CONTROL_THROTTLE, throttle=throttle
        )
        return control_operation(cluster.ctx, request, 0).reply

    assert throttled(pb.OperationThrottle(auto=True)).operation.record.throttle.auto
    assert "choose one" in throttled(pb.OperationThrottle(auto=True, bytes_per_s=5)).error.message
    unknown = api.ControlOperationRequest(operation_id=operation, control=api.OPERATION_CONTROL_NONE)
    assert control_operation(cluster.ctx, unknown, 0).reply.error.code == ErrorCode.INVALID_REQUEST
