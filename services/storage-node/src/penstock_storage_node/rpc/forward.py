"""Forward: Kafka requests that a gateway relays, one stream per client connection.

Requests are handled in the order of their arrival and answered as they get ready, tagged with
their id; the gateway puts the order right again. Both directions are bounded: reading stops
while too many request bytes are unanswered, and handling while too many response bytes wait.
A request that comes in parts takes the memory of the bytes that came, whatever was announced.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable
from dataclasses import dataclass

import grpc
import grpc.aio

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.limits import FORWARD_CHUNK_BYTES_MAX, KAFKA_FRAME_BYTES_CEILING, KAFKA_FRAME_BYTES_MAX
from penstock_core.security.principal import ANONYMOUS, Identity, Principal, client_identity
from penstock_frontend.listener.listener import CLOSE, NO_RESPONSE, Buffer, Response
from penstock_kafka.error_responses.data import error_response
from penstock_kafka.wire.apis import is_supported
from penstock_kafka.wire.frames import RequestHeader, parse_request_header
from penstock_kafka.wire.primitives import REQUEST_ITEMS_MAX
from penstock_proto.fast.forward import (
    ForwardedFrame,
    ask_frame,
    decode_forward_request,
    forward_response_frame,
)
from penstock_proto.fast.primitives import MalformedMessage
from penstock_proto.v1 import storage_pb2 as pb
from penstock_runtime.grpc_tools import fail
from penstock_runtime.logs import error_fields
from penstock_runtime.metadata_client import MetadataClient
from penstock_runtime.security.callers import gateway_of_call
from penstock_runtime.turns import SLICE_S, LoopTurns
from penstock_storage_node.kafka.client_stream import ClientStream
from penstock_storage_node.kafka.dispatch import DataApis
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.rpc.bidirectional import run_both_ways
from penstock_storage_node.rpc.replicate_leader import Context

METADATA_WAIT_MS_MAX = 1000
"""How long a request waits for this node to reach the gateway's metadata version."""
REQUEST_BYTES_MAX = 16 * 1024 * 1024
"""Unanswered request bytes of one stream; one request may exceed it."""
REQUESTS_MAX = 256
RESPONSE_BYTES_MAX = 8 * 1024 * 1024
"""Response bytes of one stream that the gateway has not taken yet."""
MESSAGE_BYTES = FORWARD_CHUNK_BYTES_MAX
STREAMS_PER_GATEWAY_MAX = 20_000
"""Twice the connections of a listener: a stream is one client's."""
OPEN_TIMEOUT_MS = 5000


@dataclass(slots=True)
class _Answer:
    """A response, or the rest of one."""

    request_id: int
    buffers: deque[Buffer]
    left_bytes: int
    total_bytes: int
    signal: object
    caller: RequestContext
    ready_s: float
    begun: bool = False


