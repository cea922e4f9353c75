"""Records of `__transaction_state`, byte for byte as Kafka's coordinator writes them.

Key: int16 0 and the transactional id. Value: int16 version, 0 or 1; version 1 is flexible and has tagged fields. Three
of them are ours: 1000, the last producer epoch, which Kafka keeps in memory alone; 1001, the unit that the id is a
stage of (see `unit_records`, where the other kind of record is); 1002, `init_version`. Kafka's readers pass over them.
No value is a tombstone: the id has expired.

Source: Kafka's schemas TransactionLogKey and TransactionLogValue, TransactionLog.valueToBytes
(transaction-coordinator/src/main/resources/common/message).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from itertools import groupby
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
from penstock_storage_node.transactions.effects import TopicPartitionName
from penstock_storage_node.transactions.unit_records import Unit, put_mark, read_mark

VALUE_VERSION_MAX: Final = 1
_FLEXIBLE_SINCE: Final = 1
_KEY_VERSION: Final = 0

_TAG_PREVIOUS_ID: Final = 0
_TAG_NEXT_ID: Final = 1
_TAG_CLIENT_VERSION: Final = 2
_TAG_NEXT_EPOCH: Final = 3
_TAG_LAST_EPOCH: Final = 1000
_TAG_UNIT: Final = 1001
_TAG_INIT_VERSION: Final = 1002
_TAGS: Final = {
    _TAG_PREVIOUS_ID: INT64,
    _TAG_NEXT_ID: INT64,
    _TAG_CLIENT_VERSION: INT16,
    _TAG_NEXT_EPOCH: INT16,
    _TAG_LAST_EPOCH: INT16,
    _TAG_INIT_VERSION: INT16,
}
_NO_TAGS: Final[dict[int, int]] = {}
_HEAD: Final = struct.Struct(">qhib")
"""Producer id and epoch, timeout, state."""
_TIMES: Final = struct.Struct(">qq")
"""Of the last update and of the start."""
_KEY_HEAD: Final = struct.Struct(">hh")
_AT_REST: Final = struct.Struct(">hqhibBqqB")
"""A value of version 1 without partitions, up to the count of its tagged fields: version, head, one byte more than the
number of topics, times, count."""
_PREVIOUS_ID: Final = uvarint(_TAG_PREVIOUS_ID) + uvarint(INT64.size)
_CLIENT_VERSION: Final = uvarint(_TAG_CLIENT_VERSION) + uvarint(INT16.size)
_LAST_EPOCH: Final = uvarint(_TAG_LAST_EPOCH) + uvarint(INT16.size)
_INIT_VERSION: Final = uvarint(_TAG_INIT_VERSION) + uvarint(INT16.size)
"""How these tagged fields begin."""


class Status(IntEnum):
    """States of a transactional id, numbered as in records (Kafka: TransactionState)."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """In memory only: it expires."""

    @property
    def is_decided(self) -> bool:
        """Its markers are being written."""
        return self is Status.PREPARE_COMMIT or self is Status.PREPARE_ABORT

    @property
    def label(self) -> str:
        """As clients are told (ListTransactions, DescribeTransactions)."""
        return self.name.title().replace("_", "")


_IN_RECORDS: Final = frozenset(Status) - {Status.DEAD}
_BY_NUMBER: Final = {int(status): status for status in _IN_RECORDS}

Partitions = frozenset[TopicPartitionName]
NO_PARTITIONS: Final[Partitions] = frozenset()


class StateRecord(NamedTuple):
    """One record to write; `value` None is a tombstone."""

    key: bytes
    value: bytes | None


class TransactionValue(NamedTuple):
    """A transactional id as it is stored. Times in ms since 1970."""

    status: Status
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    update_ms: int
    partitions: Partitions = NO_PARTITIONS
    start_ms: int = -1
    """When the transaction began; -1 without one."""
    previous_id: int = -1
    """Producer id before the last transition."""
    next_id: int = -1
    """Producer id that comes with the end of this transaction, because the epochs of the present one are used up."""
    client_version: int = 0
    """`transaction.version` by which the client, or the server for it, did the last transition."""
    next_epoch: int = -1
    """Kafka's, unused so far."""
    last_epoch: int = -1
    """Producer epoch before the last one that its own producer asked for; -1 when another fenced it."""
    unit: Unit | None = None
    """That it is a stage of, from its begin until it has ended."""
    init_version: int = 0
    """`client_version` of the InitProducerId that gave the present epoch, until the first transaction with it begins;
    then 0."""


