"""Reading and writing Kafka's primitive types by hand.

A `Reader` walks a request without copying it. Every length is checked against the
bytes that are left before anything is made of it, so a hostile length costs nothing.
Malformed input leaves as `Malformed`, which is a PenstockError of INVALID_REQUEST.

Flexible versions (KIP-482) write lengths as unsigned varints, one higher, 0 for null,
and end each structure with tagged fields; the others write int16/int32, -1 for null.
"""

from __future__ import annotations

import struct
import sys
from typing import Final, TypeAlias

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicId
from penstock_core.limits import KAFKA_DECODED_BYTES_MAX

Buffer: TypeAlias = bytes | bytearray | memoryview

INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")

UUID_BYTES: Final = 16

REQUEST_ITEMS_MAX: Final = 20_000
"""Items of all arrays, and tagged fields, of one request but Produce and Fetch, unless a setting says otherwise."""
DATA_ITEMS_MAX: Final = 100_000
"""The same of a Produce or Fetch."""


class Malformed(PenstockError):
    """Bytes that are no valid message: the connection that sent them is closed."""

    def __init__(self, reason: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, f"malformed message: {reason}")


def check_decoded_size(frame: Buffer) -> None:
    """Refuse a request too large to be turned into objects (Produce is not)."""
    if len(frame) > KAFKA_DECODED_BYTES_MAX:
        raise Malformed(
            f"{len(frame)} bytes, the most for a request of this kind is {KAFKA_DECODED_BYTES_MAX}"
        )


class Reader:
    """A position in a message. Not hot enough to be unrolled; inner loops use `unpack`."""

    __slots__ = ("end", "flexible", "items_left", "pos", "view")

    def __init__(self, frame: Buffer, pos: int, flexible: bool, items_max: int = sys.maxsize) -> None:
        """`items_max` bounds the items of all arrays together, and tagged fields with them: each is work, and
        takes a byte or two to ask for."""
        self.view = memoryview(frame)
        self.pos = pos
        self.end = len(self.view)
        self.flexible = flexible
        self.items_left = items_max

    def count_items(self, count: int) -> None:
        """Take `count` items off those that the message may have; raises Malformed when it has more."""
        self.items_left -= count
        if self.items_left < 0:
            raise Malformed("more items than one request may have (request_items_max)")

    def take(self, count: int) -> int:
        """Step over `count` bytes; returns where they start."""
        start = self.pos
        if count < 0 or count > self.end - start:
            raise Malformed(f"{count} bytes wanted at {start}, {self.end - start} are left")
        self.pos = start + count
        return start

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        """The integers of `layout` (big-endian, without padding)."""
        return layout.unpack_from(self.view, self.take(layout.size))

    def int8(self) -> int:
        value: int = INT8.unpack_from(self.view, self.take(1))[0]
        return value

    def int16(self) -> int:
        value: int = INT16.unpack_from(self.view, self.take(2))[0]
        return value

    def int32(self) -> int:
        value: int = INT32.unpack_from(self.view, self.take(4))[0]
        return value

    def int64(self) -> int:
        value: int = INT64.unpack_from(self.view, self.take(8))[0]
        return value

    def boolean(self) -> bool:
        return self.view[self.take(1)] != 0

    def uvarint(self) -> int:
        """An unsigned varint of at most 32 bits."""
        byte = self.view[self.take(1)]
        if byte < 0x80:
            return byte
        value = byte & 0x7F
        shift = 7
        while True:
            byte = self.view[self.take(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise Malformed("varint of more than 5 bytes")
        if value > 0xFFFFFFFF:
            raise Malformed("varint of more than 32 bits")
        return value

    def uuid(self) -> TopicId:
        start = self.take(UUID_BYTES)
        return TopicId(bytes(self.view[start : start + UUID_BYTES]))

    def length(self, plain: struct.Struct) -> int:
        """A length; -1 for null, as which Kafka takes any negative one."""
        if self.flexible:
            return self.uvarint() - 1
        length: int = plain.unpack_from(self.view, self.take(plain.size))[0]
        return max(length, -1)

    def nullable_string(self) -> str | None:
        length = self.length(INT16)
        if length < 0:
            return None
        start = self.take(length)
        try:
            return str(self.view[start : start + length], "utf-8")
        except UnicodeDecodeError:
            raise Malformed(f"string at {start} is not UTF-8") from None

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise Malformed(f"null string at {self.pos}")
        return value

    def nullable_bytes(self) -> memoryview | None:
        """Bytes as a view onto the message."""
        length = self.length(INT32)
        if length < 0:
            return None
        start = self.take(length)
        return self.view[start : start + length]

    def nullable_array(self, item_bytes_min: int) -> int | None:
        """Number of items that follow, or None for null.

        `item_bytes_min` is the least that an item can take up: a count that the bytes
        left cannot hold is refused here.
        """
        count = self.length(INT32)
        if count < 0:
            return None
        if count * item_bytes_min > self.end - self.pos:
            raise Malformed(f"array of {count} items, but only {self.end - self.pos} bytes are left")
        self.count_items(count)
        return count

    def array(self, item_bytes_min: int) -> int:
        count = self.nullable_array(item_bytes_min)
        if count is None:
            raise Malformed(f"null array at {self.pos}")
        return count

    def skip_tags(self) -> None:
        """Step over tagged fields, known or not; nothing when the version has none."""
        if not self.flexible:
            return
        count = self.uvarint()
        if count > self.end - self.pos:
            raise Malformed(f"{count} tagged fields, but only {self.end - self.pos} bytes are left")
        if count:
            self.count_items(count)
        for _ in range(count):
            self.uvarint()
            self.take(self.uvarint())


_UVARINTS: Final = tuple(bytes((n,)) for n in range(128))


def uvarint(value: int) -> bytes:
    """`value` (0 or more) as an unsigned varint."""
    if value < 128:
        return _UVARINTS[value]
    out = bytearray()
    while value >= 128:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def put_string(value: str | None, flexible: bool) -> bytes:
    """A nullable string, length first."""
    if value is None:
        return b"\x00" if flexible else b"\xff\xff"
    data = value.encode()
    if flexible:
        return uvarint(len(data) + 1) + data
    if len(data) > 32767:
        data = data[:32767].decode("utf-8", "ignore").encode()
    return INT16.pack(len(data)) + data


def put_count(count: int, flexible: bool) -> bytes:
    """Length of an array or of bytes that follow; -1 for null."""
    return uvarint(count + 1) if flexible else INT32.pack(count)
