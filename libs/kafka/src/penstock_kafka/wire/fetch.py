"""Fetch requests and responses, by hand: a response is a list of buffers, records uncopied.

Versions 4-18 can be read and written; which are answered is said by `apis` (today up to 16).
From 13 on topics are named by id (KIP-516). Sessions (KIP-227) are
declined: every response has session id 0, so clients send full requests for ever;
`FetchRequest.is_incremental` tells the handler to answer FETCH_SESSION_ID_NOT_FOUND.
Never sent: KIP-951 endpoints, diverging epoch (followers
replicate by gRPC, consumers leave last_fetched_epoch at -1).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock_core.errors import ErrorCode
from penstock_core.ids import NO_TOPIC_ID, TopicId
from penstock_kafka.wire.apis import FLEXIBLE_SINCE, ApiKey
from penstock_kafka.wire.frames import RequestHeader, request_header, response_header, skip_response_header
from penstock_kafka.wire.primitives import (
    DATA_ITEMS_MAX,
    INT16,
    INT32,
    Buffer,
    Reader,
    check_decoded_size,
    put_count,
    put_string,
)

_FLEXIBLE: Final = FLEXIBLE_SINCE[ApiKey.FETCH]
_TOPIC_IDS: Final = 13
_REPLICA_STATE: Final = 15

_HEAD: Final = struct.Struct(">iiib")
_SESSION: Final = struct.Struct(">ii")
# One partition by version: 4, 5 (log start), 9 (leader epoch), 12 (last fetched epoch).
_PARTITION_V4: Final = struct.Struct(">iqi")
_PARTITION_V5: Final = struct.Struct(">iqqi")
_PARTITION_V9: Final = struct.Struct(">iiqqi")
_PARTITION_V12: Final = struct.Struct(">iiqiqi")
# Partition, error, high watermark, last stable offset, and from 5 on log start.
_RESULT_V4: Final = struct.Struct(">ihqq")
_RESULT_V5: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1


@dataclass(slots=True)
class FetchPartition:
    """One partition wanted. `topic` is "" and `topic_id` set from version 13 on, else the reverse."""

    topic: str
    topic_id: TopicId | None
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


@dataclass(slots=True)
class FetchRequest:
    """A Fetch request, its partitions in the order of the request (which is the order to serve)."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    partitions: list[FetchPartition] = field(default_factory=list)
    replica_id: int = -1
    rack_id: str = ""

    @property
    def is_incremental(self) -> bool:
        """Refers to a session, which no response of ours ever opened."""
        return self.session_epoch > 0


@dataclass(slots=True)
class FetchResult:
    """What one partition gives: whole batches as buffers. Offsets are -1 on error.

    `aborted` lists (producer id, first offset) for READ_COMMITTED, and is None (null)
    for READ_UNCOMMITTED.
    """

    topic: str
    topic_id: TopicId | None
    partition: int
    error: int = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: list[Buffer] = field(default_factory=list)
    aborted: Sequence[tuple[int, int]] | None = None
    preferred_replica: int = -1
    """Node to read from instead (KIP-392), from version 11 on."""


@dataclass(slots=True)
class FetchResponse:
    """A decoded response; each result's records are at most one view onto the frame."""

    correlation_id: int
    throttle_ms: int = 0
    error: int = ErrorCode.NONE
    session_id: int = 0
    results: list[FetchResult] = field(default_factory=list)


def decode_fetch(frame: Buffer, header: RequestHeader) -> FetchRequest:
    """Read a Fetch request (frame without length prefix); raises Malformed (INVALID_REQUEST)."""
    check_decoded_size(frame)
    version = header.api_version
    reader = Reader(frame, header.body_offset, version >= _FLEXIBLE, DATA_ITEMS_MAX)
    replica_id = reader.int32() if version < _REPLICA_STATE else -1
    max_wait_ms, min_bytes, max_bytes, isolation_level = reader.unpack(_HEAD)
    request = FetchRequest(max_wait_ms, min_bytes, max_bytes, isolation_level, replica_id=replica_id)
    if version >= 7:
        request.session_id, request.session_epoch = reader.unpack(_SESSION)
    for _ in range(reader.array(3)):
        _read_topic(reader, version, request.partitions)
    if version >= 7:
        _skip_forgotten(reader, version)
    if version >= 11:
        request.rack_id = reader.string()
    if reader.flexible:
        _read_request_tags(reader, request)
    return request


