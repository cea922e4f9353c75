"""Zigzag varints as records use them (Kafka: ByteUtils.readVarint, readVarlong)."""

from __future__ import annotations

from penstock_core.errors import ErrorCode, PenstockError
from penstock_kafka.records.batch import Buffer


def read_varint(data: Buffer, pos: int, end: int, bytes_max: int = 5) -> tuple[int, int]:
    """The signed number at `pos` and where it ends; raises INVALID_RECORD.

    `bytes_max` is 5 for lengths and offsets, 10 for timestamps.
    """
    value = 0
    shift = 0
    for at in range(pos, min(end, pos + bytes_max)):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + 1
        shift += 7
    raise PenstockError(ErrorCode.INVALID_RECORD, f"no varint at byte {pos} of {end}")


def put_varint(out: bytearray, value: int) -> None:
    """Append a signed number of at most 64 bits."""
    rest = ((value << 1) ^ (value >> 63)) & 0xFFFFFFFFFFFFFFFF
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
