"""Kafka clients that keep count: produce with every ack noted, read all back, compare.

The client is confluent-kafka, idempotent with acks=all unless told otherwise. A record's
value begins with its number, so that any record found can be named.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.waiting import wait_for

CALL_TIMEOUT_S = 20.0
PATIENCE_S = 120.0
"""For what a loaded machine with a slow disk may take its time over."""


@dataclass(frozen=True)
class Record:
    """One record as it was read."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes
    timestamp_ms: int


@dataclass
class Ledger:
    """What was sent (`values` by number) and what was acknowledged (number -> partition, offset).

    librdkafka tells no offset (None) for a batch that it takes for written because a later
    one was: its own answer was lost, and a retry was refused as out of order.
    """

    values: dict[int, bytes] = field(default_factory=dict)
    acked: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    ack_times_s: list[float] = field(default_factory=list)

    def delivered(self, number: int, error: Any, message: Any) -> None:
        """Delivery report of record `number`."""
        if error is not None:
            self.errors.append(f"{number}: {error.str()}")
        else:
            self.acked[number] = (message.partition(), message.offset())
            self.ack_times_s.append(time.monotonic())

    def longest_gap_s(self) -> float:
        """The longest time between two acknowledgements that followed each other."""
        times = self.ack_times_s
        return max((later - sooner for sooner, later in pairwise(times)), default=0.0)


class Door(str):
    """An address together with what a client needs to come in there."""

    settings: dict[str, str]

    @classmethod
    def of(cls, bootstrap: str, settings: dict[str, str]) -> Door:
        door = cls(bootstrap)
        door.settings = settings
        return door


def client_config(bootstrap: str, **more: Any) -> dict[str, Any]:
    """A client's settings: one address, and its log kept off the terminal."""
    if isinstance(bootstrap, Door):
        more = bootstrap.settings | more
        more.pop("bootstrap.servers", None)
    logger = logging.getLogger("tests.librdkafka")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    return {"bootstrap.servers": bootstrap, "logger": logger, "reconnect.backoff.max.ms": 1_000, **more}


def create_topic(
    bootstrap: str, topic: str, partitions: int = 1, replication_factor: int = -1, **config: str
) -> None:
    """Create a topic; `config` names have _ for the dots."""
    admin = AdminClient(client_config(bootstrap))
    new = NewTopic(
        topic,
        num_partitions=partitions,
        replication_factor=replication_factor,
        config={name.replace("_", "."): value for name, value in config.items()},
    )
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            admin.create_topics([new], operation_timeout=CALL_TIMEOUT_S)[topic].result(timeout=PATIENCE_S)
            return
        except KafkaException as error:
            code = error.args[0].code()
            # Who asks again after an election may be told of its own doing, as with Kafka.
            if code == KafkaError.TOPIC_ALREADY_EXISTS and len(describe(bootstrap, topic)) == partitions:
                return
            if code not in CREATED_AGAIN or time.monotonic() >= deadline:
                raise
        time.sleep(0.1)


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic."""
    admin = AdminClient(client_config(bootstrap))
    deadline = time.monotonic() + PATIENCE_S
    unanswered = False
    while True:
        try:
            admin.delete_topics([topic], operation_timeout=CALL_TIMEOUT_S)[topic].result(timeout=PATIENCE_S)
            return
        except KafkaException as error:
            code = error.args[0].code()
            if unanswered and code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return
            if code not in CHANGED_AGAIN or time.monotonic() >= deadline:
                raise
            unanswered = unanswered or code != KafkaError.NOT_CONTROLLER
        time.sleep(0.1)


def lose(bootstrap: str, topic: str, before_offset: int, partition: int = 0) -> None:
    """Delete the records of a partition below an offset."""
    admin = AdminClient(client_config(bootstrap))
    place = TopicPartition(topic, partition, before_offset)
    admin.delete_records([place])[place].result(timeout=PATIENCE_S)


def describe(bootstrap: str, topic: str) -> dict[int, Any]:
    """Partition metadata of a topic (leader, replicas, isrs) by number, once the gateway that is asked knows it.

    Another one may have made the topic, as another broker may in Kafka.
    """
    admin = AdminClient(client_config(bootstrap))
    return wait_for(lambda: _partitions(admin, topic), f"{topic} in metadata")


def busiest_leader(bootstrap: str, topic: str) -> str:
    """Name of the node that leads most partitions."""

    def leading() -> Counter[int]:
        return Counter(p.leader for p in describe(bootstrap, topic).values() if p.leader >= 0)

    leaders = wait_for(leading, f"a leader of {topic}")
    return f"node-{leaders.most_common(1)[0][0]}"


def node_address(bootstrap: str) -> str:
    """host:port of a storage node's own listener, found through a direct listener."""
    brokers = AdminClient(client_config(bootstrap)).list_topics(timeout=CALL_TIMEOUT_S).brokers
    node = brokers[min(brokers)]
    return f"{node.host}:{node.port}"


