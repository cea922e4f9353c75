"""The generic codec: every supported version both ways, hostile input, whole-request errors."""

import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.errors import ErrorCode, PenstockError
from penstock_kafka.error_responses.data import error_response
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import FLEXIBLE_SINCE, SUPPORTED, ApiKey, is_supported
from penstock_kafka.wire.frames import RequestHeader, parse_request_header, request_header
from penstock_kafka.wire.primitives import uvarint
from support.kio_samples import sample

VERSIONS = [
    (key, version)
    for key, (low, high) in sorted(SUPPORTED.items())
    for version in range(low, high + 1)
    if is_supported(key, version)
]
TOPIC = "orders"


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_both_ways(key: int, version: int) -> None:
    entity = sample(codec.request_type(key, version))
    frame = request_header(key, version, 5, "c") + codec.encode_body(entity)
    header = parse_request_header(frame)
    for form in (frame, bytearray(frame), memoryview(bytearray(frame))):
        assert codec.decode_request(header, form) == entity
    answer = sample(codec.response_type(key, version))
    data = codec.encode_response(header, answer)
    if key != ApiKey.API_VERSIONS:
        assert codec.decode_response(key, version, data) == (5, answer)


@pytest.mark.parametrize(("key", "version"), [v for v in VERSIONS if v[1] >= FLEXIBLE_SINCE[v[0]]])
def test_unknown_tagged_fields_are_skipped(key: int, version: int) -> None:
    entity = sample(codec.request_type(key, version))
    body = codec.encode_body(entity)
    # The last tag section is the message's own: add two tags that nobody knows.
    known = next((f for f in fields(entity) if "tag" in f.metadata), None)
    if known is None:
        assert body[-1] == 0
        body = body[:-1] + b"\x02" + uvarint(90) + b"\x03abc" + uvarint(5000) + b"\x00"
    header = RequestHeader(key, version, 1, None, 0)
    assert codec.decode_request(header, body) == entity


def test_unknown_tags_inside_structures_are_skipped() -> None:
    entity = sample(codec.request_type(ApiKey.CREATE_PARTITIONS, 3))
    body = codec.encode_body(entity)
    assignment = b"\x03\x00\x00\x00\x01\x00\x00\x00\x02\x00"
    assert body.count(assignment) == 4
    body = body.replace(assignment, assignment[:-1] + b"\x01\x63\x02hi")
    assert codec.decode_request(RequestHeader(ApiKey.CREATE_PARTITIONS, 3, 1, None, 0), body) == entity


@given(pair=st.sampled_from(VERSIONS), data=st.data())
def test_changed_requests_raise_only_invalid_request(pair: tuple[int, int], data: st.DataObject) -> None:
    key, version = pair
    body = bytearray(codec.encode_body(sample(codec.request_type(key, version))))
    for _ in range(data.draw(st.integers(1, 4))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.integers(0, len(body)))] + data.draw(st.binary(max_size=10))
    header = RequestHeader(key, version, 1, None, 0)
    try:
        codec.decode_request(header, body)
    except PenstockError as error:
        assert error.code == ErrorCode.INVALID_REQUEST
    try:
        error_response(header, body, ErrorCode.UNKNOWN_SERVER_ERROR, "no")
    except PenstockError as error:
        assert error.code == ErrorCode.INVALID_REQUEST


@given(pair=st.sampled_from(VERSIONS), body=st.binary(max_size=200))
def test_garbage(pair: tuple[int, int], body: bytes) -> None:
    try:
        codec.decode_request(RequestHeader(*pair, 1, None, 0), body)
    except PenstockError as error:
        assert error.code == ErrorCode.INVALID_REQUEST
    try:
        codec.decode_response(*pair, body)
    except PenstockError as error:
        assert error.code == ErrorCode.INVALID_REQUEST


ABSURD = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from penstock_core.errors import PenstockError
from penstock_kafka.wire import codec
from penstock_kafka.wire.frames import RequestHeader
for version, body in ((2, b"\\x7f\\xff\\xff\\xff"), (7, b"\\xff\\xff\\xff\\xff\\x0f"),
                      (7, b"\\x02\\xff\\xff\\xff\\xff\\x07" + b"a" * 10), (2, b"\\x80\\x00\\x00\\x00")):
    try:
        codec.decode_request(RequestHeader(19, version, 1, None, 0), body)
    except PenstockError as error:
        print(error.code.name)
