"""Kafka's requests and responses: headers, the generic codec, and what is read by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final, get_args, get_origin

from fuzz.target import Target, expect
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.metadata import MetadataImage
from penstock_core.topics import OFFSETS_TOPIC
from penstock_gateway.kafka.handler import RELAYED
from penstock_gateway.relay import queries
from penstock_kafka.error_responses.data import error_response
from penstock_kafka.wire import codec
from penstock_kafka.wire.api_versions import decode_api_versions, encode_api_versions_response
from penstock_kafka.wire.apis import SUPPORTED, ApiKey, is_supported
from penstock_kafka.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResult,
    decode_fetch,
    decode_fetch_response,
    encode_fetch_request,
    encode_fetch_response,
)
from penstock_kafka.wire.frames import RequestHeader, parse_request_header, request_header
from penstock_kafka.wire.metadata import decode_metadata, encode_metadata_response
from penstock_kafka.wire.primitives import Malformed
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
from penstock_kafka.wire.produce_parts import ProduceParts
from penstock_proto.v1 import metadata_pb2

VERSIONS: Final = [
    (key, version)
    for key, (low, high) in sorted(SUPPORTED.items())
    for version in range(low, high + 1)
    if is_supported(key, version)
]
"""Every api key and version that is advertised; the first byte(s) of an input choose one."""

_TOPIC_ID: Final = bytes(range(16))


# -- choosing a version, making seeds ------------------------------------------------------------


def _choose(data: bytes) -> tuple[int, int, bytes]:
    """Api key, version and the rest of an input."""
    if len(data) < 2:
        raise Malformed("too short to choose a version")
    key, version = VERSIONS[int.from_bytes(data[:2], "big") % len(VERSIONS)]
    return key, version, data[2:]


def chosen(key: int, version: int, body: bytes) -> bytes:
    """The input that `_choose` takes apart."""
    return VERSIONS.index((key, version)).to_bytes(2, "big") + body


def sample(schema: Any) -> Any:
    """An entity of kio's with two items in each array and something in each field."""
    values: dict[str, Any] = {}
    for one in fields(schema):
        kind: Any = one.type
        if type(None) in get_args(kind):
            kind = next(arg for arg in get_args(kind) if arg is not type(None))
        name = one.metadata.get("kafka_type", "")
        if get_origin(kind) is tuple:
            item = get_args(kind)[0]
            nested = hasattr(item, "__dataclass_fields__")
            values[one.name] = tuple(sample(item) if nested else _scalar(name, n) for n in (1, 2))
        elif hasattr(kind, "__dataclass_fields__"):
            values[one.name] = sample(kind)
        else:
            values[one.name] = _scalar(name, 3)
    return codec.build(schema, **values)


def _scalar(name: str, number: int) -> Any:
    if name == "string":
        return f"name-{number}"
    if name in ("bytes", "records"):
        return bytes([number]) * 5
    if name == "datetime_i64":
        return datetime.fromtimestamp(number, UTC)
    return {"bool": True, "uuid": bytes([number]) * 16}.get(name, number)


def request_body(key: int, version: int) -> bytes:
    """A valid request's body."""
    return codec.encode_body(sample(codec.request_type(key, version)))


def _request_seeds(keys: Callable[[int], bool] = lambda key: True) -> Iterator[bytes]:
    for key, version in VERSIONS:
        if keys(key):
            yield chosen(key, version, request_body(key, version))


# -- targets -------------------------------------------------------------------------------------


def _header(data: bytes) -> None:
    header = parse_request_header(data)
    expect(header.body_offset <= len(data), "a header ends inside its frame")
    if is_supported(header.api_key, header.api_version):
        again = request_header(header.api_key, header.api_version, header.correlation_id, header.client_id)
        back = parse_request_header(again)
        # What is no UTF-8 is replaced, and may then be too long.
        expect(back.correlation_id == header.correlation_id, "a header is read back")


def _header_seeds() -> Iterator[bytes]:
    for key, version in VERSIONS:
        yield request_header(key, version, 7, "client")
    yield request_header(ApiKey.METADATA, 1, -1, None)
    yield request_header(ApiKey.FETCH, 12, 1, "c")[:-1] + b"\x02\x00\x01a\x7f\x00"


