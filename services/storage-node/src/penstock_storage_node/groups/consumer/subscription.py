"""What classic consumers tell one another through the coordinator: subscriptions and assignments.

Source: Kafka's ConsumerProtocolSubscription.json and ConsumerProtocolAssignment.json, versions 0-3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock_kafka.wire.primitives import INT16, INT32, Malformed, Reader, put_string


class Subscription(NamedTuple):
    """What a consumer reads, and what it has: (topic, partition)s."""

    topics: tuple[str, ...]
    owned: frozenset[tuple[str, int]]
    version: int


def read_subscription(data: bytes) -> Subscription | None:
    """None when it cannot be read."""
    try:
        reader = Reader(data, 0, False)
        version = reader.int16()
        topics = tuple(reader.string() for _ in range(reader.array(2)))
        reader.nullable_bytes()
        owned = _read_places(reader) if version >= 1 else frozenset()
        return Subscription(topics, owned, version)
    except Malformed:
        return None


def read_assignment(data: bytes) -> frozenset[tuple[str, int]] | None:
    """(topic, partition)s of an assignment; nothing when it is empty, None when it cannot be read."""
    if not data:
        return frozenset()
    try:
        reader = Reader(data, 0, False)
        reader.int16()
        return _read_places(reader)
    except Malformed:
        return None


def _read_places(reader: Reader) -> frozenset[tuple[str, int]]:
    places: list[tuple[str, int]] = []
    for _ in range(reader.array(6)):
        topic = reader.string()
        places += [(topic, reader.int32()) for _ in range(reader.array(4))]
    return frozenset(places)


def put_assignment(version: int, partitions: Mapping[str, Sequence[int]]) -> bytes:
    """An assignment of partitions by topic."""
    out = [INT16.pack(max(version, 0)), INT32.pack(len(partitions))]
    for topic in sorted(partitions):
        numbers = sorted(partitions[topic])
        out += (put_string(topic, False), INT32.pack(len(numbers)), *(INT32.pack(n) for n in numbers))
    out.append(INT32.pack(-1))
    return b"".join(out)
