"""gRPC's asyncio API over simulated connections.

As much of `grpc.aio` as roles use: unary and streaming calls, deadlines, cancelling, states
of channels, and the statuses that a caller meets when its peer is refused, silent or gone.
Messages cross as bytes, so nothing is shared between two processes by accident.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from penstock_runtime.grpc_tools import Probe
from simulation.network import Pipe

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.world import World

CONNECT_TIMEOUT_US = 1_000_000
BACKOFF_US_MIN = 50_000
BACKOFF_US_MAX = 500_000
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]
_State = grpc.ChannelConnectivity

_OPEN, _MESSAGE, _HALF_CLOSE, _CANCEL, _END = range(5)


def _error(code: grpc.StatusCode, details: str, trailing: Any = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details, None)


# --- servers ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Details:
    method: str
    invocation_metadata: tuple[()] = ()


class SimServer:
    """A gRPC server of one process, at `address`."""

    def __init__(self, process: Process, address: str) -> None:
        self.process = process
        self.address = address
        self._generic: list[Any] = []
        self._found: dict[str, Any] = {}
        process.world.servers[address] = self

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self._generic.extend(handlers)

    def add_registered_method_handlers(self, _service: str, _handlers: Any) -> None:
        """The generic ones know them too."""

    def handler(self, method: str) -> Any:
        if method not in self._found:
            details = _Details(method)
            found = (h.service(details) for h in self._generic)
            self._found[method] = next((h for h in found if h is not None), None)
        return self._found[method]

    def accept(self, pipe: Pipe) -> None:
        """A client has connected."""
        _ServerEnd(self, pipe)

    def stop(self) -> None:
        """Listen no more."""
        if self.process.world.servers.get(self.address) is self:
            del self.process.world.servers[self.address]


class RunningServer:
    """What `serve` gives."""

    def __init__(self, server: SimServer) -> None:
        self._server = server

    async def stop(self, _grace: float | None) -> None:
        self._server.stop()


class _ServerEnd:
    """The server's end of one connection."""

    def __init__(self, server: SimServer, pipe: Pipe) -> None:
        self.server = server
        self.pipe = pipe
        self._calls: dict[int, _ServerCall] = {}
        pipe.on_messages[1] = self._on_messages
        pipe.on_end[1] = self._on_end

    def _on_messages(self, messages: list[tuple[int, int, Any]]) -> None:
        process = self.server.process
        if process.is_up:
            # The process may be stopped: what arrives waits in its loop's queue.
            process.loop.call_now(self._take, messages)

    def _take(self, messages: list[tuple[int, int, Any]]) -> None:
        for number, kind, payload in messages:
            if kind == _OPEN:
                self._calls[number] = _ServerCall(self, number, payload)
                continue
            call = self._calls.get(number)
            if call is None:
                continue
            if kind == _MESSAGE:
                call.feed(payload)
            elif kind == _HALF_CLOSE:
                call.feed(None)
            elif kind == _CANCEL:
                call.cancel()

    def _on_end(self, _reason: str) -> None:
        if self.server.process.is_up:
            self.server.process.loop.call_soon(self._cancel_all)

    def _cancel_all(self) -> None:
        for call in list(self._calls.values()):
            call.cancel()

    def finished(self, number: int) -> None:
        self._calls.pop(number, None)


