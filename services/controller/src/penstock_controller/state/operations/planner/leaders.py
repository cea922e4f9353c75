"""Preferred leaders within one of each other, for each topic and in all: by the order of replicas alone.

Nothing is copied for it. Where replicas lie such an order exists for a topic whose replica counts are even (see
`placement`); nodes that take no replicas are not preferred while another replica may be.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator
from typing import Final

from penstock_controller.state.operations.planner.paths import Place, walk_back
from penstock_controller.state.operations.planner.shape import Counts, Shape, bounds_of, cleared, in_order
from penstock_core.ids import NodeId

_COUNTED_A_STEP: Final = 100
_TRIED_A_STEP: Final = 100
"""Topics and partitions that a search looks at."""

_Step = tuple[int, NodeId]
"""A partition, and who is preferred for it."""


class Leaders:
    """Orders replicas of all partitions of a shape."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self.total: Counts = defaultdict(int)
        self.by_topic: dict[str, Counts] = defaultdict(lambda: defaultdict(int))
        self._bounds: dict[str, tuple[int, int]] = {}
        self._led: dict[NodeId, dict[str, dict[int, None]]] = {n: {} for n in shape.nodes}

    def even_out(self) -> Generator[None, None, None]:
        """Within each topic, then over all of them, until neither finds more. Yields now and then."""
        yield from self._count_all()
        topics = yield from in_order(self.by_topic)
        moved = True
        while moved:
            for topic in topics:
                yield from self._level(topic)
            # Where replicas lie such that a topic was not even, what changed now may have made way.
            moved = yield from self._level(None)
        yield from cleared(self.by_topic, *self._led.values())

    def _count_all(self) -> Generator[None, None, None]:
        takers = self._shape.takers
        for index, partition in enumerate(self._shape.partitions):
            if index % _COUNTED_A_STEP == 0:
                yield
            replicas = self._shape.replicas[index]
            self._count(index, 1)
            if replicas[0] not in takers:
                may = [n for n in replicas if n in takers]
                if may:
                    here = self.by_topic[partition.topic]
                    self._prefer(index, min(may, key=lambda n: (here[n], self.total[n], n)))

    def _level(self, topic: str | None) -> Generator[None, None, bool]:
        """One topic's counts, or those of all; then no topic's become less even. Whether anything changed."""
        counts, total = self.total if topic is None else self.by_topic[topic], self.total
        takers = self._shape.takers
        stuck: set[NodeId] = set()
        """Nodes from which no path led."""
        moved = ever = False
        while True:
            yield
            much = min((counts[n] for n in takers), default=0) + 2
            nodes = [(-counts[n], -total[n], n) for n in takers if counts[n] >= much and n not in stuck]
            if not nodes:
                if not stuck or not moved:
                    return ever
                # What has changed since may have made way.
                stuck.clear()
                moved = False
                continue
            most = min(nodes)[-1]
            path = yield from self._find_path(topic, counts, most)
            if path is None:
                stuck.add(most)
                continue
            for index, leader in path:
                self._prefer(index, leader)
            moved = ever = True

    def _find_path(
        self, topic: str | None, counts: Counts, first: NodeId
    ) -> Generator[None, None, list[_Step] | None]:
        """The shortest way from a node to one that leads at least two fewer."""
        few = counts[first] - 2
        takers, all_replicas = self._shape.takers, self._shape.replicas
        start = Place(first)
        came: dict[Place, tuple[Place, _Step] | None] = {start: None}
        queue = deque([start])
        reached = {first}
        """Nodes from which leadership of any of their partitions may go on."""
        tried = 0
        while queue and not reached >= takers:
            at = queue.popleft()
            led = self._led[at.node_id]
            only = topic or at.owes
            for name in led if only is None else (only,):
                tried += 1
                if tried % _TRIED_A_STEP == 0:
                    yield
                here = self.by_topic[name]
                if only is None and here[at.node_id] <= self._bounds_of(name)[0]:
                    continue  # it would lead too few of that topic
                origin = at.origin if at.owes else here[at.node_id]
                for index in led.get(name, ()):
                    tried += 1
                    if tried % _TRIED_A_STEP == 0:
                        yield
                    for into in all_replicas[index]:
                        if into in reached or into not in takers:
                            continue
                        # Over all topics none becomes less even: it ends with who led fewer than who gave it away.
                        owes = topic is None and here[into] >= origin
                        to = Place(into, name, origin) if owes else Place(into)
                        if to in came:
                            continue
                        came[to] = at, (index, into)
                        if not owes:
                            if counts[into] <= few:
                                return walk_back(came, to)
                            reached.add(into)
                        queue.append(to)
        return None

    def _bounds_of(self, topic: str) -> tuple[int, int]:
        """The fewest and the most that any node leads of a topic."""
        found = self._bounds.get(topic)
        if found is None:
            found = self._bounds[topic] = bounds_of(self.by_topic[topic], self._shape.takers)
        return found

    def _prefer(self, index: int, leader: NodeId) -> None:
        self._count(index, -1)
        replicas = self._shape.replicas[index]
        self._shape.replicas[index] = [leader, *(n for n in replicas if n != leader)]
        self._count(index, 1)

    def _count(self, index: int, one: int) -> None:
        topic, leader = self._shape.partitions[index].topic, self._shape.replicas[index][0]
        self.total[leader] += one
        self.by_topic[topic][leader] += one
        self._bounds.pop(topic, None)
        led = self._led[leader]
        if one > 0:
            led.setdefault(topic, {})[index] = None
        else:
            del led[topic][index]
            if not led[topic]:
                del led[topic]
