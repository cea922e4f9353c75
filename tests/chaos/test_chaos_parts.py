"""The parts of the harness that could lie: what is read from disk, what is measured, what is cleaned up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import chaos.scenarios
from chaos import network
from chaos.__main__ import main
from chaos.checker import Anomaly
from chaos.cluster import Cluster, Needs
from chaos.history import UNREADABLE, Status
from chaos.janitor import Janitor
from chaos.load import Sender, number_of, value_of
from chaos.network import HOST, Network
from chaos.replicas import read_replica
from chaos.report import one_line, table
from chaos.run import TOPIC, Result
from chaos.scenario import SCENARIOS
from chaos.scenarios import operations
from chaos.scene import ASSIGNMENT
from penstock.local.processes import ProcessState, identity, process_state
from penstock_kafka.records.batch import stamp
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.markers import Marker, build_marker
from support.waiting import wait_for


def test_values() -> None:
    for number in (0, 7, 10**11):
        assert number_of(value_of(number)) == number
    damaged = bytearray(value_of(7))
    damaged[-1] ^= 1
    for value in (None, b"", b"x", b"7:", b"7", bytes(damaged)):
        assert number_of(value) == UNREADABLE


def segment(directory: Path, *offsets: int) -> Path:
    folder = directory / "t-0"
    folder.mkdir(parents=True)
    data = bytearray()
    for offset in offsets:
        batch = bytearray(
            build_batch([NewRecord(None, value_of(offset)), NewRecord(None, value_of(offset + 1))])
        )
        batch[:16] = stamp(offset, 3, batch)
        data += batch
    file = folder / "00000000000000000000.log"
    file.write_bytes(data)
    return file


def test_replica_is_read_from_its_files(tmp_path: Path) -> None:
    segment(tmp_path, 0, 2, 10)
    polls = read_replica(tmp_path, 101, "t", range(2))
    assert list(polls.offset) == list(polls.value) == [0, 1, 2, 3, 10, 11]
    assert set(polls.process) == {101}


def test_markers_on_a_replicas_disk_are_passed_over(tmp_path: Path) -> None:
    file = segment(tmp_path, 0)
    marker = bytearray(build_marker(7, 0, Marker(commits=True, coordinator_epoch=0), 0))
    marker[:16] = stamp(2, 3, marker)
    with file.open("ab") as log:
        log.write(marker)
    assert list(read_replica(tmp_path, 101, "t", range(1)).value) == [0, 1]


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_damage_on_a_replicas_disk_is_seen(tmp_path: Path, damage: str) -> None:
    file = segment(tmp_path, 0, 2)
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[-3] ^= 4
    else:
        del data[-5:]
    file.write_bytes(data)
    polls = read_replica(tmp_path, 101, "t", range(1))
    assert list(polls.value) == [0, 1, UNREADABLE]


def test_gaps_and_first_acks_are_of_the_worst_partition() -> None:
    sender = Sender(1, {"bootstrap.servers": "127.0.0.1:1"}, "t", 2, 1.0)
    #        partition, invoked, acked
    rows = (
        (0, 0.0, 0.1),
        (1, 0.0, 0.2),
        (0, 1.0, 1.1),
        (1, 1.0, 5.0),
        (0, 2.0, 2.5),
        (1, 6.0, 6.5),
        (0, 6.0, 0.0),
    )
    for value, (partition, invoked_s, acked_s) in enumerate(rows):
        row = sender.sends.invoke(1, value, partition, value)
        sender.invoked_s.append(invoked_s)
        sender.acked_s.append(acked_s)
        if acked_s:
            sender.sends.complete(row, Status.OK, value)
    assert sender.longest_gap_s() == pytest.approx(4.8)
    assert sender.served_after_s(0.5) == pytest.approx(4.5)
    assert sender.served_after_s(3.0) is None, "partition 0 never acked what was sent since"
    assert sender.acks_in(0.05, 1.1) == 2


def test_table_and_lines() -> None:
    good = Result("a", acked=5, gap_s=1.0)
    bad = Result("b", status="anomalies", lost=1, notes=["lost-write: 1"])
    skipped = Result("c", status="skipped", notes=["no gcc here"])
    assert (good.good, bad.good, skipped.good) == (True, False, True)
    lines = table([good, bad, skipped]).splitlines()
    assert len(lines) == 5
    assert len({len(line) for line in lines}) == 1, "columns stand in line"
    assert "skipped: no gcc here" in lines[-1]
    assert "lost-write: 1" in one_line(bad)


def test_list_and_unknown_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert "leader-kill" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["--scenario", "no-such"])
    assert ended.value.code == 2


def test_every_scenario_and_class_is_documented() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "testing" / "chaos.md").read_text()
    assert chaos.scenarios.__all__
    assert [name for name in SCENARIOS if f"`{name}`" not in text] == []
    assert [kind for kind in Anomaly if f"{kind}" not in text] == []


def test_what_an_operation_is_to_have_done_is_told_by_the_replicas() -> None:
    """The scenarios of operations; their topics have one assignment, and the fourth node is empty."""
    by_name = {change.name: change for change in operations.CHANGES}
    topics = (TOPIC, operations.BALLAST)
    before = {(topic, n): list(nodes) for topic in topics for n, nodes in enumerate(ASSIGNMENT)}
    assert [name for name, change in by_name.items() if change.holds(before)] == []
    replaced = {key: [4 if n == 2 else n for n in nodes] for key, nodes in before.items()}
    assert [name for name, change in by_name.items() if change.holds(replaced)] == [
        "drain",
        "node-add",
        "node-replace",
        "node-remove",
    ]
    one_left = replaced | {(operations.BALLAST, 3): [2, 3, 1]}
    assert [name for name, change in by_name.items() if change.holds(one_left)] == ["node-add"]
    # All of what the empty node got is of one topic.
    of_one = {key: nodes if key[0] == TOPIC else before[key] for key, nodes in replaced.items()}
    assert not by_name["node-add"].holds(of_one)
    assert {name for name, change in by_name.items() if change.removes} == {"node-replace", "node-remove"}


def test_a_node_that_was_let_go_is_expected_no_more(tmp_path: Path) -> None:
    with Janitor() as janitor:
        cluster = Cluster(tmp_path, Needs(nodes=4), janitor)
        assert cluster.nodes == ["node-1", "node-2", "node-3", "node-4"]
        (tmp_path / "node-2").mkdir()
        cluster.log("node-2").write_text("it was retired\n")
        assert "it was retired" in cluster.let_go("node-2")
        assert cluster.nodes == ["node-1", "node-3", "node-4"]
        assert "node-2" not in cluster.names
        cluster.log("node-4").parent.mkdir()
        cluster.log("node-4").write_text("Traceback (most recent call last)\n")
        with pytest.raises(AssertionError, match="stack trace"):
            cluster.let_go("node-4")


ORPHAN = """
import subprocess, sys, time
from chaos.janitor import Janitor
from penstock.local.processes import identity
janitor = Janitor()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
janitor.process(child.pid, identity(child.pid))
print(child.pid, flush=True)
time.sleep(600)
"""


def test_what_a_killed_run_leaves_behind_is_ended() -> None:
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True, env=environment
    ) as run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        known = identity(pid)
        assert process_state(pid, known) is not ProcessState.DEAD
        os.kill(run.pid, signal.SIGKILL)
        run.wait(30)
        wait_for(lambda: process_state(pid, known) is ProcessState.DEAD, "the orphan is ended", 60)


@pytest.mark.skipif(bool(network.missing()), reason=network.missing() or "-")
def test_network_can_be_broken_and_mended() -> None:
    with Janitor() as janitor:
        net = Network(["a", "b", "c"], janitor)
        try:
            net.make()
            servers = [
                subprocess.Popen([*net.entering(name), sys.executable, "-c", SERVER]) for name in ("a", "b")
            ]
            try:

                def hears(name: str, other: str) -> bool:
                    entering = [] if name == HOST else net.entering(name)
                    done = subprocess.run(
                        [*entering, sys.executable, "-c", CLIENT, net.address(other)], check=False, timeout=60
                    )
                    return done.returncode == 0

                def heard_by_all() -> bool:
                    return all(hears(name, "a") for name in ("b", "c", HOST))

                wait_for(heard_by_all, "everyone hears a", 60)
                net.isolate("a", ["b"])
                assert (hears("b", "a"), hears("c", "a"), hears("a", "b")) == (False, True, False)
                net.mend()
                wait_for(heard_by_all, "everyone hears a again", 60)
                net.drop(["c"], "a")
                assert (hears("c", "a"), hears("b", "a")) == (False, True)
                net.isolate("a", ["b", "c", HOST])
                assert not hears(HOST, "a")
            finally:
                for server in servers:
                    server.kill()
                    server.wait()
        finally:
            net.remove()
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert net.namespace("a") not in left


SERVER = """
import socket
server = socket.create_server(("0.0.0.0", 7))
while True:
    server.accept()[0].close()
"""
CLIENT = """
import socket, sys
socket.create_connection((sys.argv[1], 7), timeout=2).close()
"""
