"""Producing through a gateway's gRPC API, with a receipt for every batch.

A receipt says where a batch is (offset, leader epoch) and who has it at the moment of the
ack: the replicas whose log holds it, and those of them that have flushed it to their disk.

Rules: batches of one stream go to one partition in order. Nothing is sent twice: after an
error or a lost connection, what was not acknowledged may be written or not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.connector import PLAINTEXT, Connector
from penstock.errors import CommandError, ExitCode
from penstock.native import open_gateway
from penstock.text import harmless

if TYPE_CHECKING:
    from penstock_proto.v1 import gateway_pb2

BATCH_RECORDS_MAX = 500
BATCH_BYTES_MAX = 256 * 1024
MESSAGE_BYTES_MAX = 8 * 1024 * 1024
"""A larger batch (of one large record) goes in several messages."""
GRACE_S = 5.0
"""How much longer than the leader's own time an answer may take."""
WATCH_INTERVAL_S = 0.25

UNKNOWN_TOPIC_OR_PARTITION = 3
"""Kafka's error code."""

Record = tuple[bytes | None, bytes]
"""(key, value)."""


@dataclass(frozen=True, slots=True)
class BatchReceipt:
    """One acknowledged batch."""

    topic: str
    partition: int
    base_offset: int
    records: int
    leader_epoch: int
    held_by: tuple[int, ...]
    """Node ids, the leader's included."""
    flushed_by: tuple[int, ...]


def produce_with_receipts(
    gateway: str,
    topic: str,
    partition: int,
    records: Iterable[Record],
    *,
    acks: int = -1,
    timeout_ms: int = 30_000,
    connector: Connector = PLAINTEXT,
) -> Iterator[BatchReceipt]:
    """Send records and yield a receipt per batch, in order.

    `gateway`: HOST:PORT of its gRPC API. `connector`: how to come in there. `acks`: -1 for every in-sync replica,
    1 for the leader alone. `timeout_ms`: how long the leader may wait for its replicas. Raises CommandError on the
    first batch that is refused, or when the gateway is lost or answers nothing for that time and GRACE_S.
    """
    try:
        import grpc

        import penstock_kafka.records.build  # noqa: F401 - to say at once that it is not there
        import penstock_proto.v1.gateway_pb2  # noqa: F401
    except ImportError as error:
        raise CommandError(
            f"receipts need the gRPC client ({error.name}): pip install 'penstock[native]'"
        ) from None
    with open_gateway(gateway, connector) as opened:
        try:
            metadata = opened.metadata()
        except grpc.RpcError as error:
            refused: Any = error
            details = harmless(" ".join((refused.details() or str(error)).split()))
            raise CommandError(
                f"gateway {gateway} does not take the user: {details}", ExitCode.UNREACHABLE
            ) from None
        patience = Patience(timeout_ms / 1000 + GRACE_S)
        outgoing = _Outgoing(topic, partition, acks, timeout_ms, patience)
        call: Any = opened.stub.Produce(outgoing.requests(records), metadata=metadata)
        watch = _Watch(call, patience)
        try:
            for response in call:
                patience.answered()
                yield outgoing.receipt(response)
                patience.resumed(time.monotonic())
        except grpc.RpcError as error:
            if outgoing.failure is not None:
                raise outgoing.failure from None
            details = " ".join((call.details() or str(error)).split())
            trouble = f"was lost ({details})"
            if watch.given_up:
                trouble = f"acknowledged nothing for {patience.limit_s:g} s"
            raise CommandError(
                f"gateway {gateway} {trouble}: what has no receipt may be written or not; "
                "is it up, and is --gateway right?",
                ExitCode.UNREACHABLE,
            ) from None
        finally:
            watch.end()
            call.cancel()


class _Outgoing:
    """The batches of one call, numbered as they go out; their answers become receipts."""

    def __init__(self, topic: str, partition: int, acks: int, timeout_ms: int, patience: Patience) -> None:
        self.failure: BaseException | None = None
        """What the source of the records raised."""
        self._topic = topic
        self._partition = partition
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._patience = patience
        self._counts: list[int] = []

    def requests(self, records: Iterable[Record]) -> Iterator[gateway_pb2.ProduceRequest]:
        """What to send, in order."""
        from penstock_kafka.records.build import NewRecord, build_batch

        try:
            for number, batch in enumerate(_batches(records), 1):
                now_ms = time.time_ns() // 1_000_000
                self._counts.append(len(batch))
                self._patience.sent(time.monotonic())
                data = build_batch([NewRecord(key=k, value=v, timestamp_ms=now_ms) for k, v in batch])
                yield from self._messages(number, data)
        except GeneratorExit:
            raise  # the call is over, and gRPC wants no more: that is no failure of the source
        except BaseException as error:
            self.failure = error  # gRPC calls this from a thread of its own and tells nobody
            raise

    def _messages(self, number: int, data: bytes) -> Iterator[gateway_pb2.ProduceRequest]:
        from penstock_proto.v1 import gateway_pb2

        for start in range(0, len(data), MESSAGE_BYTES_MAX):
            yield gateway_pb2.ProduceRequest(
                request_id=number,
                topic=self._topic,
                partition=self._partition,
                records=data[start : start + MESSAGE_BYTES_MAX],
                acks=self._acks,
                timeout_ms=self._timeout_ms,
                more=start + MESSAGE_BYTES_MAX < len(data),
            )

    def receipt(self, response: gateway_pb2.ProduceResponse) -> BatchReceipt:
        """That of the batch which is answered. Raises CommandError when it was refused."""
        topic, partition = self._topic, self._partition
        if response.error.code == UNKNOWN_TOPIC_OR_PARTITION:
            raise CommandError(
                f"topic {topic!r} has no partition {partition}; `penstock topic describe {topic}` shows "
                f"what there is, `penstock topic create {topic}` makes a topic"
            )
        if response.error.code:
            raise CommandError(response.error.message)
        receipt = response.receipt
        return BatchReceipt(
            topic,
            partition,
            response.base_offset,
            self._counts[response.request_id - 1],
            receipt.leader_epoch,
            tuple(receipt.held_by),
            tuple(receipt.flushed_by),
        )


class Patience:
    """Whether a receipt has been waited for too long: `limit_s` since the last one, while batches are out.

    From a receipt until `resumed` nobody waits: who takes the receipts may take their time. Called by
    several threads.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._out = 0
        self._since_s = 0.0
        self._waiting = True
        self._lock = threading.Lock()

    def sent(self, now_s: float) -> None:
        """A batch is on its way."""
        with self._lock:
            if self._out == 0:
                self._since_s = now_s
            self._out += 1

    def answered(self) -> None:
        """A receipt has come."""
        with self._lock:
            self._out -= 1
            self._waiting = False

    def resumed(self, now_s: float) -> None:
        """The receipt was taken: the next one is waited for."""
        with self._lock:
            self._since_s = now_s
            self._waiting = True

    def is_over(self, now_s: float) -> bool:
        with self._lock:
            return self._waiting and self._out > 0 and now_s - self._since_s > self.limit_s


class _Watch:
    """Cancels a call whose patience is over, from a thread of its own."""

    def __init__(self, call: Any, patience: Patience) -> None:
        self.given_up = False
        self._call = call
        self._patience = patience
        self._ended = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def end(self) -> None:
        """The call is over."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(WATCH_INTERVAL_S):
            if self._patience.is_over(time.monotonic()):
                self.given_up = True
                self._call.cancel()
                return


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    size = 0
    for key, value in records:
        size += len(value) + len(key or b"")
        batch.append((key, value))
        if len(batch) >= BATCH_RECORDS_MAX or size >= BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
