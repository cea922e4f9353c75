"""Lets the rows of a task through no sooner than they are due.

Each task has a share of the rate, as its partition has of the slice's records, so that all end together. A slice that
begins late (Spark starts a job, a unit is committed) catches up: its records are due by the clock, and not one after
another. Clocks of executors may differ from the driver's; a task takes a slice for late by the slice's own length at
most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

GRAIN_S: Final = 0.1
"""Rows that are due within it go together."""


@dataclass(frozen=True, slots=True)
class Pace:
    """When the rows of a slice are due: by `per_s` (records a second, by partition), or by their time."""

    begun_s: float
    """When the slice began: the driver's clock, s since 1970."""
    length_s: float
    per_s: Mapping[int, float] = field(default_factory=dict)
    speed: float = 0.0
    """Original time per time of the replay."""
    from_ms: int = 0
    """The record time that is due when the slice begins."""

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """For mapInArrow."""
        return paced(self, batches, late_s=self.late_s(time.time()))

    def late_s(self, now_s: float) -> float:
        """How long the slice has been going on when a task begins."""
        return min(max(now_s - self.begun_s, 0.0), self.length_s)


class Dues:
    """When each row of one task is due, in s since the slice began: ascending."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._sent = 0
        self._last_ms = pace.from_ms

    def of(self, partition: int, times_ms: NDArray[np.int64]) -> NDArray[np.float64]:
        pace = self._pace
        if pace.speed:
            reached = np.maximum.accumulate(np.maximum(times_ms, self._last_ms))
            self._last_ms = int(reached[-1])
            return (reached - pace.from_ms) / (1000.0 * pace.speed)
        due = (self._sent + np.arange(len(times_ms))) / pace.per_s[partition]
        self._sent += len(times_ms)
        return due


def paced(
    pace: Pace,
    batches: Iterable[Any],
    *,
    late_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Any]:
    """The same rows, in the same order, in smaller batches."""
    dues, began_s = Dues(pace), clock()
    for batch in batches:
        if not batch.num_rows:
            continue
        due = dues.of(batch.column("partition")[0].as_py(), _millis(batch.column("timestamp")))
        at = 0
        while at < batch.num_rows:
            now_s = late_s + clock() - began_s
            upto = int(np.searchsorted(due, now_s + GRAIN_S, side="right"))
            if upto > at:
                yield batch.slice(at, upto - at)
                at = upto
            else:
                sleep(float(due[at]) - now_s)


def _millis(column: Any) -> NDArray[np.int64]:
    import pyarrow as pa

    micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64()).fill_null(0)
    found: NDArray[np.int64] = micros.to_numpy(zero_copy_only=False) // 1000
    return found
