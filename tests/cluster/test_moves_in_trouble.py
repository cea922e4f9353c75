"""What goes wrong in the middle of a move: nodes die, topics go, others move the same partitions, the command dies.

Each time one line says what the operation waits for, or why it paused, `operation show` tells what became of each move,
and nothing that was acknowledged is lost. Five nodes without racks, so that there is a node too many for each drain.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from penstock.local.cluster import LocalCluster
from support.clients import LEAKING_DIALS, forget_leaks
from support.cluster import running_cluster, start_ready
from support.java import needs_java, shared_driver
from support.kafka import Load, check_nothing_lost, delete_topic, describe, produce, read_all
from support.operated import (
    LONG,
    TIMEOUT_S,
    begin,
    counts,
    create,
    everything,
    node_rows,
    operation,
    penstock,
    planned_moves,
    refused,
    replicas,
    said,
    story,
    wait_for_moving,
    wait_for_state,
    wait_until_settled,
)
from support.operated_load import ends_of, read_since
from support.waiting import wait_for

pytestmark = [
    pytest.mark.timeout(900),
    LEAKING_DIALS,
    pytest.mark.skipif(not LONG, reason="of the long form: make ops-test"),
]

LARGE, WRITTEN = "large", "written"
PARTITIONS = 8
RECORDS = 10_000 if LONG else 2_000
RECORD_BYTES = 10_000
RATE_PER_S = 500 if LONG else 100
SLOW = ("--throttle", "200kB/s")
Reassign = Callable[[LocalCluster, Path, str, int, list[int]], None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("trouble")
    with running_cluster(directory, controllers=1, nodes=5, steady=True) as cluster:
        create(cluster, PARTITIONS, 3, LARGE, WRITTEN)
        produce(cluster.bootstrap, LARGE, RECORDS, value_bytes=RECORD_BYTES)
        yield cluster


@pytest.fixture
def cluster(made: LocalCluster) -> Iterator[LocalCluster]:
    """Even, with no operation under way before and after."""
    for _ in range(3):
        if not said(made, "cluster", "rebalance", "--dry-run")["moves"]:
            break
        said(made, "cluster", "rebalance", "--yes", "--wait", "120")
    yield made
    forget_leaks()
    for row in said(made, "operation", "list"):
        said(made, "operation", "cancel", str(row["operation_id"]), "--wait", "120")
    for node_id, row in node_rows(made).items():
        if row["condition"] != "ok":
            said(made, "node", "uncordon", str(node_id), "--yes", "--wait", "60")


def begin_slow_drain(cluster: LocalCluster, node_id: int) -> tuple[Any, int]:
    """Its plan, and the operation's id; moves are under way when this returns."""

    def known() -> Any:
        found = said(cluster, "node", "drain", str(node_id), "--dry-run", *SLOW)
        held = sum(node_id in nodes for nodes in replicas(cluster, LARGE).values())
        least = held * RECORDS * RECORD_BYTES // PARTITIONS // 2
        return found if found["totals"]["bytes"] >= least > 0 else None

    wait_until_settled(cluster)
    wait_for(known, "nodes have told how large their replicas are", TIMEOUT_S)
    plan, begun = begin(cluster, "node", "drain", str(node_id), *SLOW)
    wait_for_moving(cluster, begun["operation_id"])
    return plan, begun["operation_id"]


def hurry(cluster: LocalCluster, number: int) -> None:
    """What was slow so that there was time is slow no more."""
    penstock(cluster, "operation", "throttle", str(number), "100MB/s")


def underway(cluster: LocalCluster, plan: Any, number: int) -> tuple[int, int, int]:
    """A move that is on its way: its partition of LARGE, its leader, and the node that is to get a replica."""
    wait_for_moving(cluster, number)
    now = describe(cluster.bootstrap, LARGE)
    for (topic, partition), to in planned_moves(plan).items():
        if topic != LARGE:
            continue
        (before,) = [m["from"] for m in plan["moves"] if (m["topic"], m["partition"]) == (topic, partition)]
        (added,) = set(to) - set(before)
        if added in now[partition].replicas and added not in now[partition].isrs:
            return partition, now[partition].leader, added
    raise AssertionError("no move is on its way")


