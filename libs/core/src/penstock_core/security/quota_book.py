"""What one process knows of quotas: who has which, how much of it was used here, and how much of it is ours.

Pure: the clock (ms, never goes back) is an argument. Sources: Kafka 4.3, ClientQuotaManager (buckets by user and
client id, recorded and taken back), ClientRequestQuotaManager, ConnectionQuotas; KIP-219.

A quota is the whole cluster's (see `quota_shares`). A process has the share that it was dealt; until it hears of
one, and when it has not heard for SHARE_STALE_MS, it takes quota/processes.

Bounds. Client ids come from clients: at most BUCKETS_MAX buckets, those unused for IDLE_MS go first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from penstock_core.security.quota_entities import (
    CLIENT_KEYS,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaEntity,
    QuotaTable,
)
from penstock_core.security.quota_rates import REQUEST_THROTTLE_MS_MAX, Allowance, WindowedRate
from penstock_core.security.quota_shares import demand, isolated_share

BUCKETS_MAX: Final = 10_000
DEMANDS_MAX: Final = 1_000
"""Buckets of one report; those that use most of their quota are in it."""
SCARCE_S: Final = 1
"""Who has less than so many seconds of its limit left wants more of the quota."""
IDLE_MS: Final = 60_000
"""A bucket that was not used for so long is forgotten. (Kafka: an hour.)"""
WINDOW_MS: Final = 11_000
REPORT_MS: Final = 1_000
"""How often demands are reported."""
SHARE_STALE_MS: Final = 5_000
"""For so long a share holds after it was dealt."""
BUCKET_ID_BYTES: Final = 16

_SHARED_KEYS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
"""Keys that are measured where requests are answered. The rate of mutations is measured at the active controller."""

BucketName = tuple[str, str | None, str | None]
"""Key, and whose requests draw from it: user and client id (None: any), or None and an address."""


class Bucket:
    """What was used of one quota in this process."""

    __slots__ = ("_allowance", "_rate", "heard_ms", "id", "is_dropped", "name", "quota", "share", "used_ms")

    def __init__(self, name: BucketName, quota: float, limit: float, now_ms: int) -> None:
        self.name = name
        self.id = bucket_id(name)
        self.quota = quota
        self.share: float | None = None
        """The part of the quota that was dealt to this process last, and when."""
        self.heard_ms = 0
        self.used_ms = now_ms
        self.is_dropped = False
        self._allowance = Allowance(limit, now_ms)
        self._rate = WindowedRate()

    @property
    def limit(self) -> float:
        """What this process may use of the quota, per second."""
        return self._allowance.limit

    def set_limit(self, limit: float, now_ms: int) -> None:
        """Another limit from now on."""
        self._allowance.left(now_ms)
        self._allowance.limit = limit

    def use(self, amount: float, now_ms: int) -> int:
        """Record, and for how long (ms) to throttle now."""
        self.used_ms = now_ms
        self._rate.record(amount, now_ms)
        return self._allowance.use(amount, now_ms)

    def use_request_time(self, percent_seconds: float, now_ms: int) -> int:
        """As `use`, for request_percentage: a second at most (Kafka: ClientRequestQuotaManager)."""
        return min(self.use(percent_seconds, now_ms), REQUEST_THROTTLE_MS_MAX)

    def owed_ms(self, now_ms: int) -> int:
        """For how long (ms) nothing more may be used."""
        return self._allowance.owed_ms(now_ms)

    def may_use(self, amount: float, now_ms: int) -> bool:
        """Whether so much is left."""
        return self._allowance.left(now_ms) >= amount

    def most_at_once(self, now_ms: int) -> int:
        """How much one answer may have: what is left, at least a second's worth."""
        return max(1, min(int(max(self._allowance.left(now_ms), self.limit)), (1 << 31) - 1))

    def demand(self, now_ms: int) -> float:
        """The part of the whole quota that is wanted here."""
        used = self._rate.rate(now_ms) / self.quota
        return demand(used, self._allowance.left(now_ms) <= self.limit * SCARCE_S)

    def is_in_use(self, now_ms: int) -> bool:
        """Whether something was used within the window, or is still owed."""
        return now_ms - self.used_ms <= WINDOW_MS or self._allowance.left(now_ms) < 0


def bucket_id(name: BucketName) -> bytes:
    """What a bucket is called between processes: no name of a client travels, and its size is bounded."""
    digest = blake2b(digest_size=BUCKET_ID_BYTES)
    for part in name:
        data = b"" if part is None else b"=" + part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(4, "big") + data)
    return digest.digest()


class Account(NamedTuple):
    """The buckets that count for one user's client; None: unlimited."""

    version: int
    produce: Bucket | None
    fetch: Bucket | None
    request: Bucket | None

    @property
    def has_dropped(self) -> bool:
        """Whether one was forgotten meanwhile: the account has to be looked up again."""
        return any(bucket is not None and bucket.is_dropped for bucket in self[1:])


