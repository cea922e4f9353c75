"""Metadata responses of every version, against kafka-python, kio and aiokafka."""

import io
import timeit

import pytest
from aiokafka.protocol import metadata as aio
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.metadata import MetadataRequest as KpRequest
from kafka.protocol.metadata import MetadataResponse as KpResponse

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId, TopicId
from penstock_core.metadata import MetadataImage, NodeImage
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import RequestHeader, parse_request_header, request_header
from penstock_kafka.wire.metadata import (
    MetadataRequest,
    cluster_id_text,
    decode_metadata,
    encode_metadata_response,
)
from penstock_proto.v1 import common_pb2, metadata_pb2

CLUSTER = bytes(range(16))
ORDERS = TopicId(b"o" * 16)
OFFSETS = TopicId(b"f" * 16)
ALL = MetadataRequest(None)


def node(node_id: int, fenced: bool = False, rack: str = "") -> metadata_pb2.MetadataRecord:
    endpoint = common_pb2.Endpoint(listener="DIRECT", host=f"node-{node_id}", port=9000 + node_id)
    return metadata_pb2.MetadataRecord(
        node=metadata_pb2.NodeRecord(node_id=node_id, fenced=fenced, rack=rack, listeners=[endpoint])
    )


def partition(
    topic_id: bytes, index: int, leader: int, replicas: list[int], isr: list[int]
) -> metadata_pb2.MetadataRecord:
    return metadata_pb2.MetadataRecord(
        partition=metadata_pb2.PartitionRecord(
            topic_id=topic_id,
            partition=index,
            leader=leader,
            leader_epoch=5 + index,
            replicas=replicas,
            isr=isr,
        )
    )


def image() -> MetadataImage:
    records = [
        metadata_pb2.MetadataRecord(cluster=metadata_pb2.ClusterRecord(cluster_id=CLUSTER)),
        node(1, rack="a/h1"),
        node(2),
        node(3, fenced=True),
        metadata_pb2.MetadataRecord(topic=metadata_pb2.TopicRecord(topic_id=ORDERS, name="orders")),
        partition(ORDERS, 0, 1, [1, 2, 3], [1, 2]),
        partition(ORDERS, 1, 3, [3, 1], [3]),
        partition(ORDERS, 2, -1, [3], []),
        metadata_pb2.MetadataRecord(
            topic=metadata_pb2.TopicRecord(topic_id=OFFSETS, name="__consumer_offsets")
        ),
        partition(OFFSETS, 0, 2, [2], [2]),
    ]
    return MetadataImage.from_records(records, 1)


def address(n: NodeImage) -> tuple[str, int]:
    endpoint = n.listeners["DIRECT"]
    return endpoint.host, endpoint.port


def encode(version: int, request: MetadataRequest = ALL, view: MetadataImage | None = None) -> bytes:
    header = RequestHeader(ApiKey.METADATA, version, 21, None, 0)
    return encode_metadata_response(header, request, view or image(), address, 2)


@pytest.mark.parametrize("version", range(14))
def test_response_for_kafka_python(version: int) -> None:
    response = KpResponse.decode(encode(version), version=version, header=True)
    assert [(b.node_id, b.host, b.port) for b in response.brokers] == [
        (1, "node-1", 9001),
        (2, "node-2", 9002),
    ]
    assert [t.name for t in response.topics] == ["orders", "__consumer_offsets"]
    found = [
        (p.error_code, p.partition_index, p.leader_id, list(p.replica_nodes), list(p.isr_nodes))
        for p in response.topics[0].partitions
    ]
    assert found == [(0, 0, 1, [1, 2, 3], [1, 2]), (5, 1, -1, [3, 1], [3]), (5, 2, -1, [3], [])]
    if version >= 1:
        assert response.controller_id == 2
        assert [b.rack for b in response.brokers] == ["a", None]
        assert [t.is_internal for t in response.topics] == [False, True]
    if version >= 2:
        assert response.cluster_id == cluster_id_text(CLUSTER) == "AAECAwQFBgcICQoLDA0ODw"
    if version >= 5:
        assert [list(p.offline_replicas) for p in response.topics[0].partitions] == [[3], [3], [3]]
    if version >= 7:
        assert [p.leader_epoch for p in response.topics[0].partitions] == [5, 6, 7]


@pytest.mark.parametrize("version", range(14))
def test_response_for_kio(version: int) -> None:
    data = encode(version)
    correlation_id, entity = codec.decode_response(ApiKey.METADATA, version, data)
    assert correlation_id == 21
    header = RequestHeader(ApiKey.METADATA, version, 21, None, 0)
    assert codec.encode_response(header, entity) == data
    if version >= 10:
        assert entity.topics[0].topic_id.bytes == ORDERS


