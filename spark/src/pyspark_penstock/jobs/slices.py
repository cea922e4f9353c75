"""How a replay is cut into slices: offsets of each partition, and when they are due. Pure.

A slice is written as one unit. Order within a partition is that of its offsets, whatever its times say: a record whose
time lies before that of one ahead of it goes with that one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from pyspark_penstock.jobs.frame import Offsets

Ranges = dict[int, tuple[int, int]]
"""By partition: the first offset, and the one behind the last."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Records of one partition that lie in one step of time."""

    partition: int
    step: int
    first: int
    """Their lowest offset."""
    end: int
    """Behind their highest."""
    count: int
    first_ms: int
    """Their earliest time."""


def by_count(first: Mapping[int, int], end: Mapping[int, int], most: int) -> Iterator[Ranges]:
    """Slices of about so many offsets, in each of which every partition has its share."""
    total = sum(max(end[part] - first[part], 0) for part in first)
    pieces = ceil(total / max(most, 1))
    for piece in range(pieces):
        ranges: Ranges = {}
        for part, start in first.items():
            count = max(end[part] - start, 0)
            low, high = start + count * piece // pieces, start + count * (piece + 1) // pieces
            if low < high:
                ranges[part] = low, high
        if ranges:
            yield ranges


def by_time(stretches: Sequence[Stretch]) -> list[tuple[int, Ranges]]:
    """Slices by step of time: each partition's offsets from where it first gets to a step to where it passes it."""
    parts: dict[int, list[Stretch]] = {}
    for item in stretches:
        parts.setdefault(item.partition, []).append(item)
    found: dict[int, Ranges] = {}
    for part, items in parts.items():
        upto = max(item.end for item in items)
        for item in sorted(items, key=lambda one: one.step, reverse=True):
            # A later step may begin at a lower offset: what lies between goes with it.
            if item.first < upto:
                found.setdefault(item.step, {})[part] = item.first, upto
                upto = item.first
    return sorted(found.items())


def covered(stretches: Sequence[Stretch]) -> tuple[Offsets, Offsets]:
    """First offsets and ends of all."""
    first: Offsets = {}
    end: Offsets = {}
    for item in stretches:
        first[item.partition] = min(first.get(item.partition, item.first), item.first)
        end[item.partition] = max(end.get(item.partition, item.end), item.end)
    return first, end
