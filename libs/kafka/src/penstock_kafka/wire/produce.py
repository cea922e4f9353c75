"""Produce requests and responses, by hand: records are views, never copies.

Versions 3-13 can be read and written; which are answered is said by `apis` (today up to 11).
13 names topics by id (KIP-516). Versions 0-2 are advertised but
refused with UNSUPPORTED_VERSION (see `apis`); a response to them can be encoded.
Unknown tagged fields are skipped. One is ours (KIP-482 leaves them to extensions): a
request that carries tag RECEIPT_TAG gets a `Receipt` with each result under the same tag;
Kafka's clients neither ask nor look. KIP-951's leader hints are not sent: through
a proxy they would leak node addresses.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NO_TOPIC_ID, TopicId
from penstock_kafka.wire.apis import FLEXIBLE_SINCE, PRODUCE_VERSION_MIN, ApiKey
from penstock_kafka.wire.frames import RequestHeader, request_header, response_header, skip_response_header
from penstock_kafka.wire.primitives import (
    DATA_ITEMS_MAX,
    INT32,
    INT64,
    Buffer,
    Malformed,
    Reader,
    put_count,
    put_string,
    uvarint,
)

_FLEXIBLE: Final = FLEXIBLE_SINCE[ApiKey.PRODUCE]
_TOPIC_IDS: Final = 13
_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_RESULT: Final = struct.Struct(">ihq")
_EMPTY: Final = memoryview(b"")
RECEIPT_TAG: Final = 20_480
"""Far above the numbers that Kafka gives out from 0."""
_WANT_RECEIPT: Final = b"\x01" + uvarint(RECEIPT_TAG) + b"\x00"
_NODE_MAX: Final = 1_000


@dataclass(slots=True)
class ProducePartition:
    """Records for one partition: `records` is a view onto the frame, empty for null.

    `topic` is "" and `topic_id` set from version 13 on; else `topic_id` is None.
    """

    topic: str
    topic_id: TopicId | None
    partition: int
    records: memoryview


@dataclass(slots=True)
class ProduceSkim:
    """A Produce request with its records left where they are."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[ProducePartition]
    want_receipt: bool = False
    """Of a flexible version (9 or later)."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Who has a batch at the moment of its ack, as its leader knows."""

    leader_epoch: int
    held_by: tuple[int, ...]
    """Replicas whose log holds it, by node id."""
    flushed_by: tuple[int, ...]
    """Those that have flushed it to their disk."""


@dataclass(slots=True)
class ProduceResult:
    """Outcome for one partition. Offsets are -1 on error; `record_errors` are (index, message)."""

    topic: str
    topic_id: TopicId | None
    partition: int
    error: int = ErrorCode.NONE
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[tuple[int, str | None]] = ()
    receipt: Receipt | None = None


@dataclass(slots=True)
class ProduceResponse:
    """A decoded response."""

    correlation_id: int
    results: list[ProduceResult] = field(default_factory=list)
    throttle_ms: int = 0
    throttle_offset: int = 0
    """Where that stands in the frame, from version 1 on."""


def skim_produce(frame: Buffer, header: RequestHeader) -> ProduceSkim:
    """Find the records of a Produce request (frame without length prefix).

    Raises Malformed (INVALID_REQUEST) on bytes that are no such request, and
    UNSUPPORTED_VERSION below version 3.
    """
    version = header.api_version
    if version < PRODUCE_VERSION_MIN:
        raise PenstockError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Produce version {version} carries old message formats: use version 3 or later",
        )
    return _read_body(Reader(frame, header.body_offset, version >= _FLEXIBLE, DATA_ITEMS_MAX), version)


def skim_produce_old(frame: Buffer, header: RequestHeader) -> ProduceSkim:
    """As `skim_produce` for versions 0-2, only to answer them with an error of the right shape."""
    return _read_body(Reader(frame, header.body_offset, False, DATA_ITEMS_MAX), header.api_version)


def _read_body(reader: Reader, version: int) -> ProduceSkim:
    flexible = reader.flexible
    transactional_id = reader.nullable_string() if version >= PRODUCE_VERSION_MIN else None
    acks, timeout_ms = reader.unpack(_ACKS_TIMEOUT)
    partitions: list[ProducePartition] = []
    append = partitions.append
    for _ in range(reader.array(3)):
        topic_id: TopicId | None = None
        topic = ""
        if version >= _TOPIC_IDS:
            topic_id = reader.uuid()
        else:
            topic = reader.string()
        for _ in range(reader.array(5)):
            index = reader.int32()
            records = reader.nullable_bytes()
            if flexible:
                reader.skip_tags()
            append(ProducePartition(topic, topic_id, index, _EMPTY if records is None else records))
        if flexible:
            reader.skip_tags()
    want_receipt = flexible and _find_tag(reader, RECEIPT_TAG) is not None
    return ProduceSkim(transactional_id, acks, timeout_ms, partitions, want_receipt)


def _find_tag(reader: Reader, wanted: int) -> memoryview | None:
    """As `Reader.skip_tags`, with the bytes of one tagged field if it is there."""
    found = None
    count = reader.uvarint()
    if count > reader.end - reader.pos:
        raise Malformed(f"{count} tagged fields, but only {reader.end - reader.pos} bytes are left")
    reader.count_items(count)
    for _ in range(count):
        tag, size = reader.uvarint(), reader.uvarint()
        start = reader.take(size)
        if tag == wanted:
            found = reader.view[start : start + size]
    return found


