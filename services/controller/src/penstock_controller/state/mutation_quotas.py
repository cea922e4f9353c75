"""controller_mutation_rate: how many partitions a client may make and delete (KIP-599).

Soft state of the active controller, as in Kafka: a new one begins with full buckets. Sources: Kafka 4.3,
ControllerMutationQuotaManager, StrictControllerMutationQuota, PermissiveControllerMutationQuota; where they are asked:
ReplicationControlManager (applyPartitionChangeQuota). Time is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.security.quota_entities import CONTROLLER_MUTATION_RATE, QuotaEntity, QuotaTable
from penstock_core.security.quota_rates import TokenBucket
from penstock_proto.v1 import controller_pb2 as api

BUCKETS_MAX: Final = 10_000
"""Client ids come from clients: beyond so many buckets the one that was asked for first goes."""


class MutationBudget:
    """What one request may spend. This one has no bounds."""

    throttle_ms = 0
    """For how long the client has to wait after it."""

    def begin(self, now_ms: int) -> None:
        """The request is decided now; it may be decided again, on a newer image."""

    def spend(self, partitions: int) -> None:
        """So many are made or deleted. Raises THROTTLING_QUOTA_EXCEEDED."""


UNLIMITED: Final = MutationBudget()


class _Budget(MutationBudget):
    def __init__(self, bucket: TokenBucket, *, strict: bool) -> None:
        self._bucket = bucket
        self._strict = strict
        self._spent = 0
        self._now_ms = 0

    def begin(self, now_ms: int) -> None:
        if self._spent:
            self._bucket.spend(-self._spent, now_ms)
        self._spent = self.throttle_ms = 0
        self._now_ms = now_ms

    def spend(self, partitions: int) -> None:
        if self._strict:
            throttle_ms = self._bucket.try_spend(partitions, self._now_ms)
        else:
            throttle_ms = self._bucket.spend(partitions, self._now_ms)
        self.throttle_ms = max(self.throttle_ms, throttle_ms)
        if self._strict and throttle_ms:
            raise PenstockError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
            )
        self._spent += partitions


class MutationQuotas:
    """The buckets of all clients that have such a quota."""

    def __init__(self) -> None:
        self._quotas: Mapping[QuotaEntity, Mapping[str, float]] | None = None
        self._table = QuotaTable()
        self._buckets: dict[tuple[str | None, str | None], tuple[float, TokenBucket]] = {}

    def budget(
        self,
        quotas: Mapping[QuotaEntity, Mapping[str, float]],
        whose: api.MutationQuota | None,
        now_ms: int,
    ) -> MutationBudget:
        """What a request of that client may spend; `quotas` are those of the newest metadata."""
        if whose is None or not quotas:
            return UNLIMITED
        if quotas is not self._quotas:
            self._quotas = quotas
            self._table = QuotaTable(quotas)
        hit = self._table.for_client(CONTROLLER_MUTATION_RATE, whose.user, whose.client_id)
        if hit is None:
            return UNLIMITED
        name = (hit.user, hit.client_id)
        limit, bucket = self._buckets.get(name) or (hit.limit, TokenBucket(hit.limit, now_ms))
        if limit != hit.limit:
            bucket.change_limit(hit.limit, now_ms)
        if name not in self._buckets and len(self._buckets) >= BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[name] = (hit.limit, bucket)
        return _Budget(bucket, strict=whose.strict)