def wait_for_full_isr(bootstrap: str, topic: str, timeout_s: float = PATIENCE_S) -> None:
    """Until every replica of every partition is in sync."""
    admin = AdminClient(client_config(bootstrap))

    def full() -> bool:
        parts = _partitions(admin, topic).values()
        return bool(parts) and all(sorted(p.isrs) == sorted(p.replicas) for p in parts)

    wait_for(full, f"every replica of {topic} in sync", timeout_s)


def produce(
    bootstrap: str,
    topic: str,
    count: int,
    *,
    first: int = 0,
    value_bytes: int = 100,
    keys: int = 0,
    ledger: Ledger | None = None,
    timeout_s: float = PATIENCE_S,
    **config: Any,
) -> Ledger:
    """Produce `count` records numbered from `first`; every one must be acknowledged."""
    book = ledger or Ledger()
    producer = _producer(bootstrap, timeout_s, config)
    for number in range(first, first + count):
        _send(producer, topic, number, value_bytes, keys, book)
    left = producer.flush(timeout_s + 5)
    assert left == 0, f"{left} records without an answer"
    assert not book.errors, book.errors[:3]
    return book


class Load:
    """A producer in a thread: sends until stopped, at most `rate_per_s`; then all must be acknowledged.

    Use as a context manager; `ledger` grows while it runs.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        rate_per_s: float = 2_000,
        value_bytes: int = 100,
        keys: int = 64,
        timeout_s: float = PATIENCE_S,
        **config: Any,
    ) -> None:
        self.ledger = Ledger()
        self._producer = _producer(bootstrap, timeout_s, config)
        self._topic = topic
        self._rate_per_s = rate_per_s
        self._value_bytes = value_bytes
        self._keys = keys
        self._timeout_s = timeout_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._failure: BaseException | None = None

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, kind: object, _error: object, _trace: object) -> None:
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(self._timeout_s + 5)
        if kind is None:
            assert self._failure is None, self._failure
            assert left == 0, f"{left} records without an answer"
            assert not self.ledger.errors, self.ledger.errors[:3]

    def wait_for_acks(self, more: int, timeout_s: float = PATIENCE_S) -> None:
        """Until `more` records than now are acknowledged: the cluster goes on."""
        wanted = len(self.ledger.acked) + more
        wait_for(lambda: len(self.ledger.acked) >= wanted, f"{more} more acknowledgements", timeout_s)

    def _run(self) -> None:
        begun = time.monotonic()
        number = 0
        try:
            while not self._stop.is_set():
                due = int((time.monotonic() - begun) * self._rate_per_s)
                while number < due and not self._stop.is_set():
                    _send(self._producer, self._topic, number, self._value_bytes, self._keys, self.ledger)
                    number += 1
                self._producer.poll(0.005)
        except BaseException as error:
            self._failure = error


def read_all(bootstrap: str, topic: str, timeout_s: float = 60.0, **config: Any) -> list[Record]:
    """Every record of a topic, from the first offset to the end as it is now."""
    return read_from(bootstrap, topic, {}, timeout_s, **config)


def read_from(
    bootstrap: str, topic: str, starts: Mapping[int, int], timeout_s: float = 60.0, **config: Any
) -> list[Record]:
    """The same from offsets by partition; a partition that has none is read from its first."""
    consumer = Consumer(
        client_config(
            bootstrap,
            **{
                "group.id": "tests-unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "enable.partition.eof": True,
                **config,
            },
        )
    )
    records: list[Record] = []
    try:
        partitions = wait_for(lambda: _partitions(consumer, topic), f"{topic} in metadata", timeout_s)
        left = {}
        for number in partitions:
            low, high = watermarks(consumer, topic, number)
            if high > max(low, starts.get(number, 0)):
                left[number] = high
        consumer.assign(
            [TopicPartition(topic, number, starts.get(number, OFFSET_BEGINNING)) for number in left]
        )
        deadline = time.monotonic() + timeout_s
        while left:
            assert time.monotonic() < deadline, f"read {len(records)} records, ends not reached: {left}"
            for message in consumer.consume(2_000, timeout=0.2):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    # The last offsets may be those of markers, which are no records.
                    at, offset = message.partition(), message.offset()
                    assert at is not None and offset is not None
                    if offset >= left.get(at, 0):
                        left.pop(at, None)
                    continue
                if error is not None:
                    assert error.retriable(), error
                    continue
                record = _record(message)
                records.append(record)
                if record.offset + 1 >= left.get(record.partition, 0):
                    left.pop(record.partition, None)
    finally:
        consumer.close()
    return records


ASKED_AGAIN = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError._DESTROY_BROKER,  # the client forgets a node that was killed, and what it had asked there
        KafkaError.UNKNOWN_TOPIC_OR_PART,  # a node may hear of a new topic later than who told us of it
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._UNKNOWN_PARTITION,  # the client's own metadata, a moment behind those that it was just told
    }
)
"""What an election and a node that went may be answered with; librdkafka tells these of one question at once."""
CHANGED_AGAIN = frozenset(
    {
        KafkaError.NOT_CONTROLLER,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._DESTROY_BROKER,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
    }
)
"""Answers of DeleteTopics after which another try may go better."""
CREATED_AGAIN = CHANGED_AGAIN | {KafkaError.INVALID_REPLICATION_FACTOR}  # a node is fenced for a moment
"""The same of CreateTopics."""
COMMITTED_AGAIN = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._DESTROY_BROKER,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
    }
)
"""Answers of OffsetCommit while its coordinator is on its way."""


def watermarks(consumer: Consumer, topic: str, partition: int, timeout_s: float = 60.0) -> tuple[int, int]:
    """Log start and end of a partition; asks again while an election is in the way, as consumers do."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            low, high = consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=CALL_TIMEOUT_S
            )
            return low, high
        except KafkaException as error:
            if error.args[0].code() not in ASKED_AGAIN or time.monotonic() >= deadline:
                raise
        time.sleep(0.05)


