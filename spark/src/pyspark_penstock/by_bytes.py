"""Plans by bytes: ends of a micro-batch, and cuts of ranges, where batches end.

Both know of a range only what `SizeRanges` tells: its bytes, and offsets at which batches end. How many bytes lie
below such an offset is asked for by the same call. Nobody who knows: None, and the plan goes by offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from pyspark_penstock.questions import Sized
from pyspark_penstock.tiling import OffsetRange, apportion, tile

Ask = Callable[[Sequence[OffsetRange], int, int], list[Sized] | None]
"""Ranges, bytes between cuts (0: none), most cuts."""

CUTS_MAX = 1_000
TILE_CUTS_MAX = 10_000
"""The most that a node gives."""
FINE_BYTES = 32 * 1024
"""Cuts for tiles lie so close at least, where there are not too many."""
_PROBES = 16
"""Offsets that are tried in one round for each place that is looked for."""


def capped(
    ask: Ask, ranges: Sequence[OffsetRange], bytes_max: int, turn: int = 0
) -> list[OffsetRange] | None:
    """The first `bytes_max` bytes of the ranges at most, shared out by size; one batch at least.

    `turn`: which range has the one batch, when no share is enough for one.
    """
    whole = ask(ranges, 0, 0)
    if whole is None:
        return None
    sizes = [item.size_bytes for item in whole]
    if sum(sizes) <= bytes_max:
        return list(ranges)
    shares = apportion(sizes, bytes_max, turn)
    left: list[OffsetRange] = []
    for item, size, share in zip(ranges, sizes, shares, strict=True):
        found = item if size <= share else _head(ask, item, size, share)
        if found is None:
            return None
        left.append(found)
    if any(item.size > 0 for item in left):
        return left
    waiting = [index for index, item in enumerate(ranges) if item.size > 0]
    first = waiting[turn % len(waiting)]
    cuts = _first_cuts(ask, ranges[first], sizes[first], 1)
    if cuts is None:
        return None
    left[first] = replace(ranges[first], end=cuts[0] if cuts else ranges[first].end)
    return left


def _first_cuts(ask: Ask, item: OffsetRange, size: int, share: int) -> list[int] | None:
    """Cuts of the beginning of a range, so close that some lie within `share` if batches are that small."""
    step = max(share // _PROBES, 1)
    behind: list[int] = []
    while True:
        found = ask([item], step, CUTS_MAX)
        if found is None:
            return None
        cuts = found[0].cuts
        if size <= step * CUTS_MAX or not cuts:
            return [*cuts, *behind]
        # Too many for one answer: they lie further apart, and only the first ones are of use.
        part = max(size // (len(cuts) + 1), 1)
        near = min(2 * share // part + 1, len(cuts) - 1)
        shorter = replace(item, end=cuts[near])
        inside = ask([shorter], 0, 0)
        if inside is None or inside[0].size_bytes >= size:
            return [*cuts, *behind]
        item, size, behind = shorter, inside[0].size_bytes, [shorter.end]


def _head(ask: Ask, item: OffsetRange, size: int, share: int) -> OffsetRange | None:
    """As many batches from the start of a range as have `share` bytes at most."""
    cuts = _first_cuts(ask, item, size, max(share, 1))
    if cuts is None:
        return None
    ends = _places(ask, item, cuts, [share])
    if ends is None:
        return None
    at = ends[0][0]
    return replace(item, end=item.start if at < 0 else cuts[at])


def _places(
    ask: Ask, item: OffsetRange, cuts: Sequence[int], targets: Sequence[int]
) -> list[tuple[int, int]] | None:
    """For each target the last cut with at most so many bytes below it, and these bytes; (-1, 0) for none."""
    bounds = [
        (-1, 0, len(cuts)) for _ in targets
    ]  # a cut that is near enough, its bytes, one that is too far
    while any(high - low > 1 for low, _, high in bounds):
        probes: list[tuple[int, int]] = []
        for index, (low, _, high) in enumerate(bounds):
            span = high - low - 1
            count = min(span, _PROBES)
            probes += [(index, low + 1 + span * k // count) for k in range(count)]
        found = ask([replace(item, end=cuts[at]) for _, at in probes], 0, 0)
        if found is None:
            return None
        for (index, at), sized in zip(probes, found, strict=True):
            low, taken, high = bounds[index]
            if sized.size_bytes <= targets[index]:
                bounds[index] = (at, sized.size_bytes, high) if at > low else bounds[index]
            else:
                bounds[index] = (low, taken, min(high, at))
    return [(low, taken) for low, taken, _ in bounds]


def tile_by_bytes(
    ask: Ask,
    ranges: Sequence[OffsetRange],
    partitions_min: int | None,
    records_max: int | None,
    bytes_max: int | None,
) -> list[OffsetRange] | None:
    """As `tiling.tile`, in parts of even bytes, none above `bytes_max` but for those of one batch."""
    ranges = tile(ranges, None, records_max)
    whole = ask(ranges, 0, 0)
    if whole is None:
        return None
    sizes = [max(item.size_bytes, 1) for item in whole]
    parts = [1 if bytes_max is None else -(-size // bytes_max) for size in sizes]
    if sum(parts) < (partitions_min or 0):
        wanted = apportion(sizes, partitions_min or 0)
        parts = [max(old, new) for old, new in zip(parts, wanted, strict=True)]
    tiles: list[OffsetRange] = []
    for item, size, count in zip(ranges, sizes, parts, strict=True):
        cut = _even(ask, item, size, count)
        if cut is None:
            return None
        tiles += cut
    # Fewer batches than parts: offsets can still be divided.
    return tiles if len(tiles) >= (partitions_min or 0) else tile(tiles, partitions_min)


def _even(ask: Ask, item: OffsetRange, size: int, count: int) -> list[OffsetRange] | None:
    if count < 2:
        return [item]
    step = max(min(FINE_BYTES, size // count), size // TILE_CUTS_MAX, 1)
    found = ask([item], step, TILE_CUTS_MAX)
    if found is None:
        return None
    cuts = found[0].cuts
    places = _places(ask, item, cuts, [size * k // count for k in range(1, count)])
    if places is None:
        return None
    bounds = sorted({item.start, item.end, *(cuts[at] for at, _ in places if at >= 0)})
    return [replace(item, start=low, end=high) for low, high in pairwise(bounds)]


__all__ = ["Ask", "capped", "tile_by_bytes"]
