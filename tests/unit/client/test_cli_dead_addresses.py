"""Every command against addresses at which nobody serves: one line that names the address and the mend.

The commands come from the command's own tree, so that a new one is tried without being named here. Each is
a process of its own with an open stdin, because what hangs or breaks does so at a process's end.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from penstock.errors import ExitCode
from support.forked_commands import ForkedCommand, ForkedCommands, forked_commands
from unit.client.cli_tree import leaves

ADDRESS_OPTIONS = {"bootstrap": "--bootstrap", "gateway": "--gateway", "controllers": "--controllers"}
"""Options that take addresses, by parameter: Kafka's port, a gateway's gRPC port, controllers' gRPC ports.

No command takes an HTTP address."""

WORDS = {
    "topic create": ["x"],
    "topic describe": ["x"],
    "topic delete": ["x"],
    "topic alter": ["x", "--set", "retention.ms=1"],
    "topic add-partitions": ["x", "--total", "2"],
    "topic trim": ["x", "--everything"],
    "topic reassign": ["x", "--status"],
    "group describe": ["x"],
    "group reset-offsets": ["x", "--to-earliest"],
    "group delete": ["x"],
    "config describe": ["cluster"],
    "feature set": ["transaction.version=1"],
    "transaction describe": ["x"],
    "transaction abort": ["x", "0", "--start-offset", "1"],
    "config set": ["cluster", "log.retention.ms=1"],
    "config unset": ["cluster", "log.retention.ms"],
    "produce": ["x"],
    "consume": ["x"],
    "node forget": ["1"],
    "controller replace": ["1", "--yes"],
    "cluster upgrade": ["--dry-run"],
    "user add": ["x"],
    "user password": ["x"],
    "user delete": ["x"],
    "acl add": ["User:x", "read", "topic:x"],
    "acl remove": ["--all"],
    "acl test": ["User:x", "read", "topic:x"],
    "quota set": ["producer_byte_rate=1", "--user", "x"],
    "cert refuse": ["5f3a91"],
    "cert allow": ["5f3a91"],
    "node add": ["4", "--dry-run"],
    "node drain": ["1", "--dry-run"],
    "node uncordon": ["1", "--dry-run"],
    "node replace": ["1", "--dry-run"],
    "node remove": ["1", "--dry-run"],
    "topic set-replication-factor": ["x", "3", "--dry-run"],
    "cluster rebalance": ["--dry-run"],
    "leader elect": ["--dry-run"],
    "cluster export": ["x"],
    "cluster recover": ["--from-nodes", "--dry-run"],
    "cluster rolling-restart": ["--dry-run"],
    "node strays": ["1"],
    "scale": ["storage-node=3", "--via", "print"],
    "explain node": ["1"],
    "explain operation": ["1"],
    "explain partition": ["x-0"],
    "operation show": ["1"],
    "operation watch": ["1"],
    "operation pause": ["1"],
    "operation resume": ["1"],
    "operation cancel": ["1"],
    "operation throttle": ["1", "auto"],
    "spark sink describe": ["x"],
    "spark run archive": ["--topic", "x", "--to", "x"],
    "spark run audit": ["--topic", "x"],
    "spark run repartition": ["--topic", "x", "--to", "y"],
    "spark run replay": ["--topic", "x", "--to", "y"],
    "spark run windowed": [
        "--topic",
        "x",
        "--to",
        "y",
        "--window",
        "1h",
        "--watermark",
        "1m",
        "--group-by",
        "f",
        "--schema",
        "f INT",
    ],
    "spark run report": ["--topic", "x", "--out", "x.html"],
    "quota unset": ["producer_byte_rate", "--user", "x"],
}
"""What a command needs to be called at all; the others need nothing."""

REFUSALS = ("cert refuse", "cert allow", "cert refused")
"""Of the commands of certificates those that ask the controllers."""

MORE_WORDS = {("produce", "gateway"): ["--receipt"]}
"""What it needs to use an option."""

MENDS = re.compile(r"is --(bootstrap|gateway|controllers) right\?|--gateway HOST:PORT")
PROCESS_TIMEOUT_S = 120.0
"""A second and a half on a quiet machine."""


def takes(command: click.Command) -> list[str]:
    """Parameters of a command that are addresses."""
    return [p.name for p in command.params if p.name in ADDRESS_OPTIONS and "HOST:PORT" in shown(p)]


def shown(parameter: click.Parameter) -> str:
    """How help shows it."""
    return f"{parameter.metavar or ''} {getattr(parameter, 'help', '') or ''}"


CALLS = {
    **{
        f"{name} {ADDRESS_OPTIONS[option]}": (
            [*name.split(), *WORDS.get(name, []), *MORE_WORDS.get((name, option), [])],
            option,
        )
        for name, command in leaves().items()
        for option in takes(command)
    },
    "produce --receipt --bootstrap": (["produce", "x", "--receipt"], "bootstrap"),
}
AHEAD = 6
"""Commands that run already while one is waited for: each waits a second for the address that is silent."""


@dataclass(frozen=True)
class Dead:
    """Addresses at which nobody serves."""

    refusing: str
    silent: str
    nameless: str = "no-such-host.invalid:9092"

    def faults(self) -> dict[str, str]:
        return {
            self.refusing: "connection refused",
            self.silent: "no answer within 1 s",
            self.nameless: "no such host",
        }


@pytest.fixture(scope="module")
def dead() -> Iterator[Dead]:
    """Bound ports: nobody else gets them meanwhile. The silent one takes connections and never reads."""
    with socket.socket() as refusing, socket.create_server(("127.0.0.1", 0), backlog=128) as silent:
        refusing.bind(("127.0.0.1", 0))
        yield Dead(*(f"127.0.0.1:{s.getsockname()[1]}" for s in (refusing, silent)))


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedCommands]:
    with forked_commands(tmp_path_factory.mktemp("commands")) as found:
        yield found


def started(commands: ForkedCommands, words: list[str], directory: Path) -> ForkedCommand:
    """`penstock` with an open stdin, in an empty directory, with a second for each address."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return commands.start(words, directory, {**environment, "PENSTOCK_TIMEOUT_S": "1"})


