"""Consumers with group.protocol=consumer, Java and confluent-kafka, while members join, leave and die."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from conformance.java.members import JavaMember, JavaModernMember
from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster
from support.groups import SESSION_TIMEOUT_MS, GroupLedger, GroupMember, ModernMember
from support.java import JavaDriver, needs_java, only_in_conformance
from support.kafka import Load, create_topic
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    needs_java,
]

PARTITIONS = 12
LONG_S = 120.0
SETTINGS = {
    "storage-node": {
        "group_initial_rebalance_delay_ms": "300",
        "group_consumer_heartbeat_interval_ms": "500",
        "group_consumer_session_timeout_ms": str(SESSION_TIMEOUT_MS),
    }
}

_VICTIM = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[3], "group.protocol": "consumer",
                     "enable.auto.commit": False, "auto.offset.reset": "earliest"})
consumer.subscribe([sys.argv[2]], on_assign=lambda *_: print("in", flush=True))
while True:
    consumer.poll(0.1)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("java-groups"), controllers=1, settings=SETTINGS) as running:
        yield running


@contextmanager
def java_victim(bootstrap: str, group: str, ledger: GroupLedger) -> Iterator[Callable[[], None]]:
    """A Java member in a JVM of its own that has partitions; gives what kills it."""
    member = JavaModernMember(bootstrap, group, group, ledger, own=JavaDriver())
    wait_for(lambda: member.owned, "the one that is to die has partitions", LONG_S)
    try:
        yield member.die
    finally:
        member.die()


@contextmanager
def confluent_victim(bootstrap: str, group: str, _: GroupLedger) -> Iterator[Callable[[], None]]:
    """A confluent-kafka member in a process of its own that has partitions; gives what kills it."""
    with subprocess.Popen(
        [sys.executable, "-c", _VICTIM, bootstrap, group, group],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"in\n"
            yield process.kill
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ["java", pytest.param("confluent-kafka", marks=only_in_conformance)])
def test_the_consumer_protocol_lives_through_rebalances(cluster: LocalCluster, kind: str) -> None:
    bootstrap = cluster.bootstrap
    group = f"rebalances-{kind}"  # and its topic
    create_topic(bootstrap, group, PARTITIONS, 3)
    ledger = GroupLedger()
    members: list[GroupMember] = []
    member = JavaModernMember if kind == "java" else ModernMember
    victim = java_victim if kind == "java" else confluent_victim

    def shared_out() -> bool:
        owned = [p for m in members for p in m.owned]
        return sorted(owned) == list(range(PARTITIONS)) and all(m.owned for m in members)

    def join() -> None:
        members.append(member(bootstrap, group, group, ledger))
        wait_for(shared_out, f"{len(members)} members have all partitions", LONG_S)

    def more(what: str) -> None:
        wanted = ledger.count + 100
        wait_for(lambda: ledger.count >= wanted, f"100 more records processed {what}", LONG_S)

    try:
        with Load(bootstrap, group, rate_per_s=200) as load:
            join()
            more("by one member")
            join()
            join()
            more("by three members")
            members.pop(0).stop()
            wait_for(shared_out, "the partitions of one that left are shared out", LONG_S)
            more("after one left")
            with victim(bootstrap, group, ledger) as kill:
                kill()
                wait_for(shared_out, "the partitions of one that died are shared out", LONG_S)
                more("after one died")
            join()
            more("at last")
        acked = {load.ledger.values[n] for n in load.ledger.acked}
        wait_for(lambda: acked <= ledger.values, "every record processed", LONG_S)
        wait_for(lambda: sum(ledger.committed.values()) >= len(acked), "every offset committed", LONG_S)
    finally:
        for one in members:
            one.stop()
    assert not ledger.gaps, ledger.gaps[:3]


def test_both_clients_share_a_group_of_the_consumer_protocol(cluster: LocalCluster) -> None:
    bootstrap, group = cluster.bootstrap, "shared-by-two-clients"
    create_topic(bootstrap, group, PARTITIONS, 3)
    ledger = GroupLedger()
    members: list[GroupMember] = []
    try:
        with Load(bootstrap, group, rate_per_s=200) as load:
            # A Java member of the old protocol among them: the group is converted while it works.
            for kind in (JavaMember, JavaModernMember, ModernMember):
                members.append(kind(bootstrap, group, group, ledger))
                wait_for(
                    lambda: (
                        all(m.owned for m in members)
                        and sorted(p for m in members for p in m.owned) == list(range(PARTITIONS))
                    ),
                    f"{len(members)} members have all partitions",
                    LONG_S,
                )
        acked = {load.ledger.values[n] for n in load.ledger.acked}
        wait_for(lambda: acked <= ledger.values, "every record processed", LONG_S)
        wait_for(lambda: sum(ledger.committed.values()) >= len(acked), "every offset committed", LONG_S)
    finally:
        for one in members:
            one.stop()
    assert not ledger.gaps, ledger.gaps[:3]
