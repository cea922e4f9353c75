"""MirrorMaker 2 with exactly once, whose workers get `kill -9` while records flow.

Two workers of its dedicated mode, which hand each other tasks over their internal REST servers: the target's
`exactly.once.source.support` needs these. `PENSTOCK_MIRROR_SEED` repeats what is random.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from conformance.java.ecosystem import Instance, properties
from conformance.streams_load import Progress
from penstock.local import ports
from support.cluster import running_cluster
from support.java import needs_java, only_in_conformance
from support.kafka import CALL_TIMEOUT_S, client_config, create_topic
from support.kafka_tools import running_kafka, wait_for_kafka
from support.transactional_writers import ByLibrdkafka
from support.transactions import Outcome, TransactionalLoad, check_story, read_to_end
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    needs_java,
    only_in_conformance,
]

LONG_S = 600.0
KILLS = 6
WORKERS = 2
PARTITIONS = 4
TOPIC = "once"
MIRRORED = f"a.{TOPIC}"
FAILED = "will not recover until manually restarted"
"""Said of a task. One that starts has the group's leader fence off who had its work before; it fails for good, and so
does what it has to copy wait, when the leader is killed just then (Connect's `RestClient`, whatever the brokers)."""
KAFKA_SETTINGS = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "300",
}


@contextmanager
def penstock(folder: Path, nodes: int = 1) -> Iterator[str]:
    """Address of a cluster of Penstock."""
    with running_cluster(folder, controllers=1, nodes=nodes, steady=True) as cluster:
        yield cluster.bootstrap


@contextmanager
def kafka(folder: Path, nodes: int = 1) -> Iterator[str]:
    """Address of an Apache Kafka."""
    assert nodes == 1
    with running_kafka(folder, heap="512M", settings=KAFKA_SETTINGS) as cluster:
        wait_for_kafka(cluster)
        yield cluster.bootstrap


def settings(source: str, target: str) -> dict[str, Any]:
    """Of one worker."""
    return {
        "clusters": "a, b",
        "a.bootstrap.servers": source,
        "b.bootstrap.servers": target,
        "a->b.enabled": "true",
        "a->b.topics": TOPIC,
        "b->a.enabled": "false",
        "b->a.emit.heartbeats.enabled": "false",
        "tasks.max": PARTITIONS,
        # What makes it exactly once, as Kafka's documentation of MirrorMaker has it.
        "b.exactly.once.source.support": "enabled",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": f"http://127.0.0.1:{ports.choose_free(1, set())[0]}",
        "a.consumer.isolation.level": "read_committed",
        # Whoever takes over waits for the return of a worker that was killed no longer than this.
        "b.scheduled.rebalance.max.delay.ms": 1_000,
        # A worker ends when its first call has no answer after this, and a busy machine may keep it waiting.
        **{f"{alias}.default.api.timeout.ms": int(LONG_S * 1000) for alias in ("a", "b")},
        "sync.topic.acls.enabled": "false",
        "replication.factor": -1,
        **{f"{what}.topic.replication.factor": -1 for what in ("checkpoints", "heartbeats", "offset-syncs")},
        **{f"{what}.storage.replication.factor": -1 for what in ("config", "offset", "status")},
        # Once for MirrorMaker and once for its worker: neither looks through all jars.
        **{f"{alias}plugin.discovery": "service_load" for alias in ("", "b.")},
    }


def takes_transactions(bootstrap: str) -> bool:
    """Whether a producer with an id can begin: for the first one the topic of transactions is made."""
    try:
        ByLibrdkafka(bootstrap, "first").close()
    except KafkaException as error:
        if not error.args[0].retriable():
            raise
        return False
    return True


@pytest.mark.parametrize("source", [penstock, kafka])
def test_mirror_maker_copies_each_record_once_whoever_is_killed(source: Any, tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_MIRROR_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"PENSTOCK_MIRROR_SEED={seed}")
    rng = random.Random(seed)
    started: list[Instance] = []
    with source(tmp_path / "source") as a, penstock(tmp_path / "target", nodes=3) as b:
        create_topic(a, TOPIC, PARTITIONS)
        wait_for(lambda: takes_transactions(a), "transactions at the source", LONG_S)

        def start(number: int) -> Instance:
            name = f"mirror-{number}-{len(started)}"
            started.append(
                Instance(
                    tmp_path,
                    name,
                    "org.apache.kafka.connect.mirror.MirrorMaker",
                    properties(tmp_path / f"{name}.properties", settings(a, b)),
                )
            )
            return started[-1]

        loads = [TransactionalLoad(a, TOPIC, PARTITIONS, f"writer-{n}", pause_s=0.05) for n in range(2)]
        last = TransactionalLoad(a, TOPIC, PARTITIONS, "last")
        workers = {number: start(number) for number in range(WORKERS)}

        def look_after() -> None:
            """As an operator does: a worker is started again when a task of it has failed for good."""
            assert not any(load.story.fatal for load in loads), [load.story.fatal for load in loads]
            for instance in started:
                instance.check(alive=instance in workers.values())
            for number, instance in workers.items():
                if FAILED in instance.log.read_text(errors="replace"):
                    print(f"a task of worker {number} has failed, it is started again")
                    instance.kill()
                    workers[number] = start(number)

        def reaches(count: int) -> None:
            def is_there() -> bool:
                look_after()
                return progress.look()[MIRRORED] >= count

            wait_for(is_there, f"{count} records are copied", LONG_S)

        def is_made() -> bool:
            look_after()
            return MIRRORED in AdminClient(client_config(b)).list_topics(timeout=CALL_TIMEOUT_S).topics

        try:
            with loads[0], loads[1]:
                wait_for(is_made, "the topic is made at the target", LONG_S)
                progress = Progress(b, MIRRORED)
                begun = time.monotonic()
                first = rng.randrange(WORKERS)
                for kill in range(KILLS):
                    reaches(progress.look()[MIRRORED] + 500)
                    time.sleep(rng.uniform(0, 2))
                    number = (
                        first + kill
                    ) % WORKERS  # in turn: whoever was just started may copy nothing yet
                    print(f"{time.monotonic() - begun:.1f} s: kill worker {number}")
                    workers.pop(number).kill()
                    if rng.random() < 0.5:
                        reaches(progress.look()[MIRRORED] + 1)  # the other one takes over
                    workers[number] = start(number)
                reaches(progress.look()[MIRRORED] + 500)
            # What is doubled would stand in front of these.
            with last:
                wait_for(lambda: last.story.count(Outcome.COMMITTED) >= PARTITIONS, "more is sent", LONG_S)
            sent = read_to_end(a, TOPIC, "read_committed")
            count = sum(map(len, sent.values()))
            reaches(count)
            look_after()
        finally:
            for instance in workers.values():
                instance.kill()
        progress.close()
        copied = read_to_end(b, MIRRORED, "read_committed")
        tried = read_to_end(b, MIRRORED, "read_uncommitted")
    stories = [load.story for load in (*loads, last)]
    assert not [fatal for story in stories for fatal in story.fatal]
    check_story(stories, sent)
    assert copied == sent
    aborted = sum(story.count(Outcome.ABORTED) for story in stories)
    print(
        f"{KILLS} kills: {count} records of {sum(len(s.transactions) for s in stories)} transactions, {aborted} "
        f"of them aborted, are there once; workers had written {sum(map(len, tried.values())) - count} in vain"
    )
