"""A request that did not come whole: the rest is received straight into a buffer of its own.

Pure. The buffer grows as bytes come (64 or 256 KiB, then fourfold to 1 MiB, then double), so that memory follows
what was received and not what was announced. Who owns it asks for memory before `grow`.
"""

from __future__ import annotations

from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.produce_outline import ProduceOutline
from penstock_kafka.wire.produce_parts import ProduceParts

FRAME_BYTES_PER_S = 64 * 1024
"""What a client sends at least while a request of its comes in pieces."""

PART_BYTES = 2 * 1024 * 1024
"""A Produce that comes in parts is held up to that size, or as large as one of its partitions is."""

_BEGIN_BYTES = 64 * 1024
_BEGIN_EASY_BYTES = 256 * 1024
_GROW_FAST_BYTES = 1024 * 1024
"""Up to that size buffers grow to the fourfold, then to the double."""


def first_room_bytes(length: int, have: int, *, easy: bool) -> int:
    """Size of the first buffer for a frame of `length` bytes, of which `have` are there.

    `easy`: memory is not scarce, speed counts.
    """
    return min(length, max(_BEGIN_EASY_BYTES if easy else _BEGIN_BYTES, have))


class PartialFrame:
    """The buffer, and how far behind its client is. One that is full and not whole wants `growth_bytes` more."""

    __slots__ = ("_buffer", "_shortfall_bytes", "_swept_bytes", "_view", "filled", "length")
    is_held = True
    """What it holds was asked for of `FrameMemory`."""

    def __init__(self, length: int, head: memoryview | bytes, room: int) -> None:
        """`head` is what came of it; `room` as of `first_room_bytes`."""
        self.length = length
        self.filled = self._swept_bytes = len(head)
        self._shortfall_bytes = 0.0
        self._buffer = bytearray(room)
        self._buffer[: self.filled] = head
        self._view = memoryview(self._buffer)

    def room(self) -> memoryview:
        """Where the next bytes go; `received` is to be told how many."""
        return self._view[self.filled :]

    def received(self, size: int) -> None:
        """So many bytes were written into the room."""
        self.filled += size

    @property
    def is_whole(self) -> bool:
        """All of it came."""
        return self.filled == self.length

    @property
    def is_full(self) -> bool:
        """No byte more can be received."""
        return self.filled == len(self._buffer)

    @property
    def held_bytes(self) -> int:
        """Size of the buffer."""
        return len(self._buffer)

    @property
    def growth_bytes(self) -> int:
        """By how much `grow` makes it larger."""
        filled = self.filled
        return min(self.length, filled * (4 if filled < _GROW_FAST_BYTES else 2)) - filled

    def grow(self) -> None:
        """More room for a full one: copies what is there."""
        buffer = bytearray(self.filled + self.growth_bytes)
        buffer[: self.filled] = self._buffer
        self._buffer = buffer
        self._view = memoryview(buffer)

    def take(self) -> bytearray:
        """The whole frame."""
        return self._buffer

    def sweep(self) -> int:
        """Bytes that came since the last sweep."""
        received, self._swept_bytes = self.filled - self._swept_bytes, self.filled
        return received

    def falls_behind(self, received: int, elapsed_s: float) -> float:
        """By how many seconds of FRAME_BYTES_PER_S its client is behind, after `elapsed_s` in which `received` came."""
        shortfall = self._shortfall_bytes + FRAME_BYTES_PER_S * elapsed_s - received
        self._shortfall_bytes = max(0.0, shortfall)
        return self._shortfall_bytes / FRAME_BYTES_PER_S


class DeniedFrame(PartialFrame):
    """A Produce request whose sender may write nowhere: its records are let go as they come, `take` gives the outline.

    Its bytes go through a buffer that is others' too, so it holds no memory to speak of.
    """

    __slots__ = ("_outline", "_scratch")
    is_held = False

    def __init__(self, length: int, head: memoryview | bytes, scratch: memoryview) -> None:
        """Raises Malformed, as `received` does, when it is no Produce request."""
        super().__init__(length, b"", 0)
        self._scratch = scratch
        self._outline = ProduceOutline(length)
        self._outline.feed(head)
        self.filled = self._swept_bytes = len(head)

    def room(self) -> memoryview:
        """As much of the common buffer as there is still to come."""
        return self._scratch[: self.length - self.filled]

    def received(self, size: int) -> None:
        """So many bytes were written into the room."""
        self.filled += size
        self._outline.feed(self._scratch[:size])

    @property
    def is_full(self) -> bool:
        """Never: nothing is kept."""
        return False

    def take(self) -> bytearray:
        """A request of the same kind, without records."""
        return self._outline.take()


class PartedFrame(PartialFrame):
    """A large Produce request, handled in parts while it comes: one that fills the buffer is taken by `cut`.

    What is held is a part and not the whole.
    """

    __slots__ = ("_base", "_parts")

    def __init__(self, length: int, head: memoryview | bytes, room: int) -> None:
        super().__init__(length, head, room)
        self._base = 0
        """Where in the frame the buffer begins."""
        self._parts = ProduceParts(length)

    @property
    def header(self) -> RequestHeader | None:
        """Of the whole; there once a part was cut."""
        return self._parts.header

    def room(self) -> memoryview:
        return self._view[self.filled - self._base :]

    @property
    def is_full(self) -> bool:
        return self.filled - self._base == len(self._buffer)

    @property
    def wants_cut(self) -> bool:
        """There may be a part."""
        return self.is_whole or (self.is_full and len(self._buffer) >= PART_BYTES)

    @property
    def growth_bytes(self) -> int:
        have, left = len(self._buffer), self.length - self._base
        if have < PART_BYTES:
            left = min(left, PART_BYTES)
        return min(left, have * (4 if have < _GROW_FAST_BYTES else 2)) - have

    def grow(self) -> None:
        self._hold(len(self._buffer) + self.growth_bytes, bytes(self._view[: self.filled - self._base]))

    def cut(self) -> bytearray | None:
        """The next part, the last one if the frame `is_whole`; None when it has to `grow` first. Raises Malformed."""
        have = self.filled - self._base
        part, taken = self._parts.cut(self._view[:have])
        if taken:
            rest = bytes(self._view[taken:have])
            self._base += taken
            room = min(max(PART_BYTES, len(rest)), self.length - self._base)
            self._hold(room, rest)
        return part

    def _hold(self, room: int, data: bytes) -> None:
        if room != len(self._buffer):
            self._buffer = bytearray(room)
            self._view = memoryview(self._buffer)
        self._view[: len(data)] = data

    def take(self) -> bytearray:
        raise AssertionError("it is taken in parts")
