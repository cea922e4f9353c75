"""Orders at a rate, each placed once, in a thread; and who reads the bookings that come of them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, Producer

from chaos.bank.books import BOOKINGS, ORDERS, PARTITIONS, Booking, Order, drawn_order, parsed
from chaos.history import UNREADABLE, Polls
from chaos.load import MESSAGE_TIMEOUT_S, RETRY_BACKOFF_MS, Reader
from support.kafka import client_config

TICK_S = 0.02


class OrderFlow:
    """An idempotent producer of orders. They flow or pause; what was placed is acknowledged when a pause begins."""

    def __init__(self, clients: Mapping[str, str], rate_per_s: float, dice: random.Random) -> None:
        self.orders: dict[int, Order] = {}
        self._rate_per_s = rate_per_s
        self._dice = dice
        self._errors: list[str] = []
        self._flows = threading.Event()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="orders", daemon=True)
        self._producer = Producer(
            client_config(
                clients["bootstrap.servers"],
                **{
                    **clients,
                    "enable.idempotence": True,
                    "acks": "all",
                    "linger.ms": 2,
                    "retry.backoff.ms": RETRY_BACKOFF_MS,
                    "message.timeout.ms": int(MESSAGE_TIMEOUT_S * 1000),
                },
            )
        )
        self._thread.start()

    def flow(self) -> None:
        self._flows.set()

    def pause(self) -> int:
        """No more of them; how many were placed by now, all of them acknowledged."""
        self._flows.clear()
        with self._lock:
            left = self._producer.flush(MESSAGE_TIMEOUT_S)
        assert self._failure is None, f"orders: {self._failure!r}"
        assert not left, f"{left} orders were never acknowledged"
        assert not self._errors, f"orders were refused: {self._errors[:3]}"
        return len(self.orders)

    def stop(self) -> None:
        self._stop.set()
        self._flows.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._flows.wait() and not self._stop.is_set():
                begun_s, first = time.monotonic(), len(self.orders)
                while self._flows.is_set() and not self._stop.is_set():
                    with self._lock:
                        due = first + int((time.monotonic() - begun_s) * self._rate_per_s)
                        while len(self.orders) < due and self._flows.is_set():
                            self._place()
                        self._producer.poll(TICK_S)
        except BaseException as error:
            self._failure = error

    def _place(self) -> None:
        order = drawn_order(len(self.orders), self._dice)
        self.orders[order.number] = order
        self._producer.produce(
            ORDERS, order.encoded(), partition=order.number % PARTITIONS, on_delivery=self._delivered
        )

    def _delivered(self, error: KafkaError | None, _: Any) -> None:
        if error is not None:
            self._errors.append(error.str())


class Books:
    """Every booking that any reader of a round was given, by its value; readers that note there."""

    def __init__(self) -> None:
        self._noted: dict[int, Booking] = {}
        self.conflicts: list[str] = []
        """One value with two meanings."""

    def reader(
        self, process: int, clients: Mapping[str, str], isolation: str, *, to_end: bool = False
    ) -> Reader:
        """`to_end`: it is told where there is no more."""
        settings = {**clients, "isolation.level": isolation}
        if to_end:
            settings["enable.partition.eof"] = "true"
        return Reader(process, settings, BOOKINGS, PARTITIONS, parse=self.note)

    def note(self, data: bytes | None) -> int:
        """The booking's number; UNREADABLE if it is none."""
        found = parsed(0, data)
        if found is None:
            return UNREADABLE
        known = self._noted.setdefault(found.value, found)
        if known != found:
            self.conflicts.append(f"{known} and {found}")
        return found.value

    def read_by(self, polls: Polls) -> list[Booking]:
        """What a reader found, each row of it."""
        found = []
        for partition, value in zip(polls.partition, polls.value, strict=True):
            if value == UNREADABLE:
                self.conflicts.append(f"something that is no booking in partition {partition}")
                continue
            one = self._noted[value]
            found.append(Booking(partition, value, one.order, one.account, one.amount))
        return found
