"""Planned changes on a cluster of real processes: shown first, carried out under load, seen to the end.

Three racks of two nodes each. What the commands print as JSON is what the tests look at.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cli.main import run
from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster, start_ready
from support.kafka import CALL_TIMEOUT_S, Load, check_nothing_lost, client_config, describe, produce, read_all
from support.waiting import wait_for

RACKS = ("a", "b", "c", "a", "b", "c")
RACK_OF = dict(enumerate(RACKS, 1))
TOPICS = [f"planned-{n}" for n in range(6)]
PARTITIONS = 6
TIMEOUT_S = 240.0
RATE_PER_S = 300


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(
        tmp_path_factory.mktemp("operations"), nodes=6, gateways=2, racks=RACKS, steady=True
    ) as made:
        create(made, PARTITIONS, 3, *TOPICS)
        yield made


def create(cluster: LocalCluster, partitions: int, factor: int, *names: str) -> None:
    admin = AdminClient(client_config(cluster.bootstrap))
    new = [NewTopic(name, partitions, factor) for name in names]
    for future in admin.create_topics(new, operation_timeout=CALL_TIMEOUT_S).values():
        future.result(CALL_TIMEOUT_S)


def penstock(cluster: LocalCluster, *words: str, code: int = 0) -> str:
    """What a command prints."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        got = run([*words, "--gateway", cluster.gateway])
    assert got == code, (words, got, out.getvalue(), err.getvalue())
    return out.getvalue() if code in (0, 4) else err.getvalue()


def said(cluster: LocalCluster, *words: str, code: int = 0) -> Any:
    """The same, of a command that prints JSON."""
    return json.loads(penstock(cluster, *words, "--json", code=code))


def replicas(cluster: LocalCluster, topic: str) -> dict[int, list[int]]:
    return {number: list(p.replicas) for number, p in sorted(describe(cluster.bootstrap, topic).items())}


def everything(cluster: LocalCluster, topics: list[str] | None = None) -> dict[tuple[str, int], list[int]]:
    return {
        (topic, number): nodes
        for topic in topics or TOPICS
        for number, nodes in replicas(cluster, topic).items()
    }


def is_settled(cluster: LocalCluster) -> bool:
    """Every partition is in sync everywhere and led by its preferred leader."""
    return all(
        sorted(p.isrs) == sorted(p.replicas) and p.leader == p.replicas[0]
        for topic in TOPICS
        for p in describe(cluster.bootstrap, topic).values()
    )


def counts(placed: dict[tuple[str, int], list[int]]) -> Counter[int]:
    return Counter(node for nodes in placed.values() for node in nodes)


def check_spread(placed: dict[tuple[str, int], list[int]], live: set[int]) -> None:
    """A copy in each rack; replicas within one of each other in each rack, leaders within one over all."""
    for where, nodes in placed.items():
        assert {RACK_OF[n] for n in nodes} == set(RACKS), (where, nodes)
    held = counts(placed)
    for rack in set(RACKS):
        of_rack = [held[n] for n in live if RACK_OF[n] == rack]
        assert max(of_rack) - min(of_rack) <= 1, (rack, held)
    led = Counter(nodes[0] for nodes in placed.values())
    assert max(led[n] for n in live) - min(led[n] for n in live) <= 1, led


def active_controller(cluster: LocalCluster) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run(["controller", "list", "--json", "--dir", str(cluster.directory)]) == 0
    (active,) = [row["id"] for row in json.loads(out.getvalue()) if row["state"] == "active"]
    return f"controller-{active}"


def operation(cluster: LocalCluster, operation_id: int) -> Any:
    return said(cluster, "operation", "show", str(operation_id))


def test_a_node_is_drained_by_its_plan_and_gets_its_share_back(cluster: LocalCluster) -> None:
    before = everything(cluster)
    plan = said(cluster, "node", "drain", "2", "--dry-run")
    assert plan["runnable"]
    assert everything(cluster) == before, "a plan changes nothing"
    with Load(cluster.bootstrap, TOPICS[0], rate_per_s=RATE_PER_S, acks="all") as load:
        load.wait_for_acks(100)
        done = said(cluster, "node", "drain", "2", "--yes", "--wait", "200", "--plan-id", plan["plan_id"])
        assert done["state"] == "done", done
        load.wait_for_acks(100)
    check_nothing_lost(load.ledger, read_all(cluster.bootstrap, TOPICS[0]))
    wait_for(lambda: is_settled(cluster), "preferred leaders lead", TIMEOUT_S)
    after = everything(cluster)
    moved = {(m["topic"], m["partition"]): m["to"] for m in plan["moves"] if m["topic"] in TOPICS}
    assert {where: nodes for where, nodes in after.items() if nodes != before[where]} == moved
    assert counts(after)[2] == 0
    check_spread(after, {1, 3, 4, 5, 6})
    (drained,) = [n for n in said(cluster, "node", "list") if n["node_id"] == 2]
    assert (drained["condition"], drained["operation_id"]) == ("drained", done["operation_id"])
    # New topics keep away from it too.
    create(cluster, 3, 3, "later")
    assert counts(everything(cluster, ["later"]))[2] == 0
    assert said(cluster, "node", "uncordon", "2", "--yes", "--wait", "60")["state"] == "done"
    added = said(cluster, "node", "add", "2", "--yes", "--wait", "200")
    assert added["state"] == "done"
    check_spread(everything(cluster), set(RACK_OF))
    again = said(cluster, "cluster", "rebalance", "--dry-run")
    assert again["moves"] == [], "what is even stays as it is"


