"""Which addresses have to wait before they dial again, and how long. A plain object: the clock is passed in."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

FIRST_S: Final = 1.0
MOST_S: Final = 8.0
_FORGOTTEN_S: Final = 60.0
"""Who has waited and was not sent away since begins anew."""


class WaitingAddresses:
    """Each time it is longer, for who does not learn."""

    def __init__(self, most: int) -> None:
        """`most`: so many wait at a time; beyond, those whose time is up first are let in."""
        self._most = most
        self._until: dict[str, tuple[float, float]] = {}
        """By address: until when (s), and for how long."""

    def send_away(self, addresses: Collection[str], now_s: float) -> None:
        """These wait from now on."""
        for address in addresses:
            until_s, last_s = self._until.get(address, (0.0, 0.0))
            if until_s > now_s:
                continue  # what came before it began to wait
            for_s = min(MOST_S, 2 * last_s) if last_s else FIRST_S
            self._until[address] = now_s + for_s, for_s
        # Sorted: of as long ones the later ones stay.
        kept = sorted(self._until.items(), key=lambda each: each[1][0])[-self._most :]
        self._until = {
            address: (until_s, for_s) for address, (until_s, for_s) in kept if until_s + _FORGOTTEN_S > now_s
        }

    def waiting(self, now_s: float) -> list[str]:
        """Who waits."""
        return [address for address, (until_s, _) in self._until.items() if until_s > now_s]

    def returning(self, now_s: float) -> list[str]:
        """Who has waited, and is let in by and by for as long again."""
        return [
            address for address, (until_s, for_s) in self._until.items() if until_s <= now_s < until_s + for_s
        ]

    def next_s(self, now_s: float) -> float | None:
        """When one has waited enough, or has come back; None: there is nobody to whom that may happen."""
        times = ((until_s, until_s + for_s) for until_s, for_s in self._until.values())
        return min((each for both in times for each in both if each > now_s), default=None)
