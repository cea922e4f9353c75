"""Where replicas go: as few moves as it takes, even, and over racks."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.cli.moves import Planner
from penstock.errors import CommandError

NODES = {1: "a", 2: "a", 3: "b", 4: "b"}


def planner(topic: dict[int, list[int]], nodes: dict[int, str] | None = None) -> Planner:
    load = Counter(n for replicas in topic.values() for n in replicas)
    return Planner(nodes or NODES, load, topic)


def test_new_replicas_go_to_other_racks_and_idle_nodes() -> None:
    topic = {0: [1], 1: [3], 2: [1], 3: [3]}
    plan = planner(topic)
    grown = {n: plan.with_factor(replicas, replicas[0], 2) for n, replicas in topic.items()}
    assert grown == {0: [1, 4], 1: [3, 2], 2: [1, 4], 3: [3, 2]}


def test_what_goes_is_never_the_leader_while_others_are_there() -> None:
    topic = {0: [1, 2, 3], 1: [1, 2, 3], 2: [1, 2, 3]}
    plan = planner(topic)
    for number, leader in ((0, 1), (1, 2), (2, 3)):
        assert plan.with_factor(topic[number], leader, 1) == [leader]


def test_dead_nodes_go_first() -> None:
    assert planner({0: [1, 9, 3]}).with_factor([1, 9, 3], 1, 2) == [1, 3]


def test_then_those_that_are_not_in_sync_and_those_that_share_a_rack() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    topic = {0: [1, 2, 3]}
    plan = Planner(racks, Counter({1: 1, 2: 1, 3: 9}), topic)
    assert plan.with_factor(topic[0], 1, 2, isr=[1, 2]) == [1, 2]
    plan = Planner(racks, Counter({1: 1, 2: 1, 3: 9}), topic)
    assert plan.with_factor(topic[0], 1, 2, isr=[1, 2, 3]) == [1, 3]


def test_a_node_is_emptied_in_place() -> None:
    plan = planner({0: [1, 2], 1: [2, 3]}, {1: "", 3: "", 4: ""})
    assert plan.without([1, 2], 2) == [1, 4]
    assert plan.without([2, 3], 2) == [1, 3]
    assert plan.without([3, 4], 2) == [3, 4]


def test_too_few_nodes_are_named() -> None:
    with pytest.raises(CommandError, match="4 are live"):
        planner({0: [1]}).with_factor([1], 1, 5)
    with pytest.raises(CommandError, match="no other live node"):
        planner({0: [1, 2]}, {1: ""}).without([1, 2], 2)
