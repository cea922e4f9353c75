"""FetchRange relayed: one client call over as many leaders as it takes.

The node's responses are passed on as bytes. When the leader is lost or moves, the call
goes on at the new leader from the offset after the last batch passed on, so offsets are
never skipped and none is repeated beyond a batch that both streams hold (readers drop what
lies outside of what they asked, as they must anyhow). `to_offset` -1, the high watermark
at the call's arrival, is pinned by the first response, so that it means the same after
a resume. Without progress for STALL_MS the call fails with UNAVAILABLE.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final

import grpc
import grpc.aio

from penstock_core.errors import CHECK_PARTITION, FIND_LEADER, REFRESH_METADATA, ErrorCode, InvariantBroken
from penstock_core.ids import TopicPartition
from penstock_core.metadata.image import MetadataImage, NodeImage
from penstock_core.security.principal import Identity
from penstock_proto.fast.fetch_range import scan
from penstock_proto.fast.primitives import MalformedMessage
from penstock_proto.v1 import data_pb2
from penstock_runtime.grpc_tools import CHANNEL_CLOSED, ChannelPool, was_cut_off
from penstock_runtime.metadata_client import MetadataClient
from penstock_runtime.security.methods import STORAGE_NODE

METHOD: Final = "/penstock.v1.Storage/FetchRange"
STALL_MS: Final = 10_000
BACKOFF_MIN_MS: Final = 20
BACKOFF_MAX_MS: Final = 500

_RETRIABLE_STATUS: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.ABORTED,
    }
)
_RETRIABLE_CODES: Final = (
    FIND_LEADER
    | REFRESH_METADATA
    | CHECK_PARTITION
    | {ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.BROKER_NOT_AVAILABLE}
)
"""A node's errors that the reader is not told: the leader is looked for again, in newer metadata."""


class RangeFailed(Exception):
    """The call is over: a gRPC status and one line."""

    def __init__(self, status: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class RangeRelay:
    """One FetchRange call of a client."""

    def __init__(
        self,
        metadata: MetadataClient,
        channels: ChannelPool,
        request: data_pb2.FetchRangeRequest,
        key: TopicPartition,
        clock_ms: Callable[[], int],
        who: Identity,
    ) -> None:
        """`who` reads: what the client's own request says of that is written over."""
        self._metadata = metadata
        self._channels = channels
        self._key = key
        self._clock_ms = clock_ms
        self._next = data_pb2.FetchRangeRequest()
        self._next.CopyFrom(request)
        self._next.topic_id = key.topic_id
        self._next.principal_type, self._next.principal_name = who.principal
        self._next.client_host = who.host
        self._call: Any = None
        self._serving: tuple[int, int, int] | None = None
        self._moved = False
        self._changed = asyncio.Event()
        self._reason = "no leader"

    async def responses(self) -> AsyncGenerator[bytes, None]:
        """Encoded responses for the client; raises RangeFailed."""
        off = self._metadata.on_change(lambda _old, new, _records: self._image_changed(new))
        progress_ms, failures = self._clock_ms(), 0
        try:
            while True:
                leader = self._leader(self._metadata.image)
                if leader is not None:
                    before = self._next.from_offset
                    async with aclosing(self._stream(*leader)) as steps:
                        async for data, done in steps:
                            yield data
                            if done:
                                return
                    if self._next.from_offset > before:
                        progress_ms, failures = self._clock_ms(), 0
                if self._clock_ms() - progress_ms >= STALL_MS:
                    raise RangeFailed(
                        grpc.StatusCode.UNAVAILABLE,
                        f"{self._next.topic}-{self._key.partition} at offset {self._next.from_offset}: "
                        f"{self._reason}; try again from there",
                    )
                await self._pause(failures)
                failures += 1
        finally:
            off()
            if self._call is not None:
                self._call.cancel()

    def _leader(self, image: MetadataImage) -> tuple[NodeImage, tuple[int, int, int]] | None:
        if self._key.topic_id not in image.topics:
            raise RangeFailed(
                grpc.StatusCode.NOT_FOUND, f"topic {self._next.topic!r} was deleted while it was read"
            )
        partition = image.partition(*self._key)
        node = None if partition is None else image.nodes.get(partition.leader)
        if partition is None or node is None or node.fenced:
            return None
        return node, (partition.leader, partition.leader_epoch, node.node_epoch)

    def _image_changed(self, image: MetadataImage) -> None:
        self._changed.set()
        if self._serving is None:
            return
        try:
            leader = self._leader(image)
        except RangeFailed:
            leader = None
        if leader is None or leader[1] != self._serving:
            self._moved = True
            if self._call is not None:
                self._call.cancel()

    async def _stream(
        self, node: NodeImage, serving: tuple[int, int, int]
    ) -> AsyncGenerator[tuple[bytes, bool], None]:
        """What one leader gives; ends when another attempt is due, raises RangeFailed when none is."""
        self._serving, self._moved = serving, False
        channel = self._channels.get(node.grpc.address, STORAGE_NODE)
        opened: Any = channel.unary_stream(METHOD, None, None)  # bytes as they are
        self._call = call = opened(self._next.SerializeToString())
        try:
            while (data := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                try:
                    step = scan(data)
                except MalformedMessage as e:
                    raise InvariantBroken(str(e)) from None
                if step.error in _RETRIABLE_CODES:
                    self._reason = step.message or ErrorCode(step.error).name
                    return
                if step.error == 0:
                    self._note(step.next_offset, step.high_watermark)
                yield data, step.done or step.error != 0
            self._reason = "the leader ended the stream early"
        except grpc.aio.AioRpcError as e:
            self._reason = e.details() or e.code().name
            if e.code() not in _RETRIABLE_STATUS:
                raise RangeFailed(e.code(), self._reason) from None
        except asyncio.CancelledError:
            # Cancelled by ourselves because the leader moved, or by the client's going away.
            if not self._moved and not was_cut_off():
                raise
            self._reason = "the leader moved" if self._moved else CHANNEL_CLOSED
        finally:
            self._serving = None
            call.cancel()

    def _note(self, next_offset: int, high_watermark: int) -> None:
        if next_offset > self._next.from_offset:
            self._next.from_offset = next_offset
        if self._next.to_offset < 0:
            self._next.to_offset = max(high_watermark, 0)

    async def _pause(self, failures: int) -> None:
        """Wait for newer metadata, or a little."""
        wait_ms = min(BACKOFF_MIN_MS << min(failures, 8), BACKOFF_MAX_MS)
        self._changed.clear()
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._changed.wait()
        except TimeoutError:
            return
