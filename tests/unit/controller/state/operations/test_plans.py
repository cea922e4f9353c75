"""What each kind of plan moves, whatever the cluster looks like, and what people are told of it."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock_controller.state.operations.planner.domains import Domains
from penstock_controller.state.operations.plans.plan import plan_id, plan_steps
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NO_NODE, NodeId
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import metadata_pb2 as meta
from penstock_proto.v1 import operations_pb2 as pb
from unit.controller.state.operations.images import (
    ask,
    carried_out,
    cluster,
    gate,
    ids,
    moves_of,
    node,
    partition,
    planned,
    random_cluster,
    replicas_of,
    reported,
    view,
)

SEEDS = st.integers(0, 2**32 - 1)
EVEN = {"a": [[1, 2, 3], [2, 3, 4], [3, 4, 1], [4, 1, 2]]}


def refused(image: MetadataImage, request: pb.PlanRequest) -> PenstockError:
    with pytest.raises(PenstockError) as error:
        planned(image, request)
    return error.value


def tried(image: MetadataImage, request: pb.PlanRequest) -> pb.Plan | None:
    """The plan; None where there are too few nodes for one."""
    try:
        return planned(image, request)
    except PenstockError as error:
        few = (ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.INVALID_REPLICATION_FACTOR)
        assert error.code in few or "is left" in error.message
        return None


def check_sound(image: MetadataImage, plan: pb.Plan) -> None:
    """What holds of every plan."""
    takers = {n for n, each in image.nodes.items() if each.active and not image.operations.is_cordoned(n)}
    if plan.kind == "node-add":
        takers |= set(ids(plan.parameters.node_ids))
    order = [(m.topic, m.partition) for m in plan.moves]
    assert order == sorted(set(order))
    for (topic, number), (before, after) in moves_of(plan).items():
        found = image.topic(topic)
        assert found is not None
        assert tuple(before) == found.partitions[number].replicas != tuple(after)
        assert len(set(after)) == len(after) >= 1
        assert set(after) - set(before) <= takers
    held = Counter(n for replicas in replicas_of(image).values() for n in replicas)
    then = Counter(n for replicas in replicas_of(carried_out(image, plan)).values() for n in replicas)
    assert {n.node_id: (n.replicas_before, n.replicas_after) for n in plan.nodes} == {
        n: (held[n], then[n]) for n in sorted(image.nodes)
    }
    assert plan.totals.moves == len(plan.moves)
    assert sum(m.bytes for m in plan.moves) == 10 * plan.totals.replicas_added
    refilled = plan.kind == "node-replace" and not plan.parameters.replacement_node_id
    again = sum(held[NodeId(n)] for n in plan.parameters.node_ids) if refilled else 0
    assert plan.totals.bytes == 10 * (plan.totals.replicas_added + again)
    assert [g.name for g in plan.gates] == [
        *("quorum", "disk-room", "conflict", "versions", "min-isr", "racks", "health", "single-replica")
    ]
    assert plan.runnable == all(g.ok for g in plan.gates)


def any_request(rng: random.Random, image: MetadataImage) -> pb.PlanRequest:
    kind = rng.choice(["node-add", "node-drain", "node-remove", "rebalance", "set-replication-factor"])
    nodes = sorted(image.nodes)
    if kind == "node-add":
        return ask(kind, node_ids=[1])
    if kind == "rebalance":
        goals = rng.sample(["replicas", "leaders", "bytes"], rng.randint(0, 3))
        return ask(kind, goals=goals, excluded_node_ids=rng.sample(nodes, rng.randint(0, 1)))
    if kind == "set-replication-factor":
        return ask(kind, topics=[min(image.topic_ids)], replication_factor=rng.randint(1, 4))
    return ask(kind, node_ids=rng.sample(nodes, rng.randint(1, 2)))


@settings(max_examples=300, deadline=None)
@given(SEEDS)
def test_every_plan_is_sound_and_the_same_for_the_same_input(seed: int) -> None:
    rng = random.Random(seed)
    image = random_cluster(rng)
    request = any_request(rng, image)
    plan = tried(image, request)
    if plan is not None:
        check_sound(image, plan)
        assert planned(image, request) == plan


@settings(max_examples=200, deadline=None)
@given(SEEDS)
@example(210_433)  # what is taken back makes way
@example(317_350)  # the order of followers
@example(718_137_360)  # who leads shares a domain with a node that keeps what it has
def test_a_plan_that_was_carried_out_settles(seed: int) -> None:
    """A second plan moves nothing. Beside a node that keeps what it has (once in some ten thousand of these clusters
    with racks) it may move a partition or two; a third one nothing."""
    rng = random.Random(seed)
    # Nodes that keep what they have may stand in the way of an even spread: see the next one.
    image = random_cluster(rng, unwell=False)
    request = any_request(rng, image)
    plan = tried(image, request)
    if plan is not None:
        image = carried_out(image, plan)
        again = planned(image, request)
        assert len(again.moves) <= (2 if request.parameters.excluded_node_ids else 0)
        assert moves_of(planned(carried_out(image, again), request)) == {}


@settings(max_examples=200, deadline=None)
@given(SEEDS)
def test_so_it_is_beside_nodes_that_keep_what_they_have_where_there_are_no_racks(seed: int) -> None:
    rng = random.Random(seed)
    image = random_cluster(rng, racks=False)
    request = any_request(rng, image)
    plan = tried(image, request)
    if plan is not None:
        assert moves_of(planned(carried_out(image, plan), request)) == {}


@settings(max_examples=200, deadline=None)
@given(SEEDS, st.sampled_from(["node-drain", "node-remove"]))
def test_a_drained_node_keeps_nothing(seed: int, kind: str) -> None:
    rng = random.Random(seed)
    image = random_cluster(rng)
    gone = set(rng.sample(sorted(image.nodes), rng.randint(1, len(image.nodes) - 1)))
    plan = tried(image, ask(kind, node_ids=sorted(gone)))
    if plan is None:
        return
    for replicas in replicas_of(carried_out(image, plan)).values():
        assert not gone & set(replicas)
    assert all(not n.replicas_after and not n.leaders_after for n in plan.nodes if n.node_id in gone)


@settings(max_examples=200, deadline=None)
@given(SEEDS)
def test_a_plan_that_may_run_fills_no_disk_beyond_its_reserve(seed: int) -> None:
    rng = random.Random(seed)
    image = random_cluster(rng)
    sizes = {key: rng.choice([0, 5, 20, 50]) for key in replicas_of(image)}
    used = Counter(
        n for key, replicas in replicas_of(image).items() for n in replicas for _ in range(sizes[key])
    )
    total = max(used.values(), default=0) + rng.choice([10, 50, 200])
    try:
        plan = planned(image, any_request(rng, image), view(image, reported(image, sizes, total_bytes=total)))
    except PenstockError:
        return
    full = [
        n
        for n in plan.nodes
        if n.disk_free_bytes_least < n.disk_free_bytes_before
        and total - n.disk_free_bytes_least > 0.85 * total
    ]
    assert len(gate(plan, "disk-room").items) == len(full)


@settings(max_examples=200, deadline=None)
@given(SEEDS)
def test_nodes_that_are_excluded_down_or_cordoned_lose_nothing_to_evenness(seed: int) -> None:
    rng = random.Random(seed)
    image = random_cluster(rng)
    excluded = set(rng.sample(sorted(image.nodes), rng.randint(0, 1)))
    goals = rng.choice([["replicas"], ["leaders"], ["replicas", "leaders", "bytes"], []])
    plan = planned(image, ask("rebalance", goals=goals, excluded_node_ids=sorted(excluded)))
    down = {n for n, each in image.nodes.items() if each.fenced}
    cordoned = {n for n in image.nodes if image.operations.is_cordoned(n)}
    domains = Domains({n: each.rack for n, each in image.nodes.items()})
    for before, after in moves_of(plan).values():
        for n in excluded | down:
            assert (n in before, n == before[0]) == (n in after, n == after[0])
        assert cordoned & set(before) == cordoned & set(after)
        assert domains.cost(ids(after)) <= domains.cost(ids(before))
        if goals == ["leaders"]:
            assert set(before) == set(after)
    assert gate(plan, "racks").ok


def test_a_new_node_gets_its_share_though_it_is_cordoned_yet() -> None:
    image = cluster([1, 2, 3, 4], {"a": [[1, 2, 3]] * 8}, cordoned=[4])
    plan = planned(image, ask("node-add", node_ids=[4]))
    assert [n.replicas_after for n in plan.nodes] == [6, 6, 6, 6]
    assert [n.leaders_after for n in plan.nodes] == [2, 2, 2, 2]
    assert (plan.totals.replicas_added, plan.totals.replicas_removed) == (6, 6)
    assert plan.runnable
    assert planned(image, ask("rebalance")).nodes[3].replicas_after == 0


def test_a_drain_of_an_even_cluster_moves_what_is_there_and_nothing_else() -> None:
    image = cluster([1, 2, 3, 4, 5], {"a": [[n % 5 + 1, (n + 1) % 5 + 1] for n in range(10)]})
    plan = planned(image, ask("node-drain", node_ids=[5]))
    assert (plan.totals.replicas_added, plan.totals.bytes) == (4, 40)
    assert [n.replicas_after for n in plan.nodes] == [5, 5, 5, 5, 0]
    leaders = [n.leaders_after for n in plan.nodes[:4]]
    assert max(leaders) - min(leaders) <= 1
    assert list(plan.warnings) == []
    # Node 6 has nothing yet: the others give it some.
    uneven = cluster([1, 2, 3, 4, 5, 6], {"a": [[n % 5 + 1, (n + 1) % 5 + 1] for n in range(10)]})
    plan = planned(uneven, ask("node-drain", node_ids=[5]))
    assert [n.replicas_after for n in plan.nodes] == [4, 4, 4, 4, 0, 4]
    assert list(plan.warnings) == []
    two = cluster([1, 2, 3, 4, 5, 6, 7], {"a": [[n % 5 + 1, (n + 1) % 5 + 1] for n in range(10)]})
    plan = planned(two, ask("node-drain", node_ids=[5]))
    assert plan.totals.replicas_added > 4
    assert f"{plan.totals.replicas_added - 4} more replicas are copied" in plan.warnings[0]


def test_a_replacement_takes_the_same_places() -> None:
    image = cluster([1, 2, 3, 4], {"a": [[1, 2, 3], [2, 3, 1]], "b": [[3, 2]]})
    plan = planned(image, ask("node-replace", node_ids=[2], replacement_node_id=4))
    assert moves_of(plan) == {
        ("a", 0): ([1, 2, 3], [1, 4, 3]),
        ("a", 1): ([2, 3, 1], [4, 3, 1]),
        ("b", 0): ([3, 2], [3, 4]),
    }
    assert plan.totals.leader_changes == 1


def test_a_node_that_comes_back_itself_is_only_watched() -> None:
    image = cluster([1, 2], {"a": [[1, 2]], "b": [[2]]})
    plan = planned(image, ask("node-replace", node_ids=[1]))
    assert (len(plan.moves), plan.runnable, plan.HasField("eta_s")) == (0, True, True)
    assert "stop it, and start it again with an empty directory" in plan.warnings[0]
    assert plan.warnings[1] == (
        "Node 1 fetches 1 replica again; the time is from when it is up with an empty directory."
    )
    had = meta.RetiredDirectoryRecord(directory_id=b"d" * 16, node_id=1, replaced_by=b"e" * 16)
    back = image.apply([meta.MetadataRecord(retired_directory=had)], image.version + 1)
    assert planned(back, ask("node-replace", node_ids=[1])).warnings[0] == (
        f"Node 1 has another directory than it had ({(b'd' * 16).hex()}), which is refused for good once this is done."
    )
    # Whatever is nowhere else would be lost.
    plan = planned(image, ask("node-replace", node_ids=[2]))
    assert list(gate(plan, "health").items) == ["b-0 (single copy, on node 2, which is to come back empty)"]


def test_what_a_node_that_comes_back_empty_fetches_again_is_told_with_the_time() -> None:
    image = cluster(
        [1, 2, 3, node(4, fenced=True)],
        {
            "a": [partition("a", 0, [4, 1, 2], isr=[1, 2]), partition("a", 1, [1, 4, 3], isr=[1, 3])],
            "b": [partition("b", 0, [1, 2], isr=[1, 2])],
        },
    )
    seen = view(image, reported(image, 2000), away=[4])
    slow = meta.OperationThrottle(bytes_per_s=100)
    plan = planned(image, ask("node-replace", node_ids=[4], throttle=slow), seen)
    assert plan.runnable
    assert (len(plan.moves), plan.totals.bytes) == (0, 4000)
    assert plan.eta_s == pytest.approx(4000 / 100 + 1)
    assert plan.warnings[0].startswith("Node 4 fetches 2 replicas again;")
    # Of what nobody has told, nobody knows how long it takes.
    untold = view(image, reported(image, silent=[1, 2, 3, 4]), away=[4])
    assert not planned(image, ask("node-replace", node_ids=[4]), untold).HasField("eta_s")


def test_a_dead_nodes_replicas_are_made_elsewhere_but_for_single_copies() -> None:
    image = cluster(
        [1, 2, 3, node(4, fenced=True)],
        {
            "a": [partition("a", 0, [4, 1, 2], isr=[1, 2])],
            "b": [partition("b", 0, [4], isr=[4], leader=NO_NODE)],
        },
    )
    plan = planned(image, ask("node-remove", node_ids=[4]), view(image, away=[4]))
    assert all(4 not in after for _, after in moves_of(plan).values())
    assert list(gate(plan, "health").items) == ["b-0 (single copy, on node 4, which is down)"]
    assert not plan.runnable
    assert any("b-0" in warning for warning in plan.warnings)
    assert planned(image, ask("node-remove", node_ids=[4], allowed=["health"])).runnable


@pytest.mark.parametrize("flagged", [False, True], ids=["beyond 85 %", "disk-full"])
@pytest.mark.parametrize("down", [False, True], ids=["all up", "one down"])
def test_a_disk_that_is_too_full_to_swap_anything_gives_replicas_away(*, flagged: bool, down: bool) -> None:
    """A swap would bring a small replica to a disk that may get nothing before a large one has left it."""
    image = cluster(
        [node(1, disk_full=flagged), 2, 3, node(4, fenced=down)],
        {"a": [[1], [2], [3], [1], [2], [3], [1], [2], [3]], "b": [[4]]},
    )
    sizes = {
        partition("a", 0, [1]).key: 600,
        partition("a", 3, [1]).key: 200,
        partition("a", 6, [1]).key: 150,
    }
    seen = view(image, reported(image, sizes, total_bytes={1: 1_000}), away=[4] if down else [])
    request = ask("rebalance", goals=["bytes"], allowed=["health"])
    plan = planned(image, request, seen)
    # The smallest one that is enough: 950 of 1,000 bytes are in use, 850 may be.
    changed = {key: after for key, (before, after) in moves_of(plan).items() if 1 in (*before, *after)}
    assert changed in ({("a", 6): [n]} for n in (2, 3, 4))
    assert plan.runnable
    after = carried_out(image, plan)
    again = planned(after, request, view(after, reported(after, sizes, total_bytes={1: 1_000})))
    assert next(n.replicas_after for n in again.nodes if n.node_id == 1) == 2, (
        "it has room again: a swap does"
    )
    # Where counts are to be even they stay so.
    assert not down or not planned(image, ask("rebalance", goals=["replicas", "bytes"]), seen).moves
    few = ask("rebalance", goals=["bytes"], max_bytes=100, allowed=["health"])
    assert not planned(image, few, seen).moves


def test_what_leaves_a_full_disk_already_is_not_given_away_again() -> None:
    leaving = replace(partition("a", 1, [2, 1]), adding_replicas=ids([2]), removing_replicas=ids([1]))
    image = cluster([1, 2, 3], {"a": [[1], leaving]})
    sizes = {partition("a", 0, [1]).key: 800, leaving.key: 150}
    seen = view(image, reported(image, sizes, total_bytes={1: 1_000}))
    assert moves_of(planned(image, ask("rebalance", goals=["bytes"]), seen)) == {}


def test_what_a_better_spread_takes_off_a_full_disk_is_enough() -> None:
    image = cluster(
        [node(1, "a"), node(2, "a"), node(3, "b"), node(4, "b")],
        {"a": [[1]], "b": [partition("b", 0, [2, 1], leader=2)]},
    )
    sizes = {partition("a", 0, [1]).key: 600, partition("b", 0, [2, 1]).key: 300}
    seen = view(image, reported(image, sizes, total_bytes={1: 1_000}))
    moves = moves_of(planned(image, ask("rebalance", goals=["bytes"]), seen))
    assert moves == {("b", 0): ([2, 1], [2, 3])}


def test_a_factor_leaves_the_room_to_its_topics_that_others_would_like() -> None:
    """Topic b shares a rack, which no change of the factor of a mends: it takes nobody's room."""
    image = cluster(
        [node(1, "a"), node(2, "a"), node(3, "b"), node(4, "b")],
        {"a": [[1]], "b": [[1, 2]], "c": [[4], [4]]},
    )
    sizes = {partition("a", 0, [1]).key: 300, partition("b", 0, [1]).key: 600}
    seen = view(image, reported(image, sizes, total_bytes={1: 2_000, 2: 1_000, 3: 100, 4: 1_000}))
    plan = planned(image, ask("set-replication-factor", topics=["a"], replication_factor=2), seen)
    assert moves_of(plan) == {("a", 0): ([1], [1, 4])}
    assert plan.runnable
    assert ("b", 0) in moves_of(planned(image, ask("rebalance"), seen))


