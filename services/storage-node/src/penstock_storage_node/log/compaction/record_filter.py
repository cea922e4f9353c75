"""Taking records out of a batch: the bytes of compaction.

What is left keeps base offset, last offset delta, leader epoch, producer fields and codec;
offsets are never given anew. A batch that loses nothing is kept byte for byte. (Kafka:
MemoryRecords.filterTo, DefaultRecordBatch.writeEmptyHeader.)

Delete horizon (KIP-534): a batch that keeps a tombstone gets attribute bit 6 and, as its base
timestamp, the time from which on the tombstone may go; the records' timestamp deltas count
from there, so their timestamps stay what they were.

Unlike Kafka an empty batch has no timestamp: where Kafka keeps the old one, its own DumpLogSegments
complains of a time index that names a record which is not there. (Our producers go idle by the
node's clock, so nobody misses it.) And unlike Kafka a batch that loses records keeps its base
timestamp, which need not be the first record's: nobody reads it but for adding the deltas, and
records needn't be written anew.

What is written must be readable: no batch above BATCH_BYTES_MAX, none that decompresses to more than
`compression.output_bound` (recovery would cut the log there). A horizon makes timestamp deltas
longer: a batch that has no room for it goes without, its tombstones stay until it has, or its
other records are gone. Records that are left may compress worse than the producer did it, or better than any
reader believes: then the codec's best level, gzip, no codec. Keeping the records that should go is
no way out: the tombstone of one may go in a later run, and it would be back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import compress as pick
from typing import Any, Final

from penstock_core.limits import BATCH_BYTES_MAX
from penstock_kafka.records import compression
from penstock_kafka.records.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchInfo,
)
from penstock_kafka.records.build import with_crc
from penstock_kafka.records.compiled import OVERREAD_BYTES, RecordReader
from penstock_kafka.records.varint import put_varint, read_varint

_TIMESTAMP_BYTES_MAX: Final = 10

_TIMESTAMP_MIN: Final = -(2**63)

_BEST_LEVELS: Final = {compression.GZIP: 9, compression.LZ4: 9, compression.ZSTD: 19}

_SCRATCH_BYTES: Final = 1024 * 1024


class BatchTooLarge(Exception):
    """What is left of a batch can't be written so that it can be read again."""


class _Scratch(threading.local):
    """Memory that batches are decompressed to: fresh memory for each would cost more than the rest."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_SCRATCH_BYTES))


_scratch: Final = _Scratch()

Keep = Callable[[Any], bool]
"""Whether a record (with `offset`, `key`, `value`) stays."""


@dataclass(slots=True)
class Filtered:
    """What is left of a batch."""

    data: bytes | None
    """Its bytes now; None when nothing stays."""
    kept_count: int
    is_changed: bool
    max_timestamp: int


def open_batch(view: memoryview, info: BatchInfo) -> bytes:
    """Header and uncompressed records, and room behind for the compiled reader. Raises INVALID_RECORD."""
    if not info.compression:
        return bytes(view) + bytes(OVERREAD_BYTES)
    opened = compression.decompress(
        info.compression, view[HEADER_BYTES:], reserve_bytes=HEADER_BYTES, scratch=_scratch.view
    )
    opened[:HEADER_BYTES] = view[:HEADER_BYTES]
    opened[22] &= ~0x07 & 0xFF
    return bytes(opened) + bytes(OVERREAD_BYTES)


def records_of(opened: bytes, info: BatchInfo) -> list[Any]:
    """The records of an opened batch."""
    if not info.record_count:
        return []
    return list(RecordReader(memoryview(opened)[: len(opened) - OVERREAD_BYTES]))


def filter_batch(
    view: memoryview, info: BatchInfo, keep: Keep, *, new_horizon_ms: int, keep_empty: bool
) -> Filtered:
    """Drop records that `keep` doesn't want.

    `new_horizon_ms`: delete horizon that a batch gets which keeps a tombstone and has none, if it has
    room for it. `keep_empty`: should nothing be left, keep the header alone. Raises BatchTooLarge.
    """
    opened = open_batch(view, info)
    records = records_of(opened, info)
    wanted = [keep(record) for record in records]
    kept_count = sum(wanted)
    if not kept_count:
        return drop_records(view, info, keep_empty=keep_empty)
    has_horizon = bool(info.attributes & DELETE_HORIZON_BIT)
    kept = records if kept_count == len(records) else list(pick(records, wanted))
    sets_horizon = not has_horizon and any(record.value is None for record in kept)
    latest = info.max_timestamp if info.is_log_append_time else max(record.timestamp for record in kept)
    if sets_horizon:
        data = _with_horizon(opened, info, wanted, latest, new_horizon_ms)
        if data is not None:
            return Filtered(data, kept_count, True, latest)
    if kept_count == len(records):
        return Filtered(bytes(view), kept_count, False, info.max_timestamp)
    body = _kept_body(opened, wanted)
    return Filtered(_packed(info, body, latest, kept_count), kept_count, True, latest)


def keep_marker(view: memoryview, info: BatchInfo, *, new_horizon_ms: int | None) -> Filtered:
    """A control batch that stays; with a horizon from now on when one is given and it has none."""
    if new_horizon_ms is None or info.attributes & DELETE_HORIZON_BIT or not info.record_count:
        return Filtered(bytes(view), info.record_count, False, info.max_timestamp)
    wanted = [True] * info.record_count
    data = _with_horizon(open_batch(view, info), info, wanted, info.max_timestamp, new_horizon_ms)
    if data is None:
        return Filtered(bytes(view), info.record_count, False, info.max_timestamp)
    return Filtered(data, info.record_count, True, info.max_timestamp)


def drop_records(view: memoryview, info: BatchInfo, *, keep_empty: bool) -> Filtered:
    """None of the records stays; with `keep_empty` the header does."""
    if not keep_empty:
        return Filtered(None, 0, True, -1)
    if not info.record_count:
        return Filtered(bytes(view), 0, False, info.max_timestamp)
    kept_bits = info.attributes & (LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    data = _with_header(info, b"", kept_bits, NO_TIMESTAMP, NO_TIMESTAMP, 0)
    return Filtered(data, 0, True, NO_TIMESTAMP)


def _with_horizon(
    opened: bytes, info: BatchInfo, wanted: list[bool], max_timestamp: int, horizon_ms: int
) -> bytes | None:
    """The wanted records with a delete horizon; None when that can't be written."""
    body = _moved_body(opened, wanted, info.base_timestamp - horizon_ms)
    if body is None:
        return None
    payload = compression.compress(info.compression, body)
    if not _is_readable(info.compression, payload, len(body)):
        return None
    attributes = info.attributes | DELETE_HORIZON_BIT
    return _with_header(info, payload, attributes, horizon_ms, max_timestamp, sum(wanted))


