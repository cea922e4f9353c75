"""A histogram for the hot path: two plain additions for each value, Prometheus' form only at a scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import HistogramMetricFamily

LATENCY_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of all histograms of what a client waits for, in s: they can be laid over each other."""


class PlainHistogram:
    """Counts by upper bound. Of one thread."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_S) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many were seen."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus wants them: each with all that is below it."""
        names = [*map(str, self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True))


def histogram_family(
    name: str, text: str, labels: Sequence[str], histograms: Iterable[tuple[Sequence[str], PlainHistogram]]
) -> HistogramMetricFamily:
    """One family of histograms by the values of `labels`."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, histogram in histograms:
        family.add_metric(values, histogram.buckets(), histogram.sum)
    return family


__all__ = ["LATENCY_BOUNDS_S", "PlainHistogram", "histogram_family"]
