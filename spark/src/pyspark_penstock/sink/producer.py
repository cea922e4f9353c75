"""Batches to gateways by the Produce stream, whatever happens on the way.

A stream that breaks is opened again at the next gateway, and what had no answer is sent again: then a leader may have
it twice, unless it belongs to a stage, whose leaders know a sequence again. The effort is bounded by the time in which
no batch is acknowledged.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import grpc

from penstock_proto.v1 import gateway_pb2
from pyspark_penstock.encode import Sealed, Sequences, split
from pyspark_penstock.errors import GatewayError, OptionError, RowError
from pyspark_penstock.gateway import (
    RETRIABLE_CODES,
    RETRIABLE_STATUS,
    UNKNOWN_TOPIC_OR_PARTITION,
    Access,
    Backoff,
    GatewayClient,
    unreachable,
)
from pyspark_penstock.rights import TOPIC_AUTHORIZATION_FAILED, needs
from pyspark_penstock.sink.protocol import Triple
from pyspark_penstock.sink.window import IN_LINE_MAX, Outgoing, Window

HELD_BYTES_MAX = 8 * 1024 * 1024
"""Encoded batches without an acknowledgement in one task; one more may come on top."""
DELIVERY_TIMEOUT_MS = 120_000
"""How long nothing may be acknowledged: delivery.timeout.ms of Kafka's producers."""
ANSWER_TIMEOUT_MS = 60_000
"""How long an answer may take: a leader gives up waiting for its replicas after 30 s."""
MISSING_GRACE_MS = 5_000
"""How long "no such topic" must last to be believed: a gateway that has just come up may be behind."""
_PIECE_BYTES = 1024 * 1024
"""A larger batch goes in several messages; gRPC's own bound is 4 MiB where nobody raises it."""
_BACKOFF_FIRST_MS = 20

MESSAGE_TOO_LARGE = 10
RECORD_LIST_TOO_LARGE = 18
# Kafka's error codes (org.apache.kafka.common.protocol.Errors) which pass: beside those of a reader
# NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND, THROTTLING_QUOTA_EXCEEDED.
_PASSING = RETRIABLE_CODES | {19, 20, 89}
# COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS: the partition has
# yet to come into the stage's transaction.
_PASSING_OF_STAGE = _PASSING | {14, 15, 16, 51}
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
DUPLICATE_SEQUENCE_NUMBER = 46
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
# INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, UNKNOWN_PRODUCER_ID, PRODUCER_FENCED,
# TRANSACTIONAL_ID_NOT_FOUND, TRANSACTION_ABORTABLE.
_STAGE_ENDED = frozenset({47, 48, 49, 59, 90, 105, 120})


class StageEndedError(GatewayError):
    """The task's stage takes no more rows."""


class _Call(Protocol):
    """What gRPC gives for a stream: its answers one after another."""

    def __iter__(self) -> Iterator[gateway_pb2.ProduceResponse]: ...

    def cancel(self) -> object: ...