def test_a_factor_does_not_ask_whether_other_topics_can_be_mended() -> None:
    image = cluster([1, 2], {"a": [[1]], "b": [partition("b", 0, [1, 2, 9], isr=[1, 2])]})
    plan = planned(image, ask("set-replication-factor", topics=["a"], replication_factor=2))
    assert moves_of(plan) == {("a", 0): ([1], [1, 2])}


def test_a_factor_is_raised_by_adding_and_lowered_without_losing_the_leader() -> None:
    image = cluster(
        [1, 2, 3, 4], {"a": [[1], [2]], "b": [partition("b", 0, [1, 2, 3], isr=[3, 2], leader=3)]}
    )
    up = planned(image, ask("set-replication-factor", topics=["a"], replication_factor=3))
    for before, after in moves_of(up).values():
        assert after[: len(before)] == before
        assert len(after) == 3
    assert {topic for topic, _ in moves_of(up)} == {"a"}
    assert "acks=all then needs 2 replicas in sync instead of 1" in up.warnings[0]
    two = planned(image, ask("set-replication-factor", topics=["b"], replication_factor=2))
    assert moves_of(two) == {("b", 0): ([1, 2, 3], [2, 3])}
    one = planned(image, ask("set-replication-factor", topics=["b"], replication_factor=1))
    assert moves_of(one) == {("b", 0): ([1, 2, 3], [3])}
    assert "records are lost with the one node" in one.warnings[0]
    assert "acks=all then needs only 1 replica" in one.warnings[1]
    assert (one.totals.bytes, one.eta_s) == (0, 0)


