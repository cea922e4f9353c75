"""`audit` of what a real cluster holds: faults planted in a stopped node's files, and topics that are sound."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock_kafka.records.batch import BatchInfo, iter_batches
from pyspark_penstock.jobs import audit
from support.cluster import running_cluster, start_ready
from support.kafka import client_config, create_topic, produce, read_all
from support.spark import WAIT_S
from support.transaction_file import leave_transactions
from support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.local.cluster import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(1800)]

COUNT = 400
TRANSACTIONS = 9
BATCHED: dict[str, Any] = {"batch.num.messages": 10}
SMALL = {"segment_bytes": "16384"}
SETTINGS = {"storage-node": {"compaction_interval_ms": "300"}}


class Audited(NamedTuple):
    """A cluster with topics to audit, and which offsets were taken or changed."""

    cluster: LocalCluster
    changed: BatchInfo
    cut: BatchInfo


def segments(directory: Path, topic: str) -> list[Path]:
    return sorted(directory.glob(f"node-1/**/{topic}-0/*.log"))


def size_bytes(segment: Path) -> int:
    """0 at the moment at which its new files take the place of the old ones."""
    try:
        return segment.stat().st_size
    except FileNotFoundError:
        return 0


def plant(directory: Path, topic: str, write: Callable[[bytes, BatchInfo], bytes]) -> BatchInfo:
    """Changes the second batch of the second segment, which is closed, as `write` says."""
    path = segments(directory, topic)[1]
    data = path.read_bytes()
    batch = list(iter_batches(data))[1]
    path.write_bytes(write(data, batch))
    return batch


def with_a_changed_byte(data: bytes, batch: BatchInfo) -> bytes:
    changed = bytearray(data)
    changed[batch.position + batch.size_bytes - 5] ^= 16
    return bytes(changed)


def without(data: bytes, batch: BatchInfo) -> bytes:
    return data[: batch.position] + data[batch.position + batch.size_bytes :]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    directory = tmp_path_factory.mktemp("jobs")
    with running_cluster(directory, controllers=1, nodes=1, settings=SETTINGS) as cluster:
        compacted = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"}
        for topic, more in (("changed", {}), ("cut", {}), ("whole", {}), ("latest", compacted)):
            create_topic(cluster.bootstrap, topic, 1, 1, **SMALL, **more)
            produce(cluster.bootstrap, topic, COUNT, keys=7, **BATCHED)
        create_topic(cluster.bootstrap, "copy", 1, 1)
        values = [item.value for item in read_all(cluster.bootstrap, "whole")]
        send(cluster, "copy", [*values, values[123]])
        first = segments(directory, "latest")[0]
        wait_for(lambda: 0 < size_bytes(first) < 8_000, "the topic is compacted", WAIT_S)
        create_topic(cluster.bootstrap, "ledger", 3, 1)
        write_transactions(cluster, "ledger")
        leave_transactions(cluster, directory, "decided")
        cluster.kill("node-1", signal.SIGTERM)
        changed = plant(directory, "changed", with_a_changed_byte)
        cut = plant(directory, "cut", without)
        start_ready(cluster, "node-1")
        yield Audited(cluster, changed, cut)


def send(cluster: LocalCluster, topic: str, values: list[bytes]) -> None:
    """One after another, by a producer that knows nothing of sequences."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "max.in.flight": 1})
    for number, value in enumerate(values):
        producer.produce(topic, value, b"key-%d" % (number % 7) if number < COUNT else b"key-%d" % (123 % 7))
    assert producer.flush(WAIT_S) == 0


def write_transactions(cluster: LocalCluster, topic: str) -> None:
    """By a real client: a third is aborted; of one record to many, on all three partitions, plain and compressed."""
    from confluent_kafka import Producer

    for number, codec in enumerate(("none", "zstd")):
        settings = {"transactional.id": f"writer-{number}", "compression.type": codec, **BATCHED}
        producer = Producer(client_config(cluster.bootstrap, **settings))
        producer.init_transactions(WAIT_S)
        for turn in range(TRANSACTIONS):
            producer.begin_transaction()
            for at in range(turn * 5 + 1):
                producer.produce(topic, b"%s-%d-%d" % (codec.encode(), turn, at), partition=at % 3)
            if turn % 3 == 1:
                assert producer.flush(WAIT_S) == 0  # what is aborted unsent is nowhere
                producer.abort_transaction(WAIT_S)
            else:
                producer.commit_transaction(WAIT_S)


