"""Three Kafka clients behind one small face, so that one scenario runs with each of them.

A `Writer` sends numbered records in a thread of its own and notes every ack; `read`
returns all values of a topic. Nothing here is tuned for Penstock: the settings are the
clients' own but for idempotence and acks=all.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import aiokafka
import aiokafka.admin
import kafka
import kafka.admin
import pytest

from support.kafka import Ledger, Load, create_topic, read_all
from support.kafka_python import mend_dials
from support.waiting import wait_for

mend_dials()
RATE_PER_S = 200
READ_TIMEOUT_S = 120.0
CLOSE_TIMEOUT_S = 120.0


class Writer(ABC):
    """Sends records until closed; `ledger.ack_times_s` and `ledger.acked` grow meanwhile."""

    def __init__(self) -> None:
        self.ledger = Ledger()

    @abstractmethod
    def __enter__(self) -> Writer: ...

    @abstractmethod
    def __exit__(self, kind: object, _error: object, _trace: object) -> None: ...

    def wait_for_acks(self, more: int, timeout_s: float = 120.0) -> None:
        wanted = len(self.ledger.acked) + more
        wait_for(lambda: len(self.ledger.acked) >= wanted, f"{more} more acknowledgements", timeout_s)


LEAKING_DIALS = pytest.mark.filterwarnings("ignore:unclosed <(ssl.SSLSocket|socket.socket):ResourceWarning")
"""For tests so long that kafka-python's sockets of dials that failed are collected while they run."""


