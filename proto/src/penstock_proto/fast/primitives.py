"""Proto3's varints and fields (https://protobuf.dev/programming-guides/encoding/)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

Buffer = bytes | bytearray | memoryview

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SMALL = [bytes((i,)) for i in range(128)]
_UINT64_MAX = (1 << 64) - 1


class MalformedMessage(ValueError):
    """These bytes are no message of their kind."""


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


def read_varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """(uint64, position after it). Raises MalformedMessage when it does not end before `end`."""
    if position < end:
        byte = data[position]
        position += 1
        if byte < 128:
            return byte, position
        value, shift = byte & 127, 7
        while position < end and shift <= 63:
            byte = data[position]
            position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value & _UINT64_MAX, position
            shift += 7
    raise MalformedMessage("malformed message: varint")


def signed(value: int) -> int:
    """The int64 that a varint stands for."""
    return value - (1 << 64) if value >> 63 else value


def skip(data: Buffer, position: int, end: int, tag: int) -> int:
    """Position after a field that this version does not know; `position` is after its tag."""
    kind = tag & 7
    if kind == _VARINT:
        return read_varint(data, position, end)[1]
    if kind == _BYTES:
        size, position = read_varint(data, position, end)
        position += size
    elif kind == _FIXED64:
        position += 8
    elif kind == _FIXED32:
        position += 4
    else:
        raise MalformedMessage(f"malformed message: wire type {kind}")
    if position > end:
        raise MalformedMessage("malformed message: field beyond the end")
    return position


def fields(data: Buffer, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(field, value, end) of every field: a varint's value and -1, or a bytes field's bounds."""
    while position < end:
        tag, position = read_varint(data, position, end)
        kind = tag & 7
        if kind == _VARINT:
            value, position = read_varint(data, position, end)
            yield tag >> 3, value, -1
        elif kind == _BYTES:
            size, position = read_varint(data, position, end)
            if size > end - position:
                raise MalformedMessage("malformed message: length beyond the end")
            yield tag >> 3, position, position + size
            position += size
        else:
            position = skip(data, position, end, tag)  # none of ours: a newer version's


_M = TypeVar("_M", bound=Message)


def parse(kind: type[_M], data: bytes) -> _M:
    """A small message, by its generated class. Raises MalformedMessage."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise MalformedMessage(f"malformed message: {kind.__name__}") from None


def submessage(tag: bytes, message: Message) -> bytes:
    """A small message as a field of another one."""
    body = message.SerializeToString()
    return tag + varint(len(body)) + body
