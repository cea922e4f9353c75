"""Batches of idempotent producers that were refused here a moment ago, and what they explain.

A client has several requests in flight. This node refuses R1, because it has not heard yet
that it leads, or has too few replicas in sync; then it hears; then R2 arrives, which was
sent before the client read of the refusal. R2 is not next in line: a known producer's would
be OUT_OF_ORDER_SEQUENCE_NUMBER, at which librdkafka bumps its epoch for every partition.
Worse, a producer that is unknown may begin anywhere (Kafka's rule, for those whose state
expired), so R2 would be written, and librdkafka takes R1 for written as soon as R2 is
acknowledged: an acknowledged record is lost.

So R2 is answered NOT_LEADER_OR_FOLLOWER, "certainly not written, send it again", until R1
has come again or has had time to; then R3 until R2 has, which was refused too and may still be
on its way back to the client. Gateways do the same for what they fail themselves.

A new leader knows of no refusal when R1 is out to the leader before it: librdkafka and the Java client
send R2 to the new one without waiting for R1's answer. So the first batch of a producer that a leader
sees, other than that of the partition's first leader, counts as refused behind R1 unless it is next in
line. Once is enough, and needs no clock: clients send nothing again before all that is out was answered
(librdkafka: rd_kafka_idemp_drain_toppar; Java: RecordAccumulator.shouldStopDrainBatchesForPartition). What
comes again is a gap indeed, or of a producer whose state expired.

The same holds for R1 that was written here and answered REQUEST_TIMED_OUT, as this node no
longer led: it may cut R1 off as a follower and lead again, all before R2 arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicId
from penstock_kafka.producer_retries import (
    EXPIRY_MS,
    REFUSED,
    UNACKNOWLEDGED,
    ProducerSequence,
    still_awaited,
    with_failed,
)
from penstock_kafka.records.batch import BatchInfo
from penstock_kafka.wire.produce import ProducePartition, ProduceResult

REFUSED_MAX: Final = 10_000
"""Producers and partitions kept; the oldest goes first."""

_Key = tuple[int, int, str | None, TopicId | None, int]


@dataclass(slots=True)
class _Refused:
    awaited: list[ProducerSequence]
    """Those that have not come again, in their order, never empty."""
    expires_ms: int


class RetryGate:
    """What one node refused lately. False when that is nothing."""

    def __init__(self) -> None:
        self._refused: dict[_Key, _Refused] = {}

    def __bool__(self) -> bool:
        return bool(self._refused)

    def note(self, item: ProducePartition, code: ErrorCode, now_ms: int) -> None:
        """A batch was refused; nothing of it was written."""
        place = ProducerSequence.of(item.records) if code in REFUSED else None
        if place is not None:
            self._keep(place, (item.topic, item.topic_id, item.partition), now_ms)

    def note_unacknowledged(self, result: ProduceResult, info: BatchInfo, now_ms: int) -> None:
        """A batch was written here, and answered with an error that makes its producer send it again."""
        if info.producer_id >= 0 and result.error in UNACKNOWLEDGED:
            self._keep(_place(info), (result.topic, result.topic_id, result.partition), now_ms)

    def _keep(
        self, place: ProducerSequence, partition: tuple[str | None, TopicId | None, int], now_ms: int
    ) -> None:
        key = (place.producer_id, place.producer_epoch, *partition)
        known = self._refused.pop(key, None)
        if known is None and len(self._refused) >= REFUSED_MAX:
            del self._refused[next(iter(self._refused))]
        refused = _Refused([place], now_ms + EXPIRY_MS)
        if known is not None and known.expires_ms > now_ms:
            refused.awaited = with_failed(known.awaited, place)
            if refused.awaited[0] != place:
                # Held back because of that one: it must not hold the next ones back for longer.
                refused.expires_ms = known.expires_ms
        self._refused[key] = refused

    def check(self, item: ProducePartition, info: BatchInfo, is_next: bool, now_ms: int) -> bool:
        """Whether the batch was refused before, and comes again. Raises NOT_LEADER_OR_FOLLOWER for one behind one
        that was refused and has not come again.

        `is_next`: in the log it is the next of its producer, or there already, so nothing is missing
        before it.
        """
        key = (info.producer_id, info.producer_epoch, item.topic, item.topic_id, item.partition)
        refused = self._refused.get(key)
        if refused is None:
            return False
        if refused.expires_ms <= now_ms:
            del self._refused[key]
            return False
        place, first = _place(info), refused.awaited[0]
        if place.is_behind(first) and not is_next:
            raise PenstockError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"sequence {first.base_sequence} of producer {info.producer_id} was refused and must come again"
                f" before sequence {info.base_sequence}: retry",
            )
        came_again = place in refused.awaited
        refused.awaited = still_awaited(refused.awaited, place)
        if not refused.awaited:
            del self._refused[key]
        return came_again


def _place(info: BatchInfo) -> ProducerSequence:
    return ProducerSequence(info.producer_id, info.producer_epoch, info.base_sequence)
