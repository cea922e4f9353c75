"""Whose TLS handshake begins next, when only so many may be under way; and which one is ended for it.

Pure: the clock is an argument. A handshake that is begun and left costs 63 KB, most of it OpenSSL's, until its time is
over; a client that waits for its own costs a tenth of that, with its first bytes still in the kernel. So few are
under way, and the others wait: an honest client leaves its place after a round trip.

Rules
  * Addresses take turns, and those that have none under way come first.
  * When all places are taken, the oldest handshake of the address with most is ended for somebody who waits: after
    `PATIENCE_S` if that one's address has fewer, else after `PATIENCE_AMONG_EQUALS_S`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

PATIENCE_S: Final = 0.25
"""A few round trips: by then an honest client is done, or far away."""
PATIENCE_AMONG_EQUALS_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Begin(Generic[T]):
    """Its handshake begins."""

    one: T


@dataclass(frozen=True, slots=True)
class End(Generic[T]):
    """Its handshake ends, so that another one may begin."""

    address: str
    one: T


@dataclass(frozen=True, slots=True)
class Later:
    """Somebody waits: ask again after so long, or when a handshake is over."""

    wait_s: float


class HandshakeLine(Generic[T]):
    """That of one listener. Calls take constant time, but for one that looks for what is to be ended."""

    def __init__(self, most: int) -> None:
        """`most`: how many are under way."""
        self._most = most
        self._begun: dict[str, dict[T, float]] = {}
        """By address, each since when; the oldest first."""
        self._count = 0
        self._new: dict[str, dict[T, None]] = {}
        """Who waits, by addresses that have none under way; both in order."""
        self._more: dict[str, dict[T, None]] = {}
        """The same of addresses that have some."""

    def __len__(self) -> int:
        """How many are under way or wait."""
        return self._count + sum(map(len, (*self._new.values(), *self._more.values())))

    def come(self, address: str, one: T) -> None:
        """Somebody waits for a handshake from now on."""
        waiting = self._more if address in self._begun else self._new
        waiting.setdefault(address, {})[one] = None

    def over(self, address: str, one: T) -> None:
        """It is done, has failed, or waits no more. Who is not here is ignored."""
        begun = self._begun.get(address)
        if begun is not None and one in begun:
            del begun[one]
            self._count -= 1
            if not begun:
                del self._begun[address]
                if (waiting := self._more.pop(address, None)) is not None:
                    self._new[address] = waiting
            return
        for them in (self._new, self._more):
            if (mine := them.get(address)) is not None and one in mine:
                del mine[one]
                if not mine:
                    del them[address]

    def step(self, now_s: float) -> Begin[T] | End[T] | Later | None:
        """What to do now; ask again after each. None: nobody waits."""
        waiting = self._new or self._more
        if not waiting:
            return None
        address = next(iter(waiting))
        if self._count >= self._most:
            return self._make_room(address, now_s)
        mine = waiting.pop(address)
        one = next(iter(mine))
        del mine[one]
        self._begun.setdefault(address, {})[one] = now_s
        self._count += 1
        if mine:
            self._more[address] = mine  # at the end of the line
        return Begin(one)

    def _make_room(self, newcomer: str, now_s: float) -> End[T] | Later:
        whose = max(self._begun, key=lambda address: len(self._begun[address]))
        fewer = len(self._begun.get(newcomer, ())) + 1 < len(self._begun[whose])
        one, since_s = next(iter(self._begun[whose].items()))
        wait_s = since_s + (PATIENCE_S if fewer else PATIENCE_AMONG_EQUALS_S) - now_s
        if wait_s > 0:
            return Later(wait_s)
        self.over(whose, one)
        return End(whose, one)
