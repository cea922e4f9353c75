"""What operations do next, case by case; any order of events is tried in test_engine_at_random."""

from __future__ import annotations

import pytest

from penstock_controller.state.nodes import drain_node, register_node
from penstock_controller.state.operations.engine.steps import EngineState, next_steps
from penstock_controller.state.operations.engine.window import Limits
from penstock_core.ids import NodeId
from penstock_core.limits import FEATURE_LEVEL
from penstock_proto.v1 import controller_pb2 as controller
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api
from support.moved_cluster import MovedCluster, ids

RUNNING, PAUSED, PENDING = pb.OPERATION_STATE_RUNNING, pb.OPERATION_STATE_PAUSED, pb.OPERATION_STATE_PENDING
DONE, FAILED, CANCELLED = pb.OPERATION_STATE_DONE, pb.OPERATION_STATE_FAILED, pb.OPERATION_STATE_CANCELLED


def spread(count: int, *replicas: int) -> dict[tuple[str, int], tuple[int, ...]]:
    return {("t", i): replicas for i in range(count)}


def moving(cluster: MovedCluster) -> set[int]:
    return {p.partition for p in cluster.partitions() if p.reassigning}


def skipped(cluster: MovedCluster, operation_id: int) -> dict[int, str]:
    moves = cluster.image.operations.moves[operation_id].values()
    return {m.key.partition: m.skipped for m in moves if m.skipped}


# --- what begins, and when -------------------------------------------------------------------


def test_a_node_copies_for_four_moves_at_a_time_and_large_ones_go_first() -> None:
    cluster = MovedCluster(spread(9, 1, 2))
    plan = cluster.plan("rebalance", spread(9, 1, 3))
    for i, move in enumerate(plan.moves):
        move.bytes = i
    operation = cluster.start(plan)
    cluster.settle(operation)
    assert moving(cluster) == {8, 7, 6, 5}
    cluster.catch_up(1)
    cluster.settle(operation)
    assert len(moving(cluster)) == 4
    assert cluster.finish(operation).state == DONE


def test_fifty_moves_run_at_once_in_all() -> None:
    nodes = range(1, 61)
    cluster = MovedCluster({("t", n): (n,) for n in nodes}, node_count=120)
    operation = cluster.start(cluster.plan("rebalance", {("t", n): (n + 60,) for n in nodes}))
    cluster.settle(operation)
    assert len(moving(cluster)) == 50


def test_two_operations_share_the_window() -> None:
    cluster = MovedCluster(spread(10, 1))
    first = cluster.start(cluster.plan("rebalance", {("t", i): (2,) for i in range(5)}))
    second = cluster.start(cluster.plan("rebalance", {("t", i): (3,) for i in range(5, 10)}))
    cluster.settle(first)
    cluster.settle(second)
    assert len(moving(cluster)) == 4
    assert cluster.finish(first).state == DONE
    assert cluster.finish(second).state == DONE


def test_partitions_that_lack_replicas_go_first() -> None:
    cluster = MovedCluster(spread(6, 1, 2))
    cluster.lag("t", 4, 2)
    operation = cluster.start(cluster.plan("rebalance", spread(6, 1, 3)))
    cluster.limits = Limits(moves_per_node=1)
    cluster.settle(operation)
    assert moving(cluster) == {4}


def test_a_node_that_sends_all_it_may_has_room_for_what_it_gets() -> None:
    cluster = MovedCluster({**spread(2, 1), ("u", 0): (2,)}, limits=Limits(moves_per_node=1))
    wanted = {("t", 0): (2,), ("t", 1): (2,), ("u", 0): (1,)}
    operation = cluster.start(cluster.plan("rebalance", wanted))
    cluster.settle(operation)
    assert sum(p.reassigning for p in cluster.partitions()) == 2


def test_a_move_that_mends_domains_goes_ahead_of_one_for_evenness() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "a"}
    cluster = MovedCluster(spread(2, 1, 2), racks=racks, limits=Limits(moves_per_node=1))
    operation = cluster.start(cluster.plan("rebalance", {("t", 0): (1, 4), ("t", 1): (1, 3)}))
    cluster.settle(operation)
    assert moving(cluster) == {1}


