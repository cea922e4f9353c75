"""Deadlines as data: a heap of them, and `due` for whoever owns the clock.

Heartbeats move a deadline all the time; so moving one later costs an assignment, and the heap
is told only when it rings too early. No timer calls anything back; a queue tells only that it has to
be looked at earlier than it said.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

NEVER_MS = 1 << 62
_GONE_MIN = 1_000


class Timer:
    """One deadline. `owner` says whose it is, for the caller of `due`."""

    __slots__ = ("armed_ms", "deadline_ms", "kind", "owner")

    def __init__(self, kind: str, owner: tuple[Any, ...]) -> None:
        self.kind = kind
        self.owner = owner
        self.deadline_ms = NEVER_MS
        self.armed_ms = NEVER_MS
        """Earliest entry in the heap that stands for this timer."""

    @property
    def is_set(self) -> bool:
        """Whether it will ring."""
        return self.deadline_ms < NEVER_MS

    @property
    def will_ring(self) -> bool:
        """Whether it is set, and the queue looks at it no later than that."""
        return self.armed_ms <= self.deadline_ms < NEVER_MS

    def cancel(self) -> None:
        """It will not ring."""
        self.deadline_ms = NEVER_MS


class TimerQueue:
    """All timers of one shard."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._sequence = 0
        self._swept_count = 0
        self.on_earlier: Callable[[], None] | None = None
        """Told, by `set`, when `next_ms` comes earlier than it was."""

    def set(self, timer: Timer, deadline_ms: int) -> None:
        """Have `timer` ring at `deadline_ms`, and at no other time."""
        timer.deadline_ms = deadline_ms
        if deadline_ms < timer.armed_ms:
            is_first = deadline_ms < self.next_ms
            self._arm(timer)
            if is_first and self.on_earlier is not None:
                self.on_earlier()

    def _arm(self, timer: Timer) -> None:
        timer.armed_ms = timer.deadline_ms
        self._sequence += 1
        heappush(self._heap, (timer.deadline_ms, self._sequence, timer))
        if len(self._heap) > 2 * self._swept_count + _GONE_MIN:
            self._sweep()

    def _sweep(self) -> None:
        """Let go of what was cancelled: whoever joins and leaves again and again leaves nothing behind."""
        kept = []
        for entry in self._heap:
            timer = entry[2]
            if entry[0] != timer.armed_ms:
                continue
            if timer.is_set:
                kept.append(entry)
            else:
                timer.armed_ms = NEVER_MS
        heapify(kept)
        self._heap = kept
        self._swept_count = len(kept)

    @property
    def next_ms(self) -> int:
        """Nothing rings before that time."""
        return self._heap[0][0] if self._heap else NEVER_MS

    def due(self, now_ms: int) -> Timer | None:
        """The next timer that rings at `now_ms`; it is no longer set. None when there is none."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            at_ms, _, timer = heappop(heap)
            if at_ms != timer.armed_ms:
                continue  # an earlier entry took its place
            timer.armed_ms = NEVER_MS
            if timer.deadline_ms <= now_ms:
                timer.deadline_ms = NEVER_MS
                return timer
            if timer.is_set:
                self._arm(timer)
        return None