class QuotaBook:
    """Quotas, buckets and shares of one process."""

    def __init__(self) -> None:
        self.version = 0
        """Another one means that accounts have to be looked up again."""
        self.limits_clients = False
        """Whether any client has a quota: the one thing that is asked for where there are none."""
        self.limits_addresses = False
        self._table = QuotaTable()
        self._processes = 1
        self._buckets: dict[BucketName, Bucket] = {}
        self._swept_ms = 0
        self._reported_ms = 0

    @property
    def bucket_count(self) -> int:
        """How many are kept."""
        return len(self._buckets)

    def set_quotas(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """Other quotas from now on."""
        self._table = QuotaTable(quotas)
        keys = {key for values in quotas.values() for key in values}
        self.limits_clients = not keys.isdisjoint(CLIENT_KEYS)
        self.limits_addresses = CONNECTION_CREATION_RATE in keys
        self.version += 1
        if not quotas:
            for bucket in self._buckets.values():
                bucket.is_dropped = True
            self._buckets.clear()

    def set_processes(self, count: int, now_ms: int) -> None:
        """How many processes share the quotas, this one among them."""
        if count != self._processes:
            self._processes = max(1, count)
            for bucket in self._buckets.values():
                self._set_limit(bucket, now_ms)

    def account(self, user: str, client_id: str, now_ms: int) -> Account:
        """The buckets of a user's client."""
        buckets = []
        for key in _SHARED_KEYS:
            hit = self._table.for_client(key, user, client_id)
            buckets.append(
                None if hit is None else self._bucket((key, hit.user, hit.client_id), hit.limit, now_ms)
            )
        return Account(self.version, *buckets)

    def address(self, ip: str, now_ms: int) -> Bucket | None:
        """The bucket of new connections from an address; None: its quota is none."""
        quota = self._table.for_ip(ip)
        return None if quota is None else self._bucket((CONNECTION_CREATION_RATE, None, ip), quota, now_ms)

    def _bucket(self, name: BucketName, quota: float, now_ms: int) -> Bucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._make_room(now_ms)
            alone = isolated_share(quota, self._processes)
            bucket = self._buckets[name] = Bucket(name, quota, alone, now_ms)
        elif bucket.quota != quota:
            bucket.quota = quota
            self._set_limit(bucket, now_ms)
        return bucket

    def _set_limit(self, bucket: Bucket, now_ms: int) -> None:
        limit = isolated_share(bucket.quota, self._processes)
        if self._processes > 1 and bucket.share is not None and now_ms - bucket.heard_ms <= SHARE_STALE_MS:
            limit = bucket.quota * bucket.share
        if limit != bucket.limit:
            bucket.set_limit(limit, now_ms)

    def _make_room(self, now_ms: int) -> None:
        self._forget(now_ms, WINDOW_MS)
        if len(self._buckets) >= BUCKETS_MAX:  # a half of all, so that not each newcomer looks at them
            oldest = sorted(self._buckets.values(), key=lambda each: each.used_ms)
            for bucket in oldest[: BUCKETS_MAX // 2]:
                self._drop(bucket)

    def _forget(self, now_ms: int, idle_ms: int) -> None:
        for bucket in [each for each in self._buckets.values() if now_ms - each.used_ms > idle_ms]:
            self._drop(bucket)

    def _drop(self, bucket: Bucket) -> None:
        bucket.is_dropped = True
        del self._buckets[bucket.name]

    def tick(self, now_ms: int) -> None:
        """Forget what is not used; shares that are old no longer count. To be called about every second."""
        if now_ms - self._swept_ms >= REPORT_MS:
            self._swept_ms = now_ms
            self._forget(now_ms, IDLE_MS)
            for bucket in self._buckets.values():
                self._set_limit(bucket, now_ms)

    # Shares

    def report(self, now_ms: int) -> dict[bytes, float] | None:
        """The demand of each bucket that is in use, as a part of its quota; None when no report is due."""
        if self._processes <= 1 or now_ms - self._reported_ms < REPORT_MS:
            return None
        if not (self.limits_clients or self.limits_addresses) and not self._buckets:
            return None
        self._reported_ms = now_ms
        self.tick(now_ms)
        demands = {each.id: each.demand(now_ms) for each in self._buckets.values() if each.is_in_use(now_ms)}
        if len(demands) <= DEMANDS_MAX:
            return demands
        most = sorted(demands, key=demands.__getitem__, reverse=True)[:DEMANDS_MAX]
        return {each: demands[each] for each in most}

    def take_shares(self, dealt: Iterable[tuple[bytes, float]], now_ms: int) -> None:
        """The parts of quotas that the controller dealt to this process."""
        by_id = {bucket.id: bucket for bucket in self._buckets.values()}
        for each, share in dealt:
            bucket = by_id.get(each)
            if bucket is not None and 0 < share <= 1:
                bucket.share, bucket.heard_ms = share, now_ms
                self._set_limit(bucket, now_ms)
