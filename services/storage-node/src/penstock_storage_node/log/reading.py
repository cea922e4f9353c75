"""Finding and cutting out whole batches, from a log file or from staged memory.

The same code serves the loop, which must not wait, and the disk pool: see `CachedFiles` and
`BlockingFiles`. Where the loop can't answer, `read_segment` says what it needs (`Need`).
What a read costs doesn't grow with the batches read: the start is found by a hint (where
the last read ended) or the offset index, the end by the index too, and only the few batches
between an index entry and the exact place are walked.

Index entries are hints: the batch found at one must end with the entry's offset, else
`Need.MENDED_INDEX` sends the read to the pool, which walks the segment and mends the cache.

Disks forget bits without a word, and consumers may not look (librdkafka's `check.crcs` is off by
default). So what comes from the disk, and was not put into the page cache by this very process, is
compared with its CRC before anybody gets it; `DamagedData` says that it is wrong. What this process
wrote itself and never lost from the cache costs nothing. Offset and length of a batch lie outside of
its CRC, and batches before the wanted one are passed over unchecked: damage there shows as a gap, and
at the first gap of a segment `Need.WALK` has the pool walk all of it, once. (A batch's leader epoch lies
outside too and is not looked at.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from penstock_core.limits import BATCH_BYTES_MAX, WHOLE_BATCH_BYTES_MAX
from penstock_kafka.records.batch import HEADER_BYTES, LENGTH_OVERHEAD_BYTES, MAGIC, Buffer, is_crc_valid
from penstock_storage_node.log.damage import DamagedData
from penstock_storage_node.log.fs import FileSystem, read_fully
from penstock_storage_node.log.index import IndexEntry
from penstock_storage_node.log.jobs import ReadData
from penstock_storage_node.log.segment import BATCH_BYTES_MIN, SHORT_HEADER, Segment, walk_file
from penstock_storage_node.log.state import Appended

SKIP_BYTES = 8192
"""Read beside what was asked for when the start is known only to an index entry."""

READ_HINTS_MAX = 8
"""Places where reads ended, kept per partition: as many sequential readers find theirs at once."""

WALK_BATCHES_MAX = 256
"""About so many batches are walked on the loop (0.2 us each) before the index file is fetched for it."""

CHECK_BATCHES_MAX = 1024
"""More are not checked on the loop (0.5 us each, and 40 us for a MiB)."""

HOLLOW_BATCHES_MAX = 64
"""Of one segment; more of them are an answer like any other."""

HOLLOW_PARTS_MAX = 64
"""Runs of batches without a record that one read goes through to come to one. librdkafka takes ten answers without
a record for a batch that is too large for it, and says so to its user."""

LOOP_BATCH_BYTES_MAX = WHOLE_BATCH_BYTES_MAX
"""A larger batch isn't read on the loop, wherever it is: a MiB takes half a millisecond."""

MAGIC_POSITION = 16


class Wanted(NamedTuple):
    """What a read asks for."""

    offset: int
    max_bytes: int
    """But for the first batch when `min_one`."""
    upper_offset: int
    """Batches that begin there or later are left out."""
    min_one: bool

    def after(self, found: ReadData) -> Wanted:
        """What is wanted still."""
        return self._replace(offset=found.next_offset, max_bytes=max(0, self.max_bytes - found.size_bytes))


class Need(Enum):
    """Why a read of one segment can't answer yet. All of it is for the pool, which then reads again."""

    DISK = "bytes are not in the page cache, or there is much to check"
    INDEX = "the offset index is on disk only"
    MENDED_INDEX = "an index entry doesn't name the batch that stands at its position"
    WALK = "offsets are missing in a segment that was not walked yet: compaction, or damage"


class Stuck(NamedTuple):
    """A read can't go on before the pool has seen to `segment`."""

    segment: Segment
    need: Need


@dataclass(slots=True)
class Found(ReadData):
    """Batches out of a file."""

    end_position: int
    """Of the last of them in the file, where the next read may begin."""


def empty(offset: int) -> ReadData:
    return ReadData(offset, offset, [], 0)


