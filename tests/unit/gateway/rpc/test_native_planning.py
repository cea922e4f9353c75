"""SizeRanges, EpochEnds, GroupOffsets and CommitGroup over real gRPC to scripted nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from penstock_core.errors import ErrorCode
from penstock_core.metadata.image import Endpoint
from penstock_core.topics import OFFSETS_TOPIC
from penstock_gateway.relay.queries import LeaderEpochQuery
from penstock_gateway.rpc import groups
from penstock_gateway.rpc.service import GatewayService
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import RequestHeader
from penstock_proto.v1 import gateway_pb2 as pb
from penstock_proto.v1 import gateway_pb2_grpc
from penstock_runtime.grpc_server import serve

Rig = Any
Stub = Any


class Group:
    """A coordinator's answers: offsets that were committed, and codes to say first."""

    def __init__(self, rig: Rig) -> None:
        self.offsets: dict[tuple[str, int], tuple[int, str]] = {}
        self.codes: list[int] = []
        self.members: list[tuple[int, str]] = []
        for node in rig.nodes.values():
            node.kafka[ApiKey.OFFSET_COMMIT] = self.commit
            node.kafka[ApiKey.OFFSET_FETCH] = self.fetch

    def commit(self, header: RequestHeader, data: bytes) -> bytes:
        request = codec.decode_request(header, data)
        self.members.append((request.generation_id_or_member_epoch, request.member_id))
        code = self.codes.pop(0) if self.codes else 0
        topic_type, item_type = (
            codec.entity_type(header.api_key, header.api_version, f"OffsetCommitResponse{name}")
            for name in ("Topic", "Partition")
        )
        topics = []
        for topic in request.topics:
            items = []
            for part in topic.partitions:
                own = code or (3 if part.partition_index > 2 else 0)
                if not own:
                    place = (topic.name, part.partition_index)
                    self.offsets[place] = (part.committed_offset, part.committed_metadata)
                items.append(
                    codec.build(item_type, partition_index=part.partition_index, error_code=ErrorCode(own))
                )
            topics.append(codec.build(topic_type, name=topic.name, partitions=tuple(items)))
        schema = codec.response_type(header.api_key, header.api_version)
        return b"".join([codec.encode_response(header, codec.build(schema, topics=tuple(topics)))])

    def fetch(self, header: RequestHeader, data: bytes) -> bytes:
        assert codec.decode_request(header, data).topics is None
        topic_type, item_type = (
            codec.entity_type(header.api_key, header.api_version, f"OffsetFetchResponse{name}")
            for name in ("Topic", "Partition")
        )
        code = self.codes.pop(0) if self.codes else 0
        topics = [
            codec.build(
                topic_type,
                name=name,
                partitions=(
                    codec.build(
                        item_type,
                        partition_index=part,
                        committed_offset=offset,
                        committed_leader_epoch=-1,
                        metadata=metadata,
                        error_code=ErrorCode.NONE,
                    ),
                ),
            )
            for (name, part), (offset, metadata) in self.offsets.items()
        ]
        schema = codec.response_type(header.api_key, header.api_version)
        response = codec.build(schema, topics=tuple(topics), error_code=ErrorCode(code))
        return b"".join([codec.encode_response(header, response)])


@pytest.fixture
def made() -> list[str]:
    """Who had the offsets topic made."""
    return []


