"""Where replicas are to be, by what was asked: the planner, and around it the nodes that keep what they have.

The planner knows nodes that take nothing, but evens out what they hold all the same. Nodes that are down, cordoned or
excluded are to lose nothing: where such a node holds replicas, what is broken is repaired with all of them in view, and
replicas and leaders are evened out among the other nodes as if theirs were not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from penstock_controller.state.operations.planner.domains import Domains
from penstock_controller.state.operations.planner.moves import Goal, is_change, plan_moves
from penstock_controller.state.operations.planner.shape import PlanNode, PlanPartition, Unplannable
from penstock_controller.state.operations.plans.requests import Asked, Kind
from penstock_controller.state.operations.plans.situation import Situation
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId, TopicPartition

Replicas = tuple[NodeId, ...]
Targets = dict[TopicPartition, Replicas]
"""Partitions that are to have other replicas, or another order; preferred leader first."""

_COUNTED_A_STEP: Final = 512
_ROUNDS_MAX: Final = 5


def choose_targets(asked: Asked, now: Situation) -> Generator[None, None, Targets]:
    """What is to change. Raises PenstockError where it cannot be.

    Room on disks is kept to where any plan does so; else the plan is one that needs more of it.
    """
    if not asked.moves_replicas:
        return {}
    if asked.replacement is not None:
        return (yield from _replaced(asked, now, asked.replacement))
    if asked.factor:
        _check_factor(asked, now)
    try:
        return (yield from _planned(asked, now))
    except Unplannable:
        pass
    try:
        return (yield from _planned(asked, now.without_disks()))
    except Unplannable as error:
        raise PenstockError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, str(error)) from None


def _replaced(asked: Asked, now: Situation, new: NodeId) -> Generator[None, None, Targets]:
    """The new node in the place of the old one, wherever that is."""
    (old,) = asked.node_ids
    found: Targets = {}
    for count, partition in enumerate(now.partitions, 1):
        if old in partition.replicas:
            if new in partition.replicas:
                raise PenstockError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"node {new} has a replica of {name_of(partition)} already, as node {old} has; name a node that "
                    f"shares no partition with it, or run `penstock node drain {old}`",
                )
            found[partition.key] = tuple(new if n == old else n for n in partition.replicas)
        if count % _COUNTED_A_STEP == 0:
            yield
    return found


def _check_factor(asked: Asked, now: Situation) -> None:
    takers = now.takers
    if asked.factor <= len(takers):
        return
    for partition in now.partitions:
        eligible = len(takers | set(partition.replicas))
        if partition.factor == asked.factor > eligible and asked.covers(partition.topic):
            raise PenstockError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{name_of(partition)} is to have {asked.factor} replicas, and only {eligible} nodes may have one; add "
                "nodes, uncordon some, or ask for fewer replicas",
            )


def _planned(asked: Asked, now: Situation) -> Generator[None, None, Targets]:
    """Raises Unplannable."""
    partitions = now.partitions
    if asked.kind is Kind.REBALANCE and asked.topics:
        partitions = tuple(p for p in partitions if asked.covers(p.topic))
    nodes: Sequence[PlanNode] = now.nodes
    if asked.goals == {Goal.LEADERS}:
        # Nothing is copied for leaders: domains are no matter.
        nodes = _without_domains(nodes)
    goals = asked.goals if now.takers else frozenset()
    holding: set[NodeId] = set()
    for count, partition in enumerate(partitions, 1):
        holding.update(n for n in partition.replicas if n in now.pinned)
        if count % _COUNTED_A_STEP == 0:
            yield
    if not holding or not goals:
        return (yield from _moved(nodes, partitions, goals, asked.max_bytes))
    return (yield from _around(asked, now, nodes, partitions, goals))


def _around(
    asked: Asked,
    now: Situation,
    nodes: Sequence[PlanNode],
    partitions: Sequence[PlanPartition],
    goals: frozenset[Goal],
) -> Generator[None, None, Targets]:
    """A plan in which pinned nodes lose nothing."""
    # Where something has to go, a better spread of it may take from them as well.
    rooted = frozenset() if asked.leaving else now.pinned
    found = yield from _moved(nodes, partitions, frozenset(), None, rooted)
    yield
    even = goals - {Goal.LEADERS}
    if even:
        yield from _even_out(now, nodes, partitions, found, even, asked.max_bytes)
    if Goal.LEADERS in goals:
        yield from _prefer(now, nodes, partitions, found)
    return {p.key: found[p.key] for p in partitions if is_change(p.replicas, found.get(p.key, p.replicas))}


def _even_out(
    now: Situation,
    nodes: Sequence[PlanNode],
    partitions: Sequence[PlanPartition],
    found: Targets,
    goals: frozenset[Goal],
    max_bytes: int | None,
) -> Generator[None, None, None]:
    """Among the nodes that are not pinned. A spread that would be worse with the others in view stays as it is."""
    domains = domains_of(nodes, partitions)
    for _ in range(_ROUNDS_MAX):
        seen = yield from _without(now.pinned, partitions, found)
        coming: Counter[NodeId] = Counter()
        going: Counter[NodeId] = Counter()
        for partition in partitions:
            if partition.key in found:
                had, gets = set(partition.replicas), set(found[partition.key])
                coming.update(dict.fromkeys(gets - had, partition.size_bytes))
                going.update(dict.fromkeys(had - gets, partition.size_bytes))
        yield
        free = [
            replace(
                n,
                disk_used_bytes=n.disk_used_bytes + coming[n.node_id],
                leaving_bytes=n.leaving_bytes + going[n.node_id],
            )
            for n in nodes
            if n.node_id not in now.pinned
        ]
        moved = yield from _moved(free, seen, goals, max_bytes)
        changed = False
        for count, partition in enumerate(partitions, 1):
            if count % _COUNTED_A_STEP == 0:
                yield
            after = moved.get(partition.key)
            if after is None:
                continue
            before = found.get(partition.key, partition.replicas)
            rest = iter(after)
            both = tuple(n if n in now.pinned else next(rest) for n in before)
            if domains.cost(both) <= domains.cost(before):
                found[partition.key] = both
                changed = True
        # What was refused may be made up for by others. Another round could move `max_bytes` once more.
        if not changed or max_bytes is not None:
            return


def _prefer(
    now: Situation, nodes: Sequence[PlanNode], partitions: Sequence[PlanPartition], found: Targets
) -> Generator[None, None, None]:
    """Even preferred leaders, but for partitions that prefer a node which stays preferred."""
    fixed = now.pinned_leaders
    led = [p for p in partitions if found.get(p.key, p.replicas)[0] not in fixed]
    seen = yield from _without(fixed, led, found)
    free = _without_domains([n for n in nodes if n.node_id not in fixed])
    moved = yield from _moved(free, seen, frozenset({Goal.LEADERS}), None)
    for partition in led:
        after = moved.get(partition.key)
        if after is not None:
            before = found.get(partition.key, partition.replicas)
            found[partition.key] = (after[0], *(n for n in before if n != after[0]))


def _without(
    hidden: frozenset[NodeId], partitions: Iterable[PlanPartition], found: Mapping[TopicPartition, Replicas]
) -> Generator[None, None, list[PlanPartition]]:
    """Partitions as they are planned so far, without replicas on some nodes; none that is nowhere else."""
    seen = []
    for count, partition in enumerate(partitions, 1):
        replicas = tuple(n for n in found.get(partition.key, partition.replicas) if n not in hidden)
        if replicas:
            seen.append(replace(partition, replicas=replicas, factor=len(replicas)))
        if count % _COUNTED_A_STEP == 0:
            yield
    return seen


def _moved(
    nodes: Iterable[PlanNode],
    partitions: Sequence[PlanPartition],
    goals: frozenset[Goal],
    max_bytes: int | None,
    rooted: frozenset[NodeId] = frozenset(),
) -> Generator[None, None, Targets]:
    moves = yield from plan_moves(nodes, partitions, goals, max_bytes, rooted)
    return {move.partition.key: move.after for move in moves}


def _without_domains(nodes: Iterable[PlanNode]) -> list[PlanNode]:
    return [replace(n, rack="") for n in nodes]


def domains_of(nodes: Iterable[PlanNode], partitions: Iterable[PlanPartition]) -> Domains:
    """Domains of all nodes, those included that hold replicas and are not registered."""
    racks = {n.node_id: n.rack for n in nodes}
    for partition in partitions:
        for node_id in partition.replicas:
            racks.setdefault(node_id, "")
    return Domains(racks)


def name_of(partition: PlanPartition) -> str:
    """As people call it."""
    return f"{partition.topic}-{partition.key.partition}"
