"""Transactional producers of three clients behind one face, a load that knows what became of each transaction, and the
reader that says whether it was so."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka import KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError

from support.java import JavaError, encode, needs_java, shared_driver
from support.kafka import client_config, describe

CALL_S = 60.0
only_in_long_form = pytest.mark.skipif(
    "PENSTOCK_TRANSACTIONS" not in os.environ, reason="of the long form: make transactions-test"
)
"""A proof of which `make test` has a shorter one."""


class Writer(Protocol):
    """A transactional producer. Whatever goes wrong is raised by whichever call hears of it."""

    def begin(self) -> None: ...
    def send(self, topic: str, partition: int, value: str) -> None: ...
    def flush(self) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class ByLibrdkafka:
    """confluent-kafka."""

    def __init__(self, bootstrap: str, name: str, timeout_ms: int = 60_000, **more: Any) -> None:
        settings = {"transactional.id": name, "transaction.timeout.ms": timeout_ms, "linger.ms": 2, **more}
        self.producer = Producer(client_config(bootstrap, **settings))
        self.failures: list[KafkaError] = []
        self.producer.init_transactions(CALL_S)

    def begin(self) -> None:
        self.failures.clear()
        self.producer.begin_transaction()

    def send(self, topic: str, partition: int, value: str) -> None:
        self.producer.produce(topic, value.encode(), partition=partition, on_delivery=self._delivered)
        self.producer.poll(0)

    def _delivered(self, error: KafkaError | None, _: Any) -> None:
        if error is not None:
            self.failures.append(error)

    def flush(self) -> None:
        assert not self.producer.flush(CALL_S)
        if self.failures:
            raise KafkaException(self.failures[0])

    def commit(self) -> None:
        self.producer.commit_transaction(CALL_S)

    def abort(self) -> None:
        self.producer.abort_transaction(CALL_S)

    def close(self) -> None:
        with suppress(KafkaException):  # one that was fenced says so again
            self.producer.purge()
            self.producer.flush(1)


class ByKafkaPython:
    """kafka-python."""

    def __init__(self, bootstrap: str, name: str, timeout_ms: int = 60_000) -> None:
        self.producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            max_block_ms=int(CALL_S * 1000),
        )
        self._sent: list[Any] = []
        try:
            self.producer.init_transactions()
        except BaseException:
            self.producer.close(timeout=1)
            raise

    def begin(self) -> None:
        self._sent.clear()
        self.producer.begin_transaction()

    def send(self, topic: str, partition: int, value: str) -> None:
        self._sent.append(self.producer.send(topic, value.encode(), partition=partition))

    def flush(self) -> None:
        self.producer.flush(timeout=CALL_S)
        for sent in self._sent:
            sent.get(timeout=CALL_S)

    def commit(self) -> None:
        self.producer.commit_transaction()

    def abort(self) -> None:
        self.producer.abort_transaction()

    def close(self) -> None:
        self.producer.close(timeout=5)


class ByAiokafka:
    """aiokafka, on a loop in a thread of its own."""

    def __init__(self, bootstrap: str, name: str, timeout_ms: int = 60_000) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"aiokafka {name}", daemon=True)
        self._thread.start()
        self._sent: list[Any] = []
        self.producer: Any = None

        async def start() -> None:
            self.producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=timeout_ms
            )
            await self.producer.start()

        try:
            self._do(start())
        except BaseException:
            self.close()
            raise

    def _do(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(coroutine, CALL_S), self._loop).result()

    def begin(self) -> None:
        self._sent.clear()
        self._do(self.producer.begin_transaction())

    def send(self, topic: str, partition: int, value: str) -> None:
        self._sent.append(self._do(self.producer.send(topic, value.encode(), partition=partition)))

    def flush(self) -> None:
        async def all_of() -> None:
            await self.producer.flush()
            for sent in self._sent:
                await sent

        self._do(all_of())

    def commit(self) -> None:
        self._do(self.producer.commit_transaction())

    def abort(self) -> None:
        self._do(self.producer.abort_transaction())

    def close(self) -> None:
        if self.producer is not None:
            with suppress(Exception):  # it tells once more what it died of
                self._do(self.producer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        self._loop.close()


class ByJava:
    """Kafka's Java client 4.x, for which leaders add partitions where the cluster has transaction.version 2."""

    def __init__(self, bootstrap: str, name: str, timeout_ms: int = 60_000) -> None:
        self._driver = shared_driver()
        config = {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": str(timeout_ms),
            "max.block.ms": str(int(CALL_S * 1000)),
        }
        self._sent: list[Any] = []
        self._handle = self._driver.call("producer.open", config=config)
        try:
            self._do("init_transactions")
        except BaseException:
            self.close()
            raise

    def _do(self, what: str, **arguments: Any) -> Any:
        return self._driver.call(f"producer.{what}", handle=self._handle, **arguments)

    def begin(self) -> None:
        self._sent.clear()
        self._do("begin")

    def send(self, topic: str, partition: int, value: str) -> None:
        rows = [{"partition": partition, "value": encode(value.encode())}]
        self._sent.append(self._driver.start("producer.send", handle=self._handle, topic=topic, records=rows))

    def flush(self) -> None:
        self._do("flush")
        for sent in self._sent:
            for told in sent.result(CALL_S):
                if "error" in told:
                    raise JavaError(
                        told["error"]["name"], -1, told["error"]["type"], told["error"]["message"]
                    )

    def commit(self) -> None:
        self._do("commit")

    def abort(self) -> None:
        self._do("abort")

    def close(self) -> None:
        with suppress(JavaError):
            self._do("close", timeout_ms=2_000)


