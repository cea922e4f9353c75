"""The bytes of the Raft journal, and their exact recovery. Pure: bytes in, bytes out.

    file    = header, block*
    header  = magic(8) version(u32) crc(u32)
    block   = magic(u32) body_bytes(u32) sequence(u64) crc(u32) body body_crc(u32) END(u32)
    body    = (ENTRY index(u64) term(u64) length(u32) command | TRUNCATE index(u64))*

One block is one write followed by one fdatasync, and a block is begun only after the
one before it was synced. The file is only ever appended to: cutting the log's tail is
an operation of its own, so no byte that was synced is ever written again. Hence:

- the last block may be torn (cut short, or with zeros where sectors never reached the
  disk): it was never acknowledged, recovery drops it, the prefix before it is exact;
- any other fault (a bad block with a good one behind it, a full-length block with a
  wrong checksum and no hole of zeros) is damage to acknowledged entries: recovery
  refuses, because a voter with a shortened log could elect a leader without them.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from penstock_controller.quorum.files import DamagedFile

_FILE = struct.Struct("<8sII")
_BLOCK = struct.Struct("<IIQI")
_TRAILER = struct.Struct("<II")
_ENTRY = struct.Struct("<BQQI")
_TRUNCATE = struct.Struct("<BQ")

_FILE_MAGIC = b"PENSTJNL"
_FILE_VERSION = 1
_BLOCK_MAGIC = 0xB10C5EED
_BLOCK_MAGIC_BYTES = struct.pack("<I", _BLOCK_MAGIC)
# No byte of it is zero, so that a zeroed tail never looks like a finished block.
_END = 0xA55AC33C
_OP_ENTRY = 1
_OP_TRUNCATE = 2
_SECTOR_BYTES = 512

HEADER_BYTES = _FILE.size

Entry = tuple[bytes, int, int]
"""(command, index, term), the shape that PySyncObj wants."""


class Recovered(NamedTuple):
    """What a journal file holds."""

    entries: list[Entry]
    # Where the next block goes; bytes after it are a torn tail.
    end: int
    # Sequence of the next block.
    next_sequence: int


def file_header() -> bytes:
    crc = zlib.crc32(_FILE_MAGIC + struct.pack("<I", _FILE_VERSION))
    return _FILE.pack(_FILE_MAGIC, _FILE_VERSION, crc)


def entry_op(command: bytes, index: int, term: int) -> bytes:
    return _ENTRY.pack(_OP_ENTRY, index, term, len(command)) + command


def truncate_op(index: int) -> bytes:
    """Drops every entry at or above `index`."""
    return _TRUNCATE.pack(_OP_TRUNCATE, index)


def block(sequence: int, body: bytes | bytearray) -> bytes:
    head = struct.pack("<IIQ", _BLOCK_MAGIC, len(body), sequence)
    return b"".join(
        (head, struct.pack("<I", zlib.crc32(head)), body, _TRAILER.pack(zlib.crc32(body), _END)),
    )


def recover(data: bytes, name: str) -> Recovered:
    """Entries of a journal file, up to a torn tail.

    Raises DamagedFile when synced bytes are not what was written.
    """
    if data[:HEADER_BYTES] != file_header():
        if len(data) >= HEADER_BYTES and data[:8] == _FILE_MAGIC:
            raise DamagedFile(f"{name}: journal header is of another format version or damaged")
        raise DamagedFile(f"{name}: not a Penstock controller journal")
    entries: list[Entry] = []
    offset, sequence = HEADER_BYTES, 1
    while offset < len(data):
        body = _read_block(data, offset, sequence)
        if body is None:
            _check_torn(data, offset, sequence, name)
            break
        try:
            _replay(body, entries, name)
        except struct.error:
            raise DamagedFile(f"{name}: an operation at byte {offset} reaches past its block") from None
        offset += _BLOCK.size + len(body) + _TRAILER.size
        sequence += 1
    return Recovered(entries, offset, sequence)


def _read_head(data: bytes, offset: int) -> tuple[int, int] | None:
    """(body length, sequence) of the block header at `offset`, None when it isn't one."""
    if offset + _BLOCK.size > len(data):
        return None
    magic, length, sequence, crc = _BLOCK.unpack_from(data, offset)
    if magic != _BLOCK_MAGIC or crc != zlib.crc32(data[offset : offset + _BLOCK.size - 4]):
        return None
    return length, sequence


def _read_block(data: bytes, offset: int, sequence: int) -> memoryview | None:
    head = _read_head(data, offset)
    if head is None or head[1] != sequence:
        return None
    start = offset + _BLOCK.size
    end = start + head[0]
    if end + _TRAILER.size > len(data):
        return None
    body = memoryview(data)[start:end]
    crc, mark = _TRAILER.unpack_from(data, end)
    return body if mark == _END and crc == zlib.crc32(body) else None


def _check_torn(data: bytes, offset: int, sequence: int, name: str) -> None:
    """Return when the bytes from `offset` on can be an unsynced last block; else raise."""
    mend = "restore this controller's data directory, or wipe it so that it copies its peers"
    probe = data.find(_BLOCK_MAGIC_BYTES, offset + 1)
    while probe != -1:
        head = _read_head(data, probe)
        if head is not None and head[1] > sequence and _read_block(data, probe, head[1]) is not None:
            raise DamagedFile(f"{name}: damaged at byte {offset}, good data follows at {probe}; {mend}")
        probe = data.find(_BLOCK_MAGIC_BYTES, probe + 1)
    head = _read_head(data, offset)
    if head is None:
        # The header itself: cut, or zero from some byte of it on.
        rest = data[offset:]
        torn = len(rest) < _BLOCK.size or rest[_BLOCK.size - 1 :].count(0) == len(rest) - _BLOCK.size + 1
        torn = torn or _has_zero_sector(data, offset, len(data))
    else:
        end = offset + _BLOCK.size + head[0] + _TRAILER.size
        torn = end > len(data) or data[end - 1] == 0 or _has_zero_sector(data, offset, end)
    if not torn:
        raise DamagedFile(f"{name}: damaged at byte {offset} (checksum does not match); {mend}")


def _has_zero_sector(data: bytes, start: int, end: int) -> bool:
    first = -(-start // _SECTOR_BYTES) * _SECTOR_BYTES
    empty = bytes(_SECTOR_BYTES)
    # The sector that the block shares with the one before it may be the one that never reached the disk.
    if start < first <= end and not any(data[start:first]):
        return True
    return any(
        data[at : at + _SECTOR_BYTES] == empty for at in range(first, end - _SECTOR_BYTES + 1, _SECTOR_BYTES)
    )


def _replay(body: memoryview, entries: list[Entry], name: str) -> None:
    offset = 0
    while offset < len(body):
        if body[offset] == _OP_ENTRY:
            _, index, term, length = _ENTRY.unpack_from(body, offset)
            offset += _ENTRY.size
            if length > len(body) - offset:
                raise DamagedFile(f"{name}: command of entry {index} reaches past its block")
            if entries and index != entries[-1][1] + 1:
                raise DamagedFile(f"{name}: entry {index} follows {entries[-1][1]}")
            entries.append((bytes(body[offset : offset + length]), index, term))
            offset += length
        elif body[offset] == _OP_TRUNCATE:
            _, index = _TRUNCATE.unpack_from(body, offset)
            offset += _TRUNCATE.size
            if entries:
                del entries[max(0, index - entries[0][1]) :]
        else:
            raise DamagedFile(
                f"{name}: operation {body[offset]} is of a newer format; upgrade this controller"
            )