def test_a_set_min_isr_is_what_the_warning_is_about() -> None:
    image = cluster([1, 2, 3], {"a": [[1, 2, 3]]}, configs={"a": {"min.insync.replicas": "2"}})
    plan = planned(image, ask("set-replication-factor", topics=["a"], replication_factor=1))
    assert "min.insync.replicas is 2, and counts as 1" in plan.warnings[1]


def test_a_rebalance_of_some_topics_leaves_the_others() -> None:
    image = cluster([1, 2, 3], {"a": [[1]] * 6, "b": [[1]] * 6})
    plan = planned(image, ask("rebalance", topics=["a"]))
    assert {topic for topic, _ in moves_of(plan)} == {"a"}
    assert plan.totals.moves == 4


def test_bytes_are_levelled_up_to_what_may_be_moved() -> None:
    image = cluster([1, 2, 3], {"a": [[n % 3 + 1] for n in range(12)]})
    sizes = {key: 100 if key.partition % 3 == 0 else 10 for key in replicas_of(image)}
    seen = view(image, reported(image, sizes))
    plan = planned(image, ask("rebalance", goals=["replicas", "bytes"], max_bytes=150), seen)
    assert 0 < plan.totals.bytes <= 150
    far = planned(image, ask("rebalance", goals=["replicas", "bytes"]), seen)
    assert far.totals.bytes > 150
    assert plan.plan_id != far.plan_id


