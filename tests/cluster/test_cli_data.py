"""The command against a real cluster: topics, produce, consume, cluster, node."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from penstock.local.cluster import LocalCluster


class Cli:
    """Runs `penstock` against one cluster."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def run(self, *arguments: str, stdin: bytes = b"", expect: int = 0) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli.main", *arguments, "--bootstrap", self.bootstrap],
            input=stdin,
            capture_output=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr)
        assert b"Traceback" not in done.stderr
        return done

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)


@pytest.fixture
def cli(shared_cluster: LocalCluster) -> Cli:
    return Cli(shared_cluster.bootstrap)


@pytest.fixture
def topic(cli: Cli) -> str:
    """A topic of 3 partitions."""
    name = f"cli-{uuid.uuid4().hex[:8]}"
    cli.run("topic", "create", name, "--partitions", "3")
    return name


def test_topic_life(cli: Cli) -> None:
    name = f"life-{uuid.uuid4().hex[:8]}"
    assert cli.json("topic", "create", name, "-p", "6", "-r", "3", "-c", "retention.ms=-1") == {
        "topic": name,
        "created": True,
    }
    assert b"exists already" in cli.run("topic", "create", name, expect=1).stderr
    assert cli.json("topic", "create", name, "--if-not-exists")["created"] is False
    row = next(row for row in cli.json("topic", "list") if row["topic"] == name)
    assert (row["partitions"], row["replication_factor"], row["leaderless"]) == (6, 3, 0)
    found = cli.json("topic", "describe", name)
    assert len(found["partitions"]) == 6
    for part in found["partitions"]:
        assert sorted(part["replicas"]) == [1, 2, 3]
        assert part["leader"] in part["replicas"]
        assert (part["earliest"], part["latest"]) == (0, 0)
    leaders = [part["leader"] for part in found["partitions"]]
    assert {leaders.count(node) for node in (1, 2, 3)} == {2}
    cli.run("topic", "delete", name)
    assert name not in {row["topic"] for row in cli.json("topic", "list")}
    assert b"does not exist" in cli.run("topic", "describe", name, expect=1).stderr
    assert b"does not exist" in cli.run("topic", "delete", name, expect=1).stderr
    cli.run("topic", "delete", name, "--if-exists")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("bad/name",), b"bad/name"),
        (("x" * 250,), b"249"),
        (("too-many", "-r", "9"), b"replication"),
        (("bad-config", "-c", "retention.ms=soon"), b"retention.ms"),
        (("bad-config", "-c", "no.such.setting=1"), b"no.such.setting"),
    ],
)
def test_bad_topics_name_the_thing(cli: Cli, arguments: tuple[str, ...], word: bytes) -> None:
    message = cli.run("topic", "create", *arguments, expect=1).stderr
    assert message.count(b"\n") == 1
    assert word.lower() in message.lower()


def test_lines_in_lines_out(cli: Cli, topic: str) -> None:
    lines = [f"line {number}" for number in range(1_000)]
    tally = json.loads(cli.run("produce", topic, "--json", stdin="\n".join(lines).encode()).stdout)
    assert (tally["records"], tally["failed"]) == (1_000, 0)
    out = cli.run("consume", topic, "--until-end").stdout.decode().splitlines()
    assert sorted(out) == sorted(lines)
    assert sum(part["latest"] for part in cli.json("topic", "describe", topic)["partitions"]) == 1_000


def test_keys_partitions_and_formats(cli: Cli, topic: str, tmp_path: Path) -> None:
    source = tmp_path / "lines"
    source.write_bytes(b"AA|one\nUA|two\nAA|three|more\n\xff|\xfe\n")
    cli.run("produce", topic, "--file", str(source), "--key-separator", "|")
    rows = [json.loads(line) for line in cli.run("consume", topic, "-e", "--json").stdout.splitlines()]
    by_value = {row.get("value") or row["value_base64"]: row for row in rows}
    assert by_value["one"]["key"] == by_value["three|more"]["key"] == "AA"
    assert by_value["one"]["partition"] == by_value["three|more"]["partition"]
    assert by_value["one"]["offset"] < by_value["three|more"]["offset"]
    assert by_value["/g=="]["key_base64"] == "/w=="
    number = str(by_value["one"]["partition"])
    out = cli.run("consume", topic, "-e", "-p", number, "--format", "%k=%v@%p\\n").stdout.decode(
        "utf-8", "replace"
    )
    assert f"AA=one@{number}\n" in out


def test_where_reading_begins_and_ends(cli: Cli, topic: str) -> None:
    cli.run("produce", topic, "--partition", "1", stdin=b"".join(b"%d\n" % n for n in range(100)))

    def read(*arguments: str) -> list[int]:
        out = cli.run("consume", topic, "--partition", "1", *arguments).stdout
        return [int(line) for line in out.split()]

    assert read("--count", "5") == [0, 1, 2, 3, 4]
    assert read("--from", "90", "-e") == list(range(90, 100))
    assert read("--from", "-3", "-e") == [97, 98, 99]
    assert read("--from", "latest", "-e") == []
    assert read("--from", "2000-01-01", "--count", "2") == [0, 1]
    assert read("--from", "2100-01-01", "-e") == []
    message = cli.run("consume", topic, "--partition", "1", "--from", "101", expect=1).stderr
    assert b"offset 101 is not in partition 1" in message
    assert b"there are 0 to 2" in cli.run("consume", topic, "--partition", "7", expect=1).stderr


def test_unknown_topic_names_the_mend(cli: Cli) -> None:
    for arguments in (("produce", "nope"), ("consume", "nope"), ("topic", "describe", "nope")):
        message = cli.run(*arguments, stdin=b"x\n", expect=1).stderr
        assert b"penstock topic create nope" in message


def test_failed_records_are_counted(cli: Cli, topic: str) -> None:
    done = cli.run("produce", topic, "-K", "|", "--json", stdin=b"a|b\nno separator\nc|d\n", expect=1)
    assert json.loads(done.stdout) == json.loads(done.stdout) | {"records": 2, "failed": 1}
    assert b"line 2 has no separator" in done.stderr
    done = cli.run("produce", topic, stdin=b"x" * 3_000_000 + b"\nsmall\n", expect=1)
    assert b"1 of 2 records were not delivered" in done.stderr


def test_cluster_and_nodes(cli: Cli, shared_cluster: LocalCluster, topic: str) -> None:
    facts = cli.json("cluster", "describe")
    assert facts["nodes"] == [1, 2, 3]
    assert facts["leaderless"] == 0
    assert facts["cluster_id"]
    rows = cli.json("node", "list")
    assert [row["id"] for row in rows] == [1, 2, 3]
    assert {row["address"] for row in rows} == {shared_cluster.bootstrap}
    direct = Cli(shared_cluster.direct_bootstrap).json("node", "list")
    ports = [shared_cluster.state.member(f"node-{n}").ports["direct"] for n in (1, 2, 3)]
    assert [row["address"] for row in direct] == [f"127.0.0.1:{port}" for port in ports]


def test_direct_listener_serves_too(shared_cluster: LocalCluster, topic: str) -> None:
    direct = Cli(shared_cluster.direct_bootstrap)
    direct.run("produce", topic, stdin=b"by the direct way\n")
    assert direct.run("consume", topic, "-e").stdout == b"by the direct way\n"
    assert Cli(shared_cluster.bootstrap).run("consume", topic, "-e").stdout == b"by the direct way\n"
