"""What a handler gives for a request: bytes to send, or a word for the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

Buffer = bytes | bytearray | memoryview


class Signal(Enum):
    """Answers that are no bytes."""

    NO_RESPONSE = "no response"
    CLOSE = "close"


NO_RESPONSE: Final = Signal.NO_RESPONSE
"""The request has no response (Produce with acks=0)."""
CLOSE: Final = Signal.CLOSE
"""Close the connection, after the responses to earlier requests."""

Response = Sequence[Buffer] | bytes | Signal
"""One response without its length prefix, header first, as buffers or whole; or a signal."""


class WatchedReply(asyncio.Future[Response]):
    """A reply whose maker wants to know when it was handed to the client's socket, or gives it piece by piece.

    One that has begun is of a known length. Its result comes with its last piece: nothing more, or CLOSE when the
    rest will not come; the client has then got a part of a frame, and must not get anything behind it.
    """

    on_written: Callable[[], None] | None = None
    on_piece: Callable[[], None] | None = None
    """For the connection: there is another piece."""
    total_bytes = 0
    """Of an answer that has begun, else 0."""
    pieces: list[Buffer]
    """What came of it and was not taken yet."""

    def begin(self, total_bytes: int) -> None:
        """There will be so many bytes."""
        self.total_bytes = total_bytes
        self.pieces = []

    def add(self, piece: Buffer) -> None:
        """The next ones."""
        self.pieces.append(piece)
        if self.on_piece is not None:
            self.on_piece()

    def take(self) -> list[Buffer]:
        """What came since the last call."""
        pieces, self.pieces = self.pieces, []
        return pieces
