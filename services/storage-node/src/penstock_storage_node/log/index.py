"""Offset index and time index of one segment, in Kafka's form.

  .index      entries of 8 bytes: offset of a batch's last record less the base offset
              (int32), position of that batch in the .log (int32)
  .timeindex  entries of 12 bytes: largest timestamp so far (int64), offset of the batch
              that has it less the base offset (int32); timestamps strictly rise

An entry is made when more than `index.interval.bytes` have been appended since the last
one (Kafka: LogSegment.append). Unlike Kafka we neither preallocate nor map the files:
they are always exactly as long as their entries.

Indexes are hints. They may lag behind the log, and a reader checks that the batch at an
entry's position ends with the entry's offset before it trusts it; so index files need
no flush of their own before data are acknowledged, and a damaged one costs time, not data.

Memory: of the offset index only entries made by this process are kept (at most
`TAIL_ENTRIES_MAX` once they are in the file); older ones are the *head*, read from the
file when wanted and shared by all partitions in a small cache (`IndexHeads`). Time
index entries are kept only until they are in the file.
"""

from __future__ import annotations

import struct
import sys
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import NamedTuple

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12

TAIL_ENTRIES_MAX = 1024
"""Offset index entries kept per segment once saved: 4 MiB of log at the default interval."""

HEADS_MAX = 64
"""Index heads in memory, of all partitions together (2 MiB each for a full 1 GiB segment)."""

RELATIVE_OFFSET_MAX = 0x7FFFFFFF

_TIME_ENTRY = struct.Struct(">qi")
_LITTLE = sys.byteorder == "little"


class IndexEntry(NamedTuple):
    """A batch that ends with `last_offset` begins at `position`; (-1, 0) is the segment's start."""

    last_offset: int
    position: int


SEGMENT_START = IndexEntry(-1, 0)


class Head(NamedTuple):
    offsets: array[int]
    positions: array[int]


class IndexHeads:
    """Least recently used cache of index heads by path. Thread-safe."""

    def __init__(self, heads_max: int = HEADS_MAX) -> None:
        self._max = heads_max
        self._lock = threading.Lock()
        self._heads: OrderedDict[str, Head] = OrderedDict()

    def get(self, path: str) -> Head | None:
        with self._lock:
            head = self._heads.get(path)
            if head is not None:
                self._heads.move_to_end(path)
            return head

    def put(self, path: str, head: Head) -> None:
        with self._lock:
            self._heads[path] = head
            self._heads.move_to_end(path)
            while len(self._heads) > self._max:
                self._heads.popitem(last=False)

    def forget(self, path: str) -> None:
        with self._lock:
            self._heads.pop(path, None)


def decode_offset_entries(data: bytes) -> Head:
    """Whole entries of an .index file; bytes after the last whole one are ignored."""
    both = array("I")
    both.frombytes(data[: len(data) - len(data) % OFFSET_ENTRY_BYTES])
    if _LITTLE:
        both.byteswap()
    return Head(both[0::2], both[1::2])


def encode_offset_entries(offsets: array[int], positions: array[int]) -> bytes:
    both = array("I", bytes(OFFSET_ENTRY_BYTES * len(offsets)))
    both[0::2] = offsets
    both[1::2] = positions
    if _LITTLE:
        both.byteswap()
    return both.tobytes()


def is_head_sane(head: Head, size_bytes: int) -> bool:
    """Whether entries rise and lie inside a log of `size_bytes`."""
    offsets, positions = head
    if not offsets:
        return True
    if positions[-1] >= size_bytes or offsets[-1] > RELATIVE_OFFSET_MAX:
        return False
    return all(map(int.__lt__, offsets, offsets[1:])) and all(map(int.__lt__, positions, positions[1:]))


