"""Consumer groups with real clients on a real cluster: through a gateway and direct, with nodes and members dying."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster, start_ready
from support.groups import MEMBERS, SESSION_TIMEOUT_MS, GroupLedger, GroupMember
from support.kafka import (
    CALL_TIMEOUT_S,
    PATIENCE_S,
    Load,
    client_config,
    commit,
    create_topic,
    describe,
    produce,
    wait_for_full_isr,
    watermarks,
)
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PARTITIONS = 12
LONG_S = 240.0
"""For what a loaded machine may take its time over: failovers, sessions that run out."""


def settings() -> dict[str, dict[str, str]]:
    return {
        "storage-node": {
            "group_initial_rebalance_delay_ms": "300",
            "group_consumer_heartbeat_interval_ms": "1000",
            "group_consumer_session_timeout_ms": str(SESSION_TIMEOUT_MS),
        }
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Each test leaves it whole."""
    with running_cluster(tmp_path_factory.mktemp("groups"), controllers=1, settings=settings()) as running:
        yield running


def bootstrap_of(cluster: LocalCluster, mode: str) -> str:
    return cluster.bootstrap if mode == "proxy" else cluster.direct_bootstrap


def coordinator(bootstrap: str, group: str) -> str:
    """Name of the node that coordinates a group."""
    admin = AdminClient(client_config(bootstrap))

    def ask() -> str:
        found = admin.describe_consumer_groups([group], request_timeout=CALL_TIMEOUT_S)[group]
        try:
            return f"node-{found.result(timeout=CALL_TIMEOUT_S).coordinator.id}"
        except (KafkaException, TimeoutError):
            return ""  # it is moving

    return wait_for(ask, f"the coordinator of {group}", LONG_S)


def committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """Committed offsets by partition, asked of the coordinator."""
    consumer = Consumer(client_config(bootstrap, **{"group.id": group}))
    try:
        places = [TopicPartition(topic, p) for p in range(PARTITIONS)]

        def ask() -> list[TopicPartition]:
            try:
                found = list(consumer.committed(places, timeout=CALL_TIMEOUT_S))
            except KafkaException:
                return []  # the coordinator is moving
            return [] if any(p.error is not None for p in found) else found

        return {p.partition: p.offset for p in wait_for(ask, "committed offsets", LONG_S)}
    finally:
        consumer.close()


def ends(bootstrap: str, topic: str) -> dict[int, int]:
    """High watermarks by partition."""
    consumer = Consumer(client_config(bootstrap, **{"group.id": "tests-unused"}))
    try:
        return {p: watermarks(consumer, topic, p)[1] for p in range(PARTITIONS)}
    finally:
        consumer.close()


def share(members: list[GroupMember]) -> bool:
    """Every partition has one owner, and every member some."""
    owned = [p for m in members for p in m.owned]
    return sorted(owned) == list(range(PARTITIONS)) and all(m.owned for m in members)


@contextmanager
def group(
    bootstrap: str, topic: str, kind: str, count: int
) -> Iterator[tuple[list[GroupMember], GroupLedger]]:
    """A group with the name of its topic. Members are stopped at the end, those that a test adds to the list too."""
    ledger = GroupLedger()
    members = [MEMBERS[kind](bootstrap, topic, topic, ledger) for _ in range(count)]
    try:
        yield members, ledger
    finally:
        errors = []
        for member in members:
            try:
                member.stop()
            except BaseException as e:
                errors.append(e)
    assert not errors, errors
    assert not ledger.gaps, ledger.gaps[:3]


def wait_for_more(ledger: GroupLedger, more: int, what: str) -> None:
    wanted = ledger.count + more
    wait_for(lambda: ledger.count >= wanted, f"{more} more records processed {what}", LONG_S)


def wait_for_all(ledger: GroupLedger, values: set[bytes]) -> None:
    wait_for(lambda: values <= ledger.values, "every record processed", LONG_S)
    wait_for(lambda: sum(ledger.committed.values()) >= len(values), "every record's offset committed", LONG_S)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("confluent-kafka", "proxy"),
        ("confluent-kafka", "direct"),
        ("kafka-python", "proxy"),
        ("aiokafka", "proxy"),
        ("aiokafka", "direct"),
        ("cooperative", "proxy"),
        ("group.protocol=consumer", "proxy"),
        ("group.protocol=consumer", "direct"),
    ],
)
def test_a_group_lives_through_the_death_of_its_coordinator(
    cluster: LocalCluster, kind: str, mode: str
) -> None:
    bootstrap, name = bootstrap_of(cluster, mode), f"{kind.replace('=', '-')}-{mode}"
    create_topic(bootstrap, name, PARTITIONS, 3)
    with group(bootstrap, name, kind, 2) as (members, ledger):
        with Load(bootstrap, name, rate_per_s=200) as load:
            wait_for_more(ledger, 200, "at first")
            wait_for(lambda: share(members), "both members have partitions", LONG_S)
            victim = coordinator(bootstrap, name)
            cluster.kill(victim)
            wait_for_more(ledger, 600, f"after {victim} was killed")
            start_ready(cluster, victim)
            wait_for_full_isr(bootstrap, name, LONG_S)
            wait_for_more(ledger, 200, f"after {victim} came back")
        wait_for_all(ledger, {load.ledger.values[n] for n in load.ledger.acked})
    assert committed(bootstrap, name, name) == ends(bootstrap, name)
    for topic in (name, "__consumer_offsets"):
        wait_for_full_isr(bootstrap, topic, LONG_S)


