"""How many bytes are appended and not yet written, all logs of the node together.

Each log counts its own staged bytes; the node's figure is the sum of what it last heard of
each. A log's share is read from the log itself whenever that may have changed (an append, a
write that is done, a cut, a deletion) and never adjusted by a difference that somebody else has
worked out: whatever way bytes leave a log, the next look is right. Decision 0022 weighs this
against a token per append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from penstock_core.errors import InvariantBroken

T = TypeVar("T")

STAGED_BYTES_LOW = 8 * 1024 * 1024
"""Whoever waits for the disk goes on when no more than that is staged."""


class LogShare:
    """What one log has in memory only, as its budget knows it."""

    __slots__ = ("_budget", "_is_changing", "_read", "counted_bytes")

    def __init__(
        self, budget: MemoryBudget, read: Callable[[], int], is_changing: Callable[[], bool]
    ) -> None:
        self._budget = budget
        self._read = read
        self._is_changing = is_changing
        self.counted_bytes = 0

    def update(self) -> None:
        """Look at the log again. After `close` this does nothing."""
        staged_bytes = self._read()
        if staged_bytes != self.counted_bytes:
            self._budget.count(self, staged_bytes)

    def close(self) -> None:
        """The log is gone, and with it whatever it had staged."""
        if self.counted_bytes:
            self._budget.count(self, 0)
        self._budget.forget(self)
        self._read = _nothing

    def is_right(self) -> bool:
        """Whether the log has staged what the budget counts; true while a thread may be changing it."""
        return self._is_changing() or self._read() == self.counted_bytes

    def __repr__(self) -> str:
        return f"share of {self.counted_bytes} bytes of a log that has {self._read()} staged"


def _nothing() -> int:
    return 0


def _never() -> bool:
    return False


class MemoryBudget:
    """The sum, and those who wait for it to fall. Lives on the event loop."""

    def __init__(self) -> None:
        self.staged_bytes = 0
        self._shares: dict[LogShare, None] = {}
        self._waiting: list[tuple[asyncio.Future[Any], Any]] = []
        self._is_given_up = False

    def share(self, read: Callable[[], int], is_changing: Callable[[], bool] = _never) -> LogShare:
        """The share of a log. `read` gives its staged bytes; while `is_changing` a thread may be at them,
        and whoever runs that thread calls `update` when it is done."""
        share = LogShare(self, read, is_changing)
        self._shares[share] = None
        return share

    @property
    def share_count(self) -> int:
        """How many logs have a share."""
        return len(self._shares)

    def count(self, share: LogShare, staged_bytes: int) -> None:
        """For shares: one of them has changed."""
        self.staged_bytes += staged_bytes - share.counted_bytes
        share.counted_bytes = staged_bytes
        if self._waiting and self.staged_bytes <= STAGED_BYTES_LOW:
            self._release()

    def forget(self, share: LogShare) -> None:
        """For shares: one of them is closed."""
        self._shares.pop(share, None)

    def when_written(self, value: T) -> asyncio.Future[T]:
        """`value`, once the disk has caught up with what is staged now."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._is_given_up:
            future.set_result(value)
        else:
            self._waiting.append((future, value))
        return future

    def give_up(self) -> None:
        """The disk has failed: what is staged will never be written, and nobody shall wait for it."""
        self._is_given_up = True
        self._release()

    def _release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future, value in waiting:
            if not future.done():
                future.set_result(value)

    def validate(self) -> None:
        """Raises InvariantBroken when the sum is not that of the shares, or a share not what its log has."""
        counted = sum(share.counted_bytes for share in self._shares)
        if counted != self.staged_bytes:
            raise InvariantBroken(f"{self.staged_bytes} bytes count as staged, the shares hold {counted}")
        for share in self._shares:
            if not share.is_right():
                raise InvariantBroken(str(share))
