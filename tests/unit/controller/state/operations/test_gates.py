"""Which gates stop a plan, what they say, and which ones a person may allow away."""

from __future__ import annotations

from dataclasses import replace

from penstock_controller.state.operations.plans.plan import PlanView
from penstock_core.ids import NO_NODE, NodeId, TopicPartition
from penstock_core.metadata.operations import OperationMove
from penstock_proto.v1 import metadata_pb2 as meta
from unit.controller.state.operations.images import (
    ask,
    cluster,
    gate,
    ids,
    moves_of,
    node,
    partition,
    planned,
    reported,
    topic_id,
    under_way,
    view,
)

FOUR = {"a": [[1]] * 4}
ADD = ask("node-add", node_ids=[2])


def test_a_quorum_that_is_not_whole_stops_everything() -> None:
    image = cluster([1, 2], FOUR)
    seen = PlanView(
        reports=reported(image), alive=lambda _n: True, quorum_ok=(False, "1 of 3 controllers is there")
    )
    found = gate(planned(image, ADD, seen), "quorum")
    assert (found.ok, found.blocking, found.detail) == (False, True, "1 of 3 controllers is there")


def test_an_old_level_stops_everything_and_says_what_helps() -> None:
    found = gate(planned(cluster([1, 2], FOUR, level=2), ADD), "versions")
    assert found.blocking
    assert "penstock cluster upgrade" in found.detail


def test_a_disk_that_would_be_too_full_is_named_and_the_plan_is_shown_all_the_same() -> None:
    image = cluster([1, 2, 3], {"a": [[1], [1]]})
    plan = planned(image, ask("node-drain", node_ids=[1]), view(image, reported(image, 90, total_bytes=100)))
    assert len(plan.moves) == 2
    found = gate(plan, "disk-room")
    assert (plan.runnable, found.blocking) == (False, True)
    assert list(found.items) == ["node 2 (lacks 5 bytes)", "node 3 (lacks 5 bytes)"]
    assert "85%" in found.detail


def test_a_roomier_node_is_taken_where_there_is_one() -> None:
    image = cluster([1, 2, 3], {"a": [[1]]})
    tight = reported(image, 90, total_bytes={1: 100, 2: 100, 3: 1000})
    plan = planned(image, ask("node-drain", node_ids=[1]), view(image, tight))
    assert moves_of(plan) == {("a", 0): ([1], [3])}
    assert plan.runnable


def test_what_other_operations_have_yet_to_bring_takes_room_too() -> None:
    image = cluster([1, 2], {"a": [[1]], "b": [[1]]})
    seen = view(image, reported(image, 50, total_bytes={1: 1000, 2: 100}))
    drain = ask("set-replication-factor", topics=["a"], replication_factor=2)
    assert planned(image, drain, seen).runnable
    coming = OperationMove(TopicPartition(topic_id("b"), 0), ids([1, 2]), ids([1]), 50)
    busy = under_way(image, 7, "rebalance", [coming])
    assert not gate(planned(busy, drain, seen), "disk-room").ok


def test_unknown_sizes_and_disks_stop_what_copies_and_nothing_else() -> None:
    image = cluster([1, 2], {"a": [[1]] * 4, "b": [[1, 2]] * 4})
    for silent, item in ((1, "a-0 (size unknown)"), (2, "node 2 (disk unknown)")):
        seen = view(image, reported(image, silent=[silent]))
        found = gate(planned(image, ADD, seen), "disk-room")
        assert found.blocking
        assert item in found.items or any(i.endswith("(size unknown)") for i in found.items)
        leaders = planned(image, ask("rebalance", goals=["leaders"]), seen)
        assert leaders.moves
        assert leaders.runnable
        assert planned(image, ask("leader-elect"), seen).runnable
        lower = planned(image, ask("set-replication-factor", topics=["b"], replication_factor=1), seen)
        assert lower.runnable


def test_bytes_are_not_levelled_by_sizes_that_nobody_told() -> None:
    image = cluster([1, 2], {"a": [[1], [2]]})
    seen = view(image, reported(image, silent=[2]))
    found = gate(planned(image, ask("rebalance", goals=["bytes"]), seen), "disk-room")
    assert (found.blocking, list(found.items)) == (True, ["a-1 (size unknown)"])
    assert planned(image, ask("rebalance"), seen).runnable


def test_a_partition_or_node_in_another_operations_hands_is_a_conflict() -> None:
    image = cluster([1, 2], FOUR)
    keys = {(m.topic, m.partition) for m in planned(image, ADD).moves}
    taken = min(number for _, number in keys)
    move = OperationMove(TopicPartition(topic_id("a"), taken), ids([2]), ids([1]), 10)
    busy = under_way(image, 7, "rebalance", [move])
    found = gate(planned(busy, ADD), "conflict")
    assert (found.blocking, list(found.items)) == (True, [f"a-{taken} (operation 7)"])
    skipped = under_way(image, 7, "rebalance", [replace(move, skipped="topic gone")])
    assert gate(planned(skipped, ADD), "conflict").ok
    ended = under_way(image, 7, "rebalance", [move], state=meta.OPERATION_STATE_DONE)
    assert gate(planned(ended, ADD), "conflict").ok
    drained = under_way(image, 8, "node-drain", node_ids=[2])
    assert list(gate(planned(drained, ADD), "conflict").items) == ["node 2 (operation 8)"]
    assert gate(planned(drained, ask("rebalance")), "conflict").ok


