"""Which sizes of replicas the controller is told next: a plain state machine.

Each heartbeat takes at most one part, and each answer is for the oldest heartbeat that has none. What a broken session
left without an answer is told again. Everything is told when the controller asks for that: it asks until it has heard
the last part, so what it says before that counts for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from penstock_core.ids import TopicPartition

PART_MAX = 2_000
"""Replicas in one report."""
CHANGE_BYTES = 1024 * 1024
CHANGE_SHARE = 100
"""A size is told again when it has changed by CHANGE_BYTES, or by one part in so many."""

_UNKNOWN = -1
"""Told, and perhaps not heard."""


@dataclass(frozen=True, slots=True)
class SizePart:
    """What one report tells."""

    sizes: tuple[tuple[TopicPartition, int], ...] = ()
    first_of_all: bool = False
    last_of_all: bool = False


class SizeTelling:
    """Of one node, over all its sessions."""

    def __init__(self, sizes: Callable[[], Mapping[TopicPartition, int]], part_max: int = PART_MAX) -> None:
        """`sizes` are those of now; who is not in there is gone."""
        self._sizes = sizes
        self._part_max = part_max
        self._told: dict[TopicPartition, int] = {}
        self._due: dict[TopicPartition, None] = {}
        self._unanswered: deque[SizePart | None] = deque()
        self._left: Iterator[TopicPartition] | None = None
        """Replicas of a telling of everything that is under way."""
        self._asked = False
        self._is_first = False

    @property
    def has_more(self) -> bool:
        """Whether a part waits to be told, without anything changing."""
        return self._asked or self._left is not None or bool(self._due)

    def begin(self) -> None:
        """A new session: what had no answer may not have been heard."""
        for part in self._unanswered:
            for key, _ in part.sizes if part is not None else ():
                self._told[key] = _UNKNOWN
                self._due[key] = None
        self._unanswered.clear()
        self._left, self._asked = None, False

    def changed(self, key: TopicPartition) -> None:
        """A replica's size is another one now."""
        if self._is_worth_telling(key):
            self._due[key] = None

    def sent(self, part: SizePart | None) -> None:
        """A heartbeat goes out, with this part or with none."""
        self._unanswered.append(part)

    def answered(self, *, wants_all: bool) -> None:
        """The answer to the oldest heartbeat without one."""
        if self._unanswered:
            self._unanswered.popleft()
        is_on_its_way = any(part is not None and part.last_of_all for part in self._unanswered)
        if wants_all and self._left is None and not is_on_its_way:
            self._asked = True

    def next_part(self) -> SizePart:
        """What to tell now."""
        if self._asked:
            self._asked, self._is_first = False, True
            self._told.clear()
            self._due.clear()
            self._left = iter(list(self._sizes()))
        return self._next_change() if self._left is None else self._next_of_all(self._left)

    def _next_of_all(self, left: Iterator[TopicPartition]) -> SizePart:
        sizes, keys = self._sizes(), list(islice(left, self._part_max))
        rows = []
        for key in keys:
            self._due.pop(key, None)
            size = sizes.get(key)
            if size is not None:
                self._told[key] = size
            if size:  # who is not named is empty
                rows.append((key, size))
        is_last = len(keys) < self._part_max
        part = SizePart(tuple(rows), self._is_first, is_last)
        self._is_first = False
        if is_last:
            self._left = None
        return part

    def _next_change(self) -> SizePart:
        sizes, rows = self._sizes(), []
        for key in list(islice(self._due, self._part_max)):
            del self._due[key]
            if not self._is_worth_telling(key):
                continue
            size = sizes.get(key)
            rows.append((key, size or 0))
            if size is None:
                self._told.pop(key, None)
            else:
                self._told[key] = size
        return SizePart(tuple(rows))

    def _is_worth_telling(self, key: TopicPartition) -> bool:
        size, told = self._sizes().get(key), self._told.get(key)
        if size is None or told is None or told == _UNKNOWN:
            return size != told
        change = abs(size - told)
        return change >= CHANGE_BYTES or 0 < told <= change * CHANGE_SHARE or (told == 0 and change > 0)


__all__ = ["SizePart", "SizeTelling"]
