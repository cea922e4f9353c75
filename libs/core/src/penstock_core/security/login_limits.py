"""How long an attempt to sign in has to wait after others failed.

Failures draw from two token buckets: of the address, and of the address and the user together. While both have
tokens nobody waits. Once one is empty every further attempt from there waits, twice as long each time,
up to 30 s, and few may wait at once. Nothing is kept of a user alone: else whoever knows a name could
lock its owner out. An attempt that succeeds costs nothing.
All times are a monotonic clock's milliseconds. What is kept is bounded, and it is one table per process.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

DELAY_MS_MAX: Final = 30_000
DELAY_MS_MIN: Final = 250
USER_FAILURES: Final = 5
"""Failures of one user from one address that cost no delay."""
USER_REFILL_S: Final = 10.0
"""Seconds until one of them is forgotten."""
ADDRESS_FAILURES: Final = 30
"""Failures from one address: many clients with many users may stand behind it."""
ADDRESS_REFILL_S: Final = 2.0
WAITING_MAX: Final = 8
"""Attempts from one address that may wait; more are refused without looking at their password."""
ADDRESSES_MAX: Final = 2_048
USERS_PER_ADDRESS_MAX: Final = 16

_USER_LENGTH_MAX: Final = 128
_DEBT_MAX: Final = 10.0
"""Failures beyond the delay's maximum do not count: after a quiet while the address is as any other."""


class _Bucket:
    __slots__ = ("_capacity", "_refill_s", "_tokens", "_updated_ms")

    def __init__(self, capacity: int, refill_s: float, now_ms: int) -> None:
        self._capacity = capacity
        self._refill_s = refill_s
        self._tokens = float(capacity)
        self._updated_ms = now_ms

    def tokens(self, now_ms: int) -> float:
        came = (now_ms - self._updated_ms) / 1000 / self._refill_s
        self._tokens = min(float(self._capacity), self._tokens + max(0.0, came))
        self._updated_ms = max(now_ms, self._updated_ms)
        return self._tokens

    def take(self, now_ms: int) -> None:
        self._tokens = max(-_DEBT_MAX, self.tokens(now_ms) - 1)

    def give(self, now_ms: int) -> None:
        self._tokens = min(float(self._capacity), self.tokens(now_ms) + 1)

    def delay_ms(self, now_ms: int) -> int:
        owed = 1 - self.tokens(now_ms)
        if owed <= 0:
            return 0
        return min(DELAY_MS_MAX, int(DELAY_MS_MIN * 2**owed))


class _Address:
    __slots__ = ("bucket", "users", "waiting")

    def __init__(self, now_ms: int) -> None:
        self.bucket = _Bucket(ADDRESS_FAILURES, ADDRESS_REFILL_S, now_ms)
        self.users: dict[str, _Bucket] = {}
        self.waiting = 0


class Attempt:
    """One attempt to sign in. Its outcome is to be told to the limits once."""

    __slots__ = ("address", "charged", "delay_ms", "user", "waits")

    def __init__(self, address: str, user: str, delay_ms: int) -> None:
        self.address = address
        self.user = user
        self.delay_ms = delay_ms
        """Wait so long before the password is looked at."""
        self.waits = self.charged = delay_ms > 0


class LoginLimits:
    """Who may try, and when."""

    def __init__(self) -> None:
        self._addresses: dict[str, _Address] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def begin(self, address: str, user: str, now_ms: int) -> Attempt | None:
        """An attempt; None: refuse it as one with a wrong password, too many wait already.

        One that has to wait is charged at once, so that many at the same time are no way around.
        """
        attempt = Attempt(network(address), user[:_USER_LENGTH_MAX], 0)
        known = self._addresses.get(attempt.address)
        if known is None:
            return attempt
        buckets = [known.bucket]
        if attempt.user in known.users:
            buckets.append(known.users[attempt.user])
        delay_ms = max(bucket.delay_ms(now_ms) for bucket in buckets)
        if not delay_ms:
            return attempt
        if known.waiting >= WAITING_MAX:
            return None
        known.waiting += 1
        for bucket in buckets:
            bucket.take(now_ms)
        return Attempt(attempt.address, attempt.user, delay_ms)

    def looked_at(self, attempt: Attempt) -> None:
        """It has waited, or its client has gone: its place is free."""
        if attempt.waits:
            attempt.waits = False
            if (known := self._addresses.get(attempt.address)) is not None:
                known.waiting = max(0, known.waiting - 1)

    def failed(self, attempt: Attempt, now_ms: int) -> None:
        """The password was wrong, or the user is unknown."""
        self.looked_at(attempt)
        if attempt.charged:
            return
        attempt.charged = True
        known = self._touch(attempt.address, now_ms)
        known.bucket.take(now_ms)
        self._user(known, attempt.user, now_ms).take(now_ms)

    def succeeded(self, attempt: Attempt, now_ms: int) -> None:
        """The user has signed in: what failed before from there was a slip. The address gets back what it paid."""
        self.looked_at(attempt)
        known = self._addresses.get(attempt.address)
        if known is None:
            return
        known.users.pop(attempt.user, None)
        if attempt.charged:
            attempt.charged = False
            known.bucket.give(now_ms)

    def undecided(self, attempt: Attempt, now_ms: int) -> None:
        """Nobody could say whether it was right, through no fault of the client's: what it has paid it gets back."""
        self.looked_at(attempt)
        known = self._addresses.get(attempt.address)
        if known is None or not attempt.charged:
            return
        attempt.charged = False
        known.bucket.give(now_ms)
        if attempt.user in known.users:
            known.users[attempt.user].give(now_ms)

    def _touch(self, address: str, now_ms: int) -> _Address:
        """The address, as the one used last; of too many the one used first goes."""
        known = self._addresses.pop(address, None) or _Address(now_ms)
        if len(self._addresses) >= ADDRESSES_MAX:
            del self._addresses[next(iter(self._addresses))]
        self._addresses[address] = known
        return known

    @staticmethod
    def _user(known: _Address, user: str, now_ms: int) -> _Bucket:
        bucket = known.users.pop(user, None) or _Bucket(USER_FAILURES, USER_REFILL_S, now_ms)
        if len(known.users) >= USERS_PER_ADDRESS_MAX:
            del known.users[next(iter(known.users))]
        known.users[user] = bucket
        return bucket


NETWORK_SHARES: Final = 4
"""What a /64 of IPv6 may have, in shares of one address."""


def shares_of(whose: str) -> int:
    """How much what counts as one address (`network`) may have: a company may sit behind a /64."""
    return NETWORK_SHARES if ":" in whose else 1


@lru_cache(maxsize=4096)
def network(address: str) -> str:
    """What counts as one address: of IPv6 the /64, for whoever has one has them all."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((int(ip), 64), strict=False).network_address)
