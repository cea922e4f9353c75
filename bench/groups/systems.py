"""The clusters that group benchmarks run on, and what their processes use, from /proc.

CPU times are of all threads of a process, user and system. RSS is what the kernel counts as
resident, shared pages included.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from bench.peer import KafkaCluster
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.local import ports
from penstock.local.cluster import LocalCluster
from penstock.local.plan import ClusterSpec

NODES: Final = 3
START_TIMEOUT_S: Final = 90
INITIAL_DELAY_MS: Final = 500
"""group.initial.rebalance.delay.ms: shorter than the default, so that groups form sooner."""


@dataclass
class System:
    """A running cluster. `bootstraps` by way in; `processes` by name, nodes as node-<id>."""

    name: str
    bootstraps: Mapping[str, str]
    processes: Mapping[str, psutil.Process]

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds used since the start, by process."""
        times = {name: process.cpu_times() for name, process in self.processes.items()}
        return {name: t.user + t.system for name, t in times.items()}

    def rss_mb(self) -> dict[str, float]:
        """Resident memory in MB (10^6 bytes), by process."""
        return {name: process.memory_info().rss / 1e6 for name, process in self.processes.items()}


@contextmanager
def penstock_system(folder: Path) -> Iterator[System]:
    """Three controllers, three storage nodes, one gateway, with the defaults of `penstock local`."""
    cluster = LocalCluster(folder / "penstock")
    # Thousands of members come from one address here.
    capped = ("connections_max", "connections_per_address_max")
    paced = ("new_connections_per_address_per_s", "new_connections_per_address_burst")
    caps = dict.fromkeys((*capped, *paced), "100000")
    settings = {
        "storage-node": {"group_initial_rebalance_delay_ms": str(INITIAL_DELAY_MS), **caps},
        "gateway": caps,
    }
    try:
        cluster.up(ClusterSpec(nodes=NODES, port=ports.choose_base(), settings=settings), START_TIMEOUT_S)
        processes = {row.name: psutil.Process(row.pid) for row in cluster.state.processes if row.pid}
        yield System("penstock", {"proxy": cluster.bootstrap, "direct": cluster.direct_bootstrap}, processes)
    finally:
        if cluster.store.exists():
            cluster.destroy()


@contextmanager
def kafka_system(folder: Path) -> Iterator[System]:
    """Three combined brokers of Apache Kafka."""
    settings = {"group.initial.rebalance.delay.ms": str(INITIAL_DELAY_MS)}
    first_port = ports.choose_base()
    cluster = KafkaCluster(folder / "kafka", NODES, first_port, heap="512M", settings=settings)
    try:
        cluster.start()
        processes = {f"node-{index + 1}": process for index, process in enumerate(cluster.processes)}
        yield System("kafka", {"direct": cluster.bootstrap}, processes)
    finally:
        cluster.stop()


SYSTEMS: Final = {"penstock": penstock_system, "kafka": kafka_system}


def create_topic(bootstrap: str, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
    """Create a topic of replication factor 3 and wait until every partition has a leader."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + START_TIMEOUT_S
    topic = NewTopic(name, partitions, NODES, config=dict(config or {}))
    while True:
        try:
            admin.create_topics([topic], request_timeout=20)[name].result(30)
            break
        except KafkaException as error:
            if "TOPIC_ALREADY_EXISTS" in str(error):
                break
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    while time.monotonic() < deadline:
        try:
            found = admin.list_topics(name, timeout=10).topics[name].partitions
        except KafkaException:
            found = {}
        if len(found) == partitions and all(p.leader >= 0 for p in found.values()):
            return
        time.sleep(0.2)
    raise SystemExit(f"{partitions} partitions of {name} have no leaders after {START_TIMEOUT_S} s")


def settle_disk() -> None:
    """What earlier runs wrote shall not be written back during the next."""
    subprocess.run(["sync"], check=True)