@pytest.mark.parametrize("strategy", ["confluent-kafka", "cooperative"])
def test_a_group_is_upgraded_to_the_consumer_protocol_while_it_works(
    cluster: LocalCluster, strategy: str
) -> None:
    bootstrap, name = cluster.bootstrap, f"upgraded-{strategy}"
    create_topic(bootstrap, name, PARTITIONS, 3)
    with group(bootstrap, name, strategy, 2) as (members, ledger):
        with Load(bootstrap, name, rate_per_s=200) as load:
            wait_for_more(ledger, 200, "at first")
            wait_for(lambda: share(members), "both members have partitions", LONG_S)
            for _ in range(2):
                members.append(MEMBERS["group.protocol=consumer"](bootstrap, name, name, ledger))
                wait_for(lambda: share(members), f"{len(members)} members have partitions", LONG_S)
            wait_for_more(ledger, 200, "with both kinds")
            while len(members) > 2:
                members.pop(0).stop()
                wait_for(lambda: share(members), f"{len(members)} members share", LONG_S)
            # And back: a member of the old kind may still come.
            members.append(MEMBERS[strategy](bootstrap, name, name, ledger))
            wait_for(lambda: share(members), "the old member has partitions", LONG_S)
            wait_for_more(ledger, 200, "at last")
        wait_for_all(ledger, {load.ledger.values[n] for n in load.ledger.acked})
    assert committed(bootstrap, name, name) == ends(bootstrap, name)


def test_groups_on_the_command_line(cluster: LocalCluster) -> None:
    bootstrap = cluster.bootstrap
    name = "on-the-command-line"
    create_topic(bootstrap, name, PARTITIONS, 3)
    produce(bootstrap, name, 120, keys=60)

    def run(*words: str, fails: bool = False) -> Any:
        command = [sys.executable, "-m", "penstock.cli.main", "group", *words, "--bootstrap", bootstrap]
        done = subprocess.run(command, capture_output=True, timeout=240, check=False)
        assert b"Traceback" not in done.stderr
        assert (done.returncode != 0) == fails, done
        return json.loads(done.stdout) if "--json" in words else done.stdout

    run("describe", name, fails=True)
    run("reset-offsets", name, fails=True)
    run("reset-offsets", name, "--to-earliest", "--to-latest", fails=True)
    high = ends(bootstrap, name)
    # Shown, not done; then done.
    shown = run("reset-offsets", name, "--topic", name, "--to-latest", "--json")
    assert {row["partition"]: row["to"] for row in shown} == high
    run("describe", name, fails=True)
    run("reset-offsets", name, "--topic", name, "--to-latest", "--execute")
    assert committed(bootstrap, name, name) == high
    run("reset-offsets", name, "--shift-by", "-2", "--execute")
    described = run("describe", name, "--json")
    assert described["state"] == "empty"
    assert {row["partition"]: row["lag"] for row in described["partitions"]} == {
        p: min(2, end) for p, end in high.items()
    }
    lags_s = [row["lag_s"] for row in described["partitions"] if row["committed"]]
    assert lags_s
    assert all(lag_s is not None and lag_s >= 0 for lag_s in lags_s)
    run("reset-offsets", name, "--to-timestamp", "0", "--execute")
    assert set(committed(bootstrap, name, name).values()) == {0}
    assert name in {row["group"] for row in run("list", "--json")}
    assert b"LAG" in run("describe", name)
    run("delete", name)
    assert name not in {row["group"] for row in run("list", "--json")}
    run("delete", name, fails=True)


def test_groups_are_administered(cluster: LocalCluster) -> None:
    for mode in ("proxy", "direct"):
        bootstrap = bootstrap_of(cluster, mode)
        topic = f"administered-{mode}"
        create_topic(bootstrap, topic, PARTITIONS, 3)
        produce(bootstrap, topic, 100)
        admin = AdminClient(client_config(bootstrap))
        names = [f"{topic}-{n}" for n in range(6)]
        for name in names:
            consumer = Consumer(client_config(bootstrap, **{"group.id": name}))
            places = [TopicPartition(topic, p, 3) for p in range(2)]
            commit(consumer, places)
            consumer.close()
        listed = admin.list_consumer_groups().result(timeout=PATIENCE_S)
        assert listed.errors == []
        assert set(names) <= {g.group_id for g in listed.valid}
        described = admin.describe_consumer_groups(names)
        states = {name: f.result(timeout=PATIENCE_S).state.name for name, f in described.items()}
        assert states == dict.fromkeys(names, "EMPTY")
        deleted = admin.delete_consumer_groups([*names, "no-such-group"])
        with pytest.raises(KafkaException, match="GROUP_ID_NOT_FOUND"):
            deleted["no-such-group"].result(timeout=PATIENCE_S)
        assert [deleted[name].result(timeout=PATIENCE_S) for name in names] == [None] * len(names)
        listed = admin.list_consumer_groups().result(timeout=PATIENCE_S)
        assert not set(names) & {g.group_id for g in listed.valid}
    found = describe(cluster.bootstrap, "__consumer_offsets")
    assert len(found) == 50
    assert {len(p.replicas) for p in found.values()} == {3}