def commit(consumer: Consumer, offsets: list[TopicPartition]) -> None:
    """Commit these; again while the coordinator's partition is made, loaded or moved."""

    def done() -> bool:
        try:
            return all(p.error is None for p in consumer.commit(offsets=offsets, asynchronous=False))
        except KafkaException as error:
            if error.args[0].code() not in COMMITTED_AGAIN:
                raise
            return False

    wait_for(done, "the commit")


def check_nothing_lost(ledger: Ledger, records: list[Record], *, idempotent: bool = True) -> None:
    """Every acked record is there at its offset, as it was sent; with `idempotent` no number is there twice,
    and each key's records are in order."""
    at: dict[tuple[int, int | None], bytes] = {(r.partition, r.offset): r.value for r in records}
    found = {record.value for record in records}
    lost = [
        number
        for number, place in ledger.acked.items()
        if (
            ledger.values[number] not in found if place[1] is None else at.get(place) != ledger.values[number]
        )
    ]
    assert not lost, (
        f"{len(lost)} acked records are lost, the first is {min(lost)} at {ledger.acked[min(lost)]}"
    )
    if not idempotent:
        return
    seen = Counter(number_of(record.value) for record in records)
    doubled = [number for number, times in seen.items() if times > 1]
    assert not doubled, f"{len(doubled)} records are there twice, the first is {min(doubled)}"
    last: dict[tuple[int, bytes | None], int] = {}
    for record in records:
        number = number_of(record.value)
        if record.key is not None:
            assert last.get((record.partition, record.key), -1) < number, (
                f"{record.key!r}: {number} is out of order"
            )
            last[(record.partition, record.key)] = number


def number_of(value: bytes) -> int:
    """The number with which a record's value begins."""
    return int(value.partition(b":")[0])


def _producer(bootstrap: str, timeout_s: float, config: dict[str, Any]) -> Producer:
    return Producer(
        client_config(
            bootstrap,
            **{
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "message.timeout.ms": int(timeout_s * 1000),
                **config,
            },
        )
    )


def _send(producer: Producer, topic: str, number: int, value_bytes: int, keys: int, ledger: Ledger) -> None:
    value = b"%d:" % number
    value += b"x" * (value_bytes - len(value))
    key = b"key-%d" % (number % keys) if keys else None
    ledger.values[number] = value
    while True:
        try:
            producer.produce(topic, value, key, on_delivery=partial(ledger.delivered, number))
            break
        except BufferError:
            producer.poll(0.05)
    if number % 200 == 0:
        producer.poll(0)


def _partitions(client: Consumer | AdminClient, topic: str) -> dict[int, Any]:
    """By number; none while the topic is not known or nobody answers."""
    try:
        return dict(client.list_topics(topic, timeout=CALL_TIMEOUT_S).topics[topic].partitions)
    except KafkaException as error:
        if error.args[0].code() not in ASKED_AGAIN:
            raise
        return {}


def _record(message: Any) -> Record:
    return Record(
        message.partition(), message.offset(), message.key(), message.value() or b"", message.timestamp()[1]
    )