def is_hollow(found: ReadData) -> bool:
    """Batches without a record, and nothing else: what compaction leaves of a segment of which nothing stays."""
    size = found.size_bytes
    if not size or size % HEADER_BYTES or size > HOLLOW_BATCHES_MAX * HEADER_BYTES:
        return False
    return all(
        SHORT_HEADER.unpack_from(buffer, at)[1] + LENGTH_OVERHEAD_BYTES == HEADER_BYTES
        for buffer in found.buffers
        for at in range(0, len(buffer), HEADER_BYTES)
    )


def joined(parts: Sequence[ReadData]) -> ReadData:
    """Reads that follow one another, as one."""
    if len(parts) == 1:
        return parts[0]
    buffers = [buffer for part in parts for buffer in part.buffers]
    return ReadData(parts[0].base_offset, parts[-1].next_offset, buffers, sum(p.size_bytes for p in parts))


class CachedFiles:
    """Log files as far as they are open and in the page cache (loop: never waits)."""

    __slots__ = ("_fs",)
    may_block = False

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    def fetch(self, path: str, position: int, size: int) -> Buffer | None:
        """That many bytes, None when not all of them are at hand. Raises OSError."""
        fs = self._fs
        file = fs.files.pin_if_open(path)
        if file is None:
            return None
        try:
            buffer = bytearray(size)
            got = fs.preadv_nowait(file.fd, buffer, position)
        except BlockingIOError:
            return None
        finally:
            fs.files.unpin(file)
        return None if got < size else buffer  # the rest is not in the page cache


class BlockingFiles:
    """Log files, wherever their bytes are (pool)."""

    __slots__ = ("_fs",)
    may_block = True

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    def fetch(self, path: str, position: int, size: int) -> Buffer | None:
        """So many bytes, fewer only at the file's end. Raises OSError."""
        file = self._fs.files.pin(path)
        try:
            return read_fully(self._fs, file.fd, size, position)
        finally:
            self._fs.files.unpin(file)


Files = CachedFiles | BlockingFiles


def remember(hints: dict[int, tuple[Segment, int]], offset: int, segment: Segment, position: int) -> None:
    """The next read at `offset` may begin there."""
    while offset not in hints and len(hints) >= READ_HINTS_MAX:
        hints.pop(next(iter(hints.copy()), -1), None)  # a copy, as the loop and the pool both come here
    hints[offset] = (segment, position)


def read_segment(
    segment: Segment, files: Files, wanted: Wanted, hint: tuple[Segment, int] | None
) -> Found | Need | None:
    """Batches from the one that holds the offset on, below the upper offset, or what is needed first.

    `hint` may be where an earlier read ended that was to go on at that offset. None when the segment
    holds nothing at or after the offset. Raises DamagedData, and OSError as `files` do.
    """
    offset, max_bytes = wanted.offset, wanted.max_bytes
    entry: IndexEntry | None = None  # where the index was asked; else the place is exact
    if hint is not None and hint[0] is segment:
        position = hint[1]
    elif offset <= segment.base_offset:
        position = 0
    else:
        entry = segment.offset_index.floor_offset(offset)
        if entry is None:
            return Need.INDEX
        position = entry.position
    limit = segment.written
    may_be_wrong = position < segment.found_bytes
    must_follow = may_be_wrong and not segment.is_walked
    want = max(max_bytes, HEADER_BYTES) + (0 if entry is None else SKIP_BYTES)
    if limit - position < HEADER_BYTES:
        return _at_end(segment) if entry is None or entry.last_offset < 0 else Need.MENDED_INDEX
    buffer = files.fetch(segment.path, position, min(want, limit - position))
    if buffer is None:
        return Need.DISK
    if entry is not None and not _is_right(buffer, 0, entry):
        return Need.MENDED_INDEX
    first, expected = 0, _first_offset(segment, offset, entry)
    while True:
        if len(buffer) - first < HEADER_BYTES:
            position += first
            if limit - position < HEADER_BYTES:
                return _at_end(segment)
            buffer = files.fetch(segment.path, position, min(max(max_bytes, HEADER_BYTES), limit - position))
            if buffer is None:
                return Need.DISK
            first = 0
            _need_header(segment, buffer, position)
        base, length, delta = SHORT_HEADER.unpack_from(buffer, first)
        size = length + LENGTH_OVERHEAD_BYTES
        if not BATCH_BYTES_MIN <= size <= BATCH_BYTES_MAX or delta < 0:
            raise DamagedData(segment, position + first)
        if must_follow and base != expected >= 0:
            return Need.WALK
        if base + delta >= offset:
            return _cut_out(segment, files, wanted, buffer, position, first, may_be_wrong)
        first += size
        expected = base + delta + 1


