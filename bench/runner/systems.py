"""Kafka and Penstock as a visit finds them: started anew on free ports, ended by their process ids.

Both have their defaults, but for limits on connections from one address, which a bench's clients all share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import psutil
from bench.peer import KafkaCluster
from bench.runner.machine import Used, used
from bench.runner.rows import KAFKA_SYSTEM, PENSTOCK_SYSTEM, Layout
from bench.secure import make_door
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from penstock.errors import CommandError
from penstock.local import ports
from penstock.local.cluster import LocalCluster
from penstock.local.plan import ClusterSpec
from penstock_core.process.credentials import load_client_file

START_TIMEOUT_S: Final = 120
ASK_TIMEOUT_S: Final = 60
PARTITIONS_AT_ONCE: Final = 5_000
"""Kafka's controllers take 10,000 records for one operation, and a topic of 10,000 partitions is one more."""
NODES: Final = ("storage-node", "broker", "single")


class SystemFailed(Exception):
    """A system did not start, or does not answer; one line."""


class Processes(Protocol):
    """What is running, by role."""

    def __call__(self) -> list[tuple[str, psutil.Process]]: ...


def _no_node(number: int) -> psutil.Process:
    raise SystemFailed(f"this system has no process for node {number} alone")


@dataclass
class Running:
    """A started system."""

    name: str
    bootstraps: Mapping[str, str]
    """By way: direct, gateway."""
    client: Mapping[str, str]
    """librdkafka's settings to come in, without the address."""
    processes: Processes
    data: Path
    begun: float
    """perf_counter's, when its start was asked for."""
    start_again: Callable[[], None]
    """After a kill -9 of all of it."""
    node: Callable[[int], psutil.Process] = _no_node
    """The process of a node, by the id that clients know."""
    heal: Callable[[], None] = lambda: None
    """Starts what is dead, so that the next contender of the visit finds all of it."""

    def used(self) -> Used:
        """Of all its processes. Raises SystemFailed when one has ended: figures of the others would be praise."""
        try:
            processes = self.processes()
            dead = [role for role, one in processes if one.status() == psutil.STATUS_ZOMBIE]
        except psutil.NoSuchProcess as error:
            raise SystemFailed(f"{self.name}: process {error.pid} has ended by itself") from None
        if dead:
            raise SystemFailed(f"{self.name}: a {dead[0]} has ended by itself")
        return used(processes)

    def wait_ready(self, nodes: int) -> None:
        """Until clients are told of so many nodes."""
        admin = self.admin()
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with suppress(KafkaException):
                if len(admin.list_topics(timeout=5).brokers) >= nodes:
                    return
            time.sleep(0.05)
        raise SystemFailed(f"{self.name}: {nodes} nodes are not there after {START_TIMEOUT_S} s")

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstraps["direct"], "log_level": 0, **self.client})

    def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> None:
        """Created, and with a leader for each partition. Tries again while a system has just been started."""
        admin = self.admin()
        deadline = time.monotonic() + START_TIMEOUT_S
        at_first = min(partitions, PARTITIONS_AT_ONCE)
        topic = NewTopic(name, at_first, replication_factor, config=dict(config))
        while True:
            # A short wait at first: a request that is sent before the first leader is elected is answered late.
            try:
                admin.create_topics([topic], request_timeout=2 if partitions < 500 else 60)[name].result(70)
                break
            except KafkaException as error:
                told: KafkaError = error.args[0]
                if told.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    break
                if time.monotonic() > deadline:
                    raise SystemFailed(f"{self.name}: topic {name} was not created: {told.str()}") from None
        for total in range(
            at_first + PARTITIONS_AT_ONCE, partitions + PARTITIONS_AT_ONCE, PARTITIONS_AT_ONCE
        ):
            more = NewPartitions(name, min(total, partitions))
            admin.create_partitions([more], request_timeout=60)[name].result(70)
        self.wait_for(name, partitions, replication_factor)

    def wait_for(self, topic: str, partitions: int, in_sync: int) -> None:
        """Until each partition has a leader and so many replicas in sync."""
        admin = self.admin()
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with suppress(KafkaException):
                found = admin.list_topics(topic, timeout=10).topics[topic].partitions
                ready = [one for one in found.values() if one.leader >= 0 and len(one.isrs) >= in_sync]
                if len(ready) == partitions:
                    return
            time.sleep(0.02)
        raise SystemFailed(f"{self.name}: not all partitions of {topic} are ready after {START_TIMEOUT_S} s")

    def one_ack(self, topic: str) -> None:
        """Returns when one record was acknowledged, however often it has to be sent."""
        failed: list[str] = []

        def note(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failed.append(error.str())

        producer = Producer(
            {"bootstrap.servers": self.bootstraps["direct"], "acks": "all", "linger.ms": 0, "log_level": 0,
             "retry.backoff.ms": 20, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, **self.client}
        )  # fmt: skip
        producer.produce(topic, b"first", on_delivery=note)
        if producer.flush(START_TIMEOUT_S) or failed:
            raise SystemFailed(
                f"{self.name}: the first record was not acknowledged: {failed or 'time is up'}"
            )

    def node_rss_mb(self) -> float:
        """Of the largest process that holds partitions."""
        held = self.used().rss_bytes
        return max((size for role in NODES for size in held.get(role, ())), default=0) / 1e6


Opener = Callable[[Path, Layout, bool], AbstractContextManager[Running]]


@contextmanager
def kafka(folder: Path, layout: Layout, secure: bool) -> Iterator[Running]:
    door = make_door(folder / "door") if secure else None
    settings = {"max.connections.per.ip": "100000"}
    nodes = 1 if layout.single else layout.nodes
    cluster = KafkaCluster(folder / "kafka", nodes, _family(nodes), door=door, settings=settings)
    begun = time.perf_counter()

    def start_again() -> None:
        cluster.kill()
        cluster.run()

    try:
        try:
            cluster.start()
        except RuntimeError as error:
            raise SystemFailed(str(error)) from None
        yield Running(
            KAFKA_SYSTEM,
            {"direct": cluster.bootstrap},
            door.client() if door else {},
            lambda: [("broker", psutil.Process(process.pid)) for process in cluster.processes],
            folder / "kafka",
            begun,
            start_again,
            lambda number: psutil.Process(cluster.processes[number - 1].pid),
        )
    finally:
        cluster.stop()


def _family(nodes: int) -> int:
    """The first of three free ports a node, in a row."""
    for _ in range(100):
        first = ports.choose_base()
        if all(ports.is_free(port) for port in range(first, first + 3 * nodes)):
            return first
    raise SystemFailed("no free ports in a row for Kafka: stop some other servers")


_CAPS: Final = dict.fromkeys(
    ("connections_max", "connections_per_address_max", "new_connections_per_address_per_s",
     "new_connections_per_address_burst"),
    "100000",
)  # fmt: skip


@contextmanager
def penstock(folder: Path, layout: Layout, secure: bool) -> Iterator[Running]:
    cluster = LocalCluster(folder / "penstock")
    spec = ClusterSpec(
        controllers=1 if layout.single else layout.controllers,
        nodes=layout.nodes,
        gateways=layout.gateways,
        single=layout.single,
        port=ports.choose_base(),
        secure=secure,
        settings={"storage-node": dict(_CAPS), "gateway": dict(_CAPS)},
    )
    begun = time.perf_counter()

    def processes() -> list[tuple[str, psutil.Process]]:
        return [(row.role, psutil.Process(row.pid)) for row in cluster.state.processes if row.pid]

    def heal() -> None:
        try:
            cluster.start_all(START_TIMEOUT_S)
        except CommandError as error:
            raise SystemFailed(f"penstock: {error}") from None

    def start_again() -> None:
        cluster.kill_several(None)
        cluster.start_all(START_TIMEOUT_S)

    try:
        try:
            cluster.up(spec, START_TIMEOUT_S)
        except CommandError as error:
            raise SystemFailed(f"penstock: {error}") from None
        client: dict[str, str] = {}
        if cluster.client_file is not None:
            client = dict(load_client_file(cluster.client_file).librdkafka())
            client.pop("bootstrap.servers", None)
        yield Running(
            PENSTOCK_SYSTEM,
            {"direct": cluster.direct_bootstrap, "gateway": cluster.bootstrap},
            client,
            processes,
            folder / "penstock",
            begun,
            start_again,
            lambda number: psutil.Process(cluster.state.process(f"node-{number}").pid),
            heal,
        )
    finally:
        if cluster.store.exists():
            cluster.destroy()


SYSTEMS: Final[Mapping[str, Opener]] = {KAFKA_SYSTEM: kafka, PENSTOCK_SYSTEM: penstock}