def run(spark: SparkSession, found: Audited, topic: str, **more: Any) -> dict[str, Any]:
    return audit(spark, topic=topic, gateway=found.cluster.gateway, **more)


def covering(result: dict[str, Any], first: int, last: int) -> set[str]:
    """Kinds of findings that cover these offsets."""
    return {item["kind"] for item in result["findings"] if item["from"] <= first and last < item["to"]}


def test_a_changed_byte(spark: SparkSession, audited: Audited) -> None:
    result = run(spark, audited, "changed")
    bad = audited.changed
    assert covering(result, bad.base_offset, bad.next_offset - 1) <= {"unreadable", "crc"}
    (item,) = result["findings"]
    assert (item["from"], item["to"]) == (bad.base_offset, bad.next_offset)
    assert item["kind"] == "unreadable"
    assert "Kafka error 2" in item["sample"][0]["reason"]
    (row,) = result["partitions"]
    assert row["records"] + row["unreadable"] == COUNT


def test_a_batch_cut_out(spark: SparkSession, audited: Audited) -> None:
    result = run(spark, audited, "cut")
    gone = audited.cut
    assert covering(result, gone.base_offset, gone.next_offset - 1) == {"lost", "sequence_gap"}
    (row,) = result["partitions"]
    assert row["lost"] == gone.next_offset - gone.base_offset
    assert row["records"] + row["lost"] == COUNT


def test_nothing_is_found_where_nothing_is(spark: SparkSession, audited: Audited) -> None:
    assert run(spark, audited, "whole")["ok"]
    latest = run(spark, audited, "latest")
    assert latest["ok"], latest["findings"]
    (row,) = latest["partitions"]
    assert row["compacted"] > 0
    assert row["records"] + row["compacted"] == COUNT


def test_a_topic_of_transactions(spark: SparkSession, audited: Audited) -> None:
    everything = run(spark, audited, "decided")
    assert everything["ok"], everything["findings"]
    (row,) = everything["partitions"]
    assert row["aborted"] > 0
    assert row["control"] > 0
    assert row["records"] + row["aborted"] + row["control"] == row["last"] + 1
    decided = run(spark, audited, "decided", isolation="read_committed")
    assert decided["ok"]
    assert decided["to"]["decided"]["0"] < everything["to"]["decided"]["0"]


def test_a_topic_of_a_clients_transactions(spark: SparkSession, audited: Audited) -> None:
    everything = run(spark, audited, "ledger")
    assert everything["ok"], everything["findings"]
    rows = everything["partitions"]
    sizes = [turn * 5 + 1 for turn in range(TRANSACTIONS)] * 2
    assert sum(row["records"] + row["aborted"] for row in rows) == sum(sizes)
    assert sum(row["aborted"] for row in rows) == 2 * sum(turn * 5 + 1 for turn in range(1, TRANSACTIONS, 3))
    assert all(row["control"] for row in rows)
    assert all(row["records"] + row["aborted"] + row["control"] == row["last"] + 1 for row in rows)
    committed = run(spark, audited, "ledger", isolation="read_committed")
    assert committed["ok"], committed["findings"]
    assert committed["rows"] == sum(row["records"] for row in rows)


def test_a_record_twice_in_a_copy_by_the_command(audited: Audited) -> None:
    command = [
        sys.executable, "-m", "penstock.cli.main", "spark", "run", "audit", "--topic", "whole", "--against", "copy",
        "--gateway", audited.cluster.gateway, "--master", "local[2]", "--conf", "spark.driver.memory=512m",
        "--conf", "spark.sql.shuffle.partitions=2", "--json",
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ.copy(), timeout=900, check=False
    )
    assert done.returncode == 4, done.stderr
    result = json.loads(done.stdout)
    assert [(item["kind"], item["topic"], item["from"], item["to"]) for item in result["findings"]] == [
        ("duplicated", "copy", COUNT, COUNT + 1)
    ]
    assert done.stderr.splitlines() == ["whole: 400 offsets to explain", "comparing whole with copy"]
