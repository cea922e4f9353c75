"""Compression of a batch's records, with a hard bound on what comes out.

Kafka's codecs: 1 gzip, 2 snappy, 3 lz4 (frame), 4 zstd. Decompression writes into a
buffer of fixed size and fails when it is full, so a bomb costs no more than the bound.
Snappy comes in two forms: raw (librdkafka) and in xerial's framing (Java, Python).
"""

from __future__ import annotations

import mmap
import struct
from typing import Any, Final

import cramjam

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.limits import BATCH_BYTES_MAX, DECOMPRESSION_RATIO_MAX
from penstock_kafka.records.batch import Buffer

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

CODEC_NAMES: Final = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}

_FLOOR_BYTES: Final = 1024 * 1024
_FIRST_TRY_BYTES: Final = 256 * 1024
_MAPPED_BYTES_MIN: Final = 1024 * 1024
_MAPPED_TRY_BYTES: Final = 32 * 1024 * 1024
"""Room of a first try in mapped memory, at least: what clients send is not larger, and a small machine has that."""

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_INT32: Final = struct.Struct(">i")

_OUTPUT_FULL: Final = ("failed to write whole buffer", "is smaller than required")
"""How cramjam says that the output buffer is full; anything else is damage."""

_DECOMPRESSORS: Final[dict[int, Any]] = {
    GZIP: cramjam.gzip.decompress_into,
    LZ4: cramjam.lz4.decompress_into,
    ZSTD: cramjam.zstd.decompress_into,
}


def fresh_memory(size_bytes: int) -> memoryview:
    """Zeroed memory of its own, freed with its last view.

    Large ones are mapped: a bytearray would be written with zeros at once, half a millisecond for each MB in which no
    other thread gets the interpreter. Mapped, only what is used takes room, and it does while a codec runs without it.
    """
    if size_bytes < _MAPPED_BYTES_MIN:
        return memoryview(bytearray(size_bytes))
    return memoryview(mmap.mmap(-1, size_bytes))


def output_bound(compressed_bytes: int, most_bytes: int = BATCH_BYTES_MAX) -> int:
    """Most bytes that so many compressed ones may become, never above `most_bytes`."""
    return min(most_bytes, max(_FLOOR_BYTES, compressed_bytes * DECOMPRESSION_RATIO_MAX))


def decompress(
    codec: int,
    data: Buffer,
    *,
    reserve_bytes: int = 0,
    pad_bytes: int = 0,
    scratch: memoryview | None = None,
    most_bytes: int = BATCH_BYTES_MAX,
) -> memoryview:
    """`reserve_bytes` of room, then the decompressed `data`; `pad_bytes` more lie behind the view.

    The memory is `scratch` when it suffices, else new. `most_bytes` is what a stranger's data may
    become; what is stored was checked once. Raises INVALID_RECORD when
    `data` is damaged or grows above `output_bound`, and UNSUPPORTED_COMPRESSION_TYPE for
    a codec that Kafka does not have.
    """
    if codec not in CODEC_NAMES or codec == NONE:
        raise PenstockError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {codec}")
    bound = output_bound(len(data), most_bytes)
    # Few batches say how large they become, so room is made in steps.
    room = min(bound, max(_FIRST_TRY_BYTES, len(data) * 8))
    if room >= _MAPPED_BYTES_MIN:
        # Of mapped memory only what is used takes room, and a try too many takes its time.
        room = min(bound, max(room, _MAPPED_TRY_BYTES))
    if scratch is not None:
        room = min(bound, len(scratch) - reserve_bytes - pad_bytes)
    while True:
        if scratch is None:
            scratch = fresh_memory(reserve_bytes + room + pad_bytes)
        size = _try_decompress(codec, data, scratch[reserve_bytes : reserve_bytes + room])
        if size is not None:
            return scratch[: reserve_bytes + size]
        if room >= bound:
            raise PenstockError(
                ErrorCode.INVALID_RECORD,
                f"batch of {len(data)} compressed bytes grows above {bound} bytes: send smaller batches",
            )
        room = min(bound, room * 4)
        scratch = None


def _try_decompress(codec: int, data: Buffer, target: memoryview) -> int | None:
    """Bytes written to `target`, or None when it is too small; raises INVALID_RECORD on damage."""
    try:
        return _decompress_into(codec, data, target)
    except cramjam.DecompressionError as error:
        if any(part in str(error) for part in _OUTPUT_FULL):
            return None
        raise PenstockError(
            ErrorCode.INVALID_RECORD, f"{CODEC_NAMES[codec]} data of a batch is damaged: {error}"
        ) from None


def _decompress_into(codec: int, data: Buffer, target: memoryview) -> int:
    if codec == SNAPPY:
        return _snappy_into(memoryview(data), target)
    size: int = _DECOMPRESSORS[codec](data, target)
    return size


def _snappy_into(data: memoryview, target: memoryview) -> int:
    raw_into = cramjam.snappy.decompress_raw_into
    if bytes(data[:8]) != _XERIAL_MAGIC:
        size: int = raw_into(data, target)
        return size
    pos = _XERIAL_HEADER_BYTES
    filled = 0
    while pos < len(data):
        if bytes(data[pos : pos + 8]) == _XERIAL_MAGIC:
            pos += _XERIAL_HEADER_BYTES
            continue
        if len(data) - pos < 4:
            raise cramjam.DecompressionError("cut off in a block's length")
        block_bytes = _INT32.unpack_from(data, pos)[0]
        pos += 4
        if not 0 < block_bytes <= len(data) - pos:
            raise cramjam.DecompressionError(f"block of {block_bytes} bytes")
        filled += raw_into(data[pos : pos + block_bytes], target[filled:])
        pos += block_bytes
    return filled


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` as Kafka's clients write it, at a level of the codec (None: our choice); not hot."""
    data = bytes(data)
    if codec == NONE:
        return data
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data, level=6 if level is None else level))
    if codec == SNAPPY:
        out = [_XERIAL_MAGIC, _INT32.pack(1), _INT32.pack(1)]
        for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
            block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
            out += [_INT32.pack(len(block)), block]
        return b"".join(out)
    if codec == LZ4:
        # Linked blocks are not understood by every Kafka client (KIP-57).
        level = 1 if level is None else level
        compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        compressor.compress(data)
        return bytes(compressor.finish())
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=3 if level is None else level))
    raise PenstockError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {codec}")
