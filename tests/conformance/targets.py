"""The clusters that scenarios run against: Apache Kafka, and Penstock by its two listeners.

A `Worlds` starts what is asked for, once, and ends it all. Kafka and Penstock of one world have the same
settings as far as both have them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from bench.peer import KafkaCluster
from pydantic import BaseModel

from conformance.secure_world import Doors, secure_kafka, secure_penstock
from conformance.wire import Closed, brokers_known, coordinator_known
from penstock_controller.settings import ControllerSettings
from penstock_gateway.settings import GatewaySettings
from penstock_storage_node.settings import StorageNodeSettings
from support.cluster import running_cluster
from support.kafka_tools import ports_in_a_row

KAFKA = "kafka"
PROXY = "penstock-proxy"
DIRECT = "penstock-direct"
TARGETS = (PROXY, DIRECT, KAFKA)
PLAIN = "plain"
AUTO_CREATE = "auto-create"
SECURE = "secure"
NODES = {PLAIN: 3, AUTO_CREATE: 1, SECURE: 1}
READY_TIMEOUT_S = 240.0

KAFKA_SETTINGS = {
    "group.initial.rebalance.delay.ms": "300",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.cleaner.backoff.ms": "1000",
}
PENSTOCK_SETTINGS = {
    "storage-node": {
        "group_initial_rebalance_delay_ms": "300",
        "group_consumer_heartbeat_interval_ms": "500",
        "group_consumer_session_timeout_ms": "6000",
        "compaction_interval_ms": "1000",
    }
}
AUTO_CREATE_SETTING = "auto_create_topics"
"""Of whichever roles have it."""


class NotThere(Exception):
    """A target cannot be started."""


class Worlds:
    """Clusters by world; thread-safe."""

    def __init__(self, folder: Path, running: Mapping[str, str] | None = None) -> None:
        """`running` has addresses of clusters that others have started and will end."""
        self.doors: dict[str, Doors] = {}
        """Of the targets of world SECURE, by their addresses."""
        self._folder = folder
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self._addresses: dict[tuple[str, str], str | NotThere] = {
            (target, PLAIN): address for target, address in (running or {}).items()
        }

    def __enter__(self) -> Worlds:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def address(self, target: str, world: str = PLAIN) -> str:
        """Bootstrap address of a target that is ready. Raises NotThere."""
        kind = KAFKA if target == KAFKA else "penstock"
        with self._lock:
            lock = self._locks.setdefault((kind, world), threading.Lock())
        with lock:
            if (target, world) not in self._addresses:
                starter: Callable[[str], dict[str, str]] = self._kafka if kind == KAFKA else self._penstock
                if world == SECURE:
                    starter = self._secure_kafka if kind == KAFKA else self._secure_penstock
                try:
                    found: dict[str, str | NotThere] = dict(starter(world))
                except NotThere as error:
                    found = {target: error}
                for name, address in found.items():
                    self._addresses[(name, world)] = address
        address = self._addresses[(target, world)]
        if isinstance(address, NotThere):
            raise address
        return address

    def _kafka(self, world: str) -> dict[str, str]:
        count = NODES[world]
        settings = dict(KAFKA_SETTINGS)
        if world == AUTO_CREATE:
            settings |= {
                "auto.create.topics.enable": "true",
                "default.replication.factor": "1",
                "min.insync.replicas": "1",
                "num.partitions": "2",
                "transaction.state.log.replication.factor": "1",
                "transaction.state.log.min.isr": "1",
            }
        port = ports_in_a_row(3 * count)
        cluster = KafkaCluster(
            self._folder / f"kafka-{world}", count, first_port=port, heap="512M", settings=settings
        )
        self._stack.callback(cluster.stop)
        cluster.start()
        try:
            _wait_until_ready(cluster.bootstrap, count)
        except NotThere as error:
            raise NotThere(f"{error}; {cluster.last_words()}") from None
        return {KAFKA: cluster.bootstrap}

    def _penstock(self, world: str) -> dict[str, str]:
        settings = {role: dict(values) for role, values in PENSTOCK_SETTINGS.items()}
        if world == AUTO_CREATE:
            roles: dict[str, type[BaseModel]] = {
                "controller": ControllerSettings,
                "gateway": GatewaySettings,
                "storage-node": StorageNodeSettings,
            }
            takers = [role for role, kind in roles.items() if AUTO_CREATE_SETTING in kind.model_fields]
            if not takers:
                raise NotThere(f"Penstock has no setting {AUTO_CREATE_SETTING}")
            for role in takers:
                settings.setdefault(role, {})[AUTO_CREATE_SETTING] = "true"
            settings.setdefault("controller", {})["default_partition_count"] = "2"
        count = NODES[world]
        cluster = self._stack.enter_context(
            running_cluster(
                self._folder / f"penstock-{world}",
                controllers=count,
                nodes=count,
                settings=settings,
                steady=True,  # a scenario by hand asks the node that leads, and once
            )
        )
        _wait_until_ready(cluster.bootstrap, count)
        return {PROXY: cluster.bootstrap, DIRECT: cluster.direct_bootstrap}

    def _secure_kafka(self, world: str) -> dict[str, str]:
        cluster, doors = self._stack.enter_context(secure_kafka(self._folder / f"kafka-{world}"))
        try:
            _wait_until_ready(doors.plain, NODES[world])
        except NotThere as error:
            raise NotThere(f"{error}; {cluster.last_words()}") from None
        return self._found({KAFKA: doors})

    def _secure_penstock(self, world: str) -> dict[str, str]:
        started = self._stack.enter_context(secure_penstock(self._folder / f"penstock-{world}"))
        _, proxy, direct = started
        for doors in (proxy, direct):
            _wait_until_ready(doors.plain, NODES[world])
        return self._found({PROXY: proxy, DIRECT: direct})

    def _found(self, doors: dict[str, Doors]) -> dict[str, str]:
        self.doors |= {each.plain: each for each in doors.values()}
        return {target: each.plain for target, each in doors.items()}


def _wait_until_ready(bootstrap: str, count: int) -> None:
    """Until all nodes are known, and groups have a coordinator."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        with contextlib.suppress(OSError, Closed):  # nodes that start answer late, or not at all
            if brokers_known(bootstrap) == count and coordinator_known(bootstrap, "nobody"):
                return
        if time.monotonic() > deadline:
            raise NotThere(f"{bootstrap} was not ready within {READY_TIMEOUT_S:.0f} s")
        time.sleep(0.2)
