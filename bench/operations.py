"""What planned changes cost clients: nothing failed, and how long acks take, beside Apache Kafka doing the same.

    .venv/bin/python -m bench.operations [--megabytes 400] [--throttle auto] [--json FILE]
    .venv/bin/python -m bench.operations --kafka --throttle 30MB/s    the same throttle on both; java and mvn

Records of 1 KiB at 1,000 a second in all, acks=all, by confluent-kafka, kafka-python and aiokafka, each in a process
of its own and with a metadata call a second beside, through a gateway: while a node is drained, the cluster rebalanced,
a topic's replication factor raised from 1 to 3, every process restarted. Kafka has no gateway and no plan: its brokers
are spoken to directly, and `kafka-reassign-partitions` gets moves that are made up here. p99 is of all clients' acks:
of the 20 s before, and meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Protocol

import aiokafka
import kafka
from bench.drain import fill, penstock
from bench.peer import KafkaCluster
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from penstock.cli.rates import parse_throttle
from penstock.local.cluster import LocalCluster

NODES, PARTITIONS = 4, 24
RATE_PER_S = 1_000
RECORD = b"x" * 1024
BEFORE_S = 20.0
WARM_S = 10.0
TIMEOUT_S = 120
Acks = list[tuple[float, float]]
"""When each came (monotonic clock) and how long it took, in seconds."""


@dataclass
class Client:
    """What a client had to say at its end."""

    acks: Acks
    failed: list[str]
    """Deliveries and calls."""
    calls: int


# --- clients, each in a process of its own ---------------------------------------------------------


def due_at(begun: float, rate_per_s: float, number: int) -> float:
    return begun + number / rate_per_s - time.monotonic()


def confluent(bootstrap: str, topic: str, rate_per_s: float, stop: Event) -> Client:
    told = Client([], [], 0)
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 1})
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def done(sent: float, error: object, _message: object) -> None:
        now = time.monotonic()
        if error is not None:
            told.failed.append(str(error))
        else:
            told.acks.append((now, now - sent))

    begun, number = time.monotonic(), 0
    while not stop.is_set():
        while due_at(begun, rate_per_s, number) <= 0:
            number += 1
            producer.produce(topic, RECORD, on_delivery=partial(done, time.monotonic()))
            if number % int(rate_per_s) == 0:
                call(told, lambda: admin.list_topics(timeout=30))
        producer.poll(0.001)
    told.failed += ["not delivered"] * producer.flush(TIMEOUT_S)
    return told


def kafka_python(bootstrap: str, topic: str, rate_per_s: float, stop: Event) -> Client:
    told = Client([], [], 0)
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap.split(","), acks="all", linger_ms=1)
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap.split(","))

    def done(sent: float, _metadata: object) -> None:
        now = time.monotonic()
        told.acks.append((now, now - sent))

    begun, number = time.monotonic(), 0
    while not stop.is_set():
        while due_at(begun, rate_per_s, number) <= 0:
            number += 1
            future = producer.send(topic, RECORD)
            future.add_callback(partial(done, time.monotonic()))
            future.add_errback(lambda error: told.failed.append(repr(error)))
            if number % int(rate_per_s) == 0:
                call(told, partial(patiently, admin.list_topics, stop))
        time.sleep(0.001)
    producer.flush(TIMEOUT_S)
    producer.close()
    admin.close()
    return told


def patiently(what: Callable[[], object], stop: Event) -> object:
    """kafka-python's admin client asks for no addresses while it works, and gives up at once where each one that it
    knows refuses a dial. The others look for another broker for as long; so it is asked again."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return what()
        except (kafka.errors.KafkaConnectionError, kafka.errors.NodeNotReadyError):
            if stop.wait(0.2) or time.monotonic() > deadline:
                raise


def aio(bootstrap: str, topic: str, rate_per_s: float, stop: Event) -> Client:
    return asyncio.run(aio_run(bootstrap, topic, rate_per_s, stop))


async def aio_run(bootstrap: str, topic: str, rate_per_s: float, stop: Event) -> Client:
    told = Client([], [], 0)
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=1)
    await producer.start()

    def done(sent: float, future: asyncio.Future[Any]) -> None:
        now = time.monotonic()
        if (error := future.exception()) is not None:
            told.failed.append(repr(error))
        else:
            told.acks.append((now, now - sent))

    begun, number = time.monotonic(), 0
    while not stop.is_set():
        while due_at(begun, rate_per_s, number) <= 0:
            number += 1
            (await producer.send(topic, RECORD)).add_done_callback(partial(done, time.monotonic()))
            if number % int(rate_per_s) == 0:
                told.calls += 1
                try:
                    await producer.partitions_for(topic)
                except Exception as error:
                    told.failed.append(repr(error))
        await asyncio.sleep(0.001)
    await asyncio.wait_for(producer.flush(), TIMEOUT_S)
    await producer.stop()
    return told


def call(told: Client, what: Callable[[], object]) -> None:
    told.calls += 1
    try:
        what()
    except Exception as error:
        told.failed.append(repr(error))


CLIENTS = {"confluent-kafka": confluent, "kafka-python": kafka_python, "aiokafka": aio}


