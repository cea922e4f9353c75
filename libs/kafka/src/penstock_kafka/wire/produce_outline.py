"""A Produce request without its records, made while it comes: for one that will be denied as a whole.

Pure. What is kept of it is what an answer needs; records are counted off and let go. The outline is a request itself,
of the same version and header, whose partitions have null for records: a handler answers it as it would have
answered the whole.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Final

from penstock_kafka.wire.apis import FLEXIBLE_SINCE, PRODUCE_VERSION_MIN, ApiKey
from penstock_kafka.wire.primitives import DATA_ITEMS_MAX, Buffer, Malformed, uvarint

OUTLINE_BYTES_MAX: Final = 4 * 1024 * 1024
"""An outline that is larger is no request that anybody sends."""
_FLEXIBLE: Final = FLEXIBLE_SINCE[ApiKey.PRODUCE]
_TOPIC_IDS_SINCE: Final = 13
_HEADER: Final = struct.Struct(">hhih")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_UVARINT_BYTES_MAX: Final = 5

_Walk = Generator[int, bytes, None]
"""Asks for so many bytes, gets them; asks for -n to have n bytes counted off, and gets nothing."""


class ProduceOutline:
    """Fed with the bytes of one frame (without its length), in pieces of any size."""

    def __init__(self, length: int) -> None:
        """`length` is the frame's."""
        self._left = length
        self._kept = bytearray()
        self._have = bytearray()
        self._walk = self._request()
        self._over = False
        self._want = next(self._walk)

    def feed(self, data: Buffer) -> None:
        """The next bytes. Raises Malformed when this is no Produce request."""
        pos, size = 0, len(data)
        self._left -= size
        while pos < size and not self._over:
            if self._want < 0:
                skipped = min(-self._want, size - pos)
                pos += skipped
                self._want += skipped
                if not self._want:
                    self._go_on(b"")
                continue
            taken = min(self._want - len(self._have), size - pos)
            self._have += data[pos : pos + taken]
            pos += taken
            if len(self._have) == self._want:
                have, self._have = bytes(self._have), bytearray()
                self._go_on(have)
        if self._over and pos < size:
            raise Malformed(f"{size - pos + self._left} bytes after a Produce request")
        if not self._left and not self._over:
            raise Malformed("a Produce request ends in the middle")

    def _go_on(self, have: bytes) -> None:
        try:
            self._want = self._walk.send(have)
            while not self._want:
                self._want = self._walk.send(b"")
        except StopIteration:
            self._over = True

    def take(self) -> bytearray:
        """The outline, once all of the frame was fed."""
        return self._kept

    # The walk

    def _keep(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > OUTLINE_BYTES_MAX:
            raise Malformed(f"a Produce request with more than {OUTLINE_BYTES_MAX} bytes beside its records")

    def _take(self, size: int) -> _Walk:
        if size > OUTLINE_BYTES_MAX:
            raise Malformed(f"{size} bytes in the head of a Produce request")
        if size:
            self._keep((yield size))

    def _uvarint(self) -> Generator[int, bytes, int]:
        value = 0
        for shift in range(0, 7 * _UVARINT_BYTES_MAX, 7):
            byte = yield 1
            value |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return value
        raise Malformed("a number of more than 5 bytes")

    def _count(self, flexible: bool, *, keep: bool = True) -> Generator[int, bytes, int]:
        """A length or count; -1 for null."""
        if not flexible:
            raw = yield 4
            if keep:
                self._keep(raw)
            found: int = _INT32.unpack(raw)[0]
        else:
            number = yield from self._uvarint()
            if keep:
                self._keep(uvarint(number))
            found = number - 1
        if found < -1:
            raise Malformed(f"a length of {found}")
        return found

    def _tags(self) -> _Walk:
        count = yield from self._uvarint()
        self._keep(uvarint(count))
        for _ in range(count):
            tag = yield from self._uvarint()
            size = yield from self._uvarint()
            self._keep(uvarint(tag) + uvarint(size))
            yield from self._take(size)

    def _string(self, flexible: bool) -> _Walk:
        if flexible:
            size = yield from self._count(True)
        else:
            raw = yield 2
            self._keep(raw)
            size = _INT16.unpack(raw)[0]
        yield from self._take(max(size, 0))

    def _request(self) -> _Walk:
        head = yield _HEADER.size
        api_key, version, _, id_bytes = _HEADER.unpack(head)
        if api_key != ApiKey.PRODUCE or version < PRODUCE_VERSION_MIN:
            raise Malformed(
                f"version {version} of api key {api_key} is no Produce request with records apart"
            )
        self._keep(head)
        flexible = version >= _FLEXIBLE
        yield from self._take(max(id_bytes, 0))
        if flexible:
            yield from self._tags()
        yield from self._string(flexible)
        yield from self._take(6)  # acks, timeout
        items = 0
        topics = yield from self._count(flexible)
        for _ in range(topics):
            if version >= _TOPIC_IDS_SINCE:
                yield from self._take(16)
            else:
                yield from self._string(flexible)
            partitions = yield from self._count(flexible)
            items += 1 + max(partitions, 0)
            if items > DATA_ITEMS_MAX:
                raise Malformed(f"more than {DATA_ITEMS_MAX} items")
            for _ in range(partitions):
                yield from self._take(4)
                records = yield from self._count(flexible, keep=False)
                self._keep(b"\x00" if flexible else b"\xff\xff\xff\xff")
                if records > 0:
                    yield -records
                if flexible:
                    yield from self._tags()
            if flexible:
                yield from self._tags()
        if flexible:
            yield from self._tags()
