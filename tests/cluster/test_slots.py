"""Nodes in slots of one directory: one is removed and becomes a spare, and takes the place of another that dies."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import CommandError
from penstock.local import ports
from penstock.local.cluster import LocalCluster
from penstock.local.plan import CONTROLLER
from support.cluster import running_cluster
from support.kafka import check_nothing_lost, create_topic, describe, produce, read_all
from support.operated import said
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

TIMEOUT_S = 120.0
SLOTS = 3


class SlotProcess:
    """One storage-node process of a pool that shares a directory. Ended by its pid alone."""

    def __init__(self, cluster: LocalCluster, root: Path, http_port: int, number: int) -> None:
        self.http = f"127.0.0.1:{http_port}"
        members = cluster.state.of_role(CONTROLLER)
        controllers = [f"{c.id}@127.0.0.1:{c.ports['grpc']}" for c in members]
        words = [
            *("--slots-dir", str(root / "slots"), "--controllers", ",".join(controllers)),
            *("--grpc-bind", "127.0.0.1:0", "--http-bind", self.http),
        ]
        self.log = root / f"process-{number}.txt"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock_storage_node", *words], stdout=output, stderr=output
            )

    def ready(self) -> str:
        """ "ready", the reason why not, or "" of a process that does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self.http}/readyz", timeout=5) as answer:
                return str(answer.read().decode().strip())
        except urllib.error.HTTPError as error:
            return error.read().decode().strip()
        except OSError:
            return ""

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return float(next(line.split()[-1] for line in lines if line.startswith(f"{name} ")))

    def node_id(self) -> int:
        """Its node, as its log says it last."""
        found = [
            line for line in self.log.read_text().splitlines() if "registered" in line and "node_id" in line
        ]
        return int(found[-1].partition("node_id=")[2].split()[0]) if found else -1

    def end(self) -> None:
        self.process.kill()
        self.process.wait(30)


@contextmanager
def pool(cluster: LocalCluster, root: Path, count: int) -> Iterator[list[SlotProcess]]:
    root.mkdir(parents=True, exist_ok=True)
    made: list[SlotProcess] = []
    try:
        for number, http_port in enumerate(ports.choose_free(count, set())):
            made.append(SlotProcess(cluster, root, http_port, number))
            wait_for(lambda: made[-1].ready() == "ready", f"process {number} is ready", TIMEOUT_S)
        yield made
    except BaseException:
        for each in made:
            sys.stderr.write(f"--- {each.log.name}\n{each.log.read_text()[-4000:]}\n")
        raise
    finally:
        for each in made:
            each.end()


def nodes(cluster: LocalCluster) -> list[int]:
    return [n["node_id"] for n in said(cluster, "node", "list") if n["condition"] == "ok"]


def test_a_removed_node_becomes_a_spare_and_takes_the_place_of_one_that_dies(tmp_path: Path) -> None:
    with (
        running_cluster(tmp_path / "cluster", controllers=1, nodes=1, steady=True) as cluster,
        pool(cluster, tmp_path / "pool", SLOTS) as processes,
    ):
        assert [p.node_id() for p in processes] == [2, 3, 4]
        create_topic(cluster.bootstrap, "events", 6, 2)
        ledger = produce(cluster.bootstrap, "events", 300)
        # Removed: its process goes on, without an id, and is not ready.
        first, second, third = processes
        pid = first.process.pid
        done = said(cluster, "node", "remove", "2", "--yes", "--wait", "120")
        assert done["state"] == "done", done
        wait_for(
            lambda: first.ready().startswith("spare"), "the removed node's process is a spare", TIMEOUT_S
        )
        assert first.process.poll() is None
        assert first.process.pid == pid
        assert first.metric("penstock_ready") == 0
        retired = tmp_path / "pool" / "slots" / "slot-0"
        assert (retired / "retired").exists()
        assert not [p for p in retired.iterdir() if p.name.startswith("events-")]
        assert nodes(cluster) == [1, 3, 4]
        # One dies: its node is back, with its data, under the spare.
        third.end()
        wait_for(lambda: first.ready() == "ready", "the spare took over the slot", TIMEOUT_S)
        assert first.node_id() == 4
        assert first.process.pid == pid
        wait_for(lambda: nodes(cluster) == [1, 3, 4], "all are there", TIMEOUT_S)
        wait_for(
            lambda: all(
                sorted(p.isrs) == sorted(p.replicas) for p in describe(cluster.bootstrap, "events").values()
            ),
            "all replicas are in sync",
            TIMEOUT_S,
        )
        # Another process that starts finds no live slot: the retired one is emptied, and nobody is node 2 again.
        http_port = ports.choose_free(1, set())[0]
        fourth = SlotProcess(cluster, tmp_path / "pool", http_port, 9)
        processes.append(fourth)
        wait_for(lambda: fourth.ready() == "ready", "a new node", TIMEOUT_S)
        assert fourth.node_id() == 5
        assert not (retired / "retired").exists()
        # A slot that nobody opens is told of by the others.
        fourth.end()
        wait_for(
            lambda: second.metric("penstock_node_unclaimed_slots") == 1, "a slot is unclaimed", TIMEOUT_S
        )
        assert "slot-0" in second.log.read_text()
        # A node with a directory of its own ends, and that directory is refused by name.
        done = said(cluster, "node", "remove", "1", "--yes", "--wait", "120")
        assert done["state"] == "done", done
        wait_for(lambda: "node-1" not in cluster.alive(), "the removed node's process ends", TIMEOUT_S)
        log = cluster.log_file("node-1").read_text()
        assert re.search(r"stopped +code=0", log)
        assert f"was retired by operation {done['operation_id']}" in log
        directory = tmp_path / "cluster" / "node-1" / "data"
        assert (directory / "retired").exists()
        for _ in range(2):
            with pytest.raises(CommandError, match="retired by operation") as refused:
                cluster.start("node-1")
            assert str(directory) in refused.value.message
        assert nodes(cluster) == [3, 4]
        check_nothing_lost(ledger, read_all(cluster.bootstrap, "events"))
