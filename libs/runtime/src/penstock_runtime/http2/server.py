"""A gRPC server on this package's connections, with as much of the face of `grpc.aio.server` as handlers see.

Handlers, interceptors and contexts are those of grpc.aio: what serves there serves here. A call is one task, and its
messages go without another thread.

A call that is refused before its first message has come is told so after that, or a second later: a grpcio client whose
first write meets the end of its call says "Internal error from Core", and not with what status the call ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

from penstock_runtime.http2 import frames
from penstock_runtime.http2.connection import Connection, Headers, Stream
from penstock_runtime.http2.inbound import BadMessage, Buffer, TooLarge
from penstock_runtime.http2.peer_properties import properties_of
from penstock_runtime.http2.status import CONTENT_TYPE, timeout_s, trailers
from penstock_runtime.http2.wire import CallLine, CallPace, Wire
from penstock_runtime.logs import error_fields, get_log

Handler = Any
Status = tuple[grpc.StatusCode, str]
WINDOW_BYTES: Final = 4 * 1024 * 1024
"""What may be under way of a call whose handler reads."""
_FIRST_MESSAGE_S: Final = 1.0
_UNHEARD_MOST: Final = 1_000
"""Refused calls whose first message is waited for; others are told at once."""
_HEAD: Final = ((":status", "200"), ("content-type", CONTENT_TYPE))
_PLAIN: Final = ("grpc-accept-encoding", "identity")
_TOLD_TOGETHER_S: Final = 0.05
_LOOK_S: Final = 2.5
_HELLO_S: Final = 5.0
"""Until then a connection has said that it speaks HTTP/2."""
_IDLE_S: Final = 300.0
"""A connection without a call for so long ends; its channel makes another one with its next call."""
_FINISHED: Final = "RPC already finished."
_STOPS: Final = "the process stops"


class CallDetails(NamedTuple):
    """What interceptors are told (grpc.HandlerCallDetails)."""

    method: str
    invocation_metadata: tuple[tuple[str, str], ...]


class Call:
    """One call, as its handler sees it (grpc.aio.ServicerContext)."""

    def __init__(self, server: Server, peer: Peer, stream: Stream, headers: Headers) -> None:
        self._server = server
        self._peer = peer
        self._stream = stream
        self._metadata = tuple(item for item in headers if not item[0].startswith(":"))
        self._waiting: asyncio.Future[None] | None = None
        self._sent: asyncio.Future[None] | None = None
        self._has_head = False
        self._is_wide = False
        self._trailing: tuple[tuple[str, str], ...] = ()
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._until_s: float | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.serializer: Callable[[Any], bytes] | None = None
        self.deserializer: Callable[[bytes], Any] | None = None
        self.task: asyncio.Task[None]

    # Shell

    def begin(self, headers: Mapping[str, str]) -> None:
        """Serve it."""
        loop = self._server.loop
        if (text := headers.get("grpc-timeout")) is not None and (allowed_s := timeout_s(text)) is not None:
            self._until_s = loop.time() + allowed_s
            self._deadline = loop.call_later(allowed_s, self._too_late)
        self.task = loop.create_task(self._server.serve_call(self, headers.get(":path", "")))

    def woken(self) -> None:
        """Something has come, or the stream is over."""
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
        if self._stream.is_over and self._stream.error is not None:
            if self._sent is not None and not self._sent.done():
                self._sent.set_result(None)
            self.task.cancel()

    def answered(self, headers: Headers) -> None:
        """Clients answer nothing."""

    def room(self) -> None:
        """All that was written has gone."""
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)

    def broken(self, error: BadMessage) -> None:
        """What comes is no message."""
        too_large = isinstance(error, TooLarge)
        self.end(grpc.StatusCode.RESOURCE_EXHAUSTED if too_large else grpc.StatusCode.INTERNAL, str(error))

    def _too_late(self) -> None:
        self.end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def end(self, code: grpc.StatusCode, details: str) -> None:
        """End it under its handler."""
        self.finish(code, details)
        self.task.cancel()

    def finish(self, code: grpc.StatusCode, details: str) -> None:
        """Say how the call has ended, once."""
        if self._deadline is not None:
            self._deadline.cancel()
        _say_end(self._stream, self._end(code, details))

    def refuse(self, code: grpc.StatusCode, details: str) -> None:
        """The same, as soon as its client has said something."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._server.refuse(self._stream, self._end(code, details), is_read=self._is_wide)

    def _end(self, code: grpc.StatusCode, details: str) -> Headers:
        end = [*trailers(code, details), *self._trailing]
        return end if self._has_head else [*_HEAD, *end]

    # Handlers

    async def read(self) -> Any:
        """The next message, or grpc.aio.EOF."""
        stream = self._stream
        if not self._is_wide:
            self._is_wide = True
            stream.widen(self._server.window_bytes)
        while (message := stream.take()) is None:
            if stream.remote_ended or stream.is_over:
                return grpc.aio.EOF  # type: ignore[attr-defined]
            self._waiting = self._server.loop.create_future()
            await self._waiting
        if self.deserializer is None:
            return message
        return self.deserializer(message if isinstance(message, bytes) else bytes(message))

    async def write(self, message: Any) -> None:
        """Send a message; returns when it is on its way."""
        stream = self._stream
        if stream.is_over or stream.self_ended:
            raise grpc.aio.UsageError(_FINISHED)
        if not self._has_head:
            await self.send_initial_metadata(())
        data: Buffer = message if self.serializer is None else self.serializer(message)
        if not stream.connection.send(stream, data):
            self._sent = self._server.loop.create_future()
            await self._sent
            if stream.is_over:
                raise grpc.aio.UsageError(_FINISHED)
        room = self._peer.wire.room
        if room is not None:
            await asyncio.shield(room)

    async def send_initial_metadata(self, metadata: Sequence[tuple[str, str]]) -> None:
        """Send the head of the answer, if it is not sent yet."""
        if not self._has_head:
            self._has_head = True
            self._stream.connection.head(self._stream, [*_HEAD, *metadata])

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Sequence[tuple[str, str]] = ()
    ) -> None:
        """End the call."""
        self._code, self._details = code, details
        self._trailing = (*self._trailing, *trailing_metadata)
        self.refuse(code, details)
        raise grpc.aio.AbortError("Locally aborted.")

    def set_trailing_metadata(self, metadata: Sequence[tuple[str, str]]) -> None:
        """What goes with the end."""
        self._trailing = tuple(metadata)

    async def answer(self, message: Any) -> None:
        """The only response, and the end of the call with it: one write, where windows let it go."""
        stream, wire = self._stream, self._peer.wire
        data: Buffer = message if self.serializer is None else self.serializer(message)
        if stream.is_over or stream.self_ended:
            raise grpc.aio.UsageError(_FINISHED)
        wire.hold()
        try:
            await self.send_initial_metadata(())
            has_gone = stream.connection.send(stream, data)
            if has_gone:
                self.finish(self._code or grpc.StatusCode.OK, self._details)
        finally:
            wire.release()
        if not has_gone:
            self._sent = self._server.loop.create_future()
            await self._sent

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """What the caller said beside its messages."""
        return self._metadata

    def peer(self) -> str:
        """Where the call comes from, as gRPC writes it."""
        return self._peer.name

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """What the caller's certificate says."""
        return self._peer.properties

    def code(self) -> grpc.StatusCode | None:
        """How it was aborted."""
        return self._code

    def details(self) -> str:
        """With what words."""
        return self._details

    def set_code(self, code: grpc.StatusCode) -> None:
        """How it will end."""
        self._code = code

    def set_details(self, details: str) -> None:
        """With what words."""
        self._details = details

    def time_remaining(self) -> float | None:
        """Seconds; None without a deadline."""
        return None if self._until_s is None else max(self._until_s - self._server.loop.time(), 0.0)


