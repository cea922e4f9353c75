"""Nodes and partitions as the planner sees them, and what each node carries while the plan is made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from math import inf
from typing import Any, Final, TypeVar

from penstock_controller.state.operations.planner.domains import Address, Cost, Domains
from penstock_core.ids import NodeId, TopicPartition

FILL_MOST: Final = 0.85
"""How full a plan may make a disk, with what leaves it still there."""


_COUNTED_A_STEP: Final = 100
_SORTED_A_STEP: Final = 500
_EMPTIED_A_STEP: Final = 200
_CLEARED_A_STEP: Final = 5

Counts = defaultdict[NodeId, int]
"""By node; 0 for those that are not in it yet."""
Where = tuple[Address, ...]
"""Domains of a partition's replicas, sorted."""
Item = TypeVar("Item", str, tuple[int, int])


class Unplannable(ValueError):
    """There is no such plan; the message says why and what would help."""


@dataclass(frozen=True, slots=True)
class PlanNode:
    """A node."""

    node_id: NodeId
    rack: str = ""
    takes: bool = True
    """Whether it may get replicas and be preferred to lead: it is live, not cordoned, and has room."""
    keeps: bool = True
    """Whether it may keep what it has: it is not drained or replaced."""
    disk_total_bytes: int | None = None
    disk_used_bytes: int = 0
    leaving_bytes: int = 0
    """Of what is used: what goes elsewhere in any case."""


@dataclass(frozen=True, slots=True)
class PlanPartition:
    """A partition, and how many replicas it is to have."""

    key: TopicPartition
    topic: str
    replicas: tuple[NodeId, ...]
    """Preferred leader first."""
    isr: frozenset[NodeId]
    leader: NodeId
    factor: int
    size_bytes: int = 0
    stays: bool = False
    """Its replicas are not repaired: it only counts as what nodes hold."""