def test_an_election_moves_nothing_and_counts_who_could_lead() -> None:
    image = cluster(
        [1, 2, node(3, fenced=True)],
        {
            "a": [partition("a", n, [1, 2], leader=2) for n in range(3)],
            "b": [partition("b", 0, [2, 1], leader=1), partition("b", 1, [3, 1], isr=[1]), [1, 2]],
        },
    )
    assert planned(image, ask("leader-elect")).totals.leader_changes == 4
    plan = planned(image, ask("leader-elect", topics=["a"], partitions=[0, 2]))
    assert (plan.totals.leader_changes, len(plan.moves), plan.runnable) == (2, 0, True)


def test_an_uncordon_moves_nothing() -> None:
    image = cluster([1, 2, 3, 4], EVEN, cordoned=[2])
    plan = planned(image, ask("node-uncordon", node_ids=[2]))
    assert (len(plan.moves), list(plan.warnings), plan.runnable) == (0, [], True)
    assert "nothing changes" in planned(image, ask("node-uncordon", node_ids=[1])).warnings[0]


def test_disks_are_told_with_all_that_comes_and_nothing_that_has_gone() -> None:
    image = cluster([1, 2], {"a": [[1]] * 4})
    plan = planned(image, ask("rebalance"), view(image, reported(image, 100, total_bytes=1000)))
    first, second = plan.nodes
    assert (first.bytes_before, first.bytes_after, second.bytes_after) == (400, 200, 200)
    assert (first.disk_free_bytes_before, first.disk_free_bytes_least, first.disk_free_bytes_after) == (
        600,
        600,
        800,
    )
    assert (second.disk_free_bytes_before, second.disk_free_bytes_least, second.disk_free_bytes_after) == (
        1000,
        800,
        800,
    )