def put_key(transactional_id: str) -> bytes:
    """Key of an id."""
    return INT16.pack(_KEY_VERSION) + put_string(transactional_id, False)


def read_key(data: bytes) -> str | None:
    """The transactional id, None for a kind that is not known. Raises Malformed."""
    if len(data) >= _KEY_HEAD.size:
        version, size = _KEY_HEAD.unpack_from(data)
        if version == _KEY_VERSION and size == len(data) - _KEY_HEAD.size:
            try:
                return data[_KEY_HEAD.size :].decode()
            except UnicodeDecodeError:
                pass
    reader = Reader(data, 0, False)
    return reader.string() if reader.int16() == _KEY_VERSION else None


def put_value(value: TransactionValue, version: int) -> bytes:
    """The value, in version 0 (without what is tagged) or 1."""
    flexible = version >= _FLEXIBLE_SINCE
    out = [
        INT16.pack(version),
        INT64.pack(value.producer_id),
        INT16.pack(value.producer_epoch),
        INT32.pack(value.timeout_ms),
        INT8.pack(value.status),
    ]
    if value.status is Status.EMPTY:
        out.append(put_count(-1, flexible))
    else:
        _put_partitions(out, value.partitions, flexible)
    out += (INT64.pack(value.update_ms), INT64.pack(value.start_ms))
    if flexible:
        _put_tags(out, value)
    return b"".join(out)


def _put_partitions(out: list[bytes], partitions: Iterable[TopicPartitionName], flexible: bool) -> None:
    topics = [
        (topic, [partition for _, partition in rows])
        for topic, rows in groupby(sorted(partitions), key=lambda row: row[0])
    ]
    out.append(put_count(len(topics), flexible))
    for topic, numbers in topics:
        out += (put_string(topic, flexible), put_count(len(numbers), flexible))
        out += (INT32.pack(number) for number in numbers)
        if flexible:
            out.append(b"\x00")


def _put_tags(out: list[bytes], value: TransactionValue) -> None:
    tags = [
        (tag, data)
        for tag, data, is_default in (
            (_TAG_PREVIOUS_ID, INT64.pack(value.previous_id), value.previous_id == -1),
            (_TAG_NEXT_ID, INT64.pack(value.next_id), value.next_id == -1),
            (_TAG_CLIENT_VERSION, INT16.pack(value.client_version), value.client_version == 0),
            (_TAG_NEXT_EPOCH, INT16.pack(value.next_epoch), value.next_epoch == -1),
            (_TAG_LAST_EPOCH, INT16.pack(value.last_epoch), value.last_epoch == -1),
            (_TAG_UNIT, b"" if value.unit is None else put_mark(value.unit), value.unit is None),
            (_TAG_INIT_VERSION, INT16.pack(value.init_version), value.init_version == 0),
        )
        if not is_default
    ]
    out.append(uvarint(len(tags)))
    for tag, data in tags:
        out += (uvarint(tag), uvarint(len(data)), data)


def read_value(data: bytes) -> TransactionValue:
    """Raises Malformed, also for what no coordinator would have written."""
    return _read_at_rest(data) or _read_any(data)


