"""`penstock scale --via local` on real processes: more and fewer of them, the data with them, under load."""

from __future__ import annotations

import contextlib
import io
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.cli.main import run
from penstock.local.cluster import LocalCluster
from penstock.local.plan import GATEWAY, NODE
from support.cluster import running_cluster, wait_until_ready
from support.kafka import Load, check_nothing_lost, create_topic, describe, read_all
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

TOPIC = "scaled"
PARTITIONS = 6
RATE_PER_S = 100
TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("scale") / "c", controllers=1, nodes=3, steady=True) as made:
        create_topic(made.bootstrap, TOPIC, PARTITIONS, 3)
        yield made


def scale(cluster: LocalCluster, *words: str, code: int = 0) -> Any:
    """Its document, if there is one, and what it says on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        got = run(["scale", *words, "--json", "--dir", str(cluster.directory)])
    assert got == code, (words, got, out.getvalue(), err.getvalue())
    return json.loads(out.getvalue()) if out.getvalue() else err.getvalue()


def replica_counts(cluster: LocalCluster) -> Counter[int]:
    found = describe(cluster.bootstrap, TOPIC).values()
    return Counter(node for partition in found for node in partition.replicas)


def names(cluster: LocalCluster, role: str) -> list[str]:
    return [member.name for member in cluster.state.of_role(role)]


def test_storage_nodes_come_and_go_with_their_data(cluster: LocalCluster) -> None:
    with Load(cluster.bootstrap, TOPIC, rate_per_s=RATE_PER_S, acks="all") as load:
        load.wait_for_acks(100)
        told = scale(cluster, "storage-node=5", "--dry-run")
        assert (told["from"], told["to"], told["via"], told["started"]) == (3, 5, "local", [])
        assert len(cluster.alive()) == 5, "nothing was changed"
        told = scale(cluster, "storage-node=5", "--yes", "--wait", "120")
        assert (told["service"], told["started"], told["stopped"]) == (
            "storage-node",
            ["node-4", "node-5"],
            [],
        )
        assert [(o["kind"], o["state"]) for o in told["operations"]] == [("node-add", "done")]
        assert told["plans"][0]["parameters"]["node_ids"] == [4, 5]
        counts = replica_counts(cluster)
        assert set(counts) == {1, 2, 3, 4, 5}
        assert max(counts.values()) - min(counts.values()) <= 1, counts
        load.wait_for_acks(100)
        plan = scale(cluster, "storage-node=3", "--dry-run")
        assert plan["plans"][0]["runnable"]
        assert (plan["removed_nodes"], plan["operations"]) == ([], [])
        assert set(replica_counts(cluster)) == {1, 2, 3, 4, 5}
        told = scale(cluster, "storage-node=3", "--yes", "--plan-id", "0123456789abcdef", code=4)
        assert [g["name"] for g in told["plans"][0]["gates"] if g["blocking"]] == ["plan-changed"]
        assert (told["operations"], told["stopped"]) == ([], [])
        told = scale(cluster, "storage-node=3", "--yes", "--wait", "120")
        removed = told["removed_nodes"]
        assert len(removed) == 2
        assert told["stopped"] == [f"node-{n}" for n in removed]
        assert [(o["kind"], o["state"]) for o in told["operations"]] == [("node-remove", "done")]
        load.wait_for_acks(100)
    left = {1, 2, 3, 4, 5} - set(removed)
    assert set(replica_counts(cluster)) == left
    assert names(cluster, NODE) == [f"node-{n}" for n in sorted(left)]
    assert not any((cluster.directory / f"node-{n}").exists() for n in removed)
    check_nothing_lost(load.ledger, read_all(cluster.bootstrap, TOPIC))
    again = scale(cluster, "storage-node=3", "--yes")
    assert (again["operations"], again["started"], again["stopped"]) == ([], [], [])
    cluster.down()
    assert cluster.start_all()[1] == [], "what is stored of the cluster is what it is"
    wait_until_ready(cluster)
    check_nothing_lost(load.ledger, read_all(cluster.bootstrap, TOPIC))


def test_a_dead_node_is_started_before_another_is_made(cluster: LocalCluster) -> None:
    name = names(cluster, NODE)[0]
    cluster.kill(name)
    node_id = cluster.state.process(name).id

    def is_fenced() -> bool:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            run(["node", "list", "--json", "--gateway", cluster.gateway])
        return any(n["node_id"] == node_id and n["condition"] == "fenced" for n in json.loads(out.getvalue()))

    wait_for(is_fenced, "the cluster knows that it is gone", TIMEOUT_S)
    told = scale(cluster, "storage-node=3", "--yes")
    assert (told["started"], told["operations"]) == ([name], [])
    wait_until_ready(cluster)


def test_a_node_that_was_removed_already_has_its_process_stopped(cluster: LocalCluster) -> None:
    """As after a command that was cut short between the two."""
    (added,) = scale(cluster, "storage-node=4", "--yes", "--wait", "120")["started"]
    out = io.StringIO()
    words = ["node", "remove", added.removeprefix("node-"), "--yes", "--wait", "120", "--json"]
    with contextlib.redirect_stdout(out):
        assert run([*words, "--gateway", cluster.gateway]) == 0
    told = scale(cluster, "storage-node=3", "--yes")
    assert (told["from"], told["operations"], told["stopped"]) == (3, [], [added])
    assert added not in names(cluster, NODE)


def test_what_cannot_be_changes_nothing(cluster: LocalCluster) -> None:
    before = names(cluster, NODE)
    assert "only 2 nodes" in scale(cluster, "storage-node=2", "--yes", code=1)
    assert "--via compose" in scale(cluster, "gateway=2", "--yes", "--gateway", "127.0.0.1:1", code=2)
    assert "--yes" in scale(cluster, "storage-node=5", code=2)
    assert "controllers" in scale(cluster, "controller=5", "--yes", code=2)
    printed = scale(cluster, "gateway=4", "--via", "print")
    assert printed["command"] == "kubectl scale deployment gateway --replicas=4"
    assert names(cluster, NODE) == before


def test_gateways_come_and_go(cluster: LocalCluster) -> None:
    with Load(cluster.bootstrap, TOPIC, rate_per_s=RATE_PER_S, acks="all") as load:
        told = scale(cluster, "gateway=2", "--yes")
        assert (told["from"], told["started"], told["operations"]) == (1, ["gateway-2"], [])
        assert names(cluster, GATEWAY) == ["gateway-1", "gateway-2"]
        load.wait_for_acks(100)
        told = scale(cluster, "gateway=1", "--yes")
        assert told["stopped"] == ["gateway-2"]
        load.wait_for_acks(100)
    assert names(cluster, GATEWAY) == ["gateway-1"]
    assert "gateway-2" not in cluster.alive()
