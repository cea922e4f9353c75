"""Transactions in files of killed nodes, by Kafka's own tool; such files in Kafka, and Kafka's in Penstock."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.peer import KafkaCluster

from conformance import build
from conformance.wire import Wire
from penstock.local.cluster import LocalCluster
from penstock_kafka.records.batch import iter_batches
from penstock_kafka.records.read import read_records
from penstock_storage_node.transactions import records as stored
from support import transaction_history as told
from support.cluster import running_cluster
from support.java import needs_java
from support.kafka import wait_for_full_isr
from support.kafka_tools import (
    check_directories,
    complaints,
    dump_log_segments,
    running_kafka,
    wait_for_kafka,
)
from support.operated import said
from support.transactional_writers import ByJava, ByLibrdkafka
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900), needs_java]

STATE_PARTITIONS = 4
"""Of either coordinator's topic: fewer files to be read."""
STATE, OFFSETS = "__transaction_state", "__consumer_offsets"
TOPICS = {told.TOPIC: told.PARTITIONS, told.INPUT: 1, STATE: STATE_PARTITIONS, OFFSETS: STATE_PARTITIONS}
OF_PENSTOCK = {
    "controller": {
        "offsets_topic_num_partitions": str(STATE_PARTITIONS),
        "transaction_state_log_num_partitions": str(STATE_PARTITIONS),
    }
}
OF_KAFKA = {
    "offsets.topic.num.partitions": str(STATE_PARTITIONS),
    "transaction.state.log.num.partitions": str(STATE_PARTITIONS),
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Three nodes that were killed: their directories, the history in them, and what readers had found."""
    folder = tmp_path_factory.mktemp("killed")
    with running_cluster(folder, controllers=1, steady=True, settings=OF_PENSTOCK) as cluster:
        bootstrap = cluster.direct_bootstrap
        told.make_topics(bootstrap)
        history = told.write_history(bootstrap)
        for topic in (told.TOPIC, STATE, OFFSETS):
            wait_for_full_isr(bootstrap, topic)
        found = told.readings(bootstrap)
        wait_for(lambda: told.committed_offset(bootstrap) == told.STABLE_OFFSET, "the group's offset")
        cluster.kill_several(["node-1", "node-2", "node-3"])
        yield {
            "directories": [folder / f"node-{n}/data" for n in (1, 2, 3)],
            "history": history,
            "found": found,
        }


def check_files(directories: list[Path], history: told.History) -> None:
    """Markers, aborted indexes and snapshots of these data directories say what happened, and agree."""
    partitions = [data / f"{told.TOPIC}-{n}" for data in directories for n in range(told.PARTITIONS)]
    lines = told.by_file(check_directories(partitions))
    for directory in partitions:
        replayed = told.replay(directory, lines)
        assert (replayed.commits, replayed.aborts) == (history.commits, history.aborts)
        assert len(replayed.open) == 2
        index = told.aborted_rows(directory, lines)
        assert index == dict(replayed.index)
        assert sum(map(len, index.values())) == history.aborts and len(index) > 1
        snapshots = told.snapshots(directory, lines)
        assert snapshots == {offset: replayed.at[offset] for offset in snapshots}
        assert any(first is not None for rows in snapshots.values() for first in rows.values())


def test_kafkas_tool_reads_what_happened(killed: dict[str, Any]) -> None:
    check_files(killed["directories"], killed["history"])


def test_kafkas_tool_reads_what_the_coordinators_wrote(killed: dict[str, Any]) -> None:
    for topic, decoder in ((STATE, "--transaction-log-decoder"), (OFFSETS, "--offsets-decoder")):
        by_node = [[data / f"{topic}-{n}" for n in range(STATE_PARTITIONS)] for data in killed["directories"]]
        logs = [log for each in by_node for d in each for log in d.glob("*.log") if log.stat().st_size]
        output = dump_log_segments(logs, decoder)
        assert not complaints(output)
        for directories in by_node:
            rows = told.decoded(directories, told.by_file(output))
            (check_states if topic == STATE else check_offsets)(rows)


def check_states(rows: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> None:
    """The last record of each id says how its last transaction ended, and where an open one is."""
    last = {key["transactionalId"]: value or {} for key, value in rows}
    last.pop("maker")
    assert {name: value["transactionStatus"] for name, value in last.items()} == told.STATUSES
    for name in ("open-old", "open-new"):
        assert {"topic": told.TOPIC, "partitionIds": [0, 1]} in last[name]["transactionPartitions"]


def check_offsets(rows: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> None:
    """The group's, whatever became of their transactions."""
    found = [
        value["offset"] for key, value in rows if value and key.get("group") == told.GROUP and "topic" in key
    ]
    assert found == [told.STABLE_OFFSET, told.ABORTED_OFFSET, told.PENDING_OFFSET]


def _ready(kafka: KafkaCluster) -> str:
    wait_for_kafka(kafka)
    return kafka.bootstrap


def _partitions(data: Path) -> Iterator[Path]:
    for topic, count in TOPICS.items():
        for partition in range(count):
            yield data / f"{topic}-{partition}"


def _end_what_is_open(bootstrap: str) -> None:
    """Their producers come again, which aborts what they had left."""
    ByLibrdkafka(bootstrap, "open-old", told.TIMEOUT_MS).close()
    ByJava(bootstrap, "open-new", told.TIMEOUT_MS).close()


def _check_readers(bootstrap: str, found: Any, history: told.History) -> None:
    """They find what they had found elsewhere; and once nothing is open, all that was committed."""
    assert told.readings(bootstrap) == found
    wait_for(lambda: told.committed_offset(bootstrap) == told.STABLE_OFFSET, "the group's offset")
    _end_what_is_open(bootstrap)
    _, everything = found
    wait_for(
        lambda: told.readings(bootstrap) == (history.seen(everything), everything), "what was open is aborted"
    )
    assert told.committed_offset(bootstrap) == told.STABLE_OFFSET
    writer = ByLibrdkafka(bootstrap, "old", told.TIMEOUT_MS)
    told.one_more(writer, "old", history)
    writer.close()
    committed, everything = told.readings(bootstrap)
    assert committed == history.seen(everything)


def test_kafka_starts_on_the_files_of_a_killed_node(killed: dict[str, Any], tmp_path: Path) -> None:
    with running_kafka(tmp_path, settings=OF_KAFKA) as kafka:
        told.make_topics(_ready(kafka))
        kafka.stop()
        data = tmp_path / "kafka-1/data"
        for theirs in _partitions(data):
            ours = killed["directories"][0] / theirs.name
            # Which id a topic has stands in Kafka's metadata.
            topic_id = (theirs / "partition.metadata").read_bytes()
            shutil.rmtree(theirs)
            shutil.copytree(ours, theirs)
            (theirs / "partition.metadata").write_bytes(topic_id)
        for kept in (*data.glob("*-checkpoint"), data / ".kafka_cleanshutdown"):
            kept.unlink(missing_ok=True)
        kafka.run()
        _check_readers(_ready(kafka), killed["found"], killed["history"])


def _producer_ids(data: Path) -> set[int]:
    """Every one that these files have: in batches, and as what the coordinator gave."""
    found = set()
    for directory in _partitions(data):
        for log in directory.glob("*.log"):
            content = log.read_bytes()
            for info in iter_batches(content):
                found.add(info.producer_id)
                if not directory.name.startswith(STATE):
                    continue
                for record in read_records(content[info.position : info.position + info.size_bytes]):
                    if record.value is not None:
                        value = stored.read_value(record.value)
                        found |= {value.producer_id, value.previous_id, value.next_id}
    return found - {-1}


def _new_ids(address: str) -> list[int]:
    """Of idempotent producers."""
    request = build.request("init_producer_id", 4, {"transaction_timeout": 0, "producer_id": -1})
    found = []
    with Wire(address) as wire:
        for _ in range(5):
            answer = wire.call(request)
            assert not int(answer.error_code), answer
            found.append(int(answer.producer_id))
    return found


def test_a_directory_of_kafka_is_taken_over(tmp_path: Path) -> None:
    with running_kafka(tmp_path, settings=OF_KAFKA) as kafka:
        told.make_topics(_ready(kafka))
        history = told.write_history(kafka.bootstrap)
        found = told.readings(kafka.bootstrap)
        assert told.committed_offset(kafka.bootstrap) == told.STABLE_OFFSET
        kafka.kill()
    theirs = tmp_path / "kafka-1/data"
    old_ids = _producer_ids(theirs)
    assert len(old_ids) > len(told.STATUSES)

    with running_cluster(
        tmp_path / "ours", controllers=1, nodes=1, steady=True, settings=OF_PENSTOCK
    ) as cluster:
        # Producers of a new cluster begin as Kafka's do, and each process has more ids at hand.
        doors = (cluster.bootstrap, cluster.direct_bootstrap)
        assert {n for door in doors for n in _new_ids(door)} & old_ids
        cluster.kill("node-1")
        for directory in _partitions(theirs):
            shutil.copytree(directory, cluster.directory / "node-1/data" / directory.name)
        cluster.start("node-1")
        wait_for(lambda: _offered(cluster) == TOPICS, "the node offers what it has")
        taken = said(cluster, "cluster", "recover", "--from-nodes", "--yes")
        assert [topic["error"] for topic in taken["topics"]] == [None] * len(TOPICS)
        # Whose metadata have the topics has heard that ids were passed over.
        for door in doors:
            for topic in TOPICS:
                wait_for_full_isr(door, topic)

        new_ids = [n for door in doors for n in _new_ids(door)]
        assert not set(new_ids) & old_ids
        listed = _listed(cluster)
        assert {row["producer_id"] for row in listed.values()} <= old_ids
        assert {name for name, row in listed.items() if row["state"] == "Ongoing"} == {"open-old", "open-new"}
        _check_readers(cluster.bootstrap, found, history)
        for number in range(3):
            ByLibrdkafka(cluster.bootstrap, f"later-{number}").close()
        listed = _listed(cluster)
        new_ids += [listed[f"later-{number}"]["producer_id"] for number in range(3)]
        assert not set(new_ids) & old_ids


def _offered(cluster: LocalCluster) -> dict[str, int]:
    """Topics that nodes have and the metadata lack, with how many partitions."""
    found = said(cluster, "cluster", "recover", "--from-nodes", "--dry-run")["topics"]
    return {topic["topic"]: len(topic["partitions"]) for topic in found}


def _listed(cluster: LocalCluster) -> dict[str, dict[str, Any]]:
    """Transactional ids."""
    return {row["transactional_id"]: row for row in said(cluster, "transaction", "list")["transactions"]}
