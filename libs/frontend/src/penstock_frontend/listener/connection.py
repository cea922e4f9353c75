"""One Kafka connection: bytes in, frames out to the handler, responses back in order.

Theory. Reads go into one buffer that all connections of a listener share, since the
loop reads and hands over in one step; whole small frames are copied out of it. A frame
that did not come whole gets a bytearray of its own and the rest is received straight
into it (`PartialFrame`): a large Produce is copied only for the part that came with its head. One of a client
that may write nowhere is not kept at all (`DeniedFrame`): the handler gets it without its records. One of several
megabytes is handled in parts while it comes (`PartedFrame`): the handler gets requests of some of its partitions, the
client one response when the last is answered (`PartsAnswer`); the rest is not read while too much of it is unanswered.

A handler's answer that is there at once is written at once; a Future gets a callback;
only a coroutine costs a task. Coroutines start in arrival order but after `handle` has
returned: what must happen in order belongs in the synchronous part of `handle`.

Back-pressure. Reading stops while too many requests or bytes are unanswered, while the
client does not take its responses, or while there is no memory for frames (see `FrameMemory`).
Nothing else is queued.

Turns. Requests that came in one read are handled for a slice of time, then the connection
gets in line for the loop (see `LoopTurns`): what is quick to send may be slow to answer.

Stages. Where a listener has a doorkeeper, it gets all frames of a connection until it has
called `admit`; the handler never sees one before that. Till then they are small, and come one at a
time: the next one is not looked at before the one before is answered.

Denials. Who was denied something gets in line with long work, a request at a time: it is served when nobody else
wants the processor. JoinGroups, which wait for others, are few at a time, and beyond the first get in that line too: a
client has one group on a connection.

Quotas. Where anybody has one (`QuotaGate.is_active`) each request carries a charge; its answer says for how long the
client is throttled, and for that time nothing more is read.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections import deque
from collections.abc import Awaitable, Callable
from math import ceil
from time import perf_counter
from typing import Any, Protocol, cast

from penstock_core.security.principal import NOBODY, Identity, Principal, client_identity
from penstock_core.security.quota_book import Account
from penstock_frontend.audit import ASKING, ListenerAudit
from penstock_frontend.listener.answers import CLOSE, NO_RESPONSE, Buffer, Response, Signal, WatchedReply
from penstock_frontend.listener.frame_memory import FrameMemory
from penstock_frontend.listener.limits import ListenerLimits
from penstock_frontend.listener.metrics import ApiStats, KafkaMetrics
from penstock_frontend.listener.partial_frame import (
    DeniedFrame,
    PartedFrame,
    PartialFrame,
    first_room_bytes,
)
from penstock_frontend.listener.parts_answer import PartsAnswer
from penstock_frontend.listener.proxy_protocol import ProxyHeader
from penstock_frontend.listener.quota_gate import Charge, QuotaGate, Timed
from penstock_kafka.wire.apis import ApiKey, is_supported
from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.primitives import Malformed
from penstock_runtime.logs import Log
from penstock_runtime.settings import ListenerSettings
from penstock_runtime.turns import SLICE_S, LoopTurns


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

    audit: ListenerAudit
    memory: FrameMemory
    turns: LoopTurns
    doorkeeper: FrameHandler | None
    """Who gets the frames of connections that are not admitted yet; None lets everybody in."""
    quotas: QuotaGate

    def release(self, connection: Connection, size: int) -> None:
        """Give memory back, and let go on who waits for it."""

    def signed_in(self, connection: Connection) -> None:
        """Its client has."""

    asks_rights: bool
    """Whether clients may be denied anything."""

    def may_write(self, connection: Connection) -> bool:
        """Whether the client may write to anything."""

    def starve(self, connection: Connection) -> None:
        """Call `connection.fed` when memory for frames comes free."""


class _Gone(asyncio.Transport):
    """In the place of a transport that was lost: whatever is asked of it has happened, or does not matter any more."""

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def writelines(self, list_of_data: object) -> None:
        pass


_GONE = _Gone()
_LENGTH = struct.Struct(">i")
_NO_BYTES = bytes(4)
_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
_ESTABLISHED = b"\x01"
_FRAME_BYTES_MIN = 8
"""Api key, version, correlation id."""
_TOKEN_BYTES_MIN = 2
"""What may come as it is after SaslHandshake 0: no mechanism has a shorter message."""
_FLUSH_BYTES = 256 * 1024
_PRODUCE = b"\x00\x00"
"""Its api key, the first two bytes of a frame."""
_TOLD_BYTES = 8
"""Length, api key and version: what has to be there of a large frame to say how it is received."""
_ASKED_BYTES_MIN = 256 * 1024
"""Of a Produce that is larger it is asked before it is held whether its sender may write at all."""

_PARTED_BYTES_MIN = 4 * 1024 * 1024
"""A Produce that is larger is handled in parts. No client sends such a one by default."""
_PARTS_BYTES_MAX = 4 * 1024 * 1024
"""Of its parts that are not answered; then the rest of it is not read."""

_NO_REQUEST = ApiStats()
"""Where a part of a request is counted, and nobody looks."""

_Pending = tuple["asyncio.Future[Response] | None", Response | None, int, ApiStats, float, Charge | None]


class Connection(asyncio.BufferedProtocol):
    """A client's connection, for the handler and for the event loop."""

    __slots__ = (
        "_after_others",
        "_audited",
        "_backlog",
        "_callbacks",
        "_charged",
        "_close_when_empty",
        "_deferred",
        "_entry_count",
        "_frame_bytes_max",
        "_frame_bytes_min",
        "_handler",
        "_head",
        "_inflight_bytes",
        "_inflight_requests_max",
        "_joins",
        "_memory",
        "_metrics",
        "_muted_until_s",
        "_muting",
        "_out",
        "_out_bytes",
        "_owner",
        "_partial",
        "_parts",
        "_pending",
        "_proxied",
        "_quotas",
        "_read_paused",
        "_starved",
        "_tasks",
        "_transport",
        "_write_paused",
        "address",
        "admitted",
        "client_id",
        "closed",
        "closing",
        "deadline_s",
        "identity",
        "items_max",
        "listener",
        "local_host",
        "local_port",
        "mechanism",
        "moved",
        "opened_s",
        "peer_host",
        "peer_port",
        "quota_account",
        "request_count",
        "source",
        "state",
    )

    def __init__(
        self,
        owner: ConnectionOwner,
        address: str = "",
        proxied: ProxyHeader | None = None,
        *,
        source: str = "",
    ) -> None:
        """`address` is whose it counts as, `source` the very address that it came from; `proxied` the header that a
        balancer sent first."""
        self.listener = owner.name
        self.items_max = owner.limits.request_items_max
        self.address = address
        self.source = source or address
        self.peer_host = self.local_host = ""
        self.peer_port = self.local_port = 0
        self.identity: Identity = NOBODY
        """Who the client is and where it comes from: what its rights are decided by."""
        self.client_id: str | None = None
        self.mechanism = ""
        """By which the client has signed in; SSL: by its certificate."""
        self._audited = owner.audit.writes or owner.asks_rights
        self._after_others = False
        self.state: dict[str, Any] = {}
        """The handler's own."""
        self.closed = False
        self.closing = False
        self.moved = True
        """Bytes came or went since the listener last looked."""
        self.request_count = 0
        self._entry_count = 0
        self.opened_s = owner.loop.time()
        self._owner = owner
        self._metrics = owner.metrics
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._memory = owner.memory
        self._quotas = owner.quotas
        self.quota_account: tuple[bytes, Principal, Account] | None = None
        self._muted_until_s = 0.0
        self._muting: asyncio.TimerHandle | None = None
        self._handler = owner.handler
        self.admitted = True
        self.deadline_s: float | None = None
        """When it is closed unless its client has signed in by then; by the loop's clock."""
        self._frame_bytes_min = _FRAME_BYTES_MIN
        self._frame_bytes_max = owner.limits.frame_bytes_max
        self._inflight_requests_max = owner.limits.inflight_requests_max
        if owner.doorkeeper is not None:
            self._handler = owner.doorkeeper
            self.admitted = False
            self.detain(self.opened_s + owner.limits.authentication_timeout_ms / 1000)
        self._proxied = proxied
        self._deferred = False
        self._head = b""
        self._backlog = b""
        self._partial: PartialFrame | None = None
        self._parts: PartsAnswer | None = None
        """Of the request that comes in parts."""
        self._charged = 0
        self._starved = False
        self._pending: deque[_Pending] = deque()
        self._inflight_bytes = 0
        self._joins = 0
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._read_paused = False
        self._write_paused = False
        self._close_when_empty = False
        self._callbacks: list[Callable[[], None]] = []
        self._tasks: set[asyncio.Task[Response]] = set()

    # For the handler

    @property
    def principal(self) -> Principal:
        """Who the client is."""
        return self.identity.principal

    @property
    def audit(self) -> ListenerAudit:
        """Told of who comes to its listener."""
        return self._owner.audit

    @property
    def peer(self) -> str:
        """The client's `host:port`, for logs."""
        return f"{self.peer_host}:{self.peer_port}"

    @property
    def connected(self) -> bool:
        """Whether it came so far; with TLS the handshake may have failed."""
        return self._transport is not None

    @property
    def inflight_count(self) -> int:
        """Requests that wait for their response or its turn."""
        return len(self._pending)

    @property
    def asked_for_nothing(self) -> bool:
        """It made no request but those by which its client has signed in."""
        return self.request_count <= self._entry_count

    @property
    def is_stranger(self) -> bool:
        """It made no request yet, or was not admitted."""
        return not self.request_count or not self.admitted

    def admit(self, principal: Principal, mechanism: str = "", *, watched: bool = False) -> None:
        """For the doorkeeper: from the next frame on the handler gets them, of that principal.

        `watched`: the doorkeeper goes on getting them, and calls `pass_on` for those of the handler.
        """
        self.identity = Identity(principal, self.identity.host)
        self.mechanism = mechanism
        first = not self.admitted
        self.admitted = True
        self.deadline_s = None
        limits = self._owner.limits
        self._frame_bytes_min, self._frame_bytes_max = _FRAME_BYTES_MIN, limits.frame_bytes_max
        self._inflight_requests_max = limits.inflight_requests_max
        if not watched:
            self._handler = self._owner.handler
        if first:
            self._entry_count = self.request_count
            self._owner.signed_in(self)

    def detain(self, deadline_s: float) -> None:
        """For the doorkeeper: the client signs in, by then; its requests are small and come one at a time."""
        limits = self._owner.limits
        self.deadline_s = deadline_s
        self._frame_bytes_min = _TOKEN_BYTES_MIN
        self._frame_bytes_max = min(limits.unauthenticated_frame_bytes_max, limits.frame_bytes_max)
        self._inflight_requests_max = 1

    def was_denied(self) -> None:
        """For the authorizer: something was denied that its client asked for."""
        self._after_others = True

    def pass_on(self, frame: bytearray) -> Response | Awaitable[Response]:
        """For the doorkeeper: what the handler answers to a frame of a client that has signed in."""
        return self._owner.handler.handle(self, frame)

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

    def close_after_responses(self, reason: str, *, to_the_end: bool = False) -> None:
        """Take no more requests; close once those at hand are answered.

        `to_the_end`: a request in parts of which the first are written is one of them, else no more of it is read.
        """
        if not to_the_end:
            self._parts = None
        if not self._close_when_empty:
            self._close_when_empty = True
            if self._parts is None:
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
        if self._proxied is not None and self._proxied.source and self._proxied.destination:
            self.peer_host, self.peer_port = self._proxied.source
            self.local_host, self.local_port = self._proxied.destination
        self.identity = client_identity(self.identity.principal, self.peer_host)
        limits = self._owner.limits
        self._transport.set_write_buffer_limits(high=limits.write_buffer_bytes_max)
        self._owner.opened(self, self._transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.closed = self.closing = True
        if self._muting is not None:
            self._muting.cancel()
        for task in self._tasks:
            task.cancel()
        self._pending.clear()
        self._out.clear()
        self._partial = self._parts = None
        self._backlog = self._head = b""
        self._memory.ended(self.address, self)
        self._release(self._charged)
        self._owner.lost(self)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
        # The loop's TLS holds on to its protocol, and so to itself. A circle would live, with 35 KB of TLS or more,
        # until the next full collection, which is rare (`penstock_runtime.roles`), or for ever once it was frozen.
        # (OpenSSL then forgets the TLS 1.2 session of who left without close_notify, as RFC 2246, 7.2.1 wanted it:
        # such a client's next handshake is a whole one. Stock clients say close_notify.)
        self._transport = _GONE

    def eof_received(self) -> bool:
        return False

    # Event loop: reading

    def get_buffer(self, sizehint: int) -> memoryview:
        partial = self._partial
        return self._owner.scratch if partial is None else partial.room()

    def buffer_updated(self, nbytes: int) -> None:
        self.moved = True
        partial = self._partial
        if partial is None:
            self._parse(self._owner.scratch[:nbytes], nbytes)
            return
        try:
            partial.received(nbytes)
        except Malformed as e:
            self._bad_frame("body", e.message)
            return
        if isinstance(partial, PartedFrame) and partial.wants_cut:
            self._cut(partial)
        elif partial.is_whole:
            self._partial = None
            self._memory.ended(self.address, self)
            self._dispatch(partial.take(), charged=partial.is_held)
            self._flush()
            self._check_blocked()
        elif partial.is_full:
            self._grow(partial)

    def _cut(self, partial: PartedFrame) -> None:
        """Hand over the next part of a large Produce."""
        held_bytes = partial.held_bytes
        try:
            part = partial.cut()
        except Malformed as e:
            self._bad_frame("body", e.message)
            return
        if partial.held_bytes < held_bytes:
            self._release(held_bytes - partial.held_bytes)
        if part is None:
            if partial.is_full:
                self._grow(partial)
            return
        if self._parts is None:
            self._parts = PartsAnswer(self._owner.loop)
        last: RequestHeader | None = None
        if partial.is_whole:
            last = partial.header
            self._partial = None
            self._memory.ended(self.address, self)
            self._release(partial.held_bytes)
        self._dispatch(part, charged=False, parts=self._parts, last=last)
        if last is not None:
            self._parts = None
        self._flush()
        self._check_blocked()
        self._close_if_over()

    def _grow(self, partial: PartialFrame) -> None:
        """More room for the frame that is coming, or wait for memory."""
        growth_bytes = partial.growth_bytes
        if not self._memory.grow(self.address, growth_bytes, self):
            self._starve()
            return
        self._charged += growth_bytes
        partial.grow()

    def _starve(self) -> None:
        self._starved = True
        self._owner.starve(self)
        self._pause_reading()

    def _parse(self, data: memoryview | bytes, size: int) -> None:
        """Hand over every whole frame in `data`, keep the rest."""
        if self._head:
            data = self._head + bytes(data)
            size = len(data)
            self._head = b""
        pos = 0
        until_s = 0.0
        while not self.closing:
            if self._is_blocked():
                self._backlog = bytes(data[pos:size])
                break
            if size - pos < 4:
                self._head = bytes(data[pos:size])
                break
            (length,) = _LENGTH.unpack_from(data, pos)
            if not self._frame_bytes_min <= length <= self._frame_bytes_max:
                self._refuse_length(length, self._frame_bytes_max)
                return
            if size - pos - 4 < length:
                if size - pos < _TOLD_BYTES and length >= _ASKED_BYTES_MIN:
                    self._head = bytes(data[pos:size])
                else:
                    self._begin_frame(length, data, pos, size)
                break
            began_s = self._dispatch(bytearray(data[pos + 4 : pos + 4 + length]), charged=False)
            pos += 4 + length
            if self._after_others:
                # Who is denied one thing after the other, or joins many groups at once, has to wait for all others.
                self._after_others = False
                self._backlog = bytes(data[pos:size])
                self._defer(self._owner.turns.when_not_wanted)
                break
            if began_s >= until_s:
                # By the clock as of its beginning: it costs nothing more, and one request is one too many.
                if until_s and pos < size:
                    self._backlog = bytes(data[pos:size])
                    self._defer(self._owner.turns.later)
                    break
                until_s = began_s + SLICE_S
        self._flush()
        self._check_blocked()

    def _begin_frame(self, length: int, data: memoryview | bytes, pos: int, size: int) -> None:
        """Give a frame that is still coming a buffer of its own."""
        if length >= _ASKED_BYTES_MIN and data[pos + 4 : pos + 6] == _PRODUCE and self._is_denied():
            try:
                self._partial = DeniedFrame(length, data[pos + 4 : size], self._owner.scratch)
            except Malformed as e:
                self._bad_frame("body", e.message)
            return
        kind = PartialFrame
        if length >= _PARTED_BYTES_MIN and data[pos + 4 : pos + 6] == _PRODUCE and self.admitted:
            version = data[pos + 6] << 8 | data[pos + 7]
            kind = PartedFrame if is_supported(ApiKey.PRODUCE, version) else PartialFrame
        have = size - pos - 4
        room = first_room_bytes(length, have, easy=self._memory.is_easy(self.address))
        if not self._memory.charge(self.address, room):
            # Start again at this frame's length once there is memory for it.
            self._backlog = bytes(data[pos:size])
            self._starve()
            return
        self._charged += room
        self._partial = kind(length, data[pos + 4 : size], room)

    def _is_denied(self) -> bool:
        """Whether whatever it writes will be denied."""
        return self.admitted and not self._owner.may_write(self)

    def _defer(self, line: Callable[[Callable[[], None]], None]) -> None:
        """Go on when the loop has turned for others, and it is our turn in that line."""
        self._deferred = True
        self._pause_reading()
        line(self._resume)

    def _resume(self) -> None:
        self._deferred = False
        self._go_on()

    def _refuse_length(self, length: int, most: int) -> None:
        first = _LENGTH.pack(length)
        if length < self._frame_bytes_min:
            what = f"a request of {length} bytes"
        else:
            what = f"a request of {length} bytes, the most is {most}"
            if self.deadline_s is not None:
                what += " before its client has signed in"
        if first in (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI"):
            what += " (this is HTTP; the Kafka port does not speak it)"
        elif first[:2] == b"\x16\x03":
            what += f" (this is TLS; the listener is {self._owner.settings.security})"
        self._bad_frame("frame_length", what)

    def _bad_frame(self, label: str, reason: str) -> None:
        self._metrics.bad_frames[self.listener, label] += 1
        self._owner.log.warning("bad request, closing", peer=self.peer, reason=reason)
        self._owner.audit.refused(self.identity.host, reason, self)
        self.close(reason)

    def refuse(self, label: str, reason: str) -> Signal:
        """Count and log a request that cannot be answered; gives CLOSE for the handler to return."""
        self._metrics.bad_frames[self.listener, label] += 1
        self._owner.log.warning(
            "bad request, closing", peer=self.peer, client_id=self.client_id, reason=reason
        )
        self._owner.audit.refused(self.identity.host, reason, self)
        return CLOSE

    # Requests and responses

    def _dispatch(
        self,
        frame: bytearray,
        *,
        charged: bool,
        parts: PartsAnswer | None = None,
        last: RequestHeader | None = None,
    ) -> float:
        """Hand one frame over and take what the handler gives for it; when that began.

        `parts`: it is a part of a request, which has the header `last` if it is the last one.
        """
        started_s = arrived_s = perf_counter()
        size = len(frame)
        self._metrics.received_bytes[self.listener] += size + 4
        api_key = frame[0] << 8 | frame[1]
        stats = self._metrics.api(api_key)
        if parts is None:
            self.request_count += 1
        else:
            arrived_s, stats = self._part_arrived(parts, started_s, None if last is None else stats)
        if self._audited:
            ASKING.set((self, api_key))
        charge: Charge | None = None
        result: Response | Awaitable[Response]
        try:
            if self._quotas.is_active and self.admitted:
                charge = self._quotas.arrived(self, frame, goes_on=parts is not None and last is None)
            answer = None if charge is None else charge.answer
            result = self._handler.handle(self, frame) if answer is None else answer
            if parts is not None:
                result = parts.add(result) if last is None else parts.finish(last, result)
        except Exception as e:
            self._handler_failed(e)
            return started_s
        if charge is not None:
            charge.spent_s = perf_counter() - started_s
            if parts is not None:
                charge = self._part_spent(parts, charge, goes_on=last is None)
        kind = type(result)
        response: Response | None = None
        future: asyncio.Future[Response] | None = None
        if kind is list or kind is tuple or kind is Signal or kind is bytes:
            response = result  # type: ignore[assignment]
        else:
            future = result if isinstance(result, asyncio.Future) else self._task_of(result, charge)
            if future is None:
                return started_s
            future.add_done_callback(self._on_done)
        if future is None and not self._pending:
            if charged:
                self._release(size)
            stats.observe(perf_counter() - arrived_s)
            self._emit(response, charge)  # type: ignore[arg-type]
            return started_s
        if not charged:
            self._memory.charge(self.address, size, force=True)
            self._charged += size
        self._inflight_bytes += size
        if api_key == ApiKey.JOIN_GROUP:
            self._joins += 1
            self._after_others = self._after_others or self._joins > 1
        self._pending.append((future, response, size, stats, arrived_s, charge))
        return started_s

    def _part_arrived(
        self, parts: PartsAnswer, now_s: float, stats: ApiStats | None
    ) -> tuple[float, ApiStats]:
        """It is one request, from its first part to the answer of all: since when, and where this part counts.

        `stats`: where its last part does.
        """
        if not parts.began_s:
            parts.began_s = now_s
            self.request_count += 1
        return parts.began_s, _NO_REQUEST if stats is None else stats

    @staticmethod
    def _part_spent(parts: PartsAnswer, charge: Charge, *, goes_on: bool) -> Charge | None:
        """The client waits once, for all: between two parts its request might run out of its time."""
        charge.spent_s = parts.spent_s = parts.spent_s + charge.spent_s
        return None if goes_on else charge

    def _task_of(self, result: object, charge: Charge | None) -> asyncio.Task[Response] | None:
        """A coroutine's; None and the end of the connection for anything else."""
        if not asyncio.iscoroutine(result):
            self._handler_failed(TypeError(f"handler answered with {type(result).__name__}"))
            return None
        task = self._owner.loop.create_task(result if charge is None else Timed(result, charge))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

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
        written: list[Callable[[], None]] = []
        while pending and not self._write_paused and not self.closing:
            future, response, size, stats, arrived_s, charge = pending[0]
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
            if self._joins and stats is self._metrics.apis.get(ApiKey.JOIN_GROUP):
                self._joins -= 1
            self._inflight_bytes -= size
            self._release(size)
            stats.observe(perf_counter() - arrived_s)
            self._emit(response, charge)  # type: ignore[arg-type]
            if type(future) is WatchedReply and future.on_written is not None:
                written.append(future.on_written)
        self._flush()
        for tell in written:
            tell()
        if self._close_when_empty:
            self._close_if_over()
        self._go_on()

    def _close_if_over(self) -> None:
        if self._close_when_empty and not self._pending and self._parts is None:
            self.close("all responses are sent")

    def _emit(self, response: Response, charge: Charge | None) -> None:
        """Queue one response for the next flush."""
        if charge is not None:
            if not isinstance(response, Signal):
                response = self._quotas.answered(self, charge, response)
            elif response is NO_RESPONSE:
                self._quotas.unanswered(self, charge)
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
            or self._muting is not None
            or (self._close_when_empty and self._parts is None)
            or len(self._pending) >= self._inflight_requests_max
            or self._joins >= limits.inflight_joins_max
            or self._inflight_bytes
            >= (limits.inflight_bytes_max if self._parts is None else _PARTS_BYTES_MAX)
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
        if not self._read_paused or self.closing or self._deferred or self._is_blocked():
            return
        if self._backlog:
            data, self._backlog = self._backlog, b""
            self._parse(data, len(data))
        if not self.closing and not self._deferred and not self._is_blocked():
            self._read_paused = False
            self.moved = True
            self._transport.resume_reading()

    def mute(self, throttle_ms: int) -> None:
        """Read no request for so long; those that were read are answered meanwhile (KIP-219)."""
        # Not by the loop's clock, which counts whole milliseconds: the client was told the whole time.
        self._muted_until_s = max(self._muted_until_s, perf_counter() + throttle_ms / 1000)
        if self._muting is None and not self.closing:
            self._muting = self._owner.loop.call_later(throttle_ms / 1000, self._unmute)
            self._pause_reading()

    def _unmute(self) -> None:
        rest_s = self._muted_until_s - perf_counter()
        if rest_s > 0 and not self.closing:
            # A part of a millisecond counts as none there, and would be asked for again and again.
            self._muting = self._owner.loop.call_later(ceil(rest_s * 1000) / 1000, self._unmute)
            return
        self._muting = None
        self._go_on()

    def fed(self) -> None:
        """The listener may have memory for frames again."""
        self._starved = False
        if self.closing:
            return
        if self._partial is not None and self._partial.is_full:
            self._grow(self._partial)
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
        self._owner.release(self, size)

    def is_there(self) -> bool:
        """Whether the client has not closed its end, as far as this machine has heard: what it sent before that may
        not have been read yet."""
        if self.closed or self.closing:
            return False
        raw = self._transport.get_extra_info("socket")
        if raw is None or raw.fileno() < 0 or _TCP_INFO is None:
            return True
        try:
            # The first byte of struct tcp_info is the connection's state.
            return bool(raw.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1) == _ESTABLISHED)
        except OSError:
            return True  # a socket of another kind

    def is_too_slow(self, elapsed_s: float) -> bool:
        """Called every second: whether the request that comes in pieces has fallen too far behind.

        While it waits for memory of ours only that counts whether the client has sent more.
        """
        partial = self._partial
        if partial is None or (self._read_paused and not self._starved):
            return False
        received = partial.sweep()
        if self._starved and self._has_unread():
            return False
        return partial.falls_behind(received, elapsed_s) > self._owner.limits.frame_timeout_ms / 1000

    def _has_unread(self) -> bool:
        raw = self._transport.get_extra_info("socket")
        if raw is None or raw.fileno() < 0:
            return False
        return fcntl.ioctl(raw.fileno(), termios.FIONREAD, _NO_BYTES) != _NO_BYTES

    @property
    def mid_frame(self) -> bool:
        """Waiting for the client to send the rest of something."""
        return not self._read_paused and (self._partial is not None or bool(self._head))

    @property
    def frame_length(self) -> int:
        """Bytes of the frame that is coming in pieces."""
        return 0 if self._partial is None else self._partial.length

    @property
    def may_be_idle(self) -> bool:
        """Nothing is being answered, or the client does not take what is; and it is not we who do not read."""
        return self._muting is None and (self._write_paused or not self._pending)
