"""`FetchRange` (proto/penstock/v1/data.proto): what a node writes, and what a relay must know of it.

Records go through a gateway as the bytes that the node sent; parsing them into a message and
writing them out again would copy each chunk four times. Only where to resume, and whether the
stream is over, is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock_proto.fast.pieces import piece_head
from penstock_proto.fast.primitives import Buffer, MalformedMessage, fields, parse, signed, varint
from penstock_proto.v1 import common_pb2

# -- a node's end -------------------------------------------------------------------


def encode_fetch_range_response(
    buffers: Sequence[Buffer],
    size_bytes: int,
    *,
    next_offset: int,
    log_start_offset: int,
    high_watermark: int,
    topic_id: bytes,
    leader_epoch: int,
    done: bool = False,
    piece_of: tuple[int, int, int] | None = None,
    read_committed: bool = False,
) -> bytes:
    """A FetchRangeResponse without an error.

    `piece_of`: the buffers are a piece of one batch: (its base offset, its bytes, how many of them came before).
    """
    head = (
        b"\x18" + varint(next_offset) + b"\x20" + varint(log_start_offset) + b"\x28" + varint(high_watermark)
    )
    head += b"\x32" + varint(len(topic_id)) + topic_id + b"\x38" + varint(leader_epoch)
    if done:
        head += b"\x40\x01"
    if read_committed:
        head += b"\x50\x01"
    if piece_of is not None:
        head += piece_head(b"\x4a", *piece_of, size_bytes)
    elif size_bytes:
        head += b"\x12" + varint(size_bytes)
    return b"".join([head, *buffers])


# -- a gateway's end ----------------------------------------------------------------


class RangeStep(NamedTuple):
    """One response: error code (0 = none) and message, offset to resume at, high watermark, done."""

    error: int
    message: str
    next_offset: int
    high_watermark: int
    done: bool


def scan(data: bytes) -> RangeStep:
    """Read a response's small fields; raises MalformedMessage when it is none."""
    error, message, done = 0, "", False
    next_offset = high_watermark = 0
    try:
        for field, value, end in fields(data, 0, len(data)):
            if end >= 0:
                if field == 1:
                    parsed = parse(common_pb2.Error, data[value:end])
                    error, message = parsed.code, parsed.message
            elif field == 3:
                next_offset = signed(value)
            elif field == 5:
                high_watermark = signed(value)
            elif field == 8:
                done = value != 0
    except MalformedMessage:
        raise MalformedMessage("a node's FetchRangeResponse ends in the middle of a field") from None
    return RangeStep(error, message, next_offset, high_watermark, done)
