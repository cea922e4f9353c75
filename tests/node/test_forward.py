"""Forward and FetchRange over real gRPC."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from node.harness import KEY, TOPIC, MiniCluster, eventually, make_batch
from node.test_cluster import hosted
from penstock_core.errors import ErrorCode
from penstock_core.security.identity import PeerIdentity
from penstock_kafka.wire.fetch import (
    FetchPartition,
    FetchRequest,
    decode_fetch_response,
    encode_fetch_request,
)
from penstock_kafka.wire.produce import (
    ProducePartition,
    ProduceSkim,
    decode_produce_response,
    encode_produce_request,
)
from penstock_proto.v1 import data_pb2, storage_pb2, storage_pb2_grpc
from penstock_runtime.security.callers import set_caller
from penstock_storage_node.kafka.client_stream import ClientStream
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.rpc import forward

CHUNK = 1024 * 1024


class Aborted(Exception):
    """The node has ended a stream."""


class OneStream:
    """A stream of one message, as a handler sees it; it ends when that is said."""

    def __init__(self, message: storage_pb2.ForwardRequest) -> None:
        self._messages = [message.SerializeToString()]
        self.is_read, self.ends = asyncio.Event(), asyncio.Event()

    async def read(self) -> Any:
        if self._messages:
            return self._messages.pop()
        self.is_read.set()
        await self.ends.wait()
        return grpc.aio.EOF  # type: ignore[attr-defined]

    async def abort(self, _status: grpc.StatusCode, message: str) -> None:
        raise Aborted(message)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    made = await MiniCluster(tmp_path).start(1)
    made.make_topic(isr=[1])
    await hosted(made)
    yield made
    await made.stop()


def produce_frame(*values: bytes, acks: int = 1, correlation_id: int = 7, topic: str = TOPIC) -> bytes:
    skim = ProduceSkim(
        None, acks, 60_000, [ProducePartition(topic, None, 0, memoryview(make_batch(*values)))]
    )
    return b"".join(encode_produce_request(9, correlation_id, "test", skim))


def fetch_frame(offset: int, max_wait_ms: int = 0, topic: str = TOPIC) -> bytes:
    item = FetchPartition(topic, None, 0, -1, offset, -1, -1, 64 << 20)
    return encode_fetch_request(11, 8, "test", FetchRequest(max_wait_ms, 1, 64 << 20, partitions=[item]))


class Gateway:
    """The other end of a Forward stream, with the generated classes."""

    def __init__(self, cluster: MiniCluster, node_id: int = 1) -> None:
        self.channel = grpc.aio.insecure_channel(
            cluster.nodes[1].endpoint.address, options=[("grpc.max_receive_message_length", 16 << 20)]
        )
        stub: Any = storage_pb2_grpc.StorageStub(self.channel)
        self.call = stub.Forward()
        self.opened: storage_pb2.ForwardOpen | None = storage_pb2.ForwardOpen(
            node_id=node_id, principal="User:ANONYMOUS", client_host="1.2.3.4", listener="PROXY"
        )
        self.parts: dict[int, list[storage_pb2.ForwardResponseFrame]] = {}

    async def send(self, request_id: int, frame: bytes, **first: int) -> None:
        for start in range(0, len(frame), CHUNK):
            part = storage_pb2.ForwardFrame(
                request_id=request_id,
                chunk=frame[start : start + CHUNK],
                last=start + CHUNK >= len(frame),
            )
            if start == 0:
                part.frame_bytes = len(frame)
                for name, value in first.items():
                    setattr(part, name, value)
            await self._write(part)

    async def send_part(self, request_id: int, chunk: bytes, *, last: bool = False, **first: Any) -> None:
        await self._write(storage_pb2.ForwardFrame(request_id=request_id, chunk=chunk, last=last, **first))

    async def _write(self, part: storage_pb2.ForwardFrame) -> None:
        request = storage_pb2.ForwardRequest(frames=[part])
        if self.opened is not None:
            request.open.CopyFrom(self.opened)
            self.opened = None
        await self.call.write(request)

    async def next(self) -> tuple[int, bytes, storage_pb2.ForwardResponseFrame]:
        """The next whole response."""
        while True:
            for request_id, parts in self.parts.items():
                if parts[-1].last:
                    del self.parts[request_id]
                    body = b"".join(p.chunk for p in parts)
                    assert len(body) == parts[0].frame_bytes
                    return request_id, body, parts[0]
            message = await asyncio.wait_for(self.call.read(), 60)
            assert message is not grpc.aio.EOF  # type: ignore[attr-defined]
            frames: Sequence[storage_pb2.ForwardResponseFrame] = message.frames
            for part in frames:
                assert len(part.chunk) <= CHUNK
                self.parts.setdefault(part.request_id, []).append(part)

    async def close(self) -> None:
        self.call.cancel()
        await self.channel.close(None)


async def test_requests_are_appended_in_order_and_answered_with_their_ids(cluster: MiniCluster) -> None:
    gateway = Gateway(cluster)
    for number in range(1, 21):
        await gateway.send(number, produce_frame(b"v%d" % number))
    answers = {}
    for _ in range(20):
        request_id, body, _ = await gateway.next()
        answers[request_id] = decode_produce_response(body, 9).results[0].base_offset
    assert answers == {n: n - 1 for n in range(1, 21)}
    await gateway.close()


async def test_a_stream_asks_whether_its_client_is_still_there(
    cluster: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, told = cluster.nodes[1], list[int]()
    handle = node.data.handle
    streams: list[ClientStream] = []

    def asking(caller: RequestContext, *request: Any) -> Any:
        assert caller.stream is not None
        streams.append(caller.stream)
        caller.stream.when_there(lambda: told.append(len(told)), surely=True)
        return handle(caller, *request)

    monkeypatch.setattr(node.data, "handle", asking)
    gateway = Gateway(cluster)
    await gateway.send(1, produce_frame(b"x"))
    asks: list[int] = []
    while not asks:
        message = await asyncio.wait_for(gateway.call.read(), 60)
        asks += [frame.request_id for frame in message.frames if frame.asks]
    assert told == []
    await gateway.send_part(asks[0], b"", there=True)
    await eventually(lambda: told == [0])
    await gateway.close()
    await eventually(lambda: streams[0].ended)


async def test_an_announced_size_takes_no_memory(cluster: MiniCluster) -> None:
    """Eight messages of 60 bytes took 800 MB: the buffer was made as large as the first part announced."""
    gateways = [Gateway(cluster) for _ in range(8)]
    tracemalloc.start()
    try:
        for gateway in gateways:
            await gateway.send_part(1, b"0123456789", frame_bytes=100 << 20)
            await gateway.send_part(2, b"0123456789", frame_bytes=100 << 20)
        for gateway in gateways:  # the second part is of another request: what came before it was taken
            with pytest.raises(grpc.aio.AioRpcError, match="parts of two requests"):
                await asyncio.wait_for(gateway.call.read(), 60)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
        for gateway in gateways:
            await gateway.close()


async def test_large_requests_and_responses_travel_in_parts(cluster: MiniCluster) -> None:
    gateway = Gateway(cluster)
    big = [bytes(900_000) for _ in range(3)]
    for number, value in enumerate(big, 1):
        await gateway.send(number, produce_frame(value))
        assert (await gateway.next())[0] == number
    skim = ProduceSkim(
        None,
        1,
        60_000,
        [ProducePartition(TOPIC, None, 0, memoryview(make_batch(bytes(1_000_000)))) for _ in range(2)],
    )
    await gateway.send(9, b"".join(encode_produce_request(9, 7, "test", skim)))
    _, body, _ = await gateway.next()
    assert [r.error for r in decode_produce_response(body, 9).results] == [0, 0]
    await gateway.send(10, fetch_frame(0))
    _, body, _ = await gateway.next()
    (result,) = decode_fetch_response(body, 11).results
    assert sum(map(len, result.records)) > 3_000_000
    await gateway.close()


async def test_a_long_poll_holds_up_nobody(cluster: MiniCluster) -> None:
    gateway = Gateway(cluster)
    await gateway.send(1, fetch_frame(0, max_wait_ms=8000))
    await gateway.send(2, produce_frame(b"x"))
    order = [(await gateway.next())[0], (await gateway.next())[0]]
    assert sorted(order) == [1, 2]
    await gateway.close()


async def test_acks_zero_and_errors_under_it(cluster: MiniCluster) -> None:
    gateway = Gateway(cluster)
    await gateway.send(1, produce_frame(b"x", acks=0))
    _, body, frame = await gateway.next()
    assert frame.none
    assert not frame.close_connection
    assert body == b""
    damaged = bytearray(produce_frame(b"x", acks=0))
    damaged[-2] ^= 1
    await gateway.send(2, bytes(damaged))
    assert (await gateway.next())[2].close_connection
    # What another leader may take is told to the gateway: it routes it again.
    await gateway.send(3, produce_frame(b"x", acks=0, topic="nowhere"))
    _, body, frame = await gateway.next()
    assert (frame.concerns_router, frame.none, frame.close_connection) == (True, False, False)
    assert decode_produce_response(body, 9).results[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await gateway.close()


async def test_errors_that_concern_the_router_are_flagged(cluster: MiniCluster) -> None:
    gateway = Gateway(cluster)
    await gateway.send(1, fetch_frame(0, topic="nowhere"))
    _, body, frame = await gateway.next()
    assert decode_fetch_response(body, 11).results[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert frame.concerns_router
    await gateway.close()


async def test_a_node_behind_waits_for_the_metadata(
    cluster: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "METADATA_WAIT_MS_MAX", 60_000)
    gateway = Gateway(cluster)
    node = cluster.nodes[1]
    await gateway.send(1, produce_frame(b"x"), metadata_version=cluster.image.version + 1)
    await eventually(lambda: node.metadata.waits)
    assert node.partition.log.log_end_offset == 0
    cluster.set_isr(1)
    assert (await gateway.next())[0] == 1
    assert node.partition.log.log_end_offset == 1
    await gateway.close()


async def test_streams_for_another_node_and_garbage_are_refused(cluster: MiniCluster) -> None:
    other = Gateway(cluster, node_id=9)
    await other.send(1, produce_frame(b"x"))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await other.next()
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    await other.close()
    garbage = Gateway(cluster)
    await garbage.send(1, b"\xff" * 40)
    assert (await garbage.next())[2].close_connection
    await garbage.close()
    huge = Gateway(cluster)
    request = storage_pb2.ForwardRequest(
        open=huge.opened,
        frames=[storage_pb2.ForwardFrame(request_id=1, chunk=b"x", frame_bytes=2**32 - 1)],
    )
    await huge.call.write(request)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await huge.next()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await huge.close()


async def test_a_gateway_has_so_many_streams_and_another_one_has_its_own(cluster: MiniCluster) -> None:
    service = cluster.nodes[1].forward
    service._streams_max = 2
    held = [Gateway(cluster) for _ in range(2)]
    for gateway in held:
        await gateway.send(1, produce_frame(b"x"))
        await gateway.next()
    third = Gateway(cluster)
    await third.send(1, produce_frame(b"x"))
    with pytest.raises(grpc.aio.AioRpcError, match="forward_streams_per_gateway_max") as refused:
        await third.next()
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await third.close()
    other = Gateway(cluster)
    assert other.opened is not None
    other.opened.gateway_id = "gateway-2"
    await other.send(1, produce_frame(b"x"))
    await other.next()
    await other.close()
    await held.pop().close()
    await eventually(lambda: service._streams == {"": 1})
    again = Gateway(cluster)
    await again.send(1, produce_frame(b"x"))
    await again.next()
    for gateway in (*held, again):
        await gateway.close()
    await eventually(lambda: not service._streams)


async def test_streams_count_for_the_gateway_that_the_certificate_names(cluster: MiniCluster) -> None:
    service = cluster.nodes[1].forward
    service._streams_max = 1
    opened = storage_pb2.ForwardRequest(open=storage_pb2.ForwardOpen(node_id=1, gateway_id="gateway-2"))

    async def opens(name: str, context: OneStream) -> None:
        set_caller(PeerIdentity("t", "gateway", name))
        await service.forward(None, context)  # type: ignore[arg-type]

    first = OneStream(opened)
    held = asyncio.create_task(opens("gateway-1", first))
    await first.is_read.wait()
    assert service._streams == {"gateway-1": 1}
    with pytest.raises(Aborted, match="gateway gateway-1 has 1 streams"):
        await opens("gateway-1", OneStream(opened))
    # The one whose name it took has its own, and so has who shares a certificate.
    for name in ("gateway-2", "*"):
        other = OneStream(opened)
        task = asyncio.create_task(opens(name, other))
        await other.is_read.wait()
        assert service._streams == {"gateway-1": 1, "gateway-2": 1}
        other.ends.set()
        await task
    first.ends.set()
    await held
    assert not service._streams


async def test_disconnect_ends_what_runs_for_it(cluster: MiniCluster) -> None:
    gateway = Gateway(cluster)
    await gateway.send(1, fetch_frame(0, max_wait_ms=60_000))
    partition = cluster.nodes[1].partition
    await eventually(lambda: partition.readers)
    await gateway.close()
    await eventually(lambda: not partition.readers)


# -- FetchRange -------------------------------------------------------------------


def fetch_range(cluster: MiniCluster, **request: Any) -> tuple[grpc.aio.Channel, Any]:
    channel = grpc.aio.insecure_channel(cluster.nodes[1].endpoint.address)
    asked = data_pb2.FetchRangeRequest(topic=TOPIC, partition=0, **request)
    return channel, storage_pb2_grpc.StorageStub(channel).FetchRange(asked)


async def collect(cluster: MiniCluster, **request: Any) -> list[data_pb2.FetchRangeResponse]:
    channel, call = fetch_range(cluster, **request)
    try:
        return [response async for response in call]
    finally:
        await channel.close(None)


async def test_range_gives_every_batch_once(cluster: MiniCluster) -> None:
    node = cluster.nodes[1]
    for number in range(30):
        await node.produce(b"%d" % number * 100)
    whole = (await collect(cluster, from_offset=0, to_offset=-1))[:]
    assert whole[-1].done
    assert whole[-1].next_offset == 30
    parts = await collect(cluster, from_offset=0, to_offset=30, max_chunk_bytes=500)
    assert len(parts) > 5
    assert b"".join(p.records for p in parts) == b"".join(p.records for p in whole)
    assert [p.next_offset for p in parts] == sorted(p.next_offset for p in parts)
    some = await collect(cluster, from_offset=10, to_offset=12)
    assert some[-1].next_offset == 12
    assert all(p.topic_id == KEY.topic_id for p in some)


async def test_range_waits_above_the_watermark(cluster: MiniCluster) -> None:
    node = cluster.nodes[1]
    await node.produce(b"a")
    channel, call = fetch_range(cluster, from_offset=0, to_offset=2)
    first = await call.read()
    assert first.next_offset == 1
    await eventually(lambda: node.partition.readers)
    await node.produce(b"b")
    assert (await call.read()).next_offset == 2
    assert (await call.read()).done
    await channel.close(None)


async def test_range_failures_say_where_they_stand(cluster: MiniCluster) -> None:
    await cluster.nodes[1].produce(b"a")
    (out,) = await collect(cluster, from_offset=5, to_offset=9)
    assert out.error.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (out.log_start_offset, out.high_watermark) == (0, 1)
    (gone,) = await collect(cluster, from_offset=0, to_offset=1, topic_id=b"?" * 16)
    assert gone.error.code == ErrorCode.INCONSISTENT_TOPIC_ID
    channel, call = fetch_range(cluster, from_offset=0, to_offset=9)
    assert (await call.read()).records
    await eventually(lambda: cluster.nodes[1].partition.readers)
    cluster.elect(2, [2])
    lost = await call.read()
    assert lost.error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert lost.next_offset == 1
    await channel.close(None)


async def test_an_abandoned_range_leaves_nothing_behind(cluster: MiniCluster) -> None:
    channel, call = fetch_range(cluster, from_offset=0, to_offset=9)
    partition = cluster.nodes[1].partition
    await eventually(lambda: partition.readers)
    call.cancel()
    await eventually(lambda: not partition.readers)
    await channel.close(None)
