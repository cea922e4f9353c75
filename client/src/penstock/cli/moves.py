"""Where replicas go when people ask for another number of them, or want a node emptied. Pure.

What is there stays where it can: only additions and removals are chosen. New replicas go to the
nodes with the fewest replicas (of the topic, then of all), in another rack than the others where
there is one; removed are those that are not live or not in sync first, then those that share a rack, then those of the
nodes with the most, never the leader while others are left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from penstock.errors import CommandError


class Planner:
    """Plans for the partitions of one topic, one after another."""

    def __init__(
        self, nodes: Mapping[int, str], cluster: Counter[int], topic: Mapping[int, Sequence[int]]
    ) -> None:
        """`nodes`: racks of live nodes by id; `cluster`: replicas on each; `topic`: replicas by partition."""
        self._racks = nodes
        self._cluster = Counter(cluster)
        self._here: Counter[int] = Counter(n for replicas in topic.values() for n in replicas)

    def with_factor(
        self, replicas: Sequence[int], leader: int, factor: int, isr: Collection[int] | None = None
    ) -> list[int]:
        """The same partition with that many replicas. `isr`: those in sync, None for all."""
        in_sync = set(replicas if isr is None else isr)
        if factor > len(self._racks):
            raise CommandError(
                f"{factor} replicas need as many nodes, {len(self._racks)} are live; start more or ask for fewer"
            )
        wanted = list(replicas)
        while len(wanted) < factor:
            wanted.append(self._best(wanted))
        while len(wanted) > factor:
            racks = Counter(self._racks.get(n, "") for n in wanted)
            gone = max(
                (n for n in wanted if n != leader or len(wanted) == 1),
                key=lambda n: (
                    n not in self._racks,
                    n not in in_sync,
                    racks[self._racks.get(n, "")],
                    self._here[n],
                    self._cluster[n],
                    wanted.index(n),
                ),
            )
            wanted.remove(gone)
            self._count(gone, -1)
        return wanted

    def without(self, replicas: Sequence[int], node: int) -> list[int]:
        """The same partition with another node in the place of one."""
        if node not in replicas:
            return list(replicas)
        other = self._best([*replicas, node])
        self._count(node, -1)
        return [other if n == node else n for n in replicas]

    def _best(self, taken: Sequence[int]) -> int:
        free = [n for n in self._racks if n not in taken]
        if not free:
            raise CommandError("no other live node is left for a replica; start one first")
        used = Counter(self._racks.get(n, "") for n in taken)
        best = min(free, key=lambda n: (used[self._racks[n]], self._here[n], self._cluster[n], n))
        self._count(best, 1)
        return best

    def _count(self, node: int, by: int) -> None:
        self._here[node] += by
        self._cluster[node] += by
