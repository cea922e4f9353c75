"""One Kafka connection: bytes in, frames out to the handler, responses back in order.

Theory. Reads go into one buffer that all connections of a listener share, since the
loop reads and hands over in one step; whole small frames are copied out of it. A frame
that did not come whole gets a bytearray of its own and the rest is received straight
into it: a large Produce is copied only for the part that came with its head.

A handler's answer that is there at once is written at once; a Future gets a callback;
only a coroutine costs a task. Coroutines start in arrival order but after `handle` has
returned: what must happen in order belongs in the synchronous part of `handle`.

Back-pressure. Reading stops while too many requests or bytes are unanswered, while the
client does not take its responses, or while the listener's memory for frames is spent.
Nothing else is queued.

Warts. Growth of a large frame copies it (1 MiB, 2, 4, ...), so that memory follows what
was received and not what was announced.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from time import perf_counter
from typing import Any, Final, Protocol, cast

from penstock_core.limits import KAFKA_FRAME_BYTES_MAX
from penstock_frontend.authorizer import ANONYMOUS, Principal
from penstock_frontend.listener.metrics import ApiStats, KafkaMetrics
from penstock_frontend.listener.proxy_protocol import parse_proxy_header
from penstock_kafka.wire.primitives import Malformed
from penstock_runtime.logs import Log
from penstock_runtime.settings import ListenerSettings

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


class FrameHandler(Protocol):
    """What stands behind a listener."""

    def handle(self, connection: Connection, frame: bytearray) -> Response | Awaitable[Response]:
        """Answer one request (`frame` has no length prefix and is the handler's to keep).

        Called in arrival order. Work whose order matters is done here, before a Future or
        coroutine is returned. Futures stay the handler's when the client goes away
        (`connection.on_closed` tells); coroutines are cancelled then. An exception closes
        the connection.
        """
        ...


@dataclass(frozen=True)
class ListenerLimits:
    """What one listener gives its clients at most."""

    frame_bytes_max: int = KAFKA_FRAME_BYTES_MAX
    inflight_requests_max: int = 256
    """Unanswered requests of one connection; then its reading stops."""
    inflight_bytes_max: int = 32 * 1024 * 1024
    """Bytes of unanswered requests of one connection; one request may exceed it."""
    frames_bytes_max: int = 512 * 1024 * 1024
    """Bytes of large or unanswered requests of all connections together."""
    write_buffer_bytes_max: int = 1024 * 1024
    """Unsent response bytes of one connection; then no more of its requests are handled."""
    connections_max: int = 10_000
    connections_per_host_max: int = 5_000
    first_request_timeout_ms: int = 30_000
    frame_timeout_ms: int = 30_000
    """Time for a request to come whole, beside a second for every 64 KiB of it."""
    idle_timeout_ms: int = 600_000
    """Silence on both sides after which a connection is closed (connections.max.idle.ms)."""


class ConnectionOwner(Protocol):
    """Whom a connection belongs to: what connections share, and what is told of each."""

    name: str
    settings: ListenerSettings
    limits: ListenerLimits
    handler: FrameHandler
    metrics: KafkaMetrics
    log: Log
    loop: asyncio.AbstractEventLoop
    scratch: memoryview
    """Where every connection's small reads go; the loop reads and hands over in one step."""

    def opened(self, connection: Connection, transport: asyncio.Transport) -> None:
        """A client is here; `connection.abort` refuses it."""

    def lost(self, connection: Connection) -> None:
        """It is gone. Called once."""

    def request_failed(self, connection: Connection, error: BaseException) -> None:
        """The handler raised; the connection closes itself."""

    def charge(self, size: int, *, force: bool = False) -> bool:
        """Count bytes of a frame held in memory; False when there is no room, never with `force`."""
        ...

    def release(self, size: int) -> None:
        """The opposite of `charge`."""

    def starve(self, connection: Connection) -> None:
        """Call `connection.fed` when memory for frames comes free."""


_LENGTH = struct.Struct(">i")
_FRAME_BYTES_MIN = 8
"""Api key, version, correlation id."""
_GROW_FROM_BYTES = 1024 * 1024
_FLUSH_BYTES = 256 * 1024

_Pending = tuple["asyncio.Future[Response] | None", Response | None, int, ApiStats, float]


class Connection(asyncio.BufferedProtocol):
    """A client's connection, for the handler and for the event loop."""

    __slots__ = (
        "_backlog",
        "_callbacks",
        "_charged",
        "_close_when_empty",
        "_filled",
        "_frame",
        "_frame_length",
        "_frame_view",
        "_head",
        "_inflight_bytes",
        "_metrics",
        "_out",
        "_out_bytes",
        "_owner",
        "_pending",
        "_proxy_expected",
        "_read_paused",
        "_starved",
        "_tasks",
        "_transport",
        "_write_paused",
        "client_id",
        "closed",
        "closing",
        "frame_started_s",
        "listener",
        "local_host",
        "local_port",
        "moved",
        "peer_host",
        "peer_port",
        "principal",
        "request_count",
        "socket_host",
        "state",
    )

    def __init__(self, owner: ConnectionOwner) -> None:
        self.listener = owner.name
        self.peer_host = self.local_host = self.socket_host = ""
        self.peer_port = self.local_port = 0
        self.principal: Principal = ANONYMOUS
        self.client_id: str | None = None
        self.state: dict[str, Any] = {}
        """The handler's own."""
        self.closed = False
        self.closing = False
        self.moved = True
        """Bytes came or went since the listener last looked."""
        self.request_count = 0
        self.frame_started_s = 0.0
        """Loop time at which a frame began to come in pieces; 0 when none does."""
        self._owner = owner
        self._metrics = owner.metrics
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._proxy_expected = owner.settings.proxy_protocol
        self._head = b""
        self._backlog = b""
        self._frame: bytearray | None = None
        self._frame_view: memoryview | None = None
        self._frame_length = 0
        self._filled = 0
        self._charged = 0
        self._starved = False
        self._pending: deque[_Pending] = deque()
        self._inflight_bytes = 0
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._read_paused = False
        self._write_paused = False
        self._close_when_empty = False
        self._callbacks: list[Callable[[], None]] = []
        self._tasks: set[asyncio.Task[Response]] = set()

    # For the handler

    @property
    def peer(self) -> str:
        """The client's `host:port`, for logs."""
        return f"{self.peer_host}:{self.peer_port}"

    @property
    def inflight_count(self) -> int:
        """Requests that wait for their response or its turn."""
        return len(self._pending)

    def on_closed(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the connection is gone (at once if it is)."""
        if self.closed:
            callback()
        else:
            self._callbacks.append(callback)

    def close(self, reason: str) -> None:
        """Close; responses already written are still sent, unanswered requests are dropped."""
        if not self.closing:
            self.closing = True
            self._owner.log.debug("connection closed", peer=self.peer, reason=reason)
            self._flush()
            self._transport.close()

    def close_after_responses(self, reason: str) -> None:
        """Take no more requests; close once those at hand are answered."""
        if not self._close_when_empty:
            self._close_when_empty = True
            self._pause_reading()
            if not self._pending:
                self.close(reason)

    def abort(self, reason: str) -> None:
        """Close at once and drop what is not sent."""
        self.closing = True
        self._owner.log.debug("connection aborted", peer=self.peer, reason=reason)
        self._transport.abort()

    # Event loop: the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods but not the base class.
        self._transport = cast(asyncio.Transport, transport)
        self.peer_host, self.peer_port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self.local_host, self.local_port = (transport.get_extra_info("sockname") or ("", 0))[:2]
        self.socket_host = self.peer_host
        limits = self._owner.limits
        self._transport.set_write_buffer_limits(high=limits.write_buffer_bytes_max)
        self._owner.opened(self, self._transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.closed = self.closing = True
        for task in self._tasks:
            task.cancel()
        self._pending.clear()
        self._out.clear()
        self._frame = self._frame_view = None
        self._backlog = self._head = b""
        self._release(self._charged)
        self._owner.lost(self)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def eof_received(self) -> bool:
        return False

    # Event loop: reading

    def get_buffer(self, sizehint: int) -> memoryview:
        view = self._frame_view
        if view is None:
            return self._owner.scratch
        if self._filled == len(view):
            view = self._grow()
        return view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.moved = True
        if self._frame is None:
            self._parse(self._owner.scratch[:nbytes], nbytes)
            return
        self._filled += nbytes
        if self._filled == self._frame_length:
            frame, self._frame, self._frame_view = self._frame, None, None
            self.frame_started_s = 0.0
            self._dispatch(frame, charged=True)
            self._flush()
            self._check_blocked()

    def _grow(self) -> memoryview:
        frame = bytearray(min(self._frame_length, 2 * self._filled))
        frame[: self._filled] = self._frame  # type: ignore[assignment]
        self._frame = frame
        self._frame_view = memoryview(frame)
        return self._frame_view

    def _parse(self, data: memoryview | bytes, size: int) -> None:
        """Hand over every whole frame in `data`, keep the rest."""
        if self._head:
            data = self._head + bytes(data)
            size = len(data)
            self._head = b""
        pos = 0
        if self._proxy_expected:
            pos = self._take_proxy_header(bytes(data[:size]))
            if self._proxy_expected:
                return
        limits = self._owner.limits
        while not self.closing:
            if self._is_blocked():
                self._backlog = bytes(data[pos:size])
                break
            if size - pos < 4:
                self._head = bytes(data[pos:size])
                break
            (length,) = _LENGTH.unpack_from(data, pos)
            if not _FRAME_BYTES_MIN <= length <= limits.frame_bytes_max:
                self._refuse_length(length, limits.frame_bytes_max)
                return
            if size - pos - 4 < length:
                self._begin_frame(length, data, pos, size)
                break
            self._dispatch(bytearray(data[pos + 4 : pos + 4 + length]), charged=False)
            pos += 4 + length
        self._flush()
        self._check_blocked()

    def _begin_frame(self, length: int, data: memoryview | bytes, pos: int, size: int) -> None:
        """Give a frame that is still coming a buffer of its own."""
        if not self._owner.charge(length):
            # Start again at this frame's length once there is memory for it.
            self._backlog = bytes(data[pos:size])
            self._starved = True
            self._owner.starve(self)
            return
        self._charged += length
        have = size - pos - 4
        frame = bytearray(min(length, max(_GROW_FROM_BYTES, have)))
        frame[:have] = data[pos + 4 : size]
        self._frame = frame
        self._frame_view = memoryview(frame)
        self._frame_length = length
        self._filled = have
        self.frame_started_s = self._owner.loop.time()

    def _take_proxy_header(self, data: bytes) -> int:
        """Bytes of the PROXY header at the start of `data`; keeps it all while incomplete."""
        try:
            header = parse_proxy_header(data)
        except ValueError as e:
            self._bad_frame("proxy_header", str(e))
            return 0
        if header is None:
            self._head = data
            return 0
        self._proxy_expected = False
        if header.source is not None and header.destination is not None:
            self.peer_host, self.peer_port = header.source
            self.local_host, self.local_port = header.destination
        return header.size_bytes

    def _refuse_length(self, length: int, most: int) -> None:
        first = _LENGTH.pack(length)
        if length < _FRAME_BYTES_MIN:
            what = f"a request of {length} bytes"
        else:
            what = f"a request of {length} bytes, the most is {most}"
        if first in (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI"):
            what += " (this is HTTP; the Kafka port does not speak it)"
        elif first[:2] == b"\x16\x03":
            what += " (this is TLS; the listener is PLAINTEXT)"
        self._bad_frame("frame_length", what)

    def _bad_frame(self, label: str, reason: str) -> None:
        self._metrics.bad_frames[self.listener, label] += 1
        self._owner.log.warning("bad request, closing", peer=self.peer, reason=reason)
        self.close(reason)

    def refuse(self, label: str, reason: str) -> Signal:
        """Count and log a request that cannot be answered; gives CLOSE for the handler to return."""
        self._metrics.bad_frames[self.listener, label] += 1
        self._owner.log.warning(
            "bad request, closing", peer=self.peer, client_id=self.client_id, reason=reason
        )
        return CLOSE

    # Requests and responses

    def _dispatch(self, frame: bytearray, *, charged: bool) -> None:
        """Hand one frame over and take what the handler gives for it."""
        started_s = perf_counter()
        self.request_count += 1
        size = len(frame)
        self._metrics.received_bytes[self.listener] += size + 4
        stats = self._metrics.api(frame[0] << 8 | frame[1])
        try:
            result = self._owner.handler.handle(self, frame)
        except Exception as e:
            self._handler_failed(e)
            return
        kind = type(result)
        response: Response | None = None
        future: asyncio.Future[Response] | None = None
        if kind is list or kind is tuple or kind is Signal or kind is bytes:
            response = result  # type: ignore[assignment]
        elif isinstance(result, asyncio.Future):
            future = result
        elif asyncio.iscoroutine(result):
            task = self._owner.loop.create_task(result)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            future = task
        else:
            self._handler_failed(TypeError(f"handler answered with {kind.__name__}"))
            return
        if future is None and not self._pending:
            if charged:
                self._release(size)
            stats.observe(perf_counter() - started_s)
            self._emit(response)  # type: ignore[arg-type]
            return
        if not charged:
            self._owner.charge(size, force=True)
            self._charged += size
        self._inflight_bytes += size
        self._pending.append((future, response, size, stats, started_s))
        if future is not None:
            future.add_done_callback(self._on_done)

    def _on_done(self, future: asyncio.Future[Response]) -> None:
        if self.closed:
            # Nobody is left to tell, but a failure must not pass unseen.
            if not future.cancelled() and (error := future.exception()) is not None:
                self._owner.request_failed(self, error)
            return
        self._answer()

    def _answer(self) -> None:
        """Write the responses that are due, in order, and go on with what waited for that."""
        pending = self._pending
        while pending and not self._write_paused and not self.closing:
            future, response, size, stats, started_s = pending[0]
            if future is not None:
                if not future.done():
                    break
                try:
                    response = future.result()
                except asyncio.CancelledError:
                    self.close("its request was given up")
                    break
                except Exception as e:
                    self._handler_failed(e)
                    break
            pending.popleft()
            self._inflight_bytes -= size
            self._release(size)
            stats.observe(perf_counter() - started_s)
            self._emit(response)  # type: ignore[arg-type]
        self._flush()
        if self._close_when_empty and not pending:
            self.close("all responses are sent")
        self._go_on()

    def _emit(self, response: Response) -> None:
        """Queue one response for the next flush."""
        if isinstance(response, Signal):
            if response is CLOSE:
                self.close("the handler asked for it")
            return
        if isinstance(response, bytes):
            response = (response,)
        size = 0
        for part in response:
            size += len(part)
        self._out.append(_LENGTH.pack(size))
        self._out.extend(response)
        self._out_bytes += size + 4
        if self._out_bytes >= _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._out:
            out, self._out = self._out, []
            self._metrics.sent_bytes[self.listener] += self._out_bytes
            self._out_bytes = 0
            self.moved = True
            self._transport.writelines(out)

    def _handler_failed(self, error: BaseException) -> None:
        """A request has no answer: the client's connection ends, and says so in the log."""
        label = "body" if isinstance(error, Malformed) else "failed"
        self._metrics.bad_frames[self.listener, label] += 1
        self._owner.request_failed(self, error)
        self.close("its request failed")

    # Back-pressure

    def _is_blocked(self) -> bool:
        limits = self._owner.limits
        return (
            self._write_paused
            or self._starved
            or self._close_when_empty
            or len(self._pending) >= limits.inflight_requests_max
            or self._inflight_bytes >= limits.inflight_bytes_max
        )

    def _check_blocked(self) -> None:
        if self._is_blocked():
            self._pause_reading()

    def _pause_reading(self) -> None:
        if not self._read_paused and not self.closing:
            self._read_paused = True
            self._transport.pause_reading()

    def _go_on(self) -> None:
        """Read on if nothing forbids it any more: first what is at hand, then the socket."""
        if not self._read_paused or self.closing or self._is_blocked():
            return
        if self._backlog:
            data, self._backlog = self._backlog, b""
            self._parse(data, len(data))
        if not self.closing and not self._is_blocked():
            self._read_paused = False
            self.moved = True
            self._transport.resume_reading()

    def fed(self) -> None:
        """The listener has memory for frames again."""
        self._starved = False
        self._go_on()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._pause_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.moved = True
        self._answer()

    def _release(self, size: int) -> None:
        self._charged -= size
        self._owner.release(size)

    @property
    def mid_frame(self) -> bool:
        """Waiting for the client to send the rest of something."""
        return not self._read_paused and (self._frame is not None or bool(self._head) or self._proxy_expected)

    @property
    def frame_length(self) -> int:
        """Bytes of the frame that is coming in pieces."""
        return self._frame_length if self._frame is not None else 0

    @property
    def may_be_idle(self) -> bool:
        """Nothing is being answered, or the client does not take what is."""
        return self._write_paused or not self._pending
