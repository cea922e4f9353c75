"""A gRPC channel on this package's connections (grpc.aio.Channel).

One connection, made when it is first wanted and again when it is lost. It counts as made when the other side has said
its settings: so a process that is stopped, or that takes a certificate and refuses it then, is not there. A failed
attempt makes the channel wait a little, and longer each time: calls that come meanwhile fail at once with what the
attempt came to, and have it tried again when the wait is over; nobody's wish, and nothing is tried.

Calls beyond what the server lets be open wait in a line. A server that goes away finishes what it has begun, on the
connection that was; the next call makes another one. While calls are open the other side is pinged; one that sends
nothing for all that is gone.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

import grpc
import grpc.aio

from penstock_runtime.http2.calls import (
    Deserializer,
    ManyRequests,
    OneRequest,
    OneResponse,
    Responses,
    Serializer,
)
from penstock_runtime.http2.connection import Connection, Headers, Stream
from penstock_runtime.http2.exchange import Exchange
from penstock_runtime.http2.frames import WINDOW_MOST
from penstock_runtime.http2.wire import Wire

State = grpc.ChannelConnectivity
SOCKET_CLOSED: Final = "Socket closed"
"""Of a connection that ended before the other side had said anything; as grpcio has it."""
CLOSED: Final = "Channel is closed."
_SILENT: Final = "keepalive watchdog timeout"
_SECOND_LOOK_S: Final = 0.1
_CLOSE_S: Final = 0.5
_NUMBER_MOST: Final = WINDOW_MOST - 1_000
"""Streams of a connection have numbers below 2**31."""


@dataclass(frozen=True)
class ChannelLimits:
    """When a channel gives up, how often it tries, and how much may be under way to it."""

    connect_s: float = 1.0
    """Of one attempt at one address."""
    backoff_first_s: float = 0.05
    backoff_most_s: float = 0.5
    ping_every_s: float = 2.0
    ping_answer_s: float = 2.0
    idle_s: float | None = None
    """A connection without a call for so long ends; None: never."""
    window_bytes: int = 4 * 1024 * 1024
    """Of a call."""


class Line(Wire):
    """A connection of a channel."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(self._make, self._tell)
        self._channel = channel
        self._loop = channel.loop
        self.greeted: asyncio.Future[None] = channel.loop.create_future()
        """Done when the other side has said its settings; failed when the connection is lost before."""
        self.gone: asyncio.Future[None] = channel.loop.create_future()
        self._pinging: asyncio.TimerHandle | None = None
        self._judging: asyncio.TimerHandle | None = None
        self._idling: asyncio.TimerHandle | None = None
        self._idle_at_s = 0.0
        self._loss: BaseException | None = None

    def _make(self, wire: Wire, transport: asyncio.Transport) -> Connection:
        channel = self._channel
        return Connection(
            self,
            self.out,
            is_client=True,
            message_bytes_most=channel.message_bytes_most,
            first_window_bytes=channel.window_bytes,
        )

    def _tell(self, wire: Wire, reason: str) -> None:
        for timer in (self._pinging, self._judging, self._idling):
            if timer is not None:
                timer.cancel()
        if not self.greeted.done():
            lost = SOCKET_CLOSED if self._loss is None else _words(self._loss)
            self.greeted.set_exception(ConnectionError(self._reason or lost))
            self.greeted.exception()  # the attempt may have been given up
        self.gone.set_result(None)
        self._channel.line_lost(self)

    # Calls

    @property
    def has_room_for_one(self) -> bool:
        """Whether a call may be begun."""
        connection = self.connection
        return not connection.is_gone and len(connection.streams) < connection.peer_streams_max

    def buffer_updated(self, nbytes: int) -> None:
        super().buffer_updated(nbytes)
        if not self.greeted.done() and self.connection.has_begun:
            self.greeted.set_result(None)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._loss = exc
        super().connection_lost(exc)

    # See `connection.Events`

    def opened(self, stream: Stream, headers: Headers) -> None:
        """Servers begin no streams."""

    def going_away(self) -> None:
        """The next call gets another connection."""
        self._channel.leave(self)

    # Whether the other side is there

    def watch(self) -> None:
        """A call has begun."""
        if self._pinging is None:
            self.connection.rest()
            self._pinging = self._loop.call_later(self._channel.limits.ping_every_s, self._ping)

    def _ping(self) -> None:
        self._pinging = None
        self.connection.rest()
        if not self.connection.streams:
            return
        limits = self._channel.limits
        self.connection.ping()
        self._judging = self._loop.call_later(limits.ping_answer_s, self._judge, self.received_bytes)
        self._pinging = self._loop.call_later(limits.ping_every_s, self._ping)

    def _judge(self, before_bytes: int) -> None:
        # Whatever has come says as much as the answer. A process that slept had not read yet what lies there.
        if self.received_bytes == before_bytes:
            self._judging = self._loop.call_later(_SECOND_LOOK_S, self._condemn, before_bytes)

    def _condemn(self, before_bytes: int) -> None:
        if self.received_bytes == before_bytes:
            self.abort(_SILENT)

    # Whether anybody wants it

    def rest(self) -> None:
        """No call is open."""
        idle_s = self._channel.limits.idle_s
        if idle_s is not None:
            self._idle_at_s = self._loop.time() + idle_s
            if self._idling is None:
                self._idling = self._loop.call_at(self._idle_at_s, self._end_idle)

    def _end_idle(self) -> None:
        self._idling = None
        if self.connection.streams:
            return
        if self._loop.time() < self._idle_at_s:
            self._idling = self._loop.call_at(self._idle_at_s, self._end_idle)
        else:
            self._channel.leave(self)


