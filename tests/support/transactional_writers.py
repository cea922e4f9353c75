"""Transactional producers of four clients behind one face."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any, Protocol

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import (
    KafkaError,
    KafkaException,
    Producer,
)
from kafka import KafkaProducer

from support.java import JavaDriver, JavaError, encode, needs_java, shared_driver
from support.kafka import client_config

CALL_S = 60.0
AFTER_ITS_END_S = 5.0
"""For a call to tell of the end of its producer's sender by itself."""


class Writer(Protocol):
    """A transactional producer. Whatever goes wrong is raised by whichever call hears of it."""

    def begin(self) -> None: ...
    def send(self, topic: str, partition: int, value: str | None, key: str | None = None) -> None: ...
    def flush(self) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


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

    def send(self, topic: str, partition: int, value: str | None, key: str | None = None) -> None:
        self.producer.produce(
            topic, _bytes(value), _bytes(key), partition=partition, on_delivery=self._delivered
        )
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

    def send(self, topic: str, partition: int, value: str | None, key: str | None = None) -> None:
        self._sent.append(self.producer.send(topic, _bytes(value), key=_bytes(key), partition=partition))

    def flush(self) -> None:
        self.producer.flush(timeout=CALL_S)
        for sent in self._sent:
            sent.get(timeout=CALL_S)

    def commit(self) -> None:
        # kafka-python 3.0.12 commits without records that it has given up, and tells of these by their futures alone.
        self.flush()
        self.producer.commit_transaction()

    def abort(self) -> None:
        self.producer.abort_transaction()

    def close(self) -> None:
        self.producer.close(timeout=5)


class ByAiokafka:
    """aiokafka, on a loop in a thread of its own."""

    def __init__(self, bootstrap: str, name: str, timeout_ms: int = 60_000) -> None:
        self._loop = asyncio.new_event_loop()
        # What is told of futures that nobody asked: `flush` and `commit` tell it too.
        self._loop.set_exception_handler(lambda *_: None)
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
        return asyncio.run_coroutine_threadsafe(self._watched(coroutine), self._loop).result()

    async def _watched(self, coroutine: Any) -> Any:
        """What a call brings. Once the producer's sender has ended some never return, and some say no more than that
        they are not for a producer of that state: then what the sender has ended of is raised."""
        call = asyncio.ensure_future(coroutine)
        sender = self.producer and self.producer._sender.sender_task
        both = {call, sender} if sender else {call}
        await asyncio.wait(both, timeout=CALL_S, return_when=asyncio.FIRST_COMPLETED)
        if not _says_more(call):
            await asyncio.wait(both, timeout=AFTER_ITS_END_S)
        if not _says_more(call) and sender and sender.done():
            call.cancel()
            sender.result()
        if call.done():
            return call.result()
        call.cancel()
        raise TimeoutError(f"no answer within {CALL_S:.0f} s")

    def begin(self) -> None:
        self._sent.clear()
        self._do(self.producer.begin_transaction())

    def send(self, topic: str, partition: int, value: str | None, key: str | None = None) -> None:
        self._sent.append(
            self._do(self.producer.send(topic, _bytes(value), key=_bytes(key), partition=partition))
        )

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


def _says_more(call: asyncio.Future[Any]) -> bool:
    """Whether a call has ended, and not of the state that its producer is in."""
    return call.done() and not isinstance(call.exception(), AssertionError)


class ByJava:
    """Kafka's Java client 4.x, for which leaders add partitions where the cluster has transaction.version 2."""

    def __init__(
        self, bootstrap: str, name: str, timeout_ms: int = 60_000, *, driver: JavaDriver | None = None
    ) -> None:
        """`driver`: a JVM that the test ends by itself, else that of the test run."""
        self._driver = driver or shared_driver()
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

    def send(self, topic: str, partition: int, value: str | None, key: str | None = None) -> None:
        rows = [{"partition": partition, "value": encode(_bytes(value)), "key": encode(_bytes(key))}]
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
