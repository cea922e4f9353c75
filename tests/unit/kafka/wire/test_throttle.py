"""The throttle time of finished responses, of every API and version; what a Fetch may bring."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import SUPPORTED, ApiKey, is_supported
from penstock_kafka.wire.fetch import FetchRequest, decode_fetch, encode_fetch_request
from penstock_kafka.wire.frames import RequestHeader, parse_request_header, request_header
from penstock_kafka.wire.primitives import Buffer
from penstock_kafka.wire.produce import (
    ProduceResult,
    Receipt,
    decode_produce_response,
    encode_produce_response,
)
from penstock_kafka.wire.throttle import limit_fetch, with_throttle_time
from support.kio_samples import sample

VERSIONS = [
    (key, version)
    for key, (low, high) in sorted(SUPPORTED.items())
    for version in range(low, high + 1)
    if is_supported(key, version)
]


@pytest.mark.parametrize("cut", [0, 3, 7])
@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_it_is_written_where_the_schema_has_it(key: int, version: int, cut: int) -> None:
    header = RequestHeader(key, version, 5, "c", 0)
    entity = sample(codec.response_type(key, version))
    whole = codec.encode_response(header, entity)
    parts = [whole[:cut], whole[cut:]] if cut else whole
    told = with_throttle_time(key, version, parts, 1234)
    _, answer = codec.decode_response(key, version, joined(told))
    if hasattr(entity, "throttle_time"):
        assert answer.throttle_time == timedelta(milliseconds=1234)
        answer = codec.build(type(answer), **{**vars_of(answer), "throttle_time": entity.throttle_time})
    assert answer == entity


def joined(response: Sequence[Buffer] | bytes) -> bytes:
    return response if isinstance(response, bytes) else b"".join(response)


def vars_of(entity: object) -> dict[str, object]:
    return {name: getattr(entity, name) for name in entity.__dataclass_fields__}  # type: ignore[attr-defined]


def test_a_longer_time_stays() -> None:
    header = RequestHeader(ApiKey.HEARTBEAT, 4, 5, "c", 0)
    whole = codec.respond(header, error_code=0, throttle_time=500)
    assert with_throttle_time(ApiKey.HEARTBEAT, 4, whole, 499) is whole
    assert with_throttle_time(ApiKey.HEARTBEAT, 4, whole, 501) != whole


def test_a_version_that_nobody_answers_stays_as_it_is() -> None:
    assert with_throttle_time(ApiKey.API_VERSIONS, 99, b"1234567", 5) == b"1234567"


def test_receipts_come_after_a_partition_and_not_after_the_field() -> None:
    header = RequestHeader(ApiKey.PRODUCE, 11, 5, "c", 0)
    result = ProduceResult("t", None, 0, 0, 7, receipt=Receipt(3, (1, 2), (1,)))
    told = with_throttle_time(ApiKey.PRODUCE, 11, encode_produce_response(header, [result]), 77)
    answer = decode_produce_response(joined(told), 11)
    assert (answer.throttle_ms, answer.results[0].receipt) == (77, result.receipt)


def test_large_records_are_not_copied() -> None:
    header = RequestHeader(ApiKey.FETCH, 12, 5, "c", 0)
    head = codec.respond(header, error_code=0, session_id=0, responses=())
    records = bytes(100_000)
    told = with_throttle_time(ApiKey.FETCH, 12, [head, records], 9)
    assert told[-1] is records


@pytest.mark.parametrize("version", range(SUPPORTED[ApiKey.FETCH][0], SUPPORTED[ApiKey.FETCH][1] + 1))
def test_a_fetch_asks_for_no_more_than_is_left(version: int) -> None:
    frame = bytearray(encode_fetch_request(version, 5, "client", FetchRequest(500, 1000, 50_000_000)))
    before = decode_fetch(frame, parse_request_header(frame))
    header = limit_fetch(frame, 700)
    after = decode_fetch(frame, header)
    assert (after.max_bytes, after.min_bytes, after.max_wait_ms) == (700, 700, 500)
    limit_fetch(frame, 10_000)
    assert decode_fetch(frame, header) == after
    after.max_bytes, after.min_bytes = before.max_bytes, before.min_bytes
    assert after == before


def test_a_fetch_that_ends_early_is_left_to_its_reader() -> None:
    frame = bytearray(request_header(ApiKey.FETCH, 12, 5, "client") + b"\x00\x00")
    limit_fetch(frame, 1)
    assert frame.endswith(b"\x00\x00")