def _decode_request(data: bytes) -> None:
    key, version, body = _choose(data)
    entity = codec.decode_request(RequestHeader(key, version, 1, None, 0), body)
    try:
        again = codec.encode_body(entity)
    except ValueError as error:
        # kio's enums have no place for numbers that clients made up, nor its dates for such years.
        expect("out of range" in str(error), f"encoded again: {error}")
        return
    once = codec.decode_request(RequestHeader(key, version, 1, None, 0), again)
    expect(codec.encode_body(once) == again, "what was read and written is read and written the same")


def _decode_response(data: bytes) -> None:
    key, version, body = _choose(data)
    codec.decode_response(key, version, body)


def _response_seeds() -> Iterator[bytes]:
    for key, version in VERSIONS:
        answer = sample(codec.response_type(key, version))
        yield chosen(key, version, codec.encode_response(RequestHeader(key, version, 5, None, 0), answer))


def _error_response(data: bytes) -> None:
    key, version, body = _choose(data)
    header = RequestHeader(key, version, 1, None, 0)
    answer = error_response(header, body, ErrorCode.UNKNOWN_SERVER_ERROR, "no")
    if answer is not None and key != ApiKey.API_VERSIONS:
        codec.decode_response(key, version, answer)


def _api_versions(data: bytes) -> None:
    header = parse_request_header(data)
    if header.api_key == ApiKey.API_VERSIONS:
        encode_api_versions_response(header, SUPPORTED)
        if is_supported(header.api_key, header.api_version):
            decode_api_versions(data, header)


def _api_versions_seeds() -> Iterator[bytes]:
    low, high = SUPPORTED[ApiKey.API_VERSIONS]
    for version in range(low, high + 1):
        yield request_header(ApiKey.API_VERSIONS, version, 1, "c") + request_body(
            ApiKey.API_VERSIONS, version
        )


def _versioned(low: int, high: int, data: bytes) -> tuple[int, bytes]:
    if not data:
        raise Malformed("no version")
    return low + data[0] % (high - low + 1), data[1:]


def _skim_produce(data: bytes) -> None:
    version, body = _versioned(3, 13, data)
    skim = skim_produce(body, RequestHeader(ApiKey.PRODUCE, version, 1, None, 0))
    frame = b"".join(encode_produce_request(version, 1, None, skim))
    again = skim_produce(frame, parse_request_header(frame))
    expect(again.acks == skim.acks and again.transactional_id == skim.transactional_id, "read back")
    # Topics that were named twice are joined.
    expect(len(again.partitions) == len(skim.partitions), "every partition is read back")
    expect(b"".join(encode_produce_request(version, 1, None, again)) == frame, "written the same")