def test_a_drain_goes_on_under_another_controller_is_paused_and_cancelled(cluster: LocalCluster) -> None:
    for topic in TOPICS:
        produce(cluster.bootstrap, topic, 1_000, value_bytes=10_000)
    wait_for(lambda: is_settled(cluster), "preferred leaders lead", TIMEOUT_S)
    before = everything(cluster)
    slow = ("--throttle", "300kB/s")

    def large() -> Any:
        found = said(cluster, "node", "drain", "3", "--dry-run", *slow)
        return found if found["totals"]["bytes"] > 15_000_000 else None

    plan = wait_for(large, "nodes have told how large their replicas are", TIMEOUT_S)
    begun = said(cluster, "node", "drain", "3", "--yes", "--plan-id", plan["plan_id"], *slow)
    number = begun["operation_id"]
    wait_for(lambda: operation(cluster, number)["progress"]["moves_running"] > 0, "it moves", TIMEOUT_S)
    name = active_controller(cluster)
    cluster.kill(name)
    start_ready(cluster, name)
    assert said(cluster, "operation", "pause", str(number))["state"] == "paused"
    assert said(cluster, "operation", "throttle", str(number), "auto")["throttle"]["mode"] == "auto"
    wait_for(
        lambda: operation(cluster, number)["progress"]["moves_running"] == 0, "none is under way", TIMEOUT_S
    )
    paused = operation(cluster, number)
    assert paused["state"] == "paused"
    assert paused["progress"]["moves_done"] < paused["progress"]["moves_total"], "it was cut short"
    said(cluster, "operation", "resume", str(number))
    wait_for(
        lambda: operation(cluster, number)["progress"]["moves_done"] > paused["progress"]["moves_done"],
        "it goes on",
        TIMEOUT_S,
    )
    said(cluster, "operation", "cancel", str(number))
    wait_for(lambda: operation(cluster, number)["state"] in ("cancelled", "done"), "it ends", TIMEOUT_S)
    wanted = {(m["topic"], m["partition"]): m["to"] for m in plan["moves"]}
    for where, nodes in everything(cluster).items():
        assert nodes in (before[where], wanted.get(where)), "as it was, or as it was planned"
    ended = operation(cluster, number)
    if ended["state"] == "cancelled":
        (node,) = [n for n in said(cluster, "node", "list") if n["node_id"] == 3]
        assert node["condition"] == "ok"
    else:
        said(cluster, "node", "uncordon", "3", "--yes", "--wait", "60")
    assert said(cluster, "cluster", "rebalance", "--yes", "--wait", "200")["state"] == "done"


def test_the_replication_factor_is_raised_and_lowered_under_load(cluster: LocalCluster) -> None:
    topic = "thin"
    create(cluster, 4, 1, topic)
    with Load(cluster.bootstrap, topic, rate_per_s=RATE_PER_S, acks="all") as load:
        load.wait_for_acks(100)
        for factor in (3, 2):
            done = said(
                cluster, *("topic", "set-replication-factor", topic, str(factor), "--yes", "--wait", "200")
            )
            assert done["state"] == "done", done
            assert all(len(nodes) == factor for nodes in replicas(cluster, topic).values())
            load.wait_for_acks(100)
    check_nothing_lost(load.ledger, read_all(cluster.bootstrap, topic))


def test_bad_requests_change_nothing(cluster: LocalCluster) -> None:
    before = everything(cluster)
    for words, code, text in (
        (("node", "drain", "77", "--yes"), 1, "77"),
        (("topic", "set-replication-factor", "absent", "2", "--yes"), 1, "absent"),
        (("topic", "set-replication-factor", TOPICS[0], "9", "--yes"), 1, "9"),
        (("operation", "show", "1"), 1, "operation 1"),
        (("operation", "cancel", "1"), 1, "operation 1"),
        (("node", "drain", "1"), 2, "--yes"),
        (("cluster", "rebalance", "--yes", "--throttle", "fast"), 2, "fast"),
    ):
        assert text in penstock(cluster, *words, code=code), words
    changed = said(cluster, "node", "drain", "1", "--yes", "--plan-id", "0123456789abcdef", code=4)
    assert [g["name"] for g in changed["gates"] if g["blocking"]] == ["plan-changed"]
    assert everything(cluster) == before


def test_a_new_node_takes_the_place_of_another(cluster: LocalCluster) -> None:
    added = cluster.add("storage-node")
    new = int(added.removeprefix("node-"))
    before = everything(cluster)
    done = said(cluster, "node", "replace", "4", "--with", str(new), "--yes", "--wait", "200")
    assert done["state"] == "done", done
    assert everything(cluster) == {
        where: [new if node == 4 else node for node in nodes] for where, nodes in before.items()
    }
    wait_for(lambda: "node-4" not in cluster.alive(), "the replaced node's process ends", TIMEOUT_S)
    assert 4 not in [n["node_id"] for n in said(cluster, "node", "list")]


def test_a_node_is_removed_and_its_directory_is_refused(cluster: LocalCluster) -> None:
    done = said(cluster, "node", "remove", "6", "--yes", "--wait", "200")
    assert done["state"] == "done", done
    wait_for(lambda: "node-6" not in cluster.alive(), "the removed node's process ends", TIMEOUT_S)
    assert [n["node_id"] for n in said(cluster, "node", "list")] == [1, 2, 3, 5, 7]
    assert counts(everything(cluster))[6] == 0