def encode_produce_request(
    api_version: int,
    correlation_id: int,
    client_id: str | None,
    skim: ProduceSkim,
) -> list[Buffer]:
    """A Produce request of version 3 or later, header included, as buffers to send in order.

    Records are not copied. There is no length prefix.
    """
    flexible = api_version >= _FLEXIBLE
    tags = b"\x00" if flexible else b""
    out: list[Buffer] = []
    head = [
        request_header(ApiKey.PRODUCE, api_version, correlation_id, client_id),
        put_string(skim.transactional_id, flexible),
        _ACKS_TIMEOUT.pack(skim.acks, skim.timeout_ms),
    ]
    topics: dict[tuple[str, TopicId | None], list[ProducePartition]] = {}
    for item in skim.partitions:
        topics.setdefault((item.topic, item.topic_id), []).append(item)
    head.append(put_count(len(topics), flexible))
    for (topic, topic_id), partitions in topics.items():
        head.append(_topic_key(topic, topic_id, api_version, flexible))
        head.append(put_count(len(partitions), flexible))
        for partition in partitions:
            head.append(INT32.pack(partition.partition))
            head.append(put_count(len(partition.records), flexible))
            out.append(b"".join(head))
            out.append(partition.records)
            head = [tags]
        head.append(tags)
    head.append(_WANT_RECEIPT if flexible and skim.want_receipt else tags)
    out.append(b"".join(head))
    return out


def _topic_key(topic: str, topic_id: TopicId | None, version: int, flexible: bool) -> bytes:
    if version >= _TOPIC_IDS:
        return NO_TOPIC_ID if topic_id is None else topic_id
    return put_string(topic, flexible)


def encode_produce_response(
    header: RequestHeader, results: Sequence[ProduceResult], throttle_ms: int = 0
) -> bytes:
    """The response to `header`, without length prefix; results are grouped by topic."""
    version = header.api_version
    flexible = version >= _FLEXIBLE
    topics: dict[tuple[str, TopicId | None], list[ProduceResult]] = {}
    for result in results:
        topics.setdefault((result.topic, result.topic_id), []).append(result)
    out = [
        response_header(ApiKey.PRODUCE, version, header.correlation_id),
        put_count(len(topics), flexible),
    ]
    for (topic, topic_id), items in topics.items():
        out.append(_topic_key(topic, topic_id, version, flexible))
        out.append(put_count(len(items), flexible))
        for item in items:
            _put_result(out, item, version, flexible)
        if flexible:
            out.append(b"\x00")
    if version >= 1:
        out.append(INT32.pack(throttle_ms))
    if flexible:
        out.append(b"\x00")
    return b"".join(out)


def _put_result(out: list[bytes], item: ProduceResult, version: int, flexible: bool) -> None:
    out.append(_RESULT.pack(item.partition, item.error, item.base_offset))
    if version >= 2:
        out.append(INT64.pack(item.log_append_time_ms))
    if version >= 5:
        out.append(INT64.pack(item.log_start_offset))
    if version >= 8:
        out.append(put_count(len(item.record_errors), flexible))
        for index, message in item.record_errors:
            out.append(INT32.pack(index))
            out.append(put_string(message, flexible))
            if flexible:
                out.append(b"\x00")
        out.append(put_string(item.error_message, flexible))
    if flexible:
        out.append(b"\x00" if item.receipt is None else _put_receipt(item.receipt))


def _put_receipt(receipt: Receipt) -> bytes:
    """Tagged fields with a receipt alone: leader epoch, then both lists of ids, each after its length."""
    numbers = [
        receipt.leader_epoch,
        *(len(receipt.held_by), *receipt.held_by),
        *(len(receipt.flushed_by), *receipt.flushed_by),
    ]
    data = struct.pack(f">{len(numbers)}i", *numbers)
    return b"\x01" + uvarint(RECEIPT_TAG) + uvarint(len(data)) + data


def _read_receipt(data: memoryview) -> Receipt:
    reader = Reader(data, 0, flexible=True)
    leader_epoch = reader.int32()
    lists: list[tuple[int, ...]] = []
    for _ in range(2):
        count = reader.int32()
        if not 0 <= count <= _NODE_MAX:
            raise Malformed(f"receipt of {count} replicas")
        lists.append(tuple(reader.int32() for _ in range(count)))
    return Receipt(leader_epoch, *lists)


def decode_produce_response(frame: Buffer, api_version: int) -> ProduceResponse:
    """The response to a request of that version (no length prefix); raises Malformed."""
    reader = Reader(frame, 0, api_version >= _FLEXIBLE)
    response = ProduceResponse(skip_response_header(reader))
    for _ in range(reader.array(3)):
        topic_id: TopicId | None = None
        topic = ""
        if api_version >= _TOPIC_IDS:
            topic_id = reader.uuid()
        else:
            topic = reader.string()
        for _ in range(reader.array(_RESULT.size)):
            response.results.append(_read_result(reader, topic, topic_id, api_version))
        reader.skip_tags()
    if api_version >= 1:
        response.throttle_offset = reader.pos
        response.throttle_ms = reader.int32()
    reader.skip_tags()
    return response


def _read_result(reader: Reader, topic: str, topic_id: TopicId | None, version: int) -> ProduceResult:
    partition, error, base_offset = reader.unpack(_RESULT)
    result = ProduceResult(topic, topic_id, partition, error, base_offset)
    if version >= 2:
        result.log_append_time_ms = reader.int64()
    if version >= 5:
        result.log_start_offset = reader.int64()
    if version >= 8:
        errors: list[tuple[int, str | None]] = []
        for _ in range(reader.array(5)):
            errors.append((reader.int32(), reader.nullable_string()))
            reader.skip_tags()
        result.record_errors = errors
        result.error_message = reader.nullable_string()
    if reader.flexible:
        receipt = _find_tag(reader, RECEIPT_TAG)
        result.receipt = None if receipt is None else _read_receipt(receipt)
    return result
