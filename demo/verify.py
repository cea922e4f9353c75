"""Read everything back and check it against the source and against each acknowledgement."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from demo.flights import Flights
from demo.traffic import CALL_TIMEOUT_S, OFFSET_UNTOLD, PARTITIONS, TOPIC, Acks, TrafficError, client_config

SILENCE_MAX_S = 30.0
PROBLEMS_SHOWN_MAX = 5


@dataclass
class ReadBack:
    """What was found. All of `lost`, `doubled`, `wrong`, `disordered` must be 0."""

    events: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    """Events whose key, value, partition or offset is not what was sent and acknowledged."""
    disordered: int = 0
    keys: int = 0
    took_s: float = 0.0
    examples: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not (self.lost or self.doubled or self.wrong or self.disordered)

    def problem(self, text: str) -> None:
        if len(self.examples) < PROBLEMS_SHOWN_MAX:
            self.examples.append(text)


class _Checker:
    """Takes records as they come, partition by partition in order."""

    def __init__(self, flights: Flights, acks: Acks) -> None:
        self.result = ReadBack()
        self._flights = flights
        self._acks = acks
        self._seen = bytearray(len(flights))
        self._last_of_key: dict[bytes, int] = {}
        self._next_offset = dict.fromkeys(range(PARTITIONS), 0)

    def take(self, message: Any) -> None:
        partition, offset = message.partition(), message.offset()
        key, value = message.key(), message.value()
        result = self.result
        result.events += 1
        place = f"{TOPIC}/{partition}@{offset}"
        if offset != self._next_offset[partition]:
            result.wrong += 1
            result.problem(f"{place}: the offset before it is {self._next_offset[partition] - 1}")
        self._next_offset[partition] = offset + 1
        seq = int(value[7 : value.index(b",")])
        if self._seen[seq]:
            result.doubled += 1
            result.problem(f"{place}: event {seq} is there twice")
            return
        self._seen[seq] = 1
        if value != self._flights.values[seq] or key != self._flights.keys[seq]:
            result.wrong += 1
            result.problem(f"{place}: event {seq} is not as it was sent")
        told = self._acks.offsets[seq]
        if self._acks.partitions[seq] != partition or told not in (offset, OFFSET_UNTOLD):
            result.wrong += 1
            result.problem(f"{place}: event {seq} was acknowledged at offset {self._acks.offsets[seq]}")
        if self._last_of_key.get(key, -1) > seq:
            result.disordered += 1
            result.problem(f"{place}: event {seq} of {key.decode()} comes after a later one")
        self._last_of_key[key] = seq

    def finish(self) -> ReadBack:
        self.result.lost = len(self._seen) - sum(self._seen)
        self.result.keys = len(self._last_of_key)
        if self.result.lost:
            self.result.problem(f"event {self._seen.index(0)} is not there")
        return self.result


def read_back(bootstrap: str, flights: Flights, acks: Acks, progress: Callable[[int], None]) -> ReadBack:
    """Read each partition from its first offset to its end; raises when the cluster falls silent."""
    consumer = Consumer(
        client_config(
            bootstrap,
            **{
                "group.id": "demo-unused",
                "enable.auto.commit": False,
                "check.crcs": True,
                "auto.offset.reset": "error",
                # librdkafka's own second of rest, each time its queue is full, is most of a fast read.
                "fetch.queue.backoff.ms": 5,
            },
        )
    )
    begun = time.perf_counter()
    checker = _Checker(flights, acks)
    try:
        ends = {}
        for number in range(PARTITIONS):
            low, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=CALL_TIMEOUT_S)
            if low != 0:
                raise TrafficError(f"partition {number} begins at offset {low}, not at 0")
            ends[number] = high
        consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in ends])
        left = sum(ends.values())
        heard_s = time.monotonic()
        while left > 0:
            messages = consumer.consume(5_000, timeout=0.2)
            for message in messages:
                error = message.error()
                if error is not None:
                    if error.retriable() or error.code() == KafkaError._ALL_BROKERS_DOWN:
                        continue
                    raise TrafficError(f"reading failed: {error.str()}")
                checker.take(message)
                left -= 1
            if messages:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > SILENCE_MAX_S:
                raise TrafficError(f"{left:,} events did not come within {SILENCE_MAX_S:.0f} s")
            progress(checker.result.events)
    finally:
        consumer.close()
    result = checker.finish()
    result.took_s = time.perf_counter() - begun
    return result
