"""The one-address idea, with nothing but the kernel: a network that reaches only the gateway's address.

The cluster runs on this host's loopback; its gateway also listens on one end of a veth
pair. From a network namespace at the other end, where no other address of the cluster
exists, a stock Kafka client and a Spark job produce and read everything.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock.local import ports
from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster
from support.kafka import check_nothing_lost, create_topic, produce, read_all
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None,
        reason="network namespaces need root and the ip command (Debian: apt-get install iproute2)",
    ),
]

INSIDE_KAFKA = """
import json, sys
from support.kafka import check_nothing_lost, describe, produce, read_all
bootstrap, topic = sys.argv[1:]
ledger = produce(bootstrap, topic, 5000)
records = read_all(bootstrap, topic)
check_nothing_lost(ledger, records)
print(json.dumps({"read": len(records), "leaders": len({p.leader for p in describe(bootstrap, topic).values()})}))
"""

INSIDE_SPARK = """
import json, sys
from pyspark.sql import SparkSession
gateway, topic = sys.argv[1:]
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
rows = spark.read.format("penstock").option("gateway", gateway).option("subscribe", topic).load()
print(json.dumps({"count": rows.count()}))
spark.stop()
"""


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


class Island:
    """A network namespace joined to this host by one veth pair, and by nothing else."""

    def __init__(self) -> None:
        number = random.SystemRandom().randrange(1, 250)
        self.name = f"penstock-island-{number}"
        self.outside = f"pnk{number}a"
        self._inside = f"pnk{number}b"
        # RFC 2544's test range: no real network uses it.
        self.host_address, self._own_address = f"198.18.{number}.1", f"198.18.{number}.2"

    def make(self) -> None:
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", self.outside, "type", "veth", "peer", "name", self._inside)
        run("ip", "link", "set", self._inside, "netns", self.name)
        run("ip", "addr", "add", f"{self.host_address}/30", "dev", self.outside)
        run("ip", "link", "set", self.outside, "up")
        run("ip", "-n", self.name, "addr", "add", f"{self._own_address}/30", "dev", self._inside)
        run("ip", "-n", self.name, "link", "set", self._inside, "up")
        run("ip", "-n", self.name, "link", "set", "lo", "up")

    def remove(self) -> None:
        for command in (["ip", "link", "del", self.outside], ["ip", "netns", "del", self.name]):
            with suppress(subprocess.CalledProcessError):
                run(*command)

    def python(self, code: str, *arguments: str) -> dict[str, int]:
        environment = dict(os.environ) | {
            "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
            "PYSPARK_PYTHON": sys.executable,
        }
        done = subprocess.run(
            ["ip", "netns", "exec", self.name, sys.executable, "-c", code, *arguments],
            capture_output=True, text=True, env=environment, timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        told: dict[str, int] = json.loads(done.stdout.strip().splitlines()[-1])
        return told


@pytest.fixture
def island() -> Iterator[Island]:
    made = Island()
    try:
        made.make()
        yield made
    finally:
        made.remove()


@contextmanager
def gateway_on(address: str, cluster: LocalCluster, log: Path) -> Iterator[tuple[str, str]]:
    """One more gateway of the cluster, listening only on `address`; yields its Kafka and gRPC addresses."""
    kafka_port, grpc_port = ports.choose_free(2, set())
    # A listener name of its own: gateways name one another to clients of the same listener,
    # and clients of this host's loopback must not be sent to the island's address.
    listener = {"name": "ISLAND", "bind": f"{address}:{kafka_port}", "mode": "proxy"}
    controllers = ",".join(f"127.0.0.1:{c.ports['grpc']}" for c in cluster.state.of_role("controller"))
    command = [
        *(sys.executable, "-m", "penstock_gateway", "--gateway-id", "island"),
        *("--controllers", controllers, "--listeners", json.dumps([listener])),
        *("--grpc-bind", f"{address}:{grpc_port}", "--http-bind", "127.0.0.1:0"),
        *("--allow-insecure-bind", "true"),
    ]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        bootstrap = f"{address}:{kafka_port}"
        wait_for(lambda: process.poll() is not None or answers(bootstrap), "the island's gateway answers")
        assert process.poll() is None, log.read_text()[-2000:]
        yield bootstrap, f"{address}:{grpc_port}"
    finally:
        process.terminate()
        assert process.wait(120) == 0


def answers(bootstrap: str) -> bool:
    host, _, port = bootstrap.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False


def test_client_and_spark_see_only_the_gateway(tmp_path: Path, island: Island) -> None:
    with (
        running_cluster(tmp_path, steady=True) as cluster,
        gateway_on(island.host_address, cluster, tmp_path / "island.log") as (bootstrap, grpc_address),
    ):
        create_topic(cluster.bootstrap, "island", 6, 3)
        inside = island.python(INSIDE_KAFKA, bootstrap, "island")
        assert inside == {"read": 5000, "leaders": 3}, "every leader was reached through the one address"
        # Clients of this host go on with the address that they know.
        ledger = produce(cluster.bootstrap, "island", 1000, first=5000)
        check_nothing_lost(ledger, read_all(cluster.bootstrap, "island"))
        counted = island.python(INSIDE_SPARK, grpc_address, "island")
        assert counted == {"count": 6000}