@pytest.mark.parametrize("version", [1, 9, 13])
def test_a_fenced_node_may_be_named_and_leads_nothing_all_the_same(version: int) -> None:
    header = RequestHeader(ApiKey.METADATA, version, 21, None, 0)
    data = encode_metadata_response(header, ALL, image(), address, 2, named_fenced=frozenset({NodeId(3)}))
    _, named = codec.decode_response(ApiKey.METADATA, version, data)
    _, plain = codec.decode_response(ApiKey.METADATA, version, encode(version))
    assert [(b.node_id, b.host, b.port) for b in named.brokers[2:]] == [(3, "node-3", 9003)]
    assert (named.brokers[:2], named.topics) == (plain.brokers, plain.topics)


@pytest.mark.parametrize("version", range(6))
def test_response_for_aiokafka(version: int) -> None:
    response = getattr(aio, f"MetadataResponse_v{version}").decode(io.BytesIO(encode(version)[4:]))
    assert [broker[0] for broker in response.brokers] == [1, 2]
    assert len(response.topics) == 2


def test_missing_and_illegal_topics() -> None:
    request = MetadataRequest((("nope", None), ("bad/name", None), ("orders", None)))
    _, entity = codec.decode_response(ApiKey.METADATA, 12, encode(12, request))
    assert [(t.name, int(t.error_code)) for t in entity.topics] == [
        ("nope", 3),
        ("bad/name", 17),
        ("orders", 0),
    ]
    by_id = MetadataRequest(((None, ORDERS), (None, TopicId(b"x" * 16))))
    _, entity = codec.decode_response(ApiKey.METADATA, 12, encode(12, by_id))
    assert [(t.name, int(t.error_code)) for t in entity.topics] == [("orders", 0), (None, 100)]
    assert [t.topic_id.bytes for t in entity.topics] == [ORDERS, b"x" * 16]
    _, entity = codec.decode_response(ApiKey.METADATA, 12, encode(12, MetadataRequest(())))
    assert entity.topics == ()
    assert len(entity.brokers) == 2


def test_a_leader_without_an_address_is_still_named() -> None:
    header = RequestHeader(ApiKey.METADATA, 9, 21, None, 0)
    data = encode_metadata_response(
        header, ALL, image(), lambda n: None if n.node_id == 1 else address(n), -1
    )
    _, entity = codec.decode_response(ApiKey.METADATA, 9, data)
    assert [b.node_id for b in entity.brokers] == [2]
    first = entity.topics[0].partitions[0]
    assert (int(first.error_code), first.leader_id) == (ErrorCode.LISTENER_NOT_FOUND, 1)


@pytest.mark.parametrize("version", range(14))
def test_requests_of_kafka_python(version: int) -> None:
    topics = [
        KpRequest.MetadataRequestTopic(version=version, name="a"),
        KpRequest.MetadataRequestTopic(version=version, name="b"),
    ]
    request = KpRequest(version=version, topics=topics, allow_auto_topic_creation=False)
    request.with_header(correlation_id=1)
    frame = request.encode(version=version, header=True)
    found = decode_metadata(frame, parse_request_header(frame))
    assert found.topics == (("a", None), ("b", None))
    assert found.allow_auto_topic_creation == (version < 4)


def test_all_topics_and_none() -> None:
    def body(version: int, data: bytes) -> MetadataRequest:
        frame = request_header(ApiKey.METADATA, version, 1, None) + data
        return decode_metadata(frame, parse_request_header(frame))

    assert body(0, b"\x00\x00\x00\x00").topics is None
    assert body(1, b"\x00\x00\x00\x00").topics == ()
    assert body(1, b"\xff\xff\xff\xff").topics is None
    assert body(12, b"\x00\x01\x00\x00").topics is None
    by_id = body(12, b"\x02" + ORDERS + b"\x00\x00" + b"\x01\x00\x00")
    assert by_id.topics == ((None, ORDERS),)
    with pytest.raises(PenstockError, match="version 12"):
        body(11, b"\x02" + ORDERS + b"\x00\x00" + b"\x01\x00\x00")


@given(version=st.integers(0, 13), body=st.binary(max_size=120))
def test_garbage_requests(version: int, body: bytes) -> None:
    try:
        decode_metadata(body, RequestHeader(ApiKey.METADATA, version, 1, None, 0))
    except PenstockError as error:
        assert error.code == ErrorCode.INVALID_REQUEST


def test_no_topics_at_all() -> None:
    empty = MetadataImage()
    for version in range(14):
        _, shown = codec.decode_response(ApiKey.METADATA, version, encode(version, view=empty))
        assert not shown.topics


def large_image(count: int) -> MetadataImage:
    records = [node(1), node(2), node(3)]
    records.append(
        metadata_pb2.MetadataRecord(topic=metadata_pb2.TopicRecord(topic_id=ORDERS, name="orders"))
    )
    records += [partition(ORDERS, i, 1 + i % 3, [1, 2, 3], [1, 2, 3]) for i in range(count)]
    return MetadataImage.from_records(records, 1)


def test_one_hundred_partitions_are_cheap() -> None:
    """A bound far above the measured 60 us, to catch a fall back to generic encoding (600 us)."""
    view = large_image(100)
    best = min(timeit.repeat(lambda: encode(12, view=view), number=20, repeat=10)) / 20
    assert best < 400e-6