def _produce_parts(data: bytes) -> None:
    """The request in two pieces: its parts say what it says, or both ways it is malformed."""
    if len(data) < 2:
        raise Malformed("too short to choose a version and a place")
    version, body = _versioned(3, 13, data[1:])
    frame = request_header(ApiKey.PRODUCE, version, 1, None) + body
    first = max(parse_request_header(frame).body_offset, len(frame) * data[0] // 255)
    parted = ProduceParts(len(frame))
    parts = []
    part, taken = parted.cut(frame[:first])
    if not parted.is_over:
        parts.append(part)
        part, _ = parted.cut(frame[taken:])
    parts.append(part)
    expect(parted.is_over, "all of it is taken")
    found = [skim_produce(one, parse_request_header(one)) for one in parts if one is not None]
    whole = skim_produce(frame, parse_request_header(frame))
    expect(
        [_of_partition(p) for skim in found for p in skim.partitions]
        == [_of_partition(p) for p in whole.partitions],
        "the parts are the whole",
    )
    expect({(s.acks, s.timeout_ms) for s in found} == {(whole.acks, whole.timeout_ms)}, "each as the whole")


def _of_partition(one: ProducePartition) -> tuple[str, bytes | None, int, bytes]:
    return one.topic, one.topic_id, one.partition, bytes(one.records)


def _produce_seeds() -> Iterator[bytes]:
    for version in range(3, 14):
        name, topic_id = ("t", None) if version < 13 else ("", _TOPIC_ID)
        items = [ProducePartition(name, topic_id, n, memoryview(b"r" * n)) for n in range(3)]  # type: ignore[arg-type]
        skim = ProduceSkim("tx" if version & 1 else None, -1, 1500, items, want_receipt=True)
        frame = b"".join(encode_produce_request(version, 1, None, skim))
        yield bytes([version - 3]) + frame[parse_request_header(frame).body_offset :]


def _produce_parts_seeds() -> Iterator[bytes]:
    for seed in _produce_seeds():
        for place in (0, 100, 200, 255):
            yield bytes([place]) + seed


def _produce_response(data: bytes) -> None:
    version, body = _versioned(3, 13, data)
    response = decode_produce_response(body, version)
    header = RequestHeader(ApiKey.PRODUCE, version, response.correlation_id, None, 0)
    again = encode_produce_response(header, response.results, response.throttle_ms)
    expect(len(decode_produce_response(again, version).results) == len(response.results), "read back")


def _produce_response_seeds() -> Iterator[bytes]:
    for version in range(3, 14):
        header = RequestHeader(ApiKey.PRODUCE, version, 9, None, 0)
        results = [
            ProduceResult("t", _TOPIC_ID, 0, 0, 5, 6, 7, receipt=Receipt(3, (1, 2), (1,))),  # type: ignore[arg-type]
            ProduceResult("t", _TOPIC_ID, 1, 87, error_message="no", record_errors=[(0, "x"), (1, None)]),  # type: ignore[arg-type]
        ]
        yield bytes([version - 3]) + encode_produce_response(header, results)


def _fetch(data: bytes) -> None:
    version, body = _versioned(4, 18, data)
    request = decode_fetch(body, RequestHeader(ApiKey.FETCH, version, 1, None, 0))
    frame = encode_fetch_request(version, 1, None, request)
    again = decode_fetch(frame, parse_request_header(frame))
    expect(len(again.partitions) == len(request.partitions), "every partition is read back")
    expect(encode_fetch_request(version, 1, None, again) == frame, "written the same")


def _fetch_seeds() -> Iterator[bytes]:
    for version in range(4, 19):
        name, topic_id = ("t", None) if version < 13 else ("", _TOPIC_ID)
        items = [FetchPartition(name, topic_id, n, 4, 100, 3, 0, 1024) for n in range(3)]  # type: ignore[arg-type]
        request = FetchRequest(500, 1, 1 << 20, 1, partitions=items, rack_id="rack")
        frame = encode_fetch_request(version, 1, None, request)
        yield bytes([version - 4]) + frame[parse_request_header(frame).body_offset :]
    # With forgotten topics and the replica's state in a tag.
    yield bytes([12]) + request_body(ApiKey.FETCH, 16)


def _fetch_response(data: bytes) -> None:
    version, body = _versioned(4, 18, data)
    response = decode_fetch_response(body, version)
    header = RequestHeader(ApiKey.FETCH, version, response.correlation_id, None, 0)
    again = b"".join(encode_fetch_response(header, response.results, response.throttle_ms, response.error))
    expect(len(decode_fetch_response(again, version).results) == len(response.results), "read back")


def _fetch_response_seeds() -> Iterator[bytes]:
    for version in range(4, 19):
        header = RequestHeader(ApiKey.FETCH, version, 9, None, 0)
        results = [
            FetchResult("t", _TOPIC_ID, 0, 0, 9, 9, 0, [b"records"], [(5, 6)]),  # type: ignore[arg-type]
            FetchResult("t", _TOPIC_ID, 1, 1),  # type: ignore[arg-type]
        ]
        yield bytes([version - 4]) + b"".join(encode_fetch_response(header, results))


def _metadata(data: bytes) -> None:
    version, body = _versioned(0, 13, data)
    header = RequestHeader(ApiKey.METADATA, version, 1, None, 0)
    request = decode_metadata(body, header)
    encode_metadata_response(header, request, MetadataImage(), lambda node: None, -1)


def _metadata_seeds() -> Iterator[bytes]:
    for version in range(14):
        entity = sample(codec.request_type(ApiKey.METADATA, version))
        yield bytes([version]) + codec.encode_body(entity)
    yield b"\x09\x00\x01\x00\x00\x00"
    yield b"\x0c\x02" + _TOPIC_ID + b"\x00\x00\x01\x00\x00"
    yield b"\x04\x00\x00\x00\x01\x00\x01t\x01"


def _relayed(data: bytes) -> None:
    """A gateway that knows no topic, and one whose nodes are away: taken apart, failed, the answers joined."""
    key, version, body = _choose(data)
    kind = RELAYED.get(key)
    if kind is None:
        raise Malformed("not relayed")
    frame = bytearray(request_header(key, version, 1, None) + body)
    outcomes: list[Any] = []
    header = parse_request_header(frame)
    later = kind(header, frame, outcomes.append)
    if (flight := later.start(_IMAGE)) is not None:
        # Seconds later, in a timer: nobody is there to take a Malformed.
        try:
            later.failed(flight.payload, ErrorCode.REQUEST_TIMED_OUT)
        except Malformed as error:
            raise AssertionError(f"a request that was taken could not be failed: {error}") from error
    expect(len(outcomes) == 1, "failed once")
    outcomes.clear()
    request = kind(header, frame, outcomes.append)
    items = range(len(request.names()))
    if key in (ApiKey.PRODUCE, ApiKey.FETCH, *_QUERIES):
        request.encode(items, 1)
    request.start(MetadataImage())
    expect(len(outcomes) <= 1, "answered once")
    if outcomes and isinstance(outcomes[0], list) and key not in (ApiKey.PRODUCE, ApiKey.FETCH):
        codec.decode_response(key, version, b"".join(outcomes[0]))


def _image() -> MetadataImage:
    """One topic, that of the groups."""
    pb = metadata_pb2
    records = [pb.MetadataRecord(topic=pb.TopicRecord(topic_id=_TOPIC_ID, name=OFFSETS_TOPIC))]
    for index in range(3):
        partition = pb.PartitionRecord(topic_id=_TOPIC_ID, partition=index, replicas=[1], isr=[1], leader=1)
        records.append(pb.MetadataRecord(partition=partition))
    return MetadataImage.from_records(records, 1)


_IMAGE: Final = _image()
_QUERIES: Final = (ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.DELETE_RECORDS)


def _answers(data: bytes) -> None:
    """Answers of nodes to questions of the gateway."""
    if not data:
        raise Malformed("no version")
    versions = [(key, v) for key, v in VERSIONS if key in _QUERIES]
    key, version = versions[data[0] % len(versions)]
    kind = {
        ApiKey.LIST_OFFSETS: queries.ListOffsetsQuery,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: queries.LeaderEpochQuery,
        ApiKey.DELETE_RECORDS: queries.DeleteRecordsQuery,
    }[ApiKey(key)]
    flexible = RequestHeader(key, version, 0, None, 0).flexible
    queries.read_answers(data[1:], flexible, kind.layout_of(version))


def _answers_seeds() -> Iterable[bytes]:
    versions = [(key, v) for key, v in VERSIONS if key in _QUERIES]
    for index, (key, version) in enumerate(versions):
        answer = sample(codec.response_type(key, version))
        yield bytes([index]) + codec.encode_response(RequestHeader(key, version, 5, None, 0), answer)


REFUSED: Final = (PenstockError,)

TARGETS: Final = [
    Target("kafka.request_header", _header, REFUSED, _header_seeds, share=40, input_bytes_max=1200),
    Target("kafka.request", _decode_request, REFUSED, _request_seeds, share=60, input_bytes_max=2048),
    Target("kafka.response", _decode_response, REFUSED, _response_seeds, share=30, input_bytes_max=2048),
    Target("kafka.error_response", _error_response, REFUSED, _request_seeds, share=20, input_bytes_max=2048),
    Target("kafka.api_versions", _api_versions, REFUSED, _api_versions_seeds, share=20, input_bytes_max=512),
    Target("kafka.produce", _skim_produce, REFUSED, _produce_seeds, share=50),
    Target("kafka.produce_parts", _produce_parts, REFUSED, _produce_parts_seeds, share=30),
    Target("kafka.produce_response", _produce_response, REFUSED, _produce_response_seeds, share=20),
    Target("kafka.fetch", _fetch, REFUSED, _fetch_seeds, share=50),
    Target("kafka.fetch_response", _fetch_response, REFUSED, _fetch_response_seeds, share=20),
    Target("kafka.metadata", _metadata, REFUSED, _metadata_seeds, share=40),
    Target(
        "gateway.relayed",
        _relayed,
        REFUSED,
        lambda: _request_seeds(lambda key: key in RELAYED),
        share=30,
        input_bytes_max=2048,
    ),
    Target("gateway.answers", _answers, REFUSED, _answers_seeds, share=20),
]
