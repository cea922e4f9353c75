"""How fast operations copy: as fast as producers allow.

The throttle "auto" looks at the p99 of acks=all Produce at the leaders. What it was ahead of the operation is the
measure: twice that, or 10 ms more, is as slow as the operation may make it. Above that the rate is halved, just below
it falls a little, well below it grows as little (additive increase, multiplicative decrease), window by window. The end
of a window that is too slow whatever its rest brings is not waited for.

Everything here is told the time (ms, monotonic) and never looks at a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from penstock_controller.state.operations.plans.eta import RATE_BYTES_PER_S_MAX, RATE_WITH_PRODUCERS
from penstock_controller.state.operations.reports import Reports
from penstock_core.ids import NodeId
from penstock_core.limits import PRODUCE_LATENCY_BOUNDS_S
from penstock_proto.v1 import metadata_pb2 as pb

MIB: Final = 1024 * 1024
RATE_MIN: Final = MIB
"""Bytes per second of each node and direction: what copying gets however slow producers are."""
RATE_MAX: Final = RATE_BYTES_PER_S_MAX
STEP: Final = RATE_MAX // 20
"""By so much the rate rises or falls at once."""
WINDOW_MS: Final = 2_000
BEFORE_WINDOWS: Final = 15
"""Windows (30 s) ahead of an operation that say how fast producers were."""
LEARNING_WINDOWS: Final = 3
"""Windows that say it where nobody listened ahead of the operation."""
ACKS_MIN: Final = 100
"""Fewer acks than that ahead of an operation: nobody is there to be slowed down."""
WINDOW_ACKS_MIN: Final = 10
"""Fewer acks than that say little of a window."""
HIGH: Final = 0.9
"""Of what p99 may come to: above it the rate falls a little, so that producers are held below and not around it."""
LOW: Final = 0.75
"""Below it the rate grows."""
_BUCKETS: Final = len(PRODUCE_LATENCY_BOUNDS_S) + 1

Counts = tuple[int, ...]
"""Acks by how long they took, for each of PRODUCE_LATENCY_BOUNDS_S and one more for those beyond."""
NONE: Final[Counts] = (0,) * _BUCKETS


def add(some: Iterable[Sequence[int]]) -> Counts:
    """The sum of counts."""
    return tuple(map(sum, zip(NONE, *some, strict=True)))


def p99_s(counts: Sequence[int]) -> float | None:
    """The latency that 99 of 100 acks stay below, even within a bucket; None without acks."""
    total = sum(counts)
    if total == 0:
        return None
    rank, passed = 0.99 * total, 0
    for (low, high), count in zip(pairwise((0.0, *PRODUCE_LATENCY_BOUNDS_S)), counts, strict=False):
        if count and passed + count >= rank:
            return low + (high - low) * (rank - passed) / count
        passed += count
    return PRODUCE_LATENCY_BOUNDS_S[-1]


class ProduceLatency:
    """What the leaders told, merged, in windows of 2 s; the last 30 s are kept."""

    def __init__(self) -> None:
        self._told: dict[NodeId, Counts] = {}
        self._open: Counts = NONE
        self._opened_ms: int | None = None
        self._windows: deque[Counts] = deque(maxlen=BEFORE_WINDOWS)

    def take(self, reports: Reports, now_ms: int) -> Counts | None:
        """Look at the reports. A window that this closes is returned, once."""
        self._open = add((self._open, *self._news(reports)))
        if self._opened_ms is None:
            self._opened_ms = now_ms
        if now_ms - self._opened_ms < WINDOW_MS:
            return None
        closed, self._open, self._opened_ms = self._open, NONE, now_ms
        self._windows.append(closed)
        return closed

    @property
    def open(self) -> Counts:
        """Of the window that is not over."""
        return self._open

    @property
    def expected_bytes_per_s(self) -> int:
        """What an operation that began now would come to by the throttle "auto"."""
        heard = len(self._windows)
        is_somebody_there = heard > 0 and sum(self.before()) * BEFORE_WINDOWS >= ACKS_MIN * heard
        return RATE_WITH_PRODUCERS if is_somebody_there else RATE_MAX

    @property
    def is_whole(self) -> bool:
        """Whether it has listened for 30 s."""
        return len(self._windows) == BEFORE_WINDOWS

    def before(self) -> Counts:
        """Of the last 30 s, or as long as it has listened."""
        return add(self._windows)

    def _news(self, reports: Reports) -> Iterator[Counts]:
        for node_id, node in reports.nodes():
            counts = node.produce_counts
            if len(counts) != _BUCKETS:
                continue
            old = self._told.get(node_id)
            self._told[node_id] = counts
            if old is not None:
                # A process that was started again counts from 0.
                again = any(new < was for new, was in zip(counts, old, strict=True))
                yield counts if again else tuple(new - was for new, was in zip(counts, old, strict=True))


class AutoThrottle:
    """The rate of one operation, window by window. Also keeps what became of the latency, whatever throttles it."""

    def __init__(self, latency: ProduceLatency) -> None:
        """An operation begins, and `latency` has listened until now.

        Where it has not listened for 30 s, as after a failover in the midst of an operation, copying goes at the least
        rate for some windows: what producers then see is about what they see without.
        """
        self.before_s: float | None = None
        self.now_s: float | None = None
        self.worst_s: float | None = None
        self.bytes_per_s = RATE_MIN
        self._free = False
        self._learned: list[Counts] | None = []
        self._few: Counts = NONE
        self._silent = 0
        self._usual = 0
        """Acks of the last window that was over."""
        self._is_halved = False
        """The window that goes on was found too slow."""
        if latency.is_whole:
            self._begin(latency.before(), ACKS_MIN)

    @property
    def target_s(self) -> float | None:
        """What p99 may come to; None while there is nothing to go by."""
        return None if self.before_s is None else max(2 * self.before_s, self.before_s + 0.010)

    def look(self, counts: Counts) -> None:
        """A window goes on, and has had these acks: one that cannot end well any more is not waited for."""
        target_s = self.target_s
        if target_s is None or self._is_halved or self._free or self._learned is not None:
            return
        # As many are still to come as in a window of before, all of them quick.
        total = max(sum(counts), self._usual)
        if total >= WINDOW_ACKS_MIN and _surely_slower(counts, target_s) > 0.01 * total:
            self._is_halved = True
            self._halve()

    def window(self, counts: Counts) -> None:
        """A window of 2 s is over."""
        is_halved, self._is_halved = self._is_halved, False
        self._usual = sum(counts)
        if self._learned is not None:
            self._learned.append(counts)
            if len(self._learned) == LEARNING_WINDOWS:
                self._begin(add(self._learned), ACKS_MIN * LEARNING_WINDOWS // BEFORE_WINDOWS)
            return
        self._few = add((self._few, counts))
        if sum(self._few) < WINDOW_ACKS_MIN:
            # Acks that stay away may be slow ones; when they do for long, nobody produces any more.
            self._silent += 1
            if self._silent >= BEFORE_WINDOWS:
                self._grow()
            return
        self.now_s, self._few, self._silent = p99_s(self._few), NONE, 0
        target_s = self.target_s
        if self.now_s is None:
            return
        self.worst_s = max(self.worst_s or 0.0, self.now_s)
        if self._free or target_s is None:
            return
        if is_halved:
            return
        if self.now_s > target_s:
            self._halve()
        elif self.now_s > HIGH * target_s:
            self.bytes_per_s = max(RATE_MIN, self.bytes_per_s - STEP)
        elif self.now_s < LOW * target_s:
            self._grow()

    def _begin(self, before: Counts, acks_min: int) -> None:
        self._learned = None
        self._free = sum(before) < acks_min
        self.before_s = None if self._free else p99_s(before)
        self.bytes_per_s = RATE_MAX if self._free else RATE_WITH_PRODUCERS

    def _halve(self) -> None:
        self.bytes_per_s = max(RATE_MIN, self.bytes_per_s // 2)

    def _grow(self) -> None:
        self.bytes_per_s = min(RATE_MAX, self.bytes_per_s + STEP)


def _surely_slower(counts: Sequence[int], than_s: float) -> int:
    """Acks in buckets that lie beyond it as a whole."""
    return sum(
        count for low, count in zip((0.0, *PRODUCE_LATENCY_BOUNDS_S), counts, strict=True) if low >= than_s
    )


def effective_bytes_per_s(operations: Iterable[pb.OperationRecord], autos: Mapping[int, AutoThrottle]) -> int:
    """What each node may copy per second and direction: the least that an operation says; 0 without bound.

    `operations` are those that have not ended; the ones that move nothing, or have not begun to, say nothing.
    """
    bounds = []
    for record in operations:
        if not record.moves_total or record.state == pb.OPERATION_STATE_PENDING:
            continue
        auto = autos.get(record.operation_id)
        if record.throttle.bytes_per_s:
            bounds.append(record.throttle.bytes_per_s)
        elif record.throttle.auto:
            bounds.append(RATE_MIN if auto is None else auto.bytes_per_s)
    return min(bounds, default=0)


__all__ = ["AutoThrottle", "ProduceLatency", "effective_bytes_per_s", "p99_s"]