def client_process(name: str, bootstrap: str, topic: str, rate_per_s: float, stop: Event, out: Any) -> None:
    out.send(CLIENTS[name](bootstrap, topic, rate_per_s, stop))


@dataclass
class Load:
    """What all clients found, once they have stopped."""

    clients: dict[str, Client]

    @property
    def acks(self) -> Acks:
        return sorted(ack for client in self.clients.values() for ack in client.acks)

    def p99_ms(self, begin_s: float, end_s: float) -> float:
        took = sorted(t for at, t in self.acks if begin_s <= at < end_s)
        return 1000 * took[int(0.99 * len(took))] if took else float("nan")

    def gap_ms(self, begin_s: float, end_s: float) -> float:
        """The longest time without an ack of one client, the worst of them."""
        return 1000 * max(
            b - a
            for client in self.clients.values()
            for a, b in pairwise([begin_s, *(at for at, _ in client.acks if begin_s <= at < end_s), end_s])
        )


@contextmanager
def load(bootstrap: str, topic: str) -> Iterator[Load]:
    """All clients at work; what they found is there after it."""
    context = multiprocessing.get_context("spawn")
    stop, found = context.Event(), Load({})
    started = {}
    for name in CLIENTS:
        mine, theirs = context.Pipe(duplex=False)
        words = (name, bootstrap, topic, RATE_PER_S / len(CLIENTS), stop, theirs)
        process = context.Process(target=client_process, args=words)
        process.start()
        started[name] = (process, mine)
    try:
        yield found
    finally:
        stop.set()
        for name, (process, mine) in started.items():
            if mine.poll(2 * TIMEOUT_S):
                found.clients[name] = mine.recv()
            process.join(TIMEOUT_S)


# --- systems -------------------------------------------------------------------------------------


class System(Protocol):
    """What is changed."""

    @property
    def name(self) -> str: ...

    @property
    def bootstrap(self) -> str: ...

    @property
    def kinds(self) -> tuple[str, ...]: ...

    def change(self, kind: str, throttle: str) -> None:
        """Returns when it is complete."""

    def settle(self, kind: str) -> None:
        """What has to be so before the next one."""


class Penstock:
    name = "penstock"
    kinds: tuple[str, ...] = ("drain", "rebalance", "factor", "rolling-restart")

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.bootstrap: str = cluster.bootstrap

    def change(self, kind: str, throttle: str) -> None:
        words = {
            "drain": ("node", "drain", str(NODES)),
            "rebalance": ("cluster", "rebalance"),
            "factor": ("topic", "set-replication-factor", "thin", "3"),
            "rolling-restart": ("cluster", "rolling-restart", "--dir", str(self._cluster.directory)),
        }[kind]
        moves = kind != "rolling-restart"
        here = ("--gateway", self._cluster.gateway, "--wait", "1200", "--throttle", throttle) if moves else ()
        penstock(*words, *here, "--yes")

    def settle(self, kind: str) -> None:
        """After a drain the node takes part again, empty: so that there is something to rebalance."""
        if kind == "drain":
            words = ("node", "uncordon", str(NODES), "--yes", "--wait", "60")
            penstock(*words, "--gateway", self._cluster.gateway)


class Kafka:
    name = "kafka"
    kinds: tuple[str, ...] = ("drain", "factor")

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self.bootstrap: str = cluster.bootstrap

    def change(self, kind: str, throttle: str) -> None:
        """The tool's own words, and the end is when every replica is where it was told, and in sync."""
        wanted = self._wanted(kind)
        rows = [{"topic": t, "partition": p, "replicas": nodes} for (t, p), nodes in wanted.items()]
        file = self._cluster.folder / f"{kind}.json"
        file.write_text(json.dumps({"version": 1, "partitions": rows}))
        rate_bytes_per_s = parse_throttle(throttle)
        rate = () if rate_bytes_per_s is None else ("--throttle", str(rate_bytes_per_s))
        self._tool("--execute", *rate, file=file)
        deadline = time.monotonic() + 1200
        while time.monotonic() < deadline:
            now = self._partitions()
            if all(
                list(now[key].replicas) == nodes and len(now[key].isrs) == len(nodes)
                for key, nodes in wanted.items()
            ):
                # Takes the throttle off.
                self._tool("--verify", file=file)
                return
            time.sleep(0.2)
        raise SystemExit("Kafka's moves do not end")

    def settle(self, kind: str) -> None:
        pass

    def _wanted(self, kind: str) -> dict[tuple[str, int], list[int]]:
        now = self._partitions()
        held = Counter(n for p in now.values() for n in p.replicas)
        wanted = {}
        for key, found in sorted(now.items()):
            nodes = list(found.replicas)
            others = [n for n in range(1, NODES) if n not in nodes]
            if kind == "drain" and NODES in nodes:
                new = min(others, key=lambda n: (held[n], n))
                wanted[key] = [new if n == NODES else n for n in nodes]
                held[new] += 1
            elif kind == "factor" and key[0] == "thin":
                new_ones = sorted(others, key=lambda n: (held[n], n))[: 3 - len(nodes)]
                wanted[key] = [*nodes, *new_ones]
                held.update(new_ones)
        return wanted

    def _partitions(self) -> dict[tuple[str, int], Any]:
        topics = AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(timeout=30).topics
        return {(str(t.topic), number): p for t in topics.values() for number, p in t.partitions.items()}

    def _tool(self, *words: str, file: Path) -> None:
        main_class = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
        command = ["java", "-Xmx128m", "-cp", f"{self._cluster.jars}/*", main_class, *words]
        command += ["--bootstrap-server", self.bootstrap, "--reassignment-json-file", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"kafka-reassign-partitions: {done.stdout}{done.stderr}")


