"""Produce against kafka-python's, aiokafka's and kio's codecs, and against garbage."""

import io
import uuid

import pytest
from aiokafka.protocol import produce as aio
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer.produce import ProduceRequest as KpRequest
from kafka.protocol.producer.produce import ProduceResponse as KpResponse

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicId
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import RequestHeader, parse_request_header
from penstock_kafka.wire.produce import (
    ProducePartition,
    ProduceResult,
    ProduceSkim,
    Receipt,
    decode_produce_response,
    encode_produce_request,
    encode_produce_response,
    skim_produce,
)

TOPIC_ID = TopicId(bytes(range(16)))


def sample(version: int) -> ProduceSkim:
    def one(topic: str, partition: int, records: bytes) -> ProducePartition:
        by_id = version >= 13
        topic_id = TopicId(topic.encode().ljust(16, b"\x01")[:16]) if by_id else None
        return ProducePartition("" if by_id else topic, topic_id, partition, memoryview(records))

    return ProduceSkim(
        None,
        -1,
        30_000,
        [one("orders", 0, b"a" * 200), one("orders", 7, b"b" * 70_000), one("päyments", 1, b"")],
    )


@pytest.mark.parametrize("version", range(3, 14))
def test_request_from_kafka_python_and_back(version: int) -> None:
    if version <= 11:
        request = KpRequest(
            version=version,
            transactional_id="tx",
            acks=1,
            timeout_ms=1500,
            topic_data=[
                KpRequest.TopicProduceData(
                    version=version,
                    name="orders",
                    partition_data=[
                        KpRequest.TopicProduceData.PartitionProduceData(
                            version=version, index=3, records=b"x" * 300
                        )
                    ],
                )
            ],
        )
        request.with_header(correlation_id=11, client_id="kp")
        frame = request.encode(version=version, header=True)
        skim = skim_produce(frame, parse_request_header(frame))
        assert (skim.transactional_id, skim.acks, skim.timeout_ms) == ("tx", 1, 1500)
        assert [(p.topic, p.partition, bytes(p.records)) for p in skim.partitions] == [
            ("orders", 3, b"x" * 300)
        ]
        again = b"".join(encode_produce_request(version, 11, "kp", skim))
        assert again == bytes(frame)


@pytest.mark.parametrize("version", range(3, 14))
def test_request_round_trip_and_kio(version: int) -> None:
    skim = sample(version)
    frame = b"".join(encode_produce_request(version, 4, "me", skim))
    header = parse_request_header(frame)
    assert skim_produce(bytearray(frame), header) == skim
    schema = codec.request_type(ApiKey.PRODUCE, version)
    entity = codec._decode(schema, frame[header.body_offset :])
    assert [len(p.records) for t in entity.topic_data for p in t.partition_data] == [200, 70_000, 0]
    assert codec.encode_body(entity) == frame[header.body_offset :]


def test_records_are_views_onto_the_frame() -> None:
    skim = sample(9)
    buffers = encode_produce_request(9, 1, None, skim)
    assert any(buffer is skim.partitions[1].records for buffer in buffers)
    frame = bytearray(b"".join(buffers))
    found = skim_produce(frame, parse_request_header(frame))
    assert found.partitions[1].records.obj is frame


def test_null_records_and_unknown_tags() -> None:
    frame = bytearray(b"\x00\x00\x00\x09\x00\x00\x00\x01\xff\xff\x00")  # header v2
    frame += b"\x00\x00\x01\x00\x00\x07\xd0"  # no transactional id, acks 1, 2 s
    frame += b"\x02\x02t"  # one topic
    frame += b"\x02\x00\x00\x00\x05\x00\x01\x63\x03abc"  # partition 5, null records, tag 99
    frame += b"\x01\x64\x01z"  # topic's tag 100
    frame += b"\x02\x65\x00\x66\x01y"  # two tags of the request
    skim = skim_produce(frame, parse_request_header(frame))
    assert [(p.topic, p.partition, len(p.records)) for p in skim.partitions] == [("t", 5, 0)]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_versions_are_unsupported(version: int) -> None:
    header = RequestHeader(ApiKey.PRODUCE, version, 1, None, 0)
    with pytest.raises(PenstockError) as caught:
        skim_produce(b"", header)
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION


