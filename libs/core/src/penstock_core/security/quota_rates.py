"""How fast somebody is, and for how long to throttle. Times are in milliseconds and never go back.

Sources: Kafka's Rate, SampledStat, TokenBucket, QuotaUtils, ClientRequestQuotaManager,
ControllerMutationQuotaManager; KIP-219, KIP-599. The arithmetic of WindowedRate and TokenBucket is Kafka's to the
millisecond. The former only measures: bytes and request time are throttled by `Allowance`, ours (decision 0039).
"""

from __future__ import annotations

import math
from typing import Final

SAMPLES: Final = 11
"""Kafka: quota.window.num; ten whole ones and the current one."""
SAMPLE_MS: Final = 1_000
"""Kafka: quota.window.size.seconds."""
REQUEST_THROTTLE_MS_MAX: Final = SAMPLE_MS
"""For request_percentage: one window at most."""
BURST_S: Final = 3
"""So many seconds of its rate may somebody use at once who used nothing before."""
DEBT_S_MAX: Final = 60
"""More than so many seconds of the rate are not owed."""
THROTTLE_MS_MAX: Final = (1 << 31) - 1
"""What the field in an answer can hold."""


def _rounded(value: float) -> int:
    """Java's Math.round, within what an answer can hold."""
    return int(min(max(math.floor(value + 0.5), 0), THROTTLE_MS_MAX))


class _Sample:
    __slots__ = ("last_ms", "start_ms", "value")

    def __init__(self, now_ms: int) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        self.start_ms = self.last_ms = now_ms
        self.value = 0.0


class WindowedRate:
    """A rate per second over 11 samples of a second."""

    __slots__ = ("_current", "_samples")

    def __init__(self) -> None:
        self._samples: list[_Sample] = []
        self._current = 0

    def record(self, value: float, now_ms: int) -> None:
        """Something was done; a negative value takes it back."""
        if not self._samples:
            self._samples.append(_Sample(now_ms))
        sample = self._samples[self._current]
        if now_ms - sample.start_ms >= SAMPLE_MS:
            sample = self._next(now_ms)
        sample.value += value
        sample.last_ms = now_ms

    def _next(self, now_ms: int) -> _Sample:
        # One more than counts: the oldest may overlap the window.
        self._current = (self._current + 1) % (SAMPLES + 1)
        if self._current == len(self._samples):
            self._samples.append(_Sample(now_ms))
        else:
            self._samples[self._current].reset(now_ms)
        return self._samples[self._current]

    def rate(self, now_ms: int) -> float:
        """Per second."""
        window_ms = self.window_ms(now_ms)
        return sum(sample.value for sample in self._samples) / (window_ms / 1000)

    def window_ms(self, now_ms: int) -> int:
        """What the rate is measured over: at least ten seconds, so that a first request is no rate of thousands."""
        oldest_ms = now_ms
        for sample in self._samples:
            if now_ms - sample.last_ms >= SAMPLES * SAMPLE_MS:
                sample.reset(now_ms)
            oldest_ms = min(oldest_ms, sample.start_ms)
        elapsed_ms = now_ms - oldest_ms
        missing = SAMPLES - 1 - elapsed_ms // SAMPLE_MS
        if missing > 0:
            elapsed_ms += missing * SAMPLE_MS
        return max(elapsed_ms, 1)


class TokenBucket:
    """Tokens that come back at a rate and may be spent below zero; it begins full, with 11 seconds of the rate."""

    __slots__ = ("_limit", "_tokens", "_updated_ms")

    def __init__(self, limit: float, now_ms: int) -> None:
        self._limit = limit
        self._tokens = self._burst
        self._updated_ms = now_ms

    @property
    def _burst(self) -> float:
        return SAMPLES * SAMPLE_MS / 1000 * self._limit

    def change_limit(self, limit: float, now_ms: int) -> None:
        """Another rate, from now on; what is in the bucket stays, as far as it holds it."""
        self.tokens(now_ms)
        self._limit = limit
        self._tokens = min(self._tokens, self._burst)

    def tokens(self, now_ms: int) -> float:
        """How many there are; negative: so many were spent in advance."""
        self._tokens = min(self._burst, self._tokens + self._limit * (now_ms - self._updated_ms) / 1000)
        self._updated_ms = now_ms
        return self._tokens

    def try_spend(self, count: float, now_ms: int) -> int:
        """Spend and return 0, or, if tokens are owed, spend nothing and return for how long (ms) they are.

        What CreateTopics 6, DeleteTopics 5 and CreatePartitions 3 and newer ask: else THROTTLING_QUOTA_EXCEEDED.
        """
        if (owed_ms := self.owed_ms(now_ms)) > 0 or self.tokens(now_ms) < 0:
            return max(owed_ms, 1)
        self._spend(count, now_ms)
        return 0

    def spend(self, count: float, now_ms: int) -> int:
        """Spend, and for how long (ms) to throttle then: what older versions get."""
        self._spend(count, now_ms)
        return self.owed_ms(now_ms)

    def owed_ms(self, now_ms: int) -> int:
        """How long it takes until no tokens are owed."""
        tokens = self.tokens(now_ms)
        return _rounded(-tokens / self._limit * 1000) if tokens < 0 else 0

    def _spend(self, count: float, now_ms: int) -> None:
        self._tokens = min(self._burst, self.tokens(now_ms) - count)


class Allowance:
    """What may be used at a rate; what was used beyond is owed, and waited for.

    Kafka compares the rate of its window with the quota and waits in proportion to what is too much. That
    settles above the quota, the more so the more connections share it, and below it where windows end. Here what was
    too much is worked off to the end, so that over a minute the quota is kept whatever the requests look like.
    """

    __slots__ = ("_amount", "_updated_ms", "limit")

    def __init__(self, limit: float, now_ms: int) -> None:
        self.limit = limit
        """Per second. It may be set at any time: what is owed stays owed."""
        self._amount = limit * BURST_S
        self._updated_ms = now_ms

    def left(self, now_ms: int) -> float:
        """How much may be used; negative: so much is owed."""
        amount = self._amount + self.limit * (now_ms - self._updated_ms) / 1000
        self._amount = min(max(amount, -self.limit * DEBT_S_MAX), self.limit * BURST_S)
        self._updated_ms = now_ms
        return self._amount

    def use(self, amount: float, now_ms: int) -> int:
        """Use so much, and for how long (ms) to throttle then."""
        self._amount = self.left(now_ms) - amount
        return self.owed_ms(now_ms)

    def owed_ms(self, now_ms: int) -> int:
        """How long it takes until nothing is owed."""
        left = self.left(now_ms)
        return min(math.ceil(-left / self.limit * 1000), THROTTLE_MS_MAX) if left < 0 else 0
