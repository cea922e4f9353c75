"""Which partition of `__consumer_offsets` a group belongs to, and of `__transaction_state` a transactional id; its
leader is the coordinator.

Source: GroupCoordinatorService.partitionFor and TransactionStateManager.partitionFor of Apache Kafka 4.3:
`Utils.abs(id.hashCode()) % partitions`, with Java's hash over UTF-16 units. Clients never compute it, but
records that Kafka wrote must be found where Kafka would look.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from penstock_kafka.wire.frames import RequestHeader
from penstock_kafka.wire.primitives import Buffer, Reader

_INT_MIN: Final = -(2**31)
_CACHE_ENTRIES: Final = 4096


def java_hash(text: str) -> int:
    """Java's String.hashCode: a signed 32-bit number."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@lru_cache(maxsize=_CACHE_ENTRIES)
def group_partition(group_id: str, partition_count: int) -> int:
    """The partition of `OFFSETS_TOPIC` that keeps a group."""
    value = java_hash(group_id)
    return (0 if value == _INT_MIN else abs(value)) % partition_count


def transaction_partition(transactional_id: str, partition_count: int) -> int:
    """The partition of `TRANSACTIONS_TOPIC` that keeps a transactional id."""
    return group_partition(transactional_id, partition_count)


def named_transaction(header: RequestHeader, frame: Buffer) -> str | None:
    """The transactional id of an InitProducerId, which goes to that id's coordinator; None for one of a producer
    that is only idempotent. Raises Malformed."""
    return Reader(frame, header.body_offset, header.flexible, header.items_max).nullable_string()
