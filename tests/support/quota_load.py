"""Clients that want more than they may have: what they got, and what they were told."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer

from support.kafka import client_config

VALUE_BYTES = 1_000


class Limited:
    """A client in a thread of its own. `amounts` has (time, bytes) of all that it got done."""

    def __init__(self, bootstrap: str, topic: str, client_id: str, **config: Any) -> None:
        self.amounts: list[tuple[float, int]] = []
        self.throttle_ms: list[int] = []
        """The longest throttle time that each statistics report of the client named."""
        self.errors: list[str] = []
        self.began_s = 0.0
        """When it began, by the monotonic clock."""
        self.topic = topic
        self._stop = threading.Event()
        self._config = client_config(
            bootstrap,
            **{"client.id": client_id, "statistics.interval.ms": 500, "stats_cb": self._statistics, **config},
        )
        self._thread = threading.Thread(target=self._run, name=client_id, daemon=True)

    def __enter__(self) -> Limited:
        self.began_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        assert not self.errors, self.errors[:3]

    def _statistics(self, text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        self.throttle_ms.append(max((b["throttle"]["max"] for b in brokers if "throttle" in b), default=0))

    def _run(self) -> None:
        try:
            self.work()
        except KafkaException as error:
            self.errors.append(str(error))

    def work(self) -> None:
        raise NotImplementedError

    @property
    def is_over(self) -> bool:
        return self._stop.is_set()

    def count(self, size: int) -> None:
        self.amounts.append((time.monotonic(), size))

    def rate(self, begin_s: float, end_s: float) -> float:
        """Bytes per second between two times of the monotonic clock."""
        return sum(size for at_s, size in self.amounts if begin_s <= at_s < end_s) / (end_s - begin_s)


class LimitedProducer(Limited):
    """Writes as much as it can."""

    def __init__(self, bootstrap: str, topic: str, client_id: str, **config: Any) -> None:
        super().__init__(
            bootstrap,
            topic,
            client_id,
            **{
                "acks": "all",
                "linger.ms": 5,
                "batch.size": 100_000,
                "queue.buffering.max.kbytes": 2_000,
                "message.timeout.ms": 120_000,
                **config,
            },
        )

    def work(self) -> None:
        producer = Producer(self._config)
        value = b"v" * VALUE_BYTES

        def delivered(error: object, message: Any) -> None:
            if error is not None:
                self.errors.append(str(error))
            else:
                self.count(len(message.value()))

        while not self.is_over:
            try:
                producer.produce(self.topic, value, on_delivery=delivered)
                producer.poll(0)
            except BufferError:
                producer.poll(0.02)
        producer.purge()
        self.errors = [e for e in self.errors if "Purge" not in e]
        producer.flush(30)
        self.errors = [e for e in self.errors if "urge" not in e]


class LimitedConsumer(Limited):
    """Reads a topic from its start as fast as it can; at its end it begins anew."""

    def __init__(self, bootstrap: str, topic: str, client_id: str, **config: Any) -> None:
        super().__init__(
            bootstrap,
            topic,
            client_id,
            **{
                "group.id": f"group-{client_id}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "queued.max.messages.kbytes": 1_000,
                **config,
            },
        )

    def work(self) -> None:
        consumer = Consumer(self._config)
        consumer.subscribe([self.topic])
        try:
            while not self.is_over:
                for message in consumer.consume(500, 0.2):
                    if message.error() is None:
                        self.count(len(message.value() or b""))
                    else:
                        self.errors.append(str(message.error()))
        finally:
            consumer.close()
