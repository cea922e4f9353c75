"""What the topics of the bank hold, and whether it is what was ordered.

An order is `order source target amount`; a booking is `value order account amount` in the partition of its account, the
amount below 0 where it is paid from. `value` is the booking's own: an order that is tried again is booked with others.

Rules: at a pause, when every order that was placed has to be done, a reader from the start finds of each order exactly
one booking of each side, on the accounts and with the amount that it names, in those accounts' partitions; and so the
sum is 0. Before that, nothing is said of two partitions at one moment: a reader gets one after the other, and Kafka
shows a transaction partition by partition.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.history import UNREADABLE

ORDERS: Final = "orders"
BOOKINGS: Final = "bookings"
PARTITIONS: Final = 12
ACCOUNTS: Final = 1_000
AMOUNT_MAX: Final = 100
EXAMPLES_MAX: Final = 5


@dataclass(frozen=True)
class Order:
    """Money that is to go from one account to another."""

    number: int
    source: int
    target: int
    amount: int

    def encoded(self) -> bytes:
        return f"{self.number} {self.source} {self.target} {self.amount}".encode()


@dataclass(frozen=True)
class Booking:
    """One side of an order, as it was read."""

    partition: int
    value: int
    order: int
    account: int
    amount: int


def drawn_order(number: int, dice: random.Random) -> Order:
    source, target = dice.sample(range(ACCOUNTS), 2)
    return Order(number, source, target, dice.randint(1, AMOUNT_MAX))


def partition_of_account(account: int) -> int:
    return account % PARTITIONS


def booking(value: int, order: int, account: int, amount: int) -> bytes:
    return f"{value} {order} {account} {amount}".encode()


def value_of(data: bytes | None) -> int:
    """The booking's own number; UNREADABLE if it is none."""
    found = parsed(0, data)
    return UNREADABLE if found is None else found.value


def parsed(partition: int, data: bytes | None) -> Booking | None:
    """None if it is no booking."""
    words = (data or b"").split(b" ")
    if len(words) != 4 or not all(word.removeprefix(b"-").isdigit() for word in words):
        return None
    value, order, account, amount = map(int, words)
    found = Booking(partition, value, order, account, amount)
    return found if booking(value, order, account, amount) == data else None


def wrong_in(orders: Mapping[int, Order], bookings: Sequence[Booking]) -> list[str]:
    """What a reader from the start should not have found; nothing if all is as was ordered."""
    sides: dict[int, list[Booking]] = defaultdict(list)
    found: dict[str, list[str]] = defaultdict(list)
    for one in bookings:
        sides[one.order].append(one)
        if one.partition != partition_of_account(one.account):
            found["in another account's partition"].append(f"{one}")
    for number in sides.keys() - orders.keys():
        found["never ordered"].append(f"{sides[number][0]}")
    for number, order in orders.items():
        paid = [one for one in sides[number] if one.amount < 0]
        got = [one for one in sides[number] if one.amount >= 0]
        if not paid and not got:
            found["not done"].append(f"{order}")
        elif not paid or not got:
            found["one side only"].append(f"{sides[number]}")
        elif len(paid) > 1 or len(got) > 1:
            found["done more than once"].append(f"{sides[number]}")
        elif (paid[0].account, got[0].account, -paid[0].amount, got[0].amount) != (
            order.source,
            order.target,
            order.amount,
            order.amount,
        ):
            found["not as it was ordered"].append(f"{order}: {sides[number]}")
    total = sum(one.amount for one in bookings)
    if total:
        found["sum"].append(f"{total} and not 0")
    return [f"{kind}: {len(ones)}; {'; '.join(ones[:EXAMPLES_MAX])}" for kind, ones in sorted(found.items())]
