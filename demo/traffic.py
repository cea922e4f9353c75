"""Produce everything through one address, and kill a node half-way.

A stock confluent-kafka producer, idempotent with acks=all, that knows nothing but the
gateway's address. Every acknowledgement is kept with its time, partition and offset: the
time line of the picture and the check of what is read back come from these.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from demo.flights import Flights

TOPIC = "flights"
PARTITIONS = 6
CALL_TIMEOUT_S = 20.0
DELIVERY_TIMEOUT_S = 60.0
QUEUE_RECORDS_MAX = 50_000
"""Few, so that "half-way" is half-way for the brokers too, not for a queue in the client."""
POLL_EVERY_RECORDS = 64
OFFSET_UNTOLD = -2
"""librdkafka knows that an event is written, but not where: its own answer was lost, a later one came."""
WINDOW_S = 0.1
"""Width of a bin of the time line."""


class TrafficError(Exception):
    """A chapter of the demo did not go as it must; the message is one line."""


@dataclass(frozen=True)
class Gap:
    """A time without acks: when it began, after the start, and how long it was."""

    begin_s: float
    took_s: float


@dataclass
class Acks:
    """What the brokers acknowledged, by `seq`; offset -1 where nothing was, OFFSET_UNTOLD if unknown."""

    partitions: array[int]
    offsets: array[int]
    times_s: array[float]
    started_s: float = 0.0
    acked: int = 0
    failed: int = 0
    first_failure: str = ""
    killed_s: float | None = None
    last_ack_s: float = 0.0

    @classmethod
    def for_events(cls, count: int) -> Acks:
        """Room for `count` events."""
        return cls(array("h", [-1]) * count, array("q", [-1]) * count, array("d", [0.0]) * count)

    def delivered(self, seq: int, error: Any, message: Any) -> None:
        """Delivery report of one event."""
        if error is not None:
            self.failed += 1
            self.first_failure = self.first_failure or f"event {seq}: {error.str()}"
            return
        now = time.perf_counter()
        self.partitions[seq] = message.partition()
        offset = message.offset()
        self.offsets[seq] = OFFSET_UNTOLD if offset is None else offset
        self.times_s[seq] = now
        self.last_ack_s = now
        self.acked += 1

    @property
    def took_s(self) -> float:
        return self.last_ack_s - self.started_s

    def longest_gap(self, partition: int | None = None) -> Gap:
        """The longest time between two acks that followed each other: of all, or of one partition."""
        times = np.frombuffer(self.times_s)
        chosen = times > 0
        if partition is not None:
            chosen &= np.frombuffer(self.partitions, dtype=np.int16) == partition
        ordered = np.sort(times[chosen])
        if len(ordered) < 2:
            return Gap(0.0, 0.0)
        gaps = np.diff(ordered)
        place = int(gaps.argmax())
        return Gap(float(ordered[place] - self.started_s), float(gaps[place]))

    def worst_partition_gap(self) -> Gap:
        """The longest time that any one partition was without an ack."""
        return max((self.longest_gap(number) for number in range(PARTITIONS)), key=lambda gap: gap.took_s)

    def time_line(self) -> tuple[list[float], list[float]]:
        """Seconds since the start, and events acknowledged per second in each window."""
        times = np.frombuffer(self.times_s)
        counts, edges = np.histogram(
            times[times > 0] - self.started_s, bins=np.arange(0.0, self.took_s + WINDOW_S, WINDOW_S)
        )
        return (edges[:-1] + WINDOW_S / 2).tolist(), (counts / WINDOW_S).tolist()


def client_config(bootstrap: str, **more: Any) -> dict[str, Any]:
    """What any Kafka client needs to be told: one address. (And a quiet log.)"""
    logger = logging.getLogger("demo.librdkafka")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    return {"bootstrap.servers": bootstrap, "logger": logger, **more}


def create_topic(bootstrap: str) -> None:
    """Topic `flights`: 6 partitions on 3 nodes each; an ack needs 2 of them.

    Kept for ever, since the events' own time is 2013.
    """
    admin = AdminClient(client_config(bootstrap))
    topic = NewTopic(
        TOPIC,
        num_partitions=PARTITIONS,
        replication_factor=3,
        config={"min.insync.replicas": "2", "retention.ms": "-1"},
    )
    try:
        admin.create_topics([topic], operation_timeout=CALL_TIMEOUT_S)[TOPIC].result(timeout=CALL_TIMEOUT_S)
    except KafkaException as error:
        raise TrafficError(f"topic {TOPIC} was not created: {error.args[0].str()}") from error


@dataclass(frozen=True)
class Layout:
    """Leaders and in-sync replicas of the topic, by partition."""

    leaders: dict[int, int]
    isr: dict[int, list[int]] = field(default_factory=dict)

    def busiest_node(self) -> int:
        """The node that leads most partitions; the lowest id of several."""
        led = list(self.leaders.values())
        return min(set(led), key=lambda node: (-led.count(node), node))

    def led_by(self, node: int) -> int:
        return sum(leader == node for leader in self.leaders.values())


def layout(bootstrap: str) -> Layout:
    """The topic as the gateway describes it now."""
    admin = AdminClient(client_config(bootstrap))
    partitions = admin.list_topics(TOPIC, timeout=CALL_TIMEOUT_S).topics[TOPIC].partitions
    return Layout(
        {number: part.leader for number, part in partitions.items()},
        {number: sorted(part.isrs) for number, part in partitions.items()},
    )


def produce(
    bootstrap: str,
    flights: Flights,
    kill: Callable[[], None],
    progress: Callable[[int], None],
) -> Acks:
    """Send every event; call `kill` once, when half of them have been acknowledged."""
    acks = Acks.for_events(len(flights))
    producer = Producer(
        client_config(
            bootstrap,
            **{
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "batch.size": 262_144,
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": QUEUE_RECORDS_MAX,
                "message.timeout.ms": int(DELIVERY_TIMEOUT_S * 1000),
            },
        )
    )
    killer = _Killer(acks, kill, at=len(flights) // 2)
    acks.started_s = time.perf_counter()
    for seq, (key, value, timestamp_ms) in enumerate(flights.records()):
        report = partial(acks.delivered, seq)
        while True:
            try:
                producer.produce(TOPIC, value, key, timestamp=timestamp_ms, on_delivery=report)
                break
            except BufferError:
                producer.poll(0.01)
                killer.look()
                progress(acks.acked)
        if seq % POLL_EVERY_RECORDS == 0:
            producer.poll(0)
            killer.look()
            progress(acks.acked)
    deadline = time.monotonic() + DELIVERY_TIMEOUT_S + 10
    while len(producer) and time.monotonic() < deadline:
        producer.flush(0.1)
        killer.look()
        progress(acks.acked)
    killer.join()
    if acks.failed or acks.acked != len(flights):
        missing = len(flights) - acks.acked
        raise TrafficError(
            f"{missing:,} events were not acknowledged; {acks.first_failure or 'no answer in time'}"
        )
    return acks


class _Killer:
    """Kills in a thread of its own, so that the time line shows the cluster's pause and not ours."""

    def __init__(self, acks: Acks, kill: Callable[[], None], at: int) -> None:
        self._acks = acks
        self._kill = kill
        self._at = at
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    def look(self) -> None:
        if self._thread is None and self._acks.acked >= self._at:
            self._acks.killed_s = time.perf_counter()
            self._thread = threading.Thread(target=self._run)
            self._thread.start()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()
        if self._failure is not None:
            raise TrafficError(f"the node could not be killed: {self._failure}")

    def _run(self) -> None:
        try:
            self._kill()
        except Exception as error:
            self._failure = error
