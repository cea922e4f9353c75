"""Medians, spreads, and ratios with their intervals. Pure: the same samples give the same interval.

A ratio is taken within each pair, since what both shared (the machine's hour) drops out there; its interval is
the bootstrap's over pairs: as many pairs are drawn with replacement as there are, again and again, and the
middle 95 % of the medians stay.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

RESAMPLES: Final = 4000
CONFIDENCE: Final = 0.95
_SEED: Final = 15


@dataclass(frozen=True)
class Spread:
    """Of one figure of one contender."""

    count: int
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Ratio:
    """Of two contenders, over the rounds that both have."""

    pairs: int
    median: float
    low: float
    high: float
    """The interval's ends; with one pair both are its ratio."""


def spread(values: Sequence[float]) -> Spread:
    """Raises ValueError for none."""
    if not values:
        raise ValueError("no values: nothing was measured")
    return Spread(len(values), statistics.median(values), min(values), max(values))


def ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Of (figure, what it is held against). Raises ValueError when no pair can be divided."""
    ratios = [figure / base for figure, base in pairs if base > 0]
    if not ratios:
        raise ValueError("no pair: both have to be measured in one round, and the second not as nothing")
    low, high = interval(ratios)
    return Ratio(len(ratios), statistics.median(ratios), low, high)


def interval(values: Sequence[float], resamples: int = RESAMPLES) -> tuple[float, float]:
    """Ends of the median's bootstrap interval."""
    chance = random.Random(_SEED)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(resamples))
    cut = (1 - CONFIDENCE) / 2
    return medians[int(cut * resamples)], medians[min(resamples - 1, int((1 - cut) * resamples))]


def at(samples: Sequence[tuple[int, Mapping[str, float]]], time_ns: int) -> dict[str, float]:
    """What counters by name were at a time: between two samples in proportion, before and after all as the nearest.
    Raises ValueError for no samples."""
    if not samples:
        raise ValueError("no samples: nothing was counted")
    earlier, later = samples[0], samples[-1]
    for sample in samples:
        if sample[0] <= time_ns:
            earlier = sample
        else:
            later = sample
            break
    span_ns = later[0] - earlier[0]
    share = min(1.0, max(0.0, (time_ns - earlier[0]) / span_ns)) if span_ns > 0 else 0.0
    return {name: value + share * (later[1].get(name, value) - value) for name, value in earlier[1].items()}


def verdict(found: Ratio, bound: float, *, at_most: bool) -> str:
    """reached: the whole interval is on the good side; perhaps: the median is; missed otherwise."""
    good = found.median <= bound if at_most else found.median >= bound
    surely = found.high <= bound if at_most else found.low >= bound
    return "reached" if surely else "perhaps" if good else "missed"
