"""What of an idempotent producer's pipelined batches its client sends again, and in what order they must come.

A client has up to PIPELINE_MAX batches of a partition in flight (KIP-98: a leader remembers as many).
When one is answered with an error of SENT_AGAIN, later ones may be on their way already, and none of
them may be written before it: an unknown producer's would be written out of order and the first one
lost, a known producer's refused as OUT_OF_ORDER_SEQUENCE_NUMBER, at which librdkafka bumps its epoch.
Gateways (`routing/retry_gate.py`) and storage nodes (`kafka/retry_gate.py`) hold the later ones back by the
same rules, which are here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock_core.errors import CHECK_PARTITION, ErrorCode
from penstock_kafka.records.batch import HEADER_BYTES, Buffer

PIPELINE_MAX: Final = 5
"""Requests that an idempotent producer may have in flight on a connection."""

EXPIRY_MS: Final = 10_000
"""After this a batch is no longer one that was sent before the failure was read."""

REFUSED: Final = CHECK_PARTITION | {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.KAFKA_STORAGE_ERROR,
}
"""Answers to a batch of which nothing was written, after which a client sends it again."""

UNACKNOWLEDGED: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
"""Answers to a batch that was written, but may not stay, after which a client sends it again."""

SENT_AGAIN: Final = REFUSED | UNACKNOWLEDGED

_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_OFFSET: Final = 43
"""Producer id, epoch and base sequence in a batch's header (version 2)."""

_SEQUENCE_MASK: Final = 0x7FFFFFFF
"""Sequences go from 2^31-1 to 0."""


class ProducerSequence(NamedTuple):
    """Where a batch stands among those of its producer in a partition."""

    producer_id: int
    producer_epoch: int
    base_sequence: int

    @classmethod
    def of(cls, records: Buffer) -> ProducerSequence | None:
        """That of the first batch in `records`; None when it is not an idempotent producer's."""
        if len(records) < HEADER_BYTES:
            return None
        place = cls._make(_PRODUCER.unpack_from(records, _PRODUCER_OFFSET))
        return place if place.producer_id >= 0 and place.base_sequence >= 0 else None

    def is_behind(self, other: ProducerSequence) -> bool:
        """True when `other` is an earlier batch of the same producer and epoch."""
        distance = (self.base_sequence - other.base_sequence) & _SEQUENCE_MASK
        return self[:2] == other[:2] and 0 < distance <= _SEQUENCE_MASK // 2


def with_failed(awaited: Sequence[ProducerSequence], failed: ProducerSequence) -> list[ProducerSequence]:
    """The batches that have to come again, in their order, now that `failed` is one of them.

    Those of another producer or epoch are no longer of interest.
    """
    earlier = [each for each in awaited if failed.is_behind(each)]
    later = [each for each in awaited if each.is_behind(failed)]
    return [*earlier, failed, *later][:PIPELINE_MAX]


def still_awaited(awaited: Sequence[ProducerSequence], arrived: ProducerSequence) -> list[ProducerSequence]:
    """What of them has to come again yet, once `arrived` may pass: clients send in order."""
    return [each for each in awaited if each.is_behind(arrived)]
