"""Which batch is sent when, and which again: no calls, no clock.

Of each partition one batch is on its way and the others wait in line, so that a batch that is sent again never comes
behind a later one: at least once, and in order. What is held is bounded by its bytes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark_penstock.encode import Sealed

IN_FLIGHT_MAX = 128
"""Half of what a gateway takes of one stream before it reads no further."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A batch on its way to a topic."""

    topic: str
    batch: Sealed

    @property
    def line(self) -> tuple[str, int]:
        return self.topic, self.batch.partition


class Window:
    """Batches of one stream that no leader has acknowledged yet."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lines: dict[tuple[str, int], deque[Outgoing]] = {}
        """By partition; the first is the one on its way, or the next."""
        self._ready: OrderedDict[tuple[str, int], None] = OrderedDict()
        """Lines with something to send and nothing on its way."""
        self._sent: dict[int, Outgoing] = {}
        self._next_id = 1

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._bytes_max

    @property
    def is_empty(self) -> bool:
        return not self._lines

    def offer(self, item: Outgoing) -> None:
        """At the end of its partition's line."""
        self._bytes += len(item.batch.records)
        line = self._lines.get(item.line)
        if line is None:
            self._lines[item.line] = deque([item])
            self._ready[item.line] = None
        else:
            line.append(item)

    def take(self) -> Iterable[tuple[int, Outgoing]]:
        """What is to be sent now, each with the number that its answer will have."""
        while self._ready and len(self._sent) < IN_FLIGHT_MAX:
            name, _ = self._ready.popitem(last=False)
            number, self._next_id = self._next_id, self._next_id + 1
            self._sent[number] = self._lines[name][0]
            yield number, self._sent[number]

    def sent(self, number: int) -> Outgoing | None:
        """What was sent under a number and is not answered yet."""
        return self._sent.get(number)

    def acknowledged(self, number: int) -> None:
        self._leave(self._sent.pop(number), ())

    def again(self, number: int) -> None:
        """It was refused for a reason that passes."""
        self._ready[self._sent.pop(number).line] = None

    def in_parts(self, number: int, parts: Iterable[Sealed]) -> None:
        """It was too large; these take its place."""
        item = self._sent.pop(number)
        self._leave(item, [Outgoing(item.topic, part) for part in parts])

    def broken(self) -> None:
        """The stream is gone: what has no answer is sent again, by the next one."""
        for number in list(self._sent):
            self.again(number)

    def _leave(self, item: Outgoing, parts: Iterable[Outgoing]) -> None:
        line = self._lines[item.line]
        line.popleft()
        self._bytes -= len(item.batch.records)
        for part in reversed(list(parts)):
            line.appendleft(part)
            self._bytes += len(part.batch.records)
        if line:
            self._ready[item.line] = None
        else:
            del self._lines[item.line]