@pytest_asyncio.fixture
async def stub(rig: Rig, made: list[str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stub]:
    monkeypatch.setattr(groups, "RETRY_MS", 1)

    async def have_topic(principal: str) -> str:
        made.append(principal)
        rig.topics[OFFSETS_TOPIC] = b"o" * 16
        rig.publish()
        return ""

    service = GatewayService(
        rig.relay, lambda: Endpoint("", "127.0.0.1", 9094), have_offsets_topic=have_topic
    )
    server, endpoint = await serve("127.0.0.1:0", service.add_to, allow_insecure_bind=False)
    channel = grpc.aio.insecure_channel(endpoint.address)
    try:
        yield gateway_pb2_grpc.GatewayStub(channel)
    finally:
        await channel.close(None)
        await server.stop(None)


def ranges(*wanted: tuple[str, int]) -> pb.SizeRangesRequest:
    return pb.SizeRangesRequest(
        ranges=[
            pb.OffsetRange(topic=topic, partition=part, start=0, end=10 + part) for topic, part in wanted
        ],
        cut_bytes=500,
        cuts_max=7,
    )


async def test_sizes_are_asked_of_each_leader_once(rig: Rig, stub: Stub) -> None:
    got = (await stub.SizeRanges(ranges(("t", 1), ("x", 0), ("t", 0), ("t", 2), ("t", 9)))).ranges
    assert [each.error.code for each in got] == [0, 3, 0, 0, 3]
    assert [each.size_bytes for each in got] == [1100, 0, 1000, 1200, 0]
    assert list(got[0].cuts) == [5]
    assert "no partition x-0" in got[1].error.message
    assert [[one.partition for one in node.sizes[0].ranges] for node in rig.nodes.values()] == [[0, 2], [1]]
    assert [(node.sizes[0].cut_bytes, node.sizes[0].cuts_max) for node in rig.nodes.values()] == [
        (500, 7)
    ] * 2
    assert [len(node.sizes) for node in rig.nodes.values()] == [1, 1]


async def test_a_topic_made_anew_has_no_size(stub: Stub) -> None:
    request = pb.SizeRangesRequest(ranges=[pb.OffsetRange(topic="t", topic_id=b"n" * 16, end=5)])
    [got] = (await stub.SizeRanges(request)).ranges
    assert got.error.code == ErrorCode.INCONSISTENT_TOPIC_ID
    assert "made anew" in got.error.message


async def test_sizes_are_asked_again_while_a_leader_moves(rig: Rig, stub: Stub) -> None:
    rig.nodes[1].size_script = [ErrorCode.NOT_LEADER_OR_FOLLOWER, grpc.StatusCode.UNAVAILABLE]
    got = (await stub.SizeRanges(ranges(("t", 0), ("t", 1)))).ranges
    assert [(each.error.code, each.size_bytes) for each in got] == [(0, 1000), (0, 1100)]
    assert [len(node.sizes) for node in rig.nodes.values()] == [3, 1]


async def test_a_node_of_an_older_build_tells_no_sizes(rig: Rig, stub: Stub) -> None:
    rig.nodes[2].size_script = [grpc.StatusCode.UNIMPLEMENTED]
    got = (await stub.SizeRanges(ranges(("t", 0), ("t", 1)))).ranges
    assert [each.error.code for each in got] == [0, ErrorCode.UNSUPPORTED_VERSION]
    assert "storage node 2 is of an older build" in got[1].error.message


async def test_ends_of_epochs(rig: Rig, stub: Stub) -> None:
    def ends(header: RequestHeader, data: bytes) -> bytes:
        query = LeaderEpochQuery(header, data, lambda _: None)
        results = [query.failure(i, ErrorCode.NONE) for i, _ in enumerate(query.names())]
        epochs = [values[2] for _, values in query._items]
        told = [
            answer._replace(values=(0, answer.values[1], epoch, 100 + epoch))
            for answer, epoch in zip(results, epochs, strict=True)
        ]
        return b"".join(query.join(told))

    for node in rig.nodes.values():
        node.kafka[ApiKey.OFFSET_FOR_LEADER_EPOCH] = ends
    asked = [("t", 1, 4), ("t", 1, 2), ("x", 0, 1), ("t", 0, 3)]
    queries = [pb.EpochQuery(topic=t, partition=p, leader_epoch=e) for t, p, e in asked]
    got = (await stub.EpochEnds(pb.EpochEndsRequest(queries=queries))).ends
    assert [(each.error.code, each.leader_epoch, each.end_offset) for each in got] == [
        (0, 4, 104),
        (0, 2, 102),
        (3, -1, -1),
        (0, 3, 103),
    ]


def commit(*parts: int) -> pb.CommitGroupRequest:
    offsets = [pb.GroupOffset(topic="t", partition=p, offset=10 + p, metadata="spark q 1") for p in parts]
    return pb.CommitGroupRequest(group="g", offsets=offsets)


async def test_a_commit_makes_the_topic_and_is_that_of_no_member(
    rig: Rig, stub: Stub, made: list[str]
) -> None:
    group = Group(rig)
    assert not (await stub.GroupOffsets(pb.GroupOffsetsRequest(group="g"))).offsets
    assert made == []
    got = await stub.CommitGroup(commit(0, 5, 1))
    assert (got.error.code, [each.code for each in got.errors]) == (0, [0, 3, 0])
    assert "t-5: there is no such partition" in got.errors[1].message
    assert (len(made), group.members) == (1, [(-1, "")])
    await stub.CommitGroup(commit(1))
    assert len(made) == 1
    found = (await stub.GroupOffsets(pb.GroupOffsetsRequest(group="g", topics=["t"]))).offsets
    assert [(each.partition, each.offset, each.metadata) for each in found] == [
        (0, 10, "spark q 1"),
        (1, 11, "spark q 1"),
    ]
    assert not (await stub.GroupOffsets(pb.GroupOffsetsRequest(group="g", topics=["x"]))).offsets


async def test_a_group_with_members_refuses_once_for_all(rig: Rig, stub: Stub) -> None:
    Group(rig).codes = [ErrorCode.UNKNOWN_MEMBER_ID]
    got = await stub.CommitGroup(commit(0, 1))
    assert (got.error.code, len(got.errors)) == (25, 0)
    assert "group g: the group has members" in got.error.message


async def test_a_coordinator_that_loads_is_asked_again(rig: Rig, stub: Stub) -> None:
    group = Group(rig)
    group.codes = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR]
    got = await stub.CommitGroup(commit(0))
    assert [each.code for each in got.errors] == [0]
    group.codes = [ErrorCode.NOT_COORDINATOR]
    got = await stub.GroupOffsets(pb.GroupOffsetsRequest(group="g"))
    assert [each.offset for each in got.offsets] == [10]
    group.codes = [ErrorCode.NOT_COORDINATOR] * groups.TRIES_MAX
    got = await stub.GroupOffsets(pb.GroupOffsetsRequest(group="g"))
    assert got.error.code == ErrorCode.NOT_COORDINATOR
    assert "try again" in got.error.message
