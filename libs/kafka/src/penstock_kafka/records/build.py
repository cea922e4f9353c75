"""Building a RecordBatch v2 from records: for tools, tests and internal topics, not hot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_kafka.records import compression
from penstock_kafka.records.batch import (
    CONTROL_BIT,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
)
from penstock_kafka.records.crc import crc32c
from penstock_kafka.records.varint import put_varint


@dataclass(slots=True)
class NewRecord:
    """A record to write. `timestamp_ms` is ms since 1970."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()


def build_batch(
    records: Sequence[NewRecord],
    *,
    codec: int = compression.NONE,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """One batch that holds `records` (at least one), in order."""
    if not records:
        raise ValueError("a batch needs at least one record")
    base_timestamp = records[0].timestamp_ms
    body = bytearray()
    for delta, record in enumerate(records):
        one = encode_record(record, delta, record.timestamp_ms - base_timestamp)
        put_varint(body, len(one))
        body += one
    payload = compression.compress(codec, body)
    attributes = codec
    if transactional:
        attributes |= TRANSACTIONAL_BIT
    if control:
        attributes |= CONTROL_BIT
    header = HEADER.pack(
        base_offset,
        HEADER_BYTES - LENGTH_OVERHEAD_BYTES + len(payload),
        leader_epoch,
        MAGIC,
        0,
        attributes,
        len(records) - 1,
        base_timestamp,
        max(record.timestamp_ms for record in records),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    return with_crc(bytearray(header + payload))


def with_crc(batch: bytearray) -> bytes:
    """The batch with its CRC computed anew."""
    batch[17:CRC_START] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "big")
    return bytes(batch)


def encode_record(record: NewRecord, offset_delta: int, timestamp_delta: int) -> bytes:
    """One record without its length."""
    out = bytearray(b"\x00")
    put_varint(out, timestamp_delta)
    put_varint(out, offset_delta)
    _put_bytes(out, record.key)
    _put_bytes(out, record.value)
    put_varint(out, len(record.headers))
    for name, value in record.headers:
        _put_bytes(out, name.encode())
        _put_bytes(out, value)
    return bytes(out)


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        put_varint(out, -1)
    else:
        put_varint(out, len(value))
        out += value
