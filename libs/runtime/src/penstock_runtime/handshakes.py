"""Whose TLS handshake begins next, when only so many may be under way; and which one is ended for it. And how fast
those of an address may follow one another that come to nothing.

Pure: the clock is an argument. A handshake that is begun and left costs 63 KB, most of it OpenSSL's, until its time is
over; a client that waits for its own costs a tenth of that, with its first bytes still in the kernel. So few are
under way, and the others wait: an honest client leaves its place after a round trip.

Who has done it and is about to sign in holds half of that, so with those under way they are no more than can be borne,
and the next ones wait: a thousand clients that come back together go through one after the other, and none of them is
sent away for it.

Rules
  * Addresses take turns, and those that have none under way come first.
  * When all places are taken, the oldest handshake of the address with most is ended for somebody who waits: after
    `PATIENCE_S` if that one's address has fewer, else after `PATIENCE_AMONG_EQUALS_S`.
  * The same of those that are about to sign in, after `SIGN_IN_PATIENCE_S` and `SIGN_IN_PATIENCE_AMONG_EQUALS_S`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

WASTED_BURST: Final = 20
"""Handshakes that an address may have for nothing before its next ones are told to wait."""
WASTED_PER_S: Final = 10.0
"""So many of them are forgiven in a second."""
PACED_PER_S: Final = 20.0
"""How many begin in a second at an address that has more."""
SILENT_PER_S: Final = 25.0
"""How many begin in a second at all addresses together that have connections which shook hands and say nothing, once
those are many."""
_ADDRESSES_MAX: Final = 20_000

PATIENCE_S: Final = 0.5
"""A few round trips: by then an honest client is done, or far away."""
PATIENCE_AMONG_EQUALS_S: Final = 2.0
SIGN_IN_PATIENCE_S: Final = 2.5
"""Four round trips, and what a client reckons for SCRAM."""
SIGN_IN_PATIENCE_AMONG_EQUALS_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Begin(Generic[T]):
    """Its handshake begins."""

    one: T


@dataclass(frozen=True, slots=True)
class End(Generic[T]):
    """Its handshake, or its connection, ends, so that another one may begin."""

    address: str
    one: T


@dataclass(frozen=True, slots=True)
class Later:
    """Somebody waits: ask again after so long, or when a handshake is over."""

    wait_s: float


class _Held(Generic[T]):
    """Who holds a place."""

    def __init__(self) -> None:
        self.by_address: dict[str, dict[T, float]] = {}
        """Each since when; the oldest first."""
        self.count = 0

    def add(self, address: str, one: T, now_s: float) -> None:
        """It holds one from now on."""
        self.by_address.setdefault(address, {})[one] = now_s
        self.count += 1

    def remove(self, address: str, one: T) -> bool:
        """It gives its place back; False when it had none."""
        mine = self.by_address.get(address)
        if mine is None or one not in mine:
            return False
        del mine[one]
        self.count -= 1
        if not mine:
            del self.by_address[address]
        return True


class HandshakeLine(Generic[T]):
    """That of one listener. Calls take constant time, but for one that looks for what is to be ended."""

    def __init__(self, most: int, places: int) -> None:
        """`most`: how many are under way; `places`: how many those are and who is about to sign in."""
        self._most = most
        self._places = max(places, most + 1)
        self._begun: _Held[T] = _Held()
        self._greeted: _Held[T] = _Held()
        """Those that are about to sign in."""
        self._new: dict[str, dict[T, None]] = {}
        """Who waits, by addresses that have none under way; both in order."""
        self._more: dict[str, dict[T, None]] = {}
        """The same of addresses that have some."""

    def __len__(self) -> int:
        """How many are under way or wait."""
        return self._begun.count + sum(map(len, (*self._new.values(), *self._more.values())))

    def come(self, address: str, one: T) -> None:
        """Somebody waits for a handshake from now on."""
        waiting = self._more if address in self._begun.by_address else self._new
        waiting.setdefault(address, {})[one] = None

    def greeted(self, address: str, one: T, now_s: float) -> None:
        """Its handshake is done, and it keeps a place until `over`."""
        self._greeted.add(address, one, now_s)

    def over(self, address: str, one: T) -> None:
        """It is done, has failed, has signed in, or waits no more. Who is not here is ignored."""
        if self._greeted.remove(address, one):
            return
        if self._begun.remove(address, one):
            if (
                address not in self._begun.by_address
                and (waiting := self._more.pop(address, None)) is not None
            ):
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
        if self._begun.count >= self._most:
            return self._make_room(
                self._begun.by_address, address, now_s, PATIENCE_S, PATIENCE_AMONG_EQUALS_S
            )
        if self._begun.count + self._greeted.count >= self._places:
            # Some of those that are about to sign in, for of the others there are fewer than places.
            patience = SIGN_IN_PATIENCE_S, SIGN_IN_PATIENCE_AMONG_EQUALS_S
            return self._make_room(self._greeted.by_address, address, now_s, *patience)
        mine = waiting.pop(address)
        one = next(iter(mine))
        del mine[one]
        self._begun.add(address, one, now_s)
        if mine:
            self._more[address] = mine  # at the end of the line
        return Begin(one)

    def _make_room(
        self,
        those: dict[str, dict[T, float]],
        newcomer: str,
        now_s: float,
        patience_s: float,
        among_equals_s: float,
    ) -> End[T] | Later:
        whose = max(those, key=lambda address: len(those[address]))
        fewer = len(those.get(newcomer, ())) + 1 < len(those[whose])
        one, since_s = next(iter(those[whose].items()))
        wait_s = since_s + (patience_s if fewer else among_equals_s) - now_s
        if wait_s > 0:
            return Later(wait_s)
        self.over(whose, one)
        return End(whose, one)


@dataclass(slots=True)
class _Waste:
    forgiven: float
    """What is left of the burst; below 0 is waited."""
    at_s: float
    next_s: float = 0.0
    """When the next handshake may begin."""


class HandshakePace:
    """How fast the handshakes of an address may begin.

    A handshake takes half a millisecond of the loop, more with a client's certificate, and whoever leaves after it, or
    fails in it, has had that for nothing. Clients send a request; one that does not know our CA fails again and again,
    but a few times a second. So an address is slowed down whose handshakes are for nothing a hundred times a second,
    and nobody else. One that went well counts when its connection is gone and has made no request.
    """

    def __init__(self) -> None:
        self._of: dict[str, _Waste] = {}

    def wasted(self, address: str, now_s: float) -> None:
        """One of its handshakes was for nothing."""
        found = self._waste(address, now_s) or _Waste(WASTED_BURST, now_s)
        self._of.pop(address, None)  # to the end: who wasted something last
        self._of[address] = found
        found.forgiven = max(found.forgiven - 1, -WASTED_BURST)
        if len(self._of) > _ADDRESSES_MAX:
            self._forget(now_s)

    def wait_s(self, address: str, now_s: float, most_s: float) -> float | None:
        """How long the next handshake of the address has to wait, which then has that time for its own; None when that
        is longer than `most_s`."""
        found = self._waste(address, now_s)
        if found is None or found.forgiven >= 0:
            return 0.0
        begins_s = max(now_s, found.next_s)
        if begins_s - now_s > most_s:
            return None
        found.next_s = begins_s + 1 / PACED_PER_S
        return begins_s - now_s

    def _waste(self, address: str, now_s: float) -> _Waste | None:
        found = self._of.get(address)
        if found is None:
            return None
        found.forgiven += (now_s - found.at_s) * WASTED_PER_S
        found.at_s = now_s
        if found.forgiven < WASTED_BURST:
            return found
        del self._of[address]
        return None

    def _forget(self, now_s: float) -> None:
        for address in list(self._of):
            self._waste(address, now_s)
        for address in list(self._of)[: max(0, len(self._of) - _ADDRESSES_MAX // 2)]:
            del self._of[address]


class SilentPace:
    """How fast handshakes begin, all together, of addresses that have connections which shook hands and say nothing.

    Of ten addresses each has 20 a second for nothing, and who keeps his connections has not even lost them yet. An
    address without such a connection does not come here, so it waits for nobody.
    """

    def __init__(self) -> None:
        self._next_s = 0.0

    def wait_s(self, now_s: float, most_s: float) -> float | None:
        """How long the next one has to wait, which then has that time for its own; None when that is longer than
        `most_s`."""
        begins_s = max(now_s, self._next_s)
        if begins_s - now_s > most_s:
            return None
        self._next_s = begins_s + 1 / SILENT_PER_S
        return begins_s - now_s
