"""Transactions of confluent-kafka that lie between one another in a topic's partitions, and how consumers read them."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import Producer

from support.java import JavaDriver, decode
from support.kafka import client_config, describe
from support.transactional_writers import CALL_S, ByLibrdkafka
from support.transactions import messages_to_end

WRITERS = 3
STEPS = 60
ISOLATIONS = ("read_uncommitted", "read_committed")


class Row(NamedTuple):
    """A record where it was found."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes


@dataclass
class Interleaved:
    """What was written, as its producers know it."""

    decided: set[bytes] = field(default_factory=set)
    """Values of committed transactions, and of none."""
    aborted: set[bytes] = field(default_factory=set)
    undecided: set[bytes] = field(default_factory=set)
    behind: set[bytes] = field(default_factory=set)
    """Decided ones that stand behind undecided ones, where no reader of committed records comes."""


class Interleaving:
    """Producers of one topic. Every step is flushed, so that batches of all of them lie between one another; at the
    end one transaction is open in partition 0, and decided records stand behind it."""

    def __init__(self, bootstrap: str, topic: str, codec: str, dice: random.Random) -> None:
        self.written = Interleaved()
        self._topic = topic
        self._partitions = len(describe(bootstrap, topic))
        self._dice = dice
        self._number = 0
        self._held: list[list[bytes]] = [[] for _ in range(WRITERS)]
        more = {"compression.type": codec}
        names = [f"{topic}-{number}" for number in range(WRITERS)]
        self._writers = [ByLibrdkafka(bootstrap, name, 600_000, **more) for name in names]
        self._plain = Producer(client_config(bootstrap, **{"enable.idempotence": True, **more}))

    def write(self) -> Interleaved:
        """All of it."""
        is_open = [False] * WRITERS
        for step in range(STEPS):
            turn = step % WRITERS  # each has several, whatever the dice say
            if not is_open[turn]:
                self._writers[turn].begin()
                is_open[turn] = True
                self._send(turn, self._dice.randrange(self._partitions))
                self._send(turn, self._dice.randrange(self._partitions))
            elif self._dice.random() < 0.4:
                self._send(turn, self._dice.randrange(self._partitions))
            else:
                self._end(turn, commits=self._dice.random() < 0.5)
                is_open[turn] = False
            if step % 4 == 0:
                self.plain(self._dice.randrange(self._partitions))
        for turn in range(WRITERS):
            if is_open[turn]:
                self._end(turn, commits=turn != 2)
        for turn in range(WRITERS):  # of each kind in every partition
            self._writers[turn].begin()
            for partition in range(self._partitions):
                self._send(turn, partition)
            self._end(turn, commits=turn != 2)
        self.leave_open()
        return self.written

    def leave_open(self) -> None:
        """A transaction in partition 0, and decided records behind it; the other partitions end with decided ones."""
        self._writers[0].begin()
        self._send(0, 0)
        self.written.undecided.update(self._held[0])
        self._writers[1].begin()
        self._send(1, 0)
        self.written.behind.update(self._held[1])
        self._end(1, commits=True)
        self.written.behind.add(self.plain(0))
        for partition in range(1, self._partitions):
            self.plain(partition)

    def plain(self, partition: int) -> bytes:
        """A record of no transaction."""
        value = self._value("plain")
        self._plain.produce(self._topic, value, key=b"p", partition=partition)
        assert self._plain.flush(CALL_S) == 0
        self.written.decided.add(value)
        return value

    def decide(self, *, commits: bool) -> None:
        """End the transaction that is open."""
        values = set(self._held[0])
        self._end(0, commits=commits)
        self.written.undecided -= values
        self.written.behind.clear()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()

    def _send(self, turn: int, partition: int) -> None:
        for _ in range(self._dice.randint(1, 3)):
            value = self._value(f"writer {turn}")
            self._writers[turn].send(self._topic, partition, value.decode())
            self._held[turn].append(value)
        self._writers[turn].flush()

    def _end(self, turn: int, *, commits: bool) -> None:
        writer, values = self._writers[turn], self._held[turn]
        (writer.commit if commits else writer.abort)()
        assert not writer.failures, writer.failures
        (self.written.decided if commits else self.written.aborted).update(values)
        values.clear()

    def _value(self, by: str) -> bytes:
        self._number += 1
        return b"%d of %s, %s" % (self._number, by.encode(), b"x" * 60)


def read_by_confluent(bootstrap: str, topic: str, isolation: str) -> list[Row]:
    """Until confluent-kafka says that there is no more for now."""
    found = []
    for partition, message in messages_to_end(bootstrap, topic, isolation):
        offset = message.offset()
        assert offset is not None
        found.append(Row(topic, partition, offset, message.key(), message.value() or b""))
    return sorted(found)


def read_by_java(
    driver: JavaDriver, bootstrap: str, topic: str, isolation: str, timeout_s: float = 120.0
) -> list[Row]:
    """Until Kafka's Java consumer stands where it was told that the topic ends for it."""
    places = [[topic, number] for number in describe(bootstrap, topic)]
    deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    handle = driver.call(
        "consumer.open",
        config={
            "bootstrap.servers": bootstrap,
            "isolation.level": isolation,
            "enable.auto.commit": "false",
            "auto.offset.reset": "none",
            "key.deserializer": deserializer,
            "value.deserializer": deserializer,
        },
    )
    try:
        driver.call("consumer.assign", handle=handle, partitions=places)
        driver.call("consumer.seek_to_beginning", handle=handle, partitions=places)
        ends = {
            part: end
            for _, part, end in driver.call("consumer.end_offsets", handle=handle, partitions=places)
        }
        found: list[Row] = []

        def is_done() -> bool:
            at = driver.call("consumer.position", handle=handle, partitions=places)
            return all(offset >= ends[part] for _, part, offset in at)

        deadline_s = time.monotonic() + timeout_s
        while not is_done():
            assert time.monotonic() < deadline_s, f"ends not reached: {ends}"
            for told in driver.call("consumer.poll", handle=handle, timeout_ms=500):
                value = decode(told["value"]) or b""
                found.append(Row(topic, told["partition"], told["offset"], decode(told["key"]), value))
    finally:
        driver.call("consumer.close", handle=handle)
    return sorted(found)


def check_reading(written: Interleaved, isolation: str, values: Sequence[bytes]) -> None:
    """What a consumer has read is what the producers know of."""
    everything = written.decided | written.aborted | written.undecided
    visible = everything if isolation == "read_uncommitted" else written.decided - written.behind
    assert len(values) == len(set(values))
    assert set(values) == visible
