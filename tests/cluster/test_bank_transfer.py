"""Money that members of a group move by consume, transform and produce, while members, nodes and gateways are killed.

At the end each order was done once, both sides of it, and the sum is what it was.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock.local.cluster import LocalCluster
from support.bank_member import BOOKINGS, ORDERS, PARTITIONS
from support.cluster import running_cluster, start_ready
from support.kafka import client_config, create_topic
from support.transactions import only_in_long_form, read_to_end

TESTS = Path(__file__).resolve().parents[1]
MEMBERS = 4
ORDERS_A_ROUND = 240
ACCOUNTS = 100
ROUNDS = 8
DONE_WITHIN_S = 120.0

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), only_in_long_form]


class Members:
    """Processes, which come back when they are killed."""

    def __init__(self, bootstrap: str, protocol: str, logs: Path) -> None:
        self._place = bootstrap, protocol, logs
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(MEMBERS):
            self.start(number)

    def start(self, number: int) -> None:
        bootstrap, protocol, logs = self._place
        with open(logs / f"member-{number}.txt", "ab") as log:
            self._running[number] = subprocess.Popen(
                [sys.executable, "-m", "support.bank_member", bootstrap, f"teller-{number}", protocol],
                cwd=TESTS,
                env={**os.environ, "PYTHONPATH": str(TESTS)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self, number: int) -> None:
        """kill -9; nobody hears of its transaction."""
        self._running[number].kill()
        self._running[number].wait()

    def check(self) -> None:
        """None has ended by itself: what is fatal has to be explained by what was done to it."""
        ended = {n: process.poll() for n, process in self._running.items() if process.poll() is not None}
        assert not ended, f"{ended}: {self.said()}"

    def said(self) -> dict[str, list[str]]:
        """The last lines of each."""
        return {
            log.name: log.read_text().splitlines()[-5:] for log in sorted(self._place[2].glob("member-*"))
        }

    def stop(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()


class Orders:
    """Each is placed once."""

    def __init__(self, bootstrap: str, rng: random.Random) -> None:
        self._producer = Producer(client_config(bootstrap, **{"enable.idempotence": True}))
        self._rng = rng
        self.count = 0

    def place(self, count: int) -> None:
        for number in range(self.count, self.count + count):
            source, target = self._rng.sample(range(ACCOUNTS), 2)
            order = f"{number} {source} {target} {self._rng.randint(1, 100)}"
            self._producer.produce(ORDERS, order.encode(), partition=number % PARTITIONS)
        self.count += count
        assert not self._producer.flush(60)


def booked(bootstrap: str) -> list[tuple[int, int]]:
    """(order, amount) of every booking that a reader of committed records finds."""
    found = read_to_end(bootstrap, BOOKINGS, "read_committed")
    rows = (value.split() for values in found.values() for value in values)
    return [(int(number), int(amount)) for number, amount in rows]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    settings = {
        "controller": {"transaction_state_log_num_partitions": "4", "offsets_topic_num_partitions": "4"},
        "storage-node": {"group_initial_rebalance_delay_ms": "0"},
    }
    directory = tmp_path / "cluster"
    with running_cluster(
        directory, controllers=1, nodes=3, gateways=2, settings=settings, steady=True
    ) as found:
        yield found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_no_order_is_lost_or_done_twice(cluster: LocalCluster, tmp_path: Path, protocol: str) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    bootstrap = cluster.bootstrap
    for topic in (ORDERS, BOOKINGS):
        create_topic(bootstrap, topic, PARTITIONS)
    members = Members(bootstrap, protocol, tmp_path)
    try:
        orders = Orders(bootstrap, rng)
        for _ in range(ROUNDS):
            orders.place(ORDERS_A_ROUND)
            members.check()
            time.sleep(rng.random())  # somewhere in the middle of them
            victim = rng.choice(["member", "member", "node", "gateway"])
            if victim == "member":
                number = rng.randrange(MEMBERS)
                print(f"kill member {number}")
                members.kill(number)
                members.start(number)
            else:
                name = f"{victim}-{rng.randint(1, 3 if victim == 'node' else 2)}"
                print(f"kill {name}")
                cluster.kill(name)
                start_ready(cluster, name)
        deadline_s = time.monotonic() + DONE_WITHIN_S
        while len({number for number, _ in booked(bootstrap)}) < orders.count:
            members.check()
            assert time.monotonic() < deadline_s, members.said()
            time.sleep(1)
        members.check()
    finally:
        members.stop()
        print(members.said())
    rows = booked(bootstrap)
    assert sum(amount for _, amount in rows) == 0
    times = Counter(number for number, _ in rows)
    wrong = {number: count for number, count in times.items() if count != 2}
    assert not wrong and len(times) == orders.count, wrong
