"""Files that a role finds on its disk: the log's, and the controllers'."""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from fuzz.peer_targets import may_be_written, metadata_records
from fuzz.record_targets import NOW_MS, batches
from fuzz.target import Target, expect
from penstock_controller.quorum import journal_format, snapshot_format
from penstock_controller.quorum.files import DamagedFile
from penstock_controller.quorum.identity import PEERS_FILE, PeerMemory
from penstock_core.errors import InvariantBroken, PenstockError
from penstock_core.metadata import MetadataImage
from penstock_kafka.records.batch import read_header
from penstock_kafka.records.crc import crc32c
from penstock_kafka.records.markers import Marker, build_marker, read_marker
from penstock_proto.v1 import metadata_pb2
from penstock_storage_node.log import aborted_index, checkpoints, index
from penstock_storage_node.log.epochs import LeaderEpochs
from penstock_storage_node.log.producer_state import CorruptSnapshot, ProducerState
from penstock_storage_node.log.transactions import AbortedTransaction

# -- the log -------------------------------------------------------------------------------------


def _offset_index(data: bytes) -> None:
    head = index.decode_offset_entries(data)
    whole = len(data) - len(data) % index.OFFSET_ENTRY_BYTES
    expect(index.encode_offset_entries(*head) == data[:whole], "whole entries are read back")
    index.is_head_sane(head, 1 << 20)
    heads = index.IndexHeads()
    heads.put("x", head)
    found = index.OffsetIndex("x", 100, heads, head_count=len(head.offsets))
    found.floor_offset(1000)
    found.below(4096, 5000)


def _offset_index_seeds() -> Iterator[bytes]:
    yield b""
    yield index.encode_offset_entries(array("I", range(5, 100, 7)), array("I", range(0, 70_000, 5000)))


def _producer_snapshot(data: bytes) -> None:
    body = data[1:]
    if data[:1] < b"\x80":
        # With the CRC put right, so that what it covers is seen too.
        body = body[:2] + crc32c(body[6:]).to_bytes(4, "big") + body[6:]
    state = ProducerState()
    state.load_snapshot(body, NOW_MS)
    expect(len(state) * 46 <= len(body), "entries are no more than there are bytes for")
    _ = state.first_open_transaction
    state.last_data_offsets()
    again = ProducerState()
    again.load_snapshot(state.encode_snapshot(), NOW_MS)
    expect(len(again) == len(state), "a snapshot is read back")


def _producer_seeds() -> Iterator[bytes]:
    state = ProducerState()
    yield b"\x00" + state.encode_snapshot()
    for number, batch in enumerate(batches()):
        info = read_header(batch)
        info.producer_id, info.base_sequence = number, 5
        state.update(info, 100 * number, NOW_MS)
        if number < 3:
            yield b"\xff" + state.encode_snapshot()
    yield b"\x00" + state.encode_snapshot()


def _aborted_index(data: bytes) -> None:
    rows = aborted_index.decode_entries(data, 5, 1000)
    expect(aborted_index.encode_entries(rows) == data, "whole entries are read back")
    markers = [row.last_offset for row in rows]
    expect(markers == sorted(set(markers)) and all(5 <= marker < 1000 for marker in markers), "markers rise")


def _aborted_seeds() -> Iterator[bytes]:
    yield b""
    rows = (
        AbortedTransaction(7, 3, 9, 4),
        AbortedTransaction(8, 4, 12, 13),
        AbortedTransaction(7, 10, 900, 20),
    )
    yield aborted_index.encode_entries(rows)


def _marker(data: bytes) -> None:
    info = read_header(data)
    if info.size_bytes != len(data):
        return
    marker = read_marker(data, info)
    if marker is not None:
        again = build_marker(info.producer_id, info.producer_epoch, marker, 5)
        expect(read_marker(again, read_header(again)) == marker, "a marker is read back")


def _marker_seeds() -> Iterator[bytes]:
    for commits in (True, False):
        yield build_marker(7, 2, Marker(commits, 9), NOW_MS)


def _epochs(data: bytes) -> None:
    entries = checkpoints.decode_epochs(data)
    expect(checkpoints.decode_epochs(checkpoints.encode_epochs(entries)) == entries, "read back")
    epochs = LeaderEpochs(entries)
    epochs.end_offset_for(3, 1000)
    kept = epochs.entries
    expect(kept == sorted(kept), "epochs and offsets rise")


def _offsets(data: bytes) -> None:
    offsets = checkpoints.decode_offsets(data, "checkpoint")
    if all(topic.isascii() and " " not in topic for topic, _ in offsets):
        again = checkpoints.decode_offsets(checkpoints.encode_offsets(offsets), "checkpoint")
        expect(again == offsets, "read back")


def _partition_metadata(data: bytes) -> None:
    topic_id = checkpoints.decode_partition_metadata(data)
    again = checkpoints.encode_partition_metadata(topic_id)
    expect(checkpoints.decode_partition_metadata(again) == topic_id, "read back")


def _properties(data: bytes) -> None:
    values = checkpoints.decode_properties(data)
    if "cluster.id" in values:
        checkpoints.decode_uuid(values["cluster.id"])


def _properties_seeds() -> Iterator[bytes]:
    values = {"version": "1", "cluster.id": checkpoints.encode_uuid(b"c" * 16), "node.id": "3"}
    yield checkpoints.encode_properties(values)
    yield b"! comment\n\nkey = a\\:b\\=c\r\n"


# -- the controllers -----------------------------------------------------------------------------


