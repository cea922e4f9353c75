"""The largest of what was seen lately: however many look at it, each sees the same."""

from __future__ import annotations

from collections import deque
from typing import Final

_PARTS: Final = 60
"""Into which the window is divided: the answer may reach back one part further."""


class RecentMax:
    """Of the last `window_s` seconds. Takes no room for values, but for each part of the window."""

    def __init__(self, window_s: float) -> None:
        self._part_s = window_s / _PARTS
        self._parts: deque[tuple[int, float]] = deque()
        """Number of the part and the largest in it; falling, for what a larger one follows never counts again."""

    def add(self, now_s: float, value: float) -> None:
        """Something was seen. `now_s` does not fall."""
        part = int(now_s / self._part_s)
        self._forget(part)
        while self._parts and self._parts[-1][1] <= value:
            self._parts.pop()
        if not self._parts or self._parts[-1][0] != part:
            self._parts.append((part, value))

    def value(self, now_s: float) -> float:
        """The largest; 0 when nothing was seen."""
        self._forget(int(now_s / self._part_s))
        return self._parts[0][1] if self._parts else 0.0

    def _forget(self, part: int) -> None:
        while self._parts and self._parts[0][0] < part - _PARTS:
            self._parts.popleft()