def test_the_node_that_gets_a_replica_dies_in_the_middle(cluster: LocalCluster) -> None:
    ends = ends_of(cluster.bootstrap, WRITTEN)
    with Load(cluster.bootstrap, WRITTEN, rate_per_s=RATE_PER_S, acks="all") as load:
        load.wait_for_acks(50)
        plan, number = begin_slow_drain(cluster, 1)
        partition, _, target = underway(cluster, plan, number)
        cluster.kill(f"node-{target}")

        def waits() -> str:
            return operation(cluster, number)["waiting_for"] or ""

        told = f"node {target}, which is fenced (for "
        wait_for(lambda: told in waits(), "it says for which node it waits", TIMEOUT_S)
        now = waits()
        assert f"{LARGE}-{partition}" in now or "more" in now, now
        assert told in penstock(cluster, "operation", "show", str(number))
        assert told in story(cluster, number)
        load.wait_for_acks(50)
        hurry(cluster, number)
        start_ready(cluster, f"node-{target}")
        done = wait_for_state(cluster, number, "done", "failed", "paused")
        assert done["state"] == "done", done
        load.wait_for_acks(50)
    assert counts(everything(cluster))[1] == 0
    check_nothing_lost(load.ledger, read_since(cluster.bootstrap, WRITTEN, ends))
    assert len(read_all(cluster.bootstrap, LARGE)) == RECORDS


def test_the_node_that_is_copied_from_dies_in_the_middle(cluster: LocalCluster) -> None:
    plan, number = begin_slow_drain(cluster, 2)
    ends = ends_of(cluster.bootstrap, WRITTEN)
    with Load(cluster.bootstrap, WRITTEN, rate_per_s=RATE_PER_S, acks="all") as load:
        load.wait_for_acks(50)
        _, source, _ = underway(cluster, plan, number)
        cluster.kill(f"node-{source}")
        hurry(cluster, number)
        load.wait_for_acks(50)
        # Others lead what it led, so what does not need it goes on; it comes back before the rest can end.
        start_ready(cluster, f"node-{source}")
        done = wait_for_state(cluster, number, "done", "failed")
        assert done["state"] == "done", done
        load.wait_for_acks(50)
    assert counts(everything(cluster))[2] == 0
    wait_until_settled(cluster)
    check_nothing_lost(load.ledger, read_since(cluster.bootstrap, WRITTEN, ends))
    assert len(read_all(cluster.bootstrap, LARGE)) == RECORDS


