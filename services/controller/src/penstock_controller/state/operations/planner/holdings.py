"""Which partitions nodes hold, by topic and by where their replicas are: those may be swapped alike.

Made when it is asked for: of a topic whose counts are even already, nothing is.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Generator, Mapping
from typing import Final

from penstock_controller.state.operations.planner.shape import Shape, Where, cleared
from penstock_core.ids import NodeId

_LOADED_A_STEP: Final = 50
_TOPICS_A_STEP: Final = 10

Sized = tuple[int, int]
"""A partition's size in bytes, and its index."""
Groups = Mapping[Where, list[Sized]]
"""By where their replicas are: partitions, the smallest first."""


class Holdings:
    """Kept as replicas are swapped by it; nobody else may put any after a topic was loaded."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._held: dict[NodeId, dict[str, dict[Where, list[Sized]]]] = {n: {} for n in shape.nodes}
        self._away: dict[tuple[NodeId, str], set[int]] = {}
        """By node and topic: partitions that lie there in truth, and not in the plan."""
        self._loaded: set[str] = set()

    def load(self, topic: str) -> Generator[None, None, None]:
        """Has to be run before anything is asked about a topic."""
        if topic in self._loaded:
            return
        self._loaded.add(topic)
        shape = self._shape
        for count, index in enumerate(shape.indexes[topic], 1):
            partition, replicas = shape.partitions[index], shape.replicas[index]
            sized = partition.size_bytes, index
            for node_id in replicas:
                self._insert(node_id, partition.topic, shape.where(index), sized)
            if replicas is not partition.replicas:
                for node_id in partition.replicas:
                    if node_id not in replicas:
                        self._away.setdefault((node_id, topic), set()).add(index)
            if count % _LOADED_A_STEP == 0:
                yield

    def load_all(self) -> Generator[None, None, None]:
        """All topics."""
        for count, topic in enumerate(self._shape.indexes):
            yield from self.load(topic)
            if count % _TOPICS_A_STEP == 0:
                yield

    def topics(self, node_id: NodeId) -> Mapping[str, Groups]:
        """What a node holds, by topic."""
        return self._held[node_id]

    def cheapest(
        self, out: NodeId, topic: str, where: Where, into: NodeId, without: Collection[int]
    ) -> tuple[int, int] | None:
        """Of the partitions of a group, the one that costs the fewest bytes to have on another node than `out`, behind
        that cost; None where none may go there."""
        shape = self._shape
        if into not in shape.takers:
            return None
        away = self._away.get((into, topic))
        if away:
            # It is there: to leave it there costs nothing.
            back = [
                i for i in away if i not in without and out in shape.replicas[i] and shape.where(i) == where
            ]
            if back:
                return 0, min(back)
        for size, index in self._held[out][topic][where]:
            if into not in shape.replicas[index] and index not in without:
                # Where the smallest one has no room, none has.
                return (size, index) if shape.has_room(into, index) else None
        return None

    def swap(self, index: int, out: NodeId, into: NodeId) -> None:
        """One replica of a partition goes to another node, and takes its place in the order."""
        shape, partition = self._shape, self._shape.partitions[index]
        of, before, where = shape.domains.of, shape.replicas[index], shape.where(index)
        after = [into if n == out else n for n in before]
        sized = partition.size_bytes, index
        stays = of[out] == of[into]
        for node_id in (out,) if stays else before:
            self._remove(node_id, partition.topic, where, sized)
        shape.put(index, after)
        where = shape.where(index)
        for node_id in (into,) if stays else after:
            self._insert(node_id, partition.topic, where, sized)
        if out in partition.replicas:
            self._away.setdefault((out, partition.topic), set()).add(index)
        if into in partition.replicas:
            self._away[into, partition.topic].discard(index)

    def clear(self) -> Generator[None, None, None]:
        """At the end; in one piece it would take long."""
        yield from cleared(self._away, *self._held.values())

    def _insert(self, node_id: NodeId, topic: str, where: Where, sized: Sized) -> None:
        groups = self._held[node_id].get(topic)
        if groups is None:
            groups = self._held[node_id][topic] = {}
        group = groups.get(where)
        if group is None:
            group = groups[where] = []
        insort(group, sized)

    def _remove(self, node_id: NodeId, topic: str, where: Where, sized: Sized) -> None:
        groups = self._held[node_id][topic]
        group = groups[where]
        del group[bisect_left(group, sized)]
        if not group:
            del groups[where]
            if not groups:
                del self._held[node_id][topic]
