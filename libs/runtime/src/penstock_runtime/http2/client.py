"""A gRPC channel on this package's connections, with as much of the face of `grpc.aio.Channel` as callers see.

One connection, made when it is first wanted and again when it is lost, with a backoff. While calls are open the other
side is pinged; one that does not answer in time is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from penstock_runtime.http2 import frames
from penstock_runtime.http2.connection import Connection, Headers, Stream
from penstock_runtime.http2.inbound import Buffer
from penstock_runtime.http2.status import CONTENT_TYPE, status_of, status_of_http, timeout_text
from penstock_runtime.http2.wire import Wire

Metadata = Sequence[tuple[str, str]]
WINDOW_BYTES: Final = 4 * 1024 * 1024
State = grpc.ChannelConnectivity


@dataclass(frozen=True)
class ChannelLimits:
    """When a channel gives up, and how often it tries. In seconds."""

    connect_s: float = 1.0
    backoff_first_s: float = 0.05
    backoff_most_s: float = 0.5
    ping_every_s: float = 2.0
    ping_answer_s: float = 2.0


class Call:
    """One call (grpc.aio.StreamStreamCall and its like)."""

    def __init__(
        self,
        channel: Channel,
        method: str,
        serializer: Callable[[Any], bytes] | None,
        deserializer: Callable[[bytes], Any] | None,
        timeout_s: float | None,
        metadata: Metadata,
    ) -> None:
        self._channel = channel
        self._method = method
        self._serializer = serializer
        self._deserializer = deserializer
        self._metadata = tuple(metadata)
        self._loop = asyncio.get_running_loop()
        self._stream: Stream | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._sent: asyncio.Future[None] | None = None
        self._http_status = ""
        self._headers: dict[str, str] = {}
        self._status: tuple[grpc.StatusCode, str] | None = None
        self._over = self._loop.create_future()
        self._is_cancelled = False
        self._until_s = None if timeout_s is None else self._loop.time() + timeout_s
        self._deadline = None if timeout_s is None else self._loop.call_later(timeout_s, self._too_late)
        self._opening = self._loop.create_task(self._open())

    async def _open(self) -> None:
        try:
            connection = await self._channel.connected()
        except OSError as error:
            self._end(grpc.StatusCode.UNAVAILABLE, str(error))
            return
        if self.done():
            return  # while it waited
        headers = [
            (":method", "POST"),
            (":scheme", self._channel.scheme),
            (":path", self._method),
            (":authority", self._channel.authority),
            ("te", "trailers"),
            ("content-type", CONTENT_TYPE),
        ]
        if self._until_s is not None:
            headers.append(("grpc-timeout", timeout_text(max(self._until_s - self._loop.time(), 0.0))))
        stream = self._stream = connection.open([*headers, *self._metadata])
        stream.owner = self
        stream.widen(WINDOW_BYTES)
        self._channel.call_begins(self)

    # What comes

    def answered(self, headers: Headers) -> None:
        """Headers of the answer, trailers too."""
        named = dict(headers)
        self._http_status = named.get(":status", self._http_status)
        self._headers |= named

    def woken(self) -> None:
        """Something has come, or the stream is over."""
        stream = self._stream
        if stream is not None and (stream.is_over or stream.remote_ended) and self._status is None:
            found = status_of(self._headers) if stream.remote_ended else None
            if found is None and stream.error is not None:
                code = (
                    grpc.StatusCode.CANCELLED
                    if stream.error[0] == frames.CANCEL
                    else grpc.StatusCode.UNAVAILABLE
                )
                found = code, stream.error[1]
            if found is None:
                found = (
                    status_of_http(self._http_status),
                    f"an answer without a status (HTTP {self._http_status})",
                )
            self._end(*found)
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def room(self) -> None:
        """All that was written has gone."""
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)

    def _end(self, code: grpc.StatusCode, details: str) -> None:
        if self._status is not None:
            return
        self._status = code, details
        if self._deadline is not None:
            self._deadline.cancel()
        stream = self._stream
        if stream is not None and not stream.is_over:
            # With OK too: nobody hears any more what this side would still say.
            stream.connection.reset(
                stream, frames.CANCEL if code is not grpc.StatusCode.OK else frames.NO_ERROR
            )
        self._channel.call_ends(self)
        if not self._over.done():
            self._over.set_result(None)
        self.room()
        self.woken()

    def _too_late(self) -> None:
        self._end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _error(self) -> grpc.aio.AioRpcError:
        assert self._status is not None
        code, details = self._status
        none = grpc.aio.Metadata()
        return grpc.aio.AioRpcError(code, none, none, details=details, debug_error_string=None)

    # Caller

    async def read(self) -> Any:
        """The next message, or grpc.aio.EOF. Raises AioRpcError when the call has failed."""
        while True:
            message = None if self._stream is None else self._stream.take()
            if message is not None:
                if self._deserializer is None:
                    return message
                return self._deserializer(message if isinstance(message, bytes) else bytes(message))
            if self.done():
                self._raise_if_failed()
                return grpc.aio.EOF  # type: ignore[attr-defined]
            self._waiting = self._loop.create_future()
            await self._waiting

    async def write(self, message: Any) -> None:
        """Send a message; returns when it is on its way. Raises AioRpcError when the call has failed, InvalidStateError
        when it is over."""
        if self._stream is None and not self.done():
            await asyncio.shield(self._opening)
        stream = self._stream
        if stream is None or self.done():
            self._raise_if_failed()
            raise asyncio.InvalidStateError("RPC already finished.")
        data: Buffer = message if self._serializer is None else self._serializer(message)
        if not stream.connection.send(stream, data):
            self._sent = self._loop.create_future()
            await self._sent
            self._raise_if_failed()
        room = self._channel.room
        if room is not None:
            await asyncio.shield(room)

    def _raise_if_failed(self) -> None:
        if self._is_cancelled:
            raise asyncio.CancelledError
        if self._status is not None and self._status[0] is not grpc.StatusCode.OK:
            raise self._error()

    async def done_writing(self) -> None:
        """Say that no more comes."""
        if self._stream is None and self._status is None:
            await asyncio.shield(self._opening)
        if self._stream is not None:
            self._stream.connection.end(self._stream)

    def cancel(self) -> bool:
        """End the call, if it goes on."""
        if self._status is not None:
            return False
        self._is_cancelled = True
        self._end(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
        self._opening.cancel()
        return True

    def done(self) -> bool:
        """Whether it is over."""
        return self._status is not None

    async def code(self) -> grpc.StatusCode:
        """How it ended."""
        await asyncio.shield(self._over)
        assert self._status is not None
        return self._status[0]

    async def details(self) -> str:
        """With what words."""
        await asyncio.shield(self._over)
        assert self._status is not None
        return self._status[1]


class Channel:
    """To one address."""

    def __init__(
        self,
        address: str,
        *,
        message_bytes_most: int,
        tls: Callable[[], ssl.SSLContext] | None = None,
        server_name: str = "",
        limits: ChannelLimits | None = None,
    ) -> None:
        """`server_name`: whom the other side's certificate has to be of."""
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self.authority = server_name or address
        self.scheme = "http" if tls is None else "https"
        self._tls = tls
        self._server_name = server_name
        self._limits = limits or ChannelLimits()
        self._message_bytes_most = message_bytes_most
        self._loop = asyncio.get_running_loop()
        self._state = State.IDLE
        self._changed = self._loop.create_future()
        self._wire: Wire | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._backoff_s = 0.0
        self._calls: dict[Call, None] = {}
        self._pinging: asyncio.Task[None] | None = None

    # grpc.aio.Channel

    def stream_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None
    ) -> Callable[..., Call]:
        """Make calls of that method."""

        def begin(timeout: float | None = None, metadata: Metadata = ()) -> Call:
            return Call(self, method, request_serializer, response_deserializer, timeout, metadata)

        return begin

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Whether it is connected."""
        if (
            try_to_connect
            and self._state in (State.IDLE, State.TRANSIENT_FAILURE)
            and self._connecting is None
        ):
            self._connect()
        return self._state

    async def wait_for_state_change(self, last: grpc.ChannelConnectivity) -> None:
        """Until it is in another state."""
        while self._state is last:
            await asyncio.shield(self._changed)

    async def close(self, grace: float | None = None) -> None:
        """End it and its calls."""
        self._set(State.SHUTDOWN)
        for call in list(self._calls):
            call.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._pinging is not None:
            self._pinging.cancel()
        if self._wire is not None:
            self._wire.close("its channel was closed")

    # Calls

    @property
    def room(self) -> asyncio.Future[None] | None:
        """Done when more may be written; None: now."""
        return None if self._wire is None else self._wire.room

    async def connected(self) -> Connection:
        """The connection; made where there is none. Raises OSError when that failed."""
        if self._state is State.SHUTDOWN:
            raise ConnectionError("Channel is closed.")
        if self._wire is not None and not self._wire.connection.is_gone:
            return self._wire.connection
        return await asyncio.shield(self._connect())

    def call_begins(self, call: Call) -> None:
        """Look after it."""
        self._calls[call] = None
        if self._pinging is None:
            self._pinging = self._loop.create_task(self._ping(), name=f"pings to {self.authority}")

    def call_ends(self, call: Call) -> None:
        """It is over."""
        self._calls.pop(call, None)

    def _set(self, state: grpc.ChannelConnectivity) -> None:
        if state is self._state or self._state is State.SHUTDOWN:
            return
        self._state = state
        changed, self._changed = self._changed, self._loop.create_future()
        changed.set_result(None)

    def _connect(self) -> asyncio.Task[Connection]:
        if self._connecting is None:
            self._connecting = self._loop.create_task(self._dial(), name=f"connecting to {self.authority}")
            self._connecting.add_done_callback(self._dialled)
        return self._connecting

    def _dialled(self, task: asyncio.Task[Connection]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # whoever waited has heard it

    async def _dial(self) -> Connection:
        limits = self._limits
        if self._backoff_s:
            await asyncio.sleep(self._backoff_s)
        self._set(State.CONNECTING)
        try:
            async with asyncio.timeout(limits.connect_s):
                _, wire = await self._loop.create_connection(
                    lambda: Wire(self._begun, self._lost),
                    self._host,
                    self._port,
                    ssl=None if self._tls is None else self._tls(),
                    server_hostname=self._server_name or None,
                )
        except (OSError, TimeoutError) as error:
            self._backoff_s = min(max(limits.backoff_first_s, 2 * self._backoff_s), limits.backoff_most_s)
            self._set(State.TRANSIENT_FAILURE)
            raise ConnectionError(f"{self._host}:{self._port}: {error or 'no connection in time'}") from error
        self._backoff_s = 0.0
        self._wire = wire
        self._set(State.READY)
        return wire.connection

    def _begun(self, wire: Wire, transport: asyncio.Transport) -> Connection:
        return Connection(self, wire.out, is_client=True, message_bytes_most=self._message_bytes_most)

    def _lost(self, wire: Wire, reason: str) -> None:
        if wire is self._wire:
            self._wire = None
            self._set(State.IDLE)

    async def _ping(self) -> None:
        limits = self._limits
        while True:
            await asyncio.sleep(limits.ping_every_s)
            wire = self._wire
            if wire is None or not self._calls:
                self._pinging = None
                return
            answered = self._loop.create_future()
            wire.connection.ping_answered = lambda f=answered: None if f.done() else f.set_result(None)  # type: ignore[misc]
            before = wire.received_bytes
            wire.connection.ping()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limits.ping_answer_s):
                    await answered
            # Whatever else has come says as much.
            if not answered.done() and wire.received_bytes == before:
                wire.abort("keepalive watchdog timeout")

    # See `Events`

    def opened(self, stream: Stream, headers: Headers) -> None:
        """Servers begin no streams."""

    def answered(self, stream: Stream, headers: Headers) -> None:
        if isinstance(stream.owner, Call):
            stream.owner.answered(headers)

    def woken(self, stream: Stream) -> None:
        if isinstance(stream.owner, Call):
            stream.owner.woken()

    def sent(self, stream: Stream) -> None:
        if isinstance(stream.owner, Call):
            stream.owner.room()

    def going_away(self) -> None:
        """The next call gets another connection."""


__all__ = ["Call", "Channel", "ChannelLimits"]