def forget_leaks() -> None:
    """Collect what a client under test left unclosed, so that its warning is not blamed on a later test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class ConfluentWriter(Writer):
    def __init__(self, bootstrap: str, topic: str, *, rate_per_s: int = RATE_PER_S, **config: Any) -> None:
        self._load = Load(bootstrap, topic, rate_per_s=rate_per_s, keys=8, **config)
        self.ledger = self._load.ledger

    def __enter__(self) -> Writer:
        self._load.__enter__()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._load.__exit__(kind, error, trace)


class ThreadWriter(Writer):
    """A writer whose sending runs in a thread that ends when `_stop` is set. `config`: more settings of the client."""

    def __init__(self, bootstrap: str, topic: str, *, rate_per_s: int = RATE_PER_S, **config: Any) -> None:
        super().__init__()
        self._config = config
        self._rate_per_s = rate_per_s
        self._bootstrap = bootstrap
        self._topic = topic
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, name=type(self).__name__)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, kind: object, _error: object, _trace: object) -> None:
        self._stop.set()
        self._thread.join(2 * CLOSE_TIMEOUT_S)
        forget_leaks()
        if kind is None:
            assert not self._thread.is_alive(), "the client did not close"
            assert self._failure is None, self._failure
            assert not self.ledger.errors, self.ledger.errors[:3]
            assert len(self.ledger.acked) == len(self.ledger.values), "records without an answer"

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._failure = error

    @abstractmethod
    def run(self) -> None: ...

    def _value(self, number: int) -> bytes:
        value = self.ledger.values[number] = b"%d:%s" % (number, b"x" * 80)
        return value

    def _acked(self, number: int, partition: int, offset: int | None) -> None:
        self.ledger.acked[number] = (partition, offset)
        self.ledger.ack_times_s.append(time.monotonic())


class KafkaPythonWriter(ThreadWriter):
    def run(self) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self._bootstrap, acks="all", enable_idempotence=True, **self._config
        )
        for number in itertools.count():
            if self._stop.is_set():
                break
            future = producer.send(self._topic, self._value(number), key=b"key-%d" % (number % 8))
            future.add_callback(lambda m, number=number: self._acked(number, m.partition, m.offset))
            future.add_errback(lambda e, number=number: self.ledger.errors.append(f"{number}: {e}"))
            time.sleep(1 / self._rate_per_s)
        producer.flush(CLOSE_TIMEOUT_S)
        producer.close()


class AiokafkaWriter(ThreadWriter):
    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self._bootstrap, acks="all", enable_idempotence=True, **self._config
        )
        await producer.start()
        try:
            for number in itertools.count():
                if self._stop.is_set():
                    break
                future = await producer.send(self._topic, self._value(number), key=b"key-%d" % (number % 8))
                future.add_done_callback(lambda f, number=number: self._done(number, f))
                await asyncio.sleep(1 / self._rate_per_s)
            await asyncio.wait_for(producer.flush(), CLOSE_TIMEOUT_S)
        finally:
            await producer.stop()

    def _done(self, number: int, future: asyncio.Future[aiokafka.structs.RecordMetadata]) -> None:
        error = future.exception()
        if error is not None:
            self.ledger.errors.append(f"{number}: {error}")
        else:
            self._acked(number, future.result().partition, future.result().offset)


def confluent_read(bootstrap: str, topic: str) -> list[bytes]:
    return [record.value for record in read_all(bootstrap, topic)]


def kafka_python_read(bootstrap: str, topic: str) -> list[bytes]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False)
    try:
        # The node that is asked may not have heard of the topic yet.
        numbers = wait_for(partial(consumer.partitions_for_topic, topic), f"{topic} in metadata")
        partitions = [kafka.TopicPartition(topic, p) for p in numbers]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        values: list[bytes] = []
        deadline = time.monotonic() + READ_TIMEOUT_S
        while len(values) < sum(ends.values()):
            assert time.monotonic() < deadline, f"read {len(values)} of {sum(ends.values())}"
            for records in consumer.poll(timeout_ms=500).values():
                values += [record.value for record in records]
        return values
    finally:
        consumer.close()
        del consumer
        forget_leaks()


def aiokafka_read(bootstrap: str, topic: str) -> list[bytes]:
    async def read() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        await consumer.start()
        try:
            numbers = consumer.partitions_for_topic(topic)
            while not numbers:  # the node that is asked may not have heard of the topic yet
                numbers = await _partitions(consumer, topic)
            partitions = [aiokafka.TopicPartition(topic, p) for p in numbers]
            ends = await consumer.end_offsets(partitions)
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            values: list[bytes] = []
            while len(values) < sum(ends.values()):
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    values += [record.value for record in records]
            return values
        finally:
            await consumer.stop()

    async def bounded() -> list[bytes]:
        return await asyncio.wait_for(read(), READ_TIMEOUT_S)

    return asyncio.run(bounded())


async def _partitions(consumer: aiokafka.AIOKafkaConsumer, topic: str) -> set[int] | None:
    # A consumer without a subscription learns only of the topics that it asked for.
    metadata = await consumer._client.fetch_all_metadata()
    found: set[int] | None = metadata.partitions_for_topic(topic)
    return found


def confluent_create(bootstrap: str, topic: str, partitions: int) -> None:
    create_topic(bootstrap, topic, partitions)


def kafka_python_create(bootstrap: str, topic: str, partitions: int) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics([kafka.admin.NewTopic(topic, partitions, -1)])
    finally:
        admin.close()


def aiokafka_create(bootstrap: str, topic: str, partitions: int) -> None:
    async def create() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            answer = await admin.create_topics([aiokafka.admin.NewTopic(topic, partitions, 3)])
            assert [error[1] for error in answer.topic_errors] == [0], answer
        finally:
            await admin.close()

    asyncio.run(create())


WRITERS: dict[str, Callable[..., Writer]] = {
    "confluent-kafka": ConfluentWriter,
    "kafka-python": KafkaPythonWriter,
    "aiokafka": AiokafkaWriter,
}
READERS: dict[str, Callable[[str, str], list[bytes]]] = {
    "confluent-kafka": confluent_read,
    "kafka-python": kafka_python_read,
    "aiokafka": aiokafka_read,
}
CREATORS: dict[str, Callable[[str, str, int], None]] = {
    "confluent-kafka": confluent_create,
    "kafka-python": kafka_python_create,
    "aiokafka": aiokafka_create,
}
CLIENTS = list(WRITERS)