class _ServerCall:
    """A call being served; also the context of its handler."""

    def __init__(self, end: _ServerEnd, number: int, method: str) -> None:
        self._end = end
        self._number = number
        self._inbox: deque[bytes | None] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._trailing: Any = ()
        self._is_over = False
        self._status: tuple[grpc.StatusCode, str] | None = None
        self._handler = end.server.handler(method)
        loop = end.server.process.loop
        self._task: asyncio.Task[None] = loop.create_task(self._serve(method))

    # What handlers use

    def set_trailing_metadata(self, trailing: Any) -> None:
        self._trailing = trailing

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing: Any = ()) -> None:
        self._trailing = trailing or self._trailing
        self._status = (code, details)
        raise grpc.aio.AbortError

    async def read(self) -> Any:
        raw = await self._next()
        if raw is None:
            return _EOF
        deserialize = self._handler.request_deserializer
        return raw if deserialize is None else deserialize(raw)

    async def write(self, message: Any) -> None:
        if self._is_over:
            raise asyncio.InvalidStateError("the call is over")
        serialize = self._handler.response_serializer
        self._send(_MESSAGE, bytes(message) if serialize is None else serialize(message))

    # Inside

    def feed(self, raw: bytes | None) -> None:
        self._inbox.append(raw)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def cancel(self) -> None:
        self._is_over = True
        self._task.cancel()

    async def _next(self) -> bytes | None:
        while not self._inbox:
            self._reader = self._end.server.process.loop.create_future()
            await self._reader
        raw = self._inbox[0]
        if raw is not None:
            self._inbox.popleft()
        return raw

    async def _requests(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not _EOF:
            yield message

    def _send(self, kind: int, payload: Any) -> None:
        self._end.pipe.send(1, (self._number, kind, payload))

    async def _serve(self, method: str) -> None:
        status = (grpc.StatusCode.OK, "")
        try:
            await self._call_handler()
        except asyncio.CancelledError:
            status = (grpc.StatusCode.CANCELLED, "cancelled")
        except grpc.aio.AbortError:
            status = self._status or (grpc.StatusCode.UNKNOWN, "aborted")
        except TimeoutError:
            status = (grpc.StatusCode.UNKNOWN, "timeout in the handler")
        except Exception as e:
            self._end.server.process.failed(e)
            status = (grpc.StatusCode.UNKNOWN, f"{type(e).__name__}: {e}")
        finally:
            self._end.finished(self._number)
        if not self._is_over:
            self._is_over = True
            self._send(_END, (status, self._trailing))

    async def _call_handler(self) -> None:
        handler = self._handler
        if handler is None:
            self._status = (grpc.StatusCode.UNIMPLEMENTED, "no such method")
            raise grpc.aio.AbortError
        if not handler.request_streaming:
            request = await self.read()
            if not handler.response_streaming:
                await self.write(await handler.unary_unary(request, self))
                return
            result = handler.unary_stream(request, self)
        else:
            function = handler.stream_stream
            if not inspect.isasyncgenfunction(function):
                await function(self._requests(), self)
                return
            result = function(self._requests(), self)
        try:
            async for response in result:
                await self.write(response)
        finally:
            await result.aclose()


# --- channels -----------------------------------------------------------------------


class SimChannelPool:
    """Stands in for `ChannelPool`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._channels: dict[tuple[str, str], SimChannel] = {}

    def get(self, address: str, role: str, lane: str = "") -> SimChannel:
        channel = self._channels.get((address, lane))
        if channel is None:
            channel = self._channels[address, lane] = SimChannel(self._process, address, lane)
        return channel

    async def drop(self, address: str) -> None:
        for key in [k for k in self._channels if k[0] == address]:
            self._channels.pop(key).close()

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.close()


class SimChannel:
    """One connection to one address, made when it is needed, and made again when it broke."""

    def __init__(self, process: Process, address: str, lane: str = "") -> None:
        self._process = process
        self._lane = lane
        self._world = process.world
        self._address = address
        self._server_host = address.partition(":")[0]
        self._state = _State.IDLE
        self._pipe: Pipe | None = None
        self._calls: dict[int, _ClientCall] = {}
        self._next_call = 0
        self._failures = 0
        self._attempt = 0
        self._watchers: list[asyncio.Future[None]] = []

    # The API

    def unary_unary(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        return lambda request, timeout=None, **__: _UnaryCall(
            self, method, request_serializer, response_deserializer, request, timeout
        )

    def unary_stream(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        return lambda request, timeout=None, **__: _StreamCall(
            self, method, request_serializer, response_deserializer, request
        )

    def stream_stream(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Any:
        return lambda timeout=None, **__: _StreamCall(
            self, method, request_serializer, response_deserializer, None
        )

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        if try_to_connect and self._state is _State.IDLE:
            self._connect()
        return self._state

    async def wait_for_state_change(self, last: grpc.ChannelConnectivity) -> None:
        while self._state is last:
            future = self._process.loop.create_future()
            self._watchers.append(future)
            await future

    def close(self) -> None:
        self._break("channel closed", retry=False)

    # Calls

    def open(self, call: _ClientCall, method: str) -> None:
        self._next_call += 1
        call.number = self._next_call
        self._calls[call.number] = call
        if self._state is _State.IDLE:
            self._connect()
        if self._state is _State.TRANSIENT_FAILURE:
            self._process.loop.call_soon(
                self._fail_call, call.number, f"failed to connect to {self._address}"
            )
        elif self._pipe is not None:
            self.send(call.number, _OPEN, method)
            call.flush()

    def _fail_call(self, number: int, reason: str) -> None:
        call = self._calls.pop(number, None)
        if call is not None:
            call.ended((grpc.StatusCode.UNAVAILABLE, reason), ())

    def send(self, number: int, kind: int, payload: Any) -> bool:
        if self._pipe is None:
            return False
        self._pipe.send(0, (number, kind, payload))
        return True

    def forget(self, number: int) -> None:
        self._calls.pop(number, None)

    # The connection

    def _set_state(self, state: grpc.ChannelConnectivity) -> None:
        self._state = state
        watchers, self._watchers = self._watchers, []
        for future in watchers:
            if not future.done():
                future.set_result(None)

    def _connect(self) -> None:
        self._set_state(_State.CONNECTING)
        self._attempt += 1
        attempt, network, host = self._attempt, self._world.network, self._server_host
        result = self._world.reachable(self._process.name, self._address)
        if result is Probe.ALIVE:
            delay_us = 2 * network.delay_us()
        elif result is Probe.REFUSED:
            delay_us = network.delay_us()
        else:
            delay_us = CONNECT_TIMEOUT_US
        del host
        self._world.scheduler.after(delay_us, self._process._due, self._on_loop, (self._connected, attempt))

    def _on_loop(self, call: Callable[..., None], *args: Any) -> None:
        self._process.loop.call_soon(call, *args)

    def _connected(self, attempt: int) -> None:
        if attempt != self._attempt or self._state is not _State.CONNECTING:
            return
        world = self._world
        server = world.servers.get(self._address)
        if world.reachable(self._process.name, self._address) is not Probe.ALIVE or server is None:
            self._break(f"failed to connect to {self._address}", retry=True)
            return
        self._failures = 0
        pipe = Pipe(world.network, self._process.name, self._server_host, self._lane)
        self._pipe = pipe
        pipe.on_messages[0] = self._on_messages
        pipe.on_end[0] = lambda reason: self._on_end(pipe, reason)
        server.accept(pipe)
        self._set_state(_State.READY)
        for call in list(self._calls.values()):
            self.send(call.number, _OPEN, call.method)
            call.flush()

    def _on_messages(self, messages: list[tuple[int, int, Any]]) -> None:
        if self._process.is_up:
            self._process.loop.call_now(self._take, messages)

    def _take(self, messages: list[tuple[int, int, Any]]) -> None:
        for number, kind, payload in messages:
            call = self._calls.get(number)
            if call is None:
                continue
            if kind == _MESSAGE:
                call.feed(payload)
            elif kind == _END:
                del self._calls[number]
                call.ended(*payload)

    def _on_end(self, pipe: Pipe, reason: str) -> None:
        if self._process.is_up:
            self._process.loop.call_soon(self._lost, pipe, reason)

    def _lost(self, pipe: Pipe, reason: str) -> None:
        if self._pipe is pipe:
            self._pipe = None
            self._break(reason, retry=False)

    def _break(self, reason: str, *, retry: bool) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close(0)
        calls, self._calls = list(self._calls.values()), {}
        if retry:
            backoff_us = min(BACKOFF_US_MIN << min(self._failures, 5), BACKOFF_US_MAX)
            self._failures += 1
            self._set_state(_State.TRANSIENT_FAILURE)
            self._world.scheduler.after(
                backoff_us, self._process._due, self._on_loop, (self._idle, self._attempt)
            )
        else:
            self._attempt += 1
            self._set_state(_State.IDLE)
        for call in calls:
            call.ended((grpc.StatusCode.UNAVAILABLE, reason), ())

    def _idle(self, attempt: int) -> None:
        if self._state is _State.TRANSIENT_FAILURE and attempt == self._attempt:
            # gRPC connects again by itself only while somebody wants it to.
            self._set_state(_State.IDLE)


class _ClientCall:
    """What unary and streaming calls share."""

    def __init__(self, channel: SimChannel, method: str, serialize: Any, deserialize: Any) -> None:
        self.number = 0
        self.method = method
        self._channel = channel
        self._loop = channel._process.loop
        self._serialize = serialize
        self._deserialize = deserialize
        self._unsent: list[tuple[int, Any]] = []
        self._status: tuple[grpc.StatusCode, str] | None = None
        self._trailing: Any = ()
        self._is_cancelled = False

    def flush(self) -> None:
        """The connection is there: what was written before goes out."""
        unsent, self._unsent = self._unsent, []
        for kind, payload in unsent:
            self._channel.send(self.number, kind, payload)

    def _put(self, kind: int, payload: Any) -> None:
        if self._unsent or not self._channel.send(self.number, kind, payload):
            self._unsent.append((kind, payload))

    def feed(self, raw: bytes) -> None:
        raise NotImplementedError

    def ended(self, status: tuple[grpc.StatusCode, str], trailing: Any) -> None:
        raise NotImplementedError

    def done(self) -> bool:
        return self._status is not None

    def cancel(self) -> bool:
        if self._status is not None:
            return False
        self._is_cancelled = True
        self._channel.send(self.number, _CANCEL, None)
        self._channel.forget(self.number)
        self.ended((grpc.StatusCode.CANCELLED, "cancelled by the caller"), ())
        return True

    def _raise(self) -> None:
        if self._is_cancelled:
            raise asyncio.CancelledError
        if self._status is not None and self._status[0] is not grpc.StatusCode.OK:
            raise _error(self._status[0], self._status[1], self._trailing)


class _UnaryCall(_ClientCall):
    def __init__(
        self, channel: SimChannel, method: str, serialize: Any, deserialize: Any, request: Any, timeout: Any
    ) -> None:
        super().__init__(channel, method, serialize, deserialize)
        self._future: asyncio.Future[Any] = self._loop.create_future()
        self._timer: Any = None
        self._unsent = [(_MESSAGE, serialize(request)), (_HALF_CLOSE, None)]
        channel.open(self, method)
        if timeout is not None:
            self._timer = self._loop.call_later(max(timeout, 0), self._expire)

    def feed(self, raw: bytes) -> None:
        if not self._future.done():
            self._future.set_result(self._deserialize(raw))

    def ended(self, status: tuple[grpc.StatusCode, str], trailing: Any) -> None:
        if self._status is not None:
            return
        self._status, self._trailing = status, trailing
        if self._timer is not None:
            self._timer.cancel()
        if not self._future.done():
            if self._is_cancelled:
                self._future.cancel()
            else:
                self._future.set_exception(_error(status[0], status[1], trailing))
                self._future.exception()

    def _expire(self) -> None:
        if self._status is None:
            self._channel.send(self.number, _CANCEL, None)
            self._channel.forget(self.number)
            self.ended((grpc.StatusCode.DEADLINE_EXCEEDED, "deadline exceeded"), ())

    def __await__(self) -> Any:
        return self._future.__await__()


class _StreamCall(_ClientCall):
    def __init__(
        self, channel: SimChannel, method: str, serialize: Any, deserialize: Any, request: Any
    ) -> None:
        super().__init__(channel, method, serialize, deserialize)
        self._inbox: deque[bytes] = deque()
        self._reader: asyncio.Future[None] | None = None
        if request is not None:
            self._unsent = [(_MESSAGE, serialize(request)), (_HALF_CLOSE, None)]
        channel.open(self, method)

    def feed(self, raw: bytes) -> None:
        self._inbox.append(raw)
        self._wake()

    def ended(self, status: tuple[grpc.StatusCode, str], trailing: Any) -> None:
        if self._status is None:
            self._status, self._trailing = status, trailing
            if self._is_cancelled:
                self._inbox.clear()
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def write(self, message: Any) -> None:
        self._raise()
        if self._status is not None:
            raise asyncio.InvalidStateError("the call is over")
        self._put(_MESSAGE, bytes(message) if self._serialize is None else self._serialize(message))

    async def done_writing(self) -> None:
        if self._status is None:
            self._put(_HALF_CLOSE, None)

    async def read(self) -> Any:
        while not self._inbox:
            if self._status is not None:
                self._raise()
                return _EOF
            self._reader = self._loop.create_future()
            await self._reader
        raw = self._inbox.popleft()
        return raw if self._deserialize is None else self._deserialize(raw)

    async def _iterate(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not _EOF:
            yield message

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._iterate()


# --- probes ----------------------------------------------------------------------------


async def probe(world: World, process: Process, host: str, port: int, timeout_ms: int) -> Probe:
    """Stands in for `grpc_tools.probe`."""
    found = world.reachable(process.name, f"{host}:{port}", to_kernel=True)
    network = world.network
    if found is Probe.SILENT:
        await asyncio.sleep(timeout_ms / 1000)
        return found
    await asyncio.sleep(2 * network.delay_us() / 1e6)
    return found
