"""Every process of a cluster restarted, one at a time, while clients of three kinds go on: nobody notices, and nobody
is restarted twice, whoever is killed on the way."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.local import probe
from penstock.local.cluster import LocalCluster
from penstock.local.plan import GATEWAY
from support.clients import CLIENTS, LEAKING_DIALS, forget_leaks
from support.cluster import running_cluster, start_ready
from support.kafka import describe
from support.operated import (
    LONG,
    TIMEOUT_S,
    create,
    operation,
    outcome,
    penstock,
    said,
    story,
    wait_for_state,
    wait_until_settled,
)
from support.operated_load import ClientsAtWork
from support.waiting import wait_for

pytestmark = [pytest.mark.timeout(900), LEAKING_DIALS]

TOPICS = [f"restarted-{name}" for name in CLIENTS]
PARTITIONS = 6
PROCESSES = 8
STEP_S = "20"
AT_WORK = tuple(CLIENTS) if LONG else ("confluent-kafka",)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {GATEWAY: {"drain_delay_ms": "3000"}}
    directory = tmp_path_factory.mktemp("rolling")
    with running_cluster(directory, nodes=3, gateways=2, steady=True, settings=settings) as made:
        create(made, PARTITIONS, 3, *TOPICS)
        yield made


@pytest.fixture(autouse=True)
def nothing_unclosed_is_left() -> Iterator[None]:
    """kafka-python leaves sockets of dials that failed."""
    yield
    forget_leaks()


def pids(cluster: LocalCluster) -> dict[str, int | None]:
    return {process.name: process.pid for process in cluster.state.processes}


def starts(cluster: LocalCluster) -> dict[str, int]:
    """How often each process was started, by its log."""
    return {name: cluster.log_file(name).read_text().count("] starting ") for name in pids(cluster)}


def newest_operation(cluster: LocalCluster) -> Any:
    found = said(cluster, "operation", "list", "--all")
    return found[0] if found else None


def steps_by_state(found: Any, state: str) -> list[str]:
    return [step["name"] for step in found["steps"] if step["state"] == state]


def command_line(cluster: LocalCluster, *words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "penstock.cli.main", *words, "--dir", str(cluster.directory)]


def test_every_process_is_restarted_once_though_the_command_is_killed(cluster: LocalCluster) -> None:
    wait_until_settled(cluster)
    plan = said(cluster, "cluster", "rolling-restart", "--dry-run")
    assert plan["runnable"]
    names = [step["name"] for step in plan["steps"]]
    assert names[:5] == ["gateway-1", "gateway-2", "node-1", "node-2", "node-3"]
    assert len(names) == PROCESSES
    before, begun = pids(cluster), starts(cluster)
    with ClientsAtWork(cluster, TOPICS, AT_WORK) as clients:
        command = subprocess.Popen(command_line(cluster, "cluster", "rolling-restart", "--yes"))
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
        paused = wait_for_state(cluster, number, "paused")
        assert paused["reason"].startswith("executor gone")
        assert f"penstock operation resume {number} --via" in paused["reason"]
        assert paused["reason"] in penstock(cluster, "explain", "operation", str(number))
        clients.go_on()
        done = said(cluster, "operation", "resume", str(number), "--via", "local")
        assert done["state"] == "done", done
        assert steps_by_state(done, "done") == names
        clients.go_on()
    after = pids(cluster)
    assert all(after[name] != before[name] for name in names)
    assert starts(cluster) == {name: count + 1 for name, count in begun.items()}, "nobody twice"
    wait_until_settled(cluster)
    told = story(cluster, number)
    assert "executor gone" in told, told
    assert told.startswith(f"operation {number} (rolling-restart"), told
    assert "has ended: done" in told, told


@pytest.mark.skipif(not LONG, reason="of the long form: make ops-test")
def test_a_node_that_does_not_come_back_pauses_it_with_the_reason(cluster: LocalCluster) -> None:
    wait_until_settled(cluster)
    begun = starts(cluster)
    # Whoever restarts node-1 forgets to start it.
    ending = shlex.join(command_line(cluster, "local", "kill", "--signal", "TERM", "{name}"))
    way = ("--role", "storage-node", "--via", "exec", "--command", ending, "--step-timeout", STEP_S)
    with ClientsAtWork(cluster, TOPICS, AT_WORK) as clients:
        line = penstock(cluster, "cluster", "rolling-restart", *way, "--yes", code=1)
        print(line)
        found = newest_operation(cluster)
        number = found["operation_id"]
        assert found["state"] == "paused"
        reason = found["reason"]
        assert reason == f"node-1 is not back, {STEP_S} s after its restart began; see its log"
        assert reason in line
        assert f"penstock operation resume {number} --via exec" in line
        assert steps_by_state(found, "running") == ["node-1"]
        assert steps_by_state(found, "todo") == ["node-2", "node-3"]
        assert reason in penstock(cluster, "operation", "show", str(number))
        told = story(cluster, number)
        assert reason in told, told
        assert "penstock operation resume" in told, told
        clients.go_on()
        start_ready(cluster, "node-1")
        # A step may be too short for a busy machine; whoever resumes it again has nobody restarted again.
        resume = ("operation", "resume", str(number), "--via", "local")
        wait_for(lambda: outcome(cluster, *resume) == 0, "it ends when it is resumed", 2 * TIMEOUT_S)
        done = operation(cluster, number)
        assert (done["state"], steps_by_state(done, "done")) == ("done", ["node-1", "node-2", "node-3"])
        clients.go_on()
    again = {"node-1", "node-2", "node-3"}
    assert starts(cluster) == {name: count + (name in again) for name, count in begun.items()}, "nobody twice"
    told = story(cluster, number)
    assert reason in told, told
    assert "has ended: done" in told, told


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
    before = newest_operation(cluster)
    cluster.kill("node-3")
    wait_for(
        lambda: len(describe(cluster.bootstrap, TOPICS[0])[0].isrs) == 2, "the node is missed", TIMEOUT_S
    )
    words = ("cluster", "rolling-restart", "--role", "storage-node", "--yes")
    plan = said(cluster, *words, code=4)
    (gate,) = [gate for gate in plan["gates"] if gate["name"] == "min-isr"]
    assert gate["blocking"]
    assert not gate["ok"]
    assert all("(without node-" in item for item in gate["items"]), gate["items"]
    assert gate["items"]
    assert newest_operation(cluster)["operation_id"] == before["operation_id"], "nothing was begun"
    start_ready(cluster, "node-3")
    wait_until_settled(cluster)