class Producer:
    """One task's way to the leaders. Not thread-safe."""

    def __init__(
        self,
        gateways: Sequence[str],
        *,
        credentials_file: str = "",
        codec: str = "none",
        stage: Triple | None = None,
        delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
        answer_timeout_ms: int = ANSWER_TIMEOUT_MS,
        missing_grace_ms: int = MISSING_GRACE_MS,
        held_bytes_max: int = HELD_BYTES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gateways = tuple(gateways)
        self._at = 0
        self._file = credentials_file
        self._access = Access(credentials_file)
        self._client = GatewayClient(gateways, credentials_file=credentials_file)
        self._codec = codec
        self._stage = stage
        self._sequences: dict[str, Sequences] = {}
        self._timeout_ms = delivery_timeout_ms
        self._answer_timeout_ms = answer_timeout_ms
        self._grace_ms = missing_grace_ms
        self._clock = clock
        self._progress_s = self._left_s = clock()
        self._missing_since_s: float | None = None
        """Since when there is no such topic, or no such place for a sequence."""
        self._backoff = Backoff(_BACKOFF_FIRST_MS)
        self._window = Window(held_bytes_max, 1 if stage is None else IN_LINE_MAX)
        self._stream: _Stream | None = None

    def partitions(self, topic: str) -> int:
        """How many a topic has. Raises OptionError when it isn't there."""
        deadline_s = self._clock() + self._grace_ms / 1000
        backoff = Backoff(_BACKOFF_FIRST_MS)
        while True:
            found = self._client.describe([topic]).get(topic)
            self._learn()
            if found is not None and found.partitions:
                return len(found.partitions)
            if self._clock() >= deadline_s:
                raise OptionError(f"no such topic: {topic}; create it first, or correct the topic's name")
            backoff.wait()

    def sequences(self, topic: str) -> Sequences | None:
        """What the next batches to a topic say of their producer, in a stage."""
        if self._stage is None:
            return None
        if topic not in self._sequences:
            self._sequences[topic] = Sequences(self._stage.producer_id, self._stage.producer_epoch)
        return self._sequences[topic]

    def send(self, topic: str, batches: Iterator[Sealed]) -> None:
        """Takes batches as there is room for them. Raises PenstockError."""
        with self._at_work():
            for batch in batches:
                if self._window.is_empty:
                    self._progress_s = self._clock()
                self._window.offer(Outgoing(topic, batch))
                self._push()
                while self._window.is_full or (self._stream is not None and self._stream.has_answer):
                    self._turn()

    def flush(self) -> None:
        """Returns when everything is acknowledged by all in-sync replicas. Raises PenstockError."""
        with self._at_work():
            while not self._window.is_empty:
                self._turn()

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """The time between two calls is Spark's: nobody has looked for an answer, and none was late."""
        away_s = self._clock() - self._left_s
        self._progress_s += away_s
        if self._missing_since_s is not None:
            self._missing_since_s += away_s
        try:
            yield
        finally:
            self._left_s = self._clock()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    # -- one stream -------------------------------------------------------------------------

    def _turn(self) -> None:
        """Sends what may be sent, and takes one answer."""
        try:
            self._push()
            if self._stream is None:
                return
            answer = self._stream.answer(self._answer_timeout_ms / 1000)
            if answer is None:
                self._broke("the stream ended early")
            else:
                self._access.answered()
                self._answered(answer)
        except queue.Empty:
            self._broke(f"no answer for {self._answer_timeout_ms / 1000:.0f} s")
        except grpc.RpcError as error:
            self._after_status(error)

    def _push(self) -> None:
        try:
            if self._stream is None:
                gateway, metadata = self._access.open(self._address)
                name = "" if self._stage is None else self._stage.transactional_id
                self._stream = _Stream(lambda requests: gateway.Produce(requests, metadata=metadata), name)
            for number, item in self._window.take():
                self._stream.send(number, item)
        except grpc.RpcError as error:
            self._after_status(error)

    @property
    def _address(self) -> str:
        return self._gateways[self._at % len(self._gateways)]

    def _learn(self) -> None:
        """Gateways that the cluster names, behind the configured ones."""
        known = self._gateways
        self._gateways = (*known, *(address for address in self._client.learned if address not in known))

    # -- answers ----------------------------------------------------------------------------

    def _answered(self, answer: gateway_pb2.ProduceResponse) -> None:
        item = self._window.sent(answer.request_id)
        if item is None:
            raise GatewayError(
                f"{self._address}: the gateway's answer is broken: request {answer.request_id}"
            )
        code = answer.error.code
        if not code or (code == DUPLICATE_SEQUENCE_NUMBER and self._stage is not None):
            self._window.acknowledged(answer.request_id)
            self._progress_s = self._clock()
            self._missing_since_s = None
            self._backoff.reset()
        elif code in (MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE):
            self._window.in_parts(answer.request_id, self._parts(item, answer.error.message))
        elif self._passes(code, answer.request_id):
            self._window.again(answer.request_id)
            self._check_time(f"{self._address}: {answer.error.message or code}")
            self._backoff.wait()
        else:
            self._refused(item, code, answer.error.message)

    def _passes(self, code: int, number: int) -> bool:
        if code == UNKNOWN_TOPIC_OR_PARTITION:
            return not self._missing_for_long()
        if self._stage is None:
            return code in _PASSING
        if code == OUT_OF_ORDER_SEQUENCE_NUMBER:
            # What stood before it was refused, or its leader is behind for a moment.
            return not self._window.is_first(number) or not self._missing_for_long()
        return code in _PASSING_OF_STAGE

    def _parts(self, item: Outgoing, message: str) -> list[Sealed]:
        try:
            return split(item.batch.records, item.batch.partition, self._codec)
        except RowError as error:
            raise RowError(
                f"topic {item.topic}: {error}, which is above what it takes ({message}); "
                "raise the topic's max.message.bytes, or write less in one row"
            ) from None

    def _refused(self, item: Outgoing, code: int, message: str) -> None:
        where = f"{item.topic}-{item.batch.partition}"
        if code == UNKNOWN_TOPIC_OR_PARTITION:
            raise OptionError(f"no such topic or partition: {where}; create it first, or correct the name")
        text = message or f"Kafka error {code}"
        if self._stage is not None:
            self._refused_stage(self._stage, code, text)
        if code == TOPIC_AUTHORIZATION_FAILED:
            raise GatewayError(
                f"not allowed to write to topic {item.topic} ({text}); {needs(self._file, 'Write')}"
            )
        raise GatewayError(text if item.topic in text else f"{where}: {text}")

    def _refused_stage(self, stage: Triple, code: int, text: str) -> None:
        name = stage.transactional_id
        if code in _STAGE_ENDED or code == OUT_OF_ORDER_SEQUENCE_NUMBER:
            raise StageEndedError(
                f"stage {name} has ended ({text}): it was open for longer than stagingTimeoutMs, or another attempt at "
                "the task has begun; Spark repeats the task, and raise stagingTimeoutMs if tasks take so long"
            )
        if code == TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise GatewayError(
                f"not allowed to write under transactional id {name} ({text}); "
                + needs(self._file, "Write on the transactional ids that begin with the sink's name")
            )

    def _missing_for_long(self) -> bool:
        now_s = self._clock()
        if self._missing_since_s is None:
            self._missing_since_s = now_s
        return (now_s - self._missing_since_s) * 1000 >= self._grace_ms

    # -- what went wrong --------------------------------------------------------------------

    def _after_status(self, error: grpc.RpcError) -> None:
        status, details = error.code(), (error.details() or "no details").splitlines()[0]
        if status not in RETRIABLE_STATUS and not self._access.may_ask_again(status):
            self.close()
            raise GatewayError(f"{self._address}: {status.name}, {details}")
        self._broke(f"{status.name}, {details}")

    def _broke(self, reason: str) -> None:
        """Goes on at the next gateway, after a wait when all were tried; raises when it took too long."""
        reason = f"{self._address}: {reason}"
        self.close()
        self._window.broken()
        self._check_time(reason)
        self._at += 1
        if self._at % len(self._gateways) == 0:
            self._backoff.wait()

    def _check_time(self, reason: str) -> None:
        silent_ms = (self._clock() - self._progress_s) * 1000
        if silent_ms >= self._timeout_ms:
            self.close()
            text = f"nothing acknowledged for {silent_ms / 1000:.0f} s; last: {reason}"
            raise unreachable(self._gateways, text, self._file)


class _Stream:
    """One call: gRPC reads requests from a queue in a thread of its own, and another thread takes in the answers."""

    def __init__(
        self, call: Callable[[Iterator[gateway_pb2.ProduceRequest]], _Call], transactional_id: str
    ) -> None:
        self._transactional_id = transactional_id
        self._requests: queue.SimpleQueue[gateway_pb2.ProduceRequest | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[gateway_pb2.ProduceResponse | grpc.RpcError | None] = (
            queue.SimpleQueue()
        )
        self._call = call(iter(self._requests.get, None))
        threading.Thread(target=self._read, name="penstock-produce", daemon=True).start()

    def _read(self) -> None:
        try:
            for answer in self._call:
                self._answers.put(answer)
        except grpc.RpcError as error:
            self._answers.put(error)
        else:
            self._answers.put(None)

    def send(self, number: int, item: Outgoing) -> None:
        records = item.batch.records
        first = gateway_pb2.ProduceRequest(
            request_id=number,
            topic=item.topic,
            partition=item.batch.partition,
            acks=-1,
            transactional_id=self._transactional_id,
        )
        for start in range(0, len(records), _PIECE_BYTES):
            request = first if start == 0 else gateway_pb2.ProduceRequest(request_id=number)
            request.records = records[start : start + _PIECE_BYTES]
            request.more = start + _PIECE_BYTES < len(records)
            self._requests.put(request)

    @property
    def has_answer(self) -> bool:
        return not self._answers.empty()

    def answer(self, timeout_s: float) -> gateway_pb2.ProduceResponse | None:
        """The next one; None when the gateway has ended the stream. Raises grpc.RpcError, and queue.Empty in time."""
        found = self._answers.get(timeout=timeout_s)
        if isinstance(found, grpc.RpcError):
            raise found
        return found

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()
