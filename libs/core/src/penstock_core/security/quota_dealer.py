"""The active controller's side of shared quotas: demands of processes in, shares out.

Pure: the clock (ms) is an argument. Everything is a part of a quota, and buckets are ids, so that nothing here
depends on what the quotas are. Nothing is kept beyond a term: after a change of the active controller all
processes have reported again within a second.

Rules
  * Who reported a bucket last shares it; who no longer names it gets no more of it.
  * Who is not heard from takes quota/processes by itself: an even part is left for it, for FORGET_MS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock_core.security.quota_book import BUCKET_ID_BYTES, DEMANDS_MAX
from penstock_core.security.quota_shares import shares

SILENT_MS: Final = 3_000
"""A process that did not report for so long may not know its share any more."""
FORGET_MS: Final = 10_000
DEAL_MS: Final = 500
"""How old the shares of a bucket may be when somebody who is in them asks."""
BUCKETS_MAX: Final = 50_000
"""More of them are not dealt: each process takes quota/processes."""


class _Pool:
    __slots__ = ("dealt", "dealt_ms", "demands")

    def __init__(self) -> None:
        self.demands: dict[str, float] = {}
        self.dealt: dict[str, float] = {}
        self.dealt_ms = 0


class QuotaDealer:
    """Who wants how much of which quota."""

    def __init__(self) -> None:
        self._pools: dict[bytes, _Pool] = {}
        self._named: dict[str, frozenset[bytes]] = {}
        """What each process named last."""
        self._heard_ms: dict[str, int] = {}

    @property
    def bucket_count(self) -> int:
        """How many quotas are shared now."""
        return len(self._pools)

    def report(self, process: str, demands: Mapping[bytes, float], now_ms: int) -> dict[bytes, float]:
        """Note what a process wants of each bucket that it uses; its share of each of them, 0 to 1."""
        self._forget_silent(now_ms)
        self._heard_ms[process] = now_ms
        named = frozenset(
            each
            for each in list(demands)[:DEMANDS_MAX]
            if len(each) == BUCKET_ID_BYTES and self._room_for(each)
        )
        for each in self._named.get(process, frozenset()) - named:
            self._leave(process, each)
        self._named[process] = named
        dealt: dict[bytes, float] = {}
        for each in named:
            wanted = demands[each]
            pool = self._pools.setdefault(each, _Pool())
            pool.demands[process] = wanted if 0 <= wanted < 1e9 else 0.0
            if process not in pool.dealt or now_ms - pool.dealt_ms >= DEAL_MS:
                self._deal(pool, now_ms)
            dealt[each] = pool.dealt[process]
        return dealt

    def _room_for(self, bucket: bytes) -> bool:
        return bucket in self._pools or len(self._pools) < BUCKETS_MAX

    def _deal(self, pool: _Pool, now_ms: int) -> None:
        pool.dealt_ms = now_ms
        pool.dealt = shares(
            1.0,
            {
                process: wanted if now_ms - self._heard_ms[process] <= SILENT_MS else None
                for process, wanted in pool.demands.items()
            },
        )

    def _leave(self, process: str, bucket: bytes) -> None:
        pool = self._pools[bucket]
        pool.demands.pop(process, None)
        pool.dealt.pop(process, None)
        pool.dealt_ms = 0
        if not pool.demands:
            del self._pools[bucket]

    def _forget_silent(self, now_ms: int) -> None:
        for process in [p for p, heard_ms in self._heard_ms.items() if now_ms - heard_ms > FORGET_MS]:
            del self._heard_ms[process]
            for each in self._named.pop(process):
                self._leave(process, each)
