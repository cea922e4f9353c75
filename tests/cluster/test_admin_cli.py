"""`penstock config`, and what changes topics that are there: in this process, against a real cluster."""

from __future__ import annotations

import json
import re
import time
import urllib.request
import uuid
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.cli.main import run
from penstock.local.cluster import LocalCluster
from support.kafka import client_config, commit, describe, produce, read_all
from support.waiting import wait_for


class Cli:
    """Runs commands and gives what they print."""

    def __init__(self, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.bootstrap = bootstrap
        self._capsys = capsys

    def run(self, *arguments: str, expect: int = 0) -> str:
        """What was said on stdout and stderr."""
        self._capsys.readouterr()
        code = run([*arguments, "--bootstrap", self.bootstrap])
        said = self._capsys.readouterr()
        assert code == expect, (arguments, code, said)
        return said.out + said.err

    def json(self, *arguments: str) -> Any:
        self._capsys.readouterr()
        assert run([*arguments, "--json", "--bootstrap", self.bootstrap]) == 0
        return json.loads(self._capsys.readouterr().out)


@pytest.fixture
def cli(shared_cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(shared_cluster.bootstrap, capsys)


@pytest.fixture
def topic(cli: Cli) -> str:
    name = f"changed-{uuid.uuid4().hex[:8]}"
    cli.run("topic", "create", name, "--partitions", "2", "--replication-factor", "1")
    return name


def settings(cli: Cli, *what: str) -> dict[str, tuple[str, str]]:
    return {row["name"]: (row["value"], row["set_by"]) for row in cli.json("config", "describe", *what)}


def test_settings_are_shown_set_and_unset(cli: Cli, topic: str) -> None:
    assert settings(cli, "topic", topic) == {}
    assert settings(cli, "topic", topic, "--all")["retention.ms"] == ("604800000", "default")
    cli.run("config", "set", "topic", topic, "retention.ms=86400000", "segment.ms=3600000")
    cli.run("config", "set", "topic", topic, "retention.ms=1", "--dry-run")
    assert settings(cli, "topic", topic) == {
        "retention.ms": ("86400000", "topic"),
        "segment.ms": ("3600000", "topic"),
    }
    for row in cli.json("config", "describe", "topic", topic):
        assert row["author"] == "User:ANONYMOUS", row
        assert abs(row["set_ms"] - time.time() * 1000) < 600_000, row
        assert "[set by" not in row["about"]
    assert "User:ANONYMOUS" in cli.run("config", "describe", "topic", topic)
    cli.run("topic", "alter", topic, "--set", "max.message.bytes=2048", "--unset", "retention.ms")
    cli.run("config", "unset", "topic", topic, "segment.ms")
    assert settings(cli, "topic", topic) == {"max.message.bytes": ("2048", "topic")}
    # Defaults of all topics; a setting that no other test of the shared cluster minds.
    cli.run("config", "set", "cluster", "log.segment.delete.delay.ms=61000")
    assert settings(cli, "cluster") == {"log.segment.delete.delay.ms": ("61000", "cluster")}
    assert settings(cli, "topic", topic)["file.delete.delay.ms"] == ("61000", "cluster")
    cli.run("config", "unset", "cluster", "log.segment.delete.delay.ms")
    assert "log.dirs" in settings(cli, "node", "1")
    files = [row for row in cli.json("config", "describe", "node", "1") if row["name"] == "log.dirs"]
    assert [(row["needs_restart"], row["author"]) for row in files] == [(True, None)]
    assert "Failure domain" in cli.run("config", "describe", "node", "1", "--all", "--explain")


def test_errors_name_the_mend(cli: Cli, topic: str) -> None:
    for arguments, words, code in (
        (["config", "set", "topic", topic, "retention.ms=soon"], "not an integer", 1),
        (["config", "set", "topic", topic, "log.retention.ms=5"], "use one of", 1),
        (["config", "set", "cluster", "retention.ms=5"], "log.retention.ms", 1),
        (["config", "set", "node", "1", "log.dirs=/x"], "restart", 1),
        (["config", "set", "topic", "retention.ms=5"], "which topic", 2),
        (["config", "describe", "topic", "no-such-topic"], "no topic", 1),
        (["config", "describe", "node", "77"], "use one of 1, 2, 3", 1),
        (["topic", "add-partitions", topic, "--total", "1"], "more", 1),
        (["topic", "trim", topic], "--everything", 2),
        (["topic", "reassign", topic, "--to", "1,9"], "node list", 1),
        (["topic", "reassign", topic, "-r", "5"], "3 are live", 1),
        (["node", "forget", "2"], "stop it", 1),
        (["node", "forget", "77"], "no storage node", 1),
    ):
        assert words in cli.run(*arguments, expect=code), arguments


def test_more_partitions_and_fewer_records(cli: Cli, topic: str) -> None:
    # With keys: without, a client may send all of a short run to one partition.
    produce(cli.bootstrap, topic, 200, keys=64)
    cli.run("topic", "add-partitions", topic, "--add", "1")
    assert len(describe(cli.bootstrap, topic)) == 3
    rows = cli.json("topic", "trim", topic, "--before-offset", "5", "--partition", "0")["partitions"]
    assert rows == [{"partition": 0, "earliest": 5}]
    cli.run("topic", "trim", topic, "--everything")
    wait_for(lambda: not read_all(cli.bootstrap, topic), "nothing left")


def test_replicas_are_added_moved_and_removed(cli: Cli, topic: str) -> None:
    ledger = produce(cli.bootstrap, topic, 500)
    plan = cli.json("topic", "reassign", topic, "--replication-factor", "3", "--dry-run")
    assert [len(row["to"]) for row in plan] == [3, 3]
    assert {len(p.replicas) for p in describe(cli.bootstrap, topic).values()} == {1}
    cli.run("topic", "reassign", topic, "--replication-factor", "3", "--wait", "180")
    wait_for(
        lambda: {tuple(sorted(p.isrs)) for p in describe(cli.bootstrap, topic).values()} == {(1, 2, 3)},
        "three replicas in sync",
    )
    cli.run("topic", "reassign", topic, "--to", "2,3", "--wait", "180")
    cli.run("topic", "reassign", topic, "--off-node", "3", "--wait", "180")
    assert {tuple(p.replicas) for p in describe(cli.bootstrap, topic).values()} == {(2, 1)}
    assert "nothing is being moved" in cli.run("topic", "reassign", topic, "--status")
    assert "nothing is to be moved" in cli.run("topic", "reassign", topic, "--cancel")
    assert len(read_all(cli.bootstrap, topic)) == len(ledger.acked)


def test_lag_is_told_by_the_groups_coordinator(shared_cluster: LocalCluster, cli: Cli, topic: str) -> None:
    group = f"behind-{uuid.uuid4().hex[:8]}"
    produce(cli.bootstrap, topic, 300)
    ends = dict.fromkeys(describe(cli.bootstrap, topic), 0)
    for record in read_all(cli.bootstrap, topic):
        ends[record.partition] = max(ends[record.partition], record.offset + 1)
    committed = {number: end // 2 for number, end in ends.items()}
    consumer = Consumer(client_config(cli.bootstrap, **{"group.id": group}))
    offsets = [TopicPartition(topic, number, offset) for number, offset in committed.items()]
    commit(consumer, offsets)
    consumer.close()
    behind = sum(ends.values()) - sum(committed.values())
    rows = cli.json("group", "describe", group)["partitions"]
    assert sum(row["lag"] for row in rows) == behind
    label = f'{{group="{group}",topic="{topic}"}}'

    def told() -> list[tuple[float, float]]:
        """Records and seconds, by each node that tells of the group."""
        found = []
        for number in (1, 2, 3):
            port = shared_cluster.state.member(f"node-{number}").ports["http"]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
                text = response.read().decode()
            values = [
                re.search(rf"^penstock_group_lag_{unit}{re.escape(label)} (\S+)$", text, re.MULTILINE)
                for unit in ("records", "seconds")
            ]
            if values[0] is not None and values[1] is not None:
                found.append((float(values[0][1]), float(values[1][1])))
        return found

    ((records, seconds),) = wait_for(told, "the lag is among the metrics", 180)
    assert records == behind
    assert seconds >= 0
