"""Newest offset by key, in memory of a fixed size (Kafka: SkimpyOffsetMap).

Keys are told apart by a digest of 16 bytes, so a key of any length costs 24 bytes and two
different keys are taken for one with a chance of 2^-128 per pair. The digest is BLAKE2b, not
Kafka's MD5: nobody can make two keys collide on purpose and so have another's record removed.

Theory: open addressing with linear probing, at most 90 % full. One flat bytearray, because a
dict of bytes and ints takes about 200 bytes a key and grows in leaps.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Final

_DIGEST_BYTES: Final = 16
SLOT_BYTES: Final = 24
"""Memory of one key."""
_LOAD: Final = 0.9
_EMPTY: Final = bytes(_DIGEST_BYTES)
_OFFSET: Final = struct.Struct("<q")

NOT_FOUND: Final = -1


class OffsetMap:
    """See the module. Holds `capacity` keys."""

    __slots__ = ("_end", "_slots", "_table", "capacity", "count")

    def __init__(self, memory_bytes: int) -> None:
        self._slots = max(memory_bytes // SLOT_BYTES, 2)
        self._end = self._slots * SLOT_BYTES
        self._table = bytearray(self._end)
        self.capacity = max(int(self._slots * _LOAD), 1)
        self.count = 0

    def put(self, key: bytes, offset: int) -> bool:
        """Note that `key` is at `offset` too, which is later than any before. False: full, not noted."""
        digest = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        table, end = self._table, self._end
        at = int.from_bytes(digest[:8], "little") % self._slots * SLOT_BYTES
        while True:
            found = table[at : at + _DIGEST_BYTES]
            if found == digest:
                break
            if found == _EMPTY:
                if self.count >= self.capacity:
                    return False
                table[at : at + _DIGEST_BYTES] = digest
                self.count += 1
                break
            at += SLOT_BYTES
            if at == end:
                at = 0
        _OFFSET.pack_into(table, at + _DIGEST_BYTES, offset)
        return True

    def get(self, key: bytes) -> int:
        """The offset noted last, NOT_FOUND when none was."""
        digest = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        table, end = self._table, self._end
        at = int.from_bytes(digest[:8], "little") % self._slots * SLOT_BYTES
        while True:
            found = table[at : at + _DIGEST_BYTES]
            if found == digest:
                offset: int = _OFFSET.unpack_from(table, at + _DIGEST_BYTES)[0]
                return offset
            if found == _EMPTY:
                return NOT_FOUND
            at += SLOT_BYTES
            if at == end:
                at = 0