"""


def test_absurd_lengths_do_not_end_the_process() -> None:
    """kio alone reserves memory for the length that the peer claims, and aborts."""
    done = subprocess.run([sys.executable, "-c", ABSURD], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["INVALID_REQUEST"] * 4


def test_requests_too_large_to_decode_are_refused() -> None:
    with pytest.raises(PenstockError, match="the most for a request"):
        codec.decode_request(RequestHeader(ApiKey.CREATE_TOPICS, 7, 1, None, 0), bytes(3 * 1024 * 1024))


def codes_in(entity: Any) -> list[int]:
    """Every error code of an entity."""
    found: list[int] = []
    for field in fields(entity):
        value = getattr(entity, field.name)
        if field.name in ("error_code", "partition_error_code"):
            found.append(int(value))
        elif isinstance(value, tuple):
            for item in value:
                if hasattr(item, "__dataclass_fields__"):
                    found += codes_in(item)
    return found


@pytest.mark.parametrize(("key", "version"), [v for v in VERSIONS if v[0] != ApiKey.API_VERSIONS])
def test_a_failed_request_carries_the_code_everywhere(key: int, version: int) -> None:
    entity = sample(codec.request_type(key, version))
    frame = request_header(key, version, 5, "c") + codec.encode_body(entity)
    header = parse_request_header(frame)
    if key == ApiKey.METADATA and 10 <= version <= 11:
        return  # the sample asks by id, which these versions can't
    data = error_response(header, frame, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not allowed")
    assert data is not None
    correlation_id, answer = codec.decode_response(key, version, data)
    assert correlation_id == 5
    codes = codes_in(answer)
    assert codes
    expected = {ErrorCode.CLUSTER_AUTHORIZATION_FAILED.value}
    if key == ApiKey.FETCH and version >= 7:
        expected.add(0)  # the request itself did not fail, every partition did
    assert set(codes) == expected


def test_produce_without_acks_gets_no_answer() -> None:
    frame = request_header(ApiKey.PRODUCE, 9, 1, None) + b"\x00\x00\x00\x00\x00\x07\xd0\x01\x00"
    header = parse_request_header(frame)
    assert error_response(header, frame, ErrorCode.INVALID_REQUEST) is None


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_produce_can_be_refused_in_its_own_form(version: int) -> None:
    body = (
        b"\x00\x01\x00\x00\x07\xd0\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x03\x00\x00\x00\x02xx"
    )
    frame = request_header(ApiKey.PRODUCE, version, 4, None) + body
    data = error_response(parse_request_header(frame), frame, ErrorCode.UNSUPPORTED_VERSION)
    assert data is not None
    assert data[:4] == b"\x00\x00\x00\x04"
    assert b"\x00\x23" in data


def test_an_unknown_api_or_version_is_an_invalid_request() -> None:
    for key, version in ((ApiKey.FETCH, 99), (ApiKey.JOIN_GROUP, 0)):
        with pytest.raises(PenstockError) as caught:
            codec.decode_request(RequestHeader(key, version, 1, None, 0), b"")
        assert caught.value.code == ErrorCode.INVALID_REQUEST


def test_build_leaves_out_what_a_version_lacks() -> None:
    for version in range(1, 11):
        item = codec.build(
            codec.entity_type(ApiKey.LIST_OFFSETS, version, "ListOffsetsPartitionResponse"),
            partition_index=1,
            error_code=3,
            timestamp=5,
            offset=6,
            leader_epoch=7,
        )
        assert int(item.error_code) == 3
        assert hasattr(item, "leader_epoch") == (version >= 4)
    assert int(codec.error_code(31_999)) == -1
    assert codec.topic_id(None) is None


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_a_message_read_and_written_in_steps_is_the_same(key: int, version: int) -> None:
    entity = sample(codec.request_type(key, version))
    frame = request_header(key, version, 5, "c") + codec.encode_body(entity)
    header = parse_request_header(frame)
    for _ in codec.decode_request_steps(header, frame):
        pass
    assert header.decoded == entity
    assert codec.decode_request(header, b"") is header.decoded


@pytest.mark.parametrize("version", [1, 4])
def test_a_response_is_put_together_of_its_items(version: int) -> None:
    answer = sample(codec.response_type(ApiKey.DESCRIBE_CONFIGS, version))
    header = RequestHeader(ApiKey.DESCRIBE_CONFIGS, version, 5, None, 0)
    steps = codec.encode_response_steps(header, replace(answer, results=()), "results", answer.results * 300)
    count = 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            whole = codec.encode_response(header, replace(answer, results=answer.results * 300))
            assert end.value == whole
            break
    assert count == 300 * len(answer.results)


def test_in_pieces_one_that_comes_again_is_the_same_bytes() -> None:
    answer = sample(codec.response_type(ApiKey.DESCRIBE_CONFIGS, 4))
    header = RequestHeader(ApiKey.DESCRIBE_CONFIGS, 4, 5, None, 0)
    one = codec.encode_body(answer.results[0])
    steps = codec.encode_pieces_steps(header, replace(answer, results=()), "results", [one] * 200)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            whole = codec.encode_response(header, replace(answer, results=answer.results[:1] * 200))
            assert b"".join(end.value) == whole
            assert len({id(piece) for piece in end.value}) == 3
            break


def test_more_items_than_a_request_may_have_are_refused() -> None:
    entity = sample(codec.request_type(ApiKey.DESCRIBE_CONFIGS, 4))
    entity = replace(entity, resources=entity.resources * 40)
    frame = request_header(ApiKey.DESCRIBE_CONFIGS, 4, 5, "c") + codec.encode_body(entity)
    items = len(entity.resources) + sum(len(r.configuration_keys or ()) for r in entity.resources)
    whole = parse_request_header(frame, items)
    assert codec.decode_request(whole, frame) == entity
    for items_max in (items - 1, 1):
        header = parse_request_header(frame, items_max)
        with pytest.raises(PenstockError, match="more items"):
            codec.decode_request(header, frame)
        with pytest.raises(PenstockError, match="more items"):
            list(codec.decode_request_steps(header, frame))


def test_tagged_fields_are_items_too() -> None:
    entity = sample(codec.request_type(ApiKey.DESCRIBE_CONFIGS, 4))
    body = (
        codec.encode_body(entity)[:-1]
        + uvarint(500)
        + b"".join(uvarint(1000 + n) + b"\x00" for n in range(500))
    )
    frame = request_header(ApiKey.DESCRIBE_CONFIGS, 4, 5, "c") + body
    assert codec.decode_request(parse_request_header(frame, 1000), frame) == entity
    with pytest.raises(PenstockError, match="more items"):
        codec.decode_request(parse_request_header(frame, 400), frame)
