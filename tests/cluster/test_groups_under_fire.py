"""Three consumers of one group over twelve partitions, while a node, a consumer and then the whole cluster die.

Promises: every acknowledged record is processed at least once, nothing below a committed offset is unprocessed,
and positions go on after every process of the cluster was killed and started again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster, start_ready
from support.groups import MEMBERS, SESSION_TIMEOUT_MS, GroupLedger, GroupMember
from support.kafka import CALL_TIMEOUT_S, Load, client_config, create_topic, produce, wait_for_full_isr
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

PARTITIONS = 12
TOPIC, GROUP = "events", "under-fire"
LONG_S = 240.0

_CONSUMER = """
import json, sys
from confluent_kafka import Consumer, KafkaException, TopicPartition
bootstrap, topic, config = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
def tell(*words):
    print(*words, flush=True)
consumer = Consumer({"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest",
                     "enable.auto.commit": False, **config})
consumer.subscribe([topic])
while True:
    found = {}
    for message in consumer.consume(500, timeout=0.2):
        if message.error() is None:
            tell("done", message.partition(), message.offset(), message.value().decode("latin-1"))
            found[message.partition()] = message.offset() + 1
    tell("owned", *(place.partition for place in consumer.assignment()))
    if found:
        try:
            wanted = [TopicPartition(topic, p, o) for p, o in found.items()]
            for place in consumer.commit(offsets=wanted, asynchronous=False):
                if place.error is None:
                    tell("committed", place.partition, place.offset)
        except KafkaException:
            pass
"""
"""A careful consumer that tells what it does as it does it, so that it can be killed at any moment."""

CONFIGS: dict[str, dict[str, Any]] = {
    "confluent-kafka": {"session.timeout.ms": SESSION_TIMEOUT_MS, "heartbeat.interval.ms": 1_000},
    "group.protocol=consumer": {"group.protocol": "consumer"},
}


class Doomed:
    """A consumer in a process of its own, whose words go into the ledger."""

    def __init__(self, bootstrap: str, kind: str, ledger: GroupLedger) -> None:
        config = json.dumps({"group.id": GROUP, **CONFIGS[kind]})
        self.owned: set[int] = set()
        self.taken = 0
        self._ledger = ledger
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CONSUMER, bootstrap, TOPIC, config],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._thread = threading.Thread(target=self._listen, name="doomed consumer")
        self._thread.start()

    def _listen(self) -> None:
        stdout = self._process.stdout
        if stdout is None:
            return
        for line in stdout:
            if not line.endswith("\n"):
                return  # cut off by its death
            word, *rest = line.rstrip("\n").split(" ", 3)
            if word == "done":
                self._ledger.process(int(rest[0]), int(rest[1]), rest[2].encode("latin-1"))
                self.taken += 1
            elif word == "committed":
                self._ledger.commit({int(rest[0]): int(rest[1])})
            else:
                self.owned = {int(one) for one in line.split()[1:]}

    def kill(self) -> None:
        """SIGKILL; what it said before is still heard."""
        self._process.kill()
        self._process.wait(120)
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self._process.stdout is not None:
            self._process.stdout.close()


def settings() -> dict[str, dict[str, str]]:
    return {
        "storage-node": {
            "group_initial_rebalance_delay_ms": "300",
            "group_consumer_heartbeat_interval_ms": "1000",
            "group_consumer_session_timeout_ms": str(SESSION_TIMEOUT_MS),
        }
    }


def share(members: list[GroupMember | Doomed]) -> bool:
    """Every partition has one owner, and every member some."""
    owned = [p for m in members for p in m.owned]
    return sorted(owned) == list(range(PARTITIONS)) and all(m.owned for m in members)


def positions(bootstrap: str) -> dict[int, tuple[int, int]]:
    """Committed offset and end of each partition."""
    consumer = Consumer(client_config(bootstrap, **{"group.id": GROUP}))
    places = [TopicPartition(TOPIC, p) for p in range(PARTITIONS)]

    def ask() -> dict[int, tuple[int, int]]:
        try:
            found = consumer.committed(places, timeout=CALL_TIMEOUT_S)
            if any(place.error is not None for place in found):
                return {}
            return {
                place.partition: (
                    place.offset,
                    consumer.get_watermark_offsets(place, timeout=CALL_TIMEOUT_S)[1],
                )
                for place in found
            }
        except KafkaException:
            return {}  # leaders and coordinators are moving

    try:
        return wait_for(ask, "committed offsets and ends", LONG_S)
    finally:
        consumer.close()


@contextmanager
def group(bootstrap: str, kind: str, ledger: GroupLedger, count: int) -> Iterator[list[GroupMember]]:
    """Members that are stopped at the end, those that a test adds to the list too."""
    members = [MEMBERS[kind](bootstrap, TOPIC, GROUP, ledger) for _ in range(count)]
    errors: list[BaseException] = []
    try:
        yield members
    finally:
        for member in members:
            try:
                member.stop()
            except BaseException as error:
                errors.append(error)
    assert not errors, errors
    assert not ledger.gaps, ledger.gaps[:3]


def more(ledger: GroupLedger, count: int, what: str) -> None:
    wanted = ledger.count + count
    wait_for(lambda: ledger.count >= wanted, f"{count} more records processed {what}", LONG_S)


def restart_everything(cluster: LocalCluster) -> None:
    names = [process.name for process in cluster.status().processes]
    for name in names:
        cluster.kill(name)
    start_ready(cluster, *names)


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_nothing_is_skipped_whatever_dies(tmp_path: Path, kind: str) -> None:
    with running_cluster(tmp_path, settings=settings()) as cluster:
        bootstrap = cluster.bootstrap
        create_topic(bootstrap, TOPIC, PARTITIONS, 3)
        ledger = GroupLedger()
        doomed = Doomed(bootstrap, kind, ledger)
        try:
            with group(bootstrap, kind, ledger, 2) as members:
                with Load(bootstrap, TOPIC, rate_per_s=300) as load:
                    wait_for(lambda: share([doomed, *members]), "three members share the partitions", LONG_S)
                    more(ledger, 200, "by three members")
                    wait_for(lambda: doomed.taken, "records for the one that is to die", LONG_S)
                    cluster.kill("node-2")
                    more(ledger, 300, "after a node was killed")
                    doomed.kill()
                    wait_for(lambda: share([*members]), "two members share what the dead one had", LONG_S)
                    members.append(MEMBERS[kind](bootstrap, TOPIC, GROUP, ledger))
                    wait_for(lambda: share([*members]), "the new member has partitions", LONG_S)
                    cluster.start("node-2")
                    more(ledger, 300, "after a member joined and the node came back")
                    wait_for_full_isr(bootstrap, TOPIC, LONG_S)
                sent = {load.ledger.values[number] for number in load.ledger.acked}
                wait_for(lambda: sent <= ledger.values, "every acknowledged record processed", LONG_S)
                wait_for(
                    lambda: sum(ledger.committed.values()) >= len(sent), "every offset committed", LONG_S
                )
        finally:
            doomed.kill()
        before = positions(bootstrap)
        assert all(committed == end for committed, end in before.values()), before
        restart_everything(cluster)
        assert positions(bootstrap) == before
        later = GroupLedger()
        later.committed.update({p: committed for p, (committed, _) in before.items()})
        new = produce(bootstrap, TOPIC, 60, first=1_000_000)
        with group(bootstrap, kind, later, 1):
            wait_for(lambda: later.count >= 60, "the new records", LONG_S)
        assert later.values == set(new.values.values()), "only what is new is read"