class Channel(grpc.aio.Channel):
    """To one address."""

    def __init__(
        self,
        address: str,
        *,
        message_bytes_most: int,
        tls: Callable[[], ssl.SSLContext] | None = None,
        check: Callable[[ssl.SSLObject], str] | None = None,
        limits: ChannelLimits | None = None,
    ) -> None:
        """`check` says why the other side is not whom it should be; "" when it is."""
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self.authority = address
        self.scheme = "http" if tls is None else "https"
        self._tls = tls
        self._check = check
        self.limits = limits or ChannelLimits()
        self.message_bytes_most = message_bytes_most
        self.window_bytes = self.limits.window_bytes
        self.loop = asyncio.get_running_loop()
        self._state = State.IDLE
        self._changed: asyncio.Future[None] | None = None
        self._line: Line | None = None
        """Where calls begin."""
        self._lines: set[Line] = set()
        """Those too that end when their calls do."""
        self._waiting: dict[Exchange, None] = {}
        """Calls that have not begun, in their order."""
        self._dialling: asyncio.Task[None] | None = None
        self._backoff_s = 0.0
        self._retry: asyncio.TimerHandle | None = None
        self._is_wanted = False
        """During the backoff: somebody asked for a connection."""
        self._fault = ""

    # grpc.aio.Channel

    def unary_unary(  # type: ignore[override]
        self,
        method: str,
        request_serializer: Serializer | None = None,
        response_deserializer: Deserializer | None = None,
        _registered_method: bool | None = None,
    ) -> OneRequest[OneResponse]:
        """Make calls of that method."""
        return OneRequest(OneResponse, self, method, request_serializer, response_deserializer)

    def unary_stream(  # type: ignore[override]
        self,
        method: str,
        request_serializer: Serializer | None = None,
        response_deserializer: Deserializer | None = None,
        _registered_method: bool | None = None,
    ) -> OneRequest[Responses]:
        """Make calls of that method."""
        return OneRequest(Responses, self, method, request_serializer, response_deserializer)

    def stream_unary(  # type: ignore[override]
        self,
        method: str,
        request_serializer: Serializer | None = None,
        response_deserializer: Deserializer | None = None,
        _registered_method: bool | None = None,
    ) -> ManyRequests[OneResponse]:
        """Make calls of that method."""
        return ManyRequests(OneResponse, self, method, request_serializer, response_deserializer)

    def stream_stream(  # type: ignore[override]
        self,
        method: str,
        request_serializer: Serializer | None = None,
        response_deserializer: Deserializer | None = None,
        _registered_method: bool | None = None,
    ) -> ManyRequests[Responses]:
        """Make calls of that method."""
        return ManyRequests(Responses, self, method, request_serializer, response_deserializer)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Whether it is connected."""
        if try_to_connect:
            self._want()
        return self._state

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Until it is in another state. Raises UsageError when it is closed, then too."""
        while self._state is last_observed_state and self._state is not State.SHUTDOWN:
            if self._changed is None:
                self._changed = self.loop.create_future()
            await asyncio.shield(self._changed)
        if self._state is State.SHUTDOWN:
            raise grpc.aio.UsageError(CLOSED)

    async def channel_ready(self) -> None:
        """Until it is connected."""
        while (state := self.get_state(try_to_connect=True)) is not State.READY:
            await self.wait_for_state_change(state)

    async def close(self, grace: float | None = None) -> None:
        """End it, and its calls at once: nobody here gives them time."""
        del grace
        self._set(State.SHUTDOWN)
        lines = list(self._lines)
        for exchange in [*self._waiting, *(e for line in lines for e in _exchanges(line))]:
            exchange.cancel()
        if self._retry is not None:
            self._retry.cancel()
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait([self._dialling])
        for line in lines:
            line.close("its channel was closed")
        if lines:
            await asyncio.wait([line.gone for line in lines], timeout=_CLOSE_S)
        for line in lines:
            if not line.gone.done():
                line.abort("its channel was closed")

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Calls

    def carry(self, exchange: Exchange) -> None:
        """Open it now or later, or end it. Raises UsageError when the channel is closed."""
        if self._state is State.SHUTDOWN:
            exchange.cancel()
            raise grpc.aio.UsageError(CLOSED)
        line = self._line
        if line is not None and not self._waiting and line.has_room_for_one:
            self._open(exchange, line)
            return
        if self._state is State.TRANSIENT_FAILURE and not exchange.waits:
            self._want()
            exchange.end(grpc.StatusCode.UNAVAILABLE, self._fault)
            return
        self._waiting[exchange] = None
        if line is not None and line.connection.is_gone:
            self.leave(line)
        self._want()

    def let_go(self, exchange: Exchange) -> None:
        """It is over."""
        self._waiting.pop(exchange, None)
        line = exchange.line
        if not isinstance(line, Line):
            return
        if not line.connection.streams:
            if line is self._line:
                line.rest()
            else:
                line.close("nothing is left of it")
        if self._waiting:
            self._pump()

    def _open(self, exchange: Exchange, line: Line) -> None:
        exchange.open(line)
        line.watch()
        stream = exchange.stream
        if stream is not None and stream.number > _NUMBER_MOST:
            self.leave(line)

    def _pump(self) -> None:
        while self._waiting and (line := self._line) is not None and line.has_room_for_one:
            exchange = next(iter(self._waiting))
            del self._waiting[exchange]
            self._open(exchange, line)

    # Connections

    def leave(self, line: Line) -> None:
        """Begin no calls there any more."""
        if not line.connection.streams:
            line.close("nothing is left of it")
        if line is self._line:
            self._no_line()

    def line_lost(self, line: Line) -> None:
        """It is gone, and its calls have been told."""
        self._lines.discard(line)
        if line is self._line:
            self._no_line()

    def _no_line(self) -> None:
        self._line = None
        self._set(State.IDLE)
        if self._waiting:
            self._want()

    def _set(self, state: grpc.ChannelConnectivity) -> None:
        if state is self._state or self._state is State.SHUTDOWN:
            return
        self._state = state
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)

    def _want(self) -> None:
        if self._state is State.IDLE:
            self._set(State.CONNECTING)
            self._dialling = self.loop.create_task(self._dial(), name=f"connecting to {self.authority}")
        elif self._state is State.TRANSIENT_FAILURE:
            self._is_wanted = True

    async def _dial(self) -> None:
        try:
            line = await self._connected()
        except OSError as error:
            self._failed(f"{self.authority}: {error}")
            return
        finally:
            self._dialling = None
        self._backoff_s = 0.0
        self._line = line
        self._set(State.READY)
        line.rest()
        self._pump()
        if line.connection.is_gone:
            self.leave(line)

    def _failed(self, fault: str) -> None:
        limits = self.limits
        self._fault = fault
        self._backoff_s = min(max(limits.backoff_first_s, 2 * self._backoff_s), limits.backoff_most_s)
        self._retry = self.loop.call_later(self._backoff_s, self._try_again)
        self._set(State.TRANSIENT_FAILURE)
        for exchange in [each for each in self._waiting if not each.waits]:
            exchange.end(grpc.StatusCode.UNAVAILABLE, fault)
        self._is_wanted = bool(self._waiting)

    def _try_again(self) -> None:
        self._retry = None
        is_wanted, self._is_wanted = self._is_wanted, False
        self._set(State.IDLE)
        if is_wanted:
            self._want()

    async def _connected(self) -> Line:
        """A new connection, to the first address that takes it. Raises OSError, with what to say of the attempt."""
        faults: list[str] = []
        for host in await self._hosts():
            try:
                async with asyncio.timeout(self.limits.connect_s):
                    return await self._connect(host)
            except OSError as error:
                fault = _words(error)
                faults += [fault] if fault not in faults else []
        raise ConnectionError("; ".join(faults))

    async def _hosts(self) -> list[str]:
        try:
            return [str(ip_address(self._host))]
        except ValueError:
            pass
        try:
            async with asyncio.timeout(self.limits.connect_s):
                found = await self.loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise ConnectionError("its name is not resolved in time") from None
        except socket.gaierror as error:
            raise ConnectionError(error.strerror or str(error)) from None
        return list(dict.fromkeys(str(where[0]) for _, _, _, _, where in found))

    async def _connect(self, host: str) -> Line:
        context = None if self._tls is None else self._tls()
        transport, line = await self.loop.create_connection(
            lambda: Line(self),
            host,
            self._port,
            ssl=context,
            server_hostname=None if context is None else self._host,
        )
        if not line.gone.done():
            self._lines.add(line)
        try:
            if self._check is not None:
                fault = self._check(transport.get_extra_info("ssl_object"))
                if fault:
                    raise ConnectionError(fault)
            await line.greeted
        except BaseException as error:
            line.abort(str(error))
            raise
        return line


def _exchanges(line: Line) -> list[Exchange]:
    owners = [stream.owner for stream in line.connection.streams.values()]
    return [owner for owner in owners if isinstance(owner, Exchange)]


def _words(error: BaseException) -> str:
    """What an attempt came to."""
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return SOCKET_CLOSED
    if isinstance(error, TimeoutError):
        return "no connection in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused ({error.verify_message})"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"the TLS handshake fails ({error.reason.lower().replace('_', ' ')})"
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


__all__ = ["SOCKET_CLOSED", "Channel", "ChannelLimits"]
