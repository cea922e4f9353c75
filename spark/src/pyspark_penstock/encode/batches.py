"""Records of one partition to batches: where to cut, compression, the header with its CRC-32C.

Source of the layout: Kafka's DefaultRecordBatch. A batch has a producer's id only where it belongs to a stage of
exactly-once writing; its base offset is the broker's to say.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import cramjam
import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyspark_penstock.decode import Decoder
from pyspark_penstock.decode.batches import HEADER
from pyspark_penstock.encode.arrow import Bytes, Ints
from pyspark_penstock.encode.headers import header_tails
from pyspark_penstock.encode.records import Rows, encode_records
from pyspark_penstock.errors import RowError

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

BATCH_BYTES = 1_000_000
"""Where batches are cut: a little below what a topic takes at most unless told otherwise (max.message.bytes, 1 MiB)."""
_RUN_BYTES_MAX = 1 << 30
"""Encoded at once: Arrow's offsets have 32 bits."""

_IS_TRANSACTIONAL = 0x10
_SEQUENCE_MASK = (1 << 31) - 1
"""A sequence behind the largest is 0 again."""
_TAIL = struct.Struct(">hiqqqhii")
_HEAD = struct.Struct(">qiibI")
_HEADER_BYTES = HEADER.size
_LENGTH_END = 12
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_BLOCK_BYTES = 32 * 1024
_SPLIT_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))),
    ]
)


@dataclass(frozen=True, slots=True)
class Sealed:
    """One batch, ready to be sent to the partition that it is for."""

    partition: int
    records: bytes
    """The whole batch, as it stands on the wire."""
    count: int
    """Records in it."""


class Sequences:
    """Of one topic in a stage: what its next batches say of their producer."""

    def __init__(self, producer_id: int, producer_epoch: int) -> None:
        self._id = producer_id
        self._epoch = producer_epoch
        self._next: dict[int, int] = {}
        """By partition."""

    def take(self, partition: int, count: int) -> _Origin:
        """For a batch of so many records, which goes out behind those of before."""
        first = self._next.get(partition, 0)
        self._next[partition] = (first + count) & _SEQUENCE_MASK
        return _Origin(self._id, self._epoch, first, _IS_TRANSACTIONAL)


class _Origin(NamedTuple):
    """Of a batch."""

    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    attributes: int = 0


_NOBODY = _Origin()


def encode_batches(
    rows: Rows,
    partitions: Ints,
    *,
    codec: str = "none",
    batch_bytes: int = BATCH_BYTES,
    sequences: Sequences | None = None,
) -> Iterator[Sealed]:
    """Batches of at most `batch_bytes` (before compression), or of one record that is larger.

    Rows of one partition stay in their order. With `sequences` each is a transactional batch, which is to be sent
    behind those before it. Raises RowError for a record that no batch can hold.
    """
    if not len(rows.value):
        return
    if len(partitions) > 1 and np.any(partitions[1:] < partitions[:-1]):
        order = np.argsort(partitions, kind="stable")
        rows, partitions = rows.take(order), partitions[order]
    sizes = rows.size_bounds()
    if int(sizes.max()) > _RUN_BYTES_MAX:
        raise RowError(f"a row has {int(sizes.max())} bytes; no record can be so large, so write it in parts")
    for first, end in _runs(sizes):
        part = _slice(rows, first, end)
        where = partitions[first:end]
        for partition, data, offsets, times in _encode_run(part, where, sizes[first:end], batch_bytes):
            origin = sequences.take(partition, len(times)) if sequences else _NOBODY
            yield _seal(partition, data, offsets, times, codec, origin)


