"""What nodes tell, how each of them is in one word, and what the active controller makes of it over time."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import pytest

from penstock_controller.state.operations.conditions import condition_of, describe_nodes
from penstock_controller.state.operations.meters import OperationMeters
from penstock_controller.state.operations.reports import Reports
from penstock_core.ids import NO_NODE, NodeId, TopicPartition
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.operations import NodePolicy
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api
from unit.controller.state.test_nodes import Cluster
from unit.controller.state.test_reassignments import TOPIC_ID, image, partition

ONE, TWO = NodeId(1), NodeId(2)
T = TypeVar("T")
KEY = TopicPartition(TOPIC_ID, 0)


def report(*sizes: int, first: bool = False, last: bool = False, **fields: Any) -> api.NodeReport:
    told = api.NodeReport(first_of_all=first, last_of_all=last, **fields)
    for index, size in enumerate(sizes):
        told.sizes.add(topic_id=TOPIC_ID, partition=index, size_bytes=size)
    return told


def test_sizes_are_unknown_until_told_and_those_that_all_reports_leave_out_are_empty() -> None:
    reports = Reports()
    assert reports.wants_all(ONE, 5)
    assert reports.replica_bytes(ONE, KEY) is None
    reports.take(ONE, 5, report(first=True), 0)
    assert reports.replica_bytes(ONE, KEY) is None, "not all is told yet"
    assert reports.wants_all(ONE, 5)
    reports.take(ONE, 5, report(70, last=True), 0)
    assert not reports.wants_all(ONE, 5)
    assert reports.replica_bytes(ONE, KEY) == 70
    assert reports.replica_bytes(ONE, TopicPartition(TOPIC_ID, 9)) == 0
    reports.take(ONE, 5, report(80), 1)
    assert reports.replica_bytes(ONE, KEY) == 80


def test_how_fast_a_partition_is_written_is_told_by_its_leader() -> None:
    reports, led = Reports(), partition(1)

    def told(size_bytes: int | None, now_ms: int, *, whole: bool = False) -> float:
        sizes = (
            []
            if size_bytes is None
            else [api.ReplicaSize(topic_id=TOPIC_ID, partition=0, size_bytes=size_bytes)]
        )
        report = api.NodeReport(first_of_all=whole, last_of_all=whole, sizes=sizes)
        reports.take(NodeId(1), 1, report, now_ms)
        return reports.written_bytes_per_s(led)

    assert reports.written_bytes_per_s(led) == 0
    assert told(1_000_000, 0, whole=True) == 0
    # From where, is known from the first change on.
    assert told(2_000_000, 1_000) == 0
    assert told(6_000_000, 3_000) == 2_000_000
    # What is told no more has not grown by much.
    assert told(None, 5_000) == 1_000_000
    # Old segments go: from there anew.
    assert told(3_000_000, 6_000) == 0
    assert told(4_000_000, 7_000) == 1_000_000
    # What was long ago counts no more.
    assert told(5_000_000, 40_000) == pytest.approx(2_000_000 / 34)
    assert told(25_000_000, 50_000) == 2_000_000
    assert reports.written_bytes_per_s(partition(1, leader=NO_NODE)) == 0


def test_a_burst_that_is_over_does_not_count_and_a_steady_rate_is_told_as_it_is() -> None:
    reports, led = Reports(), partition(1)
    burst_s, steady_s = 60, 120

    def told(size_bytes: int | None, now_ms: int) -> float:
        whole = now_ms == 0
        sizes = [] if size_bytes is None else [size_bytes]
        reports.take(ONE, 1, report(*sizes, first=whole, last=whole), now_ms)
        return reports.written_bytes_per_s(led)

    told(1, 0)
    for second in range(5, burst_s, 5):
        rate = told(6_000_000 * second, 1_000 * second)
        assert second < 10 or rate == 6_000_000, second
    filled = 6_000_000 * (burst_s - 5)
    # A topic was filled, and then nobody writes to it: a plan that is asked for now has nothing to add for it.
    rates = [told(None, 1_000 * second) for second in range(burst_s, burst_s + 30, 5)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-3:] == [0, 0, 0]
    for second in range(5, steady_s, 5):
        rate = told(filled + 1_000 * second, 1_000 * (burst_s + 30 + second))
        assert second < 10 or rate == pytest.approx(1_000), second
        # Between two looks at it, it is not told.
        assert second < 20 or told(None, 1_000 * (burst_s + 30 + second) + 4_000) >= 600, second


def test_of_replicas_that_are_gone_nothing_is_kept() -> None:
    reports, other = Reports(), TopicPartition(TOPIC_ID, 1)
    reports.take(ONE, 5, report(70, 0, first=True), 0)
    assert reports.replica_bytes(ONE, other) == 0, "told, though not all are"
    reports.take(ONE, 5, report(last=True), 0)
    reports.take(ONE, 5, report(80, 90), 1)
    reports.take(ONE, 5, report(85, 95), 2)
    # Their topic is deleted.
    reports.take(ONE, 5, report(0, 0), 3)
    state = reports.node(ONE)
    assert state is not None
    assert (state.sizes, state.growth) == ({}, {}), "one topic after another is made and deleted, for years"
    assert reports.replica_bytes(ONE, KEY) == reports.replica_bytes(ONE, other) == 0


def test_what_an_earlier_registration_told_counts_no_more() -> None:
    reports = Reports()
    reports.take(ONE, 5, report(70, first=True, last=True, disk_total_bytes=9), 0)
    reports.take(ONE, 6, report(disk_total_bytes=9), 1)
    assert reports.wants_all(ONE, 6)
    assert reports.replica_bytes(ONE, KEY) is None
    reports.keep([ONE])
    assert reports.node(ONE) is not None
    reports.keep([TWO])
    assert reports.node(ONE) is None


def test_a_partition_is_as_large_as_its_leader_says_and_without_one_as_the_largest_known() -> None:
    reports = Reports()
    reports.take(ONE, 1, report(70, first=True, last=True), 0)
    reports.take(TWO, 1, report(90, first=True, last=True), 0)
    led = image(partition(1, 2)).topics[TOPIC_ID].partitions[0]
    assert reports.partition_bytes(led) == 70
    leaderless = image(partition(1, 2, leader=NO_NODE, isr=())).topics[TOPIC_ID].partitions[0]
    assert reports.partition_bytes(leaderless) == 90
    away = image(partition(3, 2)).topics[TOPIC_ID].partitions[0]
    assert reports.partition_bytes(away) is None


@pytest.mark.parametrize(
    ("change", "policy", "replica_count", "condition"),
    [
        ("", NodePolicy(), 3, "ok"),
        ("", NodePolicy(cordoned=True), 3, "cordoned"),
        ("", NodePolicy(cordoned=True), 0, "drained"),
        ("", NodePolicy(cordoned=True, draining=True), 3, "draining"),
        ("fill", NodePolicy(cordoned=True), 3, "disk-full"),
        ("fence", NodePolicy(cordoned=True), 3, "fenced"),
    ],
)
def test_a_node_is_what_is_gravest(
    change: str, policy: NodePolicy, replica_count: int, condition: str
) -> None:
    cluster = Cluster()
    cluster.up(1)
    if change:
        getattr(cluster, change)(1)
    assert condition_of(cluster.image.nodes[ONE], policy, replica_count) == condition


def result_of(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: T = ended.value
            return result


def test_nodes_are_described_with_what_they_hold_and_told() -> None:
    cluster = Cluster()
    cluster.up(1, 2, 3)
    cluster.create(assignments=[[1, 2], [2, 3]])
    reports = Reports()
    reports.take(TWO, 1, report(disk_total_bytes=100, disk_free_bytes=40, log_bytes=7), 0)
    one, two, three = result_of(describe_nodes(cluster.image, reports)).nodes
    assert [(n.replicas, n.leaders) for n in (one, two, three)] == [(1, 1), (2, 1), (1, 0)]
    assert (two.disk_total_bytes, two.disk_free_bytes, two.log_bytes) == (100, 40, 7)
    assert not one.HasField("disk_free_bytes"), "it has not told"


def going_on(of: MetadataImage, *records: pb.OperationRecord) -> MetadataImage:
    return of.apply([pb.MetadataRecord(operation=record) for record in records], of.version + 1)


def operation(operation_id: int, state: pb.OperationState.ValueType, **fields: Any) -> pb.OperationRecord:
    return pb.OperationRecord(
        operation_id=operation_id, kind="rebalance", state=state, moves_total=1, **fields
    )


def test_nodes_are_told_the_least_rate_of_what_goes_on() -> None:
    meters, reports = OperationMeters(), Reports()
    quiet = image(partition(1, 2))
    meters.observe(quiet, reports, 0)
    assert meters.limit_bytes_per_s == 0
    fast = operation(1, pb.OPERATION_STATE_RUNNING, throttle=pb.OperationThrottle(bytes_per_s=9_000_000))
    slow = operation(2, pb.OPERATION_STATE_RUNNING, throttle=pb.OperationThrottle(bytes_per_s=5_000_000))
    busy = going_on(quiet, fast, slow)
    meters.observe(busy, reports, 1_000)
    assert meters.limit_bytes_per_s == 5_000_000
    assert meters.progress(busy, slow, reports, 1_000).limit_bytes_per_s == 5_000_000
    slow.state = pb.OPERATION_STATE_DONE
    meters.observe(going_on(busy, slow), reports, 2_000)
    assert meters.limit_bytes_per_s == 9_000_000
