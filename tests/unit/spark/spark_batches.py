"""Record batches for the Spark tests: builders, and a decoder in plain Python to compare with.

The builder here writes what no client library will (control batches, gaps, chosen header
bits); the fuzz test also takes batches from aiokafka and kafka-python.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import cramjam
import google_crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4, "xerial": 2}


@dataclass
class Rec:
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)


def varint(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63) if value < 0 else value << 1
    raw &= (1 << 64) - 1
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def _bytes(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def encode_record(rec: Rec, base_offset: int, base_timestamp_ms: int) -> bytes:
    body = b"\0" + varint(rec.timestamp_ms - base_timestamp_ms) + varint(rec.offset - base_offset)
    body += _bytes(rec.key) + _bytes(rec.value) + varint(len(rec.headers))
    for key, value in rec.headers:
        body += _bytes(key.encode()) + _bytes(value)
    return varint(len(body)) + body


def compress(data: bytes, codec: str) -> bytes:
    if codec == "none":
        return data
    if codec == "snappy":
        return bytes(cramjam.snappy.compress_raw(data))
    if codec == "xerial":
        out = bytearray(b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1))
        for start in range(0, len(data), 32 * 1024):
            block = bytes(cramjam.snappy.compress_raw(data[start : start + 32 * 1024]))
            out += struct.pack(">i", len(block)) + block
        return bytes(out)
    return bytes(getattr(cramjam, codec).compress(data))


def encode_batch(
    records: list[Rec],
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    codec: str = "none",
    attributes: int = 0,
    max_timestamp_ms: int | None = None,
    payload: bytes | None = None,
    count: int | None = None,
    epoch: int = 0,
) -> bytes:
    base = records[0].offset if base_offset is None else base_offset
    last = (records[-1].offset if records else base) if last_offset is None else last_offset
    base_time = records[0].timestamp_ms if records else -1
    if max_timestamp_ms is None:
        max_timestamp_ms = max((rec.timestamp_ms for rec in records), default=-1)
    if payload is None:
        payload = b"".join(encode_record(rec, base, base_time) for rec in records)
    body = compress(payload, codec)
    attributes |= CODECS[codec]
    count = len(records) if count is None else count
    tail = struct.pack(">hiqqqhii", attributes, last - base, base_time, max_timestamp_ms, -1, -1, -1, count)
    tail += body
    crc = google_crc32c.value(tail)
    return struct.pack(">qiibI", base, len(tail) + 9, epoch, 2, crc) + tail


def stamp(batch: bytes, base_offset: int) -> bytes:
    return struct.pack(">q", base_offset) + bytes(batch[8:])


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position


def _read_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = _read_varint(data, position)
    if length < 0:
        return None, position
    return data[position : position + length], position + length


def _unpack(data: bytes, codec: int) -> bytes:
    if codec == 0:
        return data
    if codec == 1:
        return bytes(cramjam.gzip.decompress(data))
    if codec == 3:
        return bytes(cramjam.lz4.decompress(data))
    if codec == 4:
        return bytes(cramjam.zstd.decompress(data))
    if not data.startswith(b"\x82SNAPPY\x00"):
        return bytes(cramjam.snappy.decompress_raw(data))
    out, position = b"", 16
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        out += bytes(cramjam.snappy.decompress_raw(data[position + 4 : position + 4 + length]))
        position += 4 + length
    return out


def decode_plainly(run: bytes, topic: str, partition: int, first: int, end: int) -> list[dict[str, Any]]:
    """The oracle: rows as dicts with ms timestamps, one byte after another."""
    rows: list[dict[str, Any]] = []
    position = 0
    while position < len(run):
        fields = HEADER.unpack_from(run, position)
        base, length, attributes, base_time, max_time, count = (
            fields[0],
            fields[1],
            fields[5],
            fields[7],
            fields[8],
            fields[12],
        )
        data = _unpack(run[position + 61 : position + 12 + length], attributes & 7)
        position += 12 + length
        if attributes & 0x20:
            continue
        at = 0
        for _ in range(count):
            size, at = _read_varint(data, at)
            stop = at + size
            delta_time, at = _read_varint(data, at + 1)
            delta, at = _read_varint(data, at)
            key, at = _read_bytes(data, at)
            value, at = _read_bytes(data, at)
            header_count, at = _read_varint(data, at)
            headers = []
            for _ in range(header_count):
                name, at = _read_bytes(data, at)
                content, at = _read_bytes(data, at)
                headers.append({"key": (name or b"").decode("utf-8", "replace"), "value": content})
            assert at == stop
            if first <= base + delta < end:
                stamped = bool(attributes & 8)
                rows.append(
                    {
                        "key": key,
                        "value": value,
                        "topic": topic,
                        "partition": partition,
                        "offset": base + delta,
                        "timestamp": max_time if stamped else base_time + delta_time,
                        "timestampType": int(stamped),
                        "headers": headers or None,
                    }
                )
        assert at == len(data)
    return rows
