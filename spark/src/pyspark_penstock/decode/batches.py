"""Walks runs of RecordBatch v2: bounds, CRC-32C, decompression, and what to skip.

A run comes whole or it is an error: a torn tail never ends the walk silently, because
the rows behind it would be missing with nobody told. Per batch this is plain Python
(2 µs), which the records in it repay.

Source of the layout: Kafka's DefaultRecordBatch. Control batches (transaction markers)
occupy offsets but hold no user's record. Empty batches are what compaction leaves to
keep a producer's last sequence.

Wart: `google_crc32c` and `cramjam` refuse memoryviews but take numpy arrays, so buffers
travel as uint8 arrays.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cramjam
import google_crc32c
import numpy as np
from numpy.typing import NDArray

from penstock_proto.fast.primitives import Buffer
from pyspark_penstock.errors import CorruptRecordsError

Bytes = NDArray[np.uint8]

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = 61
_EPOCH_HEAD = struct.Struct(">qii")
"""Base offset, length, partition leader epoch."""
_LENGTH_OFFSET = 12
_CRC_START = 21

_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_CONTROL = 0x20

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16

RECORD_BYTES_MIN = 7
"""Length, attributes, timestamp, offset, key length, value length, header count: one byte each."""

UNPACKED_BYTES_MAX = 1 << 30
"""Largest decompressed batch taken: offsets into one Arrow array are 32 bits wide."""


@dataclass(slots=True)
class Batch:
    """One data batch: where its records are, and what its header says of all of them."""

    base_offset: int
    last_offset: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    log_append_time: bool
    count: int
    codec: int
    start: int
    """First byte of the records in the run."""
    end: int
    """First byte after the batch."""


def walk(run: Bytes, from_offset: int, to_offset: int) -> Iterator[Batch]:
    """Data batches of `run` that may hold offsets in [from_offset, to_offset).

    Every batch's CRC is checked, skipped ones included. Raises CorruptRecordsError.
    """
    view: Any = memoryview(run)  # type: ignore[arg-type]
    size = len(run)
    position = 0
    while position < size:
        if size - position < HEADER_BYTES:
            raise CorruptRecordsError(
                f"{size - position} bytes left where a batch header of {HEADER_BYTES} was to come"
            )
        fields = HEADER.unpack_from(view, position)
        (base_offset, length, _epoch, magic, crc, attributes, last_delta, base_time, max_time) = fields[:9]
        count = fields[12]
        end = position + _LENGTH_OFFSET + length
        if length < HEADER_BYTES - _LENGTH_OFFSET or end > size:
            raise CorruptRecordsError(
                f"batch at offset {base_offset} says {length} bytes, "
                f"{size - position - _LENGTH_OFFSET} are there"
            )
        if magic != 2:
            raise CorruptRecordsError(f"batch at offset {base_offset} has format {magic}; only 2 is read")
        if google_crc32c.value(run[position + _CRC_START : end]) != crc:
            raise CorruptRecordsError(f"batch at offset {base_offset} fails its CRC-32C check")
        if count < 0 or last_delta < 0 or count > last_delta + 1:
            raise CorruptRecordsError(
                f"batch at offset {base_offset} says {count} records in {last_delta + 1} offsets"
            )
        start, position = position + HEADER_BYTES, end
        if attributes & _CONTROL or count == 0:
            continue
        if base_offset >= to_offset or base_offset + last_delta < from_offset:
            continue
        codec = attributes & _CODEC_MASK
        if not codec and count * RECORD_BYTES_MIN > end - start:
            raise CorruptRecordsError(
                f"batch at offset {base_offset} says {count} records in {end - start} bytes"
            )
        yield Batch(
            base_offset,
            base_offset + last_delta,
            base_time,
            max_time,
            bool(attributes & _LOG_APPEND_TIME),
            count,
            codec,
            start,
            end,
        )


def before_epoch(run: Buffer, epoch: int) -> tuple[memoryview, int] | None:
    """What a run has of `epoch` and earlier ones, and the first offset of a later one; None when all is of the former.

    Epochs never fall along a log. Lengths are the decoder's to check.
    """
    view, position = memoryview(run), 0
    while len(view) - position >= HEADER_BYTES:
        base_offset, length, batch_epoch = _EPOCH_HEAD.unpack_from(view, position)
        if batch_epoch > epoch:
            return view[:position], base_offset
        if length < HEADER_BYTES - _LENGTH_OFFSET:
            return None
        position += _LENGTH_OFFSET + length
    return None


def unpack(run: Bytes, batch: Batch) -> Bytes:
    """The records of a compressed batch, decompressed. Raises CorruptRecordsError."""
    codec = _CODECS.get(batch.codec)
    if codec is None:
        raise CorruptRecordsError(
            f"batch at offset {batch.base_offset} has compression type {batch.codec}, unknown to this build"
        )
    name, decompress = codec
    try:
        unpacked = decompress(run[batch.start : batch.end])
    except (cramjam.DecompressionError, ValueError, struct.error) as error:
        raise CorruptRecordsError(
            f"batch at offset {batch.base_offset} doesn't decompress as {name}: {error}"
        ) from None
    records: Bytes = np.frombuffer(unpacked, np.uint8) if len(unpacked) else np.empty(0, np.uint8)
    if len(records) > UNPACKED_BYTES_MAX:
        raise CorruptRecordsError(f"batch at offset {batch.base_offset} unpacks to {len(records)} bytes")
    if batch.count * RECORD_BYTES_MIN > len(records):
        raise CorruptRecordsError(
            f"batch at offset {batch.base_offset} says {batch.count} records in {len(records)} unpacked bytes"
        )
    return records


def _snappy(packed: Bytes) -> Any:
    """Raw snappy, or Java's Xerial framing: magic, two versions, length-prefixed raw blocks."""
    data = packed.tobytes()
    if not data.startswith(_XERIAL_MAGIC):
        return cramjam.snappy.decompress_raw(data)
    parts: list[bytes] = []
    position = _XERIAL_HEADER_BYTES
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        position += 4
        if length < 0 or length > len(data) - position:
            raise ValueError(f"snappy block of {length} bytes, {len(data) - position} are there")
        parts.append(bytes(cramjam.snappy.decompress_raw(data[position : position + length])))
        position += length
    return b"".join(parts)


_CODECS: dict[int, tuple[str, Callable[[Any], Any]]] = {
    1: ("gzip", cramjam.gzip.decompress),
    2: ("snappy", _snappy),
    3: ("lz4", cramjam.lz4.decompress),
    4: ("zstd", cramjam.zstd.decompress),
}
