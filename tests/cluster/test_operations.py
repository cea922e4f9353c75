"""Planned changes on a cluster of real processes: shown first, carried out under load, seen to the end.

Three racks of two nodes each. What the commands print as JSON is what the tests look at. Tests follow each other: each
leaves the cluster even, with one node less or another one from some test on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient

from penstock.local.cluster import LocalCluster
from support.clients import LEAKING_DIALS, forget_leaks
from support.cluster import running_cluster, start_ready
from support.kafka import Load, check_nothing_lost, produce, read_all
from support.operated import (
    LONG,
    TIMEOUT_S,
    Placed,
    active_controller,
    begin,
    counts,
    create,
    everything,
    node_rows,
    operation,
    penstock,
    planned_moves,
    refused_at_start,
    replicas,
    said,
    spread,
    story,
    wait_for_moving,
    wait_for_state,
    wait_until_settled,
)
from support.operated_load import ClientsAtWork
from support.waiting import wait_for

pytestmark = [pytest.mark.timeout(900), LEAKING_DIALS]

RACKS = ("a", "b", "c", "a", "b", "c")
RACK_OF = dict(enumerate(RACKS, 1))
TOPICS = [f"planned-{n:02}" for n in range(12)]
WRITTEN, LARGE = TOPICS[:3], TOPICS[3:]
PARTITIONS = 6
RECORDS, RECORD_BYTES, KEYS = (5_000 if LONG else 600), 10_000, 1_000
SLOW, SLOWEST = ("--throttle", "300kB/s"), ("--throttle", "60kB/s")
CONTROLLERS_KILLED = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(
        tmp_path_factory.mktemp("operations"), nodes=6, gateways=2, racks=RACKS, steady=True
    ) as made:
        create(made, PARTITIONS, 3, *TOPICS)
        yield made


@pytest.fixture(scope="module")
def filled(cluster: LocalCluster) -> LocalCluster:
    """With records to move, of whose sizes the nodes have told."""
    for topic in LARGE:
        # With keys: else one partition gets nearly all, and a node that has none of these is drained at once.
        produce(cluster.bootstrap, topic, RECORDS, value_bytes=RECORD_BYTES, keys=KEYS)
    written = len(LARGE) * RECORDS * RECORD_BYTES
    wait_for(
        lambda: sum(row["bytes"] or 0 for row in node_rows(cluster).values()) > 3 * written,
        "nodes have told how large their replicas are",
        TIMEOUT_S,
    )
    return cluster


@pytest.fixture(autouse=True)
def nothing_unclosed_is_left() -> Iterator[None]:
    """kafka-python leaves sockets of dials that failed."""
    yield
    forget_leaks()


def check_spread(placed: Placed, live: set[int]) -> None:
    """A copy in each rack; replicas within one of each other in each rack, leaders within one over all."""
    for where, nodes in placed.items():
        assert {RACK_OF[n] for n in nodes} == set(RACKS), (where, nodes)
    held = counts(placed)
    for rack in set(RACKS):
        assert spread(held[n] for n in live if RACK_OF[n] == rack) <= 1, (rack, held)
    led = Counter(nodes[0] for nodes in placed.values())
    assert spread(led[n] for n in live) <= 1, led


def check_in_order(told: str, *parts: str) -> None:
    """Sentences with these words, one after another."""
    at = 0
    for part in parts:
        found = told.find(part, at)
        assert found >= 0, f"{part!r} is not told, or not in its turn:\n{told}"
        at = found + 1


def reassigning(cluster: LocalCluster) -> Any:
    """What Kafka's own request says is on its way."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        return admin.list_partition_reassignments()
    finally:
        admin.close()
        forget_leaks()


def test_a_node_is_drained_by_its_plan_and_gets_its_share_back(cluster: LocalCluster) -> None:
    wait_until_settled(cluster)
    before = everything(cluster)
    assert len(before) >= len(TOPICS) * PARTITIONS
    shown = said(cluster, "node", "drain", "2", "--dry-run")
    assert shown["runnable"]
    assert {where for where, nodes in before.items() if 2 in nodes} <= planned_moves(shown).keys()
    assert everything(cluster) == before, "a plan changes nothing"
    with ClientsAtWork(cluster, WRITTEN) as clients:
        plan, done = begin(cluster, "node", "drain", "2", "--wait", "300")
        assert done["state"] == "done", done
        clients.go_on()
    wait_until_settled(cluster)
    after = everything(cluster)
    assert {w: after[w] for w, nodes in before.items() if after[w] != nodes} == {
        where: nodes for where, nodes in planned_moves(plan).items() if where in before
    }
    assert counts(after)[2] == 0
    check_spread(after, {1, 3, 4, 5, 6})
    drained = node_rows(cluster)[2]
    assert (drained["condition"], drained["operation_id"]) == ("drained", done["operation_id"])
    # New topics keep away from it too.
    create(cluster, 3, 3, "later")
    assert counts(everything(cluster, ["later"]))[2] == 0
    with ClientsAtWork(cluster, WRITTEN[1:], ("kafka-python",)):
        assert said(cluster, "node", "uncordon", "2", "--yes", "--wait", "60")["state"] == "done"
        assert said(cluster, "node", "add", "2", "--yes", "--wait", "300")["state"] == "done"
    check_spread(everything(cluster), set(RACK_OF))
    again = said(cluster, "cluster", "rebalance", "--dry-run")
    assert again["moves"] == [], "what is even stays as it is"


