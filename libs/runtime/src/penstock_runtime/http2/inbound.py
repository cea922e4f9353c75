"""Messages of one stream out of the bytes of its DATA frames. Pure.

A message that comes in one piece is copied once, out of the connection's buffer. Of one that comes in several the rest
is read straight to where it belongs (`room`), as far as it is long.

What comes before somebody reads stays as it came (`read`): of small messages each would take several times its bytes.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock_runtime.http2.frames import MESSAGE_PREFIX_BYTES

Buffer = bytes | bytearray | memoryview
ROOM_LEAST_BYTES: Final = 16 * 1024
"""A shorter rest is read with what comes after it."""
ANNOUNCED_BYTES: Final = 16 * 1024
"""What a message that is only announced takes at first; then twice as much each time."""
TRUSTED_BYTES: Final = 1024 * 1024
"""The same of a stream that somebody reads."""
_HELD_BYTES: Final = 64
"""What a message takes beside its bytes while it waits."""


class BadMessage(Exception):
    """A message that is not taken; its text says why."""


class TooLarge(BadMessage):
    """It is longer than messages may be."""


class Inbound:
    """What has come of one stream."""

    __slots__ = (
        "_filled",
        "_message",
        "_most_bytes",
        "_prefix",
        "_raw",
        "_size",
        "announced_bytes",
        "messages",
        "waiting_bytes",
    )

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes`: of one message."""
        self._most_bytes = most_bytes
        self._prefix = b""
        self._message: bytearray | None = None
        self._filled = self._size = 0
        self.announced_bytes = ANNOUNCED_BYTES
        self.messages: deque[Buffer] = deque()
        """Whole ones, oldest first."""
        self.waiting_bytes = 0
        """Of whole messages, with what each takes besides; of those that nobody reads, of all that came."""
        self._raw: bytearray | None = bytearray()
        """What nobody reads yet."""

    @property
    def begun_bytes(self) -> int:
        """How long the message is that has begun to come, its prefix included; 0: none has."""
        return 0 if self._message is None else self._size + MESSAGE_PREFIX_BYTES

    @property
    def is_between(self) -> bool:
        """Whether no message has begun."""
        return self._message is None and not self._prefix and not self._raw

    @property
    def is_unread(self) -> bool:
        """Whether something has come that nobody reads yet."""
        return bool(self._raw)

    def read(self) -> None:
        """From now on somebody does. Raises BadMessage."""
        raw, self._raw = self._raw, None
        if raw is not None:
            self.waiting_bytes = 0
            if raw:
                self.feed(memoryview(raw))

    def take(self) -> Buffer:
        """The oldest whole message."""
        message = self.messages.popleft()
        self.waiting_bytes -= len(message) + _HELD_BYTES
        return message

    def room(self, at_most: int) -> memoryview | None:
        """Where the next bytes belong, so many at most; None when they had better come by another buffer."""
        message = self._message
        if message is None:
            return None
        self._grow(message)
        left = min(len(message) - self._filled, at_most)
        if left < ROOM_LEAST_BYTES:
            return None
        return memoryview(message)[self._filled : self._filled + left]

    def _grow(self, message: bytearray) -> None:
        if self._filled == len(message):
            message.extend(bytes(min(self._size - self._filled, self._filled)))

    def filled(self, size: int) -> None:
        """So many bytes have been read to `room`."""
        message = self._message
        assert message is not None
        self._filled += size
        if self._filled == self._size:
            self._message = None
            self._whole(message)

    def feed(self, data: memoryview) -> None:
        """Bytes that have come. Raises BadMessage."""
        if self._raw is not None:
            self._raw += data
            self.waiting_bytes += len(data)
            return
        while data:
            if self._message is not None:
                self._grow(self._message)
                size = min(len(self._message) - self._filled, len(data))
                self._message[self._filled : self._filled + size] = data[:size]
                self.filled(size)
                data = data[size:]
                continue
            if self._prefix or len(data) < MESSAGE_PREFIX_BYTES:
                missing = MESSAGE_PREFIX_BYTES - len(self._prefix)
                self._prefix += bytes(data[:missing])
                data = data[missing:]
                if len(self._prefix) < MESSAGE_PREFIX_BYTES:
                    return
                prefix, self._prefix = self._prefix, b""
            else:
                prefix = bytes(data[:MESSAGE_PREFIX_BYTES])
                data = data[MESSAGE_PREFIX_BYTES:]
            size = self._size_of(prefix)
            if len(data) >= size:
                self._whole(bytes(data[:size]))
                data = data[size:]
            else:
                self._size, self._filled = size, len(data)
                self._message = bytearray(min(size, max(self.announced_bytes, 2 * len(data))))
                self._message[: len(data)] = data
                return

    def _size_of(self, prefix: bytes) -> int:
        if prefix[0]:
            raise BadMessage("the message is compressed, and no encoding was agreed on")
        size = int.from_bytes(prefix[1:], "big")
        if size > self._most_bytes:
            raise TooLarge(f"the message has {size} bytes, {self._most_bytes} are the most")
        return size

    def _whole(self, message: Buffer) -> None:
        self.messages.append(message)
        self.waiting_bytes += len(message) + _HELD_BYTES
