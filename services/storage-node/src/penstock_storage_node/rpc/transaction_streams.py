"""Transactions, the end that opens the stream: this node's markers and questions, to other nodes.

A stream is opened when there is something for a node, and stays. What is sent while it is being opened goes by it. When
it breaks, all that was on its way is told as lost, and goes again as its senders see fit: by a stream with a higher
number, at whose hello the other end drops what is left of this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from penstock_core.ids import NodeId
from penstock_core.metadata.image import NodeImage
from penstock_proto.v1 import storage_pb2 as pb
from penstock_runtime.grpc_tools import CHANNEL_CLOSED, ChannelPool, was_cut_off
from penstock_runtime.security.methods import STORAGE_NODE
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.rpc.transaction_messages import (
    put_asks,
    put_markers,
    read_markers_answer,
    read_results,
)
from penstock_storage_node.transactions.link import TransactionLink
from penstock_storage_node.transactions.outbox import Marker
from penstock_storage_node.transactions.verifier import Ask

METHOD = "/penstock.v1.Storage/Transactions"
CHANNEL = "transactions"
"""A connection of its own: neither relayed requests nor replication hold it up."""
ASKS_MAX = 20_000
"""Questions that wait to be sent to one node; further ones are told that nobody can be asked."""
PARTITIONS_AT_ONCE = 5_000
"""In the questions, and in the markers, of one message; one more question or decision than fits."""
PAUSE_MS_MIN = 20
PAUSE_MS_MAX = 500
GOOD_STREAM_MS = 1_000
"""A stream that lasted that long is worth an immediate reconnect."""


class _Stream:
    """To one node."""

    def __init__(
        self,
        manager: ReplicaManager,
        link: TransactionLink,
        node: NodeId,
        channels: ChannelPool,
        take_number: Callable[[], int],
    ) -> None:
        self._manager = manager
        self._link = link
        self._node = node
        self._channels = channels
        self._take_number = take_number
        self._asks: list[Ask] = []
        self._markers: list[Marker] = []
        self._wake = asyncio.Event()
        self._is_closed = False
        self._task: asyncio.Task[None] | None = manager.lifecycle.create_task(
            self._run(), f"transactions with {node}"
        )

    def send_asks(self, asks: Sequence[Ask]) -> bool:
        if len(self._asks) + len(asks) > ASKS_MAX:
            return False
        self._asks += asks
        self._wake.set()
        return True

    def send_markers(self, markers: Sequence[Marker]) -> None:
        self._markers += markers
        self._wake.set()

    @property
    def has_more(self) -> bool:
        """Something waits to be sent."""
        return bool(self._asks or self._markers)

    def close(self) -> None:
        """End the stream."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._lost()

    def _lost(self) -> None:
        self._asks, self._markers = [], []
        self._link.stream_lost(self._node)

    async def _run(self) -> None:
        pause_ms = 0
        log = self._manager.lifecycle.log.bind(node=self._node)
        while not self._is_closed:
            while not self.has_more:
                self._wake.clear()
                await self._wake.wait()
            node = self._manager.registry.image.nodes.get(self._node)
            started_ms = self._manager.clock_ms()
            if node is None:
                reason = "the metadata do not know that node"
            else:
                try:
                    await self._run_stream(node)
                    reason = "ended by the other node"
                except grpc.aio.AioRpcError as e:
                    reason = e.details() or e.code().name
                except (DecodeError, asyncio.InvalidStateError) as e:
                    reason = str(e)
                except asyncio.CancelledError:
                    if not was_cut_off():
                        raise
                    reason = CHANNEL_CLOSED
            self._lost()
            log.info("stream of transactions ended", reason=reason)
            if self._manager.clock_ms() - started_ms >= GOOD_STREAM_MS:
                pause_ms = 0
            else:
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(max(PAUSE_MS_MIN, pause_ms * 2), PAUSE_MS_MAX)

    async def _run_stream(self, node: NodeImage) -> None:
        registry = self._manager.registry
        channel = self._channels.get(node.grpc.address, STORAGE_NODE, CHANNEL)
        call: Any = channel.stream_stream(METHOD, None, None)()
        hello = pb.TransactionsHello(
            node_id=registry.node_id,
            node_epoch=registry.node_epoch,
            target_node_id=self._node,
            cluster_id=registry.image.cluster_id,
            number=self._take_number(),
        )
        reader: asyncio.Future[None] | None = None
        try:
            await call.write(pb.TransactionsRequest(hello=hello).SerializeToString())
            reader = asyncio.ensure_future(self._read(call))
            reader.add_done_callback(lambda _: self._wake.set())
            while not reader.done():
                self._wake.clear()
                if self.has_more:
                    await call.write(self._take().SerializeToString())
                else:
                    await self._wake.wait()
            reader.result()
        finally:
            call.cancel()
            if reader is not None:
                reader.cancel()
                await asyncio.wait([reader])
                if not reader.cancelled():
                    reader.exception()

    def _take(self) -> pb.TransactionsRequest:
        request = pb.TransactionsRequest()
        asks = _first(len(ask.partitions) for ask in self._asks)
        markers = _first(len(marker.partitions) for marker in self._markers)
        put_asks(request, self._asks[:asks])
        put_markers(request, self._markers[:markers])
        del self._asks[:asks], self._markers[:markers]
        return request

    async def _read(self, call: Any) -> None:
        link = self._link
        while True:
            message = await call.read()
            if message is grpc.aio.EOF or self._is_closed:  # type: ignore[attr-defined]
                return
            response = pb.TransactionsResponse.FromString(message)
            for answer in response.answers:
                link.ask_answered(answer.number, answer.coordinator_epoch, read_results(answer.results))
            for markers in response.markers:
                link.marker_answered(self._node, *read_markers_answer(markers))


def _first(sizes: Iterable[int]) -> int:
    """How many of them, each with so many partitions, go into one message."""
    partitions = number = 0
    for size in sizes:
        number += 1
        partitions += size
        if partitions >= PARTITIONS_AT_ONCE:
            break
    return number


class TransactionStreams:
    """All of this node's; see `transactions.link.Streams`."""

    def __init__(self, manager: ReplicaManager, link: TransactionLink, channels: ChannelPool) -> None:
        self._manager = manager
        self._link = link
        self._channels = channels
        self._streams: dict[NodeId, _Stream] = {}
        self._number = 0
        self._is_closed = False

    def send_asks(self, node: NodeId, asks: Sequence[Ask]) -> bool:
        """To the coordinators there; False when that can't be."""
        return not self._is_closed and self._to(node).send_asks(asks)

    def send_markers(self, node: NodeId, markers: Sequence[Marker]) -> None:
        """To the leaders there."""
        if self._is_closed:
            self._link.stream_lost(node)
        else:
            self._to(node).send_markers(markers)

    def _to(self, node: NodeId) -> _Stream:
        stream = self._streams.get(node)
        if stream is None:
            stream = self._streams[node] = _Stream(
                self._manager, self._link, node, self._channels, self._take_number
            )
        return stream

    def _take_number(self) -> int:
        """One for all: to each node they rise."""
        self._number += 1
        return self._number

    def restart(self) -> None:
        """This node has a new epoch: say hello anew."""
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.close()

    def keep(self, known: Container[NodeId]) -> None:
        """End the streams to nodes that are no more."""
        for node in [node for node in self._streams if node not in known]:
            self._streams.pop(node).close()

    def close(self) -> None:
        """End every stream."""
        self._is_closed = True
        self.restart()
