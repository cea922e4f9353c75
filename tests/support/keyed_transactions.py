"""Transactions of keyed records that are aborted in every way, the model of what counts, and the reader that compares.

Each writer has keys of its own, and in their partition their committed records come in the order of its commits. What
is aborted, timed out or fenced goes over the keys of all. Each transaction also writes its name to a topic that is not
compacted: all or nothing, so that says at the end which of those counted whose commit was never answered.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from zlib import crc32

from support.transactional_writers import WRITERS, ByLibrdkafka, Writer
from support.transactions import ERRORS, Outcome, again, messages_to_end

NAMES = "names"
"""The topic of what counted; one partition."""
ROWS_MAX = 8
KEYS = 40
"""Of each writer and topic."""
TOMBSTONES = 0.15
LEFT_TIMEOUT_MS = 2_000
STOP_S = 300.0
PAD = "." * 60

Values = list[str | None]


@dataclass
class Written:
    """One transaction."""

    name: str
    writer: str
    way: str
    """commit, abort, fence or leave."""
    rows: list[tuple[str, int, str, str | None]] = field(default_factory=list)
    """Topic, partition, key, value."""
    outcome: Outcome = Outcome.UNKNOWN


@dataclass
class Told:
    """Of all writers, in the order in which each has begun them."""

    transactions: list[Written] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """What ended a producer; another went on under its id."""

    def count(self, outcome: Outcome) -> int:
        return sum(one.outcome is outcome for one in self.transactions)

    def rows(self, *ways: str) -> int:
        return sum(len(one.rows) for one in self.transactions if one.way in ways)


def partition_of(key: str, partitions: int) -> int:
    return crc32(key.encode()) % partitions


class KeyedLoad:
    """One writer in a thread. `shares` says how often each way to end a transaction is chosen."""

    def __init__(
        self,
        bootstrap: str,
        topics: Mapping[str, int],
        name: str,
        by: str,
        others: Sequence[str],
        seed: str,
        shares: Mapping[str, float],
    ) -> None:
        """`topics`: partitions by name; `others`: names of all writers, over whose keys aborted transactions go."""
        self.name = name
        self.told = Told()
        self._bootstrap = bootstrap
        self._topics = dict(topics)
        self._by = by
        self._others = tuple(others)
        self._rng = random.Random(f"{seed} {name}")
        self._shares = dict(shares)
        self._over = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name=f"keyed {name}")

    def __enter__(self) -> KeyedLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(STOP_S)
        assert not self._thread.is_alive(), f"{self.name} does not end"
        if self._failed:
            raise self._failed[0]

    @property
    def failed(self) -> bool:
        return bool(self._failed)

    def _run(self) -> None:
        writer: Writer | None = None
        try:
            while not self._over.is_set():
                try:
                    if writer is None:
                        writer = WRITERS[self._by](self._bootstrap, self.name)
                    writer = self._one(writer)
                except (*ERRORS, TimeoutError) as error:
                    last = self.told.transactions[-1:]
                    what = f"{last[0].name} ({last[0].way})" if last else "its first transaction"
                    self.told.errors.append(f"{self.name}, at {what}: {error!r}")
                    if writer is not None:
                        writer.close()
                    writer = None
        except BaseException as error:
            self._failed.append(error)
        finally:
            if writer is not None:
                writer.close()

    def _one(self, writer: Writer) -> Writer:
        """A transaction, and who writes the next."""
        way = self._rng.choices(tuple(self._shares), tuple(self._shares.values()))[0]
        one = Written(f"{self.name}-{len(self.told.transactions)}", self.name, way)
        self.told.transactions.append(one)
        if way == "leave":
            return self._leave(writer, one)
        # Nothing of it can count before its commit is asked for.
        one.outcome = Outcome.ABORTED
        writer.begin()
        self._send(writer, one)
        if way == "commit":
            one.outcome = Outcome.UNKNOWN
            again(writer.commit)
            one.outcome = Outcome.COMMITTED
        elif way == "abort":
            if self._rng.random() < 0.8:
                writer.flush()
            again(writer.abort)
        else:
            writer.flush()
            heir: Writer = WRITERS[self._by](self._bootstrap, self.name)
            writer.close()
            return heir
        return writer

    def _leave(self, writer: Writer, one: Written) -> Writer:
        """Somebody else's, who is gone in the middle of it: its timeout ends it. librdkafka's, as others that are
        closed abort what they have open."""
        one.outcome = Outcome.ABORTED
        gone: Writer | None = None
        try:
            gone = ByLibrdkafka(self._bootstrap, f"{one.name}-left", LEFT_TIMEOUT_MS)
            gone.begin()
            self._send(gone, one)
            with suppress(*ERRORS):  # that the time is over may be told already
                gone.flush()
        finally:
            if gone is not None:
                gone.close()
        return writer

    def _send(self, writer: Writer, one: Written) -> None:
        rng = self._rng
        for row in range(rng.randint(1, ROWS_MAX)):
            topic = rng.choice(tuple(self._topics))
            owner = self.name if one.way == "commit" else rng.choice(self._others)
            key = f"{owner}/{rng.randrange(KEYS)}"
            value = None if rng.random() < TOMBSTONES else f"{one.name} {row} {PAD}"
            partition = partition_of(key, self._topics[topic])
            one.rows.append((topic, partition, key, value))
            writer.send(topic, partition, value, key)
        writer.send(NAMES, 0, one.name)


# -- what is found ---------------------------------------------------------------------------------


@dataclass
class Found:
    """What one reader was given of a topic: by key the values in their order, and how many records that were."""

    values: dict[str, Values] = field(default_factory=dict)
    records: int = 0

    def last(self) -> dict[str, str | None]:
        return {key: values[-1] for key, values in self.values.items()}


def read_keyed(bootstrap: str, topic: str, isolation: str, timeout_s: float = 240.0) -> Found:
    """From the start to the end, as far as this reader may see now."""
    found = Found()
    for _, message in messages_to_end(bootstrap, topic, isolation, timeout_s):
        key, value = message.key(), message.value()
        found.records += 1
        found.values.setdefault((key or b"").decode(), []).append(None if value is None else value.decode())
    return found


def names_that_count(bootstrap: str) -> list[str]:
    """The names of committed transactions, as readers of committed records find them."""
    found = read_keyed(bootstrap, NAMES, "read_committed")
    return [name or "" for name in found.values.get("", [])]


def resolve(told: Sequence[Told], counted: Sequence[str]) -> Counter[str]:
    """Give each transaction whose commit was not answered the outcome that its name tells; what was answered has to
    agree. Returns how many were resolved which way."""
    twice = [name for name, count in Counter(counted).items() if count > 1]
    assert not twice, f"more than once: {twice[:10]}"
    there = set(counted)
    resolved: Counter[str] = Counter()
    for one in (each for story in told for each in story.transactions):
        counts = one.name in there
        there.discard(one.name)
        if one.outcome is Outcome.UNKNOWN:
            one.outcome = Outcome.COMMITTED if counts else Outcome.ABORTED
            resolved[one.outcome.value] += 1
        assert counts == (one.outcome is Outcome.COMMITTED), (
            f"{one.name} ({one.way}): {one.outcome}, {counts=}"
        )
    assert not there, f"nobody wrote {sorted(there)[:10]}"
    return resolved


def model_of(told: Sequence[Told], topic: str) -> dict[str, Values]:
    """By key its committed values, in order."""
    model: dict[str, Values] = {}
    for story in told:
        for one in story.transactions:
            if one.outcome is Outcome.COMMITTED:
                for where, _, key, value in one.rows:
                    if where == topic:
                        model.setdefault(key, []).append(value)
    return model


def check_keyed(found: Found, model: Mapping[str, Values], *, tombstones_stay: bool, who: str) -> None:
    """A reader of committed records sees the last value of each key last, before it older ones of the same key in
    their order, and nothing else. Where `tombstones_stay` a key that is deleted is still there, with null."""
    strange = found.values.keys() - model.keys()
    assert not strange, f"{who}: keys of aborted transactions alone: {sorted(strange)[:10]}"
    for key, values in model.items():
        seen = found.values.get(key)
        if seen is None:
            assert values[-1] is None and not tombstones_stay, f"{who}: {key} is gone, it was {values[-1]!r}"
            continue
        assert seen[-1] == values[-1], f"{who}: {key}: {seen[-1]!r}, not {values[-1]!r}"
        assert _is_part(seen, values), f"{who}: {key}: {seen} is no part of {values}"


def _is_part(seen: Values, values: Values) -> bool:
    """Whether all of these are among those, in the same order."""
    rest = iter(values)
    return all(any(one == other for other in rest) for one in seen)
