"""A relay over real gRPC to scripted storage nodes.

The nodes keep batches in memory and can be told to refuse, to stay silent or to die; all
else (metadata client, channels, streams, codecs) is the real thing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from penstock_core.errors import ErrorCode
from penstock_frontend.authorizer import ANONYMOUS, AllowAll, Identity
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_gateway.metrics import GatewayMetrics
from penstock_gateway.relay.client_relay import ClientInfo, ClientRelay
from penstock_gateway.relay.queries import ListOffsetsQuery
from penstock_gateway.relay.relay import Relay
from penstock_gateway.relay.request import Outcome, Relayed
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.fetch import FetchResult, decode_fetch, encode_fetch_response
from penstock_kafka.wire.frames import RequestHeader, parse_request_header
from penstock_kafka.wire.produce import ProduceResult, Receipt, encode_produce_response, skim_produce
from penstock_proto.v1 import (
    common_pb2,
    controller_pb2,
    data_pb2,
    metadata_pb2,
    storage_pb2,
    storage_pb2_grpc,
)
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.grpc_server import serve
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.lifecycle import Lifecycle, monotonic_ms
from penstock_runtime.metadata_client import MetadataClient

CHUNK_BYTES = 64 * 1024
TOPIC_ID = b"t" * 16


class ScriptedNode(storage_pb2_grpc.StorageServicer):
    """A storage node of few words."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.logs: dict[tuple[str, int], list[bytes]] = {}
        self.refuse: set[int] = set()
        """Partitions answered with `refuse_with`."""
        self.refuse_with = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.silent = False
        """Takes requests and never answers."""
        self.asks: list[int] = []
        """Questions to put before the next request is answered: whether its client is still there."""
        self.there: list[int] = []
        """Those that were answered."""
        self.frames: list[tuple[RequestHeader, bytes]] = []
        self.came = asyncio.Event()
        self.streams = 0
        self.streams_ended = 0
        self.attempts = 0
        self._refusing: asyncio.Server | None = None
        self.ranges_left = 0
        """FetchRange calls that the gateway cancelled."""
        self.ranges: list[data_pb2.FetchRangeRequest] = []
        self.sizes: list[storage_pb2.NodeSizeRangesRequest] = []
        self.size_script: list[grpc.StatusCode | ErrorCode] = []
        """How the next SizeRanges calls fail; then they are answered."""
        self.kafka: dict[int, Callable[[RequestHeader, bytes], bytes]] = {}
        """What answers frames of other APIs, by key."""
        self.range_script: list[list[Any]] = []
        """Responses (or an exception-like status) of the next FetchRange calls."""
        self.unit_calls: list[Any] = []
        """Requests about units of sinks."""
        self.unit_script: list[Any] = []
        """Their answers, one after the other: a response, or a status."""

    async def start(self) -> int:
        self._server, endpoint = await serve(
            "127.0.0.1:0",
            lambda s: storage_pb2_grpc.add_StorageServicer_to_server(self, s),
            allow_insecure_bind=False,
        )
        self.port = endpoint.port
        return endpoint.port

    async def die(self) -> None:
        await self._server.stop(None)
        if self._refusing is not None:
            self._refusing.close()

    async def refuse_connections(self) -> None:
        """Dead, but for the count of attempts to connect."""

        def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.attempts += 1
            writer.close()

        await self.die()
        self._refusing = await asyncio.start_server(refuse, "127.0.0.1", self.port)

    async def frame(self, count: int = 1) -> None:
        """Wait until so many frames have come in all."""
        async with asyncio.timeout(60):
            while len(self.frames) < count:
                self.came.clear()
                await self.came.wait()

    async def Forward(  # noqa: N802
        self, requests: AsyncIterator[storage_pb2.ForwardRequest], context: Any
    ) -> AsyncIterator[storage_pb2.ForwardResponse]:
        self.streams += 1
        try:
            async for response in self._forward(requests):
                yield response
        finally:
            self.streams_ended += 1

    async def _forward(
        self, requests: AsyncIterator[storage_pb2.ForwardRequest]
    ) -> AsyncIterator[storage_pb2.ForwardResponse]:
        parts: dict[int, bytes] = {}
        async for request in requests:
            if request.HasField("open"):
                assert request.open.node_id == self.node_id
            for f in request.frames:
                if f.there:
                    self.there.append(f.request_id)
                    self.came.set()
                    continue
                for number in self.asks:
                    ask = storage_pb2.ForwardResponseFrame(request_id=number, asks=True)
                    yield storage_pb2.ForwardResponse(frames=[ask])
                self.asks.clear()
                parts[f.request_id] = parts.get(f.request_id, b"") + f.chunk
                if f.last:
                    data = parts.pop(f.request_id)
                    self.frames.append((parse_request_header(data), data))
                    self.came.set()
                    if not self.silent:
                        for response in self._respond(f.request_id, data):
                            yield response

    def _respond(self, request_id: int, data: bytes) -> list[storage_pb2.ForwardResponse]:
        header = parse_request_header(data)
        stale = False
        if header.api_key == ApiKey.PRODUCE:
            skim = skim_produce(data, header)
            results = []
            for p in skim.partitions:
                log = self.logs.setdefault((p.topic, p.partition), [])
                code = self.refuse_with if p.partition in self.refuse else ErrorCode.NONE
                stale = stale or code is not ErrorCode.NONE
                if code is ErrorCode.NONE:
                    log.append(bytes(p.records))
                receipt = Receipt(3, (1, 2), (2,)) if skim.want_receipt else None
                results.append(
                    ProduceResult(p.topic, p.topic_id, p.partition, code, len(log) - 1, receipt=receipt)
                )
            if skim.acks == 0 and not stale:
                frame = storage_pb2.ForwardResponseFrame(request_id=request_id, last=True, none=True)
                return [storage_pb2.ForwardResponse(frames=[frame])]
            out = encode_produce_response(header, results)
        elif header.api_key == ApiKey.FETCH:
            fetched = [
                FetchResult(
                    p.topic,
                    p.topic_id,
                    p.partition,
                    0,
                    9,
                    9,
                    0,
                    list(self.logs.get((p.topic, p.partition), [])),
                )
                for p in decode_fetch(data, header).partitions
            ]
            out = b"".join(encode_fetch_response(header, fetched))
        elif header.api_key in self.kafka:
            out = self.kafka[header.api_key](header, data)
        else:
            query = ListOffsetsQuery(header, data, lambda _: None)
            answers = []
            for i, (_, _, partition) in enumerate(query.names()):
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER if partition in self.refuse else ErrorCode.NONE
                stale = stale or code is not ErrorCode.NONE
                answers.append(query.failure(i, code))
            out = b"".join(query.join(answers))
        chunks = [out[i : i + CHUNK_BYTES] for i in range(0, len(out), CHUNK_BYTES)]
        return [
            storage_pb2.ForwardResponse(
                frames=[
                    storage_pb2.ForwardResponseFrame(
                        request_id=request_id,
                        chunk=chunk,
                        last=i == len(chunks) - 1,
                        frame_bytes=len(out) if i == 0 else 0,
                        concerns_router=stale,
                    )
                ]
            )
            for i, chunk in enumerate(chunks)
        ]

    def Replicate(self, requests: Any, context: Any) -> AsyncIterator[storage_pb2.ReplicateResponse]:  # noqa: N802
        """Not for gateways."""
        raise NotImplementedError

    async def FetchRange(  # noqa: N802
        self, request: data_pb2.FetchRangeRequest, context: Any
    ) -> AsyncIterator[data_pb2.FetchRangeResponse]:
        self.ranges.append(request)
        for item in self.range_script.pop(0):
            if isinstance(item, grpc.StatusCode):
                await context.abort(item, "as the script says")
            elif isinstance(item, asyncio.Event):
                await item.wait()
            elif item == "hang":
                try:
                    await asyncio.Event().wait()
                finally:
                    self.ranges_left += 1
            else:
                yield item

    async def _unit(self, request: Any, context: Any) -> Any:
        self.unit_calls.append(request)
        answer = self.unit_script.pop(0)
        if isinstance(answer, grpc.StatusCode):
            await context.abort(answer, "as the script says")
        return answer

    BeginStage = CommitUnit = AbortStage = DescribeSink = ListSinks = _unit

    async def SizeRanges(  # noqa: N802
        self, request: storage_pb2.NodeSizeRangesRequest, context: Any
    ) -> storage_pb2.NodeSizeRangesResponse:
        """Every range has 100 bytes an offset, and a cut in its middle."""
        self.sizes.append(request)
        failure = self.size_script.pop(0) if self.size_script else None
        if isinstance(failure, grpc.StatusCode):
            await context.abort(failure, "as the script says")
        answer = storage_pb2.NodeSizeRangesResponse()
        for wanted in request.ranges:
            middle = (wanted.start + wanted.end) // 2
            one = answer.ranges.add(size_bytes=100 * (wanted.end - wanted.start), cuts=[middle])
            if isinstance(failure, ErrorCode):
                one.error.code = failure
        return answer

    async def Positions(self, request: Any, context: Any) -> Any:  # noqa: N802
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no gateway asks for it")


