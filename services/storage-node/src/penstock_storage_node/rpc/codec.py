"""Protobuf by hand, for the messages that carry records.

The generated classes copy a bytes field when it is set, and again when the message is
serialised; here a message is one join of the buffers, and reading gives views onto the
message. What is written is plain proto3 of `storage.proto` and `data.proto`, and a test holds it
against the generated classes. Small messages use those classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from penstock_core.errors import ErrorCode, PenstockError
from penstock_proto.v1 import common_pb2, storage_pb2
from penstock_storage_node.replication.sender import DataFrame

Buffer = bytes | bytearray | memoryview

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EMPTY = memoryview(b"")
_SMALL = [bytes((i,)) for i in range(128)]


def varint(value: int) -> bytes:
    """An int64, uint64 or bool as proto3 writes it."""
    if 0 <= value < 128:
        return _SMALL[value]
    if value < 0:
        value += 1 << 64
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _malformed(what: str) -> PenstockError:
    return PenstockError(ErrorCode.INVALID_REQUEST, f"malformed message: {what}")


def _read_varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    result = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return result, position
        shift += 7
        if shift > 63:
            break
    raise _malformed("varint")


def fields(data: Buffer, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(field, value, end) of every field: a varint's value and -1, or a bytes field's bounds."""
    while position < end:
        tag, position = _read_varint(data, position, end)
        kind = tag & 7
        if kind == _VARINT:
            value, position = _read_varint(data, position, end)
            yield tag >> 3, value, -1
        elif kind == _BYTES:
            size, position = _read_varint(data, position, end)
            if size > end - position:
                raise _malformed("length beyond the end")
            yield tag >> 3, position, position + size
            position += size
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4  # none of ours: a newer version's
        else:
            raise _malformed(f"wire type {kind}")
    if position != end:
        raise _malformed("field beyond the end")


_M = TypeVar("_M", bound=Message)