@dataclass(slots=True)
class Shape:
    """What is planned so far. Indexes of partitions are those of `partitions`."""

    nodes: Mapping[NodeId, PlanNode]
    partitions: Sequence[PlanPartition]
    domains: Domains
    takers: frozenset[NodeId]
    keepers: frozenset[NodeId]
    takers_at: Mapping[Address, Sequence[NodeId]]
    """Nodes that may take replicas, by where they are."""
    replicas: list[Sequence[NodeId]] = field(default_factory=list)
    """By partition, preferred leader first."""
    indexes: dict[str, list[int]] = field(default_factory=dict)
    """By topic."""
    total: Counts = field(default_factory=lambda: defaultdict(int))
    by_topic: dict[str, Counts] = field(default_factory=dict)
    bytes: Counts = field(default_factory=lambda: defaultdict(int))
    incoming: Counts = field(default_factory=lambda: defaultdict(int))
    """Bytes that come to a node in this plan."""
    outgoing: Counts = field(default_factory=lambda: defaultdict(int))
    """Bytes that leave a node in this plan."""
    _bounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    _where: list[Where | None] = field(default_factory=list)
    _wheres: dict[Where, Where] = field(default_factory=dict)
    """The same one for all that are alike."""
    _costs: dict[Where, Cost] = field(default_factory=dict)
    _swaps: dict[tuple[Where, Address, Address], bool] = field(default_factory=dict)

    @classmethod
    def of(
        cls, nodes: Iterable[PlanNode], partitions: Sequence[PlanPartition]
    ) -> Generator[None, None, Shape]:
        """As things are. Replicas on nodes that are not named are on none that keeps them."""
        known = {node.node_id: node for node in sorted(nodes, key=lambda n: n.node_id)}
        domains = Domains({node_id: node.rack for node_id, node in known.items()})
        takers_at: dict[Address, list[NodeId]] = {}
        for node_id, node in known.items():
            if node.takes and node.keeps:
                takers_at.setdefault(domains.of[node_id], []).append(node_id)
        shape = cls(
            nodes=known,
            partitions=partitions,
            domains=domains,
            takers=frozenset(node_id for at in takers_at.values() for node_id in at),
            keepers=frozenset(node_id for node_id, node in known.items() if node.keeps),
            takers_at=takers_at,
        )
        for count, partition in enumerate(partitions):
            if count % _COUNTED_A_STEP == 0:
                yield
            shape._add(partition)
        return shape

    def _add(self, partition: PlanPartition) -> None:
        topic, replicas, size = partition.topic, partition.replicas, partition.size_bytes
        here = self.by_topic.get(topic)
        if here is None:
            here = self.by_topic[topic] = defaultdict(int)
            self.indexes[topic] = []
        self.indexes[topic].append(len(self.replicas))
        for node_id in replicas:
            self.total[node_id] += 1
            here[node_id] += 1
            self.bytes[node_id] += size
        self.replicas.append(replicas)
        self._where.append(None)

    def where(self, index: int) -> Where:
        """Domains of a partition's replicas, sorted: partitions with the same may be swapped alike. All of its nodes
        are known."""
        found = self._where[index]
        if found is None:
            of = self.domains.of
            where = tuple(sorted([of[n] for n in self.replicas[index]]))
            found = self._where[index] = self._wheres.setdefault(where, where)
        return found

    def cost(self, where: Where) -> Cost:
        """How badly replicas are spread that are there."""
        found = self._costs.get(where)
        if found is None:
            found = self._costs[where] = self.domains.cost_of(where)
        return found

    def is_well_spread(self, where: Where) -> bool:
        """Whether so many replicas can't be spread better."""
        return self.cost(where) <= self.domains.best(len(where), self.takers)

    def room_bytes(self, node_id: NodeId) -> float:
        """What fits on a node beside all that is there and all that comes."""
        node = self.nodes[node_id]
        if node.disk_total_bytes is None:
            return inf
        return FILL_MOST * node.disk_total_bytes - node.disk_used_bytes - self.incoming[node_id]

    def excess_bytes(self, node_id: NodeId) -> float:
        """What has to leave a node before anything may come, or less than 0."""
        node = self.nodes[node_id]
        if node.disk_total_bytes is None:
            return -inf
        stays = node.disk_used_bytes - node.leaving_bytes - self.outgoing[node_id]
        return stays - FILL_MOST * node.disk_total_bytes

    def has_room(self, node_id: NodeId, index: int) -> bool:
        """Whether a partition fits on a node."""
        partition = self.partitions[index]
        return partition.size_bytes <= self.room_bytes(node_id) or node_id in partition.replicas

    def may_take(self, node_id: NodeId, index: int) -> bool:
        """Whether a node may get a replica of a partition, its domain left aside."""
        return (
            node_id in self.takers and node_id not in self.replicas[index] and self.has_room(node_id, index)
        )

    def may_swap(self, where: Where, old: Address, new: Address) -> bool:
        """Whether a replica may go from one place to the other as far as domains go."""
        if old == new:
            return True
        found = self._swaps.get((where, old, new))
        if found is None:
            rest = list(where)
            rest.remove(old)
            # As well as it is, where that is not as well as it could be: there may be no room for that.
            most = max(self.cost(where), self.domains.best(len(where), self.takers))
            found = self._swaps[where, old, new] = self.domains.cost_of([*rest, new]) <= most
        return found

    def bounds(self, topic: str) -> tuple[int, int]:
        """The fewest and the most replicas of a topic that any node has which takes some."""
        found = self._bounds.get(topic)
        if found is None:
            found = self._bounds[topic] = bounds_of(self.by_topic[topic], self.takers)
        return found

    def put(self, index: int, replicas: Sequence[NodeId]) -> None:
        """A partition's replicas are these from now on."""
        topic, before = self.partitions[index].topic, self.replicas[index]
        for node_id in before:
            if node_id not in replicas:
                self._count(index, topic, node_id, -1)
        for node_id in replicas:
            if node_id not in before:
                self._count(index, topic, node_id, 1)
        self.replicas[index] = replicas
        self._where[index] = None
        self._bounds.pop(topic, None)

    def clear(self) -> Generator[None, None, None]:
        """At the end; in one piece it would take long."""
        for index in range(len(self.replicas)):
            self.replicas[index] = ()
            if index % _EMPTIED_A_STEP == 0:
                yield
        yield from cleared(self.by_topic, self.indexes)

    def _count(self, index: int, topic: str, node_id: NodeId, one: int) -> None:
        partition = self.partitions[index]
        size = one * partition.size_bytes
        self.total[node_id] += one
        self.by_topic[topic][node_id] += one
        self.bytes[node_id] += size
        if node_id not in partition.replicas:
            self.incoming[node_id] += size
        else:
            self.outgoing[node_id] -= size


def bounds_of(counts: Counts, nodes: Iterable[NodeId]) -> tuple[int, int]:
    """The least and the greatest count of some nodes, of which there is one at least."""
    found = [counts.get(n, 0) for n in nodes]
    return min(found), max(found)


def cleared(*mappings: dict[Any, Any]) -> Generator[None, None, None]:
    """Empty mappings whose values are large, in steps."""
    count = 0
    for mapping in mappings:
        while mapping:
            mapping.popitem()
            count += 1
            if count % _CLEARED_A_STEP == 0:
                yield


def in_order(items: Iterable[Item]) -> Generator[None, None, Iterator[Item]]:
    """Sorted, in steps."""
    rest = iter(items)
    runs: list[list[Item]] = []
    while run := sorted(islice(rest, _SORTED_A_STEP)):
        runs.append(run)
        yield
    return merge(*runs)
