"""One batch in another codec: header and records stay what they are."""

from __future__ import annotations

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.limits import BATCH_BYTES_MAX
from penstock_kafka.records import compression
from penstock_kafka.records.batch import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    Buffer,
    is_crc_valid,
    read_header,
)
from penstock_kafka.records.build import with_crc


def recompress(
    batch: Buffer, codec: int, level: int | None = None, *, most_bytes: int = BATCH_BYTES_MAX
) -> bytes:
    """`batch` (exactly one) with its records compressed by `codec`; they may take up `most_bytes` meanwhile.

    Raises CORRUPT_MESSAGE when its CRC or length is wrong, INVALID_RECORD when its records can't be
    decompressed, UNSUPPORTED_COMPRESSION_TYPE.
    """
    view = memoryview(batch)
    info = read_header(view)
    if info.size_bytes != len(view) or not is_crc_valid(view):
        raise PenstockError(ErrorCode.CORRUPT_MESSAGE, "the batch was damaged on the way")
    records: Buffer = view[HEADER_BYTES:]
    if info.compression:
        records = compression.decompress(info.compression, records, most_bytes=most_bytes)
    payload = compression.compress(codec, records, level)
    out = bytearray(view[:HEADER_BYTES]) + payload
    out[8:12] = (len(out) - LENGTH_OVERHEAD_BYTES).to_bytes(4, "big")
    out[22] = out[22] & ~COMPRESSION_MASK & 0xFF | codec
    return with_crc(out)