def _cut_out(
    segment: Segment,
    files: Files,
    wanted: Wanted,
    buffer: Buffer,
    position: int,
    first: int,
    may_be_wrong: bool,
) -> Found | Need:
    """Batches from the one that begins at `first` of `buffer` on, which is at `position` of the file."""
    offset, max_bytes, upper_offset, min_one = wanted
    base, length, delta = SHORT_HEADER.unpack_from(buffer, first)
    size = length + LENGTH_OVERHEAD_BYTES
    if base >= upper_offset or (size > max_bytes and not min_one):
        return Found(offset, offset, [], 0, position + first)
    if size > len(buffer) - first:
        if size > LOOP_BATCH_BYTES_MAX and not files.may_block:
            return Need.DISK
        position, first = position + first, 0
        rest = segment.written - position
        more = files.fetch(segment.path, position, min(max(size, max_bytes), rest))
        if more is None:
            return Need.DISK
        buffer = more
        if len(buffer) < size:
            raise DamagedData(segment, position)
    budget = min(len(buffer), first + max(max_bytes, size))
    try:
        ending = _find_end(segment, buffer, position, first, budget, upper_offset, size)
    except DamagedData:  # the first may be right all the same
        ending = first + size, base + delta + 1
    if isinstance(ending, Need):
        return ending
    end, next_offset = ending
    view = memoryview(buffer)[first:end]
    if may_be_wrong:
        checked = _check(segment, view, position + first, next_offset, may_block=files.may_block)
        if isinstance(checked, Need):
            return checked
        good_bytes, next_offset = checked
        view, end = view[:good_bytes], first + good_bytes
    return Found(base, next_offset, [view], end - first, position + end)


def _first_offset(segment: Segment, offset: int, entry: IndexEntry | None) -> int:
    """Where the first batch looked at begins unless there are gaps; -1 when an index entry vouches for it."""
    if entry is None:
        return max(offset, segment.base_offset)
    return segment.base_offset if entry.last_offset < 0 else -1


def _is_right(buffer: Buffer, at: int, entry: IndexEntry) -> bool:
    """Whether the batch that an index entry names stands at `at`."""
    if entry.last_offset < 0:
        return True
    base, _, delta = SHORT_HEADER.unpack_from(buffer, at)
    return bool(buffer[at + MAGIC_POSITION] == MAGIC and base + delta == entry.last_offset)


def _need_header(segment: Segment, buffer: Buffer, position: int) -> None:
    if len(buffer) < HEADER_BYTES:
        raise DamagedData(segment, position)


def _find_end(
    segment: Segment, buffer: Buffer, position: int, first: int, budget: int, upper_offset: int, size: int
) -> tuple[int, int] | Need:
    """(end of the last batch that fits, offset after it); the first, of `size` bytes, fits for sure."""
    end = first
    next_offset = -1
    entry = segment.offset_index.find_below(position + budget - HEADER_BYTES, upper_offset)
    if entry is None:
        if budget - first > WALK_BATCHES_MAX * size:
            return Need.INDEX
    elif entry.position > position + first:
        if not _is_right(buffer, entry.position - position, entry):
            return Need.MENDED_INDEX
        end = entry.position - position
    unpack = SHORT_HEADER.unpack_from
    last = budget - HEADER_BYTES
    while end <= last:
        base, length, delta = unpack(buffer, end)
        after = end + length + LENGTH_OVERHEAD_BYTES
        if after - end < BATCH_BYTES_MIN:
            raise DamagedData(segment, position + end)
        if base >= upper_offset or after > budget:
            if next_offset < 0:
                next_offset = base
            break
        end = after
        next_offset = base + delta + 1
    return end, next_offset


