"""What a plan promises, whatever the cluster looks like."""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter, deque
from collections.abc import Hashable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_controller.state.operations.planner.domains import Domains
from penstock_controller.state.operations.planner.moves import Goal, PlannedMove, plan_moves
from penstock_controller.state.operations.planner.shape import FILL_MOST, PlanNode, PlanPartition, Unplannable
from penstock_core.ids import NodeId, TopicId, TopicPartition
from penstock_runtime.turns import all_at_once

Replicas = list[tuple[NodeId, ...]]

SHAPES = int(os.environ.get("PENSTOCK_PLANNER_SHAPES", "300"))
"""Shapes of clusters that each property is tried on. Short runs try the dear ones on fewer; see `some`."""
_SHORT = 300

pytestmark = pytest.mark.timeout(3_600 if SHAPES > _SHORT else 300)


def some(share: float) -> int:
    """Shapes for a property that is dear to try: a share of those of a short run, all of those of a long one."""
    return SHAPES if SHAPES > _SHORT else max(1, int(SHAPES * share))


def planned(
    nodes: Sequence[PlanNode],
    partitions: Sequence[PlanPartition],
    goals: frozenset[Goal] = frozenset({Goal.REPLICAS, Goal.LEADERS}),
) -> list[PlannedMove]:
    return all_at_once(plan_moves(nodes, partitions, goals))


def after(partitions: Sequence[PlanPartition], moves: Sequence[PlannedMove]) -> Replicas:
    changed = {move.partition.key: move.after for move in moves}
    return [changed.get(p.key, p.replicas) for p in partitions]


def partition(
    topic: str, number: int, replicas: Sequence[int], factor: int = 0, size: int = 1
) -> PlanPartition:
    ids = tuple(NodeId(n) for n in replicas)
    key = TopicPartition(TopicId(topic.encode().ljust(16, b"-")), number)
    return PlanPartition(key, topic, ids, frozenset(ids), ids[0], factor or len(ids), size)


@st.composite
def shapes(
    draw: st.DrawFn, nodes_max: int = 30, levels: int = 3, flags: bool = True, topics_max: int = 4
) -> tuple[list[PlanNode], list[PlanPartition]]:
    """Nodes in unequal domains, some of which take nothing or keep nothing; partitions anywhere on them."""
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    count = rng.randint(1, nodes_max)
    depth = rng.randint(0, levels)
    zones, rows, hosts = rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 4)
    nodes = []
    for n in range(1, count + 1):
        path = [f"z{rng.randrange(zones)}", f"r{rng.randrange(rows)}", f"h{rng.randrange(hosts)}"]
        rack = "/".join(path[:depth])
        keeps = not flags or rng.random() < 0.9
        takes = keeps and (not flags or rng.random() < 0.9)
        total = rng.choice([None, 400]) if flags else None
        nodes.append(PlanNode(NodeId(n), rack, takes, keeps, total, 0))
    takers = [n for n in nodes if n.takes]
    if not takers:
        nodes[0] = takers_one = PlanNode(NodeId(1), nodes[0].rack)
        takers = [takers_one]
    partitions = []
    used: Counter[NodeId] = Counter()
    for topic in range(rng.randint(1, topics_max)):
        wanted = rng.randint(1, min(5, len(takers)))
        for number in range(rng.randint(1, 12)):
            has_count = rng.choice([wanted, rng.randint(1, min(5, count))]) if flags else wanted
            has = rng.sample([n.node_id for n in nodes], has_count)
            made = partition(f"t{topic}", number, has, wanted, rng.choice([0, 1, 5, 20]))
            used.update(dict.fromkeys(has, made.size_bytes))
            partitions.append(made)
    nodes = [
        PlanNode(n.node_id, n.rack, n.takes, n.keeps, n.disk_total_bytes, used[n.node_id]) for n in nodes
    ]
    return nodes, partitions


def spread(counts: Counter[NodeId], nodes: Sequence[PlanNode]) -> int:
    per_node = [counts[n.node_id] for n in nodes]
    return max(per_node) - min(per_node)