class ForwardStream:
    """One stream. Reader and writer are two tasks; `close` ends both."""

    def __init__(
        self,
        context: Context,
        opened: pb.ForwardOpen,
        data: DataApis,
        manager: ReplicaManager,
        metadata: MetadataClient,
        frame_bytes_max: int = KAFKA_FRAME_BYTES_MAX,
        items_max: int = REQUEST_ITEMS_MAX,
    ) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._context = context
        self._items_max = items_max
        self._turns = LoopTurns.of(manager.lifecycle)
        self._data = data
        self._manager = manager
        self._metadata = metadata
        self._identity = identity_of(opened)
        self._peer = opened.client_host
        self._client = ClientStream(ask=self._ask)
        self._asks: list[int] = []
        self._partial: bytearray | None = None
        self._first = ForwardedFrame()
        self._skips = False
        """The request that comes is too large: its parts are dropped."""
        self._request_bytes = 0
        self._request_count = 0
        self._response_bytes = 0
        self._answers: deque[_Answer] = deque()
        self._sent: list[_Answer] = []
        """Whole in the message that is being written."""
        self._room = asyncio.Event()
        self._ready = asyncio.Event()
        self._is_ending = False
        self._tasks: dict[asyncio.Future[Response], None] = {}

    def close(self) -> None:
        """The client has gone: give up what still runs for it."""
        self._client.end()
        for task in list(self._tasks):
            if isinstance(task, asyncio.Task):
                task.cancel()

    # -- requests -----------------------------------------------------------------

    async def read(self, frames: list[ForwardedFrame]) -> None:
        """Take in requests until the gateway ends the stream."""
        clock_s = self._turns.clock_s
        while True:
            until_s = clock_s() + SLICE_S
            for frame in frames:
                await self._take(frame)
                if clock_s() >= until_s:
                    # What is quick to send may be slow to check: others are to have their turn.
                    await self._turns.next()
                    until_s = clock_s() + SLICE_S
            message = await self._context.read()
            if message is grpc.aio.EOF:  # type: ignore[attr-defined]
                return
            frames = decode_forward_request(message).frames

    async def _take(self, frame: ForwardedFrame) -> None:
        if frame.there:
            self._client.told(frame.request_id)
            return
        if self._partial is None:
            self._first = frame
            if frame.last:
                await self._handle(frame, frame.chunk)
                return
            if not len(frame.chunk) <= frame.frame_bytes <= KAFKA_FRAME_BYTES_CEILING:
                raise PenstockError(
                    ErrorCode.INVALID_REQUEST, f"frame of {frame.frame_bytes} bytes announced"
                )
            self._partial = bytearray()
            self._skips = frame.frame_bytes > self._frame_bytes_max
        elif frame.request_id != self._first.request_id:
            raise PenstockError(ErrorCode.INVALID_REQUEST, "parts of two requests are mixed")
        if self._skips:
            if frame.last:
                self._partial = None
                self._refuse_size(self._first)
            return
        whole = self._partial
        if len(whole) + len(frame.chunk) > self._first.frame_bytes:
            raise PenstockError(ErrorCode.INVALID_REQUEST, "more bytes than the first part announced")
        whole += frame.chunk  # what was announced is nobody's memory yet
        if frame.last:
            if len(whole) != self._first.frame_bytes:
                raise PenstockError(ErrorCode.INVALID_REQUEST, "fewer bytes than the first part announced")
            self._partial = None
            await self._handle(self._first, whole)

    def _refuse_size(self, first: ForwardedFrame) -> None:
        """The gateway takes larger requests than this node: the client is told what a listener would tell it."""
        self._manager.lifecycle.log.warning(
            "relayed request refused",
            peer=self._peer,
            reason=f"it has {first.frame_bytes} bytes, socket_request_max_bytes of this node is"
            f" {self._frame_bytes_max}",
        )
        self._request_count += 1
        self._answer(first.request_id, 0, RequestContext(self._identity, None, self._peer), CLOSE)

    async def _handle(self, first: ForwardedFrame, frame: Buffer) -> None:
        """Answer one request. What comes after it on the stream waits until its part that must
        be in order is done."""
        caller = RequestContext(self._identity, None, self._peer, stream=self._client)
        caller.begun_s = self._manager.clocks.s()
        caller.traceparent = first.traceparent
        while (
            self._request_count
            and (self._request_bytes + len(frame) > REQUEST_BYTES_MAX or self._request_count >= REQUESTS_MAX)
        ) or self._response_bytes > RESPONSE_BYTES_MAX:
            self._room.clear()
            await self._room.wait()
        if first.metadata_version > self._metadata.image.version:
            most_ms = METADATA_WAIT_MS_MAX
            if first.deadline_ms:
                most_ms = min(most_ms, first.deadline_ms)
            await self._metadata.wait_for_version(first.metadata_version, most_ms)
        self._manager.metrics.forward_requests += 1
        self._request_bytes += len(frame)
        self._request_count += 1
        size = len(frame)
        result = self._start(caller, frame)
        if isinstance(result, Awaitable):
            future = asyncio.ensure_future(result)
            self._tasks[future] = None
            future.add_done_callback(lambda done: self._on_done(first.request_id, size, caller, done))
        else:
            self._answer(first.request_id, size, caller, result)

    def _start(self, caller: RequestContext, frame: Buffer) -> Response | Awaitable[Response]:
        try:
            header = parse_request_header(frame, self._items_max)
            caller.client_id = header.client_id
            if self._data.handles(header.api_key) and is_supported(header.api_key, header.api_version):
                return self._data.handle(caller, header, frame)
            return self._refuse(header, frame)
        except PenstockError as e:
            self._manager.lifecycle.log.warning("relayed request refused", peer=self._peer, reason=str(e))
            return CLOSE

    def _refuse(self, header: RequestHeader, frame: Buffer) -> Response:
        answer = error_response(
            header,
            frame,
            ErrorCode.UNSUPPORTED_VERSION,
            f"api key {header.api_key} version {header.api_version} is not answered by storage nodes",
        )
        return CLOSE if answer is None else [answer]

    # -- responses ----------------------------------------------------------------

    def _on_done(
        self, request_id: int, size: int, caller: RequestContext, done: asyncio.Future[Response]
    ) -> None:
        self._tasks.pop(done, None)
        if done.cancelled():
            self._request_count -= 1
            return
        error = done.exception()
        if error is None:
            self._answer(request_id, size, caller, done.result())
            return
        if isinstance(error, PenstockError):
            self._manager.lifecycle.log.warning("relayed request failed", peer=self._peer, reason=str(error))
        else:
            self._manager.lifecycle.unhandled_errors.inc()
            self._manager.lifecycle.log.error("relayed request failed", **error_fields(error))
        self._answer(request_id, size, caller, CLOSE)

    def _answer(self, request_id: int, size: int, caller: RequestContext, response: Response) -> None:
        self._request_bytes -= size
        self._request_count -= 1
        self._room.set()
        ready_s = self._manager.clocks.s()
        if response is CLOSE or response is NO_RESPONSE:
            self._answers.append(_Answer(request_id, deque(), 0, 0, response, caller, ready_s))
        else:
            buffers = deque([response] if isinstance(response, bytes) else response)
            total = sum(map(len, buffers))
            self._response_bytes += total
            self._answers.append(_Answer(request_id, buffers, total, total, None, caller, ready_s))
        self._ready.set()

    def stop_writing(self) -> None:
        """Let `write` return between two messages."""
        self._is_ending = True
        self._ready.set()

    async def write(self) -> None:
        """Send responses as they come, several in a message."""
        while not self._is_ending:
            self._ready.clear()
            message = self._next_message()
            if message:
                await self._context.write(message)
                self._time_sent()
            else:
                await self._ready.wait()

    def _time_sent(self) -> None:
        now_s, phases = self._manager.clocks.s(), self._manager.metrics.phases
        for answer in self._sent:
            phases[answer.caller.api]["send"].observe(now_s - answer.ready_s)
            if (trace := answer.caller.trace) is not None:
                trace.tell("answer", answer.ready_s, now_s, {"penstock.response_bytes": answer.total_bytes})
                trace.end(now_s)
        self._sent.clear()

    def _ask(self, number: int) -> None:
        """Ask whether the client is still there."""
        self._asks.append(number)
        self._ready.set()

    def _next_message(self) -> bytes:
        parts: list[Buffer] = [ask_frame(number) for number in self._asks]
        self._asks.clear()
        budget = MESSAGE_BYTES
        while self._answers and budget > 0:
            answer = self._answers[0]
            chunk, size = _cut(answer.buffers, min(budget, answer.left_bytes))
            answer.left_bytes -= size
            last = answer.left_bytes == 0
            parts += forward_response_frame(
                answer.request_id,
                chunk,
                size,
                last=last,
                frame_bytes=0 if answer.begun else answer.total_bytes,
                none=answer.signal is NO_RESPONSE,
                close_connection=answer.signal is CLOSE,
                concerns_router=answer.caller.concerns_router,
            )
            answer.begun = True
            budget -= size + _FRAME_OVERHEAD_BYTES
            self._response_bytes -= size
            if last:
                self._sent.append(self._answers.popleft())
        if parts:
            self._room.set()
        return b"".join(parts)


