"""Reading the records of a batch in plain Python: command line, tests, offsets by time.

Independent of the compiled reader that checks produced batches; about thirty times
slower. It reads what Kafka's DefaultRecord reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock_core.errors import ErrorCode, PenstockError
from penstock_kafka.records import compression
from penstock_kafka.records.batch import HEADER_BYTES, BatchInfo, Buffer, iter_batches, read_header
from penstock_kafka.records.varint import read_varint

_TIMESTAMP_BYTES_MAX = 10
_HEADER_BYTES_MIN = 2
_LONG = 0x80
"""A byte of a varint from here on has others behind it."""


@dataclass(slots=True)
class Record:
    """One record. `timestamp_ms` is ms since 1970, of the append for LogAppendTime."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def read_records(batch: Buffer, info: BatchInfo | None = None) -> Iterator[Record]:
    """Records of one whole batch, which begins at `info.position` (0 without `info`).

    The CRC isn't checked. Raises INVALID_RECORD on damage.
    """
    if info is None:
        info = read_header(batch)
    view = memoryview(batch)[info.position : info.position + info.size_bytes]
    payload = view[HEADER_BYTES:]
    if info.compression:
        payload = compression.decompress(info.compression, payload)
    end = len(payload)
    pos = 0
    for _ in range(info.record_count):
        record, pos = _read_record(payload, pos, end, info)
        yield record
    if pos != end:
        raise PenstockError(ErrorCode.INVALID_RECORD, f"{end - pos} bytes are left after the last record")


def read_all(buffer: Buffer, *, skip_control: bool = True) -> Iterator[Record]:
    """Records of every whole batch in `buffer`."""
    for info in iter_batches(buffer):
        if not (skip_control and info.is_control):
            yield from read_records(buffer, info)


def find_timestamp(batch: Buffer, timestamp_ms: int, info: BatchInfo | None = None) -> Record | None:
    """First record of one batch with `timestamp_ms` or later, or None."""
    if info is None:
        info = read_header(batch)
    if info.max_timestamp < timestamp_ms:
        return None
    for record in read_records(batch, info):
        if record.timestamp_ms >= timestamp_ms:
            return record
    return None


def _read_record(data: memoryview, pos: int, end: int, info: BatchInfo) -> tuple[Record, int]:
    # Coordinators read whole logs with this. Most varints have one byte, and are read here; one that is behind `stop`
    # shows at the latest in the last check.
    length, pos = read_varint(data, pos, end)
    stop = pos + length
    if length < 1 or stop > end:
        raise PenstockError(ErrorCode.INVALID_RECORD, f"record of {length} bytes, {end - pos} are left")
    try:
        pos += 1
        byte = data[pos]
        if byte < _LONG:
            timestamp_delta, pos = (byte >> 1) ^ -(byte & 1), pos + 1
        else:
            timestamp_delta, pos = read_varint(data, pos, stop, _TIMESTAMP_BYTES_MAX)
        byte = data[pos]
        if byte < _LONG:
            offset_delta, pos = (byte >> 1) ^ -(byte & 1), pos + 1
        else:
            offset_delta, pos = read_varint(data, pos, stop)
        key, pos = _read_bytes(data, pos, stop)
        value, pos = _read_bytes(data, pos, stop)
        headers: list[tuple[str, bytes | None]] = []
        if pos < stop and not data[pos]:
            pos += 1
        else:
            pos = _read_headers(data, pos, stop, headers)
    except IndexError:
        raise PenstockError(ErrorCode.INVALID_RECORD, f"a record ends at byte {end}") from None
    if pos != stop:
        raise PenstockError(ErrorCode.INVALID_RECORD, f"{stop - pos} bytes too many in a record")
    timestamp = info.max_timestamp if info.is_log_append_time else info.base_timestamp + timestamp_delta
    return Record(info.base_offset + offset_delta, timestamp, key, value, headers), pos


def _read_headers(data: memoryview, pos: int, stop: int, headers: list[tuple[str, bytes | None]]) -> int:
    count, pos = read_varint(data, pos, stop)
    if not 0 <= count <= (stop - pos) // _HEADER_BYTES_MIN:
        raise PenstockError(ErrorCode.INVALID_RECORD, f"record with {count} headers")
    for _ in range(count):
        name, pos = _read_bytes(data, pos, stop)
        if name is None:
            raise PenstockError(ErrorCode.INVALID_RECORD, "record header without a name")
        content, pos = _read_bytes(data, pos, stop)
        headers.append((name.decode("utf-8", "replace"), content))
    return pos


def _read_bytes(data: memoryview, pos: int, stop: int) -> tuple[bytes | None, int]:
    byte = data[pos]
    if byte < _LONG:
        length, pos = (byte >> 1) ^ -(byte & 1), pos + 1
    else:
        length, pos = read_varint(data, pos, stop)
    if length < 0:
        return None, pos
    after = pos + length
    if after > stop:
        raise PenstockError(ErrorCode.INVALID_RECORD, f"field of {length} bytes, {stop - pos} are left")
    return data[pos:after].tobytes(), after
