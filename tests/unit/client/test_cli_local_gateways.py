"""Commands to which no address is named: the running local cluster's gateways, else the default and a mend."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from penstock.cli import kafka
from penstock.cli.kafka import find_bootstrap, kafka_connection
from penstock.errors import CommandError, ExitCode
from penstock.local.cluster import LocalCluster
from unit.client.cli_tree import leaves
from unit.client.test_cli_dead_addresses import WORDS, takes

KAFKA_COMMANDS = {name: command for name, command in leaves().items() if "bootstrap" in takes(command)}


def bootstrap_of(name: str, *words: str) -> str:
    """What the command would talk to, called with those words."""
    context = KAFKA_COMMANDS[name].make_context(name, [*WORDS.get(name, []), *words])
    found: str = context.params["bootstrap"]
    return found


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP", raising=False)
    monkeypatch.delenv("PENSTOCK_LOCAL_DIR", raising=False)
    monkeypatch.chdir(tmp_path)


def test_every_command_finds_the_running_local_cluster_unless_an_address_is_named(
    fake_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert {"produce", "consume", "topic list", "group list", "config set"} <= set(KAFKA_COMMANDS)
    directory = str(fake_cluster.directory)
    for name in KAFKA_COMMANDS:
        assert bootstrap_of(name) == kafka.BOOTSTRAP_DEFAULT, name
        assert bootstrap_of(name, "--dir", directory) == fake_cluster.bootstrap, name
        assert bootstrap_of(name, "--dir", directory, "-b", "h:1") == "h:1", name
    monkeypatch.setenv("PENSTOCK_LOCAL_DIR", directory)
    assert bootstrap_of("topic list") == fake_cluster.bootstrap
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", "h:2")
    assert bootstrap_of("topic list", "--dir", directory) == "h:2"


def test_what_to_do_is_said_where_nobody_answers_at_an_address_that_nobody_named(
    fake_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def told(directory: Path) -> str:
        with pytest.raises(CommandError) as refusal:
            kafka_connection(find_bootstrap(directory))
        assert refusal.value.exit_code == ExitCode.UNREACHABLE
        assert "\n" not in refusal.value.message
        return refusal.value.message

    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        monkeypatch.setattr(kafka, "BOOTSTRAP_DEFAULT", default := f"127.0.0.1:{dead.getsockname()[1]}")
        nothing = told(tmp_path / "nothing")
        fake_cluster.kill("gateway-1")
        stopped = told(fake_cluster.directory)
    assert nothing.endswith("`penstock local up` starts a local cluster, --bootstrap HOST:PORT names another")
    assert f"no gateway of the cluster in {fake_cluster.directory} runs: `penstock local start" in stopped
    for message in (nothing, stopped):
        assert f"{default}: connection refused" in message


def test_the_gateways_that_run_are_asked_and_the_others_are_not(fake_cluster: LocalCluster) -> None:
    assert find_bootstrap(fake_cluster.directory) == fake_cluster.bootstrap
    fake_cluster.kill("gateway-1")
    assert find_bootstrap(fake_cluster.directory) == kafka.BOOTSTRAP_DEFAULT
    fake_cluster.start("gateway-1")
    assert find_bootstrap(fake_cluster.directory) == fake_cluster.bootstrap


def test_a_local_clusters_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{")
    with pytest.raises(CommandError) as refusal:
        bootstrap_of("topic list", "--dir", str(tmp_path))
    assert str(tmp_path / "cluster.json") in refusal.value.message
