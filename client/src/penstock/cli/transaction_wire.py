"""What Kafka's protocol has for those who look after transactions, and librdkafka does not know.

Each question goes to who has to answer it, by what Metadata and FindCoordinator say: at a proxy listener that is a
gateway, which knows the rest of the way; at direct ones the nodes.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.cli import wire
from penstock.cli.kafka import Bootstrap, connector_of
from penstock.errors import CommandError
from penstock.text import harmless

METADATA: Final = 3
FIND_COORDINATOR: Final = 10
WRITE_TXN_MARKERS: Final = 27
DESCRIBE_PRODUCERS: Final = 61
DESCRIBE_TRANSACTIONS: Final = 65
LIST_TRANSACTIONS: Final = 66
_TRANSACTION: Final = 1
"""Kind of coordinator."""
_LIST_VERSION: Final = 2
_LOADING: Final = 14
"""COORDINATOR_LOAD_IN_PROGRESS."""
_LOAD_WAIT_S: Final = 30.0
_LOAD_AGAIN_S: Final = 0.2
_MOVED: Final = frozenset({5, 6, 14, 15, 16})
NOT_FOUND: Final = 105
"""TRANSACTIONAL_ID_NOT_FOUND."""
NO_TIMEOUT_MS: Final = 2**31 - 1


@dataclass(frozen=True)
class Listed:
    """A transactional id."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True)
class Described:
    """A transactional id, as its coordinator knows it. Times in ms, since 1970 for points in time."""

    transactional_id: str
    state: str
    timeout_ms: int
    start_ms: int
    """-1 without one."""
    producer_id: int
    producer_epoch: int
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class OpenProducer:
    """A producer with an open transaction in a partition, as its leader knows it."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """-1 where no marker has come."""
    last_ms: int
    """When it wrote last, ms since 1970."""
    start_offset: int


@dataclass(frozen=True)
class Cluster:
    """Who is asked."""

    bootstrap: str
    brokers: dict[int, str]
    leaders: dict[tuple[str, int], int]
    """-1 without one."""

    def at(self, node: int) -> Bootstrap | None:
        """Where a broker is."""
        address = self.brokers.get(node)
        return None if address is None else Bootstrap(address, "", connector_of(self.bootstrap))


def read_cluster(bootstrap: str, topic: str | None = None) -> Cluster:
    """Brokers, and leaders of one topic or all. Raises CommandError."""
    body = struct.pack(">i", -1) if topic is None else struct.pack(">i", 1) + wire.text_of(topic)
    reader = wire.Reader(wire.ask(bootstrap, METADATA, body, version=1))
    brokers, leaders = {}, {}
    for _ in range(reader.unpack(">i")[0]):
        (node,), host, (port,), _rack = reader.unpack(">i"), reader.text(), reader.unpack(">i"), reader.text()
        brokers[node] = f"[{host}]:{port}" if ":" in (host or "") else f"{host}:{port}"
    reader.unpack(">i")
    for _ in range(reader.unpack(">i")[0]):
        (code,), name = reader.unpack(">h"), reader.text() or ""
        reader.unpack(">b")
        if code and name == topic:
            raise CommandError(f"topic {harmless(name)!r}: {said(code)}")
        for _ in range(reader.unpack(">i")[0]):
            _code, index, leader = reader.unpack(">hii")
            leaders[name, index] = leader
            for _ in range(2):
                reader.unpack(f">{reader.unpack('>i')[0]}i")
    return Cluster(bootstrap, brokers, leaders)


def list_transactions(
    cluster: Cluster,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    longer_than_ms: int = -1,
    pattern: str | None = None,
) -> tuple[list[Listed], list[str]]:
    """Ids, of all coordinators; and which of `states` there are none. Raises CommandError.

    A coordinator that has just begun is asked again until it has read its log (Kafka: ListTransactionsHandler).
    """
    body = wire.count_of(len(states)) + b"".join(map(wire.compact, states))
    body += wire.count_of(len(producer_ids)) + struct.pack(f">{len(producer_ids)}q", *producer_ids)
    body += struct.pack(">q", longer_than_ms) + (b"\x00" if pattern is None else wire.compact(pattern))
    found: dict[str, Listed] = {}
    unknown: dict[str, None] = {}
    # At a proxy listener several nodes have the address of one gateway, which asks them all.
    deadline = time.monotonic() + _LOAD_WAIT_S
    for place in dict.fromkeys(cluster.brokers.values()):
        address = Bootstrap(place, "", connector_of(cluster.bootstrap))
        while True:
            reader = _asked(address, LIST_TRANSACTIONS, body, _LIST_VERSION)
            _throttle, code = reader.unpack(">ih")
            if code != _LOADING or time.monotonic() >= deadline:
                break
            time.sleep(_LOAD_AGAIN_S)
        if code:
            raise CommandError(f"{address}: {said(code)}")
        unknown.update(dict.fromkeys(reader.compact() or "" for _ in range(reader.count())))
        for _ in range(reader.count()):
            name, (producer_id,), state = reader.compact() or "", reader.unpack(">q"), reader.compact() or ""
            reader.skip_tags()
            found[name] = Listed(name, producer_id, state)
    return sorted(found.values(), key=lambda each: each.transactional_id), list(unknown)


def describe_transactions(cluster: Cluster, names: Iterable[str]) -> dict[str, Described | int]:
    """Ids as their coordinators know them, or Kafka's code. Raises CommandError when nobody answers."""
    found: dict[str, Described | int] = {}
    for name in names:
        place = _coordinator(cluster, name)
        found[name] = place if isinstance(place, int) else _describe(place, name)
    return found


