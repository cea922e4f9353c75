"""Storage nodes and controllers die under load: no acked record is lost, and they come back whole."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from kafka import KafkaAdminClient

from penstock.local.cluster import LocalCluster
from penstock_proto.v1 import controller_pb2, controller_pb2_grpc
from support.cluster import running_cluster, start_ready
from support.kafka import (
    Load,
    busiest_leader,
    check_nothing_lost,
    create_topic,
    read_all,
    wait_for_full_isr,
)
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.mark.parametrize("mode", ["proxy", "direct"])
def test_leader_killed_under_load(tmp_path: Path, mode: str) -> None:
    with running_cluster(tmp_path) as cluster:
        bootstrap = cluster.bootstrap if mode == "proxy" else cluster.direct_bootstrap
        create_topic(bootstrap, "events", 6, 3, min_insync_replicas="2")
        with Load(bootstrap, "events", rate_per_s=3_000) as load:
            load.wait_for_acks(3_000)
            victim = busiest_leader(bootstrap, "events")
            cluster.kill(victim)
            load.wait_for_acks(3_000)
            cluster.start(victim)
            wait_for_full_isr(bootstrap, "events")
            load.wait_for_acks(1_000)
        print(f"{mode}: longest gap {load.ledger.longest_gap_s():.2f} s, {len(load.ledger.acked)} acked")
        check_nothing_lost(load.ledger, read_all(bootstrap, "events"))


def test_every_node_killed_one_after_another(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        create_topic(cluster.bootstrap, "events", 6, 3)
        with Load(cluster.bootstrap, "events", rate_per_s=2_000) as load:
            for name in ("node-1", "node-2", "node-3"):
                load.wait_for_acks(1_000)
                cluster.kill(name)
                load.wait_for_acks(1_000)
                cluster.start(name)
                wait_for_full_isr(cluster.bootstrap, "events")
        check_nothing_lost(load.ledger, read_all(cluster.bootstrap, "events"))


def test_a_stop_before_registration_does_not_hide_the_kill_before_it(tmp_path: Path) -> None:
    """The controllers would else let the node lead what the kill, or a power cut, took from it."""
    with running_cluster(tmp_path, controllers=1, nodes=1) as cluster:
        create_topic(cluster.bootstrap, "events", 1, 1)
        clean = tmp_path / "node-1" / "data" / ".kafka_cleanshutdown"
        cluster.kill("node-1")
        cluster.kill("controller-1")
        settings = tmp_path / "node-1" / "settings.toml"
        command = [sys.executable, "-P", "-m", "penstock_storage_node", "--config", str(settings)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as node:
            assert node.stderr is not None
            for line in node.stderr:
                if "listening" in line:
                    break
            node.send_signal(signal.SIGTERM)
            node.stderr.read()
        assert node.returncode == 0
        assert not clean.exists()
        start_ready(cluster, "controller-1", "node-1")
        cluster.kill("node-1", signal.SIGTERM, timeout_s=120)
        assert clean.exists()


def test_everything_killed_at_once_comes_back_by_itself(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        create_topic(cluster.bootstrap, "events", 6, 3)
        with Load(cluster.bootstrap, "events", rate_per_s=2_000) as load:
            load.wait_for_acks(2_000)
            names = [process.name for process in cluster.status().processes]
            for name in names:
                cluster.kill(name)
            start_ready(cluster, *names)
            load.wait_for_acks(1_000)
        wait_for_full_isr(cluster.bootstrap, "events")
        check_nothing_lost(load.ledger, read_all(cluster.bootstrap, "events"))


def test_controllers_killed_one_after_another(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        create_topic(cluster.bootstrap, "events", 3, 3)
        with Load(cluster.bootstrap, "events") as load:
            for name in ("controller-1", "controller-2", "controller-3"):
                load.wait_for_acks(1_000)
                cluster.kill(name)
                load.wait_for_acks(1_000)
                # Two of three are a quorum: metadata changes go on.
                create_topic(cluster.bootstrap, f"while-{name}-is-dead", 1)
                cluster.start(name)
        check_nothing_lost(load.ledger, read_all(cluster.bootstrap, "events"))


def test_stopped_node_drains_first(tmp_path: Path) -> None:
    """TERM moves leadership away before the node goes: no record waits for a failure to be noticed."""
    with running_cluster(tmp_path) as cluster:
        create_topic(cluster.bootstrap, "events", 6, 3)
        with Load(cluster.bootstrap, "events") as load:
            load.wait_for_acks(2_000)
            cluster.kill(busiest_leader(cluster.bootstrap, "events"), signal.SIGTERM, timeout_s=120)
            load.wait_for_acks(2_000)
        check_nothing_lost(load.ledger, read_all(cluster.bootstrap, "events"))


def test_nodes_leave_a_controller_that_hangs(tmp_path: Path) -> None:
    """SIGSTOP keeps its connections open: who waits on them is fenced by its successor (found by chaos)."""
    # Sessions longer than a loaded machine holds up a node that does not hang.
    settings = {"controller": {"node_session_timeout_ms": "10000"}}
    with running_cluster(tmp_path, settings=settings) as cluster:
        bootstrap = cluster.bootstrap
        create_topic(bootstrap, "events", 6, 3, min_insync_replicas="2")
        with Load(bootstrap, "events") as load:
            load.wait_for_acks(500)
            hanging = wait_for(lambda: max(active_controller(cluster, {1, 2, 3}), 0), "an active controller")
            cluster.kill(f"controller-{hanging}", signal.SIGSTOP)
            # Its successor counts silence from the same moment for all: with this node it would fence the others.
            cluster.kill("node-3", signal.SIGSTOP)
            others = {1, 2, 3} - {hanging}
            wait_for(lambda: active_controller(cluster, others) in others, "a new active controller")
            wait_for(lambda: 3 not in brokers(bootstrap), "the node that hangs is fenced")
            assert brokers(bootstrap) == {1, 2}
            load.wait_for_acks(500)
            assert brokers(bootstrap) == {1, 2}
            cluster.kill(f"controller-{hanging}", signal.SIGCONT)
            cluster.kill("node-3", signal.SIGCONT)
            load.wait_for_acks(500)
        wait_for_full_isr(bootstrap, "events")
        check_nothing_lost(load.ledger, read_all(bootstrap, "events"))


def brokers(bootstrap: str) -> set[int]:
    """Ids of the nodes that live, by DescribeCluster: to librdkafka metadata name dead ones too (decision 0075)."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        return {
            broker["broker_id"]
            for broker in admin.describe_cluster()["brokers"]
            if not broker.get("is_fenced")
        }
    finally:
        admin.close()


def active_controller(cluster: LocalCluster, ids: set[int]) -> int:
    """Id of the active controller by the word of one of these; -1 when it knows of none or does not answer."""
    member = cluster.state.member(f"controller-{min(ids)}")
    with grpc.insecure_channel(f"127.0.0.1:{member.ports['grpc']}") as channel:
        stub = controller_pb2_grpc.ControllerStub(channel)
        try:
            answer = stub.DescribeQuorum(controller_pb2.DescribeQuorumRequest(), timeout=30)
        except grpc.RpcError:
            return -1
        return int(answer.active_controller_id)