def test_what_needs_no_copy_takes_no_place_in_the_window() -> None:
    cluster = MovedCluster(spread(30, 1, 2, 3))
    operation = cluster.start(cluster.plan("set-replication-factor", spread(30, 2, 1)))
    record = cluster.finish(operation, rounds_max=1)
    assert (record.state, record.moves_done) == (DONE, 30)


def test_leadership_leaves_a_drained_node_before_any_byte_moves() -> None:
    cluster = MovedCluster(spread(45, 1, 2))
    operation = cluster.start(cluster.plan("node-drain", spread(45, 2, 3), node_ids=[1]))
    led = []
    while not moving(cluster):
        led.append(sum(p.leader == 1 for p in cluster.partitions()))
        assert cluster.step(operation)
    assert led == [45, 25, 5, 0]


def test_no_move_begins_that_would_fill_a_disk() -> None:
    cluster = MovedCluster(spread(2, 1))
    gib = 1024**3
    cluster.reports.take(NodeId(2), 2, api.NodeReport(disk_total_bytes=10 * gib, disk_free_bytes=gib), 0)
    operation = cluster.start(cluster.plan("rebalance", {("t", 0): (2,), ("t", 1): (3,)}, size=gib))
    cluster.settle(operation)
    assert moving(cluster) == {1}
    cluster.reports.take(NodeId(2), 2, api.NodeReport(disk_total_bytes=10 * gib, disk_free_bytes=2 * gib), 0)
    cluster.settle(operation)
    assert moving(cluster) == {0, 1}


