"""One native Produce stream: batches in, acknowledgements out in the order of the requests.

A batch too large for one message comes in several, and takes memory as they come. Unacknowledged
batches are bounded by count and bytes; then the stream is read no
further, and gRPC's flow control holds the client. The same holds who is above its quota.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.limits import KAFKA_FRAME_BYTES_MAX
from penstock_gateway.relay.client_relay import ClientRelay
from penstock_gateway.rpc.offsets import produce, produce_result
from penstock_kafka.wire.primitives import Buffer
from penstock_proto.v1 import gateway_pb2 as pb

INFLIGHT_REQUESTS_MAX: Final = 256
INFLIGHT_BYTES_MAX: Final = 32 * 1024 * 1024
TIMEOUT_DEFAULT_MS: Final = 30_000
TIMEOUT_MAX_MS: Final = 600_000


class _Waiting(NamedTuple):
    """A request that is not answered yet."""

    request: pb.ProduceRequest
    size_bytes: int
    answer: asyncio.Future[Buffer]


class ProduceStream:
    """State of one stream; `read` and `responses` run side by side."""

    def __init__(
        self,
        client: ClientRelay,
        batch_bytes_max: int = KAFKA_FRAME_BYTES_MAX,
        use_quota_ms: Callable[[int], int] = lambda _: 0,
    ) -> None:
        """`use_quota_ms` takes the bytes of a batch and says for how long nothing more is read."""
        self._use_quota_ms = use_quota_ms
        self._batch_bytes_max = batch_bytes_max
        self._begun: tuple[pb.ProduceRequest, bytearray] | None = None
        """A request whose batch is not whole yet, and what came of it."""
        self._client = client
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._ended = False
        self._failure: PenstockError | None = None
        self._came = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def read(self, requests: AsyncIterator[pb.ProduceRequest]) -> None:
        """Submit requests as they come, for as long as there is room."""
        try:
            async for request in requests:
                await self._room.wait()
                if request.more or self._begun is not None:
                    whole = self._join(request)
                    if whole is None:
                        continue
                    waiting = _Waiting(whole[0], len(whole[1]), self._submit(*whole))
                else:
                    records = request.records
                    waiting = _Waiting(request, len(records), self._submit(request, records))
                self._waiting.append(waiting)
                self._bytes += waiting.size_bytes
                if len(self._waiting) >= INFLIGHT_REQUESTS_MAX or self._bytes >= INFLIGHT_BYTES_MAX:
                    self._room.clear()
                self._came.set()
                if wait_ms := self._use_quota_ms(waiting.size_bytes):
                    await asyncio.sleep(wait_ms / 1000)
            if self._begun is not None:
                raise PenstockError(
                    ErrorCode.INVALID_REQUEST, f"the end of request {self._begun[0].request_id} did not come"
                )
        except PenstockError as e:
            self._failure = e
        finally:
            self._ended = True
            self._came.set()

    async def responses(self) -> AsyncIterator[pb.ProduceResponse]:
        """Acknowledgements, in order; ends when the client has ended and all is answered."""
        while True:
            while not self._waiting:
                if self._failure is not None:
                    raise self._failure
                if self._ended:
                    return
                self._came.clear()
                await self._came.wait()
            request, size_bytes, future = self._waiting[0]
            response = await _response(request, future)
            self._waiting.popleft()
            self._bytes -= size_bytes
            if len(self._waiting) < INFLIGHT_REQUESTS_MAX and self._bytes < INFLIGHT_BYTES_MAX:
                self._room.set()
            yield response

    def _join(self, request: pb.ProduceRequest) -> tuple[pb.ProduceRequest, bytearray] | None:
        """Take in a part of a request; the request and its batch with the last one. Raises PenstockError."""
        if self._begun is None:
            self._begun = request, bytearray()
        first, records = self._begun
        if request.request_id != first.request_id:
            raise PenstockError(
                ErrorCode.INVALID_REQUEST,
                f"request {request.request_id} begins before the end of request {first.request_id} came",
            )
        part = request.records
        if len(records) + len(part) > self._batch_bytes_max:
            raise PenstockError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batch of request {first.request_id} is above socket_request_max_bytes={self._batch_bytes_max}",
            )
        records += part
        request.ClearField("records")
        if request.more:
            return None
        self._begun = None
        return first, records

    def _submit(self, request: pb.ProduceRequest, records: bytes | bytearray) -> asyncio.Future[Buffer]:
        if request.acks not in (-1, 0, 1):
            return _failed(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {request.acks}: give 1, or -1 for all")
        acks = request.acks or -1
        timeout_ms = min(request.timeout_ms or TIMEOUT_DEFAULT_MS, TIMEOUT_MAX_MS)
        return produce(
            self._client,
            request.topic,
            request.partition,
            records,
            acks,
            timeout_ms,
            request.transactional_id,
        )


def _failed(code: ErrorCode, message: str) -> asyncio.Future[Buffer]:
    future: asyncio.Future[Buffer] = asyncio.get_running_loop().create_future()
    future.set_exception(PenstockError(code, message))
    return future


async def _response(request: pb.ProduceRequest, future: asyncio.Future[Buffer]) -> pb.ProduceResponse:
    response = pb.ProduceResponse(
        request_id=request.request_id, base_offset=-1, log_append_time_ms=-1, log_start_offset=-1
    )
    try:
        result = produce_result(await future, request.transactional_id)
    except PenstockError as e:
        response.error.code, response.error.message = e.code, e.message
        return response
    response.base_offset = result.base_offset
    response.log_append_time_ms = result.log_append_time_ms
    response.log_start_offset = result.log_start_offset
    if result.receipt is not None:
        response.receipt.leader_epoch = result.receipt.leader_epoch
        response.receipt.held_by.extend(result.receipt.held_by)
        response.receipt.flushed_by.extend(result.receipt.flushed_by)
    if result.error:
        where = f"{request.topic}-{request.partition}"
        response.error.code = result.error
        response.error.message = f"{where}: {result.error_message or _name(result.error)}"
    return response


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"Kafka error {code}"