WRITERS: dict[str, Any] = {
    "confluent-kafka": ByLibrdkafka,
    "kafka-python": ByKafkaPython,
    "aiokafka": ByAiokafka,
    "java": ByJava,
}
CLIENTS: tuple[Any, ...] = tuple(
    pytest.param(name, marks=needs_java) if name == "java" else name for name in WRITERS
)
"""For parameters of tests."""


class Outcome(Enum):
    """What a producer knows of one transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass
class Transaction:
    """What was written in it, in order: partition and value."""

    rows: list[tuple[int, str]] = field(default_factory=list)
    outcome: Outcome = Outcome.UNKNOWN


@dataclass
class Story:
    """Every transaction of a load, and what it had to be told on the way."""

    transactions: list[Transaction] = field(default_factory=list)
    fatal: list[str] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
    """Why the application was made to abort."""
    commit_times_s: list[float] = field(default_factory=list)

    def count(self, outcome: Outcome) -> int:
        return sum(t.outcome is outcome for t in self.transactions)


class Verdict(Enum):
    """What an application is to do after an error, as its client has it."""

    AGAIN = "call it again"
    ABORT = "abort"
    FATAL = "begin anew with another producer"


def verdict(error: Exception) -> Verdict:
    """Of any client's error."""
    if isinstance(error, PYTHON_ERRORS):
        return Verdict.FATAL if type(error).__name__ in _FATAL_IN_PYTHON else Verdict.ABORT
    if isinstance(error, KafkaException):
        what: KafkaError = error.args[0]
        if what.fatal():
            return Verdict.FATAL
        return Verdict.AGAIN if what.retriable() else Verdict.ABORT
    assert isinstance(error, JavaError), error
    if error.kind in _FATAL_IN_JAVA:
        return Verdict.FATAL
    return Verdict.AGAIN if error.kind == "TimeoutException" else Verdict.ABORT


PYTHON_ERRORS = KafkaPythonError, AiokafkaError
ERRORS = KafkaException, JavaError, *PYTHON_ERRORS
_FATAL_IN_PYTHON = frozenset(
    {
        *("ProducerFenced", "ProducerFencedError", "InvalidProducerEpoch", "InvalidProducerEpochError"),
        *(
            "InvalidProducerIdMapping",
            "InvalidProducerIdMappingError",
            "IllegalOperation",
            "IllegalStateError",
        ),
    }
)
_FATAL_IN_JAVA = frozenset(
    {
        "ProducerFencedException",
        "InvalidPidMappingException",
        "UnsupportedVersionException",
        "IllegalStateException",
    }
)