def _coordinator(cluster: Cluster, name: str) -> Bootstrap | int:
    body = wire.text_of(name) + struct.pack(">b", _TRANSACTION)
    reader = wire.Reader(wire.ask(cluster.bootstrap, FIND_COORDINATOR, body, version=1))
    code = reader.unpack(">ih")[1]
    reader.text()
    reader.unpack(">i")
    host, (port,) = reader.text() or "", reader.unpack(">i")
    if code:
        return int(code)
    return Bootstrap(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}", "", connector_of(cluster.bootstrap)
    )


def _describe(place: Bootstrap, name: str) -> Described | int:
    reader = _asked(place, DESCRIBE_TRANSACTIONS, wire.count_of(1) + wire.compact(name), 0)
    reader.unpack(">i")
    if reader.count() != 1:
        raise CommandError(f"{place}: an answer about another transactional id")
    (code,) = reader.unpack(">h")
    reader.compact()
    state = reader.compact() or ""
    timeout_ms, start_ms, producer_id, epoch = reader.unpack(">iqqh")
    partitions = [
        (topic, number)
        for topic, numbers in [_topic(reader) for _ in range(reader.count())]
        for number in numbers
    ]
    if code:
        return int(code)
    return Described(name, state, timeout_ms, start_ms, producer_id, epoch, tuple(partitions))


def _topic(reader: wire.Reader) -> tuple[str, list[int]]:
    name, numbers = reader.compact() or "", reader.ids()
    reader.skip_tags()
    return name, numbers


def open_producers(
    cluster: Cluster, places: Iterable[tuple[str, int]]
) -> tuple[list[OpenProducer], dict[tuple[str, int], int]]:
    """Producers with an open transaction in those partitions; and Kafka's code for each that nobody can tell of."""
    by_leader: dict[int, list[tuple[str, int]]] = {}
    failed: dict[tuple[str, int], int] = {}
    for place in places:
        by_leader.setdefault(cluster.leaders.get(place, -1), []).append(place)
    found: list[OpenProducer] = []
    for node, asked in by_leader.items():
        address = cluster.at(node)
        if address is None:
            failed |= dict.fromkeys(asked, 5)
            continue
        reader = _asked(address, DESCRIBE_PRODUCERS, _topics_of(asked), 0)
        reader.unpack(">i")
        for _ in range(reader.count()):
            topic = reader.compact() or ""
            for _ in range(reader.count()):
                partition, code = reader.unpack(">ih")
                reader.compact()
                rows = [_producer(reader, topic, partition) for _ in range(reader.count())]
                reader.skip_tags()
                if code:
                    failed[topic, partition] = code
                found += [row for row in rows if row.start_offset >= 0]
            reader.skip_tags()
    return found, failed


def _producer(reader: wire.Reader, topic: str, partition: int) -> OpenProducer:
    producer_id, epoch, _sequence, last_ms, coordinator_epoch, start = reader.unpack(">qiiqiq")
    reader.skip_tags()
    return OpenProducer(topic, partition, producer_id, epoch, coordinator_epoch, last_ms, start)


def abort(cluster: Cluster, hanging: OpenProducer) -> int:
    """Have the partition's leader write the marker that ends a transaction there; Kafka's code."""
    place = hanging.topic, hanging.partition
    address = cluster.at(cluster.leaders.get(place, -1))
    if address is None:
        return 5
    body = wire.count_of(1) + struct.pack(">qh?", hanging.producer_id, hanging.producer_epoch, False)
    body += _topics_of([place]) + struct.pack(">i", max(hanging.coordinator_epoch, 0)) + b"\x00"
    reader = _asked(address, WRITE_TXN_MARKERS, body, 1)
    for _ in range(reader.count()):
        reader.unpack(">q")
        for _ in range(reader.count()):
            reader.compact()
            for _ in range(reader.count()):
                code = reader.unpack(">ih")[1]
                reader.skip_tags()
                return int(code)
    return -1


def _topics_of(places: Iterable[tuple[str, int]]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, number in places:
        by_topic.setdefault(topic, []).append(number)
    out = wire.count_of(len(by_topic))
    for topic, numbers in by_topic.items():
        out += wire.compact(topic) + wire.count_of(len(numbers))
        out += struct.pack(f">{len(numbers)}i", *numbers) + b"\x00"
    return out


def _asked(address: str, key: int, body: bytes, version: int) -> wire.Reader:
    return wire.Reader(wire.ask(address, key, body + b"\x00", version=version, flexible=True))


def said(code: int) -> str:
    """What an error of Kafka's means here."""
    if code == NOT_FOUND:
        return "no coordinator knows it"
    if code in _MOVED:
        return f"who has to answer is changing (Kafka's error {code}): ask again"
    words = {
        3: "there is no such partition",
        20: "too few replicas are in sync",
        19: "too few replicas are in sync",
        29: "no right to that topic",
        31: "no right to the cluster",
        47: "its producer has a newer epoch there: this transaction is over",
        52: "a newer coordinator has written there: this transaction is not the one that was seen",
        53: "no right to that transactional id",
        128: "the pattern is no regular expression of RE2",
    }
    return words.get(code, f"Kafka's error {code}")