def test_a_small_disk_keeps_free_what_its_node_keeps_and_no_more() -> None:
    """A node of 1 GB counts as full below a twentieth of it; with 256 MiB kept free no move to it ever began."""
    cluster = MovedCluster(spread(1, 1))
    gigabyte = 1_000_000_000
    report = api.NodeReport(disk_total_bytes=gigabyte, disk_free_bytes=gigabyte // 4)
    cluster.reports.take(NodeId(2), 2, report, 0)
    operation = cluster.start(cluster.plan("rebalance", spread(1, 2), size=gigabyte // 10))
    cluster.settle(operation)
    assert moving(cluster) == {0}


def test_two_that_move_data_run_side_by_side_and_the_oldest_waiting_one_is_next() -> None:
    cluster = MovedCluster(spread(4, 1))
    started = [cluster.start(cluster.plan("rebalance", {("t", i): (2,)})) for i in range(4)]
    states = [cluster.operation(i).state for i in started]
    assert states == [RUNNING, RUNNING, PENDING, PENDING]
    cluster.finish(started[0])
    assert not cluster.step(started[3])
    cluster.settle(started[2])
    assert cluster.operation(started[2]).state == RUNNING
    for operation in started[1:]:
        assert cluster.finish(operation).state == DONE


def test_one_that_a_person_paused_lets_others_by() -> None:
    cluster = MovedCluster(spread(3, 1))
    started = [cluster.start(cluster.plan("rebalance", {("t", i): (2,)})) for i in range(3)]
    cluster.control(started[0], api.OPERATION_CONTROL_PAUSE)
    cluster.settle(started[2])
    assert cluster.operation(started[2]).state == RUNNING
    cluster.control(started[0], api.OPERATION_CONTROL_RESUME)
    assert cluster.operation(started[0]).state == PENDING


# --- what comes between -----------------------------------------------------------------------


def test_a_deleted_topic_is_left_out() -> None:
    cluster = MovedCluster({("t", 0): (1,), ("u", 0): (1,)})
    operation = cluster.start(cluster.plan("rebalance", {("t", 0): (2,), ("u", 0): (2,)}))
    cluster.settle(operation)
    cluster.delete("t")
    record = cluster.finish(operation)
    assert (record.state, record.moves_done, record.moves_skipped) == (DONE, 1, 1)


def test_a_rebalance_leaves_out_a_node_that_stays_away_and_takes_back_what_was_on_its_way_there() -> None:
    cluster = MovedCluster(spread(6, 1), limits=Limits(moves_per_node=2))
    operation = cluster.start(cluster.plan("rebalance", spread(6, 2)))
    cluster.settle(operation)
    cluster.die(2)
    cluster.settle(operation)
    assert len(moving(cluster)) == 2
    cluster.now_ms += 30_000
    cluster.settle(operation)
    assert not moving(cluster)
    record = cluster.operation(operation)
    assert (record.state, record.moves_done, record.moves_skipped) == (DONE, 0, 6)


def test_a_drain_waits_for_a_node_that_is_away() -> None:
    cluster = MovedCluster(spread(1, 1))
    operation = cluster.start(cluster.plan("node-drain", spread(1, 2), node_ids=[1]))
    cluster.die(2)
    for _ in range(3):
        cluster.now_ms += 60_000
        cluster.settle(operation)
    assert cluster.operation(operation).state == RUNNING
    assert not moving(cluster)
    cluster.rise(2)
    assert cluster.finish(operation).state == DONE


def test_a_partition_that_somebody_else_moves_is_his_and_a_person_has_to_say_go_on() -> None:
    cluster = MovedCluster(spread(2, 1, 2))
    operation = cluster.start(cluster.plan("rebalance", spread(2, 1, 3)))
    cluster.settle(operation)
    cluster.reassign("t", 0, 4, 5)
    cluster.settle(operation)
    record = cluster.operation(operation)
    assert record.state == PAUSED
    assert record.reason.startswith("conflict: somebody else reassigned t-0")
    assert list(skipped(cluster, operation)) == [0]
    cluster.catch_up()
    cluster.failover()
    cluster.settle(operation)
    assert cluster.operation(operation).state == PAUSED
    assert not cluster.control(operation, api.OPERATION_CONTROL_RESUME)
    record = cluster.finish(operation)
    assert (record.state, record.moves_done, record.moves_skipped) == (DONE, 1, 1)
    assert cluster.partition("t", 0).replicas == ids(4, 5)


def test_a_move_that_somebody_else_takes_back_is_not_begun_again() -> None:
    cluster = MovedCluster(spread(1, 1, 2))
    operation = cluster.start(cluster.plan("rebalance", spread(1, 1, 3)))
    cluster.settle(operation)
    # A look at it on its way.
    cluster.step(operation)
    cluster.reassign("t", 0, 1, 2)
    cluster.settle(operation)
    assert cluster.operation(operation).reason.startswith("conflict")
    assert not moving(cluster)


def test_below_min_isr_it_pauses_and_goes_on_by_itself() -> None:
    cluster = MovedCluster(spread(8, 1, 2), min_isr=2)
    operation = cluster.start(cluster.plan("rebalance", spread(8, 1, 3)))
    cluster.settle(operation)
    begun = moving(cluster)
    cluster.lag("t", min(begun), 2)
    cluster.settle(operation)
    record = cluster.operation(operation)
    assert record.state == PAUSED
    assert record.reason.startswith(f"health: t-{min(begun)} ")
    assert moving(cluster) == begun
    assert cluster.finish(operation).state == DONE


def test_a_person_s_pause_outlasts_a_gate() -> None:
    cluster = MovedCluster(spread(8, 1, 2), min_isr=2)
    operation = cluster.start(cluster.plan("rebalance", spread(8, 1, 3)))
    cluster.lag("t", 0, 2)
    cluster.settle(operation)
    cluster.control(operation, api.OPERATION_CONTROL_PAUSE)
    cluster.catch_up()
    cluster.settle(operation)
    assert cluster.operation(operation).state == PAUSED
    assert not moving(cluster)
    cluster.control(operation, api.OPERATION_CONTROL_RESUME)
    assert cluster.finish(operation).state == DONE


def test_an_allowed_gate_does_not_stop_it_nor_does_the_want_of_the_very_node_that_is_drained() -> None:
    for allowed, kind, gone in ((["health"], "rebalance", 2), ([], "node-drain", 2)):
        cluster = MovedCluster(spread(2, 1, 2), min_isr=2)
        plan = cluster.plan(kind, spread(2, 1, 3), node_ids=[] if kind == "rebalance" else [2])
        operation = cluster.start(plan, allowed)
        cluster.die(gone)
        record = cluster.finish(operation)
        assert (record.state, record.moves_done) == (DONE, 2)


def test_paused_what_is_under_way_finishes_and_nothing_begins() -> None:
    cluster = MovedCluster(spread(8, 1, 2))
    operation = cluster.start(cluster.plan("rebalance", spread(8, 1, 3)))
    cluster.settle(operation)
    cluster.control(operation, api.OPERATION_CONTROL_PAUSE)
    cluster.catch_up()
    cluster.settle(operation)
    assert not moving(cluster)
    assert sum(p.replicas == ids(1, 3) for p in cluster.partitions()) == 4


# --- ends -------------------------------------------------------------------------------------


def test_cancelled_everything_on_its_way_goes_back_and_the_cordon_is_lifted() -> None:
    cluster = MovedCluster(spread(8, 1, 2))
    operation = cluster.start(cluster.plan("node-drain", spread(8, 2, 3), node_ids=[1]))
    cluster.settle(operation)
    cluster.catch_up(2)
    cluster.control(operation, api.OPERATION_CONTROL_CANCEL)
    assert not cluster.image.operations.policies
    record = cluster.finish(operation, rounds_max=1)
    assert (record.state, record.moves_done) == (CANCELLED, 2)
    found = sorted(p.replicas for p in cluster.partitions())
    assert found == [ids(1, 2)] * 6 + [ids(2, 3)] * 2


@pytest.mark.parametrize("another", [False, True], ids=["one controller", "another one ends it"])
def test_what_a_cancel_takes_back_is_not_counted_as_left_out(another: bool) -> None:
    cluster = MovedCluster(spread(8, 1, 2))
    operation = cluster.start(cluster.plan("rebalance", spread(8, 1, 3)))
    cluster.settle(operation)
    cluster.catch_up(2)
    cluster.control(operation, api.OPERATION_CONTROL_CANCEL)
    if another:
        cluster.failover()
    record = cluster.finish(operation)
    assert (record.state, record.moves_done, record.moves_skipped) == (CANCELLED, 2, 0)


def test_cancelled_while_what_came_holds_up_the_isr_it_waits() -> None:
    cluster = MovedCluster({("t", 0): (1, 2)}, min_isr=2)
    operation = cluster.start(cluster.plan("rebalance", {("t", 0): (3, 4)}))
    cluster.settle(operation)
    cluster._change(cluster.partition("t", 0), ids(1, 2, 3))
    cluster.lag("t", 0, 2)
    cluster.control(operation, api.OPERATION_CONTROL_CANCEL)
    cluster.settle(operation)
    assert len(cluster.partition("t", 0).isr) == 2
    cluster._change(cluster.partition("t", 0), ids(1, 2, 3))
    cluster.settle(operation)
    assert cluster.operation(operation).state == CANCELLED
    assert cluster.partition("t", 0).replicas == ids(1, 2)


def test_a_drained_node_stays_cordoned() -> None:
    cluster = MovedCluster(spread(2, 1, 2))
    operation = cluster.start(cluster.plan("node-drain", spread(2, 2, 3), node_ids=[1]))
    record = cluster.finish(operation)
    policy = cluster.image.operations.policies[NodeId(1)]
    assert (policy.cordoned, policy.draining, policy.operation_id) == (True, False, operation)
    assert (record.state, record.moves_done, record.bytes_done) == (DONE, 2, record.bytes_total)
    back = cluster.start(cluster.plan("node-uncordon", {}, node_ids=[1]))
    assert not cluster.image.operations.policies
    assert cluster.finish(back).state == DONE


def test_a_removal_that_is_cancelled_leaves_the_cordon_of_an_earlier_drain() -> None:
    cluster = MovedCluster(spread(1, 1, 2))
    drain = cluster.start(cluster.plan("node-drain", spread(1, 2, 3), node_ids=[1]))
    cluster.finish(drain)
    remove = cluster.start(cluster.plan("node-remove", {}, node_ids=[1]))
    cluster.control(remove, api.OPERATION_CONTROL_CANCEL)
    cluster.finish(remove)
    policy = cluster.image.operations.policies[NodeId(1)]
    assert (policy.cordoned, policy.draining, policy.operation_id) == (True, False, drain)


def test_a_removed_node_is_gone_with_its_directory_in_one_command() -> None:
    cluster = MovedCluster(spread(2, 1, 2))
    node = cluster.image.nodes[NodeId(1)]
    operation = cluster.start(cluster.plan("node-remove", spread(2, 2, 3), node_ids=[1]))
    assert cluster.finish(operation).state == DONE
    assert NodeId(1) not in cluster.image.nodes
    assert not cluster.image.operations.policies
    retired = cluster.image.operations.retired[node.directory_id]
    assert (retired.node_id, retired.operation_id) == (1, operation)
    request = controller.RegisterNodeRequest(node_id=1, directory_id=node.directory_id)
    assert "retired" in register_node(cluster.ctx, request).reply.error.message


@pytest.mark.parametrize("kind", ["node-remove", "node-replace"])
def test_what_a_removed_node_had_before_its_last_directory_is_refused_too(kind: str) -> None:
    cluster = MovedCluster(spread(2, 1, 2))
    first, last = cluster.image.nodes[NodeId(1)].directory_id, b"n" * 16
    cluster.die(1)
    assert not come_with(cluster, 1, last)
    cluster.catch_up(1)
    operation = cluster.start(
        cluster.plan(
            kind, spread(2, 2, 3), node_ids=[1], **{"replacement_node_id": 3} if kind != "node-remove" else {}
        )
    )
    assert cluster.finish(operation).state == DONE
    assert NodeId(1) not in cluster.image.nodes
    for node_id, directory in ((1, first), (1, last), (-1, first), (9, first)):
        assert f"operation {operation}" in come_with(cluster, node_id, directory)
    assert "the node was removed" in come_with(cluster, 1, first)
    assert not come_with(cluster, 1, b"z" * 16), "who asks for it by name may have it"


def test_a_node_that_still_holds_what_was_not_planned_is_not_removed() -> None:
    cluster = MovedCluster({("t", 0): (1, 2), ("late", 0): (1, 2)})
    operation = cluster.start(cluster.plan("node-remove", {("t", 0): (2, 3)}, node_ids=[1]))
    record = cluster.finish(operation)
    assert record.state == FAILED
    assert "late-0" in record.reason
    assert NodeId(1) in cluster.image.nodes
    assert cluster.image.operations.policies[NodeId(1)].cordoned


@pytest.mark.parametrize("kind", ["node-drain", "node-remove"])
def test_what_somebody_else_is_taking_off_a_node_is_waited_for(kind: str) -> None:
    cluster = MovedCluster({("t", 0): (1, 2), ("u", 0): (1, 2), ("v", 0): (1, 2)})
    other = cluster.start(cluster.plan("rebalance", {("u", 0): (2, 3)}))
    cluster.settle(other)
    cluster.alter({("v", 0): (2, 4)})
    # What is on its way off the node is no part of the plan: once it has moved, the node has nothing of it.
    operation = cluster.start(cluster.plan(kind, {("t", 0): (2, 5)}, node_ids=[1]))
    cluster.settle(operation)
    cluster._change(cluster.partition("t", 0), ids(2, 1, 5))
    cluster.settle(operation)
    assert cluster.operation(operation).state == RUNNING
    assert cluster.finish(operation).state == DONE
    assert all(NodeId(1) not in p.replicas for p in cluster.partitions())


def test_what_somebody_else_brings_back_to_a_node_is_left_over() -> None:
    cluster = MovedCluster({("t", 0): (1, 2), ("u", 0): (1, 2)})
    other = cluster.start(cluster.plan("rebalance", {("u", 0): (2, 3)}))
    cluster.settle(other)
    operation = cluster.start(cluster.plan("node-drain", {("t", 0): (2, 5)}, node_ids=[1]))
    cluster.settle(operation)
    cluster.control(other, api.OPERATION_CONTROL_CANCEL)
    cluster.settle(other)
    record = cluster.finish(operation)
    assert record.state == FAILED
    assert "u-0" in record.reason


def test_a_node_that_is_replaced_in_its_place_is_awaited() -> None:
    cluster = MovedCluster(spread(2, 1, 2))
    cluster.die(1)
    operation = cluster.start(cluster.plan("node-replace", {}, node_ids=[1]))
    cluster.settle(operation)
    assert cluster.operation(operation).state == RUNNING
    cluster.rise(1)
    cluster.catch_up(1)
    cluster.settle(operation)
    assert cluster.operation(operation).state == RUNNING
    assert cluster.finish(operation).state == DONE


UNCHANGED = (
    "node 1 has the directory that it had: nothing was made anew, and none is refused for it; to change its disk, "
    "start it with an empty one, then replace it again"
)


def test_a_replacement_of_a_disk_that_nobody_changed_says_so() -> None:
    cluster = MovedCluster(spread(2, 1, 2))
    record = cluster.finish(cluster.start(cluster.plan("node-replace", {}, node_ids=[1])))
    assert (record.state, record.finished_ms > 0) == (DONE, True)
    assert record.reason == UNCHANGED


def test_a_node_that_holds_nothing_that_others_have_is_awaited_too() -> None:
    for held in ({("t", 0): (1,)}, {("t", 0): (2, 3)}):
        cluster = MovedCluster(held)
        cluster.die(1)
        operation = cluster.start(cluster.plan("node-replace", {}, node_ids=[1]), ["health"])
        cluster.settle(operation)
        assert cluster.operation(operation).state == RUNNING, "it is down"
        assert not come_with(cluster, 1, b"n" * 16)
        if held == {("t", 0): (2, 3)}:
            assert not cluster.finish(operation).reason


def test_a_node_that_is_stopping_is_awaited_too() -> None:
    cluster = MovedCluster({("t", 0): (2, 3)})
    cluster._apply(drain_node(cluster.ctx, NodeId(1), 1).all_records())
    operation = cluster.start(cluster.plan("node-replace", {}, node_ids=[1]))
    cluster.settle(operation)
    assert cluster.operation(operation).state == RUNNING
    cluster.die(1)
    assert not come_with(cluster, 1, b"n" * 16)
    assert not cluster.finish(operation).reason


def come_with(cluster: MovedCluster, node_id: int, directory_id: bytes) -> str:
    """The node registers with a directory and is up; else the reason."""
    request = controller.RegisterNodeRequest(node_id=node_id, directory_id=directory_id, clean_shutdown=True)
    request.process.feature_level = FEATURE_LEVEL
    made = register_node(cluster.ctx, request)
    cluster._apply(made.all_records())
    if not made.reply.error.code:
        cluster.rise(node_id)
    return made.reply.error.message


@pytest.mark.parametrize("early", [True, False], ids=["begun before it is back", "begun when it is back"])
def test_what_a_node_had_before_it_was_replaced_in_its_place_is_refused(early: bool) -> None:
    cluster = MovedCluster(spread(4, 1, 2))
    old, new = cluster.image.nodes[NodeId(1)].directory_id, b"n" * 16
    cluster.die(1)
    if early:
        operation = cluster.start(cluster.plan("node-replace", {}, node_ids=[1]))
        cluster.settle(operation)
        assert not come_with(cluster, 1, new)
    else:
        assert not come_with(cluster, 1, new)
        operation = cluster.start(cluster.plan("node-replace", {}, node_ids=[1]))
    cluster.settle(operation)
    assert not cluster.image.operations.retired[old].operation_id, "not before all is there again"
    assert cluster.finish(operation).state == DONE
    retired = cluster.image.operations.retired[old]
    assert (retired.node_id, retired.operation_id, retired.replaced_by) == (1, operation, new)
    cluster.die(1)
    assert f"operation {operation}" in come_with(cluster, 1, old)
    assert not come_with(cluster, 1, new)
    # Of the next disk nothing was done yet: that the one before was changed is another operation's doing.
    assert cluster.finish(cluster.start(cluster.plan("node-replace", {}, node_ids=[1]))).reason == UNCHANGED
    assert not come_with(cluster, 1, new)


def test_a_replacement_that_is_cancelled_refuses_nothing() -> None:
    cluster = MovedCluster(spread(4, 1, 2))
    old = cluster.image.nodes[NodeId(1)].directory_id
    cluster.die(1)
    operation = cluster.start(cluster.plan("node-replace", {}, node_ids=[1]))
    assert not come_with(cluster, 1, b"n" * 16)
    cluster.control(operation, api.OPERATION_CONTROL_CANCEL)
    assert cluster.finish(operation).state == CANCELLED
    cluster.die(1)
    assert not come_with(cluster, 1, old)


def test_preferred_leaders_are_elected_in_batches() -> None:
    cluster = MovedCluster(spread(45, 1, 2) | {("u", 0): (1, 2), ("u", 1): (3, 2)})
    cluster.die(1)
    cluster.rise(1)
    cluster.catch_up()
    cluster.die(3)
    operation = cluster.start(cluster.plan("leader-elect", {}))
    for left in (26, 6, 0):
        cluster.step(operation)
        assert sum(p.leader == 2 and p.replicas[0] == 1 for p in cluster.partitions()) == left
    assert cluster.finish(operation).state == DONE


def test_only_the_partitions_that_are_named_get_their_preferred_leader() -> None:
    cluster = MovedCluster(spread(3, 1, 2) | {("u", 1): (1, 2)})
    cluster.die(1)
    cluster.rise(1)
    cluster.catch_up()
    operation = cluster.start(cluster.plan("leader-elect", {}, topics=["t"], partitions=[1]))
    cluster.finish(operation)
    led = [
        (cluster.image.topics[p.topic_id].name, p.partition) for p in cluster.partitions() if p.leader == 1
    ]
    assert led == [("t", 1)]


def test_a_look_at_many_partitions_takes_several_calls_and_misses_nothing() -> None:
    replicas = {(name, i): (2, 3) for name in "abcdef" for i in range(3)} | {
        ("t", 0): (1, 2),
        ("late", 0): (1, 2),
    }
    for left_over in (True, False):
        cluster = MovedCluster(replicas)
        if not left_over:
            cluster.delete("late")
        operation = cluster.start(cluster.plan("node-remove", {("t", 0): (2, 3)}, node_ids=[1]))
        cluster.settle(operation)
        cluster.catch_up()
        engine, looks = EngineState(scan_partitions=4), 0
        while cluster.operation(operation).state == RUNNING:
            made = next_steps(cluster.ctx, operation, cluster.reports, 0, engine)
            cluster._apply(made.all_records(), ours=True)
            looks += 1
        assert looks > 1
        assert cluster.operation(operation).state == (FAILED if left_over else DONE)


def test_a_ledger_that_was_prepared_in_slices_is_that_of_a_first_look() -> None:
    cluster = MovedCluster(spread(200, 1, 2))
    operation = cluster.start(cluster.plan("rebalance", spread(200, 1, 3)))
    slices = list(cluster.engine.ledgers.prepare(cluster.image, cluster.operation(operation)))
    assert len(slices) > 3
    assert not list(cluster.engine.ledgers.prepare(cluster.image, cluster.operation(operation)))
    cluster.settle(operation)
    assert len(moving(cluster)) == 4


def test_two_hundred_ended_operations_are_kept() -> None:
    cluster = MovedCluster(spread(1, 1))
    started = []
    for _ in range(205):
        started.append(cluster.start(cluster.plan("node-uncordon", {}, node_ids=[1])))
        cluster.finish(started[-1])
    assert sorted(cluster.image.operations.operations) == started[-200:]


def test_an_operation_that_has_ended_or_never_was_has_no_steps() -> None:
    cluster = MovedCluster(spread(1, 1))
    operation = cluster.start(cluster.plan("node-uncordon", {}, node_ids=[1]))
    cluster.finish(operation)
    for each in (operation, 999):
        made = next_steps(cluster.ctx, each, cluster.reports, 0)
        assert (made.reply, made.all_records()) == (False, [])


def test_what_clients_reassign_is_not_held_up_by_window_gate_or_turn() -> None:
    cluster = MovedCluster(spread(12, 1, 2), min_isr=2)
    for i in range(2):
        cluster.start(cluster.plan("rebalance", {("t", i): (1, 3)}))
    wanted = {("t", i): (1, 3) for i in range(2, 12)}
    operation = cluster.start(cluster.plan("reassignment", wanted))
    cluster.lag("t", 5, 2)
    cluster.settle(operation)
    assert moving(cluster) == set(range(2, 12))
    cluster.reassign("t", 3, 4, 5)
    record = cluster.finish(operation)
    assert (record.state, record.moves_done, record.moves_skipped) == (DONE, 9, 1)
