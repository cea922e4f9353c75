"""Frameworks that live on Kafka's clients: Connect, Streams, MirrorMaker 2, through a gateway.

Smoke tests that take minutes: `make conformance-java` runs them.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from conformance.java.ecosystem import Instance, lines, properties, rest, running
from penstock.local import ports
from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster
from support.java import needs_java, only_in_conformance
from support.kafka import CALL_TIMEOUT_S, client_config, create_topic, describe, produce, read_all
from support.transactions import read_to_end
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    needs_java,
    only_in_conformance,
]

LONG_S = 300.0
LINES = [f"line {n}" for n in range(200)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = {"storage-node": {"group_initial_rebalance_delay_ms": "300"}}
    with running_cluster(tmp_path_factory.mktemp("frameworks"), controllers=1, settings=settings) as one:
        yield one


def worker(cluster: LocalCluster, **more: Any) -> dict[str, Any]:
    """Settings of a Connect worker."""
    return {
        "bootstrap.servers": cluster.bootstrap,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "offset.flush.interval.ms": 1000,
        "plugin.discovery": "service_load",
        "listeners": f"http://127.0.0.1:{ports.choose_free(1, set())[0]}",
        **more,
    }


def source(folder: Path, topic: str) -> dict[str, Any]:
    """A connector that reads a file; it has its topic made."""
    return {
        "name": "source",
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "tasks.max": 1,
        "file": str(folder / "in.txt"),
        "topic": topic,
        "topic.creation.default.partitions": 1,
        "topic.creation.default.replication.factor": -1,
    }


def sink(folder: Path, topic: str) -> dict[str, Any]:
    """A connector that writes a file."""
    return {
        "name": "sink",
        "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
        "tasks.max": 1,
        "file": str(folder / "out.txt"),
        "topics": topic,
    }


def write(folder: Path, text: list[str]) -> None:
    with (folder / "in.txt").open("a") as file:
        file.write("".join(f"{line}\n" for line in text))


def test_connect_standalone_copies_a_file(cluster: LocalCluster, tmp_path: Path) -> None:
    topic = "connect-standalone"
    arguments = [
        properties(
            tmp_path / "worker.properties",
            worker(cluster, **{"offset.storage.file.filename": tmp_path / "offsets"}),
        ),
        properties(tmp_path / "source.properties", source(tmp_path, topic)),
        properties(tmp_path / "sink.properties", sink(tmp_path, topic)),
    ]
    write(tmp_path, LINES)
    out = tmp_path / "out.txt"
    with running(tmp_path, "connect", "org.apache.kafka.connect.cli.ConnectStandalone", *arguments):
        wait_for(lambda: lines(out) == LINES, "the file is copied", LONG_S)
        write(tmp_path, ["one more"])
        wait_for(lambda: lines(out) == [*LINES, "one more"], "what came later is copied", LONG_S)


def test_connect_distributed_goes_on_where_it_was(cluster: LocalCluster, tmp_path: Path) -> None:
    topic = "connect-distributed"
    settings = worker(
        cluster,
        **{
            "group.id": "connect-cluster",
            **{
                f"{what}.storage.{key}": value
                for what in ("config", "offset", "status")
                for key, value in (("topic", f"connect-{what}"), ("replication.factor", -1))
            },
        },
    )
    config = properties(tmp_path / "worker.properties", settings)
    url = f"{settings['listeners']}/connectors"
    out = tmp_path / "out.txt"
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    write(tmp_path, LINES)
    with running(tmp_path, "connect", main, config):
        wait_for(lambda: rest("GET", url) == [], "the worker has joined", LONG_S)
        for connector in (source(tmp_path, topic), sink(tmp_path, topic)):
            made = {"name": connector.pop("name"), "config": {k: str(v) for k, v in connector.items()}}
            wait_for(lambda body=made: rest("POST", url, body), "a connector is made", LONG_S)  # type: ignore[misc]
        wait_for(lambda: lines(out) == LINES, "the file is copied", LONG_S)
    write(tmp_path, ["one more"])
    with running(tmp_path, "connect", main, config):
        wait_for(lambda: "one more" in lines(out), "a second worker goes on", LONG_S)
        status = wait_for(lambda: rest("GET", f"{url}/sink/status"), "its status", LONG_S)
    assert lines(out)[-1] == "one more"
    assert set(lines(out)) == {*LINES, "one more"}
    assert status["connector"]["state"] == "RUNNING"
    compacted = {f"connect-{what}": len(describe(cluster.bootstrap, f"connect-{what}")) for what in
                 ("config", "offset", "status")}  # fmt: skip
    assert compacted == {"connect-config": 1, "connect-offset": 25, "connect-status": 5}


def test_connect_copies_each_line_once_whoever_is_killed(cluster: LocalCluster, tmp_path: Path) -> None:
    topic = "connect-once"
    settings = worker(
        cluster,
        **{
            "group.id": topic,
            "exactly.once.source.support": "enabled",
            "transaction.timeout.ms": 10_000,
            **{
                f"{what}.storage.{key}": value
                for what in ("config", "offset", "status")
                for key, value in (("topic", f"{topic}-{what}"), ("replication.factor", -1))
            },
        },
    )
    config = properties(tmp_path / "worker.properties", settings)
    url = f"{settings['listeners']}/connectors"
    made = {**source(tmp_path, topic), "exactly.once.support": "required"}
    body = {"name": made.pop("name"), "config": {key: str(value) for key, value in made.items()}}
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    written: list[str] = []

    def copied() -> list[str]:
        found = read_to_end(cluster.bootstrap, topic, "read_committed")
        return [value for values in found.values() for value in values]

    instance = Instance(tmp_path, "connect", main, config)
    try:
        for number in range(3):
            wait_for(lambda: rest("GET", url) is not None, "the worker has joined", LONG_S)
            if not number:
                wait_for(lambda: rest("POST", url, body), "the connector is made", LONG_S)
            for part in range(20):  # some of it while the task starts, some while it runs
                lines_of_part = [f"{number}-{part}-{line}" for line in range(20)]
                write(tmp_path, lines_of_part)
                written.extend(lines_of_part)
                time.sleep(0.1)
            wait_for(lambda: set(copied()) & set(written[-400:]), "it copies", LONG_S)
            instance.kill()
            instance = Instance(tmp_path, "connect", main, config)
        wait_for(lambda: len(set(copied())) == len(written), "all is copied", LONG_S)
    finally:
        instance.kill()
    assert copied() == written


def newest_counts(bootstrap: str, topic: str, **config: Any) -> dict[str, int]:
    """The last count of each word."""
    newest: dict[str, int] = {}
    for record in sorted(read_all(bootstrap, topic, **config), key=lambda r: (r.partition, r.offset)):
        newest[(record.key or b"").decode()] = int(record.value)
    return newest


def test_streams_counts_words(cluster: LocalCluster, tmp_path: Path) -> None:
    bootstrap = cluster.bootstrap
    application = f"word-count-{uuid.uuid4().hex[:8]}"
    create_topic(bootstrap, "streams-lines", 4)
    create_topic(bootstrap, "streams-counts", 2)
    sent = produce(bootstrap, "streams-lines", 1_000, value_bytes=20).values.values()
    wanted = Counter(word for value in sent for word in value.decode().split(" "))

    def counted() -> dict[str, int]:
        return newest_counts(bootstrap, "streams-counts")

    def run(state: str, total: Counter[str]) -> None:
        arguments = (bootstrap, application, str(tmp_path / state), "streams-lines", "streams-counts")
        with running(tmp_path, "streams", "WordCount", *arguments):
            wait_for(lambda: counted() == dict(total), f"all is counted with {state}", LONG_S)

    run("state-1", wanted)
    # With a new folder the counts come back from the changelog topic.
    more = produce(bootstrap, "streams-lines", 500, value_bytes=20).values.values()
    wanted.update(word for value in more for word in value.decode().split(" "))
    run("state-2", wanted)
    topics = describe(bootstrap, f"{application}-KSTREAM-AGGREGATE-STATE-STORE-0000000003-changelog")
    assert len(topics) == 4


def test_mirror_maker_copies_records_and_positions(cluster: LocalCluster, tmp_path: Path) -> None:
    with running_cluster(tmp_path / "target", controllers=1, nodes=1) as target:
        create_topic(cluster.bootstrap, "mirrored", 3, retention_ms="7200000")
        ledger = produce(cluster.bootstrap, "mirrored", 300)
        reader = Consumer(client_config(cluster.bootstrap, **{"group.id": "mirrored-readers"}))
        reader.commit(offsets=[TopicPartition("mirrored", p, 5) for p in range(3)], asynchronous=False)
        reader.close()
        settings = {
            "clusters": "a, b",
            "a.bootstrap.servers": cluster.bootstrap,
            "b.bootstrap.servers": target.bootstrap,
            "a->b.enabled": "true",
            "b->a.enabled": "false",
            "a->b.topics": "mirrored",
            "a->b.groups": "mirrored-readers",
            "a->b.sync.group.offsets.enabled": "true",
            "a->b.emit.checkpoints.interval.seconds": 2,
            "a->b.sync.group.offsets.interval.seconds": 2,
            "a->b.refresh.groups.interval.seconds": 5,
            "sync.topic.acls.enabled": "false",
            "replication.factor": 1,
            **{
                f"{what}.topic.replication.factor": 1
                for what in ("checkpoints", "heartbeats", "offset-syncs")
            },
            **{f"{what}.storage.replication.factor": 1 for what in ("config", "offset", "status")},
            "a.offset-syncs.topic.replication.factor": 1,
            **{f"{alias}plugin.discovery": "service_load" for alias in ("", "a.", "b.")},
        }
        config = properties(tmp_path / "mirror.properties", settings)

        def mirrored() -> bool:
            topics = reading.list_topics(timeout=CALL_TIMEOUT_S).topics
            if "a.mirrored" not in topics:
                return False
            return sorted(r.value for r in read_all(target.bootstrap, "a.mirrored")) == sorted(
                ledger.values.values()
            )

        def position_is_there() -> bool:
            places = [TopicPartition("a.mirrored", p) for p in range(3)]
            return all(p.offset > 0 for p in reading.committed(places, timeout=CALL_TIMEOUT_S))

        reading = Consumer(client_config(target.bootstrap, **{"group.id": "mirrored-readers"}))
        try:
            with running(tmp_path, "mirror", "org.apache.kafka.connect.mirror.MirrorMaker", config):
                wait_for(mirrored, "every record is there once", LONG_S)
                wait_for(position_is_there, "the group's positions are there", LONG_S)
        finally:
            reading.close()