def _read_topic(reader: Reader, version: int, out: list[FetchPartition]) -> None:
    topic_id: TopicId | None = None
    topic = ""
    if version >= _TOPIC_IDS:
        topic_id = reader.uuid()
    else:
        topic = reader.string()
    flexible = reader.flexible
    unpack = reader.unpack
    for _ in range(reader.array(_PARTITION_V4.size)):
        epoch = last_epoch = log_start = -1
        if version >= 12:
            index, epoch, offset, last_epoch, log_start, max_bytes = unpack(_PARTITION_V12)
        elif version >= 9:
            index, epoch, offset, log_start, max_bytes = unpack(_PARTITION_V9)
        elif version >= 5:
            index, offset, log_start, max_bytes = unpack(_PARTITION_V5)
        else:
            index, offset, max_bytes = unpack(_PARTITION_V4)
        if flexible:
            reader.skip_tags()
        out.append(FetchPartition(topic, topic_id, index, epoch, offset, last_epoch, log_start, max_bytes))
    if flexible:
        reader.skip_tags()


def _skip_forgotten(reader: Reader, version: int) -> None:
    """Forgotten topics belong to sessions, which there are none of."""
    for _ in range(reader.array(3)):
        if version >= _TOPIC_IDS:
            reader.uuid()
        else:
            reader.string()
        reader.take(4 * reader.array(4))
        reader.skip_tags()


def _read_request_tags(reader: Reader, request: FetchRequest) -> None:
    """Tag 1 is the replica state (KIP-903); 0, the cluster id, and others are skipped."""
    for _ in range(reader.uvarint()):
        tag = reader.uvarint()
        size = reader.uvarint()
        start = reader.take(size)
        if tag == 1 and size >= 4:
            request.replica_id = INT32.unpack_from(reader.view, start)[0]


def encode_fetch_request(
    api_version: int, correlation_id: int, client_id: str | None, request: FetchRequest
) -> bytes:
    """A Fetch request with its header, without length prefix; forgotten topics are empty."""
    flexible = api_version >= _FLEXIBLE
    tags = b"\x00" if flexible else b""
    out = [request_header(ApiKey.FETCH, api_version, correlation_id, client_id)]
    if api_version < _REPLICA_STATE:
        out.append(INT32.pack(request.replica_id))
    out.append(_HEAD.pack(request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level))
    if api_version >= 7:
        out.append(_SESSION.pack(request.session_id, request.session_epoch))
    topics: dict[tuple[str, TopicId | None], list[FetchPartition]] = {}
    for item in request.partitions:
        topics.setdefault((item.topic, item.topic_id), []).append(item)
    out.append(put_count(len(topics), flexible))
    for (topic, topic_id), partitions in topics.items():
        out.append(_topic_key(topic, topic_id, api_version, flexible))
        out.append(put_count(len(partitions), flexible))
        for p in partitions:
            out.append(_pack_partition(p, api_version))
            out.append(tags)
        out.append(tags)
    if api_version >= 7:
        out.append(put_count(0, flexible))
    if api_version >= 11:
        out.append(put_string(request.rack_id, flexible))
    out.append(tags)
    return b"".join(out)


def _pack_partition(p: FetchPartition, version: int) -> bytes:
    if version >= 12:
        return _PARTITION_V12.pack(
            p.partition,
            p.current_leader_epoch,
            p.fetch_offset,
            p.last_fetched_epoch,
            p.log_start_offset,
            p.max_bytes,
        )
    if version >= 9:
        return _PARTITION_V9.pack(
            p.partition, p.current_leader_epoch, p.fetch_offset, p.log_start_offset, p.max_bytes
        )
    if version >= 5:
        return _PARTITION_V5.pack(p.partition, p.fetch_offset, p.log_start_offset, p.max_bytes)
    return _PARTITION_V4.pack(p.partition, p.fetch_offset, p.max_bytes)


def _topic_key(topic: str, topic_id: TopicId | None, version: int, flexible: bool) -> bytes:
    if version >= _TOPIC_IDS:
        return NO_TOPIC_ID if topic_id is None else topic_id
    return put_string(topic, flexible)