def test_a_drain_outlives_three_active_controllers_and_is_paused_throttled_and_resumed(
    filled: LocalCluster,
) -> None:
    cluster = filled
    wait_until_settled(cluster)
    with ClientsAtWork(cluster, WRITTEN) as clients:
        plan, begun = begin(cluster, "node", "drain", "3", *SLOWEST)
        number = begun["operation_id"]
        for _ in range(CONTROLLERS_KILLED):
            wait_for_moving(cluster, number)
            killed = active_controller(cluster)
            cluster.kill(killed)
            assert active_controller(cluster) != killed
            found = wait_for_moving(cluster, number)
            assert (found["state"], found["plan_id"]) == ("running", plan["plan_id"])
            start_ready(cluster, killed)
            clients.go_on()
        assert said(cluster, "operation", "pause", str(number))["state"] == "paused"
        throttle = said(cluster, "operation", "throttle", str(number), "2MB/s")["throttle"]
        assert (throttle["mode"], throttle["bytes_per_s"]) == ("fixed", 2_000_000)
        wait_for(
            lambda: operation(cluster, number)["progress"]["moves_running"] == 0,
            "what was under way has arrived",
            TIMEOUT_S,
        )
        paused = operation(cluster, number)
        assert paused["state"] == "paused"
        assert paused["progress"]["moves_done"] < paused["progress"]["moves_total"], "it was cut short"
        assert reassigning(cluster) == {}
        said(cluster, "operation", "resume", str(number))
        assert said(cluster, "operation", "throttle", str(number), "auto")["throttle"]["mode"] == "auto"
        done = wait_for_state(cluster, number, "done", "failed", "cancelled")
        assert done["state"] == "done", done
        clients.go_on()
    wait_until_settled(cluster)
    after = everything(cluster)
    assert {w: nodes for w, nodes in after.items() if w in planned_moves(plan)} == planned_moves(plan)
    assert counts(after)[3] == 0
    check_spread(after, {1, 2, 4, 5, 6})
    # Whoever was not there reads what became of it, though the controllers that did it were killed.
    told = story(cluster, number)
    check_in_order(
        told, f"operation {number} (node-drain of node 3", "was paused", "was throttled", "was resumed"
    )
    assert told.startswith(f"operation {number} (node-drain"), told
    assert "has ended: done" in told.splitlines()[0], told
    assert said(cluster, "node", "uncordon", "3", "--yes", "--wait", "60")["state"] == "done"
    assert said(cluster, "node", "add", "3", "--yes", "--wait", "300")["state"] == "done"


def test_a_drain_that_is_cancelled_half_way_leaves_each_partition_as_before_or_as_planned(
    filled: LocalCluster,
) -> None:
    cluster = filled
    wait_until_settled(cluster)
    before = everything(cluster)
    with ClientsAtWork(cluster, WRITTEN) as clients:
        plan, begun = begin(cluster, "node", "drain", "1", *SLOW)
        number = begun["operation_id"]

        def half_way() -> bool:
            progress = wait_for_moving(cluster, number)["progress"]
            return bool(progress["moves_done"] > 0)

        wait_for(half_way, "some have moved, and others are on their way", TIMEOUT_S)
        ended = said(cluster, "operation", "cancel", str(number), "--wait", "120")
        assert ended["state"] == "cancelled", ended
        assert 0 < ended["progress"]["moves_done"] < ended["progress"]["moves_total"]
        assert reassigning(cluster) == {}
        clients.go_on()
    told = story(cluster, number)
    assert "has ended: cancelled" in told.splitlines()[0], told
    check_in_order(told, f"operation {number} (node-drain of node 1", "was cancelled by User:")
    wanted = planned_moves(plan)
    after = everything(cluster)
    moved = {where for where, nodes in after.items() if nodes != before[where]}
    assert moved
    for where, nodes in after.items():
        assert nodes in (before[where], wanted.get(where)), "as it was, or as it was planned"
    assert any(nodes == before[where] for where, nodes in after.items() if where in wanted)
    row = node_rows(cluster)[1]
    assert (row["condition"], row["operation_id"]) == ("ok", None)
    done = said(cluster, "cluster", "rebalance", "--yes", "--wait", "300")
    assert done["state"] == "done", done
    check_spread(everything(cluster), set(RACK_OF))


def test_the_replication_factor_is_raised_and_lowered_under_load(cluster: LocalCluster) -> None:
    topic = "thin"
    create(cluster, 4, 1, topic)
    with Load(cluster.bootstrap, topic, rate_per_s=300, acks="all") as load:
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
    assert 4 not in node_rows(cluster)


def test_a_node_is_removed_and_its_directory_is_refused(cluster: LocalCluster) -> None:
    data = cluster.directory / "node-6" / "data"
    others = set(node_rows(cluster)) - {6}
    with ClientsAtWork(cluster, WRITTEN):
        done = said(cluster, "node", "remove", "6", "--yes", "--wait", "200")
    assert done["state"] == "done", done
    wait_for(lambda: "node-6" not in cluster.alive(), "the removed node's process ends", TIMEOUT_S)
    assert set(node_rows(cluster)) == others
    assert counts(everything(cluster))[6] == 0
    # Its directory says so itself; one that was copied before is refused by the controllers. Both are named.
    by = f"operation {done['operation_id']}"
    assert f"data directory {data} (it was node 6's) was retired by {by}" in refused_at_start(
        cluster, "node-6"
    )
    (data / "retired").unlink()
    told = refused_at_start(cluster, "node-6")
    lines = [line for line in told.splitlines() if f"data directory {data} is retired" in line]
    assert lines
    assert by in lines[0]
    assert set(node_rows(cluster)) == others
    assert counts(everything(cluster))[6] == 0