class OffsetIndex:
    """Offset index of one segment. Changed on the loop only; read from any thread.

    For readers' sake the tail is one tuple, exchanged as a whole, and an append puts the
    position before the offset: an index found in `offsets` is always there in `positions`.
    """

    __slots__ = ("_heads", "base_offset", "head_count", "path", "saved_count", "tail")

    def __init__(self, path: str, base_offset: int, heads: IndexHeads, head_count: int = 0) -> None:
        self.path = path
        self.base_offset = base_offset
        self._heads = heads
        self.head_count = head_count
        """Entries at the start of the file that are not in memory; -1: all, number unknown."""
        self.saved_count = max(head_count, 0)
        """Entries that the file holds."""
        self.tail = Head(array("I"), array("I"))

    @property
    def count(self) -> int:
        """All entries, those in the file only included."""
        return max(self.head_count, 0) + len(self.tail.offsets)

    def append(self, last_offset: int, position: int) -> None:
        offsets, positions = self.tail
        positions.append(position)
        offsets.append(last_offset - self.base_offset)

    def floor_offset(self, offset: int, head: Head | None = None) -> IndexEntry | None:
        """Last entry whose batch ends at or before `offset`; None: it's on disk only.

        `head` is what `load_head` has just read; without it the cache is asked.
        """
        relative = offset - self.base_offset
        offsets, positions = self.tail
        if offsets and relative >= offsets[0]:
            index = bisect_right(offsets, relative) - 1
            return IndexEntry(self.base_offset + offsets[index], positions[index])
        if self.head_count == 0:
            return SEGMENT_START
        head = head or self._heads.get(self.path)
        if head is None:
            return None
        offsets, positions = head
        index = bisect_right(offsets, relative) - 1
        return (
            IndexEntry(self.base_offset + offsets[index], positions[index]) if index >= 0 else SEGMENT_START
        )

    def entries(self, head: Head | None = None) -> Head | None:
        """All entries; None: some are on disk only. `head` as in `floor_offset`."""
        offsets, positions = self.tail
        count = len(offsets)
        if self.head_count == 0:
            return Head(offsets[:count], positions[:count])
        head = head or self._heads.get(self.path)
        if head is None:
            return None
        # The file may have some of those that memory has.
        own = bisect_left(head.offsets, offsets[0]) if count else len(head.offsets)
        return Head(head.offsets[:own] + offsets[:count], head.positions[:own] + positions[:count])

    def below(self, position_max: int, offset_end: int) -> IndexEntry:
        """Last entry in memory at most at `position_max` whose batch ends before `offset_end`.

        SEGMENT_START when memory has none: good enough, because it only saves walking.
        """
        return self.find_below(position_max, offset_end) or SEGMENT_START

    def find_below(self, position_max: int, offset_end: int) -> IndexEntry | None:
        """As `below`, but None when memory has no entry and the file might have one."""
        offsets, positions = self.tail
        if not offsets or positions[0] > position_max:
            head = self._heads.get(self.path) if self.head_count else None
            if head is None:
                return None if self.head_count else SEGMENT_START
            offsets, positions = head
        relative_end = offset_end - self.base_offset
        index = bisect_right(positions, position_max, 0, len(offsets)) - 1
        if index >= 0 and offsets[index] >= relative_end:
            index = bisect_left(offsets, relative_end) - 1
        if index < 0:
            return SEGMENT_START
        return IndexEntry(self.base_offset + offsets[index], positions[index])

    def unsaved(self, until: int) -> tuple[int, bytes]:
        """(number of the first entry that the file lacks, bytes of those before entry `until`)."""
        first, skipped = self.saved_count, max(self.head_count, 0)
        offsets, positions = self.tail
        wanted = slice(first - skipped, until - skipped)
        return first, encode_offset_entries(offsets[wanted], positions[wanted])

    def mark_saved(self, saved_count: int) -> None:
        """Entries up to `saved_count` are in the file; forgets what memory needn't keep."""
        self.saved_count = saved_count
        extra = saved_count - self.head_count - TAIL_ENTRIES_MAX
        if extra > TAIL_ENTRIES_MAX:  # in large steps: moving an array costs its length
            self._drop(extra)

    def release(self) -> None:
        """Keep in memory only what is not in the file (the segment was closed)."""
        extra = self.saved_count - self.head_count
        if self.head_count >= 0 and extra > 0:
            self._drop(extra)

    def _drop(self, count: int) -> None:
        offsets, positions = self.tail
        self._heads.forget(self.path)
        self.head_count += count
        self.tail = Head(offsets[count:], positions[count:])


class TimeRows(NamedTuple):
    """Time index entries that are not in the file yet."""

    timestamps: array[int]
    offsets: array[int]


class TimeIndex:
    """Time index of one segment: entries not yet in the file, and how many are."""

    __slots__ = ("base_offset", "last_timestamp", "path", "state")

    def __init__(self, path: str, base_offset: int, saved_count: int = 0, last_timestamp: int = -1) -> None:
        self.path = path
        self.base_offset = base_offset
        self.last_timestamp = last_timestamp
        self.state = (saved_count, TimeRows(array("q"), array("I")))
        """(entries in the file, entries beyond them), exchanged together so that the pool may read it.

        -1: the file holds all, their number is not known.
        """

    def append(self, timestamp: int, offset: int) -> None:
        """Kafka's maybeAppend: only a later timestamp makes an entry."""
        if timestamp > self.last_timestamp:
            self.last_timestamp = timestamp
            rows = self.state[1]
            rows.offsets.append(offset - self.base_offset)
            rows.timestamps.append(timestamp)

    @property
    def count(self) -> int:
        saved, rows = self.state
        return max(saved, 0) + len(rows.timestamps)

    def unsaved(self, until: int) -> tuple[int, bytes]:
        """(number of the first entry that the file lacks, bytes of those before entry `until`)."""
        saved, rows = self.state
        wanted = slice(0, max(until - saved, 0))
        pairs = zip(rows.timestamps[wanted], rows.offsets[wanted], strict=True)
        return saved, b"".join(_TIME_ENTRY.pack(*pair) for pair in pairs)

    def mark_saved(self, saved_count: int) -> None:
        saved, rows = self.state
        done = saved_count - saved
        self.state = (saved_count, TimeRows(rows.timestamps[done:], rows.offsets[done:]))


def decode_time_entries(data: bytes) -> list[tuple[int, int]]:
    """(timestamp, relative offset) of whole entries; what doesn't rise is dropped with all after it."""
    rows: list[tuple[int, int]] = []
    last = (-1, -1)
    for row in _TIME_ENTRY.iter_unpack(data[: len(data) - len(data) % TIME_ENTRY_BYTES]):
        if row[0] <= last[0] or row[1] < last[1]:
            break
        rows.append(row)
        last = row
    return rows
