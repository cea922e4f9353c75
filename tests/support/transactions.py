"""A transactional load that knows what became of each transaction, and the reader that says whether it was so."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka.errors import KafkaError as KafkaPythonError

from support.java import JavaError
from support.kafka import client_config, describe
from support.transactional_writers import CALL_S, WRITERS, Writer
from support.waiting import wait_for

only_in_long_form = pytest.mark.skipif(
    "PENSTOCK_TRANSACTIONS" not in os.environ, reason="of the long form: make transactions-test"
)
"""A proof of which `make test` has a shorter one."""


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


def is_broken(error: BaseException) -> bool:
    """Whether aiokafka has ended a producer by itself: it does when the connection is lost on which it looks for a
    coordinator (aiokafka 0.14 `Sender._find_coordinator`). Each call fails from then on, and nobody was told anything
    by the cluster: an application begins anew with the same id."""
    if not isinstance(error, AiokafkaError):
        return False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KafkaConnectionError):
            return True
        cause = cause.__cause__
    return False


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
        story: Story | None = None,
        pause_s: float = 0.0,
    ) -> None:
        """`story` is one to be continued, of the same `name`; `pause_s` is between two transactions."""
        self.name = f"{name} ({by})"
        self.story = story or Story()
        self._place = bootstrap, topic, partitions, name, rows
        self._by = by
        self._pause_s = pause_s
        self._over = threading.Event()
        self._left = threading.Event()
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

    def leave(self) -> None:
        """As an application that is killed does: nothing more is sent, and nobody ends the transaction. Returns when it
        is so, in the middle of one."""
        self._left.set()
        self._thread.join(240)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        bootstrap, _, _, name, _ = self._place
        while not self._over.is_set():
            writer: Writer | None = None
            try:
                writer = WRITERS[self._by](bootstrap, name)
                while not self._over.wait(self._pause_s):
                    self._one(writer, len(self.story.transactions))
            except _Left:
                return
            except (*ERRORS, TimeoutError) as error:
                if not is_broken(error):
                    self.story.fatal.append(f"{name}: {error!r}")
                    return
                self.story.aborts.append(f"{name}: {error!r}")
            finally:
                if writer is not None:
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
                if self._left.is_set() and row >= rows // 2:
                    raise _Left
            if number % 4 == 3:
                writer.flush()
                again(writer.abort)
                return
            one.outcome = Outcome.UNKNOWN
            again(writer.commit)
            one.outcome = Outcome.COMMITTED
            self.story.commit_times_s.append(time.monotonic())
        except ERRORS as error:
            if abort_after(error, writer, f"{name}: {error!r}", self.story.aborts):
                one.outcome = Outcome.ABORTED


class _Left(Exception):
    """The application is gone."""


def abort_after(error: Exception, writer: Writer, words: str, aborts: list[str]) -> bool:
    """As an application does whose client tells it of an error: what ends its producer is raised, else the transaction
    is aborted, and `words` noted. Whether it is sure that nothing of it counts."""
    if verdict(error) is Verdict.FATAL or is_broken(error):
        raise error
    aborts.append(words)
    again(writer.abort)
    # librdkafka and Java let it be aborted only where the commit was not done; of the others nobody knows.
    return not isinstance(error, PYTHON_ERRORS)


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


def messages_to_end(
    bootstrap: str, topic: str, isolation: str, timeout_s: float = 120.0
) -> Iterator[tuple[int, Message]]:
    """What a reader is given of a topic from its start, with the partition, until it is told in each partition that
    there is no more for it now.

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
    try:
        left = set(describe(bootstrap, topic))
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in left])
        deadline_s = time.monotonic() + timeout_s
        while left:
            assert time.monotonic() < deadline_s, f"ends of {topic} not reached: {left}"
            for message in consumer.consume(2_000, timeout=0.2):
                error, partition = message.error(), message.partition()
                assert partition is not None
                if error is None:
                    yield partition, message
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(partition)
                else:
                    assert error.retriable(), error
    finally:
        consumer.close()


def read_to_end(bootstrap: str, topic: str, isolation: str, timeout_s: float = 120.0) -> dict[int, list[str]]:
    """What `messages_to_end` gives of each partition, in order."""
    found: dict[int, list[str]] = {partition: [] for partition in describe(bootstrap, topic)}
    for partition, message in messages_to_end(bootstrap, topic, isolation, timeout_s):
        found[partition].append((message.value() or b"").decode())
    return found


def committed(consumer: Consumer, places: list[TopicPartition]) -> list[TopicPartition]:
    """Where a group is, asked for again while its coordinator has just moved: librdkafka tells that of this call, not
    that it may be made again, and looks for the new one."""
    found: list[TopicPartition] = []

    def is_told() -> bool:
        try:
            found[:] = consumer.committed(places, CALL_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_COORDINATOR:
                raise
            return False
        return True

    wait_for(is_told, "it is told where its group is", CALL_S)
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