@settings(max_examples=SHAPES)
@given(shapes())
def test_hard_rules_hold_and_a_plan_that_was_carried_out_is_none_any_more(
    shape: tuple[list[PlanNode], list[PlanPartition]],
) -> None:
    nodes, partitions = shape
    try:
        moves = planned(nodes, partitions)
    except Unplannable as error:
        assert "fits on no node" in str(error) or "nodes may have one" in str(error)
        return
    by_id = {n.node_id: n for n in nodes}
    domains = Domains({n.node_id: n.rack for n in nodes})
    takers = frozenset(n.node_id for n in nodes if n.takes)
    found = after(partitions, moves)
    incoming: Counter[NodeId] = Counter()
    for before, replicas in zip(partitions, found, strict=True):
        assert len(set(replicas)) == len(replicas) == before.factor
        assert all(by_id[n].keeps for n in replicas)
        new = set(replicas) - set(before.replicas)
        assert new <= takers
        for n in new:
            incoming[n] += before.size_bytes
        best = domains.best(before.factor, takers)
        if all(n.disk_total_bytes is None for n in nodes):
            assert domains.cost(replicas) <= best
        if replicas[0] not in takers:
            assert not takers & set(replicas)
    for n, size in incoming.items():
        total = by_id[n].disk_total_bytes
        assert total is None or by_id[n].disk_used_bytes + size <= FILL_MOST * total or not size
    if all(n.disk_total_bytes is None for n in nodes):
        again = [
            PlanPartition(p.key, p.topic, r, frozenset(r), r[0], p.factor, p.size_bytes)
            for p, r in zip(partitions, found, strict=True)
        ]
        assert planned(nodes, again) == []


@settings(max_examples=some(2 / 3))
@given(shapes(levels=0, flags=False))
def test_without_domains_counts_are_within_one_per_topic_and_in_all(
    shape: tuple[list[PlanNode], list[PlanPartition]],
) -> None:
    nodes, partitions = shape
    found = after(partitions, planned(nodes, partitions))
    leaders = [r[:1] for r in found]
    for chosen in (found, leaders):
        # With several replication factors the fair share of leaders may differ by more: who holds replicas of a factor
        # of 1 leads more than who holds as many of a factor of 5.
        if chosen is found or len({p.factor for p in partitions}) == 1:
            assert spread(Counter(n for r in chosen for n in r), nodes) <= 1
        for topic in {p.topic for p in partitions}:
            here = [r for p, r in zip(partitions, chosen, strict=True) if p.topic == topic]
            assert spread(Counter(n for r in here for n in r), nodes) <= 1


@settings(max_examples=some(2 / 3))
@given(shapes(levels=0, flags=False, topics_max=1))
def test_one_topic_without_domains_moves_what_is_too_much_and_nothing_else(
    shape: tuple[list[PlanNode], list[PlanPartition]],
) -> None:
    nodes, partitions = shape
    moves = planned(nodes, partitions)
    count = Counter(n for p in partitions for n in p.replicas)
    replicas = sum(len(p.replicas) for p in partitions)
    low, high = replicas // len(nodes), -(-replicas // len(nodes))
    above = sum(max(0, count[n.node_id] - high) for n in nodes)
    below = sum(max(0, low - count[n.node_id]) for n in nodes)
    assert sum(move.added for move in moves) == max(above, below)


@settings(max_examples=some(1 / 5))
@given(shapes(nodes_max=4, flags=False, topics_max=1), st.integers(1, 4))
def test_with_domains_counts_are_as_even_as_any_plan_can_make_them(
    shape: tuple[list[PlanNode], list[PlanPartition]], most: int
) -> None:
    nodes, partitions = shape
    partitions = partitions[:most]
    domains = Domains({n.node_id: n.rack for n in nodes})
    ids = frozenset(n.node_id for n in nodes)
    factor = partitions[0].factor
    sets = [
        s for s in itertools.combinations(sorted(ids), factor) if domains.cost(s) <= domains.best(factor, ids)
    ]

    def squares(replicas: Sequence[Sequence[NodeId]]) -> int:
        return sum(c * c for c in Counter(n for r in replicas for n in r).values())

    def added(replicas: Sequence[Sequence[NodeId]]) -> int:
        return sum(len(set(r) - set(p.replicas)) for p, r in zip(partitions, replicas, strict=True))

    best = min((squares(c), added(c)) for c in itertools.product(sets, repeat=len(partitions)))
    found = after(partitions, planned(nodes, partitions))
    assert squares(found) == best[0]
    # One more now and then: a repair takes the leader's replica last, even where that one would be the best to take.
    assert added(found) <= best[1] + (domains.level_count > 0)


