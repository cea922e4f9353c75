"""Transactional producers that note all they do, each with a reader of committed records, in threads.

Rules: a transaction writes records to all partitions in turn, reads on a little while it is open, and is committed, or
aborted on purpose (one in four). A client does what its library's errors tell an application to do; one that is
fatal, or an answer that does not come, is noted, and another producer goes on under the same transactional id. Until
commit is asked for nothing of a transaction can be committed; from then on it is INFO until somebody says how it ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

from confluent_kafka import KafkaError

from chaos.history import NO_OFFSET, Sends, Status, Transaction
from chaos.load import DEFINITE, RETRY_BACKOFF_MS, VALUES_PER_PROCESS, Reader, value_of
from support.java import encode
from support.transactional_writers import ByAiokafka, ByJava, ByLibrdkafka, Writer
from support.transactions import ERRORS, abort_after, again, is_broken

TRANSACTION_TIMEOUT_MS = 240_000
"""Longer than any fault: what ends a transaction here is its client."""
ROWS = 12
PAUSE_S = 0.02
"""Between two transactions."""
READ_S = 0.02
ABORT_EVERY = 4
END_TIMEOUT_S = 240.0
ANEW_AFTER_S = 0.5

logging.getLogger("aiokafka").addHandler(logging.NullHandler())  # it speaks of every retry

Told = Callable[[Status, int], None]
"""How a record's delivery ended, and its offset."""


class NotingWriter(Writer, Protocol):
    """A transactional producer that tells what became of each record."""

    def send_noted(self, topic: str, partition: int, value: bytes, told: Told) -> None: ...


class NotingLibrdkafka(ByLibrdkafka):
    """confluent-kafka."""

    def __init__(self, bootstrap: str, name: str) -> None:
        super().__init__(bootstrap, name, TRANSACTION_TIMEOUT_MS, **{"retry.backoff.ms": RETRY_BACKOFF_MS})

    def send_noted(self, topic: str, partition: int, value: bytes, told: Told) -> None:
        noted = partial(self._noted, told)
        self.producer.produce(topic, value, partition=partition, on_delivery=noted)
        self.producer.poll(0)

    def _noted(self, told: Told, error: KafkaError | None, message: Any) -> None:
        self._delivered(error, message)
        if error is not None:
            told(Status.FAIL if error.code() in DEFINITE else Status.INFO, NO_OFFSET)
        else:
            offset = message.offset()
            told(Status.OK, NO_OFFSET if offset is None or offset < 0 else offset)


class NotingAiokafka(ByAiokafka):
    """aiokafka. What it could not deliver may be there all the same."""

    def __init__(self, bootstrap: str, name: str) -> None:
        super().__init__(bootstrap, name, TRANSACTION_TIMEOUT_MS)

    def send_noted(self, topic: str, partition: int, value: bytes, told: Told) -> None:
        sent = self._do(self.producer.send(topic, value, partition=partition))
        self._sent.append(sent)
        self._loop.call_soon_threadsafe(sent.add_done_callback, partial(_noted, told))


def _noted(told: Told, sent: Any) -> None:
    if sent.cancelled() or sent.exception() is not None:
        told(Status.INFO, NO_OFFSET)
    else:
        told(Status.OK, sent.result().offset)


class NotingJava(ByJava):
    """Kafka's Java client, of which leaders add partitions where the cluster lets them."""

    def __init__(self, bootstrap: str, name: str) -> None:
        super().__init__(bootstrap, name, TRANSACTION_TIMEOUT_MS)

    def send_noted(self, topic: str, partition: int, value: bytes, told: Told) -> None:
        rows = [{"partition": partition, "value": encode(value)}]
        sent = self._driver.start("producer.send", handle=self._handle, topic=topic, records=rows)
        self._sent.append(sent)
        sent.add_done_callback(partial(noted_by_java, told))