class Refusal:
    """Whose stream it is that was refused before anything came of it."""

    __slots__ = ("_end", "_server", "_stream", "until_s")

    def __init__(self, server: Server, stream: Stream, end: Headers, until_s: float) -> None:
        self._server = server
        self._stream = stream
        self._end = end
        self.until_s = until_s

    def answered(self, headers: Headers) -> None:
        """Clients answer nothing."""

    def woken(self) -> None:
        """Something has come, or the stream is over."""
        self._server.unheard.pop(self, None)
        _say_end(self._stream, self._end)

    def room(self) -> None:
        """Nothing is written."""

    def broken(self, error: BadMessage) -> None:
        """Nothing is read."""


def _say_end(stream: Stream, end: Headers) -> None:
    """End a call, once."""
    if stream.self_ended or stream.is_over:
        return
    stream.connection.head(stream, end, ends=True)
    if not stream.is_over:
        # Whoever still sends is told to stop.
        stream.connection.reset(stream, frames.NO_ERROR)


class Requests:
    """The messages of a call, for handlers that iterate over them."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> Any:
        message = await self._call.read()
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]
            raise StopAsyncIteration
        return message


class Peer:
    """One connection of the server."""

    def __init__(self, server: Server, wire: Wire, transport: asyncio.Transport) -> None:
        self.server = server
        self.wire = wire
        self.name = _name_of(transport.get_extra_info("peername"))
        self.properties = properties_of(transport.get_extra_info("ssl_object"))
        self.connection = Connection(
            self,
            wire.out,
            is_client=False,
            streams_max=server.streams_max,
            message_bytes_most=server.message_bytes_most,
            resets_most=server.pace.resets_most,
        )
        self.calls: dict[Stream, Call] = {}
        self._since_s = self._called_s = server.loop.time()
        self._seen_bytes = 0
        self._is_asked = False

    def opened(self, stream: Stream, headers: Headers) -> None:
        """See `Events`."""
        named = dict(headers)
        kind = named.get("content-type", "")
        if named.get(":method") != "POST" or kind.partition(";")[0].partition("+")[0] != CONTENT_TYPE:
            _say_end(stream, [(":status", "415")])
            return
        if named.get("grpc-encoding", "identity") != "identity":
            text = f"messages are not taken compressed ({named['grpc-encoding']}); send them as they are"
            _say_end(stream, [*_HEAD, *trailers(grpc.StatusCode.UNIMPLEMENTED, text), _PLAIN])
            return
        if refused := self.server.refuses(self, named.get(":path", "")):
            self.server.line.rests = True
            self.server.refuse(stream, [*_HEAD, *trailers(*refused)])
            return
        call = stream.owner = Call(self.server, self, stream, headers)
        self.calls[stream] = call
        call.begin(named)
        call.task.add_done_callback(lambda _: self.calls.pop(stream, None))

    def going_away(self) -> None:
        """See `Events`."""

    def look(self, now_s: float) -> None:
        """Ask a silent one whether it is there; end one that is not, or has nothing to say."""
        connection, wire = self.connection, self.wire
        connection.rest()
        if not connection.has_begun:
            if now_s - self._since_s >= _HELLO_S:
                wire.abort("it does not speak HTTP/2")
            return
        if connection.streams:
            self._called_s = now_s
        elif now_s - self._called_s >= _IDLE_S:
            connection.go_away()
            wire.close("it was idle")
            return
        if wire.received_bytes != self._seen_bytes:
            self._seen_bytes, self._is_asked = wire.received_bytes, False
        elif self._is_asked:
            wire.abort("keepalive watchdog timeout")
        else:
            self._is_asked = True
            connection.ping()


def _nothing() -> None:
    return None


def _nobody(_: Peer, method: str) -> Status | None:
    return None


class Server:
    """Answers calls on the connections that `protocol` is made for."""

    def __init__(
        self,
        *,
        interceptors: Sequence[Any] = (),
        streams_max: int = 100,
        message_bytes_most: int,
        window_bytes: int = WINDOW_BYTES,
        pace: CallPace = CallPace(),  # noqa: B008 - frozen
        refuses: Callable[[Peer, str], Status | None] = _nobody,
    ) -> None:
        """`streams_max`: calls of a connection that are open at a time. `window_bytes`: what may be under way of a call
        whose handler reads. `refuses` says why a peer's call of that method is none, before anything is done for it."""
        self.loop = asyncio.get_running_loop()
        self.streams_max = streams_max
        self.message_bytes_most = message_bytes_most
        self.pace = pace
        self.window_bytes = window_bytes
        self._interceptors = tuple(interceptors)
        self._generic: list[grpc.GenericRpcHandler[Any, Any]] = []
        self.peers: dict[Wire, Peer] = {}
        self.refuses = refuses
        self.unheard: dict[Refusal, None] = {}
        """The oldest first."""
        self._telling: asyncio.TimerHandle | None = None
        self.line = CallLine(self.loop, pace)
        self._empty = asyncio.Event()
        self._looks: asyncio.TimerHandle | None = None

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler[Any, Any]]) -> None:
        """Answer by these too."""
        self._generic.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """What generated code says besides: the generic handlers have them all."""

    def protocol(self, ended: Callable[[], None] = _nothing) -> Wire:
        """For a connection that was accepted. `ended` is called when it is gone."""

        def over(wire: Wire, reason: str) -> None:
            self._over(wire)
            ended()

        return Wire(self._begun, over, self.line)

    def _begun(self, wire: Wire, transport: asyncio.Transport) -> Connection:
        peer = self.peers[wire] = Peer(self, wire, transport)
        if self._looks is None:
            self._looks = self.loop.call_later(_LOOK_S, self._look)
        return peer.connection

    def _over(self, wire: Wire) -> None:
        self.peers.pop(wire, None)
        if not self.peers:
            self._empty.set()

    def _look(self) -> None:
        now_s = self.loop.time()
        for peer in list(self.peers.values()):
            peer.look(now_s)
        self._looks = self.loop.call_later(_LOOK_S, self._look) if self.peers else None

    async def stop(self, grace_s: float | None) -> None:
        """Take no new calls; those at hand have `grace_s` to end (None: none). Safe to call twice."""
        for peer in list(self.peers.values()):
            peer.connection.go_away()
        calls = [call for peer in self.peers.values() for call in peer.calls.values()]
        tasks = [call.task for call in calls]
        if tasks and grace_s:
            await asyncio.wait(tasks, timeout=grace_s)
        for call in calls:
            if not call.task.done():
                call.end(grpc.StatusCode.UNAVAILABLE, _STOPS)
        if tasks:
            await asyncio.wait(tasks)
        for wire in list(self.peers):
            wire.close(_STOPS)
        if self.peers:
            self._empty.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._empty.wait()
            for wire in list(self.peers):
                wire.abort(_STOPS)
        if self._looks is not None:
            self._looks.cancel()
            self._looks = None
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None

    # -- a call -------------------------------------------------------------------

    async def _find(self, details: CallDetails) -> Handler:
        for generic in self._generic:
            handler = generic.service(details)  # type: ignore[arg-type]
            if handler is not None:
                return handler
        return None

    async def _handler(self, details: CallDetails) -> Handler:
        find: Callable[[CallDetails], Awaitable[Handler]] = self._find
        for interceptor in reversed(self._interceptors):
            find = partial(interceptor.intercept_service, find)
        return await find(details)

    async def serve_call(self, call: Call, path: str) -> None:
        """All of one call; the status is said here."""
        try:
            handler = await self._handler(CallDetails(path, call.invocation_metadata()))
            if handler is None:
                call.refuse(grpc.StatusCode.UNIMPLEMENTED, f"nobody has the method {path} here")
                return
            await _run(handler, call)
            call.finish(call.code() or grpc.StatusCode.OK, call.details())
        except grpc.aio.AbortError:
            pass  # it is told, or will be
        except asyncio.CancelledError:
            call.finish(grpc.StatusCode.CANCELLED, "the call was cancelled")
        except Exception as error:
            code = call.code()
            if code is None:
                get_log().error("call failed", method=path, peer=call.peer(), **error_fields(error))
                call.set_details(f"{type(error).__name__}: {error}")
            # As generated code says of a method that a handler has not.
            call.refuse(code or grpc.StatusCode.UNKNOWN, call.details())

    def refuse(self, stream: Stream, end: Headers, *, is_read: bool = False) -> None:
        """End a call, as soon as its client has said something. `is_read`: it has."""
        inbound = stream.inbound
        is_heard = is_read or stream.remote_ended or not inbound.is_between
        if is_heard or stream.is_over or len(self.unheard) >= _UNHEARD_MOST:
            _say_end(stream, end)
            return
        stream.is_deaf = True
        refusal = stream.owner = Refusal(self, stream, end, self.loop.time() + _FIRST_MESSAGE_S)
        self.unheard[refusal] = None
        if self._telling is None:
            self._telling = self.loop.call_at(refusal.until_s, self._tell_unheard)

    def _tell_unheard(self) -> None:
        self._telling = None
        now_s = self.loop.time() + _TOLD_TOGETHER_S
        while self.unheard:
            first = next(iter(self.unheard))
            if first.until_s > now_s:
                self._telling = self.loop.call_at(first.until_s, self._tell_unheard)
                break
            first.woken()


async def _run(handler: Handler, call: Call) -> None:
    call.deserializer, call.serializer = handler.request_deserializer, handler.response_serializer
    if handler.request_streaming:
        behaviour = handler.stream_stream or handler.stream_unary
        request: Any = Requests(call)
    else:
        behaviour = handler.unary_stream or handler.unary_unary
        request = await call.read()
        if request is grpc.aio.EOF:  # type: ignore[attr-defined]
            await call.abort(grpc.StatusCode.INTERNAL, "a call without a message")
    if inspect.isasyncgenfunction(behaviour):
        responses = behaviour(request, call)
        try:
            async for response in responses:
                await call.write(response)
        finally:
            await responses.aclose()
        return
    answer = await behaviour(request, call)
    if not handler.response_streaming:
        await call.answer(answer)


def _name_of(address: Any) -> str:
    if not isinstance(address, tuple):
        return "unix:"
    host, port = str(address[0]), address[1]
    return f"ipv6:%5B{host.replace('%', '%25')}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
