"""Whether what attacks cost is within the bounds, with the short list of what is known to be beyond.

Pure. Each exception has a most of its own, and stands with its reason on docs/results/security.md:
what is worse than that is a miss as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Known:
    """An attack that is known to cost more."""

    attack: str
    measure: str
    most: float
    cluster: str
    why: str
    """The words by which the reason begins on the page."""


EXCEPTIONS: Final = (
    Known("produce_empty_records", "memory_mb", 80.0, "plain", "The large Produce"),
    Known("produce_empty_records", "p99_ratio", 4.0, "plain", "The large Produce"),
)


@dataclass(frozen=True)
class Verdict:
    """What is beyond the bounds, a line each."""

    missed: tuple[str, ...]
    excepted: tuple[str, ...]


def judge(costs: Sequence[Cost], compared: frozenset[str] = frozenset()) -> Verdict:
    """Look at every row. `compared`: names of what is no attack and only stands beside one."""
    missed: list[str] = []
    excepted: list[str] = []
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
            if value <= bound.most:
                continue
            text = f"{row}: {value:.1f} {bound.unit}, the bound is {bound.most:g}"
            known = _known(cost, bound.measure)
            if known is None:
                missed.append(text)
            elif value > known.most:
                missed.append(f"{text}, by exception {known.most:g} ({known.why})")
            else:
                excepted.append(f"{text}: {known.why}")
    return Verdict(tuple(missed), tuple(excepted))


def _known(cost: Cost, measure: str) -> Known | None:
    wanted = (cost.attack, measure, cost.cluster)
    return next((one for one in EXCEPTIONS if (one.attack, one.measure, one.cluster) == wanted), None)