def noted_by_java(told: Told, sent: Future[Any]) -> None:
    """What became of the one record of a `producer.send`. What it could not deliver may be there all the same."""
    place = {} if sent.exception() is not None else sent.result()[0]
    if "offset" not in place:
        told(Status.INFO, NO_OFFSET)
    else:
        told(Status.OK, NO_OFFSET if place["offset"] is None else place["offset"])


WRITERS: dict[str, Callable[[str, str], NotingWriter]] = {
    "confluent-kafka": NotingLibrdkafka,
    "aiokafka": NotingAiokafka,
    "java": NotingJava,
}


class TransactionalClient:
    """One transactional id, process number `process`: transactions of some records until `finish`."""

    def __init__(
        self,
        process: int,
        by: str,
        bootstrap: str,
        reader: Reader,
        topic: str,
        partitions: int,
        pause_s: float = PAUSE_S,
    ) -> None:
        """`pause_s` is between two transactions."""
        self.process = process
        self.name = f"chaos-{process}"
        """Its transactional id."""
        self.by = by
        self.reader = reader
        self.sends = Sends()
        self.transactions: list[Transaction] = []
        self.committed_s: list[float] = []
        self.aborts: list[str] = []
        """Why the application was made to abort."""
        self.fatal: list[str] = []
        self.broken: list[str] = []
        """Producers that their library has ended at a lost connection."""
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._pause_s = pause_s
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> None:
        self.reader.assign()
        self._thread.start()

    def stop(self) -> None:
        """Begin no other transaction."""
        self._stop.set()

    def finish(self) -> None:
        """End with the transaction that is going on."""
        self.stop()
        self._thread.join(END_TIMEOUT_S)
        assert not self._thread.is_alive(), f"{self.name} ({self.by}) does not end: {self.transactions[-1:]}"
        self.reader.close()
        if self._failure is not None:
            raise AssertionError(f"{self.name} ({self.by}): {self._failure!r}")

    def has_committed_since(self, moment_s: float) -> bool:
        return bool(self.committed_s) and self.committed_s[-1] > moment_s

    def longest_gap_s(self) -> float:
        """Between two commits."""
        return max((later - sooner for sooner, later in pairwise(self.committed_s)), default=0.0)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._one_producer()
        except BaseException as error:
            self._failure = error

    def _one_producer(self) -> None:
        """Until it ends, or has to."""
        writer: NotingWriter | None = None
        try:
            writer = WRITERS[self.by](self._bootstrap, self.name)
            while not self._stop.wait(self._pause_s):
                self._one(writer)
        except (*ERRORS, TimeoutError) as error:
            (self.broken if is_broken(error) else self.fatal).append(f"{self.name} ({self.by}): {error!r}")
            self._stop.wait(ANEW_AFTER_S)
        finally:
            if writer is not None:
                writer.close()

    def _one(self, writer: NotingWriter) -> None:
        number = len(self.transactions)
        one = Transaction(self.process, Status.FAIL)
        self.transactions.append(one)
        writer.begin()
        try:
            for row in range(ROWS):
                self._send(writer, one, number, (number + row) % self._partitions)
                if row == ROWS // 2:
                    one.reads.extend(self._read())
            if number % ABORT_EVERY == ABORT_EVERY - 1:
                writer.flush()
                again(writer.abort)
                return
            one.outcome = Status.INFO
            again(writer.commit)
            one.outcome = Status.OK
            self.committed_s.append(time.monotonic())
        except ERRORS as error:
            if abort_after(error, writer, f"{self.name} ({self.by}): {error!r}", self.aborts):
                one.outcome = Status.FAIL

    def _send(self, writer: NotingWriter, one: Transaction, op: int, place: int) -> None:
        value = self.process * VALUES_PER_PROCESS + len(self.sends)
        row = self.sends.invoke(self.process, op, place, value)
        one.rows.append(row)
        writer.send_noted(self._topic, place, value_of(value), partial(self.sends.complete, row))

    def _read(self) -> list[int]:
        """Values of one poll."""
        before = len(self.reader.polls)
        self.reader.poll(READ_S)
        return list(self.reader.polls.value[before:])
