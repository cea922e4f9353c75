"""The metadata are lost, storage nodes live on: from a backup, and with none, every topic and acknowledged record is
back, and no node was restarted for it."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cli.main import run
from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster, wait_until_ready
from support.kafka import CALL_TIMEOUT_S, check_nothing_lost, client_config, describe, produce, read_all
from support.waiting import wait_for

CONTROLLERS = (1, 2, 3)
PARTITIONS = 4
RECORDS = 200
TIMEOUT_S = 120.0

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    # A metadata stream that a controller cuts off is no trace; what is lost here is lost on purpose.
    with running_cluster(tmp_path_factory.mktemp("disaster"), steady=True) as made:
        yield made


def create(cluster: LocalCluster, name: str) -> None:
    admin = AdminClient(client_config(cluster.bootstrap))
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 3)]).values():
        future.result(CALL_TIMEOUT_S)


def penstock(*words: str, code: int = 0) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        got = run(list(words))
    assert got == code, (words, got, out.getvalue(), err.getvalue())
    return out.getvalue()


def said(*words: str) -> Any:
    return json.loads(penstock(*words, "--json"))


def data_dir(cluster: LocalCluster, controller_id: int) -> Path:
    return cluster.directory / f"controller-{controller_id}" / "data"


def pids(cluster: LocalCluster, role: str) -> dict[str, int | None]:
    return {p.name: p.pid for p in cluster.status().processes if p.name.startswith(role)}


def begin_anew(cluster: LocalCluster, *what: str, start: Sequence[str] = ()) -> None:
    """Import in the place of what the controllers had, and start them (or what is named)."""
    out = cluster.directory / "restored"
    penstock("cluster", "import", *what, "--out", str(out), "--controllers", "1,2,3")
    for each in CONTROLLERS:
        shutil.rmtree(data_dir(cluster, each), ignore_errors=True)
        (out / f"controller-{each}").rename(data_dir(cluster, each))
    cluster.start(*(start or [f"controller-{each}" for each in CONTROLLERS]))
    wait_until_ready(cluster)


def is_whole(cluster: LocalCluster, topic: str) -> bool:
    found = describe(cluster.bootstrap, topic)
    return len(found) == PARTITIONS and all(len(p.isrs) == 3 and p.leader > 0 for p in found.values())


def offered(cluster: LocalCluster) -> set[str]:
    """Topics of which every node offers its copy of every partition."""
    found = said("cluster", "recover", "--from-nodes", "--dry-run", "--gateway", cluster.gateway)["topics"]
    return {t["topic"] for t in found if all(len(p["replicas"]) == 3 for p in t["partitions"])}


def test_from_the_survivors_disk(cluster: LocalCluster, tmp_path: Path) -> None:
    create(cluster, "kept")
    penstock("config", "set", "topic", "kept", "retention.ms=123456789", "--bootstrap", cluster.bootstrap)
    book = produce(cluster.bootstrap, "kept", RECORDS)
    nodes = pids(cluster, "node")
    backup = tmp_path / "backup"

    penstock("cluster", "export", str(backup), "--data-dir", str(data_dir(cluster, 3)), code=1)  # it runs
    cluster.kill_several([f"controller-{each}" for each in CONTROLLERS])
    for lost in (1, 2):
        shutil.rmtree(data_dir(cluster, lost))
    facts = said("cluster", "export", str(backup), "--data-dir", str(data_dir(cluster, 3)))
    assert facts["controller_id"] == 3 and facts["topics"] >= 1 and not facts["secrets"]
    assert backup.stat().st_mode & 0o777 == 0o600
    begin_anew(cluster, str(backup))

    wait_for(lambda: is_whole(cluster, "kept"), "every replica is in sync again", TIMEOUT_S)
    assert pids(cluster, "node") == nodes
    produce(cluster.bootstrap, "kept", RECORDS, first=RECORDS, ledger=book)
    check_nothing_lost(book, read_all(cluster.bootstrap, "kept"))
    assert "123456789" in penstock("config", "describe", "topic", "kept", "--bootstrap", cluster.bootstrap)


def test_the_same_backup_twice(cluster: LocalCluster, tmp_path: Path) -> None:
    """Nodes and gateways run on, and know a later time of the metadata than the backup has."""
    create(cluster, "twice")
    book = produce(cluster.bootstrap, "twice", RECORDS)
    backup = tmp_path / "backup"
    said("cluster", "export", str(backup), "--gateway", cluster.gateway)
    others = pids(cluster, "node") | pids(cluster, "gateway")
    names = [f"controller-{each}" for each in CONTROLLERS]
    for number in range(1, 3):
        cluster.kill_several(names)
        begin_anew(cluster, str(backup))
        wait_for(lambda: is_whole(cluster, "twice"), "every replica is in sync again", TIMEOUT_S)
        produce(cluster.bootstrap, "twice", RECORDS, first=number * RECORDS, ledger=book)
        # More elections than an import needs, and more changes.
        for _ in range(3):
            cluster.kill_several(names)
            cluster.start(*names)
            wait_until_ready(cluster)
            for index in range(5):
                words = ("config", "set", "topic", "twice", f"retention.ms={10**9 + index}")
                penstock(*words, "--bootstrap", cluster.bootstrap)
    check_nothing_lost(book, read_all(cluster.bootstrap, "twice"))
    assert pids(cluster, "node") | pids(cluster, "gateway") == others


def test_with_no_backup_at_all(cluster: LocalCluster) -> None:
    create(cluster, "lost")
    book = produce(cluster.bootstrap, "lost", RECORDS)
    old = len(read_all(cluster.bootstrap, "kept"))
    nodes = pids(cluster, "node")
    cluster_id = said("cluster", "describe", "--bootstrap", cluster.bootstrap)["cluster_id"]

    cluster.kill_several([f"controller-{each}" for each in CONTROLLERS])
    begin_anew(cluster, "--empty", "--cluster-id", cluster_id)
    where = ("--gateway", cluster.gateway)
    # A node that tells after a topic was taken is none of its replicas, so all have to be there first.
    wait_for(lambda: offered(cluster) >= {"kept", "lost"}, "all nodes offer what they have", TIMEOUT_S)
    penstock("cluster", "recover", "--from-nodes", *where, code=2)  # nobody to ask
    taken = said("cluster", "recover", "--adopt", "lost", "--yes", *where)
    assert taken["taken"] and [t["error"] for t in taken["topics"]] == [None]
    penstock("cluster", "recover", "--from-nodes", "--yes", *where)

    for topic in ("kept", "lost"):
        wait_for(lambda topic=topic: is_whole(cluster, topic), f"{topic} is in sync", TIMEOUT_S)  # type: ignore[misc]
    assert pids(cluster, "node") == nodes
    produce(cluster.bootstrap, "lost", RECORDS, first=RECORDS, ledger=book)
    check_nothing_lost(book, read_all(cluster.bootstrap, "lost"))
    assert len(read_all(cluster.bootstrap, "kept")) == old == 2 * RECORDS


def test_logs_that_had_been_set_aside_are_taken_back(cluster: LocalCluster) -> None:
    """A node whose logs of a lost topic lie aside, as an earlier start left them, has what it had."""
    create(cluster, "aside")
    book = produce(cluster.bootstrap, "aside", RECORDS)
    wait_for(lambda: is_whole(cluster, "aside"), "every replica is in sync", TIMEOUT_S)
    cluster_id = said("cluster", "describe", "--bootstrap", cluster.bootstrap)["cluster_id"]
    everything = [f"controller-{each}" for each in CONTROLLERS] + [f"node-{each}" for each in (1, 2, 3)]
    cluster.kill_several(everything)
    for node in (1, 2, 3):
        disk = cluster.directory / f"node-{node}" / "data"
        for log in disk.glob("aside-*"):
            log.rename(disk / f"{log.name}.1700000000000.{node:032x}-stray")
    begin_anew(cluster, "--empty", "--cluster-id", cluster_id, start=everything)
    where = ("--gateway", cluster.gateway)

    wait_for(lambda: "aside" in offered(cluster), "all nodes offer what they have", TIMEOUT_S)
    said("cluster", "recover", "--adopt", "aside", "--yes", *where)
    wait_for(lambda: is_whole(cluster, "aside"), "aside is in sync", TIMEOUT_S)
    check_nothing_lost(book, read_all(cluster.bootstrap, "aside"))
    took = [log.read_text().count("took back a log") for log in cluster.directory.glob("node-*/log.txt")]
    assert all(took) and len(took) == 3, took