def _at_end(segment: Segment) -> Need | None:
    """Nothing at or after an offset that should lie in `segment`: its end was compacted away, or it is damaged."""
    return Need.WALK if segment.found_bytes and not segment.is_walked else None


def _check(
    segment: Segment, batches: memoryview, position: int, next_offset: int, *, may_block: bool
) -> tuple[int, int] | Need:
    """How many bytes of `batches`, at `position` of the file, are right, and the offset after them.

    `next_offset` is the one after all. Raises DamagedData when the first batch is wrong.
    """
    at, count, expected, stop = 0, 0, -1, len(batches)
    unpack = SHORT_HEADER.unpack_from
    while at < stop:
        base, length, delta = unpack(batches, at)
        end = at + length + LENGTH_OVERHEAD_BYTES
        is_batch = base >= expected and end <= len(batches) and batches[at + MAGIC_POSITION] == MAGIC
        if not is_batch or not is_crc_valid(batches[at:end]):
            if not at:
                raise DamagedData(segment, position)
            return at, expected
        if base > expected >= 0 and not segment.is_walked:
            return Need.WALK
        expected = base + delta + 1
        at = end
        count += 1
        if count > CHECK_BATCHES_MAX and not may_block:
            return Need.DISK
    return at, next_offset


def trust(fs: FileSystem, segment: Segment, size: int, end_offset: int) -> None:
    """Read the first `size` bytes of a segment, which end at or before `end_offset`, unless that was done (pool).

    Raises DamagedData when anything is wrong.
    """
    if segment.is_walked:
        return
    position, expected = 0, segment.base_offset
    for info, view in walk_file(fs, segment.path, 0, size):
        if not expected <= info.base_offset < info.next_offset <= end_offset or not is_crc_valid(view):
            break
        position, expected = info.position + info.size_bytes, info.next_offset
    if position < size:
        raise DamagedData(segment, position)
    segment.is_walked = True


def read_buffers(chunks: Sequence[Appended], first: int, wanted: Wanted) -> ReadData:
    """Batches out of staged memory; chunk number `first` is the one that holds `offset`.

    A chunk is one batch in two parts (staged as a leader), or one buffer of whole
    batches (as a follower).
    """
    offset, max_bytes, upper_offset, min_one = wanted
    out: list[Buffer] = []
    size_bytes, base_offset, next_offset = 0, -1, offset
    for index in range(first, len(chunks)):
        chunk = chunks[index]
        if not chunk.size_bytes:
            continue
        if chunk.base_offset >= upper_offset:
            break
        left = max_bytes - size_bytes
        is_batch = len(chunk.data) > 1
        must_take = min_one and not out
        if is_batch or (offset <= chunk.base_offset and chunk.last_offset < upper_offset):
            if chunk.size_bytes <= left or (must_take and is_batch):
                out.extend(chunk.data)
                size_bytes += chunk.size_bytes
                base_offset = chunk.base_offset if base_offset < 0 else base_offset
                next_offset = chunk.last_offset + 1
                continue
            if is_batch:
                break
        part = _cut_chunk(chunk.data[0], offset, left, upper_offset, must_take)
        out.extend(part.buffers)
        size_bytes += part.size_bytes
        if part.size_bytes:
            base_offset = part.base_offset if base_offset < 0 else base_offset
            next_offset = part.next_offset
        break
    return ReadData(base_offset, next_offset, out, size_bytes) if out else empty(offset)


def _cut_chunk(buffer: Buffer, offset: int, max_bytes: int, upper_offset: int, min_one: bool) -> ReadData:
    """Whole batches out of a buffer that holds nothing else."""
    end = len(buffer)
    position, start, base_offset, next_offset = 0, -1, offset, offset
    while position < end:
        base, length, delta = SHORT_HEADER.unpack_from(buffer, position)
        size = length + LENGTH_OVERHEAD_BYTES
        if base >= upper_offset:
            break
        if base + delta >= offset:
            if start < 0:
                if size > max_bytes and not min_one:
                    break
                start, base_offset = position, base
            elif position + size - start > max_bytes:
                break
            next_offset = base + delta + 1
        position += size
    if start < 0:
        return empty(offset)
    return ReadData(base_offset, next_offset, [memoryview(buffer)[start:position]], position - start)