def _packed(info: BatchInfo, body: bytearray, max_timestamp: int, count: int) -> bytes:
    """Kept records in the batch's own codec, or in one in which they can be read."""
    own = info.compression
    ways = [(own, None), (own, _BEST_LEVELS.get(own)), (compression.GZIP, 9), (compression.NONE, None)]
    for codec, level in dict.fromkeys(ways):
        payload = compression.compress(codec, body, level)
        if _is_readable(codec, payload, len(body)):
            attributes = info.attributes & ~COMPRESSION_MASK | codec
            return _with_header(info, payload, attributes, info.base_timestamp, max_timestamp, count)
    raise BatchTooLarge(
        f"{count} records of the batch at offset {info.base_offset} take more than {BATCH_BYTES_MAX} bytes"
        " however they are compressed"
    )


def _is_readable(codec: int, payload: bytes, body_bytes: int) -> bool:
    if HEADER_BYTES + len(payload) > BATCH_BYTES_MAX:
        return False
    return codec == compression.NONE or body_bytes <= compression.output_bound(len(payload))


def _records_in(opened: bytes) -> Iterator[tuple[int, int, int]]:
    """Where each record starts, where its attributes do, and where it stops."""
    position, end = HEADER_BYTES, len(opened) - OVERREAD_BYTES
    while position < end:
        start = position
        first = opened[position]
        if first < 0x80:
            length, position = first >> 1, position + 1
        else:
            length, position = read_varint(opened, position, end)
        stop = position + length
        yield start, position, stop
        position = stop


def _kept_body(opened: bytes, wanted: list[bool]) -> bytearray:
    body = bytearray()
    for (start, _, stop), is_wanted in zip(_records_in(opened), wanted, strict=True):
        if is_wanted:
            body += opened[start:stop]
    return body


def _moved_body(opened: bytes, wanted: list[bool], moved_ms: int) -> bytearray | None:
    """Wanted records with their timestamp deltas moved; None when one would not fit 64 bits."""
    body = bytearray()
    for (_, position, stop), is_wanted in zip(_records_in(opened), wanted, strict=True):
        if not is_wanted:
            continue
        delta, after = read_varint(opened, position + 1, stop, _TIMESTAMP_BYTES_MAX)
        delta += moved_ms
        if not _TIMESTAMP_MIN <= delta < -_TIMESTAMP_MIN:
            return None
        record = bytearray(opened[position : position + 1])
        put_varint(record, delta)
        record += opened[after:stop]
        put_varint(body, len(record))
        body += record
    return body


def _with_header(
    info: BatchInfo, payload: bytes, attributes: int, base_timestamp: int, max_timestamp: int, count: int
) -> bytes:
    header = HEADER.pack(
        info.base_offset,
        HEADER_BYTES - LENGTH_OVERHEAD_BYTES + len(payload),
        info.leader_epoch,
        info.magic,
        0,
        attributes,
        info.last_offset_delta,
        base_timestamp,
        max_timestamp,
        info.producer_id,
        info.producer_epoch,
        info.base_sequence,
        count,
    )
    return with_crc(bytearray(header + payload))
