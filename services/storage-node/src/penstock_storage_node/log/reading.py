"""Finding and cutting out whole batches, from a log file or from staged memory.

The same code serves the loop (which must not wait: `fetch` raises BlockingIOError) and
the disk pool. What it costs doesn't grow with the batches read: the start is found by a
hint (where the last read ended) or the offset index, the end by the index too, and only
the few batches between an index entry and the exact place are walked.

Index entries are hints: the batch found at one must end with the entry's offset, else
`IndexDamaged` sends the read to the pool, which walks the segment and mends the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.limits import BATCH_BYTES_MAX
from penstock_core.records.batch import HEADER_BYTES, LENGTH_OVERHEAD_BYTES, Buffer
from penstock_storage_node.log.index import IndexEntry
from penstock_storage_node.log.jobs import ReadData
from penstock_storage_node.log.log_core import Appended
from penstock_storage_node.log.segment import BATCH_BYTES_MIN, SHORT_HEADER, Segment

SKIP_BYTES = 8192
"""Read beside what was asked for when the start is known only to an index entry."""

WALK_BATCHES_MAX = 256
"""About so many batches are walked on the loop (0.2 us each) before the index file is fetched for it."""

MAGIC_POSITION = 16

Fetch = Callable[[int, int], Buffer]
"""(position, size) to bytes of the log file; fewer only at its end. May raise BlockingIOError."""


class IndexDamaged(Exception):
    """An index entry doesn't name the batch that stands at its position."""


def empty(offset: int) -> ReadData:
    return ReadData(offset, offset, [], 0)


def read_segment(
    segment: Segment,
    fetch: Fetch,
    offset: int,
    max_bytes: int,
    upper_offset: int,
    *,
    start: IndexEntry,
    is_exact: bool,
    min_one: bool,
) -> tuple[ReadData, int] | None:
    """Batches from the one that holds `offset` on, below `upper_offset`, and the position after them.

    `start` is where to begin looking; `is_exact`: the wanted batch stands right there.
    None when the segment holds nothing at or after `offset`.
    """
    limit = segment.written
    position = start.position
    want = max(max_bytes, HEADER_BYTES) + (0 if is_exact else SKIP_BYTES)
    if limit - position < HEADER_BYTES:
        if start.last_offset >= 0:
            raise IndexDamaged
        return None
    buffer = fetch(position, min(want, limit - position))
    if not is_exact:
        _check_entry(buffer, 0, start)
    first = 0
    while True:
        if len(buffer) - first < HEADER_BYTES:
            position += first
            if limit - position < HEADER_BYTES:
                return None
            buffer, first = fetch(position, min(max(max_bytes, HEADER_BYTES), limit - position)), 0
            _need_header(segment, buffer, position)
        base, length, delta = SHORT_HEADER.unpack_from(buffer, first)
        size = length + LENGTH_OVERHEAD_BYTES
        if not BATCH_BYTES_MIN <= size <= BATCH_BYTES_MAX or delta < 0:
            raise damaged(segment, position + first)
        if base + delta >= offset:
            break
        first += size
    if base >= upper_offset or (size > max_bytes and not min_one):
        return empty(offset), position + first
    if size > len(buffer) - first:
        position, first = position + first, 0
        buffer = fetch(position, min(max(size, max_bytes), limit - position))
        if len(buffer) < size:
            raise damaged(segment, position)
    budget = min(len(buffer), first + max(max_bytes, size))
    end, next_offset = _find_end(segment, buffer, position, first, budget, upper_offset, size)
    view = memoryview(buffer)[first:end]
    return ReadData(base, next_offset, [view], end - first), position + end


def _check_entry(buffer: Buffer, at: int, entry: IndexEntry) -> None:
    if entry.last_offset < 0:
        return
    base, _, delta = SHORT_HEADER.unpack_from(buffer, at)
    if buffer[at + MAGIC_POSITION] != 2 or base + delta != entry.last_offset:
        raise IndexDamaged


def _need_header(segment: Segment, buffer: Buffer, position: int) -> None:
    if len(buffer) < HEADER_BYTES:
        raise damaged(segment, position)


def _find_end(
    segment: Segment, buffer: Buffer, position: int, first: int, budget: int, upper_offset: int, size: int
) -> tuple[int, int]:
    """(end of the last batch that fits, offset after it); the first, of `size` bytes, fits for sure."""
    end = first
    next_offset = -1
    is_long = budget - first > WALK_BATCHES_MAX * size
    entry = segment.offset_index.below(position + budget - HEADER_BYTES, upper_offset, may_load=is_long)
    if entry.position > position + first:
        _check_entry(buffer, entry.position - position, entry)
        end = entry.position - position
    unpack = SHORT_HEADER.unpack_from
    while budget - end >= HEADER_BYTES:
        base, length, delta = unpack(buffer, end)
        size = length + LENGTH_OVERHEAD_BYTES
        if size < BATCH_BYTES_MIN:
            raise damaged(segment, position + end)
        if base >= upper_offset or size > budget - end:
            if next_offset < 0:
                next_offset = base
            break
        end += size
        next_offset = base + delta + 1
    return end, next_offset


def damaged(segment: Segment, position: int) -> PenstockError:
    return PenstockError(
        ErrorCode.KAFKA_STORAGE_ERROR,
        f"{segment.path} is damaged at byte {position}: restart the node, it will cut and fetch again",
    )


def read_buffers(
    chunks: Sequence[Appended],
    first: int,
    offset: int,
    max_bytes: int,
    upper_offset: int,
    *,
    min_one: bool,
) -> ReadData:
    """Batches out of staged memory; chunk number `first` is the one that holds `offset`.

    A chunk is one batch in two parts (staged as a leader), or one buffer of whole
    batches (as a follower).
    """
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
