"""Records of `__transaction_state`, byte for byte as Kafka's coordinator writes them.

A key is int16 0 and the transactional id. A value begins with its version: 0 is plain, 1 is flexible and keeps in
tagged fields what transactions of version 2 (KIP-890) need. One field is ours: tag 1000, the last epoch. Kafka keeps
that in memory alone, so an InitProducerId with an epoch (KIP-360) that is repeated after the coordinator moved is
fenced there for no reason; its readers step over tags that they do not know.

Source: Kafka's schemas TransactionLogKey and TransactionLogValue, TransactionLog.java
(transaction-coordinator/src/main).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from penstock_kafka.wire.primitives import (
    INT8,
    INT16,
    INT32,
    INT64,
    Malformed,
    Reader,
    put_count,
    put_string,
    uvarint,
)

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME_MS: Final = -1
LAST_EPOCH_TAG: Final = 1000

Partitions = frozenset[tuple[str, int]]
"""(topic, partition)s."""


class State(IntEnum):
    """Of a transactional id, as it is written."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


class TransactionValue(NamedTuple):
    """All that is kept of one transactional id. Times in ms since 1970."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    partitions: Partitions = frozenset()
    update_ms: int = NO_TIME_MS
    start_ms: int = NO_TIME_MS
    previous_producer_id: int = NO_PRODUCER_ID
    """Before the present one, whose epochs were used up."""
    next_producer_id: int = NO_PRODUCER_ID
    """Of the transaction after this one, whose end uses up the present one's epochs."""
    client_version: int = 0
    """Transaction version (`transaction.version`) that the client, or who aborts in its place, goes by: 0 or 2."""
    last_epoch: int = NO_EPOCH
    """The epoch before the present one, as far as its producer may say it again."""


def put_key(transactional_id: str) -> bytes:
    """Key of a transactional id."""
    return INT16.pack(0) + put_string(transactional_id, False)


def read_key(data: bytes) -> str | None:
    """The transactional id, None for a kind of key that is not known. Raises Malformed."""
    reader = Reader(data, 0, False)
    return reader.string() if reader.int16() == 0 else None


def put_value(value: TransactionValue, *, flexible: bool = True) -> bytes:
    """`flexible`: version 1; version 0, for `transaction.version` 0, keeps none of the tagged fields."""
    out = [
        INT16.pack(1 if flexible else 0),
        INT64.pack(value.producer_id),
        INT16.pack(value.producer_epoch),
        INT32.pack(value.timeout_ms),
        INT8.pack(value.state),
        _put_partitions(value, flexible),
        INT64.pack(value.update_ms),
        INT64.pack(value.start_ms),
    ]
    if flexible:
        out.append(_put_tags(value))
    return b"".join(out)


def _put_partitions(value: TransactionValue, flexible: bool) -> bytes:
    # In Empty there is no list, in the Complete states there is one without items (TransactionLog.valueToBytes).
    if value.state is State.EMPTY and not value.partitions:
        return b"\x00" if flexible else INT32.pack(-1)
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(value.partitions):
        by_topic.setdefault(topic, []).append(partition)
    end = b"\x00" if flexible else b""
    out = [put_count(len(by_topic), flexible)]
    for topic, partitions in by_topic.items():
        out += (put_string(topic, flexible), put_count(len(partitions), flexible))
        out += (*(INT32.pack(partition) for partition in partitions), end)
    return b"".join(out)


def _put_tags(value: TransactionValue) -> bytes:
    tags = []
    if value.previous_producer_id != NO_PRODUCER_ID:
        tags.append((0, INT64.pack(value.previous_producer_id)))
    if value.next_producer_id != NO_PRODUCER_ID:
        tags.append((1, INT64.pack(value.next_producer_id)))
    if value.client_version:
        tags.append((2, INT16.pack(value.client_version)))
    if value.last_epoch != NO_EPOCH:
        tags.append((LAST_EPOCH_TAG, INT16.pack(value.last_epoch)))
    return uvarint(len(tags)) + b"".join(uvarint(tag) + uvarint(len(data)) + data for tag, data in tags)


def read_value(data: bytes) -> TransactionValue:
    """Raises Malformed, also for a state that is none and for a version that is not known."""
    version = INT16.unpack_from(data)[0] if len(data) >= INT16.size else -1
    if version not in (0, 1):
        raise Malformed(f"value of version {version}")
    reader = Reader(data, INT16.size, version == 1)
    producer_id, epoch, timeout_ms, state = reader.int64(), reader.int16(), reader.int32(), reader.int8()
    if not State.EMPTY <= state <= State.COMPLETE_ABORT:
        raise Malformed(f"state {state}")
    partitions = []
    for _ in range(reader.nullable_array(3) or 0):
        topic = reader.string()
        partitions += [(topic, reader.int32()) for _ in range(reader.array(4))]
        reader.skip_tags()
    value = TransactionValue(
        producer_id,
        epoch,
        timeout_ms,
        State(state),
        frozenset(partitions),
        update_ms=reader.int64(),
        start_ms=reader.int64(),
    )
    return value if version == 0 else _read_tags(reader, value)


_TAGS: Final = {
    0: ("previous_producer_id", INT64),
    1: ("next_producer_id", INT64),
    2: ("client_version", INT16),
    LAST_EPOCH_TAG: ("last_epoch", INT16),
}


def _read_tags(reader: Reader, value: TransactionValue) -> TransactionValue:
    found: dict[str, int] = {}
    for _ in range(reader.uvarint()):
        tag, size = reader.uvarint(), reader.uvarint()
        start = reader.take(size)
        name, layout = _TAGS.get(tag, ("", INT16))
        if not name:
            continue
        if size != layout.size:
            raise Malformed(f"tagged field {tag} of {size} bytes")
        found[name] = layout.unpack_from(reader.view, start)[0]
    return TransactionValue(**{**value._asdict(), **found})
