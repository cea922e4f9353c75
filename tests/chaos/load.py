"""Producers and consumers that note all they do, in threads, and read everything back at the end.

Rules: producers are confluent-kafka, idempotent, acks=all, at a fixed rate to every partition
in turn, so that a silence of any partition is an outage and not a lull. Each value is sent
once. A consumer polls all partitions from the first offset on, never seeks, and may not be
moved by the client (`auto.offset.reset=error`): a place that is gone is an error.

A record's value is its number, then filler: anything else that is read is UNREADABLE.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from chaos.history import NO_OFFSET, UNREADABLE, Polls, Sends, Status
from support.kafka import client_config, watermarks
from support.waiting import wait_for

VALUE_BYTES = 120
VALUES_PER_PROCESS = 10**10
MESSAGE_TIMEOUT_S = 240.0
RETRY_BACKOFF_MS = 20
TICK_S = 0.01
FINAL_READ_TIMEOUT_S = 120.0

DEFINITE = frozenset(
    {
        KafkaError._PURGE_QUEUE,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_REQUIRED_ACKS,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)
"""Errors after which a record is certainly not written: it never left, or was refused on first sight."""


def value_of(number: int) -> bytes:
    head = b"%d:" % number
    return head + b"x" * (VALUE_BYTES - len(head))


def number_of(value: bytes | None) -> int:
    """The number of a value, UNREADABLE if it is not exactly as it was sent."""
    if not value:
        return UNREADABLE
    head = value.partition(b":")[0]
    if not head.isdigit():
        return UNREADABLE
    number = int(head)
    return number if value == value_of(number) else UNREADABLE


def partition_of(message: Message) -> int:
    partition = message.partition()
    assert partition is not None
    return partition


class Sender:
    """One producer, process number `process`, with the client settings `clients`. It sends until `finish`."""

    def __init__(
        self, process: int, clients: Mapping[str, str], topic: str, partitions: int, rate_per_s: float
    ) -> None:
        self.process = process
        self.sends = Sends()
        self.invoked_s = array("d")
        self.acked_s = array("d")
        self.errors: list[str] = []
        self.acked_count = 0
        self._topic = topic
        self._partitions = partitions
        self._rate_per_s = rate_per_s
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sender-{process}", daemon=True)
        self._producer = Producer(
            client_config(
                clients["bootstrap.servers"],
                **{
                    **clients,
                    "enable.idempotence": True,
                    "acks": "all",
                    "linger.ms": 2,
                    "retry.backoff.ms": RETRY_BACKOFF_MS,
                    "message.timeout.ms": int(MESSAGE_TIMEOUT_S * 1000),
                },
            )
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send no more."""
        self._stop.set()

    def finish(self) -> None:
        """Send no more and wait for all answers."""
        self.stop()
        self._thread.join()
        if self._failure is not None:
            raise AssertionError(f"producer {self.process}: {self._failure!r}")
        left = self._producer.flush(MESSAGE_TIMEOUT_S)
        if left:
            raise AssertionError(f"producer {self.process}: {left} records without an answer")

    def acks_in(self, begin_s: float, end_s: float) -> int:
        return sum(begin_s <= acked_s < end_s for acked_s in self.acked_s)

    def longest_gap_s(self) -> float:
        """The longest time in which some partition acknowledged nothing, between two acks."""
        worst = 0.0
        for partition in range(self._partitions):
            times = sorted(
                acked_s
                for acked_s, p in zip(list(self.acked_s), self.sends.partition, strict=False)
                if p == partition and acked_s
            )
            worst = max([worst, *(later - sooner for sooner, later in pairwise(times))])
        return worst

    def served_after_s(self, moment_s: float) -> float | None:
        """From `moment_s` until each partition has acked a record that was sent since; None if one has not."""
        first: dict[int, float] = {}
        for invoked_s, acked_s, partition in zip(
            list(self.invoked_s), list(self.acked_s), self.sends.partition, strict=False
        ):
            if invoked_s >= moment_s and acked_s:
                first[partition] = min(acked_s, first.get(partition, acked_s))
        if len(first) < self._partitions:
            return None
        return max(first.values()) - moment_s

    def _run(self) -> None:
        begun_s = time.monotonic()
        number = op = 0
        try:
            while not self._stop.is_set():
                op += 1
                due = int((time.monotonic() - begun_s) * self._rate_per_s)
                while number < due and not self._stop.is_set():
                    self._send(op, number)
                    number += 1
                self._producer.poll(TICK_S)
        except BaseException as error:
            self._failure = error

    def _send(self, op: int, number: int) -> None:
        value = self.process * VALUES_PER_PROCESS + number
        partition = number % self._partitions
        row = self.sends.invoke(self.process, op, partition, value)
        self.invoked_s.append(time.monotonic())
        self.acked_s.append(0.0)
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    value_of(value),
                    partition=partition,
                    on_delivery=partial(self._delivered, row),
                )
                return
            except BufferError:
                # The client's queue is full during a long outage: the rate falls, nothing is skipped.
                self._producer.poll(0.05)
                if self._stop.is_set():
                    self.sends.complete(row, Status.FAIL)
                    return

    def _delivered(self, row: int, error: KafkaError | None, message: Any) -> None:
        if error is None:
            offset = message.offset()
            self.acked_s[row] = time.monotonic()
            self.acked_count += 1
            self.sends.complete(row, Status.OK, NO_OFFSET if offset is None or offset < 0 else offset)
            return
        self.errors.append(f"{self.sends.value[row]}: {error.str()}")
        self.sends.complete(row, Status.FAIL if error.code() in DEFINITE else Status.INFO)


