"""Who may connect: caps per listener and per address, and how fast an address may come anew.

Pure: the clock is an argument. Addresses are those of the socket, or of the PROXY header where one is due.
Sources: Kafka's max.connections, max.connections.per.ip and KIP-612 (connection creation rate); that a full
listener makes room is ours.

Rules
  * An address that has its share, or comes too fast, is refused; nobody else is. Of IPv6 whoever has one address has
    a /64 of them: that has four times as much in all, for a company may sit behind it.
  * A full listener closes an idle connection of the address that has most, so that whoever holds many that do
    nothing shuts out nobody. One that never made a request goes before one that did, then the longest idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import nsmallest
from typing import Protocol, TypeVar

from penstock_core.security.login_limits import network, shares_of

_BUCKETS_KEPT_MAX = 20_000
"""Addresses remembered for the rate. Beyond, those that have their whole burst again are forgotten first."""


@dataclass(frozen=True)
class ConnectionCaps:
    """What one listener takes."""

    connections_max: int = 10_000
    strangers_max: int = 2_500
    """Of those, such as made no request yet, or have to sign in and have not."""
    tls_strangers_max: int = 1_100
    """The same where TLS is spoken, whatever of it they have done."""
    tls_handshakes_max: int = 32
    """Handshakes under way, at 63 KB each; others wait."""
    tls_places_max: int = 100
    """Of those and such as have done it and have to sign in, at 35 KB each; others wait."""
    tls_greeted_max: int = 500
    """Of the strangers those that have done it, where nobody has to sign in."""
    signed_in_strangers_max: int = 500
    """Such as signed in and asked for nothing since."""
    tls_signed_in_strangers_max: int = 300
    """The same where TLS is spoken: 35 KB each, 60 KB with a client's certificate."""
    per_address_max: int = 1_000
    new_per_address_per_s: int = 100
    new_per_address_burst: int = 1_000


class Admission:
    """Counts connections by address, and says who may come."""

    def __init__(self, caps: ConnectionCaps) -> None:
        self.caps = caps
        self.count = 0
        self.by_address: Counter[str] = Counter()
        """By what counts as one address (`network`): of that which has most somebody makes room."""
        self._exactly: Counter[str] = Counter()
        """By the addresses as they are."""
        self._buckets: dict[str, tuple[float, float]] = {}
        """Tokens that an address had, and when (seconds)."""

    def refusal(self, address: str, now_s: float, *, has_quota: bool = False) -> str:
        """Why an address may not open another connection, as `setting = value`; "" if it may.

        Takes a token when it may. A full listener is no reason here: see `full`. `has_quota`: how fast it may
        come is said by a quota, in place of the setting.
        """
        caps, whose = self.caps, network(address)
        shares = shares_of(whose)
        if (
            self._exactly[address] >= caps.per_address_max
            or self.by_address[whose] >= caps.per_address_max * shares
        ):
            return f"connections_per_address_max = {caps.per_address_max}"
        if has_quota:
            return ""
        left = {address: self._tokens(address, 1, now_s)}
        if shares > 1:
            left[f"{whose}/64"] = self._tokens(f"{whose}/64", shares, now_s)
        if min(left.values()) < 1:
            return f"new_connections_per_address_per_s = {caps.new_per_address_per_s}"
        for key, tokens in left.items():
            self._buckets[key] = (tokens - 1, now_s)
        if len(self._buckets) > _BUCKETS_KEPT_MAX:
            self._forget(now_s)
        return ""

    def _tokens(self, key: str, shares: int, now_s: float) -> float:
        burst = float(self.caps.new_per_address_burst * shares)
        tokens, at_s = self._buckets.get(key, (burst, now_s))
        return min(burst, tokens + (now_s - at_s) * self.caps.new_per_address_per_s * shares)

    def _forget(self, now_s: float) -> None:
        caps = self.caps
        refill_s = caps.new_per_address_burst / caps.new_per_address_per_s
        kept = {a: b for a, b in self._buckets.items() if now_s - b[1] < refill_s}
        # All of them came just now: the oldest half is let off.
        drop = len(kept) - _BUCKETS_KEPT_MAX // 2
        self._buckets = dict(list(kept.items())[drop:]) if drop > 0 else kept

    @property
    def full(self) -> bool:
        """Somebody has to make room."""
        return self.count >= self.caps.connections_max

    def added(self, address: str) -> None:
        """A connection is there."""
        self.count += 1
        self.by_address[network(address)] += 1
        self._exactly[address] += 1

    def removed(self, address: str) -> None:
        """It is gone."""
        self.count -= 1
        for counts, key in ((self.by_address, network(address)), (self._exactly, address)):
            counts[key] -= 1
            if counts[key] <= 0:
                del counts[key]


class Idler(Protocol):
    """A connection as `makes_room` sees it."""

    @property
    def address(self) -> str:
        """Whose it is."""
        ...

    @property
    def is_stranger(self) -> bool:
        """It never made a request."""
        ...

    @property
    def may_be_idle(self) -> bool:
        """Nothing is being answered, or the client does not take what is."""
        ...


C = TypeVar("C", bound=Idler)


def makes_room(
    connections: Iterable[C],
    by_address: Counter[str],
    newcomer: str,
    quiet_since_s: Callable[[C], float],
    most: int = 1,
) -> list[C]:
    """Which connections may go for one of `newcomer`, first the one that goes first, `most` at most.

    Empty when the newcomer's address has as many as any other: it is refused then.
    """
    idle = [c for c in connections if c.may_be_idle and by_address[c.address] > by_address[newcomer]]
    return nsmallest(most, idle, key=lambda c: (-by_address[c.address], not c.is_stranger, quiet_since_s(c)))