def least_added(nodes: Sequence[PlanNode], partitions: Sequence[PlanPartition]) -> int:
    """The fewest replicas that have to be made so that counts are within one, per topic and in all: no plan is cheaper.

    Replicas are units of flow, from partitions over (topic, node) to nodes. Who has a replica already gives it for
    nothing, another one costs 1. What has to be reached at least, the floor of each mean, is paid for by a premium
    above all costs: so a flow of least cost reaches it where that can be, and it can be here.
    """
    graph = MinCostFlow()
    ids = [n.node_id for n in nodes]
    sizes = Counter(p.topic for p in partitions for _ in range(p.factor))
    everything = sum(sizes.values())
    premium = everything + 1
    for p in partitions:
        graph.edge("source", p.key, p.factor, 0)
        for n in ids:
            graph.edge(p.key, (p.topic, n), 1, int(n not in p.replicas))
    for topic, count in sizes.items():
        low, rest = divmod(count, len(ids))
        for n in ids:
            graph.edge((topic, n), ("node", n), low, -premium)
            graph.edge((topic, n), ("node", n), int(rest > 0), 0)
    low, rest = divmod(everything, len(ids))
    for n in ids:
        graph.edge(("node", n), "sink", low, -premium)
        graph.edge(("node", n), "sink", int(rest > 0), 0)
    flow, cost = graph.run("source", "sink")
    assert flow == everything
    reached = low * len(ids) + sum(count // len(ids) * len(ids) for count in sizes.values())
    return cost + premium * reached


class MinCostFlow:
    """Successive shortest paths, by Bellman and Ford: exact, and fast enough for some hundred edges."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = []
        """[to, capacity left, cost]; the one against it is next to it."""
        self._from: dict[Hashable, list[int]] = {}
        self._numbers: dict[Hashable, int] = {}
        self._names: list[Hashable] = []

    def _number(self, name: Hashable) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self._names)
            self._names.append(name)
            self._from[name] = []
        return self._numbers[name]

    def edge(self, start: Hashable, end: Hashable, capacity: int, cost: int) -> None:
        """One way."""
        a, b = self._number(start), self._number(end)
        self._from[start].append(len(self._edges))
        self._edges.append([b, capacity, cost])
        self._from[end].append(len(self._edges))
        self._edges.append([a, 0, -cost])

    def run(self, source: Hashable, sink: Hashable) -> tuple[int, int]:
        """The largest flow, and the least that it costs."""
        flow = cost = 0
        start, goal = self._number(source), self._number(sink)
        while True:
            far = {start: 0}
            by: dict[int, int] = {}
            waiting, queued = deque([start]), {start}
            while waiting:
                here = waiting.popleft()
                queued.discard(here)
                for number in self._from[self._names[here]]:
                    there, left, price = self._edges[number]
                    if left and far[here] + price < far.get(there, 1 << 60):
                        far[there], by[there] = far[here] + price, number
                        if there not in queued:
                            queued.add(there)
                            waiting.append(there)
            if goal not in far:
                return flow, cost
            here = goal
            while here != start:
                number = by[here]
                self._edges[number][1] -= 1
                self._edges[number ^ 1][1] += 1
                here = self._edges[number ^ 1][0]
            flow, cost = flow + 1, cost + far[goal]


@settings(max_examples=some(1 / 5), deadline=None)
@given(shapes(nodes_max=8, levels=0, flags=False, topics_max=4))
def test_several_topics_move_as_little_as_any_plan_can(
    shape: tuple[list[PlanNode], list[PlanPartition]],
) -> None:
    nodes, partitions = shape
    assert sum(move.added for move in planned(nodes, partitions)) == least_added(nodes, partitions)


@settings(max_examples=some(2 / 3))
@given(shapes(), st.randoms(use_true_random=False))
def test_a_plan_is_right_at_each_move_whatever_their_order(
    shape: tuple[list[PlanNode], list[PlanPartition]], rng: random.Random
) -> None:
    """Old and new copies lie side by side until what is new is whole; nobody says which move ends first."""
    nodes, partitions = shape
    try:
        moves = planned(nodes, partitions)
    except Unplannable:
        return
    by_id = {n.node_id: n for n in nodes}
    domains = Domains({n.node_id: n.rack for n in nodes})
    used = {n.node_id: n.disk_used_bytes for n in nodes}
    rng.shuffle(moves)
    under_way: list[PlannedMove] = []
    for move in [*moves, *([None] * len(moves))]:
        if move is not None:
            under_way.append(move)
            for n in set(move.after) - set(move.before):
                assert by_id[n].takes, "nothing is copied to a node that takes nothing"
                used[n] += move.partition.size_bytes
                total = by_id[n].disk_total_bytes
                room = total is None or used[n] <= FILL_MOST * total or not move.partition.size_bytes
                assert room, "no target goes beyond its reserve, while old copies are still there"
        if under_way and (move is None or rng.random() < 0.5):
            ended = under_way.pop(rng.randrange(len(under_way)))
            for n in set(ended.before) - set(ended.after):
                used[n] -= ended.partition.size_bytes
            # What holds the data: before, then both, then after.
            counts = [
                [len({domains.of[n][level] for n in replicas}) for level in range(domains.level_count)]
                for replicas in (ended.before, (*ended.before, *ended.after), ended.after)
            ]
            for first, both, last in zip(*counts, strict=True):
                assert both >= max(first, last)
            assert len(ended.after) == len(set(ended.after)) == ended.partition.factor


def test_a_drained_node_gives_each_replica_away_once_and_leads_nothing() -> None:
    rng = random.Random(5)
    nodes = [PlanNode(NodeId(n), f"z{n % 3}") for n in range(1, 10)]
    anywhere = [partition(f"t{n % 4}", n, rng.sample(range(1, 10), 3)) for n in range(60)]
    even = [
        partition(p.topic, p.key.partition, r)
        for p, r in zip(anywhere, after(anywhere, planned(nodes, anywhere)), strict=True)
    ]
    without = [PlanNode(n.node_id, n.rack, *((False, False) if n.node_id == 4 else ())) for n in nodes]
    moves = planned(without, even)
    found = after(even, moves)
    assert not any(4 in r for r in found)
    assert sum(m.added for m in moves) == sum(4 in p.replicas for p in even) == 20
    counts = Counter(n for r in found for n in r)
    # Each zone has a replica of each partition: two nodes share those of the third.
    assert [counts[n] for n in (NodeId(1), NodeId(7))] == [30, 30]
    assert all(counts[NodeId(n)] == 20 for n in (2, 3, 5, 6, 8, 9))


def test_bytes_are_levelled_within_the_bound_and_counts_stay() -> None:
    nodes = [PlanNode(NodeId(n)) for n in (1, 2, 3)]
    partitions = [partition("t", n, [n % 3 + 1], size=100 if n % 3 == 0 else 10) for n in range(12)]
    goals = frozenset({Goal.REPLICAS, Goal.BYTES})
    found = after(partitions, planned(nodes, partitions, goals))
    held = Counter({n.node_id: 0 for n in nodes})
    for p, r in zip(partitions, found, strict=True):
        held.update(dict.fromkeys(r, p.size_bytes))
    assert max(held.values()) <= 2 * 100 + 20
    assert spread(Counter(n for r in found for n in r), nodes) == 0
    few = all_at_once(plan_moves(nodes, partitions, goals, max_bytes=150))
    assert 0 < sum(m.bytes_to_copy for m in few) <= 150


def test_what_cannot_be_says_why_and_what_would_help() -> None:
    nodes = [PlanNode(NodeId(1)), PlanNode(NodeId(2), takes=False, keeps=False)]
    with pytest.raises(
        Unplannable, match=r"t0-0 is to have 2 replicas, and only 1 nodes may have one; add nodes"
    ):
        planned(nodes, [partition("t0", 0, [1, 2])])
    nodes = [
        PlanNode(NodeId(1), keeps=False, takes=False, disk_total_bytes=100, disk_used_bytes=80),
        PlanNode(NodeId(2), disk_total_bytes=100, disk_used_bytes=10),
    ]
    with pytest.raises(Unplannable, match=r"t0-0 \(80 bytes\) fits on no node"):
        planned(nodes, [partition("t0", 0, [1], size=80)])
