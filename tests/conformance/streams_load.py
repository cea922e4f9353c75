"""What the Streams applications of the tests are fed, and what must come of it: computed from what was sent alone."""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from support.kafka import PATIENCE_S, client_config, describe

DIFFERENCE_MS = 1_000
"""Records are joined whose timestamps are no further from each other."""
GRACE_MS = 86_400_000
"""Far more than any run lasts, so that no record is late and the result follows from the records alone.

Streams drops what is late by the newest timestamp that a task has seen, and a task that has moved to another instance
without restoring its stores has forgotten that: with a short grace the result hangs on when who was killed.
"""
TICK_MS = 100
"""All timestamps are multiples of it: many pairs are apart by exactly the window, which still joins them."""
KEYS = 20
WORDS = [f"word-{number}" for number in range(200)]
WORDS_IN_A_LINE = 5


class Sided(NamedTuple):
    """A record of one side of the join."""

    key: str
    value: str
    timestamp_ms: int


class Joined(NamedTuple):
    """A record that the join has made: of the later timestamp of the two."""

    key: str
    value: str
    timestamp_ms: int


def join(left: Iterable[Sided], right: Iterable[Sided], difference_ms: int) -> Counter[Joined]:
    """Every pair of one key whose timestamps are `difference_ms` apart at most, each of them once."""
    others: defaultdict[str, list[Sided]] = defaultdict(list)
    for record in right:
        others[record.key].append(record)
    for records in others.values():
        records.sort(key=lambda r: r.timestamp_ms)
    times = {key: [r.timestamp_ms for r in records] for key, records in others.items()}
    pairs: Counter[Joined] = Counter()
    for one in left:
        of_key = times.get(one.key, [])
        begin = bisect_left(of_key, one.timestamp_ms - difference_ms)
        end = bisect_right(of_key, one.timestamp_ms + difference_ms)
        for other in others[one.key][begin:end]:
            later_ms = max(one.timestamp_ms, other.timestamp_ms)
            pairs[Joined(one.key, f"{one.value}+{other.value}", later_ms)] += 1
    return pairs


@dataclass(frozen=True)
class Topics:
    """Of the application: what it reads and what it writes."""

    lines: str
    left: str
    right: str
    counts: str
    joined: str


class Feed:
    """Sends lines of words and both sides of the join in a thread, until it is stopped; all must be acknowledged.

    A record's timestamp goes with its number, and not with the time at which it is sent; one in ten is out of order by
    up to three windows. Use as a context manager.
    """

    def __init__(self, bootstrap: str, topics: Topics, rng: random.Random, rate_per_s: float) -> None:
        """`rate_per_s` is of each of the three topics."""
        self.words: Counter[str] = Counter()
        self.left: list[Sided] = []
        self.right: list[Sided] = []
        self._topics = topics
        self._rng = rng
        self._rate_per_s = rate_per_s
        self._base_ms = int(time.time() * 1000) // TICK_MS * TICK_MS
        self._errors: list[str] = []
        self._failure: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed")
        settings = {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "message.timeout.ms": int(PATIENCE_S * 1000),
        }
        self._producer = Producer(client_config(bootstrap, **settings))

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, kind: object, _error: object, _trace: object) -> None:
        self._over.set()
        self._thread.join()
        left = self._producer.flush(PATIENCE_S + 5)
        if kind is None:
            assert self._failure is None, self._failure
            assert left == 0, f"{left} records without an answer"
            assert not self._errors, self._errors[:3]

    def _run(self) -> None:
        begun = time.monotonic()
        number = 0
        try:
            while not self._over.is_set():
                due = int((time.monotonic() - begun) * self._rate_per_s)
                while number < due:
                    self._send(number)
                    number += 1
                self._producer.poll(0.02)
        except BaseException as error:
            self._failure = error

    def _send(self, number: int) -> None:
        words = self._rng.choices(WORDS, k=WORDS_IN_A_LINE)
        self.words.update(words)
        self._produce(self._topics.lines, None, " ".join(words), self._time_ms(number))
        for side, topic, records in (
            ("l", self._topics.left, self.left),
            ("r", self._topics.right, self.right),
        ):
            record = Sided(f"key-{self._rng.randrange(KEYS)}", f"{side}{number}", self._time_ms(number))
            records.append(record)
            self._produce(topic, *record)

    def _time_ms(self, number: int) -> int:
        at_ms = self._base_ms + int(number * 1000 / self._rate_per_s) // TICK_MS * TICK_MS
        if self._rng.random() < 0.1:
            windows = 3 * DIFFERENCE_MS // TICK_MS
            at_ms += self._rng.randint(-windows, windows) * TICK_MS
        return at_ms

    def _produce(self, topic: str, key: str | None, value: str, timestamp_ms: int) -> None:
        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                self._errors.append(f"{topic}: {value}: {error.str()}")

        while True:
            try:
                self._producer.produce(topic, value, key, timestamp=timestamp_ms, on_delivery=delivered)
                return
            except BufferError:
                self._producer.poll(0.05)


class Progress:
    """A reader of committed records that stays, counts what it is given of each topic and keeps each key's last."""

    def __init__(self, bootstrap: str, *topics: str) -> None:
        self.count: Counter[str] = Counter()
        self.newest: defaultdict[str, dict[str, str]] = defaultdict(dict)
        settings = {
            "group.id": "tests-unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
        }
        self._consumer = Consumer(client_config(bootstrap, **settings))
        self._consumer.assign(
            [
                TopicPartition(topic, p, OFFSET_BEGINNING)
                for topic in topics
                for p in describe(bootstrap, topic)
            ]
        )

    def look(self) -> Counter[str]:
        """How many there were by now."""
        for message in self._consumer.consume(5_000, timeout=0.1):
            error = message.error()
            assert error is None or error.retriable(), error
            if error is None:
                topic, key, value = message.topic(), message.key(), message.value()
                assert topic is not None and value is not None
                self.count[topic] += 1
                if key is not None:
                    self.newest[topic][key.decode()] = value.decode()
        return self.count.copy()

    def close(self) -> None:
        self._consumer.close()
