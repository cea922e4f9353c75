"""What was moved for nothing is taken back: counts stay as they are, or as even, with fewer replicas to be made.

Topics are levelled one after the other, each without what the next ones will move. Their steps together are a flow, of
replicas from node to node within each topic; while it isn't the cheapest one, there is a cycle that costs less than
nothing (Klein, "A primal method for minimal cost flows", 1967). To go along it, one replica a step, is as good a plan,
and a cheaper one. Without domains and full disks what is left in the end is the least that any plan can have.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from penstock_controller.state.operations.planner.holdings import Holdings
from penstock_controller.state.operations.planner.shape import Counts, Shape
from penstock_core.ids import NodeId

_SIZE_MOST: Final = 5_000
"""Partitions times nodes. Beyond that it would take seconds, for some hundredths of the moves."""
_EDGES_A_STEP: Final = 500

_Step = tuple[int, NodeId, NodeId]
"""A replica of a partition goes from one node to another."""


def take_back(shape: Shape, holdings: Holdings) -> Generator[None, None, bool]:
    """Cycles that cost less than nothing, until there are none, or one that disks or domains forbid. Yields at times;
    whether there was one.

    Counts of topics, and in all, have to be level already; those which are not stay as they are on each node.
    """
    if not shape.takers or len(shape.partitions) * len(shape.takers) > _SIZE_MOST:
        return False
    ever = False
    while any(r is not p.replicas for r, p in zip(shape.replicas, shape.partitions, strict=True)):
        yield
        steps = yield from _Cycle(shape).find()
        if steps is None:
            break
        yield from holdings.load_all()
        if not _go(shape, holdings, steps):
            break
        ever = True
    return ever


def _go(shape: Shape, holdings: Holdings, steps: list[_Step]) -> bool:
    """All of the steps, or none: together they may be too much for a disk, or for a partition's domains."""
    if len({index for index, _, _ in steps}) < len(steps):
        return False
    for count, (index, out, into) in enumerate(steps):
        if not shape.may_take(into, index):
            for before, left, came in reversed(steps[:count]):
                holdings.swap(before, came, left)
            return False
        holdings.swap(index, out, into)
    return True


class _Cycle:
    """Looks for one, by Bellman and Ford.

    A vertex stands for what has one replica more than before when one has come to it: a topic on a node, a node, a
    partition that has yet to give one away in a domain, and, for what nodes have in all, everything.
    """

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._vertices: dict[object, int] = {}
        self._edges: list[tuple[int, int, int]] = []
        """From, to, replicas that have to be made."""
        self._gives: dict[int, tuple[int, NodeId]] = {}
        """By edge: of which partition a replica leaves which node."""
        self._gets: dict[int, NodeId] = {}
        """By edge: to which node it goes."""

    def find(self) -> Generator[None, None, list[_Step] | None]:
        """Its steps."""
        yield from self._build()
        far = [0] * len(self._vertices)
        came = [-1] * len(self._vertices)
        """By vertex: the edge by which it is nearest."""
        for _ in self._vertices:
            nearer = False
            for number, (start, end, cost) in enumerate(self._edges):
                if far[start] + cost < far[end]:
                    far[end], came[end] = far[start] + cost, number
                    nearer = True
                if number % _EDGES_A_STEP == 0:
                    yield
            if not nearer:
                return None
            if (cycle := self._closed(came)) is not None:
                return self._steps(cycle)
        return None

    def _closed(self, came: list[int]) -> list[int] | None:
        """The edges of a cycle of those by which vertices are nearest: any such one costs less than nothing."""
        seen = [-1] * len(came)
        for first in range(len(came)):
            at = first
            while seen[at] < 0 and came[at] >= 0:
                seen[at] = first
                at = self._edges[came[at]][0]
            if seen[at] != first:
                continue
            cycle = [came[at]]
            while (before := self._edges[cycle[-1]][0]) != at:
                cycle.append(came[before])
            return cycle[::-1]
        return None

    def _steps(self, cycle: list[int]) -> list[_Step]:
        begins = next(count for count, number in enumerate(cycle) if number in self._gives)
        cycle = cycle[begins:] + cycle[:begins]
        gives = [self._gives[number] for number in cycle if number in self._gives]
        gets = [self._gets[number] for number in cycle if number in self._gets]
        return [(index, out, into) for (index, out), into in zip(gives, gets, strict=True)]

    def _vertex(self, name: object) -> int:
        return self._vertices.setdefault(name, len(self._vertices))

    def _edge(self, start: int, end: int, cost: int = 0) -> None:
        self._edges.append((start, end, cost))

    def _build(self) -> Generator[None, None, None]:
        shape = self._shape
        for topic in sorted(shape.indexes):
            self._counts(shape.by_topic[topic], topic)
            yield
            for index in shape.indexes[topic]:
                if not shape.partitions[index].stays:
                    self._partition(index)
                    yield
        self._counts(shape.total, None)

    def _counts(self, counts: Counts, topic: str | None) -> None:
        """Who may have one more, and who one less."""
        takers = self._shape.takers
        few, many = min(counts[n] for n in takers), max(counts[n] for n in takers)
        if many != few + 1:
            return
        for n in sorted(takers):
            inner = self._vertex(n if topic is None else (topic, n))
            outer = self._vertex("everything" if topic is None else n)
            if counts[n] == few:
                self._edge(inner, outer)
            else:
                self._edge(outer, inner)

    def _partition(self, index: int) -> None:
        shape, partition = self._shape, self._shape.partitions[index]
        topic, replicas, of = partition.topic, shape.replicas[index], shape.domains.of
        where = shape.where(index)
        into = [n for n in sorted(shape.takers) if shape.may_take(n, index)]
        for address in sorted({of[n] for n in replicas}):
            gives = self._vertex((index, address))
            for n in replicas:
                if n in shape.takers and of[n] == address:
                    self._gives[len(self._edges)] = index, n
                    self._edge(self._vertex((topic, n)), gives, -(n not in partition.replicas))
            for n in into:
                if shape.may_swap(where, address, of[n]):
                    self._gets[len(self._edges)] = n
                    self._edge(gives, self._vertex((topic, n)), int(n not in partition.replicas))
