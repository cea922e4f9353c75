"""What clients reassign is an operation too, and no other operation fights for it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from penstock_controller.state.generation import NextCommand
from penstock_controller.state.operations.engine.reassigned import TAKEN
from penstock_controller.state.operations.engine.window import Limits
from penstock_controller.state.reassignments import alter_reassignments
from penstock_core.errors import ErrorCode
from penstock_core.ids import TopicPartition
from penstock_core.metadata.operations import ENDED, OperationMove
from penstock_proto.v1 import controller_pb2 as controller
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api
from support.moved_cluster import MovedCluster, ids, topic_id

RUNNING, PAUSED, PENDING = pb.OPERATION_STATE_RUNNING, pb.OPERATION_STATE_PAUSED, pb.OPERATION_STATE_PENDING
CANCELLING = pb.OPERATION_STATE_CANCELLING
DONE, CANCELLED = pb.OPERATION_STATE_DONE, pb.OPERATION_STATE_CANCELLED
MIB = 1024 * 1024
SMALL = Limits(moves_per_node=2, moves_in_all=3, changes_per_step=2)


def spread(count: int, *replicas: int) -> dict[tuple[str, int], tuple[int, ...]]:
    return {("t", i): replicas for i in range(count)}


def key(number: int) -> TopicPartition:
    return TopicPartition(topic_id("t"), number)


def latest(cluster: MovedCluster) -> int:
    return max(cluster.image.operations.operations)


def kinds(cluster: MovedCluster) -> list[str]:
    return [record.kind for record in cluster.image.operations.operations.values()]


def moves(cluster: MovedCluster, operation: int) -> dict[int, OperationMove]:
    return {m.key.partition: m for m in cluster.image.operations.moves[operation].values()}


def skipped(cluster: MovedCluster, operation: int) -> dict[int, str]:
    return {number: m.skipped for number, m in moves(cluster, operation).items() if m.skipped}


def at_level(cluster: MovedCluster, level: int) -> MovedCluster:
    cluster.image = replace(cluster.image, features={"metadata.level": level})
    return cluster


# --- what is recorded --------------------------------------------------------------------------


def test_what_is_reassigned_is_on_its_way_at_once_and_an_operation() -> None:
    cluster = MovedCluster(spread(2, 1, 2))
    assert cluster.alter({("t", 0): (1, 3), ("t", 1): (4, 5), ("t", 9): (1, 2)}) == [
        0,
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert cluster.partition("t", 0).adding_replicas == ids(3)
    operation = latest(cluster)
    assert operation == cluster.image.version
    record = cluster.operation(operation)
    assert (record.kind, record.state, record.created_by) == ("reassignment", RUNNING, "User:tool")
    assert (record.created_ms, record.started_ms, record.finished_ms) == (1_000, 1_000, 0)
    assert (record.plan_id, record.moves_total, record.bytes_total) == ("", 2, 0)
    assert (record.throttle.auto, record.throttle.bytes_per_s) == (False, 0)
    assert moves(cluster, operation) == {
        0: OperationMove(key(0), ids(1, 3), ids(1, 2), 0),
        1: OperationMove(key(1), ids(4, 5), ids(1, 2), 0),
    }
    record = cluster.finish(operation)
    assert (record.state, record.moves_done, record.moves_skipped) == (DONE, 2, 0)
    assert cluster.partition("t", 1).replicas == ids(4, 5)


def test_what_has_to_be_copied_is_as_large_as_its_nodes_told() -> None:
    cluster = MovedCluster(spread(2, 1, 2))
    size = api.ReplicaSize(topic_id=topic_id("t"), partition=0, size_bytes=MIB)
    report = api.NodeReport(sizes=[size], first_of_all=True, last_of_all=False)
    cluster.reports.take(ids(1)[0], 1, report, 0)
    cluster.alter({("t", 0): (1, 3, 4), ("t", 1): (3, 4)})
    operation = latest(cluster)
    assert {n: m.bytes for n, m in moves(cluster, operation).items()} == {0: 2 * MIB, 1: 0}
    assert cluster.operation(operation).bytes_total == 2 * MIB


@pytest.mark.parametrize(
    "asked",
    [(1, 2), (2, 1), (1,), ()],
    ids=["as it is", "another order", "fewer, at once", "a cancel of nothing"],
)
def test_what_is_not_on_its_way_is_no_operation(asked: tuple[int, ...]) -> None:
    cluster = MovedCluster(spread(1, 1, 2))
    cluster.alter({("t", 0): asked})
    assert not cluster.partition("t", 0).reassigning
    assert kinds(cluster) == []


def test_what_is_there_at_once_counts_as_done_beside_others() -> None:
    cluster = MovedCluster(spread(3, 1, 2))
    cluster.alter({("t", 0): (2, 1), ("t", 1): (1, 3), ("t", 2): (1, 2)})
    operation = latest(cluster)
    assert sorted(moves(cluster, operation)) == [0, 1]
    record = cluster.finish(operation)
    assert (record.moves_total, record.moves_done) == (2, 2)


@pytest.mark.parametrize("level", [1, 2])
def test_before_operations_came_nothing_is_recorded(level: int) -> None:
    cluster = at_level(MovedCluster(spread(1, 1, 2)), level)
    assert cluster.alter({("t", 0): (1, 3)}) == [0]
    assert cluster.partition("t", 0).reassigning
    assert kinds(cluster) == []
    assert cluster.alter({("t", 0): ()}) == [0]
    assert not cluster.partition("t", 0).reassigning


def test_two_in_one_command_are_two_commands() -> None:
    cluster = MovedCluster(spread(2, 1, 2))
    first, second = (
        controller.AlterReassignmentsRequest(
            reassignments=[controller.Reassignment(topic="t", partition=n, replicas=(1, 3))]
        )
        for n in range(2)
    )
    ctx = cluster.ctx.after(alter_reassignments(cluster.ctx, first, 0).all_records())
    with pytest.raises(NextCommand):
        alter_reassignments(ctx, second, 0)
    # A cancel begins no operation, so it may share the command.
    first.reassignments[0].ClearField("replicas")
    records = alter_reassignments(ctx, first, 0).all_records()
    (move,) = ctx.after(records).image.operations.moves[ctx.version].values()
    assert move.skipped == TAKEN


def test_ten_thousand_are_recorded_one_at_a_time() -> None:
    cluster = MovedCluster(spread(10_000, 1, 2))
    request = controller.AlterReassignmentsRequest(allow_factor_change=True)
    for n in range(10_000):
        request.reassignments.add(topic="t", partition=n, replicas=(1, 3))
    made = alter_reassignments(cluster.ctx, request, 0)
    assert len(made.records) == 1
    assert made.further is not None
    image = cluster.image.apply(made.all_records(), cluster.image.version + 1)
    assert len(image.operations.moves[image.version]) == 10_000


# --- whose partition it is ---------------------------------------------------------------------


def test_a_cancel_ends_the_operation_and_nobody_begins_it_again() -> None:
    cluster = MovedCluster(spread(2, 1, 2))
    cluster.alter(spread(2, 1, 3))
    operation = latest(cluster)
    cluster.settle(operation)
    assert cluster.alter({("t", 0): ()}) == [0]
    assert skipped(cluster, operation) == {0: TAKEN}
    cluster.failover()
    cluster.settle(operation)
    assert cluster.partition("t", 0).replicas == ids(1, 2)
    assert not cluster.partition("t", 0).reassigning
    record = cluster.finish(operation)
    assert (record.state, record.moves_done, record.moves_skipped) == (DONE, 1, 1)
    assert kinds(cluster) == ["reassignment"]


def test_another_target_is_another_operation_and_the_first_one_ends() -> None:
    cluster = MovedCluster(spread(1, 1, 2))
    cluster.alter(spread(1, 1, 3))
    first = latest(cluster)
    cluster.alter(spread(1, 4, 5))
    second = latest(cluster)
    assert second != first
    assert skipped(cluster, first) == {0: TAKEN}
    assert moves(cluster, second)[0].replicas_before == ids(1, 2)
    cluster.failover()
    record = cluster.finish(first)
    assert (record.state, record.moves_done, record.moves_skipped) == (DONE, 0, 1)
    assert cluster.finish(second).moves_done == 1
    assert cluster.partition("t", 0).replicas == ids(4, 5)


def test_the_same_target_again_changes_nothing() -> None:
    cluster = MovedCluster(spread(1, 1, 2))
    cluster.alter(spread(1, 1, 3))
    version = cluster.image.version
    assert cluster.alter(spread(1, 1, 3)) == [0]
    assert cluster.image.version == version


@pytest.mark.parametrize("wanted", [(), (4, 5), (1, 2)], ids=["cancelled", "moved elsewhere", "moved back"])
@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused by hand"])
def test_an_operation_leaves_it_to_whoever_asked_last(wanted: tuple[int, ...], paused: bool) -> None:
    cluster = MovedCluster(spread(2, 1, 2))
    owner = cluster.start(cluster.plan("rebalance", spread(2, 1, 3)))
    cluster.settle(owner)
    if paused:
        cluster.control(owner, api.OPERATION_CONTROL_PAUSE)
    cluster.alter({("t", 0): wanted})
    # In the very command: another active controller knows it from the image alone.
    assert skipped(cluster, owner) == {0: TAKEN}
    cluster.failover()
    cluster.settle(owner)
    record = cluster.operation(owner)
    assert record.state == PAUSED
    if paused:
        assert (record.paused_by_hand, record.reason) == (True, "paused by User:admin")
    else:
        assert record.reason.startswith("conflict: somebody else reassigned t-0; resume")
    assert not cluster.control(owner, api.OPERATION_CONTROL_RESUME)
    record = cluster.finish(owner)
    assert (record.state, record.moves_done, record.moves_skipped) == (DONE, 1, 1)
    assert cluster.partition("t", 0).replicas == ids(*(wanted or (1, 2)))


def test_one_that_waits_for_its_turn_pauses_too() -> None:
    cluster = MovedCluster(spread(3, 1, 2))
    for n in range(2):
        cluster.start(cluster.plan("rebalance", {("t", n): (1, 3)}))
    waiting = cluster.start(cluster.plan("rebalance", {("t", 2): (1, 3)}))
    assert cluster.operation(waiting).state == PENDING
    cluster.alter({("t", 2): (4, 5)})
    assert cluster.operation(waiting).state == PAUSED
    assert cluster.operation(waiting).reason.startswith("conflict")


def test_what_a_client_begins_for_an_operation_is_no_conflict() -> None:
    cluster = MovedCluster(spread(1, 1, 2))
    owner = cluster.start(cluster.plan("rebalance", spread(1, 1, 3)))
    cluster.alter(spread(1, 1, 3))
    assert skipped(cluster, owner) == {}
    assert cluster.finish(owner).moves_done == 1
    assert cluster.finish(latest(cluster)).moves_done == 1


def test_one_that_is_being_cancelled_does_not_take_it_back() -> None:
    cluster = MovedCluster(spread(2, 1, 2))
    owner = cluster.start(cluster.plan("rebalance", spread(2, 1, 3)))
    cluster.settle(owner)
    cluster.control(owner, api.OPERATION_CONTROL_CANCEL)
    cluster.alter({("t", 0): (4, 3)})
    assert cluster.operation(owner).state == CANCELLING
    assert cluster.finish(owner).state == CANCELLED
    assert cluster.finish(latest(cluster)).state == DONE
    assert cluster.partition("t", 0).replicas == ids(4, 3)
    assert cluster.partition("t", 1).replicas == ids(1, 2)


def test_a_reassignment_can_be_cancelled_as_an_operation() -> None:
    cluster = MovedCluster(spread(2, 1, 2, 3))
    cluster.alter(spread(2, 4, 2, 5))
    operation = latest(cluster)
    cluster.settle(operation)
    assert not cluster.control(operation, api.OPERATION_CONTROL_CANCEL)
    assert cluster.finish(operation).state == CANCELLED
    assert [p.replicas for p in cluster.partitions()] == [ids(1, 2, 3)] * 2


class Run:
    """A planned operation among clients that reassign, one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.count = rng.randint(1, 6)
        self.cluster = MovedCluster({("t", n): self.some() for n in range(self.count)}, limits=SMALL, rng=rng)
        self.cluster.start(self.cluster.plan("rebalance", {("t", n): self.some() for n in range(self.count)}))
        self.asked: dict[int, tuple[int, ...]] = {}
        """What clients said last of each partition."""

    def some(self) -> tuple[int, ...]:
        return tuple(self.rng.sample(range(1, 6), 2))

    def live(self) -> list[int]:
        return [i for i, o in self.cluster.image.operations.operations.items() if o.state not in ENDED]

    def event(self) -> None:
        name = self.rng.choices(("step", "catch up", "client", "failover", "resume"), (40, 20, 6, 4, 3))[0]
        if name == "catch up":
            self.cluster.catch_up(self.rng.randint(1, 3))
        elif name == "client":
            self.client()
        elif name == "failover":
            self.cluster.failover()
        for operation in self.live():
            if name == "step":
                self.cluster.step(operation)
            elif name == "resume" and self.cluster.operation(operation).state == PAUSED:
                assert not self.cluster.control(operation, api.OPERATION_CONTROL_RESUME)

    def client(self) -> None:
        number = self.rng.randrange(self.count)
        old = self.cluster.partition("t", number)
        before = tuple(n for n in old.replicas if n not in old.adding_replicas)
        wanted = self.rng.choice(((), self.some(), self.some(), before))
        self.cluster.alter({("t", number): wanted})
        # One that is where it is wanted was not changed, and is not the client's.
        if self.cluster.partition("t", number) is not old:
            self.asked[number] = wanted or before

    def go_to_the_end(self) -> None:
        for _ in range(200):
            for operation in self.live():
                if self.cluster.operation(operation).state == PAUSED:
                    assert not self.cluster.control(operation, api.OPERATION_CONTROL_RESUME)
                self.cluster.settle(operation)
            if not self.cluster.catch_up() and not self.live():
                return
        raise AssertionError(f"it does not end: {self.live()}")


def test_whoever_asked_last_gets_it_whatever_happens() -> None:
    for seed in range(300):
        try:
            run = Run(seed)
            for _ in range(run.rng.choice((20, 60))):
                run.event()
            run.go_to_the_end()
            for number, wanted in run.asked.items():
                partition = run.cluster.partition("t", number)
                assert (partition.replicas, partition.reassigning) == (ids(*wanted), False)
            for record in run.cluster.image.operations.operations.values():
                assert record.state == DONE
                assert record.moves_done + record.moves_skipped == record.moves_total
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
