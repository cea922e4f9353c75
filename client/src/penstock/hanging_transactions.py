"""Transactions that hang, made on purpose: open in a partition and unknown to every coordinator, so that no timeout
ends them and readers of committed records stop there. Leaders refuse to begin one, unless verification is switched off:
that is done for the moment of the write, for the whole cluster.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.cli import transaction_wire, wire
from penstock_core.config.catalog import VERIFICATION
from penstock_core.errors import ErrorCode
from penstock_kafka.records.build import NewRecord, build_batch

PRODUCE: Final = 0
_ACKS_ALL: Final = -1
_TIMEOUT_MS: Final = 30_000
_FIRST_ID: Final = 1 << 60
"""Producer ids are given out from 0 on: nobody ever gets so far."""
_AGAIN: Final = frozenset(
    {
        # Verification is still on at the leader, or it has just begun to lead.
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


class HangingTransaction(NamedTuple):
    """Who has it open, and where."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int = 0


def hang(
    bootstrap: str, topic: str, partition: int, value: bytes, *, within_s: float, pause_s: float
) -> HangingTransaction:
    """Write one record in a transaction that nobody ends. Raises TimeoutError."""
    made = HangingTransaction(topic, partition, _FIRST_ID + random.getrandbits(32))
    wire.alter_configs(bootstrap, "cluster", "", [(VERIFICATION, "false")])
    try:
        _until_none(
            lambda: _produce(bootstrap, made, value), f"write to {topic}-{partition}", within_s, pause_s
        )
    finally:
        wire.alter_configs(bootstrap, "cluster", "", [(VERIFICATION, None)])
    return made


def end(bootstrap: str, hanging: HangingTransaction, *, within_s: float, pause_s: float) -> None:
    """Abort it, as an operator does. Raises TimeoutError."""
    what = f"the end of the transaction in {hanging.topic}-{hanging.partition}"
    _until_none(lambda: _abort(bootstrap, hanging), what, within_s, pause_s)


def _until_none(ask: Callable[[], int], what: str, within_s: float, pause_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    while (code := ask()) != ErrorCode.NONE:
        if code not in _AGAIN or time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} was refused with Kafka's error {code}")
        time.sleep(pause_s)


def _produce(bootstrap: str, made: HangingTransaction, value: bytes) -> int:
    records = build_batch(
        [NewRecord(None, value, round(time.time() * 1000))],
        producer_id=made.producer_id,
        producer_epoch=made.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    body = wire.text_of(f"hanging-{made.producer_id}") + struct.pack(">hii", _ACKS_ALL, _TIMEOUT_MS, 1)
    body += wire.text_of(made.topic) + struct.pack(">iii", 1, made.partition, len(records)) + records
    reader = wire.Reader(wire.ask(bootstrap, PRODUCE, body, version=7))
    reader.unpack(">i")
    reader.text()
    _, _, code = reader.unpack(">iih")
    return int(code)


def _abort(bootstrap: str, hanging: HangingTransaction) -> int:
    cluster = transaction_wire.read_cluster(bootstrap, hanging.topic)
    place = hanging.topic, hanging.partition
    found, failed = transaction_wire.open_producers(cluster, [place])
    mine = next((each for each in found if each.producer_id == hanging.producer_id), None)
    if mine is None:
        return failed.get(place, ErrorCode.NONE)
    return transaction_wire.abort(cluster, mine)


__all__ = ["HangingTransaction", "end", "hang"]