def test_a_topic_is_deleted_in_the_middle(cluster: LocalCluster) -> None:
    gone = "gone-soon"
    create(cluster, 4, 3, gone)
    produce(cluster.bootstrap, gone, RECORDS // 2, value_bytes=RECORD_BYTES)
    plan, number = begin_slow_drain(cluster, 3)
    dropped = [m for m in plan["moves"] if m["topic"] == gone]
    delete_topic(cluster.bootstrap, gone)
    hurry(cluster, number)
    done = wait_for_state(cluster, number, "done", "failed", "paused")
    assert done["state"] == "done", done
    progress = done["progress"]
    assert progress["moves_done"] + progress["moves_skipped"] == progress["moves_total"]
    assert progress["moves_skipped"] <= len(dropped)
    shown = penstock(cluster, "operation", "show", str(number))
    if progress["moves_skipped"]:
        assert f"{progress['moves_skipped']} skipped" in shown, shown
    assert "was deleted" in story(cluster, number)
    assert counts(everything(cluster))[3] == 0


def test_a_second_operation_on_the_same_partitions_is_refused(cluster: LocalCluster) -> None:
    _, number = begin_slow_drain(cluster, 4)
    before = [row["operation_id"] for row in said(cluster, "operation", "list", "--all")]
    for words in (
        ("node", "drain", "4"),
        ("node", "remove", "4"),
        ("topic", "set-replication-factor", LARGE, "2"),
    ):
        line = refused(cluster, *words, "--yes")
        assert "conflict" in line, line
        assert f"operation {number}" in line, line
        print(line)
    assert [row["operation_id"] for row in said(cluster, "operation", "list", "--all")] == before
    assert operation(cluster, number)["state"] == "running"


def by_kafka_python(
    cluster: LocalCluster, _directory: Path, topic: str, partition: int, nodes: list[int]
) -> None:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        answer = admin.alter_partition_reassignments({TopicPartition(topic, partition): nodes})
        assert set(answer.values()) == {None}, answer
    finally:
        admin.close()
        forget_leaks()


def by_kafkas_tool(
    cluster: LocalCluster, directory: Path, topic: str, partition: int, nodes: list[int]
) -> None:
    wanted = {"version": 1, "partitions": [{"topic": topic, "partition": partition, "replicas": nodes}]}
    file = directory / "wanted.json"
    file.write_text(json.dumps(wanted))
    address = ("--bootstrap-server", cluster.bootstrap)
    # --additional: others are on their way, which it would not touch otherwise.
    words = ("--reassignment-json-file", str(file), "--execute", "--additional")
    told = shared_driver().tool("ReassignPartitionsCommand", *address, *words).text
    assert "Successfully started partition reassignment" in told, told


BY = [
    pytest.param(by_kafka_python, id="kafka-python"),
    pytest.param(by_kafkas_tool, id="kafka-reassign-partitions", marks=[needs_java, pytest.mark.slow]),
]


@pytest.mark.parametrize("reassign", BY)
def test_a_partition_that_kafkas_tool_moves_meanwhile_is_left_to_it(
    cluster: LocalCluster, tmp_path: Path, reassign: Reassign
) -> None:
    drained = 5
    plan, number = begin_slow_drain(cluster, drained)
    moves = [m for m in plan["moves"] if m["topic"] == LARGE]
    # The last one that would begin: nothing was done for it yet.
    mine = next(m for m in reversed(moves) if replicas(cluster, LARGE)[m["partition"]] == m["from"])
    partition, stay = mine["partition"], [n for n in mine["from"] if n != drained]
    (elsewhere,) = {1, 2, 3, 4} - {*stay, *(set(mine["to"]) - set(mine["from"]))}
    reassign(cluster, tmp_path, LARGE, partition, [*stay, elsewhere])
    paused = wait_for_state(cluster, number, "paused")
    assert paused["reason"].startswith("conflict"), paused
    assert f"{LARGE}-{partition}" in paused["reason"]
    assert paused["reason"] in penstock(cluster, "operation", "show", str(number))
    assert paused["reason"] in penstock(cluster, "explain", "operation", str(number))
    (theirs,) = [row for row in said(cluster, "operation", "list") if row["kind"] == "reassignment"]
    assert theirs["created_by"] == "User:ANONYMOUS"
    hurry(cluster, theirs["operation_id"])
    hurry(cluster, number)
    said(cluster, "operation", "resume", str(number))
    assert wait_for_state(cluster, theirs["operation_id"], "done", "failed")["state"] == "done"
    done = wait_for_state(cluster, number, "done", "failed")
    assert done["progress"]["moves_skipped"] == 1, done
    assert set(replicas(cluster, LARGE)[partition]) == {*stay, elsewhere}, "who asked last has it"
    story(cluster, number)
    assert done["state"] == "done" or f"{LARGE}-{partition}" in done["reason"], done
    assert len(read_all(cluster.bootstrap, LARGE)) == RECORDS


def test_the_command_is_killed_in_the_middle_and_the_operation_goes_on(cluster: LocalCluster) -> None:
    wait_until_settled(cluster)
    words = ["node", "drain", "1", "--yes", "--wait", "200", *SLOW, "--dir", str(cluster.directory)]
    before = {row["operation_id"] for row in said(cluster, "operation", "list", "--all")}
    command = subprocess.Popen(
        [sys.executable, "-P", "-m", "penstock.cli.main", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:

        def begun() -> Any:
            found = [row for row in said(cluster, "operation", "list") if row["operation_id"] not in before]
            return found[0]["operation_id"] if found else None

        number = wait_for(begun, "the operation is recorded", TIMEOUT_S)
        wait_for_moving(cluster, number)
    finally:
        command.kill()
        command.wait()
    hurry(cluster, number)
    assert wait_for_state(cluster, number, "done", "failed", "paused")["state"] == "done"
    assert counts(everything(cluster))[1] == 0
