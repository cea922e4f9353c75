"""The native API over real gRPC: describe, offsets, produce, ranges that outlive a leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from penstock_core.metadata.image import Endpoint, MetadataImage
from penstock_core.metadata.security import SecurityImage
from penstock_core.security.quota_book import QuotaBook
from penstock_core.security.quota_entities import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, QuotaEntity
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.listener.quota_gate import QuotaGate
from penstock_gateway.rpc.describe import peer_host
from penstock_gateway.rpc.service import DIALLED_KEY, GatewayService
from penstock_kafka.wire.produce import skim_produce
from penstock_proto.v1 import data_pb2, gateway_pb2_grpc
from penstock_proto.v1 import gateway_pb2 as pb
from penstock_runtime.grpc_server import serve
from support.waiting import eventually

Rig = Any
Stub = Any


@pytest_asyncio.fixture
async def stub(rig: Rig) -> AsyncIterator[Stub]:
    own = Endpoint("", "127.0.0.1", 9094)
    server, endpoint = await serve(
        "127.0.0.1:0", GatewayService(rig.relay, lambda: own).add_to, allow_insecure_bind=False
    )
    channel = grpc.aio.insecure_channel(endpoint.address)
    try:
        yield gateway_pb2_grpc.GatewayStub(channel)
    finally:
        await channel.close(None)
        await server.stop(None)


def batch(next_offset: int, records: bytes, **more: Any) -> data_pb2.FetchRangeResponse:
    return data_pb2.FetchRangeResponse(
        records=records, next_offset=next_offset, high_watermark=10, leader_epoch=3, **more
    )


async def read(call: Any) -> list[Any]:
    async with asyncio.timeout(60):
        return [r async for r in call]


def test_peer_host() -> None:
    assert peer_host("ipv4:127.0.0.1:5000") == "127.0.0.1"
    assert peer_host("ipv6:[::1]:5000") == "::1"
    assert peer_host("ipv6:%5B::1%5D:5000") == "::1"
    assert peer_host("unix:/x") == ""


async def test_describe(rig: Rig, stub: Stub) -> None:
    got = await stub.Describe(pb.DescribeRequest(topics=["t", "x"]))
    assert [(t.name, t.error.code, len(t.partitions)) for t in got.topics] == [("t", 0, 3), ("x", 3, 0)]
    assert [n.node_id for n in got.nodes] == [1, 2]
    assert [(e.host, e.port) for e in got.gateways] == [("127.0.0.1", 9094)]
    got = await stub.Describe(
        pb.DescribeRequest(all_topics=True), metadata=((DIALLED_KEY, "gw.example:443"),)
    )
    assert [t.name for t in got.topics] == ["t"]
    assert [(e.host, e.port) for e in got.gateways] == [("gw.example", 443)]


async def test_list_offsets_in_order(rig: Rig, stub: Stub) -> None:
    asked = [("t", 1, -1), ("x", 0, -1), ("t", 0, -2), ("t", 1, -2), ("t", 9, -1)]
    queries = [pb.OffsetQuery(topic=t, partition=p, timestamp_ms=ms) for t, p, ms in asked]
    got = await stub.ListOffsets(pb.ListOffsetsRequest(queries=queries))
    assert [(r.topic, r.partition, r.error.code) for r in got.results] == [
        ("t", 1, 0),
        ("x", 0, 3),
        ("t", 0, 0),
        ("t", 1, 0),
        ("t", 9, 3),
    ]
    assert "no partition x-0" in got.results[1].error.message


async def test_produce_is_acknowledged_in_order(rig: Rig, stub: Stub) -> None:
    async def requests() -> AsyncIterator[pb.ProduceRequest]:
        for i in range(6):
            yield pb.ProduceRequest(request_id=i + 1, topic="t", partition=i % 3, records=bytes([i]), acks=-1)
        yield pb.ProduceRequest(request_id=7, topic="nope", records=b"x")
        yield pb.ProduceRequest(request_id=8, topic="t", records=b"x", acks=5)

    got = await read(stub.Produce(requests()))
    assert [(r.request_id, r.error.code) for r in got] == [*((i, 0) for i in range(1, 7)), (7, 3), (8, 21)]
    assert [r.base_offset for r in got] == [0, 0, 0, 1, 1, 1, -1, -1]
    assert rig.nodes[2].logs == {("t", 1): [b"\x01", b"\x04"]}
    receipt = pb.ProduceReceipt(leader_epoch=3, held_by=[1, 2], flushed_by=[2])
    assert [r.receipt for r in got[:6]] == [receipt] * 6
    assert not any(r.HasField("receipt") for r in got[6:])


async def test_a_batch_of_a_stage_goes_with_its_transactional_id(rig: Rig, stub: Stub) -> None:
    async def requests() -> AsyncIterator[pb.ProduceRequest]:
        yield pb.ProduceRequest(
            request_id=1, topic="t", partition=1, records=b"x", transactional_id="s-0-0-0"
        )
        yield pb.ProduceRequest(request_id=2, topic="t", partition=1, records=b"y")

    got = await read(stub.Produce(requests()))
    assert [(r.request_id, r.error.code, r.base_offset) for r in got] == [(1, 0, 0), (2, 0, 1)]
    assert (
        got[0].receipt == got[1].receipt == pb.ProduceReceipt(leader_epoch=3, held_by=[1, 2], flushed_by=[2])
    )
    [first, second] = [
        (header.api_version, skim_produce(data, header).transactional_id)
        for header, data in rig.nodes[2].frames
    ]
    assert first == (12, "s-0-0-0")  # so its leader adds the partition to the transaction
    assert second == (9, None)


async def test_a_large_batch_is_produced_in_several_messages(rig: Rig, stub: Stub) -> None:
    large = bytes(range(256)) * 80_000

    async def requests() -> AsyncIterator[pb.ProduceRequest]:
        yield pb.ProduceRequest(request_id=1, topic="t", partition=1, records=b"before")
        yield pb.ProduceRequest(request_id=2, topic="t", partition=1, records=large[:5_000_000], more=True)
        for start in range(5_000_000, len(large), 5_000_000):
            end = start + 5_000_000
            yield pb.ProduceRequest(request_id=2, records=large[start:end], more=end < len(large))
        yield pb.ProduceRequest(request_id=3, topic="t", partition=1, records=b"after")

    got = await read(stub.Produce(requests()))
    assert [(r.request_id, r.error.code, r.base_offset) for r in got] == [(1, 0, 0), (2, 0, 1), (3, 0, 2)]
    assert rig.nodes[2].logs == {("t", 1): [b"before", large, b"after"]}


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([(1, b"abc", True), (2, b"def", False)], "request 2 begins before the end of request 1 came"),
        ([(1, b"abc", True)], "the end of request 1 did not come"),
        ([(1, bytes(6 << 20), True)] * 18, "above socket_request_max_bytes=104857600"),
    ],
)
async def test_parts_of_a_batch_that_do_not_fit_end_the_stream(
    rig: Rig, stub: Stub, parts: list[tuple[int, bytes, bool]], says: str
) -> None:
    async def requests() -> AsyncIterator[pb.ProduceRequest]:
        for number, data, more in parts:
            yield pb.ProduceRequest(request_id=number, topic="t", partition=1, records=data, more=more)

    with pytest.raises(grpc.aio.AioRpcError, match=says) as failed:
        await read(stub.Produce(requests()))
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert rig.nodes[2].logs == {}


async def test_a_range_passes_by_as_bytes(rig: Rig, stub: Stub) -> None:
    sent = [batch(4, b"abc"), batch(10, b"def" * 100_000, done=True)]
    rig.nodes[1].range_script = [sent]
    got = await read(stub.FetchRange(data_pb2.FetchRangeRequest(topic="t", from_offset=0, to_offset=-1)))
    assert got == sent
    assert rig.nodes[1].ranges[0].topic_id == b"t" * 16


def limited(key: str, limit: float) -> tuple[QuotaGate, KafkaMetrics]:
    """A gate for the native API's users, with the loop's clock."""
    metrics = KafkaMetrics()
    clock = asyncio.get_running_loop().time
    gate = QuotaGate(QuotaBook(), lambda: int(clock() * 1000), metrics)
    security = SecurityImage(quotas={QuotaEntity("ANONYMOUS"): {key: limit}})
    gate.metadata_changed(MetadataImage(), MetadataImage(security=security))
    return gate, metrics


async def test_who_produces_more_than_its_quota_is_read_no_further_for_a_while(rig: Rig, stub: Stub) -> None:
    rig.relay.quotas, metrics = limited(PRODUCER_BYTE_RATE, 10_000)

    async def requests() -> AsyncIterator[pb.ProduceRequest]:
        for i in range(5):
            yield pb.ProduceRequest(request_id=i, topic="t", partition=1, records=bytes(8_000), acks=-1)

    began_s = asyncio.get_running_loop().time()
    got = await read(stub.Produce(requests()))
    assert [r.error.code for r in got] == [0] * 5
    assert asyncio.get_running_loop().time() - began_s >= 0.15, "the fourth was 200 ms too early"
    assert metrics.throttled[PRODUCER_BYTE_RATE] >= 1


async def test_a_range_is_given_no_faster_than_its_readers_quota(rig: Rig, stub: Stub) -> None:
    rig.relay.quotas, metrics = limited(CONSUMER_BYTE_RATE, 100)
    sent = [batch(5, bytes(320)), batch(10, b"two", done=True)]
    rig.nodes[1].range_script = [sent]
    assert (
        await read(stub.FetchRange(data_pb2.FetchRangeRequest(topic="t", from_offset=0, to_offset=-1)))
        == sent
    )
    assert metrics.throttled[CONSUMER_BYTE_RATE] >= 1


async def test_a_range_goes_on_at_the_new_leader(rig: Rig, stub: Stub) -> None:
    failed = data_pb2.FetchRangeResponse()
    failed.error.code = 6
    rig.nodes[1].range_script = [[batch(4, b"a"), batch(6, b"b"), "hang"], [failed]]
    rig.nodes[2].range_script = [[grpc.StatusCode.UNAVAILABLE], [batch(10, b"c", done=True)]]
    call = stub.FetchRange(data_pb2.FetchRangeRequest(topic="t", from_offset=0, to_offset=-1))
    responses = aiter(call)
    assert [(await anext(responses)).next_offset for _ in range(2)] == [4, 6]
    rig.move(0, 2)
    rig.publish()
    assert [r.next_offset for r in await read(responses)] == [10]
    assert [(r.from_offset, r.to_offset) for r in rig.nodes[2].ranges] == [(6, 10), (6, 10)]


async def test_a_ranges_own_failures(rig: Rig, stub: Stub) -> None:
    def ask(**fields: Any) -> Any:
        return read(stub.FetchRange(data_pb2.FetchRangeRequest(**fields)))

    for fields, status, words in (
        ({"topic": "x"}, grpc.StatusCode.NOT_FOUND, "no topic 'x'"),
        ({"topic": "t", "partition": 9}, grpc.StatusCode.NOT_FOUND, "partitions 0 to 2"),
        ({"topic": "t", "topic_id": b"z" * 16}, grpc.StatusCode.NOT_FOUND, "made anew"),
        ({"topic": "t", "from_offset": -5}, grpc.StatusCode.INVALID_ARGUMENT, "from_offset"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(**fields)
        assert caught.value.code() is status
        assert words in (caught.value.details() or "")
    rig.nodes[1].range_script = [[grpc.StatusCode.OUT_OF_RANGE]]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(topic="t", from_offset=99)
    assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE
    out = data_pb2.FetchRangeResponse()
    out.error.code = 1
    rig.nodes[1].range_script = [[out]]
    assert await ask(topic="t", from_offset=99) == [out]


async def test_a_client_that_leaves_ends_the_call_at_the_node(rig: Rig, stub: Stub) -> None:
    rig.nodes[1].range_script = [[batch(4, b"a"), "hang"]]
    call = stub.FetchRange(data_pb2.FetchRangeRequest(topic="t"))
    await call.read()
    assert len(rig.metadata._callbacks) == 2
    assert rig.nodes[1].ranges_left == 0
    call.cancel()
    await eventually(lambda: rig.nodes[1].ranges_left, "the end of the call at the node")
    await eventually(lambda: len(rig.metadata._callbacks) == 1, "the end of the call at the gateway")
