"""How many bytes offsets take, and where ranges of them may be cut, by sizes of segments and their offset indexes.

An index entry says that a batch which ends with an offset begins at a position. Where that batch ends the entry does
not say; the next entry is the first one that begins more than a step of the index behind it, so the end is taken to
lie there: exact where batches are larger than a step, else at most a step and a batch too far.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class SegmentSizes(NamedTuple):
    """What is known of a segment: entries as in `index.Head`, offsets less the base offset."""

    base_offset: int
    end_offset: int
    """Where the next one begins, or the log's end."""
    size_bytes: int
    offsets: array[int]
    positions: array[int]


class SizedRange(NamedTuple):
    """Bytes of a range, and ends of batches inside of it, rising."""

    size_bytes: int
    cuts: list[int]


def size_range(
    segments: Sequence[SegmentSizes], start: int, end: int, cut_bytes: int, cuts_max: int
) -> SizedRange:
    """Bytes of offsets from `start` on below `end`, and cuts of it.

    The parts between cuts have at most `cut_bytes`, but for those of one batch (or step of the index); 0: no cuts.
    They are larger where more than `cuts_max` cuts were needed.
    """
    offsets, places = array("q"), array("q")
    at = 0
    low = high = -1
    for segment in segments:
        if segment.end_offset > start and segment.base_offset < end:
            low = at + _place(segment, start) if low < 0 else low
            high = at + _place(segment, end)
            if cut_bytes:
                _add_marks(segment, at, start, end, offsets, places)
        at += segment.size_bytes
    size = max(high - low, 0)
    if not cut_bytes or cuts_max < 1:
        return SizedRange(size, [])
    cuts = _cut(offsets, places, low, high, cut_bytes)
    while len(cuts) > cuts_max:
        # Parts may be as small as half of what they may have, so a share of the whole is no sure bound.
        cut_bytes = max(cut_bytes + cut_bytes // 4 + 1, size // (cuts_max + 1))
        cuts = _cut(offsets, places, low, high, cut_bytes)
    return SizedRange(size, cuts)


def _place(segment: SegmentSizes, offset: int) -> int:
    """Where in a segment the batch begins that has the offset, or follows it."""
    if offset <= segment.base_offset:
        return 0
    if offset >= segment.end_offset:
        return segment.size_bytes
    after = bisect_left(segment.offsets, offset - segment.base_offset)
    return segment.positions[after] if after < len(segment.positions) else segment.size_bytes


def _add_marks(
    segment: SegmentSizes, at: int, start: int, end: int, offsets: array[int], places: array[int]
) -> None:
    """Ends of batches inside of the range, and where in the log they lie."""
    base = segment.base_offset
    if start < base < end:
        offsets.append(base)
        places.append(at)
    first = bisect_left(segment.offsets, start - base)
    last = bisect_left(segment.offsets, min(end, segment.end_offset) - base - 1)
    for index in range(first, last):
        behind = index + 1
        place = segment.positions[behind] if behind < len(segment.positions) else segment.size_bytes
        offsets.append(base + segment.offsets[index] + 1)
        places.append(at + place)


def _cut(offsets: array[int], places: array[int], low: int, high: int, cut_bytes: int) -> list[int]:
    cuts: list[int] = []
    index = 0
    while high - low > cut_bytes and index < len(offsets):
        # The last one that is near enough, or else the next one.
        index = max(bisect_right(places, low + cut_bytes, index) - 1, index)
        if places[index] >= high:
            break
        cuts.append(offsets[index])
        low = places[index]
        index += 1
    return cuts


__all__ = ["SegmentSizes", "SizedRange", "size_range"]
