"""The bytes of the file that keeps events. Pure: bytes in, bytes out.

    file  = frame*
    frame = magic(u32) length(u32) version(u64) gap(u64) flags(u8) crc(u32) body

The body is a serialized ReadEventsResponse. `version` is the one up to which the file tells all, or of which it tells a
part (flag MORE). `gap`, in ms since 1970, is not 0 where what was before it is not known. The file is never synced:
what a crash leaves of the last frames is cut off, and the journal gives their events again.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from penstock_proto.v1 import operations_pb2 as api

_HEAD: Final = struct.Struct("<IIQQBI")
_CRC: Final = struct.Struct("<I")
_MAGIC: Final = 0xE7E27106
_MORE: Final = 1
BODY_BYTES_MAX: Final = 16 * 1024 * 1024


class Frame(NamedTuple):
    """One frame; the events are read from it when they are needed."""

    version: int
    gap_ms: int
    more: bool
    body: bytes

    def events(self) -> Sequence[api.ClusterEvent]:
        """What it holds; nothing where that is of a format which this build cannot read."""
        try:
            return api.ReadEventsResponse.FromString(self.body).events
        except DecodeError:
            return ()


def frame(events: Sequence[api.ClusterEvent], version: int, *, gap_ms: int = 0, more: bool = False) -> bytes:
    """The bytes of one frame."""
    body = api.ReadEventsResponse(events=events).SerializeToString()
    head = _HEAD.pack(_MAGIC, len(body), version, gap_ms, _MORE if more else 0, 0)[: -_CRC.size]
    return b"".join((head, _CRC.pack(zlib.crc32(body, zlib.crc32(head))), body))


def size_bytes(one: Frame) -> int:
    """How much of a file it takes."""
    return _HEAD.size + len(one.body)


def frames(data: bytes | memoryview) -> tuple[list[Frame], int]:
    """(frames, where the good ones end): what follows is torn or damaged, and is of no use."""
    found: list[Frame] = []
    view, at = memoryview(data), 0
    while at + _HEAD.size <= len(view):
        magic, length, version, gap_ms, flags, crc = _HEAD.unpack_from(view, at)
        start = at + _HEAD.size
        if magic != _MAGIC or length > BODY_BYTES_MAX or start + length > len(view):
            break
        body = bytes(view[start : start + length])
        if zlib.crc32(body, zlib.crc32(view[at : start - _CRC.size])) != crc:
            break
        found.append(Frame(version, gap_ms, bool(flags & _MORE), body))
        at = start + length
    return found, at
