"""A call on its way, as the connection sees it; it goes on until the status has come."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

import grpc
import grpc.aio

from penstock_runtime.http2 import frames
from penstock_runtime.http2.connection import Connection, Headers, Stream
from penstock_runtime.http2.inbound import BadMessage, Buffer, TooLarge
from penstock_runtime.http2.status import status_of, status_of_http, timeout_text

Status = tuple[grpc.StatusCode, str]

_CODES: Final = {
    frames.CANCEL: grpc.StatusCode.CANCELLED,
    frames.ENHANCE_YOUR_CALM: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""What a reset comes to; every other one, and the end of the connection, is UNAVAILABLE."""
_CANCELLED: Final = "Locally cancelled by application!"
_DROPPED: Final = "Cancelled upon garbage collection!"
_OF_PROTOCOL: Final = frozenset({"content-type", "grpc-accept-encoding", "grpc-message", "grpc-status"})


class Line(Protocol):
    """A channel's connection, as calls see it."""

    connection: Connection

    @property
    def room(self) -> asyncio.Future[None] | None:
        """Done when more may be written; None: now."""

    def hold(self) -> None:
        """Send nothing until `release`, and all of it at once then."""

    def release(self) -> None:
        """See `hold`."""


class Carrier(Protocol):
    """A channel, as calls see it."""

    loop: asyncio.AbstractEventLoop
    authority: str
    scheme: str
    message_bytes_most: int
    window_bytes: int

    def carry(self, exchange: Exchange) -> None:
        """Open it now or later, or end it. Raises UsageError when the channel is closed."""

    def let_go(self, exchange: Exchange) -> None:
        """It is over."""


