"""The bytes of a snapshot file. Pure but for reading and writing the parts it is given.

    file   = magic(8) version(u32) chunk*
    chunk  = length(u32) crc(u32) body
    first chunk  = SnapshotHead: the last two log entries that the image holds, its version
    other chunks = MetadataSnapshotChunk of at most CHUNK_RECORDS records
    end    = chunk of length 0, whose crc field is the running CRC of all chunk CRCs

Log entries keep their commands, because a leader may still have to send the last one.
A file that does not check out whole is refused: an empty or half image must never lead.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from penstock_controller.quorum.commands import NUMBER_END, find_poison
from penstock_controller.quorum.files import DamagedFile
from penstock_controller.quorum.journal_format import Entry
from penstock_core.metadata import ImageBuilder, MetadataImage
from penstock_core.metadata.image import NewerLevel
from penstock_proto.v1 import metadata_pb2 as pb

_MAGIC = b"PENSTSNP"
_VERSION = 1
_START = struct.Struct("<8sI")
_CHUNK = struct.Struct("<II")
_HEAD = struct.Struct("<QQQQQII")

CHUNK_RECORDS = 50
"""Records encoded between two chances for other threads to run (well under 1 ms)."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An image with its place in the log."""

    previous: Entry
    last: Entry
    image: MetadataImage

    @property
    def last_index(self) -> int:
        return self.last[1]


def encode(snapshot: Snapshot) -> Iterator[bytes]:
    """Parts of the file, each made in well under a millisecond."""
    yield _START.pack(_MAGIC, _VERSION)
    running = 0

    def chunk(body: bytes) -> bytes:
        nonlocal running
        crc = zlib.crc32(body)
        running = zlib.crc32(struct.pack("<I", crc), running)
        return _CHUNK.pack(len(body), crc) + body

    (command0, index0, term0), (command1, index1, term1) = snapshot.previous, snapshot.last
    head = _HEAD.pack(index0, term0, index1, term1, snapshot.image.version, len(command0), len(command1))
    yield chunk(head + command0 + command1)
    records: list[pb.MetadataRecord] = []
    for record in snapshot.image.to_records():
        records.append(record)
        if len(records) == CHUNK_RECORDS:
            yield chunk(pb.MetadataSnapshotChunk(records=records).SerializeToString())
            records = []
    if records:
        yield chunk(pb.MetadataSnapshotChunk(records=records).SerializeToString())
    yield _CHUNK.pack(0, running)


def decode(data: bytes, name: str, breathe: Callable[[], None] = lambda: None) -> Snapshot:
    """The snapshot that a whole file holds; raises DamagedFile otherwise.

    `breathe` is called between steps of well under a millisecond.
    """
    mend = "restore this controller's data directory, or wipe it so that it copies its peers"
    if len(data) < _START.size or _START.unpack_from(data)[0] != _MAGIC:
        raise DamagedFile(f"{name}: not a Penstock snapshot; {mend}")
    if _START.unpack_from(data)[1] != _VERSION:
        raise DamagedFile(f"{name}: snapshot of another format version; start the version that wrote it")
    bodies = _chunks(data, name, mend, breathe)
    if not bodies:
        raise DamagedFile(f"{name}: snapshot has no head; {mend}")
    try:
        previous, last, version = _head(bodies[0])
        builder = ImageBuilder(MetadataImage())
        for body in bodies[1:]:
            for record in pb.MetadataSnapshotChunk.FromString(bytes(body)).records:
                builder.replay(record)
            breathe()
        return Snapshot(previous, last, builder.finish(version))
    except NewerLevel as error:
        raise DamagedFile(f"{name}: {error}") from None
    except (struct.error, DecodeError) as error:
        # Sound checksums over what is no snapshot: what a broken peer made.
        raise DamagedFile(f"{name}: snapshot holds what nobody writes ({error}); {mend}") from None


def _head(head: memoryview) -> tuple[Entry, Entry, int]:
    """The last two entries and the image's version. Raises struct.error."""
    index0, term0, index1, term1, version, length0, length1 = _HEAD.unpack_from(head)
    at = _HEAD.size
    command0, command1 = struct.unpack_from(f"{length0}s{length1}s", head, at)
    previous, last = (command0, index0, term0), (command1, index1, term1)
    if index1 != index0 + 1 or term0 > term1 or version >= NUMBER_END or find_poison([previous, last]):
        raise struct.error("its last entries are none")
    return previous, last, version


def _chunks(data: bytes, name: str, mend: str, breathe: Callable[[], None]) -> list[memoryview]:
    view = memoryview(data)
    bodies: list[memoryview] = []
    offset, running = _START.size, 0
    while True:
        if offset + _CHUNK.size > len(data):
            raise DamagedFile(f"{name}: snapshot is cut short; {mend}")
        length, crc = _CHUNK.unpack_from(data, offset)
        offset += _CHUNK.size
        if length == 0:
            if crc != running or offset != len(data):
                raise DamagedFile(f"{name}: snapshot's end does not match; {mend}")
            return bodies
        body = view[offset : offset + length]
        if len(body) != length or zlib.crc32(body) != crc:
            raise DamagedFile(f"{name}: snapshot damaged at byte {offset}; {mend}")
        running = zlib.crc32(struct.pack("<I", crc), running)
        bodies.append(body)
        offset += length
        breathe()
