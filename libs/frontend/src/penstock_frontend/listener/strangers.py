"""Connections that made no request yet: how many a listener bears, and who goes for the next one.

Pure. Whoever comes in and says nothing costs memory (3 to 5 KB, and 25 KB once TLS is up) and needs no password for
it. So only so many of them are kept; beyond, the oldest one of the address that has most of them goes. One that speaks
within a few milliseconds, as clients do, is never the oldest for long, whoever floods the listener meanwhile.

That one has made a request is not told, for that is on the way of every request. Each newcomer has ten asked, in turn:
all are after a tenth as many newcomers as are kept, and nobody waits for that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_ASKED_BY_EACH = 10
"""How many a newcomer has asked whether they still are strangers."""


class Strangers(Generic[T]):
    """Those of one listener. `is_one` says whether somebody still is a stranger.

    All calls take constant time.
    """

    def __init__(self, most: int, is_one: Callable[[T], bool]) -> None:
        """`most`: how many are kept."""
        self._most = most
        self._is_one = is_one
        self._of: dict[str, dict[T, None]] = {}
        """By address, oldest first."""
        self._by_count: dict[int, dict[str, None]] = {}
        """Addresses by how many they have, so that the one with most is found at once."""
        self._highest = 0
        self._count = 0
        self._to_ask: OrderedDict[tuple[str, T], None] = OrderedDict()
        """Who was asked longest ago first."""

    def __len__(self) -> int:
        """How many may be strangers, as far as is known."""
        return self._count

    def has(self, address: str) -> bool:
        """Whether somebody of it may be one, as far as is known."""
        return address in self._of

    def come(self, address: str, one: T) -> tuple[str, T] | None:
        """Somebody new; who has to go for it with its address, already forgotten here, or None."""
        mine = self._of.setdefault(address, {})
        if one not in mine:
            mine[one] = None
            self._moved(address, len(mine) - 1, len(mine))
            self._to_ask[address, one] = None
            self._ask_some()
        while self._count > self._most:
            first = self._oldest()
            self.gone(*first)
            if self._is_one(first[1]):
                return first
        return None

    def gone(self, address: str, one: T) -> None:
        """It left, or is none any more. Whoever is not here is ignored."""
        mine = self._of.get(address)
        if mine is None or one not in mine:
            return
        del mine[one]
        del self._to_ask[address, one]
        self._moved(address, len(mine) + 1, len(mine))
        if not mine:
            del self._of[address]

    def _ask_some(self) -> None:
        for _ in range(min(_ASKED_BY_EACH, len(self._to_ask))):
            first = next(iter(self._to_ask))
            if self._is_one(first[1]):
                self._to_ask.move_to_end(first)
            else:
                self.gone(*first)

    def _oldest(self) -> tuple[str, T]:
        address = next(iter(self._by_count[self._highest]))
        return address, next(iter(self._of[address]))

    def _moved(self, address: str, before: int, after: int) -> None:
        self._count += after - before
        if before:
            with_before = self._by_count[before]
            del with_before[address]
            if not with_before:
                del self._by_count[before]
                if before == self._highest:
                    self._highest = after
        if after:
            self._by_count.setdefault(after, {})[address] = None
            self._highest = max(self._highest, after)
