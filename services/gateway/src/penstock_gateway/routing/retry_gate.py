"""Keeps an idempotent producer's pipelined batches behind the one that was answered with a failure.

A client has several requests in flight. When one of them, R1, is answered 7 or 6 here, or
with an error of its node's that is passed on, the client sends it again, but R2 may be on its
way already. Should R2 reach the new leader before R1 is there again, that leader must refuse
it as OUT_OF_ORDER_SEQUENCE_NUMBER, and librdkafka answers that by bumping its epoch for *all*
partitions: whatever was answered 7 on any of them, and written, is then written twice.

So R2 is answered NOT_LEADER_OR_FOLLOWER (certainly not written) until R1, or something
older, comes again. A broker that is dialled directly gives the same guarantee: R2 goes
down with R1's connection, or is refused by the same deposed leader.

R1 may never come by this connection: the retry takes another one, or R2 was under way already
and is acknowledged, and librdkafka then takes R1 for written too. Therefore a fence opens as
well when the first of those that it turned away comes again: clients send in order, so nothing
older will come. It may not open behind that one, or the next would overtake it. No fence turns
away more than could have been under way (PIPELINE_MAX), and none does after EXPIRY_MS.

A fence stands before whatever names a partition: a `TopicPartition`, or what the request said
when R1's topic was not known here. Without a fence R2 would be the first that the leader sees
of its producer, so it would be written, and clients take R1 for written as soon as R2 is.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock_kafka.producer_retries import (
    EXPIRY_MS,
    PIPELINE_MAX,
    ProducerSequence,
    still_awaited,
    with_failed,
)

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Gate:
    awaited: list[ProducerSequence]
    """Those that failed and have not come again, in their order, never empty."""
    opens_at: ProducerSequence
    """The first of them, then the first that was turned away because of it."""
    expires_ms: int
    left: int = PIPELINE_MAX


class RetryGate(Generic[K]):
    """The fences of one client connection."""

    def __init__(self, fences_max: int = sys.maxsize) -> None:
        """`fences_max`: of more the oldest go; where clients choose what is named."""
        self._retry_gate: dict[K, _Gate] = {}
        """Those that expire first come first."""
        self._fences_max = fences_max

    def __bool__(self) -> bool:
        return bool(self._retry_gate)

    def failed(self, key: K, sequence: ProducerSequence | None, now_ms: int) -> None:
        """A batch was answered with a failure that makes the client send it again."""
        if sequence is None:
            return
        fence = self._retry_gate.get(key)
        known = fence.awaited if fence is not None and fence.expires_ms > now_ms else []
        awaited = with_failed(known, sequence)
        if fence is None or awaited[0] == sequence:
            self._retry_gate.pop(key, None)
            self._retry_gate[key] = _Gate(awaited, sequence, now_ms + EXPIRY_MS)
            self._forget(now_ms)
        else:
            fence.awaited = awaited

    def _forget(self, now_ms: int) -> None:
        """Let go of fences whose time is over: what they stand before may never come again."""
        while True:
            oldest = next(iter(self._retry_gate))
            if self._retry_gate[oldest].expires_ms > now_ms and len(self._retry_gate) <= self._fences_max:
                return
            del self._retry_gate[oldest]

    def holds_back(self, key: K, sequence: ProducerSequence | None) -> bool:
        """Whether a batch that came earlier, and is to be routed again, must fail."""
        fence = self._retry_gate.get(key)
        return fence is not None and sequence is not None and sequence.is_behind(fence.awaited[0])

    def turns_away(self, key: K, sequence: ProducerSequence | None, now_ms: int) -> bool:
        """Whether a batch that comes now must fail; opens the fence when its time is over."""
        fence = self._retry_gate.get(key)
        if fence is None or sequence is None:
            return False
        if fence.expires_ms <= now_ms:
            del self._retry_gate[key]
            return False
        if not sequence.is_behind(fence.opens_at):
            self._open(key, fence, sequence)
            return False
        if fence.opens_at == fence.awaited[0]:
            fence.opens_at = sequence
        fence.left -= 1
        if not fence.left:
            del self._retry_gate[key]
        return True

    def _open(self, key: K, fence: _Gate, arrived: ProducerSequence) -> None:
        """Let what comes pass, up to the next one that was answered with a failure as well.

        Its answer may be on its way to the client still, which has sent others behind it since.
        """
        awaited = still_awaited(fence.awaited, arrived)
        if awaited:
            self._retry_gate[key] = _Gate(awaited, awaited[0], fence.expires_ms)
        else:
            del self._retry_gate[key]