class Exchange:
    """A call on its way (see `connection.Owner`)."""

    __slots__ = (
        "_channel",
        "_deadline",
        "_head",
        "_http_status",
        "_news",
        "_over",
        "_request",
        "_until_s",
        "_wants_one",
        "_writable",
        "ends",
        "first",
        "is_cancelled",
        "is_deaf",
        "last",
        "line",
        "loop",
        "sending",
        "status",
        "stream",
        "waits",
    )

    def __init__(
        self,
        channel: Carrier,
        head: Headers,
        request: Buffer | None,
        timeout_s: float | None,
        *,
        wants_one: bool,
        waits: bool,
    ) -> None:
        """`request`: the only one; None: they are written. `waits`: also while nobody can be reached."""
        self._channel = channel
        self.loop = loop = channel.loop
        self._head = head
        self._request = request
        self._wants_one = wants_one
        self.waits = waits
        self.stream: Stream | None = None
        self.line: Line | None = None
        """That of the stream."""
        self.status: Status | None = None
        self.first: Headers | None = None
        """Headers before the responses."""
        self.last: Headers = ()
        """Headers after them."""
        self.ends = request is not None
        """This side says no more than it has."""
        self.is_cancelled = self.is_deaf = False
        self.sending: asyncio.Task[None] | None = None
        self._http_status = ""
        self._news: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._over: asyncio.Future[None] | None = None
        self._until_s = 0.0
        self._deadline: asyncio.TimerHandle | None = None
        if timeout_s is not None:
            self._until_s = loop.time() + timeout_s
            self._deadline = loop.call_at(self._until_s, self._too_late)

    def open(self, line: Line) -> None:
        """Begin the stream; a single request goes with its headers."""
        head = self._head
        if self._deadline is not None:
            head = [*head, ("grpc-timeout", timeout_text(max(self._until_s - self.loop.time(), 0.0)))]
        connection = line.connection
        self.line = line
        line.hold()
        try:
            stream = self.stream = connection.open(head)
            stream.owner = self
            stream.widen(self._channel.window_bytes)
            request, self._request = self._request, None
            if request is not None:
                connection.send(stream, request)
            if self.ends:
                self.half_close()
        finally:
            line.release()
        _wake(self._writable)

    # -- what comes ---------------------------------------------------------------

    def answered(self, headers: Headers) -> None:
        """Headers before the responses, or after them."""
        named = dict(headers)
        self._http_status = named.get(":status", self._http_status)
        if self.first is None and "grpc-status" not in named:
            self.first = headers
            _wake(self._news)
        else:
            self.last = headers

    def woken(self) -> None:
        """A response is there, the other side has ended its half, or the stream is over."""
        stream = self.stream
        assert stream is not None
        if self.status is None and (stream.is_over or stream.remote_ended):
            self.end(*self._found(stream))
        if stream.is_over and stream.owner is not None:
            stream.owner = None
            self._channel.let_go(self)
        _wake(self._news)

    def _found(self, stream: Stream) -> Status:
        found = status_of(dict(self.last)) if stream.remote_ended else None
        if found is not None:
            return found
        if stream.error is not None:
            code = _CODES.get(stream.error[0], grpc.StatusCode.UNAVAILABLE)
            return code, f"{self._channel.authority}: {stream.error[1]}"
        return (
            status_of_http(self._http_status),
            f"{self._channel.authority}: an answer without a status (HTTP {self._http_status})",
        )

    def room(self) -> None:
        """All that was written has gone."""
        if self.ends:
            self.half_close()
        _wake(self._writable)

    def broken(self, error: BadMessage) -> None:
        """What comes is no message, or too large a one."""
        is_large = isinstance(error, TooLarge)
        code = grpc.StatusCode.RESOURCE_EXHAUSTED if is_large else grpc.StatusCode.INTERNAL
        self.end(code, f"{self._channel.authority}: {error}")

    # -- how it ends --------------------------------------------------------------

    def end(self, code: grpc.StatusCode, details: str) -> None:
        """It has ended so, if it has not before."""
        if self.status is not None:
            return
        stream = self.stream
        has_any = stream is not None and bool(stream.inbound.messages)
        if code is grpc.StatusCode.OK and self._wants_one and not has_any:
            code, details = (
                grpc.StatusCode.INTERNAL,
                f"{self._channel.authority}: well ended without a response",
            )
        self.status = code, details
        if self._deadline is not None:
            self._deadline.cancel()
        if self.sending is not None and self.sending is not asyncio.current_task(self.loop):
            self.sending.cancel()
        if stream is None:
            self._channel.let_go(self)
        elif not stream.is_over and not (stream.self_ended and stream.remote_ended):
            # With OK too: nobody hears any more what this side would still say.
            is_well = code is grpc.StatusCode.OK
            stream.connection.reset(stream, frames.NO_ERROR if is_well else frames.CANCEL)
        for waiting in (self._writable, self._news, self._over):
            _wake(waiting)

    def cancel(self, details: str = _CANCELLED) -> bool:
        """End it from this side, if it goes on."""
        if self.status is not None:
            return False
        self.is_cancelled = self.is_deaf = True
        self.end(grpc.StatusCode.CANCELLED, details)
        return True

    def drop(self) -> None:
        """Nobody holds it any more."""
        self.cancel(_DROPPED)

    def _too_late(self) -> None:
        self.is_deaf = True
        self.end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def raise_if_failed(self) -> None:
        """Raises AioRpcError or CancelledError when it is over, and not well."""
        if self.is_cancelled:
            raise asyncio.CancelledError
        if self.status is not None and self.status[0] is not grpc.StatusCode.OK:
            first, last = metadata_of(self.first or ()), metadata_of(self.last)
            raise grpc.aio.AioRpcError(self.status[0], first, last, self.status[1], None)

    # -- who waits ----------------------------------------------------------------

    async def until_news(self) -> None:
        """Until something has come, or the call is over."""
        if self._news is None or self._news.done():
            self._news = self.loop.create_future()
            await self._news
        else:
            await asyncio.shield(self._news)

    async def until_writable(self) -> None:
        """Until the stream has begun, all that was written has gone, or the call is over."""
        if self._writable is None or self._writable.done():
            self._writable = self.loop.create_future()
            await self._writable
        else:
            await asyncio.shield(self._writable)

    async def until_over(self) -> Status:
        """How it ended."""
        if self.status is None:
            if self._over is None:
                self._over = self.loop.create_future()
            await asyncio.shield(self._over)
        assert self.status is not None
        return self.status

    # -- what is said -------------------------------------------------------------

    def take(self) -> Buffer | None:
        """The next response, if it is there."""
        return None if self.stream is None or self.is_deaf else self.stream.take()

    def is_sendable(self, message: Buffer) -> bool:
        """Whether it is not too large; else the call is over."""
        most = self._channel.message_bytes_most
        if len(message) <= most:
            return True
        self.end(
            grpc.StatusCode.RESOURCE_EXHAUSTED, f"the message has {len(message)} bytes, {most} are the most"
        )
        return False

    def half_close(self) -> None:
        """No more comes after what is written."""
        self.ends = True
        if self.stream is not None and not self.stream.unsent:
            self.stream.connection.end(self.stream)


def metadata_of(headers: Headers) -> grpc.aio.Metadata:
    """Of headers what is not gRPC's own."""
    pairs = [item for item in headers if item[0][:1] != ":" and item[0] not in _OF_PROTOCOL]
    return grpc.aio.Metadata(*pairs)


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


__all__ = ["Carrier", "Exchange", "Line", "Status", "metadata_of"]
