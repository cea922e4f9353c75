"""Every process of a cluster restarted, one at a time, while a producer goes on: nobody notices, and nobody twice."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cli.main import run
from penstock.local import probe
from penstock.local.cluster import LocalCluster
from penstock.local.plan import GATEWAY
from support.cluster import running_cluster, start_ready
from support.kafka import CALL_TIMEOUT_S, Load, check_nothing_lost, client_config, describe, read_all
from support.waiting import wait_for

TOPIC = "restarted"
PARTITIONS = 6
TIMEOUT_S = 120.0
RATE_PER_S = 300
PROCESSES = 8


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {GATEWAY: {"drain_delay_ms": "3000"}}
    directory = tmp_path_factory.mktemp("rolling")
    with running_cluster(directory, nodes=3, gateways=2, steady=True, settings=settings) as made:
        admin = AdminClient(client_config(made.bootstrap))
        new = [NewTopic(TOPIC, PARTITIONS, 3)]
        for future in admin.create_topics(new, operation_timeout=CALL_TIMEOUT_S).values():
            future.result(CALL_TIMEOUT_S)
        yield made


def said(cluster: LocalCluster, *words: str, code: int = 0) -> Any:
    """What a command prints as JSON."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        got = run([*words, "--json", "--dir", str(cluster.directory)])
    assert got == code, (words, got, out.getvalue(), err.getvalue())
    return json.loads(out.getvalue())


def operation(cluster: LocalCluster, operation_id: int) -> Any:
    return said(cluster, "operation", "show", str(operation_id))


def pids(cluster: LocalCluster) -> dict[str, int | None]:
    return {process.name: process.pid for process in cluster.state.processes}


def starts(cluster: LocalCluster) -> dict[str, int]:
    """How often each process was started, by its log."""
    return {name: cluster.log_file(name).read_text().count("] starting ") for name in pids(cluster)}


def newest_operation(cluster: LocalCluster) -> Any:
    found = said(cluster, "operation", "list", "--all")
    return found[0] if found else None


def is_settled(cluster: LocalCluster) -> bool:
    return all(
        sorted(p.isrs) == sorted(p.replicas) and p.leader == p.replicas[0]
        for p in describe(cluster.bootstrap, TOPIC).values()
    )


def steps_by_state(found: Any, state: str) -> list[str]:
    return [step["name"] for step in found["steps"] if step["state"] == state]


def test_every_process_is_restarted_once_though_the_command_is_killed(cluster: LocalCluster) -> None:
    plan = said(cluster, "cluster", "rolling-restart", "--dry-run")
    assert plan["runnable"]
    names = [step["name"] for step in plan["steps"]]
    assert names[:5] == ["gateway-1", "gateway-2", "node-1", "node-2", "node-3"]
    assert len(names) == PROCESSES
    before, begun = pids(cluster), starts(cluster)
    with Load(cluster.bootstrap, TOPIC, rate_per_s=RATE_PER_S, acks="all") as load:
        load.wait_for_acks(100)
        words = ["cluster", "rolling-restart", "--yes", "--dir", str(cluster.directory)]
        command = subprocess.Popen([sys.executable, "-P", "-m", "penstock.cli.main", *words])
        try:

            def half_way() -> Any:
                found = newest_operation(cluster)
                is_half = found is not None and "node-1" in steps_by_state(found, "done")
                return found if is_half else None

            found = wait_for(half_way, "some are restarted", TIMEOUT_S)
        finally:
            command.send_signal(signal.SIGKILL)
            command.wait()
        number = found["operation_id"]
        wait_for(
            lambda: operation(cluster, number)["state"] == "paused", "nobody restarts any more", TIMEOUT_S
        )
        assert operation(cluster, number)["reason"].startswith("executor gone")
        load.wait_for_acks(100)
        done = said(cluster, "operation", "resume", str(number), "--via", "local")
        assert done["state"] == "done", done
        assert steps_by_state(done, "done") == names
        load.wait_for_acks(100)
    check_nothing_lost(load.ledger, read_all(cluster.bootstrap, TOPIC))
    after = pids(cluster)
    assert all(after[name] != before[name] for name in names)
    assert starts(cluster) == {name: count + 1 for name, count in begun.items()}, "nobody twice"
    assert is_settled(cluster), "preferred leaders lead"


def test_a_gateway_serves_on_while_balancers_see_that_it_is_not_ready(cluster: LocalCluster) -> None:
    ports = cluster.state.member("gateway-2").ports
    with ThreadPoolExecutor(1) as aside:
        end = aside.submit(cluster.kill, "gateway-2", signal.SIGTERM)
        wait_for(lambda: not probe.http_ready("127.0.0.1", ports["http"]).ready, "it is not ready", TIMEOUT_S)
        assert probe.kafka_ready("127.0.0.1", ports["kafka"], 3).ready, "a client that comes now is served"
        assert not end.done()
        end.result()
    start_ready(cluster, "gateway-2")


def test_no_node_is_restarted_while_another_one_is_down(cluster: LocalCluster) -> None:
    cluster.kill("node-3")

    def refused() -> Any:
        plan = said(cluster, *("cluster", "rolling-restart", "--role", "storage-node", "--yes"), code=4)
        closed = {gate["name"] for gate in plan["gates"] if gate["blocking"]}
        return plan if "min-isr" in closed else None

    wait_for(lambda: len(describe(cluster.bootstrap, TOPIC)[0].isrs) == 2, "the node is missed", TIMEOUT_S)
    assert refused()
    assert newest_operation(cluster)["state"] == "done", "nothing was begun"
    start_ready(cluster, "node-3")
    wait_for(lambda: is_settled(cluster), "everything is in sync", TIMEOUT_S)
