"""What of a partition outlives the loss of one node, host or rack. Pure.

Asked of where replicas are, not of who is in sync just now: a node that is down is told of by itself, and what is safe
does not come and go with it. A replica that is only being made does not count, one that is to go does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock_controller.state.operations.planner.domains import Address, Domains
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_core.racks import path_of

NODE: Final = "node"
HOST: Final = "host"
RACK: Final = "rack"
_BETWEEN: Final = "domain"
"""What a level between the first and the last of a rack is called."""


class Loss(NamedTuple):
    """A level at which the loss of one domain is not outlived."""

    level: int
    """In `Spread.levels`."""
    node_id: NodeId
    """One of the nodes that are lost with the worst domain."""
    replicas_lost: int


@dataclass(frozen=True, slots=True)
class Losses:
    """Each at the innermost level where it comes to that: what the loss of a host does, that of its rack does too."""

    data: Loss | None = None
    """No replica would be left."""
    writes: Loss | None = None
    """Too few would be left to take acks=all."""


class Spread:
    """The failure domains of a cluster's nodes.

    Nobody outlives the loss of a domain that has no other beside it, so such levels are left out.
    """

    def __init__(self, racks: Mapping[NodeId, str]) -> None:
        self.racks: Final = dict(racks)
        domains = Domains(racks)
        names = level_names(domains.level_count)
        self._of: Final[dict[NodeId, Address]] = {
            node_id: (*domains.of[node_id], _alone(node_id)) for node_id in racks
        }
        self.domain_counts: Final[tuple[int, ...]] = tuple(
            len({address[level] for address in self._of.values()}) for level in range(len(names))
        )
        self.levels: Final = names
        """From the outermost inwards; the last one is the node."""
        self._outlived: Final = tuple(i for i, count in enumerate(self.domain_counts) if count > 1)

    @classmethod
    def of(cls, image: MetadataImage) -> Spread:
        """Of all registered nodes: who is down for a while is where it was."""
        return cls(racks_of(image))

    def losses(self, replicas: Sequence[NodeId], min_isr: int) -> Losses:
        """What a partition with these replicas does not outlive."""
        data = writes = None
        for level in reversed(self._outlived):
            node_id, lost = self._worst(level, replicas)
            left = len(replicas) - lost
            if writes is None and left < min_isr:
                writes = Loss(level, node_id, lost)
            if not left:
                data = Loss(level, node_id, lost)
                break
        return Losses(data, writes or data)

    def is_safe(self, replicas: Sequence[NodeId], min_isr: int) -> bool:
        """Whether it takes acks=all whatever one domain is lost."""
        if not self._outlived:
            return True
        # An outer domain holds all that is in an inner one.
        lost = self._worst(self._outlived[0], replicas)[1]
        return len(replicas) - lost >= max(1, min_isr)

    def domain(self, level: int, node_id: NodeId) -> str:
        """For people: the domain of a level that a node is in."""
        name = self.levels[level]
        if name == NODE:
            return f"node {node_id}"
        path = "/".join(path_of(self.racks.get(node_id, ""))[: level + 1])
        return f"{name} {path}" if path else f"the nodes without a {name}"

    def domains(self, level: int) -> dict[int, list[NodeId]]:
        """Nodes by domain, of one level."""
        found: dict[int, list[NodeId]] = {}
        for node_id, address in self._of.items():
            found.setdefault(address[level], []).append(node_id)
        return found

    def address(self, node_id: NodeId) -> Address:
        """Numbers of a node's domains, outermost first. One that is not registered shares none with others."""
        return self._of.get(node_id) or (_alone(node_id),) * len(self.levels)

    def best_left(self, level: int, factor: int, among: Collection[NodeId]) -> int:
        """Most of so many replicas that can be left when a domain of a level is lost, put anywhere on some nodes."""
        sizes = [sum(n in among for n in nodes) for nodes in self.domains(level).values()]
        # The least bound on replicas in a domain under which all of them find a place.
        bound = next(
            (b for b in range(1, factor + 1) if sum(min(b, size) for size in sizes) >= factor), factor
        )
        return factor - bound

    def _worst(self, level: int, replicas: Sequence[NodeId]) -> tuple[NodeId, int]:
        """A node of the domain that most replicas share, and how many do."""
        uses: dict[int, int] = {}
        worst, most = NodeId(-1), 0
        for node_id in replicas:
            domain = self.address(node_id)[level]
            used = uses[domain] = uses.get(domain, 0) + 1
            if used > most:
                worst, most = node_id, used
        return worst, most


def racks_of(image: MetadataImage) -> dict[NodeId, str]:
    """Of all registered nodes."""
    return {node_id: node.rack for node_id, node in image.nodes.items()}


def level_names(depth: int) -> tuple[str, ...]:
    """Of racks with so many levels, and the node: the first is a rack, the last of several a host."""
    return (
        (RACK, *([_BETWEEN] * (depth - 2)), *([HOST] if depth > 1 else []), NODE)[: depth + 1]
        if depth
        else (NODE,)
    )


def present(partition: PartitionImage) -> tuple[NodeId, ...]:
    """Replicas less those that are only being made."""
    adding = partition.adding_replicas
    return tuple([n for n in partition.replicas if n not in adding]) if adding else partition.replicas


def even_groups(spread: Spread, nodes: Sequence[NodeId]) -> Iterator[list[NodeId]]:
    """Nodes that are to have equally much: all where domains are alike, else those of each domain among themselves."""
    yield from _groups([(n, spread.address(n)[:-1]) for n in nodes], 0)


def _groups(nodes: list[tuple[NodeId, Address]], level: int) -> list[list[NodeId]]:
    if not nodes or level == len(nodes[0][1]):
        return [[n for n, _ in nodes]] if nodes else []
    children: dict[int, list[tuple[NodeId, Address]]] = {}
    for each in nodes:
        children.setdefault(each[1][level], []).append(each)
    found = [_groups(child, level + 1) for child in children.values()]
    alike = all(len(groups) == 1 for groups in found) and len({len(groups[0]) for groups in found}) == 1
    flat = [group for groups in found for group in groups]
    return [[n for group in flat for n in group]] if alike else flat


def _alone(node_id: NodeId) -> int:
    """A number of the node itself among those of domains, which are not negative."""
    return -1 - node_id


__all__ = [
    "HOST",
    "NODE",
    "RACK",
    "Loss",
    "Losses",
    "Spread",
    "even_groups",
    "level_names",
    "present",
    "racks_of",
]
