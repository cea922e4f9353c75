"""Fetch against kafka-python's, aiokafka's and kio's codecs, and against garbage."""

import io
from dataclasses import replace
from typing import Any

import pytest
from aiokafka.protocol import fetch as aio
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.fetch import FetchRequest as KpRequest
from kafka.protocol.consumer.fetch import FetchResponse as KpResponse

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicId
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResult,
    decode_fetch,
    decode_fetch_response,
    encode_fetch_request,
    encode_fetch_response,
)
from penstock_kafka.wire.frames import RequestHeader, parse_request_header

VERSIONS = range(4, 19)
KP_VERSIONS = range(4, KpResponse.max_version + 1)


def key(topic: str, version: int) -> tuple[str, TopicId | None]:
    if version >= 13:
        return "", TopicId(topic.encode().ljust(16, b"\x02")[:16])
    return topic, None


def sample(version: int) -> FetchRequest:
    def one(topic: str, partition: int) -> FetchPartition:
        return FetchPartition(
            *key(topic, version),
            partition,
            current_leader_epoch=4 if version >= 9 else -1,
            fetch_offset=2**40 + partition,
            last_fetched_epoch=3 if version >= 12 else -1,
            log_start_offset=-1,
            max_bytes=1_048_576,
        )

    return FetchRequest(
        500,
        1,
        50_000_000,
        isolation_level=1,
        session_id=0,
        session_epoch=0 if version >= 7 else -1,
        partitions=[one("a", 0), one("a", 1), one("long-topic" * 9, 2)],
        rack_id="rack-1" if version >= 11 else "",
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_request_round_trip_and_kio(version: int) -> None:
    request = sample(version)
    frame = encode_fetch_request(version, 8, "me", request)
    header = parse_request_header(frame)
    assert decode_fetch(bytearray(frame), header) == request
    entity = codec.decode_request(header, frame)
    assert codec.encode_body(entity) == frame[header.body_offset :]
    assert entity.topics[0].partitions[1].fetch_offset == 2**40 + 1
    if version >= 7:
        assert entity.forgotten_topics_data == ()


@pytest.mark.parametrize("version", KP_VERSIONS)
def test_request_for_kafka_python(version: int) -> None:
    frame = encode_fetch_request(version, 8, "me", sample(version))
    request = KpRequest.decode(frame, version=version, header=True)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (500, 1, 50_000_000)
    assert [p.partition for t in request.topics for p in t.partitions] == [0, 1, 2]


def test_forgotten_topics_and_replica_state_are_read_over() -> None:
    forgotten = codec.entity_type(ApiKey.FETCH, 17, "ForgottenTopic", request=True)
    state = codec.entity_type(ApiKey.FETCH, 17, "ReplicaState", request=True)
    frame = encode_fetch_request(17, 8, "me", sample(17))
    header = parse_request_header(frame)
    entity = codec.decode_request(header, frame)
    entity = replace(
        entity,
        forgotten_topics_data=(forgotten(topic_id=entity.topics[0].topic_id, partitions=(1, 2, 3)),),
        replica_state=state(replica_id=5, replica_epoch=9),
        cluster_id="cluster",
    )
    body = codec.encode_body(entity)
    header.body_offset = 0
    request = decode_fetch(body, header)
    assert request.replica_id == 5
    assert len(request.partitions) == 3


@given(version=st.sampled_from(VERSIONS), data=st.data())
def test_cut_and_changed_requests_raise_only_invalid_request(version: int, data: st.DataObject) -> None:
    frame = bytearray(encode_fetch_request(version, 8, "me", sample(version)))
    header = parse_request_header(frame)
    for _ in range(data.draw(st.integers(0, 3))):
        frame[data.draw(st.integers(header.body_offset, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = frame[: data.draw(st.integers(header.body_offset, len(frame)))]
    try:
        decode_fetch(cut, header)
    except PenstockError as error:
        assert error.code == ErrorCode.INVALID_REQUEST


def results(version: int) -> list[FetchResult]:
    start: dict[str, Any] = {"log_start_offset": 2} if version >= 5 else {}
    return [
        FetchResult(*key("a", version), 0, 0, 100, 99, records=[memoryview(b"r" * 500)], **start),
        FetchResult(*key("a", version), 1, ErrorCode.OFFSET_OUT_OF_RANGE),
        FetchResult(*key("b", version), 2, 0, 7, 7, aborted=[(4, 5), (6, 7)], **start),
        FetchResult(
            *key("b", version), 3, 0, 7, 7, records=[b"x" * 20, bytearray(b"y" * 30)], aborted=[], **start
        ),
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_response_round_trip_and_kio(version: int) -> None:
    header = RequestHeader(ApiKey.FETCH, version, 6, None, 0)
    sent = results(version)
    data = b"".join(encode_fetch_response(header, sent, throttle_ms=3))
    got = decode_fetch_response(data, version)
    assert (got.correlation_id, got.throttle_ms, got.session_id, got.error) == (6, 3, 0, 0)
    for result in sent:
        result.records = [b"".join(result.records)] if result.records else []
    assert got.results == sent
    _, entity = codec.decode_response(ApiKey.FETCH, version, data)
    assert codec.encode_response(header, entity) == data


@pytest.mark.parametrize("version", KP_VERSIONS)
def test_response_for_kafka_python(version: int) -> None:
    header = RequestHeader(ApiKey.FETCH, version, 6, None, 0)
    data = b"".join(encode_fetch_response(header, results(version)))
    response = KpResponse.decode(data, version=version, header=True)
    flat = [
        (p.partition_index, p.error_code, p.high_watermark, bytes(p.records or b""))
        for t in response.responses
        for p in t.partitions
    ]
    assert flat == [
        (0, 0, 100, b"r" * 500),
        (1, 1, -1, b""),
        (2, 0, 7, b""),
        (3, 0, 7, b"x" * 20 + b"y" * 30),
    ]
    aborted = [p.aborted_transactions for t in response.responses for p in t.partitions]
    assert aborted[0] is None
    assert [(a.producer_id, a.first_offset) for a in aborted[2]] == [(4, 5), (6, 7)]
    assert aborted[3] == []
    if version >= 7:
        assert response.session_id == 0


@pytest.mark.parametrize("version", range(4, 12))
def test_response_for_aiokafka(version: int) -> None:
    header = RequestHeader(ApiKey.FETCH, version, 6, None, 0)
    data = b"".join(encode_fetch_response(header, results(version)))
    response = getattr(aio, f"FetchResponse_v{version}").decode(io.BytesIO(data[4:]))
    assert [topic for topic, _ in response.topics] == ["a", "b"]
    assert bytes(response.topics[0][1][0][-1]) == b"r" * 500


def test_records_are_not_copied() -> None:
    header = RequestHeader(ApiKey.FETCH, 12, 6, None, 0)
    parts = [memoryview(bytearray(1000)), memoryview(bytearray(2000))]
    out = encode_fetch_response(header, [FetchResult("t", None, 0, records=list(parts))])
    assert out[1] is parts[0]
    assert out[2] is parts[1]
    assert len(out) == 4


def test_a_request_can_fail_as_a_whole() -> None:
    header = RequestHeader(ApiKey.FETCH, 12, 6, None, 0)
    data = b"".join(encode_fetch_response(header, [], error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
    assert decode_fetch_response(data, 12).error == 70
    request = FetchRequest(1, 1, 1, session_id=5, session_epoch=2)
    assert request.is_incremental
    assert not FetchRequest(1, 1, 1, session_epoch=0).is_incremental


@given(version=st.sampled_from(VERSIONS), data=st.data())
def test_changed_responses_raise_only_invalid_request(version: int, data: st.DataObject) -> None:
    header = RequestHeader(ApiKey.FETCH, version, 77, None, 0)
    frame = bytearray(b"".join(encode_fetch_response(header, results(version))))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_fetch_response(frame[: data.draw(st.integers(0, len(frame)))], version)
    except PenstockError as error:
        assert error.code == ErrorCode.INVALID_REQUEST