@contextmanager
def penstock_cluster(folder: Path) -> Iterator[Penstock]:
    words = ("--nodes", str(NODES), "--gateways", "2", "--port", "26700")
    penstock("local", "up", "--dir", str(folder), *words)
    cluster = LocalCluster(folder)
    try:
        yield Penstock(cluster)
    finally:
        cluster.down()


@contextmanager
def kafka_cluster(folder: Path) -> Iterator[Kafka]:
    cluster = KafkaCluster(folder, NODES, 26800)
    try:
        cluster.start()
        yield Kafka(cluster)
    finally:
        cluster.stop()


# --- figures -------------------------------------------------------------------------------------


@dataclass
class Row:
    """One change on one system."""

    system: str
    kind: str
    took_s: float
    p99_before_ms: float
    p99_meanwhile_ms: float
    longest_gap_ms: float
    failed: dict[str, int]
    acked: int
    calls: int

    @property
    def p99_ratio(self) -> float:
        return self.p99_meanwhile_ms / self.p99_before_ms


def measure(system: System, megabytes: int, throttle: str, kinds: set[str]) -> list[Row]:
    admin = AdminClient({"bootstrap.servers": system.bootstrap})
    topics = [
        NewTopic("full", PARTITIONS, 3), NewTopic("live", 6, 3), NewTopic("thin", 6, 1)
    ]  # fmt: skip
    for made in admin.create_topics(topics, operation_timeout=TIMEOUT_S, request_timeout=TIMEOUT_S).values():
        made.result(TIMEOUT_S)
    fill(system.bootstrap, "full", megabytes)
    fill(system.bootstrap, "thin", megabytes // 4, partitions=6)
    rows = []
    for kind in system.kinds:
        if kind not in kinds:
            continue
        with load(system.bootstrap, "thin" if kind == "factor" else "live") as found:
            time.sleep(WARM_S + BEFORE_S)
            began = time.monotonic()
            system.change(kind, throttle)
            ended = time.monotonic()
            time.sleep(1)
        rows.append(
            Row(
                system.name,
                kind,
                ended - began,
                found.p99_ms(began - BEFORE_S, began),
                found.p99_ms(began, ended),
                found.gap_ms(began, ended),
                {name: len(client.failed) for name, client in found.clients.items()},
                len(found.acks),
                sum(client.calls for client in found.clients.values()),
            )
        )
        for name, client in found.clients.items():
            for text, count in Counter(client.failed).most_common(3):
                print(f"{system.name} {kind}: {name}: {count} times {text}", file=sys.stderr)
        missing = set(CLIENTS) - set(found.clients)
        if missing:
            raise SystemExit(f"{kind}: no answer of {', '.join(sorted(missing))}")
        print(json.dumps(asdict(rows[-1])), file=sys.stderr, flush=True)
        system.settle(kind)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=400, help="of the topic that moves; thin: a quarter")
    parser.add_argument("--throttle", default="auto", help="auto, or a rate; Kafka: auto is none")
    parser.add_argument("--kafka", action="store_true", help="Apache Kafka too (drain, factor)")
    parser.add_argument("--only", nargs="+", default=list(Penstock.kinds), metavar="KIND")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    rows: list[Row] = []
    systems: list[Callable[[Path], AbstractContextManager[System]]] = [
        penstock_cluster,
        *([kafka_cluster] if given.kafka else []),
    ]
    for make in systems:
        with (
            tempfile.TemporaryDirectory(prefix="penstock-operations-") as directory,
            make(Path(directory)) as system,
        ):
            rows += measure(system, given.megabytes, given.throttle, set(given.only))
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows]))
    table = Table(
        "system", "change", "s", "p99 before, ms", "meanwhile", "ratio", "longest gap, ms", "acked", "failed",
        title=f"{RATE_PER_S:,} records of 1 KiB a second, three clients; {given.megabytes} MB, {given.throttle}",
    )  # fmt: skip
    for row in rows:
        figures = (row.took_s, row.p99_before_ms, row.p99_meanwhile_ms, row.p99_ratio, row.longest_gap_ms)
        failed = sum(row.failed.values())
        cells = (*(f"{value:,.1f}" for value in figures), f"{row.acked:,}", f"{failed}")
        table.add_row(row.system, row.kind, *cells)
    Console().print(table)
    ours = [row for row in rows if row.system == Penstock.name]
    return 1 if any(sum(row.failed.values()) for row in ours) else 0


if __name__ == "__main__":
    sys.exit(main())
