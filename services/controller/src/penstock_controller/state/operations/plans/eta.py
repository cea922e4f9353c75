"""How long moves take: what each node has to receive and to send, at the rate it may, and a second for each move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from penstock_core.ids import NO_NODE, NodeId
from penstock_proto.v1 import metadata_pb2 as meta

RATE_BYTES_PER_S_MAX: Final = 64 * 1024 * 1024
"""Of a node and direction: what the throttle "auto" goes up to, and what is reckoned with where there is none."""

MOVES_PER_NODE_MAX: Final = 4
"""Moves that go on at a node at once."""

MOVE_S: Final = 1.0
"""What a move takes beside its bytes."""


def rate_of(throttle: meta.OperationThrottle) -> int:
    """Bytes per second of each node and direction that a throttle lets through at most."""
    return throttle.bytes_per_s if throttle.bytes_per_s else RATE_BYTES_PER_S_MAX


class Work:
    """What is still to be copied."""

    def __init__(self) -> None:
        self._in: Counter[NodeId] = Counter()
        self._out: Counter[NodeId] = Counter()
        self._moves: Counter[tuple[NodeId, bool]] = Counter()

    def add(
        self, source: NodeId, targets: Iterable[NodeId], size_bytes: int, *, counted: bool = True
    ) -> None:
        """A move: replicas of that size are made on each target. Without a source only they count.

        `counted`: whether it has its turn among the moves; such as go on beside others only have their bytes.
        """
        at = set() if source == NO_NODE else {(source, False)}
        for target in targets:
            self._in[target] += size_bytes
            self._out[source] += size_bytes
            at.add((target, True))
        if counted:
            self._moves.update(at)

    def seconds(self, rate_bytes_per_s: float) -> float:
        """The slowest node and direction, and the longest chain of moves that wait for one another."""
        most = max((*self._in.values(), *(n for at, n in self._out.items() if at != NO_NODE)), default=0)
        moves = max(self._moves.values(), default=0)
        return most / rate_bytes_per_s + MOVE_S * -(-moves // MOVES_PER_NODE_MAX)
