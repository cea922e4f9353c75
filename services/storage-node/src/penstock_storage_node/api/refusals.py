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

The same holds for R1 that was written here and answered REQUEST_TIMED_OUT, as this node no
longer led: it may cut R1 off as a follower and lead again, all before R2 arrives.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicId
from penstock_core.kafka.produce import ProducePartition, ProduceResult
from penstock_core.records.batch import HEADER_BYTES, BatchInfo

EXPIRY_MS: Final = 10_000
"""After this a batch is no longer one that was sent before the refusal was read."""

REFUSED_MAX: Final = 10_000
"""Producers and partitions kept; the oldest goes first."""

RETRIED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Refusals after which a client sends the batch again."""

UNACKNOWLEDGED: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
"""Answers to a batch that was written, but may not stay, after which a client sends it again."""

_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_OFFSET: Final = 43
_SEQUENCE_MASK: Final = 0x7FFFFFFF

_Key = tuple[int, int, str | None, TopicId | None, int]


SEQUENCES_MAX: Final = 5
"""Refused batches kept of a producer in a partition: as many as it may have in flight."""


@dataclass(slots=True)
class _Refused:
    sequences: list[int]
    """In their order, never empty."""
    expires_ms: int


class Refusals:
    """What one node refused lately. False when that is nothing."""

    def __init__(self) -> None:
        self._refused: dict[_Key, _Refused] = {}

    def __bool__(self) -> bool:
        return bool(self._refused)

    def note(self, item: ProducePartition, code: ErrorCode, now_ms: int) -> None:
        """A batch was refused; nothing of it was written."""
        records = item.records
        if code not in RETRIED or len(records) < HEADER_BYTES:
            return
        producer_id, epoch, sequence = _PRODUCER.unpack_from(records, _PRODUCER_OFFSET)
        if producer_id < 0 or sequence < 0:
            return
        self._keep((producer_id, epoch, item.topic, item.topic_id, item.partition), sequence, now_ms)

    def note_unacknowledged(self, result: ProduceResult, info: BatchInfo, now_ms: int) -> None:
        """A batch was written here, and answered with an error that makes its producer send it again."""
        if info.producer_id < 0 or result.error not in UNACKNOWLEDGED:
            return
        key = (info.producer_id, info.producer_epoch, result.topic, result.topic_id, result.partition)
        self._keep(key, info.base_sequence, now_ms)

    def _keep(self, key: _Key, sequence: int, now_ms: int) -> None:
        known = self._refused.pop(key, None)
        refused = _Refused([sequence], now_ms + EXPIRY_MS)
        if known is not None and known.expires_ms > now_ms:
            sequences = known.sequences
            if _is_behind(sequence, sequences[0]):
                # Held back because of that one: it must not hold the next ones back for longer.
                refused.expires_ms = known.expires_ms
            earlier = [each for each in sequences if _is_behind(sequence, each)]
            later = [each for each in sequences if _is_behind(each, sequence)]
            refused.sequences = [*earlier, sequence, *later][:SEQUENCES_MAX]
        elif len(self._refused) >= REFUSED_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[key] = refused

    def check(self, item: ProducePartition, info: BatchInfo, is_next: bool, now_ms: int) -> None:
        """Raises NOT_LEADER_OR_FOLLOWER for a batch behind one that was refused and has not come again.

        `is_next`: in the log it is the next of its producer, or there already, so nothing is missing
        before it.
        """
        key = (info.producer_id, info.producer_epoch, item.topic, item.topic_id, item.partition)
        refused = self._refused.get(key)
        if refused is None:
            return
        if refused.expires_ms <= now_ms:
            del self._refused[key]
            return
        first = refused.sequences[0]
        if is_next or not _is_behind(info.base_sequence, first):
            refused.sequences = [each for each in refused.sequences if _is_behind(each, info.base_sequence)]
            if not refused.sequences:
                del self._refused[key]
            return
        raise PenstockError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"sequence {first} of producer {info.producer_id} was refused and must come again"
            f" before sequence {info.base_sequence}: retry",
        )


def _is_behind(sequence: int, other: int) -> bool:
    """Whether `other` is the earlier one; sequences go from 2^31-1 to 0."""
    return 0 < (sequence - other) & _SEQUENCE_MASK <= _SEQUENCE_MASK // 2
