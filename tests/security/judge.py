"""Whether what attacks cost is within the bounds. Pure.

The two times are measured once more, and again, where the first is near its bound or beyond it, and the median of the
three counts: of a shared machine one look in a hundred says something else than the next. It is asked on both sides
of the bound, so it saves no row that is beyond more often than not, and finds out one that kept its bound by luck. Of
everything else the worst of the three counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from security.measure import Cost


@dataclass(frozen=True)
class Bound:
    """A measure of `Cost`, and the most that is well."""

    measure: str
    most: float
    unit: str


BOUNDS: Final = (
    Bound("lag_ms", 100.0, "ms of loop lag"),
    Bound("memory_mb", 20.0, "MB of memory"),
    Bound("p99_ratio", 2.0, "times the p99 of honest produces"),
)


TIMES: Final = ("lag_ms", "p99_ratio")
"""What a machine that others work on makes larger."""
NEAR: Final = 0.8
"""A time above so much of its bound is measured again."""
MEASURED: Final = 3
"""How often, in all. Odd: the median is one of them."""


def is_near(cost: Cost) -> bool:
    """Whether one look at it is not enough."""
    return any(getattr(cost, one.measure) > NEAR * one.most for one in BOUNDS if one.measure in TIMES)


def one_of(costs: Sequence[Cost]) -> Cost:
    """The row of an attack that was measured several times: medians of the times, the worst of all else."""
    if len(costs) == 1:
        return costs[0]
    typical = sorted(costs, key=lambda cost: cost.p99_ratio)[len(costs) // 2]
    return replace(
        typical,
        refused=all(cost.refused for cost in costs),
        said=next((cost.said for cost in costs if not cost.refused), typical.said),
        lag_ms=median(cost.lag_ms for cost in costs),
        memory_mb=max(cost.memory_mb for cost in costs),
        lost=max(cost.lost for cost in costs),
        large_ms=max(cost.large_ms for cost in costs),
        failures=max(cost.failures for cost in costs),
        lags_ms=tuple(cost.lag_ms for cost in costs),
        p99_ratios=tuple(cost.p99_ratio for cost in costs),
    )


def judge(costs: Sequence[Cost], compared: frozenset[str] = frozenset()) -> Sequence[str]:
    """What is beyond the bounds, a line each. `compared`: names of what is no attack and only stands beside one."""
    missed: list[str] = []
    for cost in costs:
        row = f"{cost.attack} ({cost.cluster}, {cost.who})"
        if not cost.refused:
            missed.append(f"{row}: was not refused: {cost.said}")
        if cost.lost:
            missed.append(f"{row}: {cost.lost} processes lost or nodes fenced")
        if cost.attack in compared:
            continue
        for bound in BOUNDS:
            value: float = getattr(cost, bound.measure)
            if value > bound.most:
                missed.append(f"{row}: {value:.1f} {bound.unit}, the bound is {bound.most:g}")
    return missed
