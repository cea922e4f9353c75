"""Which batch is sent when, and which again: no calls, no clock.

Of each partition one batch is on its way and the others wait in line, so that a batch that is sent again never comes
behind a later one: at least once, and in order. Batches with sequences may go several at a time, for a leader takes
none out of its turn: what is refused stops its line until all that is on its way is answered, and goes first then. It
goes alone, for it may be written already, and is known again only as long as nothing more than the last five came
behind it. A leader that has nothing of a producer would take any sequence: the first batch of a line goes alone, too.

What is held is bounded by its bytes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark_penstock.encode import Sealed

IN_FLIGHT_MAX = 128
"""Half of what a gateway takes of one stream before it reads no further."""
IN_LINE_MAX = 5
"""Batches with sequences on their way to one partition: a leader knows so many again (KIP-98)."""

Name = tuple[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Outgoing:
    """A batch on its way to a topic."""

    topic: str
    batch: Sealed

    @property
    def line(self) -> Name:
        return self.topic, self.batch.partition


class _Line:
    """Batches of one partition. Those on their way are the first, unless it is halted."""

    __slots__ = ("in_flight", "is_halted", "items", "repeats")

    def __init__(self, first: Outgoing) -> None:
        self.items = deque([first])
        self.in_flight = 0
        self.is_halted = False
        """Something was refused, and something else is still on its way."""
        self.repeats = set[Outgoing]()
        """Those that were sent before; they are the first, unless it is halted."""


class Window:
    """Batches of one stream that no leader has acknowledged yet."""

    def __init__(self, bytes_max: int, in_line_max: int = 1) -> None:
        """`in_line_max`: 1, or for batches with sequences up to IN_LINE_MAX."""
        self._bytes_max = bytes_max
        self._in_line_max = in_line_max
        self._bytes = 0
        self._lines: dict[Name, _Line] = {}
        self._ready: OrderedDict[Name, None] = OrderedDict()
        """Lines that may have something to send."""
        self._proven: set[Name] = set()
        """Lines of which something was acknowledged."""
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
            self._lines[item.line] = _Line(item)
        else:
            line.items.append(item)
        self._ready[item.line] = None

    def take(self) -> Iterable[tuple[int, Outgoing]]:
        """What is to be sent now, each with the number that its answer will have."""
        while self._ready and len(self._sent) < IN_FLIGHT_MAX:
            name, _ = self._ready.popitem(last=False)
            line = self._lines[name]
            if not self._may_send(name, line):
                continue
            number, self._next_id = self._next_id, self._next_id + 1
            self._sent[number] = line.items[line.in_flight]
            line.in_flight += 1
            self._ready[name] = None  # perhaps another one, when the other lines have had their turn
            yield number, self._sent[number]

    def _may_send(self, name: Name, line: _Line) -> bool:
        most = self._in_line_max if name in self._proven and not line.repeats else 1
        return not line.is_halted and line.in_flight < min(most, len(line.items))

    def sent(self, number: int) -> Outgoing | None:
        """What was sent under a number and is not answered yet."""
        return self._sent.get(number)

    def is_first(self, number: int) -> bool:
        """Whether all before it in its line is acknowledged."""
        item = self._sent[number]
        return self._lines[item.line].items[0] is item

    def acknowledged(self, number: int) -> None:
        item = self._sent[number]
        self._proven.add(item.line)
        self._answered(number, halts=False, parts=())

    def again(self, number: int) -> None:
        """It was refused for a reason that passes."""
        self._answered(number, halts=True, parts=None)

    def in_parts(self, number: int, parts: Iterable[Sealed]) -> None:
        """It was too large; these take its place."""
        item = self._sent[number]
        self._answered(number, halts=True, parts=[Outgoing(item.topic, part) for part in parts])

    def broken(self) -> None:
        """The stream is gone: what has no answer is sent again, by the next one."""
        for number in list(self._sent):
            self.again(number)

    def _answered(self, number: int, halts: bool, parts: Iterable[Outgoing] | None) -> None:
        """`parts` take its place; None: it stays."""
        item = self._sent.pop(number)
        name, line = item.line, self._lines[item.line]
        line.in_flight -= 1
        line.is_halted = (line.is_halted or halts) and line.in_flight > 0
        if parts is None:
            line.repeats.add(item)
        else:
            line.repeats.discard(item)
            at = line.items.index(item)
            del line.items[at]
            self._bytes -= len(item.batch.records)
            for place, part in enumerate(parts, at):
                line.items.insert(place, part)
                self._bytes += len(part.batch.records)
        if line.items:
            self._ready[name] = None
        else:
            del self._lines[name]
            self._ready.pop(name, None)
