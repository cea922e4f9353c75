"""The newest events, by what they are about. Pure.

An event is found under its subject, under the subject of its cause where that is an operation, and with all others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Final

from penstock_proto.v1 import operations_pb2 as api

EVENTS_MAX: Final = 50_000
KEPT_MS: Final = 7 * 24 * 3600 * 1000


class EventMemory:
    """At most `events_max` events, kept as bytes: as messages they would take several times the room."""

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        self._max = events_max
        self._events: deque[tuple[int, bytes, tuple[str, ...]]] = deque()
        self._first = 0
        """Number of the oldest one that is kept."""
        self._by_subject: dict[str, deque[int]] = {}
        self.incomplete_before_ms = 0
        """Of what was before it not all is known; ms since 1970."""

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: api.ClusterEvent) -> None:
        """The newest one."""
        names: tuple[str, ...] = (event.subject,)
        if (
            event.cause.operation_id
            and (operation := f"operation {event.cause.operation_id}") != event.subject
        ):
            names = (event.subject, operation)
        number = self._first + len(self._events)
        for name in names:
            self._by_subject.setdefault(name, deque()).append(number)
        self._events.append((event.time_ms, event.SerializeToString(), names))
        if len(self._events) > self._max:
            self._drop_oldest()

    def forget_before(self, time_ms: int) -> None:
        """What is older counts no more."""
        while self._events and self._events[0][0] < time_ms:
            self._drop_oldest()

    def mark_gap(self, time_ms: int) -> None:
        """What was before is not known."""
        self.incomplete_before_ms = max(self.incomplete_before_ms, time_ms)

    def _drop_oldest(self) -> None:
        time_ms, _, names = self._events.popleft()
        self._first += 1
        self.mark_gap(time_ms + 1)
        for name in names:
            numbers = self._by_subject[name]
            numbers.popleft()
            if not numbers:
                del self._by_subject[name]

    def newest(self, subjects: Iterable[str], since_ms: int, limit: int) -> Iterator[api.ClusterEvent]:
        """Events of these subjects (none: of all), newest first, at most `limit`, none before `since_ms`."""
        wanted = list(dict.fromkeys(subjects))
        numbers: Iterable[int]
        if wanted:
            known = (self._by_subject[name] for name in wanted if name in self._by_subject)
            numbers = _unique(merge(*(list(reversed(each)) for each in known), reverse=True))
        else:
            numbers = range(self._first + len(self._events) - 1, self._first - 1, -1)
        found = []
        for number in islice(numbers, limit):
            time_ms, data, _ = self._events[number - self._first]
            # Clocks of controllers differ a little: a few may be out of order.
            if time_ms >= since_ms:
                found.append(data)
        for data in found:
            yield api.ClusterEvent.FromString(data)


def _unique(numbers: Iterable[int]) -> Iterator[int]:
    last = None
    for number in numbers:
        if number != last:
            last = number
            yield number