def test_time_follows_the_throttle_and_is_not_told_while_sizes_are_unknown() -> None:
    image = cluster([1, 2], {"a": [[1]] * 4})
    seen = view(image, reported(image, 1000))
    slow = meta.OperationThrottle(bytes_per_s=100)
    assert planned(image, ask("rebalance", throttle=slow), seen).eta_s == pytest.approx(2000 / 100 + 1)
    auto = planned(image, ask("rebalance", throttle=meta.OperationThrottle(auto=True)), seen)
    assert auto.eta_s == pytest.approx(2000 / (64 * 2**20) + 1)
    assert auto.throttle.auto
    unknown = planned(image, ask("rebalance"), view(image, reported(image, silent=[1])))
    assert not unknown.HasField("eta_s")


def test_a_partition_on_its_way_is_planned_from_where_it_goes() -> None:
    going = replace(
        partition("a", 0, [2, 1]), adding_replicas=ids([2]), removing_replicas=ids([1]), isr=ids([1])
    )
    image = cluster([1, 2, 3], {"a": [going]})
    assert moves_of(planned(image, ask("node-drain", node_ids=[1]))) == {}
    plan = planned(image, ask("node-drain", node_ids=[2]))
    assert moves_of(plan)["a", 0][0] == [2]
    assert list(gate(plan, "conflict").items) == ["a-0 (being reassigned)"]


