"""`penstock local` with the real roles: up, kill, start, add, down; nothing acked is lost.

Leaders, gateways and everything at once are killed under load in `test_node_killed` and `test_gateway_killed`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.local.plan import GATEWAY, NODE
from penstock.local.ports import choose_base
from support.cluster import running_cluster
from support.kafka import (
    Load,
    check_nothing_lost,
    create_topic,
    describe,
    produce,
    read_all,
    wait_for_full_isr,
)
from support.waiting import wait_for

pytestmark = pytest.mark.timeout(900)

PENSTOCK = [sys.executable, "-m", "penstock.cli.main"]


def command(*arguments: str, expect: int = 0, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run `penstock` as a user does."""
    done = subprocess.run([*PENSTOCK, *arguments], input=stdin, capture_output=True, timeout=300, check=False)
    assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr)
    return done


def command_json(*arguments: str) -> Any:
    return json.loads(command(*arguments, "--json").stdout)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_up_produce_kill_start_down_by_the_command(tmp_path: Path) -> None:
    directory = str(tmp_path / "cluster")
    begun_s = time.monotonic()
    found = command_json("local", "up", "--dir", directory, "--port", str(choose_base()))
    try:
        bootstrap = found["bootstrap"]
        create_topic(bootstrap, "first")
        produce(bootstrap, "first", 1)
        # A figure to look at: a test run shares its machine with other work.
        print(f"first ack {time.monotonic() - begun_s:.1f} s after `up`")

        def states() -> set[str]:
            rows = command_json("local", "status", "--dir", directory)["processes"]
            return {row["state"] for row in rows}

        # Each has half a second to say that it is ready: on a loaded machine one of seven may be late.
        wait_for(lambda: states() == {"running"}, "every process runs")
        assert [row["name"] for row in found["processes"]] == [
            *("controller-1", "controller-2", "controller-3", "node-1", "node-2", "node-3", "gateway-1")
        ]
        assert b"running already" in command("local", "up", "--dir", directory).stderr

        create_topic(bootstrap, "flights", 6, 3)
        with Load(bootstrap, "flights") as load:
            load.wait_for_acks(1_000)
            command("local", "kill", "node-2", "--dir", directory)
            load.wait_for_acks(2_000)
            command("local", "start", "node-2", "--dir", directory)
            wait_for_full_isr(bootstrap, "flights")
            command("local", "kill", "controller-1", "node-1", "--dir", directory)
            load.wait_for_acks(2_000)
            command("local", "start", "--all", "--dir", directory)
            load.wait_for_acks(1_000)
        check_nothing_lost(load.ledger, read_all(bootstrap, "flights"))
        pids = [row["pid"] for row in command_json("local", "status", "--dir", directory)["processes"]]
    finally:
        command("local", "down", "--dir", directory)
    # A dead process has its place in the table until the system's first process looks.
    for pid in pids:
        wait_for(partial(is_gone, pid), f"process {pid} is gone")

    # The stopped cluster comes back with its data and its settings.
    again = command_json("local", "up", "--dir", directory)
    try:
        assert again["bootstrap"] == bootstrap
        check_nothing_lost(load.ledger, read_all(bootstrap, "flights"))
    finally:
        command("local", "down", "--wipe", "--dir", directory)
    assert not Path(directory).exists()


def test_stopped_node_leaves_the_isr_and_comes_back(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        create_topic(cluster.bootstrap, "t", 3, 3)
        with Load(cluster.bootstrap, "t") as load:
            load.wait_for_acks(500)
            cluster.kill("node-1", signal.SIGSTOP)
            load.wait_for_acks(2_000)
            cluster.kill("node-1", signal.SIGCONT)
            wait_for_full_isr(cluster.bootstrap, "t")
            load.wait_for_acks(500)
        check_nothing_lost(load.ledger, read_all(cluster.bootstrap, "t"))


def test_added_node_and_gateway_serve(tmp_path: Path) -> None:
    with running_cluster(tmp_path, steady=True) as cluster:
        assert cluster.add(NODE) == "node-4"
        assert cluster.add(GATEWAY) == "gateway-2"
        second = cluster.bootstrap.split(",")[1]
        create_topic(second, "t", 8, 3)
        assert {node for part in describe(second, "t").values() for node in part.replicas} == {1, 2, 3, 4}
        ledger = produce(second, "t", 500)
        check_nothing_lost(ledger, read_all(cluster.direct_bootstrap, "t"))


def test_single_process_cluster_serves(tmp_path: Path) -> None:
    with running_cluster(tmp_path, controllers=1, nodes=1, gateways=1, single=True) as cluster:
        assert cluster.alive() == ["single"]
        create_topic(cluster.bootstrap, "t")
        ledger = produce(cluster.bootstrap, "t", 1_000)
        check_nothing_lost(ledger, read_all(cluster.bootstrap, "t"))
        cluster.kill("single")
        cluster.start("single")
        check_nothing_lost(ledger, read_all(cluster.bootstrap, "t"))


def test_racks_spread_replicas(tmp_path: Path) -> None:
    with running_cluster(tmp_path, controllers=1, nodes=4, racks=("a", "b"), steady=True) as cluster:
        create_topic(cluster.bootstrap, "t", 4, 2)
        parts = describe(cluster.bootstrap, "t")
        assert len(parts) == 4
        for part in parts.values():
            assert {node % 2 for node in part.replicas} == {0, 1}, part.replicas


def test_setting_reaches_the_roles_and_a_bad_one_is_told(tmp_path: Path) -> None:
    port = str(choose_base())
    small = ["--controllers", "1", "--nodes", "1", "--port", port, "--dir", str(tmp_path / "c")]
    bad = command("local", "up", *small, "--set", "log_level=LOUD", expect=1)
    assert b"log_level" in bad.stderr
    assert b"Traceback" not in bad.stderr
    assert not (tmp_path / "c" / "cluster.json").exists()
    wrong = command("local", "up", *small, "--set", "log_leven=DEBUG", expect=2)
    assert b"did you mean log_level" in wrong.stderr
    command("local", "up", *small, "--set", "node.log_level=DEBUG")
    try:
        assert b'log_level = "DEBUG"' in (tmp_path / "c" / "node-1" / "settings.toml").read_bytes()
        assert command("local", "logs", "node-1", "--dir", str(tmp_path / "c")).stdout
    finally:
        command("local", "down", "--dir", str(tmp_path / "c"))


def test_two_clusters_side_by_side(tmp_path: Path) -> None:
    with (
        running_cluster(tmp_path / "a", controllers=1, nodes=1) as one,
        running_cluster(tmp_path / "b", controllers=1, nodes=1) as other,
    ):
        create_topic(other.bootstrap, "only-here")
        produce(other.bootstrap, "only-here", 10)
        create_topic(one.bootstrap, "only-there")
        names = {row["topic"] for row in command_json("topic", "list", "--bootstrap", other.bootstrap)}
        assert names == {"only-here"}


def test_data_of_another_cluster_is_refused(tmp_path: Path) -> None:
    with (
        running_cluster(tmp_path / "a", controllers=1, nodes=1) as one,
        running_cluster(tmp_path / "b", controllers=1, nodes=1) as two,
    ):
        one.kill("node-1")
        two.kill("node-1")
        shutil.rmtree(one.directory / "node-1" / "data")
        shutil.copytree(two.directory / "node-1" / "data", one.directory / "node-1" / "data")
        refused = command("local", "start", "node-1", "--dir", str(one.directory), expect=1)
        assert b"cluster" in refused.stderr
        assert b"Traceback" not in refused.stderr
