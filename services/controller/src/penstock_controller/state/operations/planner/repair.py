"""What has to change: replicas on nodes that keep none, too many or too few of them, several in one domain.

Who is added is chosen by the key that `placement` chooses by; who goes is never the leader while others are left, first
who is not in sync, then who shares a domain, then who is on the fullest node. Nodes in the same domain differ only in
what they hold: domains are compared first, nodes only in the best of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final

from penstock_controller.state.operations.planner.domains import Address, change_of, use_of
from penstock_controller.state.operations.planner.shape import Shape, Unplannable, cleared, in_order
from penstock_core.ids import NodeId

_LOOKED_AT_A_STEP: Final = 100

_Least = tuple[int, int, int, NodeId]
"""What a node holds: of the topic, in all, in bytes; and its id."""


class Repair:
    """Repairs partition after partition, those that are worst off first."""

    def __init__(self, shape: Shape, rooted: frozenset[NodeId] = frozenset()) -> None:
        """`rooted`: from these nothing goes for the sake of a better spread."""
        self._shape = shape
        self._rooted = rooted
        self._size: defaultdict[int, int] = defaultdict(int)
        """Nodes that take replicas, by domain."""
        for node_id in shape.takers:
            for domain in shape.domains.of[node_id]:
                self._size[domain] += 1
        self._domain_load: dict[str, defaultdict[int, int]] = {}
        """Replicas by topic and domain."""

    def run(self) -> Generator[None, None, None]:
        """Raises Unplannable."""
        shape = self._shape
        for _, index in (yield from self._broken()):
            before = shape.replicas[index]
            after = self._repaired(index)
            if after != list(before):
                shape.put(index, after)
                load = self._load(shape.partitions[index].topic)
                self._count(load, before, -1)
                self._count(load, after, 1)
            yield
        yield from cleared(self._domain_load)

    def _broken(self) -> Generator[None, None, Iterator[tuple[int, int]]]:
        """Partitions that break a rule, each behind its size: large ones first, so that the small ones fill what is
        left."""
        shape = self._shape
        found: list[tuple[int, int]] = []
        for index, partition in enumerate(shape.partitions):
            if index % _LOOKED_AT_A_STEP == 0:
                yield
            replicas = shape.replicas[index]
            if not partition.stays and (
                len(replicas) != partition.factor
                or not shape.keepers.issuperset(replicas)
                or not shape.is_well_spread(shape.where(index))
            ):
                found.append((-partition.size_bytes, index))
        return (yield from in_order(found))

    def _repaired(self, index: int) -> list[NodeId]:
        shape, partition = self._shape, self._shape.partitions[index]
        members = [n for n in shape.replicas[index] if n in shape.keepers]
        while len(members) > partition.factor:
            members.remove(self._goes(index, members))
        while len(members) < partition.factor:
            members.append(self._comes(index, members))
        while (better := self._better(index, members)) is not None:
            members = better
        return members

    def _goes(self, index: int, members: list[NodeId]) -> NodeId:
        shape, partition = self._shape, self._shape.partitions[index]

        def cost(n: NodeId) -> tuple[Any, ...]:
            rest = [m for m in members if m != n]
            spread = shape.domains.cost(rest)
            return (n == partition.leader, n in partition.isr, spread, -shape.bytes[n], -shape.total[n], n)

        return min(members, key=cost)

    def _comes(self, index: int, members: list[NodeId]) -> NodeId:
        """The node with the least domain use, domain load, topic load, total, bytes and id."""
        shape, partition = self._shape, self._shape.partitions[index]
        uses = shape.domains.uses(members)
        found: tuple[tuple[Any, ...], _Least] | None = None
        for address in shape.takers_at:
            key = use_of(uses, address), self._load_at(partition.topic, address)
            if found is None or key <= found[0]:
                least = self._least(index, members, address)
                if least is not None and (found is None or (key, least) < found):
                    found = key, least
        if found is not None:
            return found[1][-1]
        name = f"{partition.topic}-{partition.key.partition}"
        if any(n not in members for n in shape.takers):
            raise Unplannable(
                f"partition {name} ({partition.size_bytes:,} bytes) fits on no node: each would be filled to more than"
                " 85 % of its disk; add nodes, or remove data first"
            )
        raise Unplannable(
            f"partition {name} is to have {partition.factor} replicas, and only {len(members)} nodes may have one;"
            " add nodes, uncordon some, or lower the replication factor"
        )

    def _better(self, index: int, members: list[NodeId]) -> list[NodeId] | None:
        """With one replica in another domain, when that is a better spread; None when there is none."""
        shape, partition = self._shape, self._shape.partitions[index]
        of = shape.domains.of
        if shape.is_well_spread(tuple(sorted([of[n] for n in members]))):
            return None
        uses = shape.domains.uses(members)
        same = (0,) * shape.domains.level_count
        loads = {address: self._load_at(partition.topic, address) for address in shape.takers_at}
        leasts: dict[Address, _Least | None] = {}
        found: tuple[tuple[Any, ...], _Least, NodeId] | None = None
        for out in members:
            if out in self._rooted:
                continue
            for address, load in loads.items():
                change = change_of(uses, of[out], address)
                if change >= same:
                    continue
                # Least of all who holds nothing yet has to copy it twice; the leader goes last.
                key = change, out == partition.leader, out in partition.isr, load
                if found is not None and key > found[0]:
                    continue
                if address not in leasts:
                    leasts[address] = self._least(index, members, address)
                least = leasts[address]
                if least is not None and (found is None or (key, least, out) < found):
                    found = key, least, out
        return None if found is None else [found[1][-1] if m == found[2] else m for m in members]

    def _least(self, index: int, members: list[NodeId], address: Address) -> _Least | None:
        """Who holds the least of those who are there and have room."""
        shape = self._shape
        here, total, held = shape.by_topic[shape.partitions[index].topic], shape.total, shape.bytes
        found = sorted(
            [(here[n], total[n], held[n], n) for n in shape.takers_at[address] if n not in members]
        )
        return next((least for least in found if shape.has_room(least[-1], index)), None)

    def _load_at(self, topic: str, address: Address) -> tuple[float, ...]:
        """By level, replicas of a topic per node."""
        load, size = self._load(topic), self._size
        return tuple([load[domain] / size[domain] for domain in address])

    def _load(self, topic: str) -> defaultdict[int, int]:
        found = self._domain_load.get(topic)
        if found is None:
            found = self._domain_load[topic] = defaultdict(int)
            for node_id, count in self._shape.by_topic[topic].items():
                for domain in self._shape.domains.of.get(node_id, ()):
                    found[domain] += count
        return found

    def _count(self, load: defaultdict[int, int], replicas: Sequence[NodeId], one: int) -> None:
        for node_id in replicas:
            for domain in self._shape.domains.of.get(node_id, ()):
                load[domain] += one