_FRAME_OVERHEAD_BYTES = 32


def _cut(buffers: deque[Buffer], size: int) -> tuple[list[Buffer], int]:
    """The first `size` bytes, taken out of `buffers`."""
    out: list[Buffer] = []
    left = size
    while left > 0:
        buffer = buffers.popleft()
        if len(buffer) > left:
            view = memoryview(buffer)
            out.append(view[:left])
            buffers.appendleft(view[left:])
            return out, size
        out.append(buffer)
        left -= len(buffer)
    return out, size


def identity_of(opened: pb.ForwardOpen) -> Identity:
    """For whom a stream is; a gateway of before tells the principal as text."""
    if opened.principal_type:
        principal = Principal(opened.principal_type, opened.principal_name)
    else:
        kind, _, name = opened.principal.partition(":")
        principal = Principal(kind, name) if name else ANONYMOUS
    return client_identity(principal, opened.client_host)


class ForwardService:
    """Handler of the call."""

    def __init__(
        self,
        data: DataApis,
        manager: ReplicaManager,
        metadata: MetadataClient,
        frame_bytes_max: int = KAFKA_FRAME_BYTES_MAX,
        request_items_max: int = REQUEST_ITEMS_MAX,
        streams_per_gateway_max: int = STREAMS_PER_GATEWAY_MAX,
    ) -> None:
        """`frame_bytes_max`: a larger request closes its client's connection, as at a listener; so does one
        with more than `request_items_max` items. A gateway has `streams_per_gateway_max` streams at a time."""
        self._streams_max = streams_per_gateway_max
        self._streams: Counter[str] = Counter()
        self._frame_bytes_max = frame_bytes_max
        self._data = data
        self._manager = manager
        self._metadata = metadata
        self._items_max = request_items_max

    async def forward(self, _: object, context: Context) -> None:
        """Serve one stream."""
        async with asyncio.timeout(OPEN_TIMEOUT_MS / 1000):
            message = await context.read()
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]
            return
        try:
            first = decode_forward_request(message)
        except MalformedMessage as e:
            await fail(context, grpc.StatusCode.INVALID_ARGUMENT, str(e))
        if first.open is None:
            await fail(context, grpc.StatusCode.INVALID_ARGUMENT, "the first message lacks `open`")
        if first.open.node_id != self._manager.registry.node_id:
            await fail(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this is node {self._manager.registry.node_id}, not {first.open.node_id}",
            )
        gateway_id = gateway_of_call(first.open.gateway_id)
        if self._streams[gateway_id] >= self._streams_max:
            await fail(
                context,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"gateway {gateway_id} has {self._streams_max} streams to this node:"
                " forward_streams_per_gateway_max",
            )
        self._streams[gateway_id] += 1
        self._manager.metrics.forward_streams += 1
        stream = ForwardStream(
            context,
            first.open,
            self._data,
            self._manager,
            self._metadata,
            self._frame_bytes_max,
            self._items_max,
        )
        try:
            await run_both_ways(stream.read(first.frames), stream.write(), stream.stop_writing)
        except (MalformedMessage, PenstockError) as e:
            await fail(context, grpc.StatusCode.INVALID_ARGUMENT, str(e))
        finally:
            stream.close()
            self._streams[gateway_id] -= 1
            if not self._streams[gateway_id]:
                del self._streams[gateway_id]
