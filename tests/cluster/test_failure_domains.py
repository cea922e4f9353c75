"""Three racks, four hosts, two processes on each: a host and a rack are lost as a whole, and `check` had said what then
goes on and what does not."""

from __future__ import annotations

import contextlib
import io
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cli.main import run
from penstock.local import plan
from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster
from support.kafka import CALL_TIMEOUT_S, Load, check_nothing_lost, client_config, describe, read_all
from support.waiting import wait_for

HOSTS = ("a/h1", "a/h1", "a/h2", "a/h2", "b/h3", "b/h3", "c/h4", "c/h4")
RACK_OF = dict(enumerate(HOSTS, 1))
SAFE, FRAGILE = "safe", "fragile"
TIMEOUT_S = 90.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(
        tmp_path_factory.mktemp("domains"), nodes=len(HOSTS), racks=HOSTS, steady=True
    ) as made:
        yield made


def said(cluster: LocalCluster, *words: str, code: int | None = None) -> Any:
    """What a command prints as JSON."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        got = run(["cluster", *words, "--json", "--gateway", cluster.gateway])
    assert code is None or got == code, (words, got, out.getvalue(), err.getvalue())
    return json.loads(out.getvalue())


def found(cluster: LocalCluster) -> set[tuple[str, str]]:
    """Codes and subjects of what is amiss now."""
    return {(f["code"], f["subject"]) for f in said(cluster, "check")["findings"]}


def kill_domain(cluster: LocalCluster, domain: str) -> None:
    for number, rack in RACK_OF.items():
        name = f"node-{number}"
        if f"{rack}/".startswith(f"{domain}/") and name in cluster.alive():
            cluster.kill(name)


def rest(cluster: LocalCluster, path: str) -> Any:
    with urllib.request.urlopen(plan.addresses(cluster.state)["http"] + path, timeout=30) as response:
        return json.load(response)


def test_a_host_and_a_rack_are_lost_as_check_had_said(cluster: LocalCluster) -> None:
    admin = AdminClient(client_config(cluster.bootstrap))
    assert {b.rack for b in admin.describe_cluster().result(CALL_TIMEOUT_S).nodes} == {"a", "b", "c"}
    new = [NewTopic(SAFE, 6, 3), NewTopic(FRAGILE, 1, replica_assignment=[[1, 2]])]
    for future in admin.create_topics(new, operation_timeout=CALL_TIMEOUT_S).values():
        future.result(CALL_TIMEOUT_S)
    for partition in describe(cluster.bootstrap, SAFE).values():
        hosts = [RACK_OF[n] for n in partition.replicas]
        assert len({host.partition("/")[0] for host in hosts}) == 3, hosts

    # What is told now is that one topic alone does not outlive the loss of one host.
    wait_for(
        lambda: (
            not {code for code, _ in found(cluster)} - {"domain-unsafe", "uneven-replicas", "uneven-leaders"}
        ),
        "nothing else amiss",
        TIMEOUT_S,
    )
    told = said(cluster, "check", code=1)
    assert not told["ok"]
    (unsafe,) = [f for f in told["findings"] if f["code"] == "domain-unsafe"]
    assert unsafe["subject"] == f"partition {FRAGILE}-0"
    assert unsafe["severity"] == "warning"
    assert "host a/h1" in unsafe["detail"]
    assert "rebalance" in unsafe["hint"]
    assert rest(cluster, "/v1/check")["findings"] == told["findings"]
    assert said(cluster, "capacity", code=0)["survives"].keys() == {"node", "host", "rack"}

    with Load(cluster.bootstrap, SAFE, rate_per_s=300, acks="all") as load:
        load.wait_for_acks(200)
        for domain in ("a/h1", "a"):
            kill_domain(cluster, domain)
            load.wait_for_acks(600)
    check_nothing_lost(load.ledger, read_all(cluster.bootstrap, SAFE))
    wait_for(
        lambda: (
            {("offline", f"partition {FRAGILE}-0"), *(("node-missing", f"node {n}") for n in range(1, 5))}
            <= found(cluster)
        ),
        "what is gone is told",
        TIMEOUT_S,
    )
    assert ("offline", f"topic {SAFE}") not in found(cluster)
    assert ("under-min-isr", f"topic {SAFE}") not in found(cluster)


def test_capacity_is_known_once_nodes_have_reported(cluster: LocalCluster) -> None:
    def rates() -> list[dict[str, Any]]:
        nodes = said(cluster, "capacity", code=0)["nodes"]
        return [n for n in nodes if n["in_bytes_per_s"] is not None and n["loop_busy_ratio"] is not None]

    live = sum(name.startswith("node-") for name in cluster.alive())
    wait_for(lambda: len(rates()) == live, "rates of all that live", TIMEOUT_S)
    for node in rates():
        assert node["disk_total_bytes"] > node["disk_free_bytes"] > 0
        assert 0 <= node["loop_busy_ratio"] <= 1
        assert node["in_bytes_per_s"] >= 0
    assert sum(node["log_bytes"] for node in rates()) > 0
