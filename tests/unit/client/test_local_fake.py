"""LocalCluster against stand-in roles that misbehave as real ones must not."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import run
from penstock.errors import CommandError, ExitCode
from penstock.local import cluster as cluster_module
from penstock.local import ports, processes
from penstock.local.cluster import LocalCluster
from penstock.local.plan import GATEWAY, NODE, ClusterSpec
from penstock.local.ports import choose_base
from penstock.local.processes import ProcessState
from support.waiting import wait_for


def small(port: int | None = None) -> ClusterSpec:
    return ClusterSpec(controllers=1, nodes=1, gateways=1, port=port or choose_base())


def states(cluster: LocalCluster) -> dict[str, str]:
    return {row.name: str(row.state) for row in cluster.status().processes}


def pid_of(cluster: LocalCluster, name: str) -> int:
    pid = cluster.state.process(name).pid
    assert pid is not None
    return pid


def test_up_status_json_has_exactly_the_documented_keys(fake_cluster: LocalCluster) -> None:
    found = fake_cluster.status().to_json()
    assert set(found) == {"bootstrap", "direct_bootstrap", "gateway", "http", "processes"}
    rows = json.loads(json.dumps(found["processes"]))
    assert [set(row) for row in rows] == [{"name", "role", "id", "pid", "state"}] * 4
    assert {row["state"] for row in rows} == {"running"}


def test_killed_stays_dead_until_started(fake_cluster: LocalCluster) -> None:
    pid = pid_of(fake_cluster, "node-2")
    assert fake_cluster.kill("node-2") == pid
    assert states(fake_cluster)["node-2"] == "dead"
    with pytest.raises(CommandError, match="node-2 is dead already; `penstock local start node-2`"):
        fake_cluster.kill("node-2")
    ports_before = fake_cluster.state.member("node-2").ports
    assert fake_cluster.start("node-2") == []
    assert states(fake_cluster)["node-2"] == "running"
    assert fake_cluster.state.member("node-2").ports == ports_before
    assert pid_of(fake_cluster, "node-2") != pid
    assert "running already" in fake_cluster.start("node-2")[0]


def test_stopped_and_continued(fake_cluster: LocalCluster) -> None:
    fake_cluster.kill("node-1", signal.SIGSTOP)
    assert states(fake_cluster)["node-1"] == "stopped"
    fake_cluster.kill("node-1", signal.SIGCONT)
    assert states(fake_cluster)["node-1"] == "running"
    fake_cluster.kill("node-1", signal.SIGSTOP)
    assert "goes on" in fake_cluster.start("node-1")[0]
    fake_cluster.kill("node-1", signal.SIGTERM)
    assert states(fake_cluster)["node-1"] == "dead"


def test_unknown_name_lists_the_names(fake_cluster: LocalCluster) -> None:
    with pytest.raises(CommandError, match="no process is named 'node-9'; there are: controller-1, node-1"):
        fake_cluster.kill("node-9")


def test_several_unknown_names_are_all_named_and_nothing_happens(fake_cluster: LocalCluster) -> None:
    pid = pid_of(fake_cluster, "node-1")
    with pytest.raises(CommandError, match="named 'node-9' or 'x'; there are: controller-1, node-1") as told:
        fake_cluster.kill_several(["node-1", "node-9", "x"])
    assert told.value.exit_code == ExitCode.USAGE
    with pytest.raises(CommandError, match="named 'node-9'; there are"):
        fake_cluster.start("node-1", "node-9")
    assert states(fake_cluster)["node-1"] == "running"
    assert pid_of(fake_cluster, "node-1") == pid


def test_several_are_started_side_by_side(fake_cluster: LocalCluster) -> None:
    """Neither of two is ready before the other one was asked whether it is."""
    names = ["node-1", "node-2"]
    pids = {name: pid_of(fake_cluster, name) for name in names}
    assert fake_cluster.kill_several(names) == pids
    for name in names:
        (fake_cluster.directory / name / "unready").touch()
        (fake_cluster.directory / name / "told").unlink()

    def release() -> None:
        wait_for(
            lambda: all((fake_cluster.directory / n / "told").exists() for n in names), "both asked", 120
        )
        for name in names:
            (fake_cluster.directory / name / "unready").unlink()

    thread = threading.Thread(target=release, daemon=True)
    thread.start()
    assert fake_cluster.start(*names, *names) == []
    thread.join()
    assert states(fake_cluster) == dict.fromkeys(states(fake_cluster), "running")


def test_start_all_starts_what_is_dead_or_stopped_and_nothing_else(fake_cluster: LocalCluster) -> None:
    kept = pid_of(fake_cluster, "controller-1")
    fake_cluster.kill_several(["node-2", "gateway-1"])
    fake_cluster.kill("node-1", signal.SIGSTOP)
    assert fake_cluster.start_all() == (
        ["node-1", "node-2", "gateway-1"],
        ["node-1 was stopped and goes on"],
    )
    assert set(states(fake_cluster).values()) == {"running"}
    assert pid_of(fake_cluster, "controller-1") == kept
    assert fake_cluster.start_all() == ([], [])


def test_a_storage_node_that_was_removed_is_not_started_with_all_others(fake_cluster: LocalCluster) -> None:
    """Its directory is refused for ever: that kept `start --all` and `up` from the others too."""
    fake_cluster.kill_several(None)
    data = fake_cluster.directory / "node-2" / "data"
    data.mkdir(exist_ok=True)
    (data / "retired").write_text("#\noperation=7\n")
    names, notes = fake_cluster.start_all()
    assert ("node-1" in names, "node-2" in names, notes) == (True, False, [])
    fake_cluster.down()
    assert fake_cluster.up(ClusterSpec())
    assert states(fake_cluster) == dict.fromkeys(states(fake_cluster), "running") | {"node-2": "dead"}


def test_several_are_killed_side_by_side(fake_cluster: LocalCluster) -> None:
    """The signal reaches the second although the first does not go: it waits for TERM's effect on both."""
    (fake_cluster.directory / "node-1" / "ignore-term").touch()
    with pytest.raises(CommandError) as told:
        fake_cluster.kill_several(["node-1", "node-2"], signal.SIGTERM, timeout_s=2.0)
    assert f"node-1 (process {pid_of(fake_cluster, 'node-1')})" in told.value.message
    assert "still there 2 s after SIGTERM" in told.value.message
    wait_for(lambda: states(fake_cluster)["node-2"] == "dead", "node-2 ends", 120)
    assert states(fake_cluster)["node-1"] == "running"
    fake_cluster.kill("node-1")