@given(version=st.integers(3, 13), data=st.data())
def test_cut_and_changed_requests_raise_only_invalid_request(version: int, data: st.DataObject) -> None:
    frame = bytearray(b"".join(encode_produce_request(version, 4, "me", sample(version))))[:400]
    header = parse_request_header(frame)
    for _ in range(data.draw(st.integers(0, 3))):
        frame[data.draw(st.integers(header.body_offset, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = frame[: data.draw(st.integers(header.body_offset, len(frame)))]
    try:
        skim_produce(cut, header)
    except PenstockError as error:
        assert error.code == ErrorCode.INVALID_REQUEST


@given(version=st.integers(3, 13), body=st.binary(max_size=300))
def test_garbage_requests(version: int, body: bytes) -> None:
    try:
        skim_produce(body, RequestHeader(ApiKey.PRODUCE, version, 1, None, 0))
    except PenstockError as error:
        assert error.code == ErrorCode.INVALID_REQUEST


def test_absurd_array_lengths_cost_nothing() -> None:
    body = b"\xff\xff" + b"\x00\x01" + b"\x00\x00\x07\xd0" + b"\x7f\xff\xff\xff"
    with pytest.raises(PenstockError, match="array of 2147483647"):
        skim_produce(body, RequestHeader(ApiKey.PRODUCE, 3, 1, None, 0))


def results(version: int) -> list[ProduceResult]:
    by_id = version >= 13

    def one(topic: str, partition: int, **values: object) -> ProduceResult:
        topic_id = TopicId(topic.encode().ljust(16, b"\x01")[:16]) if by_id else None
        return ProduceResult("" if by_id else topic, topic_id, partition, **values)  # type: ignore[arg-type]

    late = {"log_start_offset": 3} if version >= 5 else {}
    time = {"log_append_time_ms": 1_700_000_000_000} if version >= 2 else {}
    errors = (
        {"error_message": "bad", "record_errors": [(2, "no key"), (5, None)]}
        if version >= 8
        else {"record_errors": []}
    )
    ok: dict[str, object] = {"record_errors": []} if version >= 8 else {}
    return [
        one("a", 0, base_offset=5, **late, **time, **ok),
        one("a", 1, error=ErrorCode.INVALID_RECORD, **(errors if version >= 8 else {})),
        one("b" * 200, 2, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, **ok),
    ]


@pytest.mark.parametrize("version", range(14))
def test_response_round_trip(version: int) -> None:
    header = RequestHeader(ApiKey.PRODUCE, version, 77, None, 0)
    sent = results(version)
    data = encode_produce_response(header, sent, throttle_ms=5)
    got = decode_produce_response(data, version)
    assert got.correlation_id == 77
    assert got.results == sent
    assert got.throttle_ms == (5 if version >= 1 else 0)


@pytest.mark.parametrize("version", range(12))
def test_response_for_kafka_python(version: int) -> None:
    header = RequestHeader(ApiKey.PRODUCE, version, 77, None, 0)
    data = encode_produce_response(header, results(version))
    response = KpResponse.decode(data, version=version, header=True)
    flat = [
        (t.name, p.index, p.error_code, p.base_offset)
        for t in response.responses
        for p in t.partition_responses
    ]
    assert flat == [("a", 0, 0, 5), ("a", 1, 87, -1), ("b" * 200, 2, 6, -1)]
    if version >= 8:
        bad = response.responses[0].partition_responses[1]
        assert bad.error_message == "bad"
        assert [(e.batch_index, e.batch_index_error_message) for e in bad.record_errors] == [
            (2, "no key"),
            (5, None),
        ]


@pytest.mark.parametrize("version", range(3, 14))
def test_response_for_kio(version: int) -> None:
    header = RequestHeader(ApiKey.PRODUCE, version, 77, None, 0)
    data = encode_produce_response(header, results(version))
    _, entity = codec.decode_response(ApiKey.PRODUCE, version, data)
    assert codec.encode_response(header, entity) == data
    if version >= 13:
        assert entity.responses[0].topic_id == uuid.UUID(bytes=b"a".ljust(16, b"\x01"))


@pytest.mark.parametrize("version", range(9))
def test_response_for_aiokafka(version: int) -> None:
    header = RequestHeader(ApiKey.PRODUCE, version, 77, None, 0)
    data = encode_produce_response(header, results(version))
    response = getattr(aio, f"ProduceResponse_v{version}").decode(io.BytesIO(data[4:]))
    assert [topic for topic, _ in response.topics] == ["a", "b" * 200]
    assert [partition[:3] for partition in response.topics[0][1]] == [(0, 0, 5), (1, 87, -1)]


@given(version=st.integers(0, 13), data=st.data())
def test_changed_responses_raise_only_invalid_request(version: int, data: st.DataObject) -> None:
    header = RequestHeader(ApiKey.PRODUCE, version, 77, None, 0)
    frame = bytearray(encode_produce_response(header, results(version)))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_produce_response(frame[: data.draw(st.integers(0, len(frame)))], version)
    except PenstockError as error:
        assert error.code == ErrorCode.INVALID_REQUEST


def test_a_receipt_travels_in_a_tagged_field() -> None:
    item = ProducePartition("t", None, 0, memoryview(b"abc"))
    skim = ProduceSkim(None, -1, 1000, [item], want_receipt=True)
    for version in (9, 12):
        frame = b"".join(encode_produce_request(version, 7, "c", skim))
        header = parse_request_header(frame)
        assert skim_produce(frame, header).want_receipt
        receipt = Receipt(5, (1, 2, 3), (1, 3))
        results = [ProduceResult("t", None, 0, 0, 42, receipt=receipt), ProduceResult("t", None, 1, 6)]
        found = decode_produce_response(encode_produce_response(header, results), version).results
        assert [r.receipt for r in found] == [receipt, None]
        assert [(r.base_offset, r.error) for r in found] == [(42, 0), (-1, 6)]
    # Versions without tagged fields neither ask nor tell.
    frame = b"".join(encode_produce_request(8, 7, "c", skim))
    header = parse_request_header(frame)
    assert not skim_produce(frame, header).want_receipt
    plain = encode_produce_response(header, [ProduceResult("t", None, 0, receipt=Receipt(1, (), ()))])
    assert decode_produce_response(plain, 8).results[0].receipt is None


def test_nobody_asks_for_a_receipt_by_accident() -> None:
    item = ProducePartition("t", None, 0, memoryview(b"abc"))
    frame = b"".join(encode_produce_request(9, 7, "c", ProduceSkim(None, -1, 1000, [item])))
    other = frame[:-1] + b"\x01\x05\x02ab"  # another tagged field
    for data in (frame, other):
        assert not skim_produce(data, parse_request_header(data)).want_receipt
    for torn in (frame[:-1], frame[:-1] + b"\x01\x05\x09ab", frame[:-1] + b"\xff\x01"):
        with pytest.raises(PenstockError):
            skim_produce(torn, parse_request_header(torn))
