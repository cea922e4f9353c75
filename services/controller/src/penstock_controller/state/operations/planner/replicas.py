"""Replica counts within one of each other: for each topic, then in all.

What is too much on one node goes to another along a path: a partition of the first one goes to a second node, one of
that one to a third, and so on, each within its domains. A path of one hop costs one copy; most are. Every path makes
the sum of squares of the counts smaller, so it ends; where no path is left, counts are as even as domains let them be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from itertools import groupby
from typing import Final

from penstock_controller.state.operations.planner.holdings import Holdings
from penstock_controller.state.operations.planner.paths import Place, walk_back
from penstock_controller.state.operations.planner.shape import Shape, Where, in_order
from penstock_core.ids import NodeId

_TRIED_A_STEP: Final = 100
"""Groups of partitions, for which it is asked whether one may go to some node."""

_Step = tuple[int, NodeId, NodeId]
"""A replica of a partition goes from one node to another."""
_Group = tuple[str, Where]


def even_out(shape: Shape, holdings: Holdings) -> Generator[None, None, None]:
    """Within each topic, then over all of them, until neither finds more. Yields now and then."""
    topics = yield from in_order(shape.by_topic)
    while True:
        for topic in topics:
            yield
            if _is_uneven(shape, topic):
                yield from holdings.load(topic)
                yield from _level(shape, holdings, topic)
        if not _is_uneven(shape, None):
            return
        yield from holdings.load_all()
        # Where domains kept a topic from being even, what moved now may have made way.
        if not (yield from _level(shape, holdings, None)):
            return


def _is_uneven(shape: Shape, topic: str | None) -> bool:
    counts = shape.total if topic is None else shape.by_topic[topic]
    most = max(counts.values(), default=0)
    return most >= 2 and _heaviest(shape, topic, set()) is not None


def _level(shape: Shape, holdings: Holdings, topic: str | None) -> Generator[None, None, bool]:
    """One topic's counts, or those of all; then no topic's counts become less even. Whether anything moved."""
    stuck: set[NodeId] = set()
    """Nodes from which no path led."""
    moved = ever = False
    while True:
        yield
        most = _heaviest(shape, topic, stuck)
        if most is None:
            if not stuck or not moved:
                return ever
            # What has moved since may have made way.
            stuck.clear()
            moved = False
            continue
        search = _Search(shape, holdings, topic, most)
        path = yield from search.run()
        if path is None:
            stuck.update(search.no_better())
        else:
            for step in path:
                holdings.swap(*step)
            moved = ever = True


def _heaviest(shape: Shape, topic: str | None, stuck: set[NodeId]) -> NodeId | None:
    """The node to take from; None when there is nobody to give to."""
    total, held = shape.total, shape.bytes
    counts = total if topic is None else shape.by_topic[topic]
    much = min((counts[n] for n in shape.takers), default=0) + 2
    nodes = [
        (-counts[n], -total[n], -held[n], n) for n in shape.nodes if counts[n] >= much and n not in stuck
    ]
    return min(nodes)[-1] if nodes else None


class _Search:
    """For the shortest way from a node to one that has at least two fewer."""

    def __init__(self, shape: Shape, holdings: Holdings, topic: str | None, first: NodeId) -> None:
        self._shape = shape
        self._holdings = holdings
        self._topic = topic
        self._first = first
        self._counts = counts = shape.total if topic is None else shape.by_topic[topic]
        few = counts[first] - 2
        ends = sorted([(counts[n], shape.total[n], n) for n in shape.takers if counts[n] <= few])
        self._ends = [[end[-1] for end in ends] for _, ends in groupby(ends, key=lambda end: end[:2])]
        """Who may have the last one; those in a row that have the same."""
        self._came: dict[Place, tuple[Place, _Step] | None] = {Place(first): None}
        self._reached = {first}
        """Nodes from which any of their partitions may go on."""

    def run(self) -> Generator[None, None, list[_Step] | None]:
        """The path; None when there is none."""
        queue = deque([Place(self._first)])
        while queue:
            at = queue.popleft()
            path = walk_back(self._came, at)
            groups = yield from self._groups(at)
            last = yield from self._last(at, groups, path)
            if last is not None:
                return [*path, last]
            if not self._reached >= self._shape.takers:
                queue.extend((yield from self._next(at, groups, path)))
        return None

    def no_better(self) -> list[NodeId]:
        """After a search in vain: nodes from which there is none either, as they were on the way and have no more."""
        return [n for n in self._reached if self._counts[n] <= self._counts[self._first]]

    def _groups(self, at: Place) -> Generator[None, None, list[_Group]]:
        """Partitions of which one may leave."""
        held = self._holdings.topics(at.node_id)
        name = self._topic or at.owes
        if name is not None:
            return [(name, where) for where in held.get(name, ())]
        found: list[_Group] = []
        for count, (name, groups) in enumerate(held.items(), 1):
            # Else it would have too few of that topic.
            if self._shape.by_topic[name][at.node_id] > self._shape.bounds(name)[0]:
                found.extend([(name, where) for where in groups])
            if count % _TRIED_A_STEP == 0:
                yield
        return found

    def _last(
        self, at: Place, groups: list[_Group], path: list[_Step]
    ) -> Generator[None, None, _Step | None]:
        """From here to an end: to those that have the fewest, then with the fewest bytes."""
        tried = 0
        for ends in self._ends:
            best: tuple[int, int, NodeId, int] | None = None
            for group in groups:
                for into in ends:
                    found = self._step(at, group, into, path)
                    if found is not None and self._at(at, group[0], into).owes is None:
                        key = found[0], self._shape.bytes[into], into, found[1]
                        best = key if best is None else min(best, key)
                    tried += 1
                    if tried % _TRIED_A_STEP == 0:
                        yield
            if best is not None:
                return best[3], at.node_id, best[2]
        return None

    def _next(self, at: Place, groups: list[_Group], path: list[_Step]) -> Generator[None, None, list[Place]]:
        """Places that were not come to before. `came` tells from where, from now on."""
        places: list[Place] = []
        tried = 0
        for group in groups:
            for nodes in self._shape.takers_at.values():
                for into in nodes:
                    if into in self._reached:
                        continue
                    to = self._at(at, group[0], into)
                    if to in self._came:
                        continue
                    found = self._step(at, group, into, path)
                    if found is not None:
                        self._came[to] = at, (found[1], at.node_id, into)
                        places.append(to)
                        if to.owes is None:
                            self._reached.add(into)
                    tried += 1
                    if tried % _TRIED_A_STEP == 0:
                        yield
        return places

    def _step(self, at: Place, group: _Group, into: NodeId, path: list[_Step]) -> tuple[int, int] | None:
        """The cheapest partition that may go there, behind its cost."""
        topic, where = group
        of = self._shape.domains.of
        if any(step[2] == into for step in path):
            return None
        if not self._shape.may_swap(where, of[at.node_id], of[into]):
            return None
        used = [step[0] for step in path]
        return self._holdings.cheapest(at.node_id, topic, where, into, used)

    def _at(self, at: Place, topic: str, into: NodeId) -> Place:
        """Where one of a topic's comes to. Over all topics none may become less even: it ends with a node that had
        fewer than the one that it left, or goes on."""
        if self._topic is not None:
            return Place(into)
        counts = self._shape.by_topic[topic]
        origin = at.origin if at.owes == topic else counts[at.node_id]
        return Place(into) if counts[into] < origin else Place(into, topic, origin)