def test_nothing_is_killed_when_one_of_several_is_dead_already(fake_cluster: LocalCluster) -> None:
    fake_cluster.kill("node-2")
    with pytest.raises(CommandError, match="node-2 is dead already; `penstock local start node-2` brings it"):
        fake_cluster.kill_several(["node-1", "node-2"])
    assert states(fake_cluster)["node-1"] == "running"
    assert set(fake_cluster.kill_several(None)) == {"controller-1", "node-1", "gateway-1"}
    assert fake_cluster.alive() == []
    assert fake_cluster.kill_several(None) == {}


def test_the_commands_take_several_names_or_all(
    fake_cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--dir", str(fake_cluster.directory)]

    def says(*words: str, code: int = 0) -> str:
        assert run(["local", *words, *where]) == code
        return capsys.readouterr().err

    for command in ("start", "kill"):
        for words in ([], ["node-1", "--all"]):
            assert "NAME..., or --all" in says(command, *words, code=2)
    assert says("start", "--all") == "every process is running already\n"
    assert says("kill", "node-1", "node-2").count("SIGKILL sent") == 2
    assert "node-1, node-2: ready" in says("start", "node-1", "node-2")
    assert says("kill", "--all").count("SIGKILL sent") == 4
    assert says("kill", "--all") == "nothing was running\n"
    assert "controller-1, node-1, node-2, gateway-1: ready" in says("start", "--all")
    assert "no process is named 'node-9'; there are: controller-1" in says(
        "start", "node-9", "node-1", code=2
    )


def test_add_takes_the_next_name(fake_cluster: LocalCluster) -> None:
    assert fake_cluster.add(NODE) == "node-3"
    assert fake_cluster.add(GATEWAY) == "gateway-2"
    assert states(fake_cluster)["node-3"] == "running"
    assert fake_cluster.bootstrap.count(",") == 1


def test_down_leaves_nothing_and_up_brings_the_same_back(
    fake_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "REAP_TIMEOUT_S", 60.0)
    before = fake_cluster.state
    pids = [pid_of(fake_cluster, p.name) for p in before.processes]
    (fake_cluster.directory / "node-1" / "data").mkdir()
    fake_cluster.kill("node-1", signal.SIGSTOP)
    assert len(fake_cluster.down(reaped=True)) == 4
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert fake_cluster.up(ClusterSpec()) is True
    assert fake_cluster.state.members == before.members
    assert fake_cluster.up(ClusterSpec()) is False
    assert (fake_cluster.directory / "node-1" / "data").is_dir()
    fake_cluster.down(wipe=True)
    assert not fake_cluster.directory.exists()


def test_wipe_leaves_what_others_put_there(fake_cluster: LocalCluster) -> None:
    (fake_cluster.directory / "notes.txt").write_text("mine")
    fake_cluster.down(wipe=True)
    assert [entry.name for entry in fake_cluster.directory.iterdir()] == ["notes.txt"]


def test_term_ignored_means_kill(fake_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "STOP_TIMEOUTS_S", ((NODE, 0.2), (GATEWAY, 5.0), ("controller", 5.0)))
    (fake_cluster.directory / "node-1" / "ignore-term").touch()
    told: list[str] = []
    LocalCluster(fake_cluster.directory, told.append).down()
    assert fake_cluster.alive() == []
    assert any("node-1 did not stop within" in line for line in told)


def test_death_at_start_shows_the_last_lines_and_stops_the_others(tmp_path: Path, fake_roles: None) -> None:
    (tmp_path / "node-1").mkdir()
    (tmp_path / "node-1" / "die").touch()
    cluster = LocalCluster(tmp_path)
    with pytest.raises(CommandError, match=r"node-1 ended at its start(.|\n)*choose another"):
        cluster.up(small())
    # A new cluster that failed leaves its logs and nothing else: the next try is free to be another.
    assert not cluster.store.exists()
    assert (tmp_path / "node-1" / "log.txt").exists()
    assert not (tmp_path / "controller-1" / "settings.toml").exists()
    assert cluster.up(small()) is True
    cluster.down()


def test_failed_restart_keeps_the_old_settings(fake_cluster: LocalCluster) -> None:
    fake_cluster.down()
    (fake_cluster.directory / "node-1" / "die").touch()
    with pytest.raises(CommandError, match="node-1 ended"):
        fake_cluster.up(ClusterSpec(settings={NODE: {"disk_threads": "0"}}))
    assert fake_cluster.state.settings == {}
    assert fake_cluster.alive() == []


class Time:
    """The cluster's `time`, which stands still until all that the test is about is there."""

    def __init__(self, runs: Callable[[], bool]) -> None:
        self._runs = runs
        self._now_s = 1000.0

    def monotonic(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        self._now_s += seconds if self._runs() else 0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def test_not_ready_in_time_is_told_with_the_reason(
    tmp_path: Path, fake_roles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node-1").mkdir()
    (tmp_path / "node-1" / "unready").touch()
    names = ("controller-1", "node-1", "gateway-1")
    all_answer = Time(lambda: all((tmp_path / name / "told").exists() for name in names))
    monkeypatch.setattr(cluster_module, "time", all_answer)
    with pytest.raises(CommandError, match="node-1 is not ready after 1 s: told so"):
        LocalCluster(tmp_path).up(small(), timeout_s=0.6)


def test_up_waits_until_the_gateway_sees_every_node(tmp_path: Path, fake_roles: None) -> None:
    (tmp_path / "gateway-1").mkdir()
    seen = tmp_path / "gateway-1" / "nodes"
    seen.write_text("0")
    cluster = LocalCluster(tmp_path)
    asked = tmp_path / "gateway-1" / "asked"

    def register() -> None:
        # It asks again, and again, for as long as there are too few.
        wait_for(lambda: asked.exists() and asked.stat().st_size >= 3, "three questions", 120)
        seen.write_text("1")

    thread = threading.Thread(target=register, daemon=True)
    thread.start()
    cluster.up(small())
    assert seen.read_text() == "1"
    thread.join()
    cluster.down()


def test_start_of_one_that_cannot_be_ready_is_a_note(
    fake_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "PATIENCE_S", 0.3)
    fake_cluster.kill("node-1")
    (fake_cluster.directory / "node-1" / "unready").touch()
    (note,) = fake_cluster.start("node-1")
    assert "node-1 is not ready" in note
    assert "told so" in note
    assert states(fake_cluster)["node-1"] == "starting"


def test_taken_port_names_port_and_mend(tmp_path: Path, fake_roles: None) -> None:
    base = choose_base()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", base))
        other.listen()
        with pytest.raises(CommandError, match=rf"port {base} is taken by process {os.getpid()} .*--port"):
            LocalCluster(tmp_path / "c").up(small(base))
    assert not (tmp_path / "c").exists()


def test_reused_pid_is_never_signalled(fake_cluster: LocalCluster) -> None:
    fake_cluster.kill("node-1")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        state = fake_cluster.state
        state.process("node-1").pid = stranger.pid
        fake_cluster.store.save(state)
        assert states(fake_cluster)["node-1"] == "dead"
        with pytest.raises(CommandError, match="dead already"):
            fake_cluster.kill("node-1")
        fake_cluster.down()
        assert stranger.poll() is None
        stranger.communicate(b"\n")
        assert stranger.returncode == 0


def test_differences_name_the_option(fake_cluster: LocalCluster) -> None:
    assert fake_cluster.differences({"nodes": 3, "controllers": 1}) == ["nodes is 2"]
    assert fake_cluster.differences({}) == []


def test_environment_does_not_reach_the_roles(
    tmp_path: Path, fake_roles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DATA_DIR", "/nowhere")
    cluster = LocalCluster(tmp_path)
    cluster.up(small())
    environment = Path(f"/proc/{pid_of(cluster, 'node-1')}/environ").read_bytes()
    cluster.down()
    assert b"PENSTOCK_" not in environment


def test_commands_that_change_wait_for_each_other(fake_cluster: LocalCluster) -> None:
    results: list[object] = []

    def add() -> None:
        results.append(LocalCluster(fake_cluster.directory).add(NODE))

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, results)) == ["node-3", "node-4", "node-5"]
    assert len(fake_cluster.status().processes) == 7


def test_no_cluster_says_how_to_make_one(tmp_path: Path) -> None:
    for call in (LocalCluster(tmp_path).status, LocalCluster(tmp_path).down):
        with pytest.raises(CommandError, match="penstock local up"):
            call()
    assert list(tmp_path.iterdir()) == []


def test_process_state_of_a_zombie_is_dead() -> None:
    pid = processes.spawn([sys.executable, "-c", "pass"], Path.cwd(), Path(os.devnull))
    known = processes.identity(pid)
    wait_for(lambda: processes.process_state(pid, known) is ProcessState.DEAD, "the child's end")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_killed_while_threads_are_on_their_way_out_is_not_yet_dead(fake_cluster: LocalCluster) -> None:
    for _ in range(20):
        ports_of_node = fake_cluster.state.member("node-1").ports
        fake_cluster.kill("node-1")
        assert all(ports.is_free(port) for port in ports_of_node.values())
        fake_cluster.start("node-1")


def test_processes_show_their_own_command_line(fake_cluster: LocalCluster) -> None:
    for name in ("controller-1", "node-2"):
        words = Path(f"/proc/{pid_of(fake_cluster, name)}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        config = fake_cluster.directory / name / "settings.toml"
        assert words == [
            sys.executable.encode(),
            b"-P",
            b"-m",
            b"fake_role",
            b"--config",
            str(config).encode(),
        ]


def test_free_ports_are_different_and_outside_the_ephemeral_range() -> None:
    avoid = set(range(ports.PORTS_FROM, ports.PORTS_FROM + 100))
    chosen = ports.choose_free(50, avoid)
    assert len(set(chosen)) == 50
    assert not avoid & set(chosen)
    assert all(ports.PORTS_FROM <= port <= ports.PORTS_TO_DEFAULT for port in chosen)


def test_parts_of_the_ports_have_nothing_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three that look at the same time, each finds what no other does."""
    found: list[set[int]] = []
    for part in ("1/3", "2/3", "3/3"):
        monkeypatch.setenv(ports.PART_VARIABLE, part)
        bases = {ports.choose_base() for _ in range(20)}
        found.append(set(ports.choose_free(300, set())) | bases)
    assert len(set.union(*found)) == sum(len(each) for each in found)
    assert max(found[0]) < ports.PORTS_TO_DEFAULT
    assert all(ports.BASE_FROM <= port <= ports.PORTS_TO_DEFAULT for port in set.union(*found))