def encode_fetch_response(
    header: RequestHeader,
    results: Sequence[FetchResult],
    throttle_ms: int = 0,
    error: int = ErrorCode.NONE,
) -> list[Buffer]:
    """The response as buffers to send in order, without length prefix.

    The buffers of `records` stand in it as they are. `error` fails the request as a
    whole (from version 7 on).
    """
    version = header.api_version
    flexible = version >= _FLEXIBLE
    head: list[bytes] = [
        response_header(ApiKey.FETCH, version, header.correlation_id),
        INT32.pack(throttle_ms),
    ]
    if version >= 7:
        head.append(INT16.pack(error))
        head.append(INT32.pack(0))
    topics: dict[tuple[str, TopicId | None], list[FetchResult]] = {}
    for result in results:
        topics.setdefault((result.topic, result.topic_id), []).append(result)
    head.append(put_count(len(topics), flexible))
    out: list[Buffer] = []
    for (topic, topic_id), items in topics.items():
        head.append(_topic_key(topic, topic_id, version, flexible))
        head.append(put_count(len(items), flexible))
        for item in items:
            size = _put_result_head(head, item, version, flexible)
            if size:
                out.append(b"".join(head))
                out.extend(item.records)
                head = []
            if flexible:
                head.append(b"\x00")
        if flexible:
            head.append(b"\x00")
    if flexible:
        head.append(b"\x00")
    if head:
        out.append(b"".join(head))
    return out


def _put_result_head(head: list[bytes], item: FetchResult, version: int, flexible: bool) -> int:
    """Everything of one partition up to its records; returns their size in bytes."""
    if version >= 5:
        head.append(
            _RESULT_V5.pack(
                item.partition,
                item.error,
                item.high_watermark,
                item.last_stable_offset,
                item.log_start_offset,
            )
        )
    else:
        head.append(_RESULT_V4.pack(item.partition, item.error, item.high_watermark, item.last_stable_offset))
    if item.aborted is None:
        head.append(put_count(-1, flexible))
    else:
        head.append(put_count(len(item.aborted), flexible))
        for producer_id, first_offset in item.aborted:
            head.append(_ABORTED.pack(producer_id, first_offset))
            if flexible:
                head.append(b"\x00")
    if version >= 11:
        head.append(INT32.pack(item.preferred_replica))
    size = 0
    for buffer in item.records:
        size += len(buffer)
    # An empty set, not null: librdkafka and kafka-python take both, Java wants the former.
    head.append(put_count(size, flexible))
    return size


def decode_fetch_response(frame: Buffer, api_version: int) -> FetchResponse:
    """The response to a request of that version (no length prefix); raises Malformed."""
    reader = Reader(frame, 0, api_version >= _FLEXIBLE)
    response = FetchResponse(skip_response_header(reader))
    response.throttle_ms = reader.int32()
    if api_version >= 7:
        response.error = reader.int16()
        response.session_id = reader.int32()
    for _ in range(reader.array(3)):
        topic_id: TopicId | None = None
        topic = ""
        if api_version >= _TOPIC_IDS:
            topic_id = reader.uuid()
        else:
            topic = reader.string()
        for _ in range(reader.array(_RESULT_V4.size)):
            response.results.append(_read_result(reader, topic, topic_id, api_version))
        reader.skip_tags()
    reader.skip_tags()
    return response


def _read_result(reader: Reader, topic: str, topic_id: TopicId | None, version: int) -> FetchResult:
    result = FetchResult(topic, topic_id, -1)
    if version >= 5:
        (
            result.partition,
            result.error,
            result.high_watermark,
            result.last_stable_offset,
            result.log_start_offset,
        ) = reader.unpack(_RESULT_V5)
    else:
        result.partition, result.error, result.high_watermark, result.last_stable_offset = reader.unpack(
            _RESULT_V4
        )
    count = reader.nullable_array(_ABORTED.size)
    if count is not None:
        aborted: list[tuple[int, int]] = []
        for _ in range(count):
            producer_id, first_offset = reader.unpack(_ABORTED)
            aborted.append((producer_id, first_offset))
            reader.skip_tags()
        result.aborted = aborted
    if version >= 11:
        result.preferred_replica = reader.int32()
    records = reader.nullable_bytes()
    if records:
        result.records.append(records)
    reader.skip_tags()
    return result
