"""One log file with its indexes: what is known of it in memory.

A segment's `size` counts everything staged for it; `written` is what the file holds.
Nothing here makes a system call except the functions at the end, which take the
FileSystem and run in the disk pool.
"""

from __future__ import annotations

import struct
from binascii import crc32
from collections.abc import Iterator

from penstock_core.config.topic import TopicConfig
from penstock_core.limits import BATCH_BYTES_MAX
from penstock_kafka.records.batch import HEADER, HEADER_BYTES, LENGTH_OVERHEAD_BYTES, MAGIC, BatchInfo, Buffer
from penstock_storage_node.log import aborted_index
from penstock_storage_node.log.aborted_index import AbortedIndex, Rows
from penstock_storage_node.log.fs import FileSystem, read_file, read_fully
from penstock_storage_node.log.index import (
    RELATIVE_OFFSET_MAX,
    TIME_ENTRY_BYTES,
    Head,
    IndexHeads,
    OffsetIndex,
    TimeIndex,
    decode_offset_entries,
    decode_time_entries,
    is_head_sane,
)

SEGMENT_BYTES_MAX = 0x7FFFFFFF
"""Positions are int32 in Kafka's index."""

SCAN_CHUNK_BYTES = 1024 * 1024
"""Read at once when walking a segment."""

TIMESTAMP_UNKNOWN = -2
"""`max_timestamp` of a segment whose time index was not read yet."""

BATCH_BYTES_MIN = HEADER_BYTES

SHORT_HEADER = struct.Struct(">qi11xi")
"""Base offset, batch length, last offset delta: what walking batches needs."""


def file_stem(base_offset: int) -> str:
    """Kafka's name of a segment: 20 digits."""
    return f"{base_offset:020d}"


class Segment:
    """A segment as the loop knows it."""

    __slots__ = (
        "aborted",
        "base_offset",
        "bytes_since_index",
        "closed_ms",
        "created_ms",
        "first_timestamp",
        "found_bytes",
        "is_closed_on_disk",
        "is_directory_synced",
        "is_on_disk",
        "is_sealed",
        "is_walked",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_index",
        "path",
        "size",
        "time_index",
        "written",
    )

    def __init__(self, directory: str, base_offset: int, heads: IndexHeads, created_ms: int) -> None:
        stem = f"{directory}/{file_stem(base_offset)}"
        self.base_offset = base_offset
        self.path = stem + ".log"
        self.offset_index = OffsetIndex(stem + ".index", base_offset, heads)
        self.time_index = TimeIndex(stem + ".timeindex", base_offset)
        self.aborted = AbortedIndex(stem + aborted_index.SUFFIX)
        self.size = 0
        self.written = 0
        self.found_bytes = 0
        """So much of the file comes from the disk, not from this process by way of the page cache: batches
        below it are checked whenever they are read (see `reading`)."""
        self.is_walked = False
        """All of it was read and found right by this process: gaps in it are what compaction left."""
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.first_timestamp = -1
        self.created_ms = created_ms
        self.closed_ms = created_ms
        self.bytes_since_index = 0
        self.is_on_disk = False
        self.is_directory_synced = False
        self.is_closed_on_disk = False
        """Its last index entries are written."""
        self.is_sealed = False
        """Closed, and all of it is on disk, indexes included: recovery needn't look at it."""

    @property
    def snapshot_path(self) -> str:
        return self.path[:-4] + ".snapshot"

    def note(self, last_offset: int, size_bytes: int, max_timestamp: int, index_interval_bytes: int) -> None:
        """Account for one batch appended at the end (Kafka: LogSegment.append)."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self.bytes_since_index > index_interval_bytes:
            self.offset_index.append(last_offset, self.size)
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)
            self.bytes_since_index = 0
        elif not self.size:
            self.first_timestamp = max_timestamp
        self.size += size_bytes
        self.bytes_since_index += size_bytes

    def has_room(self, size_bytes: int, last_offset: int, segment_bytes: int, index_bytes: int) -> bool:
        """Whether a batch may go in by size, offset width and index size (segment.index.bytes)."""
        return (
            self.size + size_bytes <= segment_bytes
            and last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
            and self.offset_index.count < max(index_bytes // TIME_ENTRY_BYTES, 1)
        )

    def jitter_ms(self, settings: TopicConfig) -> int:
        """How much earlier than segment.ms this one is closed (segment.jitter.ms): by chance, but always the same."""
        bound = min(settings.segment_jitter_ms, settings.roll_ms)
        return crc32(self.path.encode()) % (bound + 1) if bound > 0 else 0

    def age_for_roll_ms(self, timestamp: int, now_ms: int) -> int:
        """How long the segment is open by its own records' time, else by the clock (Kafka: timeWaitedForRoll)."""
        if self.first_timestamp >= 0 and timestamp >= 0:
            return timestamp - self.first_timestamp
        return now_ms - self.created_ms

    def close_time_index(self) -> None:
        """The last entry of a closed segment names its largest timestamp."""
        if self.max_timestamp >= 0:
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)

    def adopt_index(self, offsets_count: int, times: list[tuple[int, int]]) -> None:
        """The files hold these entries; used when a segment was opened or cut."""
        heads = self.offset_index._heads
        self.offset_index = OffsetIndex(self.offset_index.path, self.base_offset, heads, offsets_count)
        heads.forget(self.offset_index.path)
        last = times[-1] if times else (-1, 0)
        self.time_index = TimeIndex(self.time_index.path, self.base_offset, len(times), last[0])
        self.max_timestamp = last[0]
        self.max_timestamp_offset = self.base_offset + last[1]


