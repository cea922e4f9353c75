"""The file that `penstock cluster export` writes: all metadata of one version. Pure: records in, bytes out, and back.

    file    = magic(8) format(u32) head_bytes(u32) head record* end
    head    = JSON, UTF-8: see `BackupHead`
    record  = bytes(u32, not 0) MetadataRecord
    end     = 0(u32) count(u64) crc(u32)

All numbers are little endian. The CRC is zlib's CRC-32 (as in the controllers' own files) over everything before it.
A file that does not check out whole is refused: half of the metadata would pass for a cluster with fewer topics.

Credentials and the cluster's secrets are left out unless they are asked for, and the head says which it was.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from google.protobuf.message import DecodeError

from penstock_core.errors import InvariantBroken
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata.image import ImageBuilder, MetadataImage
from penstock_proto.v1 import metadata_pb2 as pb

MAGIC: Final = b"PENSTBAK"
FORMAT_VERSION: Final = 1
SLICE_RECORDS: Final = 50
"""Records encoded between two chances for others to run (well under 1 ms)."""
SECRET_KINDS: Final = frozenset({"user_credential", "cluster_secret"})
"""Records that are written only on demand."""

_START = struct.Struct("<8sII")
_LENGTH = struct.Struct("<I")
_END = struct.Struct("<IQI")
_HEAD_BYTES_MAX = 64 * 1024


class BadBackup(ValueError):
    """A file is no backup that can be read. One line: which file, what is wrong, what to do."""


@dataclass(frozen=True, slots=True)
class BackupHead:
    """What a backup is of."""

    cluster_id: str
    """In hex."""
    metadata_version: int
    metadata_level: int
    raft_term: int
    """The highest term that was known; 0 when none was."""
    time_ms: int
    """When it was made, ms since 1970."""
    secrets: bool
    """Whether users' credentials and the cluster's secrets are in it."""
    raft_index: int = 0
    """Last entry of the log in an offline export; 0 when it came through a gateway."""
    controller_id: int = 0
    """Whose directory an offline export was of; 0 when it came through a gateway."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that was read."""

    head: BackupHead
    image: MetadataImage


def encode(image: MetadataImage, head: BackupHead) -> Iterator[bytes]:
    """The file in parts, each made in well under a millisecond."""
    text = json.dumps(asdict(head), separators=(",", ":")).encode()
    first = _START.pack(MAGIC, FORMAT_VERSION, len(text)) + text
    yield first
    crc, count, part = zlib.crc32(first), 0, bytearray()
    for looked_at, record in enumerate(image.to_records(), start=1):
        if head.secrets or record.WhichOneof("record") not in SECRET_KINDS:
            data = record.SerializeToString()
            part += _LENGTH.pack(len(data)) + data
            count += 1
        if looked_at % SLICE_RECORDS == 0:
            crc = zlib.crc32(part, crc)
            yield bytes(part)
            part = bytearray()
    part += _END.pack(0, count, 0)[:-4]
    yield bytes(part) + _LENGTH.pack(zlib.crc32(part, crc))


def decode(data: bytes, name: str) -> Backup:
    """The backup that a whole file holds. `name` is for words. Raises BadBackup."""
    head, at = _head(data, name)
    if len(data) < at + _END.size:
        raise BadBackup(f"{name}: the backup is cut short; take another copy of it")
    zero, count, crc = _END.unpack_from(data, len(data) - _END.size)
    if zlib.crc32(memoryview(data)[:-4]) != crc or zero:
        raise BadBackup(f"{name}: the backup is cut short or damaged; take another copy of it")
    builder, end = ImageBuilder(MetadataImage()), len(data) - _END.size
    try:
        found = 0
        while at < end:
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            record = pb.MetadataRecord.FromString(data[at : at + length])
            if record.WhichOneof("record") is None:
                raise BadBackup(
                    f"{name}: the backup holds records of a newer version; use that version's penstock"
                )
            builder.replay(record)
            at += length
            found += 1
    except (struct.error, DecodeError, InvariantBroken) as error:
        raise BadBackup(
            f"{name}: the backup holds what nobody writes ({error}); take another copy of it"
        ) from None
    if at != end or found != count:
        raise BadBackup(f"{name}: the backup's end does not match; take another copy of it")
    image = builder.finish(head.metadata_version)
    if image.cluster_id.hex() != head.cluster_id:
        raise BadBackup(
            f"{name}: the backup's head names another cluster than its records; take another copy of it"
        )
    return Backup(head, image)


def _head(data: bytes, name: str) -> tuple[BackupHead, int]:
    """The head, and where the records begin."""
    if len(data) < _START.size or not data.startswith(MAGIC):
        raise BadBackup(f"{name}: this is no file of `penstock cluster export`; give one")
    _, version, length = _START.unpack_from(data)
    if version != FORMAT_VERSION:
        raise BadBackup(
            f"{name}: the backup has format {version}, this version reads {FORMAT_VERSION}; "
            "use the penstock that wrote it"
        )
    end = _START.size + length
    if length > _HEAD_BYTES_MAX or len(data) < end:
        raise BadBackup(f"{name}: the backup is cut short; take another copy of it")
    try:
        values = json.loads(data[_START.size : end])
        head = BackupHead(**{key: values[key] for key in BackupHead.__slots__})
        numbers = (head.metadata_version, head.metadata_level, head.raft_term, head.time_ms)
        is_good = len(bytes.fromhex(head.cluster_id)) == 16 and all(
            type(n) is int and n >= 0 for n in numbers
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        is_good = False
    if not is_good:
        raise BadBackup(f"{name}: the backup's head is damaged; take another copy of it")
    if head.metadata_level > FEATURE_LEVEL:
        raise BadBackup(
            f"{name}: the backup is of metadata.level {head.metadata_level}, this version knows {FEATURE_LEVEL}; "
            "use the version of the cluster that it is of"
        )
    return head, end


__all__ = ["Backup", "BackupHead", "BadBackup", "decode", "encode"]