def _journal(data: bytes) -> None:
    """A journal as it is, or (first byte odd) the operations of one sound block, so that CRCs do not hide them."""
    if not data:
        return
    if data[0] & 1:
        content = journal_format.file_header() + journal_format.block(1, data[1:])
        found = journal_format.recover(content, "journal")
        expect(found.end == len(content), "a sound block is whole")
    else:
        found = journal_format.recover(data[1:], "journal")
        expect(found.end <= len(data) - 1, "good data end inside the file")
    size = sum(len(command) for command, _, _ in found.entries)
    expect(size <= len(data), "commands are no more than the file has")
    numbers = [number for _, number, _ in found.entries]
    expect(not numbers or numbers == list(range(numbers[0], numbers[0] + len(numbers))), "in order")


def _journal_seeds() -> Iterator[bytes]:
    entry, block = journal_format.entry_op, journal_format.block
    first = entry(b"one", 1, 1) + entry(b"two" * 30, 2, 1)
    second = journal_format.truncate_op(2) + entry(b"other", 2, 2)
    whole = journal_format.file_header() + block(1, first) + block(2, second)
    yield b"\x00" + whole
    yield b"\x00" + whole[:-9]
    yield b"\x00" + whole[:-40] + bytes(40)
    yield b"\x01" + first
    yield b"\x01" + first + second


_CHUNK: Final = struct.Struct("<II")


def _snapshot(data: bytes) -> None:
    """A snapshot as it is, or (first byte odd) made of sound chunks with these bodies, each after its length."""
    if not data:
        return
    content = data[1:]
    if data[0] & 1:
        out, running, rest = [snapshot_format._START.pack(b"PENSTSNP", 1)], 0, content
        while len(rest) > 2:
            size = int.from_bytes(rest[:2], "little")
            body, rest = rest[2 : 2 + size], rest[2 + size :]
            if body:
                crc = zlib.crc32(body)
                running = zlib.crc32(struct.pack("<I", crc), running)
                out.append(_CHUNK.pack(len(body), crc) + body)
        content = b"".join((*out, _CHUNK.pack(0, running)))
    found = snapshot_format.decode(content, "snapshot")
    if not may_be_written(found.image):
        return
    again = snapshot_format.decode(b"".join(snapshot_format.encode(found)), "snapshot")
    expect(again == found, "a snapshot is read back")


def _snapshot_seeds() -> Iterator[bytes]:
    image = MetadataImage.from_records(metadata_records()[:-3], 77)
    command = metadata_pb2.MetadataCommand(base_version=8, records=metadata_records()[:2])
    last = b"\0" + command.SerializeToString(), 10, 3
    snapshot = snapshot_format.Snapshot((b"\1", 9, 2), last, image)
    whole = b"".join(snapshot_format.encode(snapshot))
    yield b"\x00" + whole
    position, parts = snapshot_format._START.size, []
    while (size := _CHUNK.unpack_from(whole, position)[0]) > 0:
        position += _CHUNK.size
        parts.append(size.to_bytes(2, "little") + whole[position : position + size])
        position += size
    yield b"\x01" + b"".join(parts)
    yield b"\x01" + parts[0]


_DIRECTORY: Final[list[TemporaryDirectory[str]]] = []


def _peers(data: bytes) -> None:
    if not _DIRECTORY:
        _DIRECTORY.append(TemporaryDirectory(prefix="penstock-fuzz-"))
    directory = Path(_DIRECTORY[0].name)
    (directory / PEERS_FILE).write_bytes(data)
    memory = PeerMemory(directory, 1, b"d" * 16)
    memory.directory_of(1)
    memory.is_former(1, b"d" * 16)


def _peers_seeds() -> Iterator[bytes]:
    yield json.dumps({"joined": True, "directories": {"1": "ab" * 16}, "former": {"1": ["cd" * 16]}}).encode()
    yield json.dumps({"joined": False, "directories": {}}).encode()


REFUSED: Final = (PenstockError,)
_NUMBERS: Final = (b"0\n", b"-1", b"9223372036854775807", b"1_0", b" ", b"\n", b"\r", b"\x1c")

TARGETS: Final = [
    Target("log.offset_index", _offset_index, (), _offset_index_seeds, share=15),
    Target("log.aborted_index", _aborted_index, (aborted_index.DamagedIndex,), _aborted_seeds, share=15),
    Target("log.marker", _marker, REFUSED, _marker_seeds, share=15, input_bytes_max=512),
    Target("log.producers", _producer_snapshot, (CorruptSnapshot,), _producer_seeds, share=20),
    Target(
        "log.epochs",
        _epochs,
        REFUSED,
        lambda: [checkpoints.encode_epochs([(0, 0), (3, 70), (4, 1 << 40)])],
        share=15,
        words=_NUMBERS,
        input_bytes_max=512,
    ),
    Target(
        "log.checkpoint",
        _offsets,
        REFUSED,
        lambda: [checkpoints.encode_offsets({("t", 0): 5, ("orders.eu-1", 17): 1 << 40})],
        share=15,
        words=_NUMBERS,
        input_bytes_max=512,
    ),
    Target(
        "log.partition_metadata",
        _partition_metadata,
        REFUSED,
        lambda: [checkpoints.encode_partition_metadata(bytes(range(16)))],
        share=15,
        words=(b"version: ", b"topic_id: "),
        input_bytes_max=256,
    ),
    Target("log.properties", _properties, (ValueError,), _properties_seeds, share=15, input_bytes_max=512),
    Target("controller.journal", _journal, (DamagedFile,), _journal_seeds, share=30, input_bytes_max=2048),
    Target(
        "controller.snapshot",
        _snapshot,
        # The second says that a newer version wrote it.
        (DamagedFile, InvariantBroken),
        _snapshot_seeds,
        share=15,
        input_bytes_max=2048,
    ),
    Target("controller.peers", _peers, (DamagedFile,), _peers_seeds, share=3, input_bytes_max=512),
]