class Reader:
    """One consumer that polls from the first offset on. `pause_s` between polls makes it slow."""

    def __init__(
        self,
        process: int,
        clients: Mapping[str, str],
        topic: str,
        partitions: int,
        pause_s: float = 0,
        parse: Callable[[bytes | None], int] = number_of,
    ) -> None:
        """`parse` tells the number of a value, UNREADABLE if nobody can have sent it."""
        self.process = process
        self._parse = parse
        self.polls = Polls()
        self.errors: list[str] = []
        self._topic = topic
        self._partitions = partitions
        self.pause_s = pause_s
        self._op = 0
        self._at_end: set[int] = set()
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"reader-{process}", daemon=True)
        self._consumer = Consumer(
            client_config(
                clients["bootstrap.servers"],
                **{
                    **clients,
                    "group.id": "chaos-unused",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "error",
                    "check.crcs": True,
                    "retry.backoff.ms": RETRY_BACKOFF_MS,
                },
            )
        )

    def start(self) -> None:
        self.assign()
        self._thread.start()

    def close(self) -> None:
        """Instead of `finish`, of one that was polled by another thread."""
        self._consumer.close()

    def stop(self) -> None:
        """Poll no more."""
        self._stop.set()

    def finish(self) -> None:
        self.stop()
        self._thread.join()
        self.close()
        if self._failure is not None:
            raise AssertionError(f"consumer {self.process}: {self._failure}")

    def read_to_end(self) -> None:
        """Instead of `start`: read from the first offset to the end as it is now, then close."""
        try:
            ends: dict[int, int] = {}
            for partition in range(self._partitions):
                _, high = watermarks(self._consumer, self._topic, partition)
                if high:
                    ends[partition] = high
            self.assign()

            def at_end() -> bool:
                for partition, offset in self.poll(0.2).items():
                    if offset + 1 >= ends.get(partition, 0):
                        ends.pop(partition, None)
                return not ends

            wait_for(at_end, f"consumer {self.process} at the end", FINAL_READ_TIMEOUT_S)
        finally:
            self._consumer.close()

    def read_until_told(self) -> None:
        """As `read_to_end`, for a log whose last offset may be a marker, which no reader is given: until the client
        says of each partition that there is no more for it now (`enable.partition.eof`)."""
        try:
            self.assign()

            def at_end() -> bool:
                self.poll(0.2)
                return len(self._at_end) == self._partitions

            wait_for(at_end, f"consumer {self.process} at the end", FINAL_READ_TIMEOUT_S)
        finally:
            self._consumer.close()

    def assign(self) -> None:
        """From the first offset on."""
        self._consumer.assign(
            [TopicPartition(self._topic, number, OFFSET_BEGINNING) for number in range(self._partitions)]
        )

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.poll(0.1)
                self._stop.wait(self.pause_s)
        except BaseException as error:
            self._failure = error

    def poll(self, timeout_s: float) -> dict[int, int]:
        """One operation; the last offset by partition."""
        self._op += 1
        last: dict[int, int] = {}
        for message in self._consumer.consume(500, timeout=timeout_s):
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    self._at_end.add(partition_of(message))
                    continue
                self.errors.append(str(error))
                if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    raise KafkaException(error)
                continue
            partition, offset = partition_of(message), message.offset()
            assert offset is not None
            last[partition] = offset
            self.polls.add(self.process, self._op, 0, partition, offset, self._parse(message.value()))
        return last
