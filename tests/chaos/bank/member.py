"""A member of the bank's group, in a process of its own so that it can be killed: reads orders, books both sides.

    python -m chaos.bank.member BOOTSTRAP NAME PROTOCOL PROCESS

By librdkafka; `BankMember.java` does the same with Kafka's own client. It goes on until it is killed, and tells of all
that it does, before it does it, in lines of JSON on stdout (`told`). It does what each error asks of an application:
the same call again, abort and back to what is committed, or, when it is fatal, an end with code 3.

Rules: what the group knows of the member is asked *before* records are read, and goes into the transaction with them:
whoever has lost a partition meanwhile is refused. Asked afterwards it could be that of a later generation, in which the
partition is another member's. Of somebody who is no member it would say nothing, and nobody would be refused: records
that were read then are read again. Callbacks keep the assignment as it is outside of `consume`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from chaos.bank.books import BOOKINGS, ORDERS, PARTITIONS, booking, partition_of_account, value_of
from chaos.load import DEFINITE
from support.kafka import client_config

GROUP: Final = "bank"
FATAL: Final = 3
BATCH: Final = 20
POLL_S: Final = 0.2
CALL_S: Final = 60.0
REWIND_S: Final = 5.0
TRANSACTION_TIMEOUT_MS: Final = 10_000
LATE_MS: Final = TRANSACTION_TIMEOUT_MS + 5_000
"""How long a transaction is open before a coordinator aborts it (decision 0180)."""
SESSION_TIMEOUT_MS: Final = 6_000
VALUES_PER_PROCESS: Final = 10**10


def tell(what: str, **more: Any) -> None:
    """A line, which is the kernel's when this returns."""
    print(json.dumps({"s": time.monotonic(), "what": what, **more}, separators=(",", ":")), flush=True)


def until_done(call: Callable[..., Any], *arguments: Any) -> Any:
    """Until it is done; an error that librdkafka calls retriable says that the same call may be made again."""
    while True:
        try:
            return call(*arguments)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


class Member:
    """See the module's text."""

    def __init__(self, bootstrap: str, name: str, protocol: str, process: int) -> None:
        self._values = process * VALUES_PER_PROCESS
        self._number = 0
        self._has_to_rewind = False
        self._offsets: list[tuple[int, int]] = []
        self._refused: list[int] = []
        settings: dict[str, Any] = {
            "group.id": GROUP,
            "client.id": name,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
        if protocol == "classic":
            settings |= {"session.timeout.ms": SESSION_TIMEOUT_MS, "partition.assignment.strategy": "range"}
        self._consumer = Consumer(client_config(bootstrap, **settings))
        self._consumer.subscribe(
            [ORDERS], on_assign=self._changed, on_revoke=self._changed, on_lost=self._changed
        )
        more = {"transactional.id": name, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
        self._producer = Producer(client_config(bootstrap, **more))
        self._reader = Consumer(
            client_config(
                bootstrap,
                **{
                    "group.id": "bank-unused",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "error",
                    "isolation.level": "read_committed",
                },
            )
        )
        self._reader.assign([TopicPartition(BOOKINGS, n, OFFSET_BEGINNING) for n in range(PARTITIONS)])
        until_done(self._producer.init_transactions, CALL_S)
        tell("ready")

    def run(self) -> None:
        """For ever."""
        while True:
            group = self._as_member()
            orders = []
            for message in self._consumer.consume(BATCH, timeout=POLL_S):
                error = message.error()
                if error is None:
                    orders.append(message)
                elif error.fatal():
                    raise KafkaException(error)
            if self._has_to_rewind or (orders and group is None):
                self._has_to_rewind = not self._rewind()
            elif orders:
                self._book(orders, group)

    def _as_member(self) -> Any:
        """What the group knows of this member; None while it does not."""
        name = self._consumer.memberid()
        found = self._consumer.consumer_group_metadata()
        return found if name and self._consumer.memberid() == name else None

    def _changed(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        """Within `consume`: what it returns may be of before and of afterwards."""
        self._has_to_rewind = True
        tell("assignment", partitions=sorted(place.partition for place in places))

    def _book(self, orders: list[Message], group: Any) -> None:
        """Some orders, in one transaction."""
        number = self._number = self._number + 1
        rows = []
        for message in orders:
            order, source, target, amount = map(int, (message.value() or b"").split())
            for account, signed in ((source, -amount), (target, amount)):
                self._values += 1
                rows.append((self._values, order, account, signed))
        told = [(value, partition_of_account(account)) for value, _, account, _ in rows]
        tell("begin", number=number, rows=told)
        self._offsets, self._refused = [], []
        try:
            self._producer.begin_transaction()
            for row in rows:
                self._producer.produce(
                    BOOKINGS,
                    booking(*row),
                    partition=partition_of_account(row[2]),
                    on_delivery=self._delivered,
                )
            self._read(number)
            ends: dict[int, int] = {}
            for message in orders:
                ends[message.partition() or 0] = (message.offset() or 0) + 1
            places = [TopicPartition(ORDERS, partition, end) for partition, end in ends.items()]
            until_done(self._producer.send_offsets_to_transaction, places, group, CALL_S)
            tell("commit", number=number)
            until_done(self._producer.commit_transaction, CALL_S)
            tell("committed", number=number, offsets=self._offsets)
        except KafkaException as error:
            what = error.args[0]
            if what.fatal() or not what.txn_requires_abort():
                raise
            tell("abort", number=number, why=str(what))
            until_done(self._producer.abort_transaction, CALL_S)
            tell("aborted", number=number, offsets=self._offsets, refused=self._refused)
            self._has_to_rewind = True

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value = value_of(message.value())
        offset = message.offset()
        if error is None and offset is not None and offset >= 0:
            self._offsets.append((value, offset))
        elif error is not None and error.code() in DEFINITE:
            self._refused.append(value)

    def _read(self, number: int) -> None:
        """As a reader of committed bookings, while a transaction is open."""
        rows = []
        for message in self._reader.consume(500, timeout=0):
            error = message.error()
            if error is None:
                rows.append((message.partition(), message.offset(), value_of(message.value())))
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                raise KafkaException(error)
        if rows:
            tell("read", number=number, rows=rows)

    def _rewind(self) -> bool:
        """To what is committed; whether that was possible by now."""
        mine = self._consumer.assignment()
        try:
            found = self._consumer.committed(mine, REWIND_S) if mine else []
            for place in found:
                if place.error is not None:
                    return False
                self._consumer.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))
        except KafkaException as error:
            if error.args[0].fatal():
                raise
            tell("not rewound", why=str(error))
            return False
        return True


if __name__ == "__main__":
    try:
        Member(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])).run()
    except KafkaException as failure:
        tell("fatal", why=f"{failure.args[0].name()}: {failure.args[0]}")
        sys.exit(FATAL)
