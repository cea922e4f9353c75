"""Headers and the table of APIs, against kafka-python and kio."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest

from penstock_core.errors import ErrorCode, PenstockError
from penstock_kafka.wire import apis, codec
from penstock_kafka.wire.api_versions import Features, decode_api_versions, encode_api_versions_response
from penstock_kafka.wire.apis import FLEXIBLE_SINCE, ROUTES, SUPPORTED, ApiKey, intersect, is_supported
from penstock_kafka.wire.frames import RequestHeader, parse_request_header, request_header, response_header
from penstock_kafka.wire.metadata import decode_metadata

VERSIONS = [
    (key, version)
    for key, (low, high) in SUPPORTED.items()
    for version in range(low, high + 1)
    if is_supported(key, version)
]


def test_every_api_has_a_route_and_a_flexible_version() -> None:
    assert set(ROUTES) == set(FLEXIBLE_SINCE) == {int(key) for key in ApiKey}
    assert set(SUPPORTED) <= set(ROUTES)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_the_table_agrees_with_the_schemas(key: int, version: int) -> None:
    schema = codec.request_type(key, version)
    assert schema.__flexible__ == (version >= FLEXIBLE_SINCE[key])
    header = RequestHeader(key, version, 1, "c", 0)
    assert header.flexible == schema.__flexible__
    plain = request_header(key, version, 7, "client")
    assert parse_request_header(plain) == RequestHeader(key, version, 7, "client", len(plain))
    expected = 5 if codec.response_type(key, version).__flexible__ and key != ApiKey.API_VERSIONS else 4
    assert len(response_header(key, version, 7)) == expected


def test_nothing_unbuilt_is_advertised() -> None:
    assert SUPPORTED.keys().isdisjoint(range(76, 93))  # share groups, streams groups
    assert SUPPORTED[ApiKey.PRODUCE][0] == 0
    assert not is_supported(ApiKey.PRODUCE, 2)
    assert is_supported(ApiKey.PRODUCE, 3)
    assert not is_supported(ApiKey.FETCH, 3)
    assert not is_supported(99, 0)


def test_headers_of_a_real_client() -> None:
    for version in (4, 9, 12):
        request = MetadataRequest(version=version, topics=[])
        request.with_header(correlation_id=5, client_id="kafka-python")
        frame = request.encode(version=version, header=True)
        header = parse_request_header(frame)
        assert (header.api_key, header.api_version, header.correlation_id) == (3, version, 5)
        assert header.client_id == "kafka-python"
        assert frame[header.body_offset :] == request.encode(version=version)


def test_unknown_tagged_fields_in_a_header_are_skipped() -> None:
    frame = request_header(ApiKey.METADATA, 12, 1, None)[:-1] + b"\x01\x63\x02ab" + b"body"
    header = parse_request_header(bytearray(frame))
    assert header.client_id is None
    assert frame[header.body_offset :] == b"body"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00\x12",
        b"\x7f\xff\x00\x00\x00\x00\x00\x01\xff\xff",  # unknown api key
        b"\x00\x03\xff\xff\x00\x00\x00\x01\xff\xff",  # negative version
        b"\x00\x03\x00\x01\x00\x00\x00\x01\xff\xfe",  # client id of -2 bytes
        b"\x00\x03\x00\x01\x00\x00\x00\x01\x00\x09abc",  # cut off
        b"\x00\x03\x00\x0c\x00\x00\x00\x01\xff\xff\x7f",  # tags cut off
        b"GET / HTTP/1.1\r\n",
    ],
)
def test_garbage_is_an_invalid_request(frame: bytes) -> None:
    with pytest.raises(PenstockError) as caught:
        parse_request_header(frame)
    assert caught.value.code == ErrorCode.INVALID_REQUEST


def test_what_kafka_lets_pass_in_a_header() -> None:
    assert parse_request_header(b"\0\x03\0\x01\0\0\0\x01\0\x02\xc3\x28").client_id == "\ufffd("
    assert parse_request_header(b"\0\x12\xff\xff\0\0\0\x01\xff\xff").api_version == -1
    frame = b"\0\x03\0\x01\0\0\0\x01\xff\xff" + b"\xff\xff\xff\xfe"
    assert decode_metadata(frame, parse_request_header(frame)).topics is None, "any negative count is null"


@given(st.binary(max_size=200))
def test_no_header_raises_anything_else(frame: bytes) -> None:
    try:
        parse_request_header(memoryview(frame))
    except PenstockError as error:
        assert error.code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(5))
def test_api_versions_for_kafka_python(version: int) -> None:
    request = ApiVersionsRequest(
        version=version, client_software_name="test", client_software_version="1.2.3"
    )
    request.with_header(correlation_id=9)
    frame = request.encode(version=version, header=True)
    header = parse_request_header(frame)
    assert decode_api_versions(frame, header) == (("test", "1.2.3") if version >= 3 else ("", ""))
    data = encode_api_versions_response(header, SUPPORTED)
    assert data[:4] == b"\x00\x00\x00\x09"
    response = ApiVersionsResponse.decode(data, version=version, header=True)
    assert response.error_code == 0
    got = {k.api_key: (k.min_version, k.max_version) for k in response.api_keys}
    assert got == dict(SUPPORTED)


def test_an_unknown_api_versions_version_is_answered_in_version_0() -> None:
    header = RequestHeader(ApiKey.API_VERSIONS, 9, 3, None, 0)
    data = encode_api_versions_response(header, SUPPORTED)
    correlation_id, entity = codec.decode_response(ApiKey.API_VERSIONS, 0, data)
    assert correlation_id == 3
    assert entity.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(k.api_key, k.min_version, k.max_version) for k in entity.api_keys] == [(18, 0, 4)]


def test_intersect() -> None:
    assert intersect([]) == {}
    assert intersect([SUPPORTED]) == dict(SUPPORTED)
    assert intersect([{0: (0, 11), 1: (4, 16), 3: (0, 5)}, {0: (3, 9), 1: (17, 18)}]) == {0: (3, 9)}


def test_kio_and_the_table_know_the_same_versions() -> None:
    for key, (_, high) in apis.SUPPORTED.items():
        codec.request_type(key, high)


@pytest.mark.parametrize("version", range(5))
def test_features_stand_in_the_tags_of_api_versions(version: int) -> None:
    features = Features({"metadata.level": (1, 2)}, {"metadata.level": 2}, epoch=7)
    header = RequestHeader(ApiKey.API_VERSIONS, version, 3, None, 0)
    data = encode_api_versions_response(header, SUPPORTED, features=features)
    _, entity = codec.decode_response(ApiKey.API_VERSIONS, version, data)
    if version < 3:
        return
    assert [(f.name, f.min_version, f.max_version) for f in entity.supported_features] == [
        ("metadata.level", 1, 2)
    ]
    assert entity.finalized_features_epoch == 7
    assert [(f.name, f.min_version_level, f.max_version_level) for f in entity.finalized_features] == [
        ("metadata.level", 2, 2)
    ]
    # kafka-python reads the same, and what follows the tags is nothing.
    response = ApiVersionsResponse.decode(data, version=version, header=True)
    assert {k.api_key for k in response.api_keys} == set(SUPPORTED)


@pytest.mark.parametrize("version", [3, 4])
def test_who_may_not_know_that_a_level_can_be_0_is_not_told_of_one(version: int) -> None:
    """KAFKA-17011: what is finalized is told all the same."""
    features = Features(
        {"a": (1, 2), "transaction.version": (0, 2)}, {"a": 2, "transaction.version": 2}, epoch=7
    )
    header = RequestHeader(ApiKey.API_VERSIONS, version, 3, None, 0)
    data = encode_api_versions_response(header, SUPPORTED, features=features)
    _, entity = codec.decode_response(ApiKey.API_VERSIONS, version, data)
    assert [f.name for f in entity.supported_features] == ["a", "transaction.version"][: version - 2]
    assert [f.name for f in entity.finalized_features] == ["a", "transaction.version"]
