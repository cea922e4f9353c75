"""Produce requests of one partition that wait until an offset is safe.

Kafka's DelayedProduce, without a purgatory: appends come in offset order, so the waits of
one partition are a queue and passing an offset answers a prefix of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from penstock_core.errors import ErrorCode
from penstock_storage_node.replication.effects import AckWaiter, Effects

_NEVER_MS = 1 << 62


@dataclass(slots=True)
class _Wait:
    required_offset: int
    deadline_ms: int
    waiter: AckWaiter


def _required_offset(wait: _Wait) -> int:
    return wait.required_offset


class AckQueue:
    """Waits in offset order. `earliest_deadline_ms` lets the sweep skip quiet queues."""

    __slots__ = ("_waits", "earliest_deadline_ms")

    def __init__(self) -> None:
        self._waits: deque[_Wait] = deque()
        self.earliest_deadline_ms = _NEVER_MS

    def __len__(self) -> int:
        return len(self._waits)

    @property
    def first_required_offset(self) -> int | None:
        """What the first wait requires; None when nobody waits."""
        return self._waits[0].required_offset if self._waits else None

    def add(self, required_offset: int, deadline_ms: int, waiter: AckWaiter) -> None:
        """Wait until everything below `required_offset` is safe.

        A duplicate's offset may lie below ones that wait already: it goes before them.
        """
        waits, wait = self._waits, _Wait(required_offset, deadline_ms, waiter)
        if waits and required_offset < waits[-1].required_offset:
            waits.insert(bisect_right(waits, required_offset, key=_required_offset), wait)
        else:
            waits.append(wait)
        self.earliest_deadline_ms = min(self.earliest_deadline_ms, deadline_ms)

    def pass_offset(self, safe_offset: int, error: ErrorCode, effects: Effects) -> int:
        """Answer every wait that `safe_offset` covers with `error`.

        Returns the offset that the last of them required, -1 when none was covered.
        """
        waits = self._waits
        passed = -1
        while waits and waits[0].required_offset <= safe_offset:
            wait = waits.popleft()
            passed = max(passed, wait.required_offset)
            effects.answers.append((wait.waiter, error))
        if not waits:
            self.earliest_deadline_ms = _NEVER_MS
        return passed

    def expire(self, now_ms: int, error: ErrorCode, effects: Effects) -> None:
        """Answer the waits whose time is up with `error`."""
        if now_ms < self.earliest_deadline_ms:
            return
        kept: deque[_Wait] = deque()
        earliest_ms = _NEVER_MS
        for wait in self._waits:
            if wait.deadline_ms <= now_ms:
                effects.answers.append((wait.waiter, error))
            else:
                kept.append(wait)
                earliest_ms = min(earliest_ms, wait.deadline_ms)
        self._waits = kept
        self.earliest_deadline_ms = earliest_ms

    def fail_all(self, error: ErrorCode, effects: Effects) -> None:
        """Answer every wait with `error`."""
        effects.answers.extend((wait.waiter, error) for wait in self._waits)
        self._waits.clear()
        self.earliest_deadline_ms = _NEVER_MS