class RelayRig:
    """Two scripted nodes, metadata by hand, a relay."""

    def __init__(self) -> None:
        self.nodes = {1: ScriptedNode(1), 2: ScriptedNode(2)}  # type: ignore[abstract]
        self.leaders = [1, 2, 1]
        self.epochs = [0, 0, 0]
        self.fenced: set[int] = set()
        self.topics = {"t": TOPIC_ID}
        self.version = 0
        self.channels = ChannelPool()
        self.lifecycle = Lifecycle("gateway", "gateway-1")
        controllers = ControllerClient(["127.0.0.1:1"], "test", self.channels)
        self.metadata = MetadataClient(controllers, "test", monotonic_ms)
        self.metrics = GatewayMetrics(
            KafkaMetrics.of(self.lifecycle), self.metadata.contact_age_ms, lambda: 0.0
        )
        self.relay = Relay(
            "gateway-1", self.metadata, self.channels, self.metrics, AllowAll(), self.lifecycle, monotonic_ms
        )

    async def start(self) -> None:
        for n in self.nodes.values():
            await n.start()
        self.publish()
        self.relay.start()

    async def stop(self) -> None:
        self.relay.stop()
        for n in self.nodes.values():
            await n.die()
        await self.channels.close()
        assert not self.lifecycle.failed.is_set()

    def client(self, is_there: Callable[[], bool] = lambda: True, *, is_moved: bool = False) -> ClientRelay:
        return self.relay.open(ClientInfo(Identity(ANONYMOUS, "127.0.0.1"), "PROXY", is_there, is_moved))

    def move(self, partition: int, leader: int) -> None:
        self.leaders[partition] = leader
        self.epochs[partition] += 1

    def publish(self) -> None:
        """Hand the relay metadata as a controller would."""
        self.version += 1
        records = [
            metadata_pb2.MetadataRecord(
                node=metadata_pb2.NodeRecord(
                    node_id=n.node_id,
                    node_epoch=1,
                    fenced=n.node_id in self.fenced,
                    grpc=common_pb2.Endpoint(host="127.0.0.1", port=n.port),
                )
            )
            for n in self.nodes.values()
        ]
        for name, topic_id in self.topics.items():
            topic = metadata_pb2.TopicRecord(topic_id=topic_id, name=name)
            records.append(metadata_pb2.MetadataRecord(topic=topic))
            for p, (leader, epoch) in enumerate(zip(self.leaders, self.epochs, strict=True)):
                record = metadata_pb2.PartitionRecord(
                    topic_id=topic_id,
                    partition=p,
                    leader=leader,
                    leader_epoch=epoch,
                    replicas=[1, 2],
                    isr=[1, 2],
                )
                records.append(metadata_pb2.MetadataRecord(partition=record))
        chunk = metadata_pb2.MetadataSnapshotChunk(
            version=self.version, records=records, first=True, last=True
        )
        assert not self.metadata._take(controller_pb2.WatchMetadataResponse(snapshot=chunk))

    def submit(self, client: ClientRelay, kind: type[Relayed[Any]], frame: bytes) -> asyncio.Future[Outcome]:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        client.submit(kind(parse_request_header(frame), frame, future.set_result))
        return future


@pytest_asyncio.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RelayRig]:
    """A relay with two nodes; partitions 0 and 2 of topic t are led by 1, partition 1 by 2."""
    # Nothing that is held is given up because this machine is slow.
    monkeypatch.setattr(Relayed, "hold_ms", 60_000)
    made = RelayRig()
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
