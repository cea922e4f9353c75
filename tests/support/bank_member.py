"""A member of the bank's group, in a process of its own so that it can be killed: reads orders, books both sides.

    python -m support.bank_member BOOTSTRAP NAME PROTOCOL

An order is `number from to amount`; a booking is `number amount` in the partition of its account. It goes on until it
is killed. What librdkafka calls fatal ends it with code 3; every abort is told on stdout.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from support.kafka import client_config

ORDERS: Final = "orders"
BOOKINGS: Final = "bookings"
GROUP: Final = "bank"
PARTITIONS: Final = 12
FATAL: Final = 3
CALL_S: Final = 60.0
TRANSACTION_TIMEOUT_MS: Final = 10_000
SESSION_TIMEOUT_MS: Final = 6_000


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

    def __init__(self, bootstrap: str, name: str, protocol: str) -> None:
        settings: dict[str, Any] = {
            "group.id": GROUP,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
        if protocol == "classic":
            settings["session.timeout.ms"] = SESSION_TIMEOUT_MS
        self.consumer = Consumer(client_config(bootstrap, **settings))
        self.consumer.subscribe([ORDERS])
        more = {"transactional.id": name, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
        self.producer = Producer(client_config(bootstrap, **more))
        until_done(self.producer.init_transactions, CALL_S)

    def run(self) -> None:
        """For ever."""
        while True:
            orders = [m for m in self.consumer.consume(20, timeout=0.5) if m.error() is None]
            if orders:
                self.book(orders)

    def book(self, orders: list[Message]) -> None:
        """Some orders, in one transaction."""
        self.producer.begin_transaction()
        try:
            for order in orders:
                number, source, target, amount = (order.value() or b"").decode().split()
                for account, sign in ((source, "-"), (target, "")):
                    value = f"{number} {sign}{amount}".encode()
                    self.producer.produce(BOOKINGS, value, account.encode(), int(account) % PARTITIONS)
            ends = {(m.partition(), (m.offset() or 0) + 1) for m in orders}
            last = {partition: max(end for p, end in ends if p == partition) for partition, _ in ends}
            places = [TopicPartition(ORDERS, partition or 0, end) for partition, end in last.items()]
            group = self.consumer.consumer_group_metadata()
            until_done(self.producer.send_offsets_to_transaction, places, group, CALL_S)
            until_done(self.producer.commit_transaction, CALL_S)
        except KafkaException as error:
            what = error.args[0]
            if what.fatal() or not what.txn_requires_abort():
                raise
            print(f"{time.time():.3f} abort: {what}", flush=True)
            until_done(self.producer.abort_transaction, CALL_S)
            self.rewind()

    def rewind(self) -> None:
        """To what is committed."""
        mine = self.consumer.assignment()
        if mine:
            for place in until_done(self.consumer.committed, mine, CALL_S):
                self.consumer.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))


if __name__ == "__main__":
    try:
        Member(*sys.argv[1:]).run()
    except KafkaException as failure:
        print(f"{time.time():.3f} fatal: {failure}", flush=True)
        sys.exit(FATAL)
