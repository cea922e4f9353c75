"""What a relay must know of a `FetchRangeResponse` (proto/penstock/v1/data.proto), by hand.

Records go by as the bytes that the node sent; parsing them into a message and writing
them out again would copy each chunk four times. Only where to resume, and whether the
stream is over, is read. Pure; unknown fields are skipped.
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from penstock_core.errors import InvariantBroken
from penstock_proto.v1 import common_pb2


class RangeStep(NamedTuple):
    """One response: error code (0 = none) and message, offset to resume at, high watermark, done."""

    error: int
    message: str
    next_offset: int
    high_watermark: int
    done: bool


def scan(data: bytes) -> RangeStep:
    """Read a response's small fields; raises InvariantBroken when it is none."""
    error, message, done = 0, "", False
    next_offset = high_watermark = 0
    pos, end = 0, len(data)
    try:
        while pos < end:
            tag, pos = _varint(data, pos)
            kind = tag & 7
            if kind == 0:
                value, pos = _varint(data, pos)
                if tag == 0x18:
                    next_offset = _signed(value)
                elif tag == 0x28:
                    high_watermark = _signed(value)
                elif tag == 0x40:
                    done = value != 0
            elif kind == 2:
                size, pos = _varint(data, pos)
                if pos + size > end:
                    raise IndexError
                if tag == 0x0A:
                    parsed = common_pb2.Error.FromString(data[pos : pos + size])
                    error, message = parsed.code, parsed.message
                pos += size
            elif kind in (1, 5):
                pos += 8 if kind == 1 else 4
            else:
                raise IndexError
        if pos != end:
            raise IndexError
    except (IndexError, DecodeError):
        raise InvariantBroken("a node's FetchRangeResponse ends in the middle of a field") from None
    return RangeStep(error, message, next_offset, high_watermark, done)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, pos
        shift += 7
        if shift > 63:
            raise IndexError
