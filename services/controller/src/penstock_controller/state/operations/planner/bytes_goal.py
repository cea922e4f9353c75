"""How many bytes nodes hold: a large partition for a small one, between the fullest node and another.

Replica counts stay as they are, of each topic too, so partitions are swapped within a topic alone. But a disk that is
filled beyond what a plan may fill it to can get nothing, however small, before a large one has left: where counts need
not be even, such a one gives replicas away.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator, Sequence
from itertools import product
from math import inf
from typing import Final

from penstock_controller.state.operations.planner.holdings import Holdings, Sized
from penstock_controller.state.operations.planner.shape import Shape
from penstock_core.ids import NodeId

ENOUGH: Final = 1.10
"""The fullest node may hold that many times the mean."""

_TRIED_A_STEP: Final = 50


def level_bytes(
    shape: Shape, holdings: Holdings, max_bytes: int | None, *, counts_may_change: bool
) -> Generator[None, None, None]:
    """Swap until the fullest node is near the mean, nothing helps, or `max_bytes` would be moved."""
    yield from holdings.load_all()
    moved = (yield from _relieve(shape, holdings, max_bytes)) if counts_may_change else 0
    takers = sorted(shape.takers)
    while takers:
        yield
        mean = sum(shape.bytes[n] for n in takers) / len(takers)
        fullest = max(takers, key=lambda n: (shape.bytes[n], n))
        if shape.bytes[fullest] <= ENOUGH * mean:
            return
        room = None if max_bytes is None else max_bytes - moved
        found = yield from _best_swap(shape, holdings, fullest, takers, room)
        if found is None:
            return
        large, small, other, cost = found
        holdings.swap(large, fullest, other)
        holdings.swap(small, other, fullest)
        moved += cost


def _relieve(shape: Shape, holdings: Holdings, max_bytes: int | None) -> Generator[None, None, int]:
    """Disks that are too full give as much away as it takes; the bytes to copy for it."""
    moved = 0
    for node_id in sorted(shape.keepers):
        excess = shape.excess_bytes(node_id)
        while excess > 0:
            room = inf if max_bytes is None else max_bytes - moved
            found = yield from _best_gift(shape, holdings, node_id, excess, room)
            if found is None:
                break
            size, index, into = found
            holdings.swap(index, node_id, into)
            moved += size
            excess -= size
    return moved


def _best_gift(
    shape: Shape, holdings: Holdings, node_id: NodeId, excess_bytes: float, most_bytes: float
) -> Generator[None, None, tuple[int, int, NodeId] | None]:
    """(size, partition, who gets it): the smallest one that is enough, else the largest; to who holds fewest bytes."""
    of, tried = shape.domains.of, 0
    for into in sorted(shape.takers - {node_id}, key=lambda n: (shape.bytes[n], n)):
        best: tuple[bool, int, int] | None = None
        for groups in holdings.topics(node_id).values():
            for where, sized in groups.items():
                if not shape.may_swap(where, of[node_id], of[into]):
                    continue
                for size, index in sized:
                    tried += 1
                    if tried % _TRIED_A_STEP == 0:
                        yield
                    key = size < excess_bytes, size if size >= excess_bytes else -size, index
                    if (
                        0 < size <= most_bytes
                        and (best is None or key < best)
                        and shape.may_take(into, index)
                    ):
                        best = key
        if best is not None:
            return abs(best[1]), best[2], into
    return None


def _best_swap(
    shape: Shape, holdings: Holdings, fullest: NodeId, takers: Sequence[NodeId], room_bytes: int | None
) -> Generator[None, None, tuple[int, int, NodeId, int] | None]:
    """(large partition, small one, the other node, bytes to copy): what brings the fullest and an empty
    node close together."""
    best: tuple[int, int, int, int, NodeId] | None = None
    of, tried = shape.domains.of, 0
    held = holdings.topics(fullest)
    largest = max(group[-1][0] for groups in held.values() for group in groups.values())
    for other in sorted(takers, key=lambda n: (shape.bytes[n], n)):
        gap = shape.bytes[fullest] - shape.bytes[other]
        if other == fullest or gap <= 0:
            continue
        here: tuple[int, int, int, int, NodeId] | None = None
        theirs = holdings.topics(other)
        for topic, groups in held.items():
            for (where, larges), (place, smalls) in product(groups.items(), theirs.get(topic, {}).items()):
                tried += 1
                if tried % _TRIED_A_STEP == 0:
                    yield
                if not shape.may_swap(where, of[fullest], of[other]):
                    continue
                if not shape.may_swap(place, of[other], of[fullest]):
                    continue
                for size, large in larges:
                    tried += 1
                    if tried % _TRIED_A_STEP == 0:
                        yield
                    if not shape.may_take(other, large):
                        continue
                    for small in _matches(shape, fullest, other, large, smalls, room_bytes):
                        cost = _copied(shape, large, other) + _copied(shape, small, fullest)
                        shifts = size - shape.partitions[small].size_bytes
                        found = (abs(gap - 2 * shifts), cost, large, small, other)
                        here = found if here is None else min(here, found)
        if here is None:
            continue
        if gap - here[0] >= min(gap, 2 * largest) / 2:
            # At least half of what could be gained at all: fuller nodes need not be tried.
            return here[2], here[3], here[4], here[1]
        best = here if best is None else min(best, here)
    return None if best is None else (best[2], best[3], best[4], best[1])


def _matches(
    shape: Shape, fullest: NodeId, other: NodeId, large: int, smalls: Sequence[Sized], room_bytes: int | None
) -> Iterator[int]:
    """What may come for a large one: the next smaller and the next larger than what would make the two nodes even."""
    size = shape.partitions[large].size_bytes
    gap = shape.bytes[fullest] - shape.bytes[other]
    room = float("inf") if room_bytes is None else room_bytes - _copied(shape, large, other)
    room = min(room, shape.room_bytes(fullest))
    least = bisect_left(smalls, (size - gap + 1, 0))
    most = min(bisect_left(smalls, (size, 0)), bisect_right(smalls, room, key=_size))
    middle = min(most, bisect_left(smalls, (size - gap // 2, 0)))
    for way in (range(middle - 1, least - 1, -1), range(max(middle, least), most)):
        for at in way:
            if fullest not in shape.replicas[smalls[at][1]]:
                yield smalls[at][1]
                break


def _size(sized: Sized) -> float:
    return sized[0]


def _copied(shape: Shape, index: int, into: NodeId) -> int:
    partition = shape.partitions[index]
    return 0 if into in partition.replicas else partition.size_bytes
