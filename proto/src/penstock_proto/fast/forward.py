"""`Forward`, between gateways and nodes (proto/penstock/v1/storage.proto).

A relay moves every byte of every client, so requests are joined once into the bytes that gRPC
sends, and chunks of responses are views onto the bytes that gRPC received.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock_proto.fast.pieces import cut
from penstock_proto.fast.primitives import (
    Buffer,
    MalformedMessage,
    fields,
    parse,
    read_varint,
    skip,
    varint,
)
from penstock_proto.v1 import storage_pb2

MESSAGE_OVERHEAD_BYTES: Final = 256
_LAST: Final = b"\x18\x01"
_EMPTY = memoryview(b"")

# -- a gateway's end ----------------------------------------------------------------


@dataclass(slots=True)
class OutFrame:
    """A Kafka request to send: its buffers in order, without length prefix."""

    request_id: int
    buffers: Sequence[Buffer]
    size_bytes: int
    metadata_version: int
    deadline_ms: int = 0
    traceparent: str = ""


class InFrame(NamedTuple):
    """A part of a Kafka response; `chunk` is a view onto the message."""

    request_id: int
    chunk: memoryview
    last: bool
    none: bool
    close_connection: bool
    concerns_router: bool
    asks: bool = False
    """No response: whether the client is still there, by that number."""


def pack(frames: Iterable[OutFrame], most_bytes: int) -> Iterator[bytes]:
    """Messages that carry the frames: small ones together, large ones in chunks of `most_bytes`."""
    parts: list[Buffer] = []
    room = most_bytes
    for frame in frames:
        if frame.size_bytes > room and parts:
            yield b"".join(parts)
            parts, room = [], most_bytes
        if frame.size_bytes <= most_bytes:
            _put(parts, frame, frame.buffers, frame.size_bytes, first=True, last=True)
            room -= frame.size_bytes + MESSAGE_OVERHEAD_BYTES
            continue
        left = frame.size_bytes
        for pieces, size in cut(frame.buffers, most_bytes):
            left -= size
            _put(parts, frame, pieces, size, first=left + size == frame.size_bytes, last=left == 0)
            yield b"".join(parts)
            parts = []
    if parts:
        yield b"".join(parts)


def _put(
    parts: list[Buffer], frame: OutFrame, buffers: Sequence[Buffer], size: int, *, first: bool, last: bool
) -> None:
    head = b"\x08" + varint(frame.request_id)
    if last:
        head += _LAST
    if first:
        head += b"\x20" + varint(frame.size_bytes) + b"\x28" + varint(frame.metadata_version)
        if frame.deadline_ms:
            head += b"\x30" + varint(frame.deadline_ms)
        if frame.traceparent:
            head += b"\x42" + varint(len(frame.traceparent)) + frame.traceparent.encode("ascii")
    head += b"\x12" + varint(size)
    parts.append(b"\x12" + varint(len(head) + size) + head)
    parts.extend(buffers)


def there_message(numbers: Iterable[int]) -> bytes:
    """The client is still there, as a node asked by these numbers."""
    parts = []
    for number in numbers:
        body = b"\x08" + varint(number) + b"\x38\x01"
        parts.append(b"\x12" + varint(len(body)) + body)
    return b"".join(parts)


def unpack(message: bytes) -> list[InFrame]:
    """The frames of a ForwardResponse; raises MalformedMessage when a node sent something else."""
    view = memoryview(message)
    frames = []
    pos, end = 0, len(message)
    try:
        while pos < end:
            tag, pos = read_varint(message, pos, end)
            if tag != 0x0A:
                pos = skip(message, pos, end, tag)
                continue
            size, pos = read_varint(message, pos, end)
            stop = pos + size
            if stop > end:
                raise MalformedMessage("frame")
            frames.append(_in_frame(message, view, pos, stop))
            pos = stop
    except MalformedMessage:
        raise MalformedMessage("a node's ForwardResponse ends in the middle of a field") from None
    return frames


def _in_frame(message: bytes, view: memoryview, pos: int, stop: int) -> InFrame:
    request_id = 0
    chunk = view[:0]
    flags = 0
    while pos < stop:
        tag = message[pos]
        pos += 1
        if tag == 0x12:
            size, pos = read_varint(message, pos, stop)
            if pos + size > stop:
                raise MalformedMessage("chunk")
            chunk = view[pos : pos + size]
            pos += size
        elif tag in (0x08, 0x18, 0x20, 0x28, 0x30, 0x38, 0x40):
            value, pos = read_varint(message, pos, stop)
            if tag == 0x08:
                request_id = value
            elif value:
                flags |= 1 << (tag >> 3)
        else:
            tag, pos = read_varint(message, pos - 1, stop)
            pos = skip(message, pos, stop, tag)
    return InFrame(
        request_id,
        chunk,
        bool(flags & 1 << 3),
        bool(flags & 1 << 5),
        bool(flags & 1 << 6),
        bool(flags & 1 << 7),
        bool(flags & 1 << 8),
    )


# -- a node's end -------------------------------------------------------------------


@dataclass(slots=True)
class ForwardedFrame:
    """One ForwardFrame; `chunk` is a view onto the message."""

    request_id: int = 0
    chunk: memoryview = _EMPTY
    last: bool = False
    frame_bytes: int = 0
    metadata_version: int = 0
    deadline_ms: int = 0
    there: bool = False
    """No request: the client is still there, as was asked by that number."""
    traceparent: str = ""
    """Of a request that is traced; anything, if the gateway is not one of ours."""


@dataclass(slots=True)
class ForwardedFrames:
    """One ForwardRequest."""

    open: storage_pb2.ForwardOpen | None
    frames: list[ForwardedFrame]


def decode_forward_request(message: bytes) -> ForwardedFrames:
    """Read a ForwardRequest. Raises MalformedMessage when it is none."""
    view = memoryview(message)
    result = ForwardedFrames(None, [])
    for field, start, end in fields(message, 0, len(message)):
        if end < 0:
            continue
        if field == 1:
            result.open = parse(storage_pb2.ForwardOpen, message[start:end])
        elif field == 2:
            frame = ForwardedFrame()
            for inner, value, stop in fields(message, start, end):
                if stop >= 0:
                    if inner == 2:
                        frame.chunk = view[value:stop]
                    elif inner == 8:
                        frame.traceparent = message[value:stop].decode("ascii", "replace")
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
                elif inner == 7:
                    frame.there = bool(value)
            result.frames.append(frame)
    return result


def ask_frame(number: int) -> bytes:
    """Whether the client is still there, as a field of a ForwardResponse."""
    body = b"\x08" + varint(number) + b"\x40\x01"
    return b"\x0a" + varint(len(body)) + body


def forward_response_frame(
    request_id: int,
    chunk: Sequence[Buffer],
    chunk_bytes: int,
    *,
    last: bool,
    frame_bytes: int,
    none: bool = False,
    close_connection: bool = False,
    concerns_router: bool = False,
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
    if concerns_router:
        head += b"\x38\x01"
    if chunk_bytes:
        head += b"\x12" + varint(chunk_bytes)
    return [b"\x0a" + varint(len(head) + chunk_bytes) + head, *chunk]