def test_a_plan_id_is_the_digest_of_kind_parameters_and_moves() -> None:
    image = cluster([1, 2, 3, 4], EVEN)
    plan = planned(image, ask("node-drain", node_ids=[4]))
    moves = [[t, p, before, after] for (t, p), (before, after) in sorted(moves_of(plan).items())]
    body = {"kind": "node-drain", "parameters": {"node_ids": [4]}, "moves": moves}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    assert plan.plan_id == hashlib.sha256(text.encode()).hexdigest()[:16]
    turned = plan_id(plan.kind, plan.parameters, list(reversed(plan.moves)))
    assert (
        turned == plan.plan_id == planned(replace(image, version=7), ask("node-drain", node_ids=[4])).plan_id
    )
    changed = pb.Plan()
    changed.CopyFrom(plan)
    changed.moves[0].to.reverse()
    assert plan_id(changed.kind, changed.parameters, changed.moves) != plan.plan_id
    assert plan_id("node-remove", plan.parameters, plan.moves) != plan.plan_id
    assert plan_id(plan.kind, plan.parameters, plan.moves[1:]) != plan.plan_id


def test_many_partitions_are_planned_in_many_steps() -> None:
    image = cluster([1, 2, 3], {"a": [[1, 2]] * 3000})
    steps = plan_steps(image, ask("rebalance"), view(image))
    assert sum(1 for _ in steps) > 3000 / 100


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (ask("drain"), ErrorCode.INVALID_REQUEST, "no operation of kind 'drain'; there are node-add"),
        (ask("reassignment"), ErrorCode.INVALID_REQUEST, "no operation of kind 'reassignment'"),
        (ask("node-drain"), ErrorCode.INVALID_REQUEST, "needs the id of a node"),
        (ask("node-drain", node_ids=[2, 2]), ErrorCode.INVALID_REQUEST, "2 is named twice"),
        (ask("node-drain", node_ids=[9]), ErrorCode.BROKER_ID_NOT_REGISTERED, "has the id 9; see"),
        (
            ask("node-remove", node_ids=[1, 2, 3, 4, 7]),
            ErrorCode.POLICY_VIOLATION,
            "without nodes 1, 2, 3, 4, 7 no",
        ),
        (
            ask("node-drain", node_ids=[1, 2]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "only 2 nodes may have one",
        ),
        (
            ask("node-drain", node_ids=[1], topics=["a"]),
            ErrorCode.INVALID_REQUEST,
            "no parameter topics; it has",
        ),
        (ask("node-add", node_ids=[5]), ErrorCode.BROKER_NOT_AVAILABLE, "node 5 is not live"),
        (ask("node-uncordon", node_ids=[]), ErrorCode.INVALID_REQUEST, "node-uncordon needs the id"),
        (ask("node-replace", node_ids=[1, 2]), ErrorCode.INVALID_REQUEST, "one node is replaced at a time"),
        (
            ask("node-replace", node_ids=[1], replacement_node_id=1),
            ErrorCode.INVALID_REQUEST,
            "its own place",
        ),
        (ask("node-replace", node_ids=[1], replacement_node_id=8), ErrorCode.BROKER_ID_NOT_REGISTERED, "8"),
        (ask("node-replace", node_ids=[1], replacement_node_id=5), ErrorCode.BROKER_NOT_AVAILABLE, "node 5"),
        (ask("node-replace", node_ids=[1], replacement_node_id=6), ErrorCode.POLICY_VIOLATION, "uncordon 6"),
        (ask("node-replace", node_ids=[1], replacement_node_id=7), ErrorCode.POLICY_VIOLATION, "7 is full"),
        (
            ask("node-replace", node_ids=[1], replacement_node_id=2),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "node 2 has a replica of a-0 already",
        ),
        (ask("set-replication-factor", replication_factor=3), ErrorCode.INVALID_REQUEST, "names of topics"),
        (ask("set-replication-factor", topics=["a"]), ErrorCode.INVALID_REPLICATION_FACTOR, "is 0; use 1"),
        (
            ask("set-replication-factor", topics=["a"], replication_factor=5),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "a-0 is to have 5 replicas, and only 4 nodes may have one",
        ),
        (
            ask("set-replication-factor", topics=["x"], replication_factor=2),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "no topic 'x'",
        ),
        (ask("rebalance", goals=["racks"]), ErrorCode.INVALID_REQUEST, "no goal 'racks'; there are replicas"),
        (ask("rebalance", max_bytes=5), ErrorCode.INVALID_REQUEST, 'goal "bytes"'),
        (ask("rebalance", topics=["a", "a"]), ErrorCode.INVALID_REQUEST, "a is named twice"),
        (ask("rebalance", excluded_node_ids=[9]), ErrorCode.BROKER_ID_NOT_REGISTERED, "9"),
        (ask("leader-elect", partitions=[0]), ErrorCode.INVALID_REQUEST, "those of one topic"),
        (
            ask("leader-elect", topics=["a"], partitions=[4]),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "no partition a-4; the topic has 4",
        ),
        (
            ask("rebalance", allowed=["rack"]),
            ErrorCode.INVALID_REQUEST,
            "gate 'rack' is not there; these may be",
        ),
        (ask("rebalance", allowed=["quorum"]), ErrorCode.INVALID_REQUEST, "'quorum' cannot be allowed away"),
        (
            ask("rebalance", throttle=meta.OperationThrottle(auto=True, bytes_per_s=5)),
            ErrorCode.INVALID_REQUEST,
            "both auto and 5",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(
    request_: pb.PlanRequest, code: ErrorCode, words: str
) -> None:
    nodes = [node(1), node(2), node(3), node(4), node(5, fenced=True), node(6), node(7, disk_full=True)]
    image = cluster(nodes, EVEN, cordoned=[6])
    error = refused(image, request_)
    assert (error.code, words in error.message) == (code, True), error.message


def test_a_factor_counts_the_nodes_that_already_have_a_replica() -> None:
    image = cluster([1, 2, 3], {"a": [[1]]}, cordoned=[1])
    plan = planned(image, ask("set-replication-factor", topics=["a"], replication_factor=3))
    assert moves_of(plan)["a", 0][1] == [1, NodeId(2), NodeId(3)]
