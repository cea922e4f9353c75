"""Failure domains: zones, hosts in them, nodes in those.

A node's `rack` is its path: "zone-a/host-3" is a host in a zone. Levels are looked at from the outermost inwards: a
partition uses as many zones as it can and as evenly as it can, then as many hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock_core.ids import NodeId
from penstock_core.racks import Domain, path_of

Address = tuple[int, ...]
"""Numbers of the domains that a node is in, outermost first."""
Cost = tuple[int, ...]
"""How badly a set of nodes is spread: by level, the sum of squares of how many of them share a domain."""


class Domains:
    """The domains of some nodes."""

    def __init__(self, racks: Mapping[NodeId, str]) -> None:
        paths = {node_id: path_of(rack) for node_id, rack in racks.items()}
        self.level_count = max(map(len, paths.values()), default=0)
        # Who names fewer levels than others is alone with those who do likewise.
        full = {node_id: path + ("",) * (self.level_count - len(path)) for node_id, path in paths.items()}
        numbers: dict[Domain, int] = {}
        self.of: dict[NodeId, Address] = {}
        """By node."""
        for node_id, path in sorted(full.items()):
            parts = [path[:level] for level in range(1, self.level_count + 1)]
            self.of[node_id] = tuple([numbers.setdefault(part, len(numbers)) for part in parts])
        self._best: dict[tuple[int, frozenset[NodeId]], Cost] = {}

    def cost(self, nodes: Iterable[NodeId]) -> Cost:
        """Of a set of nodes. Empty where there are no domains."""
        return self.cost_of([self.of[node_id] for node_id in nodes])

    def cost_of(self, addresses: Iterable[Address]) -> Cost:
        """Of nodes with these addresses."""
        costs = [0] * self.level_count
        uses: dict[int, int] = {}
        for address in addresses:
            for level, domain in enumerate(address):
                used = uses.get(domain, 0)
                uses[domain] = used + 1
                costs[level] += 2 * used + 1
        return tuple(costs)

    def uses(self, nodes: Iterable[NodeId]) -> dict[int, int]:
        """How many of a set of nodes are in a domain, by its number; none are in one that is not named."""
        uses: dict[int, int] = {}
        for node_id in nodes:
            for domain in self.of[node_id]:
                uses[domain] = uses.get(domain, 0) + 1
        return uses

    def best(self, count: int, among: frozenset[NodeId]) -> Cost:
        """The least cost that `count` of these nodes can have, or all of them where they are fewer."""
        found = self._best.get((count, among))
        if found is None:
            free: dict[Address, int] = {}
            for node_id in sorted(among):
                free[self.of[node_id]] = free.get(self.of[node_id], 0) + 1
            chosen: list[Address] = []
            uses: dict[int, int] = {}
            while free and len(chosen) < count:
                # Costs of a level grow the more, the more a domain is used: taking the least each time is right.
                best = min(free, key=lambda address: use_of(uses, address))
                chosen.append(best)
                for domain in best:
                    uses[domain] = uses.get(domain, 0) + 1
                free[best] -= 1
                if not free[best]:
                    del free[best]
            found = self._best[count, among] = self.cost_of(chosen)
        return found


def use_of(uses: Mapping[int, int], address: Address) -> Cost:
    """By level, how much the domains of an address are used: what one more there adds to the cost grows with it."""
    return tuple([uses.get(domain, 0) for domain in address])


def change_of(uses: Mapping[int, int], out: Address, into: Address) -> Cost:
    """By level, half of what the cost grows by when one of those in `uses` goes from `out` to `into`."""
    return tuple(
        [0 if old == new else uses.get(new, 0) - uses[old] + 1 for old, new in zip(out, into, strict=True)]
    )
