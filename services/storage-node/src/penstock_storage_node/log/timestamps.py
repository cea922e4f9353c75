"""Offsets by timestamp, for ListOffsets (disk pool).

Kafka's way: the first segment whose largest timestamp is late enough, a start by its
time index, then batches, and in the first batch that is late enough the first record
(which may need decompression). A time index entry says that no batch up to its offset
is later than its timestamp, so walking begins after the last entry that is too early.

Markers count, as in Kafka (FileRecords.searchForTimestamp, LogSegment.append): a reader that begins at one gets
what comes behind it, and a time index, in which they are, needs no second look at what its entries are.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from penstock_kafka.records.batch import BatchInfo, Buffer, iter_batches
from penstock_kafka.records.read import find_timestamp, read_records
from penstock_storage_node.log.damage import DamagedData
from penstock_storage_node.log.fs import FileSystem
from penstock_storage_node.log.index import Head, TimeIndex
from penstock_storage_node.log.producer_replay import find_position
from penstock_storage_node.log.recovery import load_first_timestamp
from penstock_storage_node.log.segment import (
    TIMESTAMP_UNKNOWN,
    Segment,
    last_time_entry,
    load_times,
    walk_file,
)


def load_timestamps(fs: FileSystem, segments: Sequence[Segment]) -> None:
    """Learn the largest timestamps of closed segments that this process has not written.

    A time index whose last entry doesn't name a batch with that timestamp is left
    aside, and the segment walked instead.
    """
    for segment in segments:
        try:
            try:
                timestamp, relative = last_time_entry(fs, segment.time_index.path)
            except FileNotFoundError:
                timestamp, relative = -1, 0  # the log knows too, if that one is there
            segment.closed_ms = fs.modified_ms(segment.path)
            load_first_timestamp(fs, segment)
            offset = segment.base_offset + relative
            if timestamp < 0 or not _has_timestamp(fs, segment, offset, timestamp):
                timestamp = _walk_for_largest(fs, segment, timestamp)
                segment.time_index = TimeIndex(segment.time_index.path, segment.base_offset)
        except FileNotFoundError:  # retention was faster
            continue
        segment.max_timestamp = timestamp


def _walk_for_largest(fs: FileSystem, segment: Segment, indexed: int) -> int:
    """Largest timestamp of a segment. One that is damaged must count as late enough: whoever looks for a
    later record has to meet the damage, and retention must not take it early."""
    largest, end = -1, 0
    for info, _ in walk_file(fs, segment.path, 0, segment.written):
        largest, end = max(largest, info.max_timestamp), info.position + info.size_bytes
    return largest if end == segment.written else max(largest, indexed, segment.closed_ms)


def _has_timestamp(fs: FileSystem, segment: Segment, offset: int, timestamp: int) -> bool:
    """Whether the batch that ends with `offset` has this max timestamp."""
    position = find_position(fs, segment, offset)
    for info, _ in walk_file(fs, segment.path, position, segment.written):
        if info.last_offset >= offset:
            return info.last_offset == offset and info.max_timestamp == timestamp
    return False


def find_in_files(
    fs: FileSystem, segments: Sequence[Segment], timestamp_ms: int, start_offset: int, upper_offset: int
) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record that late, between two offsets; written data only."""
    load_timestamps(fs, [s for s in segments[:-1] if s.max_timestamp == TIMESTAMP_UNKNOWN])
    for segment in segments:
        if segment.base_offset >= upper_offset:
            return None
        if segment.max_timestamp < timestamp_ms or not segment.written:
            continue
        rows = load_times(fs, segment)
        index = bisect_left(rows, timestamp_ms, key=_timestamp) - 1
        begin = segment.base_offset + rows[index][1] if index >= 0 else segment.base_offset
        position = find_position(fs, segment, max(begin, start_offset))
        for info, view in _walk_all(fs, segment, position):
            if info.base_offset >= upper_offset:
                return None
            if info.max_timestamp < timestamp_ms or info.last_offset < start_offset:
                continue
            found = _first_in(view, timestamp_ms, start_offset, upper_offset)
            if found is not None:
                return found
    return None


def _walk_all(fs: FileSystem, segment: Segment, position: int) -> Iterator[tuple[BatchInfo, memoryview]]:
    """Every batch from a position on. Raises DamagedData when they end before the segment does: a later
    one's answer would be a wrong one."""
    end = segment.written
    for info, view in walk_file(fs, segment.path, position, end):
        position = info.position + info.size_bytes
        yield info, view
    if position < end:
        raise DamagedData(segment, position)


def _timestamp(row: tuple[int, int]) -> int:
    return row[0]


def _first_in(
    batch: Buffer, timestamp_ms: int, start_offset: int, upper_offset: int
) -> tuple[int, int] | None:
    record = find_timestamp(batch, timestamp_ms)
    if record is not None and record.offset < start_offset:
        late = (r for r in read_records(batch) if r.timestamp_ms >= timestamp_ms and r.offset >= start_offset)
        record = next(late, None)
    if record is None or record.offset >= upper_offset:
        return None
    return record.offset, record.timestamp_ms


def find_in_memory(
    chunks: Iterable[Sequence[Buffer]], timestamp_ms: int, upper_offset: int
) -> tuple[int, int] | None:
    """The same in staged data."""
    for buffers in chunks:
        joined = b"".join(buffers)
        for info in iter_batches(joined):
            if info.base_offset >= upper_offset:
                return None
            if info.max_timestamp < timestamp_ms:
                continue
            batch = joined[info.position : info.position + info.size_bytes]
            found = _first_in(batch, timestamp_ms, 0, upper_offset)
            if found is not None:
                return found
    return None


def find_largest(
    fs: FileSystem,
    segments: Sequence[Segment],
    staged: Sequence[Sequence[Buffer]],
    start_offset: int,
    upper_offset: int,
) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record that has the largest timestamp below `upper_offset`."""
    load_timestamps(fs, [s for s in segments[:-1] if s.max_timestamp == TIMESTAMP_UNKNOWN])
    best, holder = -1, b""

    def look(info: BatchInfo, batch: Buffer) -> None:
        nonlocal best, holder
        if info.max_timestamp <= best or info.last_offset < start_offset:
            return
        largest = info.max_timestamp
        if info.base_offset < start_offset or info.next_offset > upper_offset:
            # Deleted records don't count, nor those that may not be seen yet.
            seen = (r for r in read_records(batch) if start_offset <= r.offset < upper_offset)
            largest = max((record.timestamp_ms for record in seen), default=-1)
        if largest > best and info.record_count > 0:
            best, holder = largest, bytes(batch)

    for segment in segments:
        if not segment.written or segment.base_offset >= upper_offset or segment.max_timestamp <= best:
            continue
        for info, view in _walk_all(fs, segment, 0):
            if info.base_offset >= upper_offset:
                break
            look(info, view)
    for buffers in staged:
        joined = b"".join(buffers)
        for info in iter_batches(joined):
            if info.base_offset < upper_offset:
                look(info, joined[info.position : info.position + info.size_bytes])
    return _first_in(holder, best, start_offset, upper_offset) if holder else None


def mend_head(fs: FileSystem, segment: Segment, index_interval_bytes: int) -> None:
    """Put a right offset index of a segment into the cache, by walking its log (disk pool)."""
    offsets, positions = array("I"), array("I")
    since = 0
    for info, _ in walk_file(fs, segment.path, 0, segment.written):
        if since > index_interval_bytes:
            offsets.append(info.last_offset - segment.base_offset)
            positions.append(info.position)
            since = 0
        since += info.size_bytes
    fs.index_heads.put(segment.offset_index.path, Head(offsets, positions))
