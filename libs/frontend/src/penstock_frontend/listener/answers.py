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
    """A reply whose maker wants to know when it was handed to the client's socket."""

    on_written: Callable[[], None] | None = None