def split(batch: bytes, partition: int, codec: str) -> list[Sealed]:
    """The same records in two batches, of the same sequences. Raises RowError when there is one alone."""
    decoded = pa.Table.from_batches(Decoder("", partition, _SPLIT_SCHEMA).decode(batch, 0, 1 << 62))
    count = decoded.num_rows
    if count < 2:
        raise RowError(f"a row makes a batch of {len(batch)} bytes")
    key, value, times, headers = (column.combine_chunks() for column in decoded.columns)
    rows = Rows(key, value, times.cast(pa.int64()).to_numpy() // 1000, header_tails(headers))
    halves = []
    for first, end in ((0, count // 2), (count // 2, count)):
        part = _slice(rows, first, end)
        data, offsets = encode_records(part, np.zeros(1, np.int64))
        halves.append(_seal(partition, data, offsets, part.timestamps_ms, codec, _origin(batch, first)))
    return halves


def _origin(batch: bytes, ahead: int) -> _Origin:
    """That of the records from the `ahead`th of a batch on."""
    header = HEADER.unpack_from(batch)
    attributes, (producer_id, epoch, sequence) = header[5], header[9:12]
    if producer_id < 0:
        return _NOBODY
    return _Origin(producer_id, epoch, (sequence + ahead) & _SEQUENCE_MASK, attributes & _IS_TRANSACTIONAL)


def _slice(rows: Rows, first: int, end: int) -> Rows:
    if end - first == len(rows.value):
        return rows
    return Rows(
        None if rows.key is None else rows.key[first:end],
        rows.value[first:end],
        rows.timestamps_ms[first:end],
        None if rows.tails is None else rows.tails[first:end],
    )


def _runs(sizes: Ints) -> Iterator[tuple[int, int]]:
    """Rows to be encoded in one go."""
    after = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        before = int(after[first - 1]) if first else 0
        end = max(int(np.searchsorted(after, before + _RUN_BYTES_MAX, side="right")), first + 1)
        yield first, end
        first = end


def cuts(partitions: Ints, sizes: Ints, batch_bytes: int) -> Ints:
    """The rows with which batches begin. `partitions` are in order."""
    room = batch_bytes - _HEADER_BYTES
    after = np.cumsum(sizes)
    borders = [*(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]
    found: list[int] = []
    first = 0
    for border in borders:
        while first < border:
            found.append(first)
            before = int(after[first - 1]) if first else 0
            end = int(np.searchsorted(after, before + room, side="right"))
            first = min(max(end, first + 1), border)
    return np.array(found, np.int64)


def _encode_run(
    rows: Rows, partitions: Ints, sizes: Ints, batch_bytes: int
) -> Iterator[tuple[int, Bytes, NDArray[np.int32], Ints]]:
    """Of each batch: its partition, and records, offsets and times for `_seal`."""
    firsts = cuts(partitions, sizes, batch_bytes)
    data, offsets = encode_records(rows, firsts)
    ends = [*firsts[1:].tolist(), len(partitions)]
    for first, end in zip(firsts.tolist(), ends, strict=True):
        yield int(partitions[first]), data, offsets[first : end + 1], rows.timestamps_ms[first:end]


def _seal(
    partition: int, data: Bytes, offsets: Any, timestamps_ms: Ints, codec: str, origin: _Origin
) -> Sealed:
    """A batch of the records between the first and last of `offsets`."""
    count = len(offsets) - 1
    payload = data[int(offsets[0]) : int(offsets[-1])]
    body: Any = payload if codec == "none" else np.frombuffer(_COMPRESS[codec](payload), np.uint8)
    base, top = int(timestamps_ms[0]), int(timestamps_ms.max())
    *producer, bits = origin
    tail = _TAIL.pack(CODECS[codec] | bits, count - 1, base, top, *producer, count)
    crc = google_crc32c.extend(google_crc32c.value(tail), body)
    head = _HEAD.pack(0, _HEADER_BYTES - _LENGTH_END + len(body), -1, 2, crc)
    return Sealed(partition, b"".join((head, tail, memoryview(body))), count)


def _lz4(data: Any) -> Any:
    # Linked blocks are not understood by every Kafka client (KIP-57).
    compressor = cramjam.lz4.Compressor(level=1, content_checksum=False, block_linked=False)
    compressor.compress(data.tobytes())
    return compressor.finish()


def _snappy(data: Any) -> bytes:
    """In xerial's framing, as Java's producers write it: not every client reads the raw form."""
    out: list[Any] = [_XERIAL_MAGIC, struct.pack(">ii", 1, 1)]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        out += [struct.pack(">i", len(block)), block]
    return b"".join(out)


_COMPRESS: dict[str, Callable[[Any], Any]] = {
    "gzip": lambda data: cramjam.gzip.compress(data, level=6),
    "snappy": _snappy,
    "lz4": _lz4,
    "zstd": lambda data: cramjam.zstd.compress(data, level=3),
}