class TransactionalLoad:
    """One producer in a thread: transactions of some records over all partitions, one in four aborted on purpose. It
    does what its client's errors tell an application to do, and a fatal one ends it."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        name: str,
        *,
        rows: int = 12,
        by: str = "confluent-kafka",
    ) -> None:
        self.name = f"{name} ({by})"
        self.story = Story()
        self._place = bootstrap, topic, partitions, name, rows
        self._by = by
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"load {name}")

    def __enter__(self) -> TransactionalLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End with the transaction that is going on."""
        self._over.set()
        self._thread.join(240)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        bootstrap, _, _, name, _ = self._place
        try:
            writer = WRITERS[self._by](bootstrap, name)
            while not self._over.is_set():
                self._one(writer, len(self.story.transactions))
        except ERRORS as error:
            self.story.fatal.append(f"{name}: {error!r}")
        else:
            writer.close()

    def _one(self, writer: Writer, number: int) -> None:
        _, topic, partitions, name, rows = self._place
        one = Transaction()
        self.story.transactions.append(one)
        one.outcome = Outcome.ABORTED  # until commit is asked for nothing of it can be committed
        writer.begin()
        try:
            for row in range(rows):
                partition = (number + row) % partitions
                value = f"{name}:{number}:{row}"
                one.rows.append((partition, value))
                writer.send(topic, partition, value)
            if number % 4 == 3:
                writer.flush()
                again(writer.abort)
                return
            one.outcome = Outcome.UNKNOWN
            again(writer.commit)
            one.outcome = Outcome.COMMITTED
            self.story.commit_times_s.append(time.monotonic())
        except ERRORS as error:
            if verdict(error) is Verdict.FATAL:
                raise
            self.story.aborts.append(f"{name}: {error!r}")
            again(writer.abort)
            # librdkafka and Java let it be aborted only where the commit was not done; of the others nobody knows.
            if not isinstance(error, PYTHON_ERRORS):
                one.outcome = Outcome.ABORTED


def again(call: Any) -> None:
    """Until it is done, while its client says that the same call may be made again."""
    deadline_s = time.monotonic() + 180
    while True:
        try:
            call()
            return
        except ERRORS as error:
            if verdict(error) is not Verdict.AGAIN or time.monotonic() > deadline_s:
                raise


def read_to_end(bootstrap: str, topic: str, isolation: str, timeout_s: float = 120.0) -> dict[int, list[str]]:
    """What a reader finds in each partition, in order, until it is told that there is no more for it now.

    The last offset of a log may be a marker, which no reader is given: so only the client knows that it is at the end.
    """
    consumer = Consumer(
        client_config(
            bootstrap,
            **{
                "group.id": "tests-unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "isolation.level": isolation,
            },
        )
    )
    found: dict[int, list[str]] = {}
    try:
        left = set(describe(bootstrap, topic))
        found = {partition: [] for partition in left}
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in left])
        deadline_s = time.monotonic() + timeout_s
        while left:
            assert time.monotonic() < deadline_s, f"ends not reached: {left}"
            for message in consumer.consume(2_000, timeout=0.2):
                error = message.error()
                partition = message.partition()
                assert partition is not None
                if error is None:
                    found[partition].append((message.value() or b"").decode())
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(partition)
                else:
                    assert error.retriable(), error
    finally:
        consumer.close()
    return found


def last_stable(bootstrap: str, topic: str, partitions: int) -> bool:
    """Whether every transaction is decided: the last stable offset of each partition is its high watermark. Raises
    KafkaException while a partition has no leader."""
    admin = AdminClient(client_config(bootstrap))
    ends = []
    for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
        latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {TopicPartition(topic, number): latest for number in range(partitions)}
        found = admin.list_offsets(asked, isolation_level=level)
        ends.append({place.partition: int(one.result(CALL_S).offset) for place, one in found.items()})
    return ends[0] == ends[1]


def is_decided(bootstrap: str, topic: str, partitions: int = 1) -> bool:
    """As `last_stable`; not while that cannot be told."""
    try:
        return last_stable(bootstrap, topic, partitions)
    except KafkaException:
        return False


def check_story(stories: Iterable[Story], found: dict[int, list[str]]) -> None:
    """Each committed transaction is there whole and once, in order; of aborted ones there is nothing; of those of which
    nobody knows, all or nothing."""
    places: dict[str, tuple[int, int]] = {}
    counts: Counter[str] = Counter()
    for partition, values in found.items():
        for position, value in enumerate(values):
            places[value] = partition, position
            counts[value] += 1
    doubled = [value for value, count in counts.items() if count > 1]
    assert not doubled, f"more than once: {doubled[:10]}"
    known: set[str] = set()
    for story in stories:
        last: dict[int, int] = defaultdict(lambda: -1)
        for one in story.transactions:
            known.update(value for _, value in one.rows)
            there = [value for _, value in one.rows if value in places]
            missing = [value for _, value in one.rows if value not in places]
            if one.outcome is Outcome.ABORTED:
                assert not there, f"aborted and there: {there}"
                continue
            assert not missing or (one.outcome is Outcome.UNKNOWN and not there), (
                one.outcome,
                missing,
                there,
            )
            for partition, value in one.rows:
                if value in places:
                    where, position = places[value]
                    assert where == partition and position > last[partition], f"out of order: {value}"
                    last[partition] = position
    strange = places.keys() - known
    assert not strange, f"nobody wrote {sorted(strange)[:10]}"
