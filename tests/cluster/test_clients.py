"""Stock Kafka clients work unchanged: through the gateway's one address and straight to the leaders."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.local.cluster import LocalCluster
from support.clients import CLIENTS, CREATORS, READERS, WRITERS
from support.cluster import running_cluster
from support.kafka import check_nothing_lost, create_topic, describe, produce, read_all

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("clients"), steady=True) as running:
        yield running


@pytest.fixture(params=["proxy", "direct"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def address(cluster: LocalCluster, mode: str) -> str:
    return cluster.bootstrap if mode == "proxy" else cluster.direct_bootstrap


@pytest.mark.parametrize("client", CLIENTS)
def test_create_produce_read(cluster: LocalCluster, client: str, mode: str) -> None:
    bootstrap, topic = address(cluster, mode), f"round-trip-{client}-{mode}"
    CREATORS[client](bootstrap, topic, 4)
    with WRITERS[client](bootstrap, topic) as writer:
        writer.wait_for_acks(300)
    values = READERS[client](bootstrap, topic)
    assert sorted(values) == sorted(writer.ledger.values.values())


def test_what_one_mode_writes_the_other_reads(cluster: LocalCluster) -> None:
    create_topic(cluster.bootstrap, "crossed", 3)
    with WRITERS["confluent-kafka"](cluster.direct_bootstrap, "crossed") as writer:
        writer.wait_for_acks(100)
    for client in CLIENTS:
        assert sorted(READERS[client](cluster.bootstrap, "crossed")) == sorted(writer.ledger.values.values())


def test_metadata_tells_the_real_cluster_by_the_gateways_address(cluster: LocalCluster) -> None:
    """Same node ids, leaders and ISR on both listeners; only the addresses differ."""
    create_topic(cluster.bootstrap, "told", 6)
    proxied, direct = (describe(where, "told") for where in (cluster.bootstrap, cluster.direct_bootstrap))
    for number, partition in proxied.items():
        other = direct[number]
        assert (partition.leader, partition.replicas, sorted(partition.isrs)) == (
            other.leader, other.replicas, sorted(other.isrs),
        )  # fmt: skip
    leaders = [partition.leader for partition in proxied.values()]
    assert {leaders.count(node) for node in (1, 2, 3)} == {2}, "six leaders spread evenly over three nodes"


def run_kcat(*arguments: str, text: str = "") -> str:
    done = subprocess.run(
        ["kcat", *arguments], input=text, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed: apt-get install kcat")
def test_kcat_needs_nothing_but_the_address(cluster: LocalCluster) -> None:
    create_topic(cluster.bootstrap, "kcat", 2)
    listed = run_kcat("-b", cluster.bootstrap, "-L")
    assert "3 brokers" in listed
    assert 'topic "kcat" with 2 partitions' in listed
    port = cluster.bootstrap.rpartition(":")[2]
    brokers = [line for line in listed.splitlines() if line.strip().startswith("broker ")]
    assert len(brokers) == 3
    assert all(f"127.0.0.1:{port}" in line for line in brokers), "every address is the gateway's own"
    lines = "".join(f"line {n}\n" for n in range(500))
    run_kcat("-b", cluster.bootstrap, "-P", "-t", "kcat", "-p", "1", text=lines)
    read = run_kcat("-b", cluster.bootstrap, "-C", "-t", "kcat", "-p", "1", "-o", "beginning", "-e", "-q")
    assert read == lines


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression(cluster: LocalCluster, codec: str, mode: str) -> None:
    bootstrap, topic = address(cluster, mode), f"codec-{codec}-{mode}"
    create_topic(bootstrap, topic, 2)
    compression: dict[str, Any] = {"compression.type": codec, "linger.ms": 50}
    ledger = produce(bootstrap, topic, 2_000, value_bytes=200, **compression)
    check_nothing_lost(ledger, read_all(bootstrap, topic))