def _parse(kind: type[_M], data: bytes) -> _M:
    """A small message, by its generated class."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise _malformed(kind.__name__) from None


def _signed(value: int) -> int:
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >= 1 << 63 else value


# -- Replicate --------------------------------------------------------------------


def encode_replica_data(frames: Sequence[DataFrame]) -> bytes:
    """A ReplicateResponse."""
    out: list[Buffer] = []
    for frame in frames:
        if frame.buffers:
            inner = b"\x08" + varint(frame.base_offset) + b"\x12" + varint(frame.size_bytes)
            event = b"\x12" + varint(len(inner) + frame.size_bytes) + inner
        elif frame.diverging is not None:
            event = _message(
                b"\x1a",
                storage_pb2.ReplicaDiverging(epoch=frame.diverging[0], end_offset=frame.diverging[1]),
            )
        elif frame.out_of_range is not None:
            start, end = frame.out_of_range
            event = _message(
                b"\x2a", storage_pb2.ReplicaOutOfRange(log_start_offset=start, log_end_offset=end)
            )
        elif frame.move is not None:
            lane = storage_pb2.ReplicaHello.CATCH_UP if frame.move else storage_pb2.ReplicaHello.LIVE
            event = _message(b"\x42", storage_pb2.ReplicaMove(lane=lane))
        elif frame.error is not None:
            event = _message(b"\x22", common_pb2.Error(code=frame.error[0], message=frame.error[1]))
        else:
            event = b""
        head = b"\x08" + varint(frame.session)
        tail = b"\x30" + varint(frame.high_watermark) + b"\x38" + varint(frame.log_start_offset)
        size = len(head) + len(tail) + len(event) + frame.size_bytes
        # Field order is free in proto3: the two offsets stand before the records.
        out.append(b"\x0a" + varint(size) + head + tail + event)
        out.extend(frame.buffers)
    return b"".join(out)


def _message(
    tag: bytes,
    message: storage_pb2.ReplicaDiverging
    | storage_pb2.ReplicaOutOfRange
    | storage_pb2.ReplicaMove
    | common_pb2.Error,
) -> bytes:
    body = message.SerializeToString()
    return tag + varint(len(body)) + body


@dataclass(slots=True)
class ReceivedData:
    """One ReplicaData; `records` is a view onto the message."""

    session: int = 0
    high_watermark: int = 0
    log_start_offset: int = 0
    base_offset: int = 0
    records: memoryview | None = None
    diverging: tuple[int, int] | None = None
    out_of_range: tuple[int, int] | None = None
    error: tuple[int, str] | None = None
    move: int | None = None
    """Lane to open again on."""


def decode_replica_data(message: bytes) -> Iterator[ReceivedData]:
    """The frames of a ReplicateResponse. Raises INVALID_REQUEST when it is none."""
    view = memoryview(message)
    for field, start, end in fields(message, 0, len(message)):
        if field == 1 and end >= 0:
            yield _replica_data(message, view, start, end)


def _replica_data(message: bytes, view: memoryview, start: int, end: int) -> ReceivedData:
    data = ReceivedData()
    for field, value, stop in fields(message, start, end):
        if stop < 0:
            if field == 1:
                data.session = value
            elif field == 6:
                data.high_watermark = _signed(value)
            elif field == 7:
                data.log_start_offset = _signed(value)
        elif field == 2:
            data.records = view[stop:stop]
            for inner, inner_value, inner_stop in fields(message, value, stop):
                if inner == 1 and inner_stop < 0:
                    data.base_offset = _signed(inner_value)
                elif inner == 2 and inner_stop >= 0:
                    data.records = view[inner_value:inner_stop]
        elif field == 3:
            diverging = _parse(storage_pb2.ReplicaDiverging, message[value:stop])
            data.diverging = (diverging.epoch, diverging.end_offset)
        elif field == 4:
            error = _parse(common_pb2.Error, message[value:stop])
            data.error = (error.code, error.message)
        elif field == 5:
            found = _parse(storage_pb2.ReplicaOutOfRange, message[value:stop])
            data.out_of_range = (found.log_start_offset, found.log_end_offset)
        elif field == 8:
            data.move = _parse(storage_pb2.ReplicaMove, message[value:stop]).lane
    return data


# -- Forward ----------------------------------------------------------------------


@dataclass(slots=True)
class ForwardedFrame:
    """One ForwardFrame; `chunk` is a view onto the message."""

    request_id: int = 0
    chunk: memoryview = _EMPTY
    last: bool = False
    frame_bytes: int = 0
    metadata_version: int = 0
    deadline_ms: int = 0


@dataclass(slots=True)
class ForwardedFrames:
    """One ForwardRequest."""

    open: storage_pb2.ForwardOpen | None
    frames: list[ForwardedFrame]


def decode_forward_request(message: bytes) -> ForwardedFrames:
    """Read a ForwardRequest. Raises INVALID_REQUEST when it is none."""
    view = memoryview(message)
    result = ForwardedFrames(None, [])
    for field, start, end in fields(message, 0, len(message)):
        if end < 0:
            continue
        if field == 1:
            result.open = _parse(storage_pb2.ForwardOpen, message[start:end])
        elif field == 2:
            frame = ForwardedFrame()
            for inner, value, stop in fields(message, start, end):
                if stop >= 0:
                    if inner == 2:
                        frame.chunk = view[value:stop]
                elif inner == 1:
                    frame.request_id = value
                elif inner == 3:
                    frame.last = bool(value)
                elif inner == 4:
                    frame.frame_bytes = value
                elif inner == 5:
                    frame.metadata_version = value
                elif inner == 6:
                    frame.deadline_ms = value
            result.frames.append(frame)
    return result


def forward_response_frame(
    request_id: int,
    chunk: Sequence[Buffer],
    chunk_bytes: int,
    *,
    last: bool,
    frame_bytes: int,
    none: bool = False,
    close_connection: bool = False,
    stale_metadata: bool = False,
) -> list[Buffer]:
    """One ForwardResponseFrame as a field of a ForwardResponse: join any number to a message."""
    head = b"\x08" + varint(request_id)
    if last:
        head += b"\x18\x01"
    if frame_bytes:
        head += b"\x20" + varint(frame_bytes)
    if none:
        head += b"\x28\x01"
    if close_connection:
        head += b"\x30\x01"
    if stale_metadata:
        head += b"\x38\x01"
    if chunk_bytes:
        head += b"\x12" + varint(chunk_bytes)
    return [b"\x0a" + varint(len(head) + chunk_bytes) + head, *chunk]


# -- FetchRange -------------------------------------------------------------------


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
) -> bytes:
    """A FetchRangeResponse without an error."""
    head = (
        b"\x18" + varint(next_offset) + b"\x20" + varint(log_start_offset) + b"\x28" + varint(high_watermark)
    )
    head += b"\x32" + varint(len(topic_id)) + topic_id + b"\x38" + varint(leader_epoch)
    if done:
        head += b"\x40\x01"
    if size_bytes:
        head += b"\x12" + varint(size_bytes)
    return b"".join([head, *buffers])
