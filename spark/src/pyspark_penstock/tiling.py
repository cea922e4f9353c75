"""Cuts offset ranges into Spark partitions, and caps how far one micro-batch goes.

Both are pure functions of offsets, so that a replayed micro-batch is planned alike. The
tiles of a range are exact: they follow one another with no gap and no overlap
(SPARK-28489 was a connector that dropped offsets here).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of one topic partition, of one incarnation of the topic."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: bytes = b""
    epoch: int = -1
    """Leader epoch in which `end` was told: nothing below it was written in a later one. -1: not known."""

    @property
    def size(self) -> int:
        return self.end - self.start


def tile(
    ranges: Sequence[OffsetRange],
    partitions_min: int | None = None,
    records_per_partition_max: int | None = None,
) -> list[OffsetRange]:
    """Splits `ranges` so that none is longer than the maximum and, where the offsets suffice,
    there are at least `partitions_min` of them. Empty ranges vanish.

    The parts of one range differ in size by at most one.
    """
    ranges = [item for item in ranges if item.size > 0]
    parts = [
        1 if records_per_partition_max is None else -(-item.size // records_per_partition_max)
        for item in ranges
    ]
    missing = (partitions_min or 0) - sum(parts)
    if missing > 0:
        sizes = [item.size for item in ranges]
        wanted = apportion(sizes, min(partitions_min or 0, sum(sizes)))
        # Never fewer than the maximum size asks for, so the sum can only exceed the minimum.
        parts = [max(old, new) for old, new in zip(parts, wanted, strict=True)]
    tiles: list[OffsetRange] = []
    for item, count in zip(ranges, parts, strict=True):
        bounds = [item.start + item.size * index // count for index in range(count + 1)]
        tiles += [replace(item, start=a, end=b) for a, b in pairwise(bounds)]
    return tiles


def apportion(sizes: Sequence[int], total: int, turn: int = 0) -> list[int]:
    """Shares of `total` in proportion to `sizes`, none above its size, adding up to min(total, sum(sizes)).

    Every non-empty size gets at least 1 while there is enough, so that a small partition is
    never starved by a large one; when there isn't, `turn` says which ones come first.
    """
    total = min(total, sum(sizes))
    filled = [index for index, size in enumerate(sizes) if size > 0]
    shares = [0] * len(sizes)
    if total <= len(filled):
        for step in range(total):
            shares[filled[(turn + step) % len(filled)]] = 1
        return shares
    spare = total - len(filled)
    room = {index: sizes[index] - 1 for index in filled}
    whole = sum(room.values())
    remainders = []
    for index in filled:
        share, remainder = divmod(spare * room[index], whole) if whole else (0, 0)
        shares[index] = 1 + share
        remainders.append((-remainder, index))
    for _, index in sorted(remainders)[: total - sum(shares)]:
        shares[index] += 1
    return shares


def cap(
    start: Mapping[tuple[str, int], int],
    end: Mapping[tuple[str, int], int],
    records_max: int,
) -> dict[tuple[str, int], int]:
    """New end offsets, `records_max` offsets in all beyond `start`, split in proportion to what waits.

    Partitions that would go backwards stay at their start.
    """
    keys = sorted(end)
    sizes = [max(end[key] - start[key], 0) for key in keys]
    shares = apportion(sizes, records_max, turn=sum(start[key] for key in keys))
    return {key: start[key] + share for key, share in zip(keys, shares, strict=True)}
