"""Kafka 4.3.1 and beside it a Penstock of one node and one gateway, with the same JSON records in two partitions."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.peer import KafkaCluster
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from penstock.local import ports
from support.cluster import running_cluster
from support.kafka import create_topic

PARTITIONS: Final = 2
RATE_PER_S: Final = 2_000
"""Of what micro-batches read."""
_CITIES: Final = ("Berlin", "Lima", "Osaka", "Quito", "Turin")
_WAIT_S: Final = 300.0

Sizes = Mapping[str, tuple[int, int]]
"""By name: bytes of a value, and records."""


@dataclass(frozen=True)
class Addresses:
    """Where both are."""

    kafka: str
    penstock: str
    gateway: str

    @property
    def bootstraps(self) -> tuple[str, str]:
        return self.kafka, self.penstock


def value_of(number: int, size: int) -> bytes:
    """JSON of exactly so many bytes."""
    text = f'{{"id":{number},"city":"{_CITIES[number % len(_CITIES)]}","pad":"'
    return (text + "x" * (size - len(text) - 2) + '"}').encode()


def topic_of(size: str) -> str:
    return "json-" + size.replace(" ", "").lower()


def fill(bootstrap: str, topic: str, size: int, count: int) -> None:
    """The same records in every system."""
    create_topic(bootstrap, topic, PARTITIONS, 1)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 50, "batch.size": 1_000_000,
         "queue.buffering.max.kbytes": 200_000, "log_level": 0}
    )  # fmt: skip
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value_of(number, size), partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(_WAIT_S):
        raise SystemExit(f"{topic} was not written whole")


@contextmanager
def systems(folder: Path, sizes: Sizes) -> Iterator[Addresses]:
    """Both, filled with records of these sizes."""
    kafka = KafkaCluster(folder / "kafka", 1, ports.choose_base())
    kafka.start()
    try:
        with running_cluster(folder / "penstock", controllers=1, nodes=1, gateways=1) as penstock:
            at = Addresses(kafka.bootstrap, penstock.bootstrap, penstock.gateway)
            for bootstrap in at.bootstraps:
                for name, (size, count) in sizes.items():
                    fill(bootstrap, topic_of(name), size, count)
                create_topic(bootstrap, "ticks", PARTITIONS, 1)
            yield at
    finally:
        kafka.stop()


@contextmanager
def a_topic(at: Addresses, topic: str) -> Iterator[None]:
    """Of that name in both, and gone afterwards: what one round writes takes no room from the next."""
    for bootstrap in at.bootstraps:
        create_topic(bootstrap, topic, PARTITIONS, 1)
    try:
        yield
    finally:
        for bootstrap in at.bootstraps:
            asked = AdminClient({"bootstrap.servers": bootstrap}).delete_topics([topic])
            asked[topic].result(_WAIT_S)


@contextmanager
def ticking(bootstrap: str) -> Iterator[None]:
    """Meanwhile `ticks` is written at an even rate."""
    over = threading.Event()
    thread = threading.Thread(target=_tick, args=(bootstrap, over), name="ticks")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _tick(bootstrap: str, over: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
    begun_s, number = time.perf_counter(), 0
    while not over.is_set():
        while number < (time.perf_counter() - begun_s) * RATE_PER_S:
            producer.produce("ticks", value_of(number, 100), partition=number % PARTITIONS)
            number += 1
        producer.poll(0.005)
    producer.flush(60)


def chosen_sizes(sizes: Sizes, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    wanted = set(names)
    return {name: one for name, one in sizes.items() if name in wanted}