def test_a_node_that_another_operation_has_yet_to_fill_is_not_emptied_beside_it() -> None:
    image = cluster([1, 2, 3], {"a": [[1], [3]]})
    move = OperationMove(TopicPartition(topic_id("a"), 0), ids([1, 3]), ids([1]), 10)
    busy = under_way(image, 7, "set-replication-factor", [move])
    found = gate(planned(busy, ask("node-drain", node_ids=[3])), "conflict")
    assert (found.blocking, list(found.items)) == (True, ["a-0 (operation 7)"])
    assert gate(planned(busy, ask("node-drain", node_ids=[2])), "conflict").ok
    skipped = under_way(image, 7, "set-replication-factor", [replace(move, skipped="topic gone")])
    assert gate(planned(skipped, ask("node-drain", node_ids=[3])), "conflict").ok


def test_a_plan_that_gives_up_a_rack_has_to_be_allowed() -> None:
    image = cluster([node(1, "x"), node(2, "x"), node(3, "y")], {"a": [[1, 3], [2, 3]]})
    plan = planned(image, ask("node-drain", node_ids=[3]))
    found = gate(plan, "racks")
    assert (plan.runnable, found.ok, found.blocking, list(found.items)) == (
        False,
        False,
        True,
        ["a-0", "a-1"],
    )
    plan = planned(image, ask("node-drain", node_ids=[3], allowed=["racks"]))
    found = gate(plan, "racks")
    assert (plan.runnable, found.ok, found.blocking) == (True, False, False)
    other = planned(image, ask("node-drain", node_ids=[1]))
    assert gate(other, "racks").ok


def test_a_lower_factor_may_use_fewer_racks_but_no_fewer_than_it_could() -> None:
    image = cluster([node(1, "x"), node(2, "x"), node(3, "y")], {"a": [[1, 2, 3]]})
    plan = planned(image, ask("set-replication-factor", topics=["a"], replication_factor=2))
    assert moves_of(plan)["a", 0][1][0] == 1
    assert 3 in moves_of(plan)["a", 0][1]
    assert gate(plan, "racks").ok


def test_partitions_that_are_unwell_have_to_be_allowed() -> None:
    image = cluster(
        [1, 2, 3, node(4, fenced=True)],
        {
            "a": [partition("a", 0, [4], isr=[4], leader=NO_NODE)],
            "b": [partition("b", 0, [1, 2, 3], isr=[1]), partition("b", 1, [1, 2, 4], isr=[1, 2])],
        },
    )
    plan = planned(image, ask("rebalance"))
    found = gate(plan, "health")
    assert list(found.items) == ["a-0 (offline)", "b-0 (1 in sync of 2 that it needs)"]
    assert (found.blocking, plan.runnable) == (True, False)
    assert planned(image, ask("rebalance", allowed=["health"])).runnable
    # These mend, or move nothing.
    assert planned(image, ask("leader-elect")).runnable
    assert planned(image, ask("node-uncordon", node_ids=[1])).runnable


def test_replacing_what_a_partition_lacks_need_not_be_allowed() -> None:
    lacks = [partition("a", 0, [4, 1], isr=[1]), partition("a", 1, [3, 1], isr=[1])]
    image = cluster(
        [1, 2, 3, node(4, fenced=True)], {"a": lacks[:1]}, configs={"a": {"min.insync.replicas": "2"}}
    )
    assert not gate(planned(image, ask("rebalance")), "health").ok
    for kind in ("node-remove", "node-drain", "node-replace"):
        assert gate(planned(image, ask(kind, node_ids=[4])), "health").ok
    both = cluster(image.nodes.values(), {"a": lacks}, configs={"a": {"min.insync.replicas": "2"}})
    found = gate(planned(both, ask("node-remove", node_ids=[4])), "health")
    assert list(found.items) == ["a-1 (1 in sync of 2 that it needs)"]


def test_gates_of_restarts_are_open_for_moves_and_lists_are_short() -> None:
    offline = [partition("a", n, [2], isr=[2], leader=NO_NODE) for n in range(150)]
    image = cluster([1, node(2, fenced=True)], {"a": offline})
    plan = planned(image, ask("rebalance"))
    assert gate(plan, "min-isr").ok
    assert gate(plan, "single-replica").ok
    assert len(gate(plan, "health").items) == 100


def test_a_node_whose_session_is_over_gets_nothing() -> None:
    image = cluster([1, 2, 3], {"a": [[1]] * 4})
    plan = planned(image, ask("rebalance"), view(image, away=[3]))
    assert {n for _, after in moves_of(plan).values() for n in after} == {NodeId(2)}
