"""Transactions, the end that is called: other nodes' markers for partitions led here, questions for coordinators here.

Of the streams of one node the one with the highest number counts: its hello ends an older one, and what is left of that
is not done any more, nor what waits for its sake. So nothing that was sent before a reconnect is done after it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
import grpc.aio

from penstock_core.errors import ErrorCode
from penstock_core.ids import NodeId
from penstock_proto.v1 import storage_pb2 as pb
from penstock_runtime.grpc_tools import fail
from penstock_runtime.security.callers import node_fault
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.rpc.bidirectional import run_both_ways
from penstock_storage_node.rpc.transaction_messages import (
    put_answer,
    put_markers_answer,
    read_ask,
    read_markers,
)
from penstock_storage_node.transactions.effects import TopicPartitionName
from penstock_storage_node.transactions.link import AskInProgress, Results, TransactionLink, order_of
from penstock_storage_node.transactions.outbox import Key, key_of
from penstock_storage_node.transactions.verifier import Ask

HELLO_TIMEOUT_MS: Final = 5_000
OPEN_MAX: Final = 100_000
"""Questions and markers of one stream that are not answered; beyond that it is not read on."""
ANSWERS_AT_ONCE: Final = 1_000

Context = grpc.aio.ServicerContext[Any, Any]


class PeerStream:
    """What one node's stream brings, and what goes back by it. It knows no transport."""

    def __init__(self, link: TransactionLink) -> None:
        self._link = link
        self._asks: dict[int, AskInProgress] = {}
        self._marker_count = 0
        self._answers: list[tuple[int, int, Results]] = []
        self._markers: dict[Key, Results] = {}
        self.wake = asyncio.Event()
        """Set when there is something to send, or it has ended."""
        self.room = asyncio.Event()
        """Set when something was answered, or it has ended."""
        self.ended = False

    def stop(self) -> None:
        """Nothing more is done for it, and nothing sent."""
        if self.ended:
            return
        self.ended = True
        self.wake.set()
        self.room.set()
        asks, self._asks = self._asks, {}
        for ask in asks.values():
            ask.drop()

    def is_over(self) -> bool:
        """Whether it has ended, maybe for a newer one."""
        return self.ended

    @property
    def is_full(self) -> bool:
        """It is not to be read on before something is answered."""
        return len(self._asks) + self._marker_count > OPEN_MAX

    def take(self, request: pb.TransactionsRequest) -> None:
        """A message has come."""
        if self.ended:
            return
        for ask in request.asks:
            self._take_ask(read_ask(ask))
        for markers in request.markers:
            self._take_markers(markers)

    def _take_ask(self, ask: Ask) -> None:
        def reply(epoch: int, results: Results) -> None:
            self._asks.pop(ask.number, None)
            self._answers.append((ask.number, epoch, results))
            self.room.set()
            self.wake.set()

        asked = self._link.take_ask(ask, reply)
        if not asked.is_over:
            self._asks[ask.number] = asked

    def _take_markers(self, markers: pb.TransactionMarkers) -> None:
        due = read_markers(markers)
        order, key = order_of(due), key_of(due)
        self._marker_count += len(due.partitions)
        for partition in due.partitions:
            self._link.leading.write(
                order,
                partition,
                lambda code, partition=partition: self._written(key, partition, code),  # type: ignore[misc]
                self.is_over,
            )

    def _written(self, key: Key, partition: TopicPartitionName, code: ErrorCode) -> None:
        self._marker_count -= 1
        self._markers.setdefault(key, []).append((partition, code))
        self.room.set()
        self.wake.set()

    def answers(self) -> pb.TransactionsResponse | None:
        """What is to be sent next, None when there is nothing."""
        if self.ended or not (self._answers or self._markers):
            return None
        response = pb.TransactionsResponse()
        for answer in self._answers[:ANSWERS_AT_ONCE]:
            put_answer(response, *answer)
        del self._answers[:ANSWERS_AT_ONCE]
        for key in list(self._markers)[:ANSWERS_AT_ONCE]:
            put_markers_answer(response, key, self._markers.pop(key))
        return response


async def _read(context: Context, stream: PeerStream) -> None:
    """Take in what the node sends, until it ends the stream."""
    while not stream.is_over():
        message = await context.read()
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]
            return
        stream.take(pb.TransactionsRequest.FromString(message))
        while stream.is_full and not stream.is_over():
            stream.room.clear()
            await stream.room.wait()


async def _write(context: Context, stream: PeerStream) -> None:
    """Send answers, many in a message."""
    while not stream.is_over():
        stream.wake.clear()
        response = stream.answers()
        if response is None:
            await stream.wake.wait()
        else:
            await context.write(response.SerializeToString())


class TransactionService:
    """All streams that other nodes have opened to this one."""

    def __init__(self, manager: ReplicaManager, link: TransactionLink) -> None:
        self._manager = manager
        self._link = link
        self._streams: dict[NodeId, PeerStream] = {}
        self._newest: dict[NodeId, tuple[int, int]] = {}
        """Node epoch and number of the newest stream of each node."""

    async def transactions(self, _: object, context: Context) -> None:
        """Handler of the call."""
        async with asyncio.timeout(HELLO_TIMEOUT_MS / 1000):
            message = await context.read()
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]
            return
        hello = pb.TransactionsRequest.FromString(message).hello
        await self._check(hello, context)
        node = NodeId(hello.node_id)
        stream = PeerStream(self._link)
        fault = self.begin(node, hello.node_epoch, hello.number, stream)
        if fault:
            await fail(context, grpc.StatusCode.FAILED_PRECONDITION, fault)
        try:
            await run_both_ways(_read(context, stream), _write(context, stream), stream.stop)
        finally:
            stream.stop()
            if self._streams.get(node) is stream:
                del self._streams[node]

    def begin(self, node: NodeId, node_epoch: int, number: int, stream: PeerStream) -> str:
        """A node's stream takes the place of its older one; why it may not, "" when it has."""
        known = self._manager.registry.image.nodes.get(node)
        if known is not None and node_epoch < known.node_epoch:
            return f"node {node} has registered anew: epoch {node_epoch} is over"
        if (node_epoch, number) <= self._newest.get(node, (-1, -1)):
            return f"stream {number} of node {node} is older than one that has come already"
        older = self._streams.get(node)
        if older is not None:
            older.stop()
        self._streams[node] = stream
        self._newest[node] = node_epoch, number
        return ""

    async def _check(self, hello: pb.TransactionsHello, context: Context) -> None:
        registry = self._manager.registry
        fault = ""
        if hello.target_node_id != registry.node_id:
            fault = f"this is node {registry.node_id}, not {hello.target_node_id}"
        elif hello.cluster_id != registry.image.cluster_id:
            fault = f"this node is of cluster {registry.image.cluster_id.hex()}, not {hello.cluster_id.hex()}"
        if fault:
            await fail(context, grpc.StatusCode.FAILED_PRECONDITION, fault)
        if fault := node_fault(hello.node_id):
            await fail(context, grpc.StatusCode.PERMISSION_DENIED, fault)
