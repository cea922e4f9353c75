"""How far operations are, as told to people."""

from __future__ import annotations

import pytest

from penstock_controller.state.operations.engine.progress import History, RateMeter, progress_of
from penstock_core.ids import NodeId
from penstock_proto.v1 import operations_pb2 as api
from support.moved_cluster import MovedCluster, topic_id

MIB = 1024 * 1024


def told(cluster: MovedCluster, operation: int, history: History | None = None) -> api.OperationProgress:
    return progress_of(cluster.image, cluster.operation(operation), cluster.reports, cluster.now_ms, history)


def report(cluster: MovedCluster, node: int, *sizes: int) -> None:
    message = api.NodeReport(first_of_all=True, last_of_all=True)
    for i, size in enumerate(sizes):
        message.sizes.add(topic_id=topic_id("t"), partition=i, size_bytes=size)
    cluster.reports.take(NodeId(node), node, message, cluster.now_ms)


def test_bytes_are_those_of_replicas_being_made_and_the_whole_of_what_is_done() -> None:
    cluster = MovedCluster({("t", i): (1,) for i in range(6)})
    operation = cluster.start(cluster.plan("rebalance", {("t", i): (2,) for i in range(6)}, size=100))
    cluster.settle(operation)
    report(cluster, 2, 30, 250, 0, 0)
    progress = told(cluster, operation)
    assert (progress.moves_total, progress.moves_running, progress.moves_done) == (6, 4, 0)
    # Never more than what is to be copied: the leader may have grown.
    assert (progress.bytes_total, progress.bytes_done) == (600, 130)
    cluster.catch_up(1)
    cluster.step(operation)
    progress = told(cluster, operation)
    assert progress.moves_done == 1
    assert 130 <= progress.bytes_done <= 230


def test_a_replica_that_is_in_sync_counts_whole() -> None:
    cluster = MovedCluster({("t", 0): (1,)})
    operation = cluster.start(cluster.plan("rebalance", {("t", 0): (2, 3)}, size=100))
    cluster.settle(operation)
    cluster._change(cluster.partition("t", 0), [NodeId(1), NodeId(2)])
    report(cluster, 3, 40)
    assert told(cluster, operation).bytes_done == 140


def test_an_ended_one_tells_what_it_came_to() -> None:
    cluster = MovedCluster({("t", 0): (1,), ("u", 0): (1,)})
    operation = cluster.start(cluster.plan("rebalance", {("t", 0): (2,), ("u", 0): (2,)}))
    cluster.delete("u")
    cluster.finish(operation)
    assert told(cluster, operation) == api.OperationProgress(
        moves_total=2, moves_done=1, moves_skipped=1, bytes_total=200, bytes_done=100
    )


def test_the_rest_takes_as_long_as_the_rate_of_the_last_half_minute_says() -> None:
    cluster = MovedCluster({("t", 0): (1,)})
    operation = cluster.start(cluster.plan("rebalance", {("t", 0): (2,)}, size=1000 * MIB))
    cluster.settle(operation)
    history = History(ledgers=cluster.engine.ledgers)
    assert not told(cluster, operation, history).HasField("eta_s")
    for second in range(61):
        report(cluster, 2, second * 5 * MIB)
        history.observe(cluster.image, cluster.operation(operation), cluster.reports, second * 1000)
    progress = told(cluster, operation, history)
    assert progress.measured_bytes_per_s == pytest.approx(5 * MIB, rel=0.01)
    assert progress.eta_s == pytest.approx(140, rel=0.01)
    cluster.control(operation, api.OPERATION_CONTROL_PAUSE)
    assert not told(cluster, operation, history).HasField("eta_s")


def test_a_rate_follows_what_it_sees_whatever_the_steps() -> None:
    meter = RateMeter()
    assert meter.bytes_per_s == 0
    total = now = 0
    for step in (1, 500, 3_000, 20_000, 10, 7_000) * 5:
        now += step
        total += step * 8
        meter.take(total, now)
    assert meter.bytes_per_s == pytest.approx(8_000)
    meter.take(0, now + 1_000)
    assert 0 < meter.bytes_per_s < 8_000
    for later in range(2, 300):
        meter.take(0, now + later * 1_000)
    assert meter.bytes_per_s < 10


# --- what it waits for ------------------------------------------------------------------------


def test_one_that_moves_waits_for_nothing() -> None:
    cluster = MovedCluster({("t", 0): (1,)})
    operation = cluster.start(cluster.plan("rebalance", {("t", 0): (2,)}))
    assert told(cluster, operation).waiting_for == ""
    cluster.settle(operation)
    assert told(cluster, operation).waiting_for == ""


def test_who_is_away_is_named_with_the_partitions() -> None:
    cluster = MovedCluster({("t", i): (1,) for i in range(5)})
    operation = cluster.start(cluster.plan("node-drain", {("t", i): (2,) for i in range(5)}, node_ids=[1]))
    cluster.die(2)
    cluster.settle(operation)
    expected = "node 2, which is fenced (for t-0, t-1, t-2 and 2 more)"
    assert told(cluster, operation).waiting_for == expected
    cluster.rise(2)
    cluster.settle(operation)
    cluster.die(2)
    assert "node 2, which is fenced (for t-0, t-1, t-2 and 1 more)" in told(cluster, operation).waiting_for
    cluster.rise(2)
    cluster.die(1)
    assert told(cluster, operation).waiting_for.startswith("a leader (for t-0")


def test_a_full_disk_is_named() -> None:
    cluster = MovedCluster({("t", 0): (1,)})
    full = api.NodeReport(disk_total_bytes=1000 * MIB, disk_free_bytes=140 * MIB)
    cluster.reports.take(NodeId(2), 2, full, 0)
    operation = cluster.start(cluster.plan("rebalance", {("t", 0): (2,)}, size=100 * MIB))
    cluster.settle(operation)
    assert told(cluster, operation).waiting_for == "room on the disk of node 2 (for t-0)"


def test_a_paused_one_says_why_and_a_waiting_one_for_whom() -> None:
    cluster = MovedCluster({("t", i): (1,) for i in range(3)})
    a, b, c = (cluster.start(cluster.plan("rebalance", {("t", i): (2,)})) for i in range(3))
    assert told(cluster, c).waiting_for == f"operations {a}, {b}: 2 that move data run side by side"
    cluster.control(a, api.OPERATION_CONTROL_PAUSE)
    assert told(cluster, a).waiting_for == "paused by User:admin"


def test_one_whose_nodes_are_busy_with_another_one_says_so() -> None:
    cluster = MovedCluster({("t", i): (1,) for i in range(6)})
    first = cluster.start(cluster.plan("rebalance", {("t", i): (2,) for i in range(4)}))
    second = cluster.start(cluster.plan("rebalance", {("t", i): (3,) for i in (4, 5)}))
    cluster.settle(first)
    cluster.settle(second)
    assert told(cluster, second).waiting_for == "other operations' moves at the same nodes (for t-4, t-5)"
    cluster.catch_up()
    assert told(cluster, second).waiting_for == ""


def test_a_node_that_is_to_come_back_empty_is_asked_for() -> None:
    cluster = MovedCluster({("t", 0): (1, 2)})
    cluster.die(1)
    operation = cluster.start(cluster.plan("node-replace", {}, node_ids=[1]))
    cluster.settle(operation)
    assert told(cluster, operation).waiting_for == "node 1, which is fenced: start it with an empty directory"