@pytest.fixture(scope="module")
def calls(
    commands: ForkedCommands, dead: Dead, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, ForkedCommand]]:
    """The processes of a call by address, and those of the next ones begun."""
    cwd = tmp_path_factory.mktemp("empty")
    names = list(CALLS)
    begun: dict[str, dict[str, ForkedCommand]] = {}

    def begin(name: str) -> None:
        words, option = CALLS[name]
        begun[name] = {
            address: started(commands, [*words, ADDRESS_OPTIONS[option], address], cwd)
            for address in dead.faults()
        }

    def get(name: str) -> dict[str, ForkedCommand]:
        at = names.index(name)
        for following in names[at : at + 1 + AHEAD]:
            if following not in begun:
                begin(following)
        return begun[name]

    return get


def test_every_command_for_a_cluster_takes_an_address_that_is_tried_here() -> None:
    for name, command in leaves().items():
        found = takes(command)
        is_here = name.startswith(("local ", "cert ", "user bootstrap", "cluster import", "spark offsets"))
        assert bool(found) != (is_here and name not in REFUSALS), name
        for parameter in command.params:
            if any(word in shown(parameter) for word in ("HOST:PORT", "://", "URL")):
                assert parameter.name in ADDRESS_OPTIONS, f"{name} {parameter.name}"
    assert set(WORDS) <= set(leaves())


@pytest.mark.parametrize("name", CALLS)
def test_a_dead_address_is_one_line_that_names_it_and_the_mend(
    name: str, dead: Dead, calls: Callable[[str], dict[str, ForkedCommand]]
) -> None:
    processes = calls(name)
    for address, fault in dead.faults().items():
        code, out, error = processes[address].outcome(PROCESS_TIMEOUT_S)
        assert (code, out) == (ExitCode.UNREACHABLE, ""), (address, error)
        assert error.count("\n") == 1, error
        assert f"{address}: " in error, error
        assert fault in error, error
        assert MENDS.search(error), error
        assert "Traceback" not in error


def test_the_first_address_that_answers_counts_and_all_are_named_when_none_does(
    dead: Dead, commands: ForkedCommands, tmp_path: Path
) -> None:
    addresses = [dead.refusing, dead.nameless, dead.silent]
    process = started(commands, ["topic", "list", "--bootstrap", ",".join(addresses)], tmp_path)
    code, _, error = process.outcome(PROCESS_TIMEOUT_S)
    assert code == ExitCode.UNREACHABLE
    assert [address for address in addresses if address in error] == addresses


@pytest.mark.parametrize("value", ["soon", "0", "-1", "inf", "nan"])
def test_a_bad_timeout_is_named(value: str, dead: Dead, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "topic", "list", "--bootstrap", dead.refusing],
        env={**os.environ, "PENSTOCK_TIMEOUT_S": value},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PROCESS_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == ExitCode.USAGE
    assert f"PENSTOCK_TIMEOUT_S='{value}'" in done.stderr
