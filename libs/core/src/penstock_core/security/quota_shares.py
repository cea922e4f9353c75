"""How processes share a quota of the whole cluster. (Kafka: each broker gives every client the whole quota.)

Gateways and nodes report how much of a quota their clients use; each second the active controller deals it out. Each
gets a floor, so that a client that begins somewhere else is not at zero; the rest goes to those who want more,
evenly until each has what it wants; what nobody wants is spread over all. The shares are never more
than the quota together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

FLOOR: Final = 0.1
"""The part of an even share that everybody has."""
GROWTH: Final = 2.0
"""A process that throttles wants so many times its rate: it does not know how much more there is."""


def demand(rate: float, throttled: bool) -> float:
    """What a process wants, by what it measured since the last report."""
    return rate * GROWTH if throttled else rate


def isolated_share(quota: float, processes: int) -> float:
    """What a process takes that has not heard from the controllers: as much as they keep for it."""
    return quota / max(1, processes)


def shares(quota: float, demands: Mapping[str, float | None]) -> dict[str, float]:
    """The share of each process, by its demand; None: it is registered and was not heard from lately.

    Their sum is at most `quota`. If all demands together are, each has at least its demand.
    """
    if not demands:
        return {}
    even = isolated_share(quota, len(demands))
    dealt = {name: even for name, wanted in demands.items() if wanted is None}
    wants = {name: max(0.0, wanted) for name, wanted in demands.items() if wanted is not None}
    if wants:
        dealt |= _deal(quota - math.fsum(dealt.values()), even * FLOOR, wants)
    return _within(quota, {name: dealt[name] for name in demands})


def _deal(quota: float, floor: float, wants: Mapping[str, float]) -> dict[str, float]:
    """Raise a common level: everybody gets the level, at most what it wants and at least the floor."""
    rest, left = quota, len(wants)
    dealt: dict[str, float] = {}
    for name, wanted in sorted(wants.items(), key=lambda item: (item[1], item[0])):
        # In this order each that wants less than its part leaves the more to all after it.
        dealt[name] = min(max(wanted, floor), rest / left)
        rest -= dealt[name]
        left -= 1
    spare = max(0.0, rest) / len(wants)
    return {name: share + spare for name, share in dealt.items()}


def _within(quota: float, dealt: dict[str, float]) -> dict[str, float]:
    """Take what rounding made too much from the largest."""
    while (excess := math.fsum((*dealt.values(), -quota))) > 0:
        largest = max(dealt, key=lambda name: dealt[name])
        less = dealt[largest] - excess
        dealt[largest] = less if less < dealt[largest] else math.nextafter(less, -math.inf)
    return dealt
