"""Who may connect: caps per listener and per address, and how fast an address may come anew.

Pure: the clock is an argument. Addresses are those of the socket, or of the PROXY header where one is due.
Sources: Kafka's max.connections, max.connections.per.ip and KIP-612 (connection creation rate); that a full
listener makes room is ours.

Rules
  * An address that has its share, or comes too fast, is refused; nobody else is.
  * A full listener closes an idle connection of the address that has most, so that whoever holds many that do
    nothing shuts out nobody. One that never made a request goes before one that did, then the longest idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import nsmallest
from typing import Protocol, TypeVar

_BUCKETS_KEPT_MAX = 20_000
"""Addresses remembered for the rate. Beyond, those that have their whole burst again are forgotten first."""


@dataclass(frozen=True)
class ConnectionCaps:
    """What one listener takes."""

    connections_max: int = 10_000
    strangers_max: int = 2_500
    """Of those, such as made no request yet, or have to sign in and have not."""
    tls_strangers_max: int = 1_100
    """The same where TLS is spoken, for which each of them costs 17 KB."""
    signed_in_strangers_max: int = 500
    """Such as signed in and asked for nothing since."""
    per_address_max: int = 1_000
    new_per_address_per_s: int = 100
    new_per_address_burst: int = 1_000


class Admission:
    """Counts connections by address, and says who may come."""

    def __init__(self, caps: ConnectionCaps) -> None:
        self.caps = caps
        self.count = 0
        self.by_address: Counter[str] = Counter()
        self._buckets: dict[str, tuple[float, float]] = {}
        """Tokens that an address had, and when (seconds)."""

    def refusal(self, address: str, now_s: float, *, has_quota: bool = False) -> str:
        """Why an address may not open another connection, as `setting = value`; "" if it may.

        Takes a token when it may. A full listener is no reason here: see `full`. `has_quota`: how fast it may
        come is said by a quota, in place of the setting.
        """
        caps = self.caps
        if self.by_address[address] >= caps.per_address_max:
            return f"connections_per_address_max = {caps.per_address_max}"
        if has_quota:
            return ""
        tokens, at_s = self._buckets.get(address, (float(caps.new_per_address_burst), now_s))
        tokens = min(float(caps.new_per_address_burst), tokens + (now_s - at_s) * caps.new_per_address_per_s)
        if tokens < 1:
            return f"new_connections_per_address_per_s = {caps.new_per_address_per_s}"
        self._buckets[address] = (tokens - 1, now_s)
        if len(self._buckets) > _BUCKETS_KEPT_MAX:
            self._forget(now_s)
        return ""

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
        self.by_address[address] += 1

    def removed(self, address: str) -> None:
        """It is gone."""
        self.count -= 1
        self.by_address[address] -= 1
        if self.by_address[address] <= 0:
            del self.by_address[address]


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
