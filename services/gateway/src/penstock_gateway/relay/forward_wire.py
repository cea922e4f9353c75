"""The bytes of `Forward` messages (proto/penstock/v1/storage.proto), by hand.

The generated classes copy a chunk at every step (parse, attribute, assignment,
serialize). A relay moves every byte of every client, so requests are joined once
into the bytes that gRPC sends, and chunks of responses are views onto the bytes that gRPC
received. A test holds both against the generated classes. Pure; unknown fields are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock_core.errors import InvariantBroken
from penstock_core.limits import FORWARD_CHUNK_BYTES_MAX

Buffer = bytes | bytearray | memoryview

MESSAGE_OVERHEAD_BYTES: Final = 256
_LAST: Final = b"\x18\x01"


@dataclass(slots=True)
class OutFrame:
    """A Kafka request to send: its buffers in order, without length prefix."""

    request_id: int
    buffers: Sequence[Buffer]
    size_bytes: int
    metadata_version: int
    deadline_ms: int = 0


class InFrame(NamedTuple):
    """A part of a Kafka response; `chunk` is a view onto the message."""

    request_id: int
    chunk: memoryview
    last: bool
    none: bool
    close_connection: bool
    stale_metadata: bool


def varint(value: int) -> bytes:
    """Unsigned base-128, as protobuf has it."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def pack(frames: Iterable[OutFrame], most_bytes: int = FORWARD_CHUNK_BYTES_MAX) -> Iterator[bytes]:
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
    head += b"\x12" + varint(size)
    parts.append(b"\x12" + varint(len(head) + size) + head)
    parts.extend(buffers)


def cut(buffers: Sequence[Buffer], most_bytes: int) -> Iterator[tuple[list[memoryview], int]]:
    """The bytes of all buffers in runs of `most_bytes` (the last may be shorter), uncopied."""
    run: list[memoryview] = []
    size = 0
    for buffer in buffers:
        view = memoryview(buffer)
        while len(view):
            piece = view[: most_bytes - size]
            run.append(piece)
            size += len(piece)
            view = view[len(piece) :]
            if size == most_bytes:
                yield run, size
                run, size = [], 0
    if run:
        yield run, size


def unpack(message: bytes) -> list[InFrame]:
    """The frames of a ForwardResponse; raises InvariantBroken when a node sent something else."""
    view = memoryview(message)
    frames = []
    pos, end = 0, len(message)
    try:
        while pos < end:
            tag, pos = _varint(message, pos)
            if tag != 0x0A:
                pos = _skip(message, pos, tag)
                continue
            size, pos = _varint(message, pos)
            stop = pos + size
            if stop > end:
                raise IndexError
            frames.append(_in_frame(message, view, pos, stop))
            pos = stop
    except IndexError:
        raise InvariantBroken("a node's ForwardResponse ends in the middle of a field") from None
    return frames


def _in_frame(message: bytes, view: memoryview, pos: int, stop: int) -> InFrame:
    request_id = 0
    chunk = view[:0]
    flags = 0
    while pos < stop:
        tag = message[pos]
        pos += 1
        if tag == 0x12:
            size, pos = _varint(message, pos)
            if pos + size > stop:
                raise IndexError
            chunk = view[pos : pos + size]
            pos += size
        elif tag in (0x08, 0x18, 0x20, 0x28, 0x30, 0x38):
            value, pos = _varint(message, pos)
            if tag == 0x08:
                request_id = value
            elif value:
                flags |= 1 << (tag >> 3)
        else:
            tag, pos = _varint(message, pos - 1)
            pos = _skip(message, pos, tag)
    return InFrame(
        request_id,
        chunk,
        bool(flags & 1 << 3),
        bool(flags & 1 << 5),
        bool(flags & 1 << 6),
        bool(flags & 1 << 7),
    )


def _varint(message: bytes, pos: int) -> tuple[int, int]:
    byte = message[pos]
    pos += 1
    if byte < 0x80:
        return byte, pos
    value = byte & 0x7F
    shift = 7
    while True:
        byte = message[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
        if shift > 63:
            raise IndexError


def _skip(message: bytes, pos: int, tag: int) -> int:
    """Position after a field that this version does not know."""
    kind = tag & 7
    if kind == 0:
        return _varint(message, pos)[1]
    if kind == 1:
        return pos + 8
    if kind == 2:
        size, pos = _varint(message, pos)
        return pos + size
    if kind == 5:
        return pos + 4
    raise IndexError