def _read_at_rest(data: bytes) -> TransactionValue | None:
    """What nearly all ids of a log that is loaded are: without partitions, and with no other tagged fields than those
    of every id. None for all else, damage too."""
    if len(data) < _AT_REST.size:
        return None
    version, producer_id, epoch, timeout_ms, number, topics, update_ms, start_ms, tags = _AT_REST.unpack_from(
        data
    )
    status = _BY_NUMBER.get(number)
    if version != _FLEXIBLE_SINCE or topics > 1 or tags > 4 or status is None or producer_id < 0 or epoch < 0:
        return None
    previous_id, client_version, last_epoch, init_version = -1, 0, -1, 0
    pos = _AT_REST.size
    try:
        for _ in range(tags):
            if data.startswith(_PREVIOUS_ID, pos):
                (previous_id,) = INT64.unpack_from(data, pos + 2)
                pos += 10
            elif data.startswith(_CLIENT_VERSION, pos):
                (client_version,) = INT16.unpack_from(data, pos + 2)
                pos += 4
            elif data.startswith(_LAST_EPOCH, pos):
                (last_epoch,) = INT16.unpack_from(data, pos + 3)
                pos += 5
            elif data.startswith(_INIT_VERSION, pos):
                (init_version,) = INT16.unpack_from(data, pos + 3)
                pos += 5
            else:
                return None
    except struct.error:
        return None
    if previous_id == producer_id:
        previous_id = producer_id  # one number in memory, not two
    return TransactionValue(
        status,
        producer_id,
        epoch,
        timeout_ms,
        update_ms,
        start_ms=start_ms,
        previous_id=previous_id,
        client_version=client_version,
        last_epoch=last_epoch,
        init_version=init_version,
    )


def _read_any(data: bytes) -> TransactionValue:
    version = INT16.unpack_from(data)[0] if len(data) >= INT16.size else -1
    if not 0 <= version <= VALUE_VERSION_MAX:
        raise Malformed(f"transaction state of version {version}")
    reader = Reader(data, INT16.size, version >= _FLEXIBLE_SINCE)
    producer_id, epoch, timeout_ms, number = reader.unpack(_HEAD)
    status = _BY_NUMBER.get(number)
    if status is None:
        raise Malformed(f"transaction in state {number}")
    if producer_id < 0 or epoch < 0:
        raise Malformed(f"transaction of producer {producer_id} with epoch {epoch}")
    partitions = _read_partitions(reader)
    if status is Status.EMPTY:
        partitions = NO_PARTITIONS
    update_ms, start_ms = reader.unpack(_TIMES)
    tags, unit = _read_tags(reader) if reader.flexible else (_NO_TAGS, None)
    previous_id = tags.get(_TAG_PREVIOUS_ID, -1)
    return TransactionValue(
        status,
        producer_id,
        epoch,
        timeout_ms,
        update_ms,
        partitions,
        start_ms,
        producer_id if previous_id == producer_id else previous_id,  # one number in memory, not two
        tags.get(_TAG_NEXT_ID, -1),
        tags.get(_TAG_CLIENT_VERSION, 0),
        tags.get(_TAG_NEXT_EPOCH, -1),
        tags.get(_TAG_LAST_EPOCH, -1),
        unit,
        tags.get(_TAG_INIT_VERSION, 0),
    )


def _read_partitions(reader: Reader) -> Partitions:
    topics = reader.nullable_array(3)
    if not topics:
        return NO_PARTITIONS
    found: set[TopicPartitionName] = set()
    for _ in range(topics):
        topic = reader.string()
        found.update(TopicPartitionName(topic, reader.int32()) for _ in range(reader.array(4)))
        reader.skip_tags()
    return frozenset(found)


def _read_tags(reader: Reader) -> tuple[dict[int, int], Unit | None]:
    """Numbers by tag, and the unit."""
    found = {}
    unit = None
    for _ in range(reader.uvarint()):
        tag, size = reader.uvarint(), reader.uvarint()
        start = reader.take(size)
        if tag == _TAG_UNIT:
            unit = read_mark(reader.view[start : start + size])
            continue
        layout = _TAGS.get(tag)
        if layout is None:
            continue
        if size < layout.size:
            raise Malformed(f"{size} bytes in tagged field {tag} of a transaction")
        found[tag] = layout.unpack_from(reader.view, start)[0]
    return found, unit
