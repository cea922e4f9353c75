"""The command given a right address of the wrong kind, and receipts where no gateway is named."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from penstock.errors import ExitCode
from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster
from support.kafka import create_topic


def penstock(*words: str, expect: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == expect, (words, done)
    assert done.stderr.count("\n") <= 1
    return done


def ports_of(cluster: LocalCluster, name: str) -> dict[str, str]:
    return {use: f"127.0.0.1:{port}" for use, port in cluster.state.member(name).ports.items()}


@pytest.mark.parametrize(
    ("name", "use", "kind"),
    [
        ("gateway-1", "grpc", "this is a gRPC port"),
        ("gateway-1", "http", "this is an HTTP port"),
        ("controller-1", "grpc", "this is a gRPC port"),
        ("controller-1", "raft", "closes connections at once"),
    ],
)
def test_a_bootstrap_that_is_no_kafka_port_is_told_what_it_is(
    shared_cluster: LocalCluster, name: str, use: str, kind: str
) -> None:
    address = ports_of(shared_cluster, name)[use]
    for words in (["topic", "list"], ["config", "describe", "cluster"]):
        assert f"{address}: {kind}" in penstock(*words, "-b", address, expect=ExitCode.UNREACHABLE).stderr


@pytest.mark.parametrize(
    ("name", "use", "kind"),
    [
        ("gateway-1", "kafka", "this is a Kafka port"),
        ("controller-1", "grpc", "this is the gRPC port of another role"),
        ("controller-1", "raft", "closes connections at once"),
    ],
)
def test_a_gateway_that_is_none_is_told_what_it_is(
    shared_cluster: LocalCluster, name: str, use: str, kind: str
) -> None:
    address = ports_of(shared_cluster, name)[use]
    told = penstock("produce", "x", "--receipt", "--gateway", address, expect=ExitCode.UNREACHABLE)
    assert f"{address}: {kind}" in told.stderr


@pytest.mark.parametrize(
    ("name", "use", "kind"),
    [
        ("gateway-1", "kafka", "this is a Kafka port"),
        ("gateway-1", "grpc", "a gRPC server that is no controller"),
    ],
)
def test_a_controller_that_is_none_is_told_what_it_is(
    shared_cluster: LocalCluster, name: str, use: str, kind: str
) -> None:
    address = ports_of(shared_cluster, name)[use]
    told = penstock("controller", "list", "--controllers", address, expect=ExitCode.UNREACHABLE)
    assert f"{address}: {kind}" in told.stderr


@pytest.mark.parametrize("listener", ["bootstrap", "direct_bootstrap"])
def test_receipts_come_by_a_gateway_of_the_cluster_at_bootstrap(
    shared_cluster: LocalCluster, listener: str, tmp_path: Path
) -> None:
    topic = f"found-{uuid.uuid4().hex[:8]}"
    create_topic(shared_cluster.bootstrap, topic)
    words = ["produce", topic, "--receipt", "--dir", str(tmp_path)]
    told = penstock(*words, "-b", getattr(shared_cluster, listener), stdin="one\n").stdout
    assert told.startswith(f"{topic}-0 offset 0, leader epoch ")


def test_a_cluster_in_dir_is_talked_to_where_nobody_names_an_address(shared_cluster: LocalCluster) -> None:
    topic = f"found-{uuid.uuid4().hex[:8]}"
    here = ["--dir", str(shared_cluster.directory)]
    penstock("topic", "create", topic, *here)
    assert topic in penstock("topic", "list", *here).stdout
    penstock("produce", topic, *here, stdin="one\ntwo\n")
    assert penstock("consume", topic, "--until-end", *here).stdout == "one\ntwo\n"


def test_receipts_never_come_from_another_cluster_than_the_one_named(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    """The gateway of the local cluster in --dir runs, and is not of the cluster at --bootstrap."""
    with running_cluster(tmp_path / "other", controllers=1, nodes=1) as other:
        create_topic(other.bootstrap, "t")
        create_topic(shared_cluster.bootstrap, topic := f"found-{uuid.uuid4().hex[:8]}")
        words = ["produce", topic, "--receipt", "--dir", str(other.directory)]
        told = penstock(*words, "-b", shared_cluster.bootstrap, stdin="one\n").stdout
        assert told.startswith(f"{topic}-0 offset 0, ")
        # And with nothing named it is the local cluster's.
        told = penstock("produce", "t", "--receipt", "--dir", str(other.directory), stdin="one\n").stdout
        assert told.startswith("t-0 offset 0, ")


def test_a_receipt_for_a_topic_that_is_not_there_names_the_mend(shared_cluster: LocalCluster) -> None:
    gateway = shared_cluster.gateway.split(",")[0]
    told = penstock("produce", "nope", "--receipt", "--gateway", gateway, stdin="one\n", expect=1)
    assert "penstock topic create nope" in told.stderr
