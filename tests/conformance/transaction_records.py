"""The records of `__transaction_state` as a plain consumer finds them, read by Kafka's schemas and by no code of ours.

Source: TransactionLogKey.json and TransactionLogValue.json of Kafka 4.3.
"""

from __future__ import annotations

import struct
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from support.kafka import client_config

TOPIC: Final = "__transaction_state"
STATUSES: Final = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
NO_PARTITIONS: Final = None
_PATIENCE_S: Final = 240.0
_FIELDS: Final = {0: ">q", 1: ">q", 2: ">h", 3: ">h"}
"""Tagged fields of Kafka's: previous and next producer id, the client's transaction version, next epoch."""
_OURS_FROM: Final = 1000
"""Tagged fields that Kafka does not know, and passes over."""


@dataclass(frozen=True, slots=True)
class StateRecord:
    """One record, without its times."""

    version: int
    producer_id: int
    epoch: int
    timeout_ms: int
    status: str
    partitions: tuple[tuple[str, tuple[int, ...]], ...] | None
    has_start: bool
    previous_id: int = -1
    next_id: int = -1
    client_version: int = 0
    next_epoch: int = -1


class Plain:
    """Bytes, read from their beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        assert len(found) == count, f"a record of {len(self._data)} bytes ends too early"
        self._at += count
        return found

    def number(self, layout: str) -> int:
        value: int = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return value

    def text(self) -> str:
        """A compact string."""
        return self.take(self.varint() - 1).decode()

    def varint(self) -> int:
        value = shift = 0
        while True:
            one = self.take(1)[0]
            value |= (one & 0x7F) << shift
            if not one & 0x80:
                return value
            shift += 7

    def tags(self) -> dict[int, bytes]:
        found = {}
        for _ in range(self.varint()):
            tag = self.varint()
            found[tag] = self.take(self.varint())
        return found

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._data)


def read_value(value: bytes) -> StateRecord:
    """Fails for what is not exactly a value of version 0 or 1."""
    data = Plain(value)
    version = data.number(">h")
    assert version in (0, 1), f"a value of version {version}"
    flexible = version == 1
    producer_id, epoch, timeout_ms = data.number(">q"), data.number(">h"), data.number(">i")
    status = STATUSES[data.number(">b")]
    partitions = _read_partitions(data, flexible)
    data.number(">q")  # of the last update
    start_ms = data.number(">q")
    tags = data.tags() if flexible else {}
    assert data.is_at_end, "there is more behind a value"
    assert all(tag in _FIELDS or tag >= _OURS_FROM for tag in tags), tags
    told = {tag: struct.unpack(_FIELDS[tag], raw)[0] for tag, raw in tags.items() if tag in _FIELDS}
    return StateRecord(
        version, producer_id, epoch, timeout_ms, status, partitions, start_ms > 0,
        told.get(0, -1), told.get(1, -1), told.get(2, 0), told.get(3, -1),
    )  # fmt: skip


def _read_partitions(data: Plain, flexible: bool) -> tuple[tuple[str, tuple[int, ...]], ...] | None:
    def count() -> int:
        return data.varint() - 1 if flexible else data.number(">i")

    topics = count()
    if topics < 0:
        return NO_PARTITIONS
    found = []
    for _ in range(topics):
        size = data.varint() - 1 if flexible else data.number(">h")
        name = data.take(size).decode()
        numbers = tuple(sorted(data.number(">i") for _ in range(count())))
        if flexible:
            assert not data.tags()
        found.append((name, numbers))
    return tuple(sorted(found))


def read_key(key: bytes) -> str:
    """The transactional id."""
    version, size = struct.unpack_from(">hh", key)
    assert version == 0, key
    assert size == len(key) - 4, key
    return key[4:].decode()


def read_all(bootstrap: str) -> dict[str, list[StateRecord | None]]:
    """By transactional id what a consumer that knows nothing of transactions finds, in order; None for tombstones."""
    consumer = Consumer(
        client_config(
            bootstrap,
            **{
                "group.id": "traces",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            },
        )
    )
    found: dict[str, list[StateRecord | None]] = defaultdict(list)
    try:
        partitions = consumer.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions
        left = set(partitions)
        consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in partitions])
        deadline_s = time.monotonic() + _PATIENCE_S
        while left:
            assert time.monotonic() < deadline_s, f"{TOPIC} was not read: {sorted(left)} are left"
            for message in consumer.consume(1000, timeout=1.0):
                error = message.error()
                if error is None:
                    _keep(found, message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    raise AssertionError(error.str())
    finally:
        consumer.close()
    return dict(found)


def _keep(found: dict[str, list[StateRecord | None]], message: Any) -> None:
    value = message.value()
    found[read_key(message.key())].append(None if value is None else read_value(value))
