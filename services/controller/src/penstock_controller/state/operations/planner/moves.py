"""The whole plan: where every replica is to be, and what has to move for it.

Hard, in every plan: distinct nodes; nodes that may take replicas; as many domains for each partition as can be, evenly
used; no disk filled beyond its reserve; the replication factor that was asked for. Then, in this order: replica counts
within one of each other, preferred leaders too, bytes (where asked for), and as few bytes as that takes.

The same input gives the same plan: everything is walked in sorted order.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock_controller.state.operations.planner.bytes_goal import level_bytes
from penstock_controller.state.operations.planner.cycles import take_back
from penstock_controller.state.operations.planner.holdings import Holdings
from penstock_controller.state.operations.planner.leaders import Leaders
from penstock_controller.state.operations.planner.repair import Repair
from penstock_controller.state.operations.planner.replicas import even_out
from penstock_controller.state.operations.planner.shape import PlanNode, PlanPartition, Shape
from penstock_core.ids import NodeId

_COMPARED_A_STEP: Final = 300


class Goal(Enum):
    """What is to become even."""

    REPLICAS = "replicas"
    LEADERS = "leaders"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """One partition's replicas, before and after; preferred leader first."""

    partition: PlanPartition
    after: tuple[NodeId, ...]

    @property
    def before(self) -> tuple[NodeId, ...]:
        """As they are."""
        return self.partition.replicas

    @property
    def added(self) -> int:
        """Replicas that have to be made."""
        return len(set(self.after) - set(self.before))

    @property
    def bytes_to_copy(self) -> int:
        """What has to be copied; 0 when the order alone changes."""
        return self.added * self.partition.size_bytes


def plan_moves(
    nodes: Iterable[PlanNode],
    partitions: Sequence[PlanPartition],
    goals: frozenset[Goal] = frozenset({Goal.REPLICAS, Goal.LEADERS}),
    max_bytes: int | None = None,
    rooted: frozenset[NodeId] = frozenset(),
) -> Generator[None, None, list[PlannedMove]]:
    """Moves in the order of `partitions`. In steps, each far below a millisecond.

    `max_bytes` bounds what the goal of bytes moves; `rooted` nodes lose nothing for a better spread over domains.
    Raises Unplannable when what is asked for cannot be.
    """
    shape = yield from Shape.of(nodes, partitions)
    yield from Repair(shape, rooted).run()
    holdings = Holdings(shape)
    if Goal.REPLICAS in goals:
        yield from even_out(shape, holdings)
        if (yield from take_back(shape, holdings)):
            # Where domains kept counts from being even, what went back may have made way.
            yield from even_out(shape, holdings)
    if Goal.BYTES in goals:
        yield from level_bytes(shape, holdings, max_bytes, counts_may_change=Goal.REPLICAS not in goals)
    yield from holdings.clear()
    if Goal.LEADERS in goals:
        yield from Leaders(shape).even_out()
    moves: list[PlannedMove] = []
    for count, (partition, replicas) in enumerate(zip(partitions, shape.replicas, strict=True)):
        if count % _COMPARED_A_STEP == 0:
            yield
        after = tuple(replicas)
        if is_change(partition.replicas, after):
            moves.append(PlannedMove(partition, after))
    yield from shape.clear()
    return moves


def is_change(before: Sequence[NodeId], after: Sequence[NodeId]) -> bool:
    """Whether other nodes have replicas, or another one is preferred to lead: in which order the others follow is
    nothing to move for."""
    return before[:1] != after[:1] or set(before) != set(after)