def load_head(fs: FileSystem, segment: Segment) -> Head:
    """Read the offset index file into the cache (disk pool). An unusable one counts as empty."""
    index = segment.offset_index
    try:
        file = fs.files.pin(index.path)
    except FileNotFoundError:
        head = decode_offset_entries(b"")
    else:
        try:
            head = decode_offset_entries(read_fully(fs, file.fd, fs.size(file.fd), 0))
        finally:
            fs.files.unpin(file)
    if not is_head_sane(head, segment.size):
        head = decode_offset_entries(b"")
    fs.index_heads.put(index.path, head)
    return head


def forget_indexes(fs: FileSystem, segment: Segment) -> None:
    """What the caches have of a segment's files is of other files from now on."""
    fs.index_heads.forget(segment.offset_index.path)
    fs.aborted_rows.forget(segment.aborted.path)


def load_aborted(fs: FileSystem, segment: Segment, end_offset: int) -> Rows:
    """All entries of the aborted index, which goes on in memory; `end_offset`: where the segment ends (disk pool).

    Raises DamagedIndex, OSError.
    """
    index = segment.aborted
    if (rows := index.rows) is not None:
        return tuple(rows)
    found = fs.aborted_rows.get(index.path)
    if found is None:
        try:
            data = read_file(fs, index.path)
        except FileNotFoundError as error:
            raise aborted_index.DamagedIndex("the file is gone") from error
        found = aborted_index.decode_entries(data, segment.base_offset, end_offset)
        fs.aborted_rows.put(index.path, found)
    return found


def load_times(fs: FileSystem, segment: Segment) -> list[tuple[int, int]]:
    """All time index entries, (timestamp, relative offset), those not yet saved included (disk pool)."""
    saved, tail = segment.time_index.state
    rows: list[tuple[int, int]] = []
    if saved:
        file = fs.files.pin(segment.time_index.path)
        try:
            size = fs.size(file.fd) if saved < 0 else saved * TIME_ENTRY_BYTES
            rows = decode_time_entries(read_fully(fs, file.fd, size, 0))
        finally:
            fs.files.unpin(file)
    return rows + list(zip(tail.timestamps, tail.offsets, strict=False))


def last_time_entry(fs: FileSystem, path: str) -> tuple[int, int]:
    """(timestamp, relative offset) of a closed segment's last entry, (-1, 0) without one (disk pool)."""
    file = fs.files.pin(path)
    try:
        position = (fs.size(file.fd) // TIME_ENTRY_BYTES - 1) * TIME_ENTRY_BYTES
        data = fs.pread(file.fd, TIME_ENTRY_BYTES, position) if position >= 0 else b""
    finally:
        fs.files.unpin(file)
    rows = decode_time_entries(data)
    return rows[0] if rows else (-1, 0)


def walk_file(fs: FileSystem, path: str, start: int, end: int) -> Iterator[tuple[BatchInfo, memoryview]]:
    """Whole batches of a log file between two positions, with their bytes (disk pool).

    `position` of the info is the batch's place in the file. Ends quietly at the first
    place where no plausible batch stands; the caller compares where it ended.
    """
    file = fs.files.pin(path)
    try:
        position, want = start, SCAN_CHUNK_BYTES
        while end - position >= HEADER_BYTES:
            chunk = read_fully(fs, file.fd, min(want, end - position), position)
            used = 0
            for info in plausible_batches(chunk):
                used = info.position + info.size_bytes
                view = memoryview(chunk)[info.position : used]
                info.position += position
                yield info, view
            position += used
            if not used:
                need = _size_at(chunk)
                if need <= len(chunk) or need > min(end - position, BATCH_BYTES_MAX):
                    return
                want = need
            else:
                want = SCAN_CHUNK_BYTES
    finally:
        fs.files.unpin(file)


def _size_at(chunk: bytes) -> int:
    """Size of the batch that `chunk` begins with, 0 when that is none."""
    if len(chunk) < HEADER_BYTES:
        return 0
    info = BatchInfo(*HEADER.unpack_from(chunk, 0))
    return info.size_bytes if info.magic == MAGIC and info.size_bytes >= BATCH_BYTES_MIN else 0


def plausible_batches(buffer: Buffer) -> Iterator[BatchInfo]:
    """Whole batches from the start of `buffer`; stops at the first place that can't be one."""
    position, stop = 0, len(buffer)
    while stop - position >= HEADER_BYTES:
        info = BatchInfo(*HEADER.unpack_from(buffer, position))
        info.position = position
        size = info.batch_length + LENGTH_OVERHEAD_BYTES
        if info.magic != MAGIC or size < BATCH_BYTES_MIN or size > stop - position:
            return
        if info.last_offset_delta < 0:
            return
        yield info
        position += size
