"""How long moves take: what each node has to receive and to send, at the rate it may, and a second for each move.

While a partition is copied it goes on being written, and what is written has to be copied too: of the rate only what
its producers leave counts.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

from penstock_core.ids import NO_NODE, NodeId
from penstock_proto.v1 import metadata_pb2 as meta

RATE_BYTES_PER_S_MAX: Final = 64 * 1024 * 1024
"""Of a node and direction: what the throttle "auto" goes up to, and what is reckoned with where there is none."""

RATE_WITH_PRODUCERS: Final = RATE_BYTES_PER_S_MAX // 4
"""What "auto" begins with where somebody produces, and about what it settles at."""

MOVES_PER_NODE_MAX: Final = 4
"""Moves that go on at a node at once."""

_LEFT_LEAST: Final = 10
"""Of this part of the rate at least copies side by side are thought to get something; else they go one by one."""

MOVE_S: Final = 1.0
"""What a move takes beside its bytes."""


def rate_of(throttle: meta.OperationThrottle, auto_bytes_per_s: int = RATE_BYTES_PER_S_MAX) -> int:
    """Bytes per second of each node and direction that are reckoned with.

    `auto_bytes_per_s`: what "auto" is thought to come to.
    """
    if throttle.bytes_per_s:
        return throttle.bytes_per_s
    return auto_bytes_per_s if throttle.auto else RATE_BYTES_PER_S_MAX


class _Lane:
    """What one node has to send, or to receive."""

    def __init__(self) -> None:
        self._copies: list[tuple[int, float]] = []

    def add(self, size_bytes: int, written_bytes_per_s: float) -> None:
        """A copy."""
        self._copies.append((size_bytes, written_bytes_per_s))

    def seconds(self, rate_bytes_per_s: float) -> float:
        """Until the last byte has passed; infinite where more is written than may be copied."""
        beside = min(len(self._copies), MOVES_PER_NODE_MAX)
        taken_s = 0.0
        for size_bytes, written in self._copies:
            # Copies that go on side by side share the rate, and each is written meanwhile.
            left = rate_bytes_per_s - beside * written
            if left < rate_bytes_per_s / _LEFT_LEAST:
                left = (rate_bytes_per_s - written) / beside
            if size_bytes:
                taken_s += size_bytes / left if left > 0 else math.inf
        return taken_s


class Work:
    """What is still to be copied."""

    def __init__(self) -> None:
        self._lanes: defaultdict[tuple[NodeId, bool], _Lane] = defaultdict(_Lane)
        """By node, and whether it receives."""
        self._moves: Counter[tuple[NodeId, bool]] = Counter()

    def add(
        self,
        source: NodeId,
        targets: Iterable[NodeId],
        size_bytes: int,
        written_bytes_per_s: float = 0.0,
        *,
        counted: bool = True,
    ) -> None:
        """A move: replicas of that size are made on each target. Without a source only they count.

        `counted`: whether it has its turn among the moves; such as go on beside others only have their bytes.
        """
        at = set() if source == NO_NODE else {(source, False)}
        for target in targets:
            self._lanes[target, True].add(size_bytes, written_bytes_per_s)
            if source != NO_NODE:
                self._lanes[source, False].add(size_bytes, written_bytes_per_s)
            at.add((target, True))
        if counted:
            self._moves.update(at)

    def seconds(self, rate_bytes_per_s: float) -> float:
        """The slowest node and direction, and the longest chain of moves that wait for one another. Infinite where
        partitions are written faster than they may be copied."""
        most_s = max((lane.seconds(rate_bytes_per_s) for lane in self._lanes.values()), default=0.0)
        moves = max(self._moves.values(), default=0)
        return most_s + MOVE_S * -(-moves // MOVES_PER_NODE_MAX)
