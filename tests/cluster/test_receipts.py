"""Receipts and durability through a real cluster: command, gateway, leader, followers' disks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from penstock.local.cluster import LocalCluster
from penstock.receipts import BatchReceipt, produce_with_receipts
from penstock_core.errors import ErrorCode
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import controller_pb2_grpc


def penstock(cluster: LocalCluster, *arguments: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *arguments, "--bootstrap", cluster.bootstrap],
        input=stdin,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture
def new_topic(shared_cluster: LocalCluster) -> Callable[[str], str]:
    def create(durability: str) -> str:
        name = f"receipt-{uuid.uuid4().hex[:8]}"
        penstock(
            shared_cluster, "topic", "create", name, "-p", "1", "-c", f"penstock.durability={durability}"
        )
        return name

    return create


def produce(cluster: LocalCluster, topic: str, value: bytes, *, acks: int = -1) -> BatchReceipt:
    gateway = cluster.gateway.split(",")[0]
    [receipt] = produce_with_receipts(gateway, topic, 0, [(None, value)], acks=acks)
    return receipt


def eventually(
    produce_once: Callable[[], BatchReceipt], wanted: Callable[[BatchReceipt], bool]
) -> BatchReceipt:
    """Another record until its receipt is as wanted: the ISR of a young topic may not be whole yet."""
    deadline_s = time.monotonic() + 180
    while True:
        got = produce_once()
        if wanted(got):
            return got
        assert time.monotonic() < deadline_s, got


def alter(cluster: LocalCluster, topic: str, durability: str) -> None:
    change = api.ConfigChange(key="penstock.durability", value=durability)
    resource = api.ConfigResource(resource_type="topic", resource_name=topic, changes=[change])
    deadline_s = time.monotonic() + 180
    while True:
        for controller in cluster.state.of_role("controller"):
            with grpc.insecure_channel(f"127.0.0.1:{controller.ports['grpc']}") as channel:
                stub: Any = controller_pb2_grpc.ControllerStub(channel)
                try:
                    answer = stub.AlterConfigs(api.AlterConfigsRequest(resources=[resource]), timeout=10)
                except grpc.RpcError:
                    continue  # not the active one
                if not answer.error.code and [r.code for r in answer.results] == [ErrorCode.NONE]:
                    return
        assert time.monotonic() < deadline_s, "no controller took the change"


def test_acks_all_in_fsync_mode_is_on_every_isr_disk(
    shared_cluster: LocalCluster, new_topic: Callable[[str], str]
) -> None:
    topic = new_topic("fsync")
    first = produce(shared_cluster, topic, b"x")
    assert first.held_by == first.flushed_by
    assert len(first.flushed_by) >= 2  # min.insync.replicas
    got = eventually(
        lambda: produce(shared_cluster, topic, b"x"), lambda r: r.flushed_by == r.held_by == (1, 2, 3)
    )
    assert got.base_offset > first.base_offset
    assert got.leader_epoch >= 0
    one = produce(shared_cluster, topic, b"x", acks=1)
    assert one.flushed_by  # the leader's at least
    assert set(one.flushed_by) <= set(one.held_by)


def test_a_switch_of_durability_shows_in_the_receipts(
    shared_cluster: LocalCluster, new_topic: Callable[[str], str]
) -> None:
    topic = new_topic("replicated")
    got = eventually(lambda: produce(shared_cluster, topic, b"x"), lambda r: r.held_by == (1, 2, 3))
    assert set(got.flushed_by) < {1, 2, 3}  # the periodic flush comes once a minute
    alter(shared_cluster, topic, "fsync")
    eventually(lambda: produce(shared_cluster, topic, b"x"), lambda r: r.flushed_by == (1, 2, 3))
    assert produce(shared_cluster, topic, b"x").flushed_by == (1, 2, 3)
    alter(shared_cluster, topic, "replicated")
    eventually(lambda: produce(shared_cluster, topic, b"x"), lambda r: len(r.flushed_by) < len(r.held_by))


def test_the_command_prints_receipts(shared_cluster: LocalCluster, new_topic: Callable[[str], str]) -> None:
    topic = new_topic("fsync")
    gateway = shared_cluster.gateway.split(",")[0]
    lines = b"".join(b"k%d|v%d\n" % (n, n) for n in range(1_200))
    out = penstock(
        shared_cluster,
        *("produce", topic, "--receipt", "--json", "--gateway", gateway, "--key-separator", "|"),
        stdin=lines,
    )
    receipts = [json.loads(line) for line in out.splitlines()]
    assert [(r["base_offset"], r["records"]) for r in receipts] == [(0, 500), (500, 500), (1000, 200)]
    assert all(r["flushed_by"] == r["held_by"] for r in receipts)
    text = penstock(shared_cluster, "produce", topic, "--receipt", "--gateway", gateway, stdin=b"one\n")
    assert text.decode().startswith(f"{topic}-0 offset 1200, leader epoch ")
    assert ", flushed by " in text.decode()
    values = penstock(shared_cluster, "consume", topic, "-e").splitlines()
    assert values == [*(b"v%d" % n for n in range(1_200)), b"one"]
