"""A machine dies with its disk, under load: the node that takes its place ends in every ISR, and what has been done can
be read afterwards. A controller likewise."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.local.cluster import LocalCluster
from support.clients import LEAKING_DIALS, forget_leaks
from support.cluster import running_cluster, start_ready, wait_until_ready
from support.kafka import Load, check_nothing_lost, describe, produce, read_all
from support.operated import (
    LONG,
    TIMEOUT_S,
    active_controller,
    counts,
    create,
    everything,
    node_rows,
    operation,
    penstock,
    refused_at_start,
    said,
    story,
    topics_of,
    wait_until_settled,
)
from support.operated_load import ends_of, read_since
from support.waiting import wait_for

pytestmark = [
    pytest.mark.timeout(900),
    LEAKING_DIALS,
    pytest.mark.skipif(not LONG, reason="of the long form: make ops-test"),
]

KEPT, WRITTEN = "kept", "written"
PARTITIONS = 6
RECORDS = 20_000 if LONG else 2_000
RECORD_BYTES = 5_000
RATE_PER_S = 1_000 if LONG else 200


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("replaced"), nodes=4, steady=True) as made:
        create(made, PARTITIONS, 3, KEPT, WRITTEN)
        produce(made.bootstrap, KEPT, RECORDS, value_bytes=RECORD_BYTES)
        yield made


@pytest.fixture(autouse=True)
def nothing_unclosed_is_left() -> Iterator[None]:
    yield
    forget_leaks()


def lose_disk(cluster: LocalCluster, name: str) -> Path:
    """SIGKILL, and the data directory is gone; where a copy of it is, as of before."""
    cluster.kill(name)
    data = cluster.directory / name / "data"
    kept = cluster.directory / name / "found-again"
    assert not kept.exists(), "it would be moved into that one"
    shutil.move(data, kept)
    return kept


def is_missed(cluster: LocalCluster, node_id: int) -> bool:
    """No partition counts on the node any more."""
    parts = [p for topic in topics_of(cluster) for p in describe(cluster.bootstrap, topic).values()]
    return all(node_id not in p.isrs and p.leader not in (node_id, -1) for p in parts)


def check_told(cluster: LocalCluster, done: Any, *words: str) -> str:
    """The operation says how long it took, and its story reads well."""
    number = done["operation_id"]
    took_s = (done["finished_ms"] - done["started_ms"]) / 1000
    print(
        f"operation {number} ({' '.join(words)}): {done['progress']['bytes_done']:,} bytes in {took_s:.1f} s"
    )
    shown = penstock(cluster, "operation", "show", str(number))
    print(shown)
    assert "started" in shown
    assert "finished" in shown
    told = story(cluster, number)
    assert f"operation {number} (node-replace of node" in told, told
    assert "has ended: done" in told, told
    return told


def check_found_again(cluster: LocalCluster, node_id: int, found: Path, number: int) -> None:
    """The old disk is refused by name, keeps all that it has, and takes the id from nobody."""
    name = f"node-{node_id}"
    data = cluster.directory / name / "data"
    held = {path.name for path in found.iterdir()}
    cluster.kill(name)
    kept = data.rename(data.with_name("kept"))
    shutil.move(found, data)
    told = refused_at_start(cluster, name)
    lines = [line for line in told.splitlines() if f"data directory {data} was refused" in line]
    assert len(lines) == 1, told
    print(lines[0])
    assert f"was that of node {node_id} until 20" in lines[0]
    assert f"in its place, which operation {number} has seen filled" in lines[0]
    assert held <= {path.name for path in data.iterdir()}, "whoever found it may want a look"
    shutil.rmtree(data)
    kept.rename(data)
    start_ready(cluster, name)
    wait_until_settled(cluster)


def test_a_node_comes_back_under_its_id_with_an_empty_disk(cluster: LocalCluster) -> None:
    wait_until_settled(cluster)
    lost = describe(cluster.bootstrap, WRITTEN)[0].leader
    before = everything(cluster)
    held = counts(before)[lost]
    ends = ends_of(cluster.bootstrap, WRITTEN)
    with Load(cluster.bootstrap, WRITTEN, rate_per_s=RATE_PER_S, acks="all") as load:
        load.wait_for_acks(100)
        found_again = lose_disk(cluster, f"node-{lost}")
        wait_for(lambda: is_missed(cluster, lost), "others lead", TIMEOUT_S)
        load.wait_for_acks(100)

        def plan_of_what_is_held() -> Any:
            # Nodes look at their sizes every 5 s, and where the disk is busy it takes longer.
            made = said(cluster, "node", "replace", str(lost), "--dry-run")
            return made if made["totals"]["bytes"] > RECORDS * RECORD_BYTES // 2 else None

        plan = wait_for(plan_of_what_is_held, "the plan says what it has to fetch again", TIMEOUT_S)
        assert plan["runnable"], plan["gates"]
        assert plan["eta_s"] > 0
        shown = penstock(cluster, "node", "replace", str(lost), "--dry-run")
        print(shown)
        assert f"node {lost}" in shown
        begun = said(cluster, "node", "replace", str(lost), "--yes", "--plan-id", plan["plan_id"])
        number = begun["operation_id"]
        wait_for(
            lambda: f"node {lost}" in (operation(cluster, number)["waiting_for"] or ""),
            "it says that it waits for the node",
            TIMEOUT_S,
        )
        waiting = operation(cluster, number)["waiting_for"]
        assert "start it with an empty directory" in waiting
        assert waiting in penstock(cluster, "explain", "operation", str(number))
        start_ready(cluster, f"node-{lost}")
        done = said(cluster, "operation", "watch", str(number), "--wait", "200")
        assert done["state"] == "done", done
        load.wait_for_acks(100)
    assert everything(cluster) == before, "the same replicas on the same nodes"
    assert counts(before)[lost] == held
    wait_until_settled(cluster)
    told = check_told(cluster, done, "without --with")
    assert f"node {lost}" in told
    check_found_again(cluster, lost, found_again, done["operation_id"])
    check_nothing_lost(load.ledger, read_since(cluster.bootstrap, WRITTEN, ends))
    assert len(read_all(cluster.bootstrap, KEPT)) == RECORDS


def test_another_node_takes_over_what_a_dead_one_held(cluster: LocalCluster) -> None:
    wait_until_settled(cluster)
    lost = describe(cluster.bootstrap, WRITTEN)[0].leader
    before = everything(cluster)
    ends = ends_of(cluster.bootstrap, WRITTEN)
    with Load(cluster.bootstrap, WRITTEN, rate_per_s=RATE_PER_S, acks="all") as load:
        load.wait_for_acks(100)
        found_again = lose_disk(cluster, f"node-{lost}")
        wait_for(lambda: is_missed(cluster, lost), "others lead", TIMEOUT_S)
        new = int(cluster.add("storage-node").removeprefix("node-"))
        words = ("node", "replace", str(lost), "--with", str(new))
        plan = said(cluster, *words, "--dry-run")
        assert plan["runnable"], plan["gates"]
        assert {(m["topic"], m["partition"]) for m in plan["moves"]} == {
            where for where, nodes in before.items() if lost in nodes
        }
        shown = penstock(cluster, *words, "--yes", "--wait", "200", "--plan-id", plan["plan_id"])
        print(shown)
        assert plan["plan_id"] in shown, "the plan is shown"
        done = said(cluster, "operation", "list", "--all")[0]
        assert (done["kind"], done["state"]) == ("node-replace", "done"), done
        load.wait_for_acks(100)
    wait_until_settled(cluster)
    assert everything(cluster) == {
        where: [new if node == lost else node for node in nodes] for where, nodes in before.items()
    }
    assert lost not in node_rows(cluster)
    told = check_told(cluster, done, "--with", str(new))
    assert f"node {new}" in told
    # The disk is found again: nobody lets it in, and it says which it is.
    shutil.move(found_again, cluster.directory / f"node-{lost}" / "data")
    told = refused_at_start(cluster, f"node-{lost}")
    data = cluster.directory / f"node-{lost}" / "data"
    lines = [line for line in told.splitlines() if f"data directory {data} is retired" in line]
    assert lines
    assert f"operation {done['operation_id']}" in lines[0]
    assert lost not in node_rows(cluster)
    # It never runs again, and no later test is to wait for it.
    cluster.remove(f"node-{lost}")
    check_nothing_lost(load.ledger, read_since(cluster.bootstrap, WRITTEN, ends))
    assert len(read_all(cluster.bootstrap, KEPT)) == RECORDS


def test_a_controller_comes_back_with_an_empty_disk(cluster: LocalCluster) -> None:
    lost = active_controller(cluster)
    number = lost.removeprefix("controller-")
    ends = ends_of(cluster.bootstrap, WRITTEN)
    with Load(cluster.bootstrap, WRITTEN, rate_per_s=RATE_PER_S, acks="all") as load:
        load.wait_for_acks(100)
        lose_disk(cluster, lost)
        active_controller(cluster)
        cluster.start(lost)

        def state() -> str:
            rows = said(cluster, "controller", "list")
            return next(str(row["state"]) for row in rows if str(row["id"]) == number)

        wait_for(lambda: state() == "not admitted", "it is there, and has no vote", TIMEOUT_S)
        done = said(cluster, "controller", "replace", number, "--yes", "--wait", "120")
        assert (done["kind"], done["state"]) == ("controller-replace", "done"), done
        story(cluster, done["operation_id"])
        wait_for(lambda: state() in ("voter", "active"), "it votes", TIMEOUT_S)
        wait_until_ready(cluster)
        load.wait_for_acks(100)
    check_nothing_lost(load.ledger, read_since(cluster.bootstrap, WRITTEN, ends))
