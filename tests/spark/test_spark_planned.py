"""Spark on records of very different sizes, and its progress as a consumer group; by a real cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from support.cluster import running_cluster
from support.kafka import Load, client_config, commit, create_topic
from support.spark import WAIT_S, only_in_long_form, run_to_end, started
from support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.local.cluster import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(1800)]

SMALL, LARGE, HALF = 10, 10 * 1024, 800
BATCH_BYTES = 21_000
"""What the producer's batch.size allows, with a record that begins below it."""
OVERHEAD = 12
"""Of a record beside its value: lengths and deltas."""


@pytest.fixture(scope="module")
def cluster_of_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("planned"), controllers=1, nodes=1, gateways=1) as cluster:
        yield cluster


def skewed(cluster: LocalCluster, topic: str) -> None:
    """Half of the records are small, the other half large, apart."""
    create_topic(cluster.bootstrap, topic, 1, 1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.size": 20_000, "linger.ms": 5})
    for size in (SMALL, LARGE):
        for _ in range(HALF):
            producer.produce(topic, b"x" * size, partition=0)
        assert producer.flush(WAIT_S) == 0


def bytes_of(frame: DataFrame) -> int:
    found = frame.selectExpr(f"sum(length(value) + {OVERHEAD}) AS bytes").first()
    assert found is not None
    return int(found["bytes"] or 0)


def test_splits_of_skewed_records_are_even_in_bytes(
    spark: SparkSession, cluster_of_one: LocalCluster
) -> None:
    skewed(cluster_of_one, "skewed")
    frame = (
        spark.read.format("penstock")
        .option("gateway", cluster_of_one.gateway)
        .option("subscribe", "skewed")
        .option("minPartitions", "8")
        .load()
    )
    rows = (
        frame.selectExpr("spark_partition_id() AS split", "offset", f"length(value) + {OVERHEAD} AS bytes")
        .groupBy("split")
        .agg({"bytes": "sum", "offset": "count"})
        .collect()
    )
    assert len(rows) == 8
    assert sum(row["count(offset)"] for row in rows) == 2 * HALF
    assert frame.select("offset").distinct().count() == 2 * HALF
    sizes = [row["sum(bytes)"] for row in rows]
    even = sum(sizes) / 8
    assert all(abs(size - even) <= BATCH_BYTES + 64 * 1024 for size in sizes), sizes


def test_micro_batches_stay_within_their_bytes(
    spark: SparkSession, cluster_of_one: LocalCluster, tmp_path: Path
) -> None:
    skewed(cluster_of_one, "capped")
    sizes: list[int] = []
    rows: list[int] = []

    def look(batch: DataFrame, batch_id: int) -> None:
        del batch_id
        sizes.append(bytes_of(batch))
        rows.extend(row["offset"] for row in batch.select("offset").collect())

    query = started(
        spark.readStream.format("penstock")
        .option("gateway", cluster_of_one.gateway)
        .option("subscribe", "capped")
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", "1000000")
        .option("minPartitions", "3")
        .load()
        .writeStream.foreachBatch(look)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start
    )
    assert query.awaitTermination(int(WAIT_S))
    assert sorted(rows) == list(range(2 * HALF))
    assert len(sizes) >= HALF * LARGE // 1_000_000
    assert all(size <= 1_000_000 + BATCH_BYTES for size in sizes), sizes


def lags(cluster: LocalCluster, group: str, name: str = "lag") -> dict[int, Any]:
    """By partition, as `penstock group describe` says; partitions that the group has no offset of are left out."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "penstock.cli.main", "group", "describe", group, "--json"),
            *("--bootstrap", cluster.bootstrap),
        ],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    if done.returncode != 0:
        return {}
    places = json.loads(done.stdout)["partitions"]
    return {place["partition"]: place[name] for place in places if place[name] is not None}


def available_now(spark: SparkSession, cluster: LocalCluster, directory: Path, **options: str) -> list[Any]:
    """Partition and offset of every row that a query reads to its end."""
    found: dict[int, list[Any]] = {}

    def collect(batch: DataFrame, batch_id: int) -> None:
        found[batch_id] = [tuple(row) for row in batch.select("partition", "offset").collect()]

    run_to_end(
        spark.readStream.format("penstock")
        .options(gateway=cluster.gateway, **options)
        .load()
        .writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start
    )
    return sorted(row for rows in found.values() for row in rows)


def test_after_available_now_the_group_has_no_lag(
    spark: SparkSession, cluster_of_one: LocalCluster, tmp_path: Path
) -> None:
    """On any partition, the empty one included."""
    create_topic(cluster_of_one.bootstrap, "followed", 4, 1)
    producer = Producer({"bootstrap.servers": cluster_of_one.bootstrap})
    for number in range(900):
        producer.produce("followed", b"x", partition=number % 3)
    assert producer.flush(WAIT_S) == 0
    options = {"subscribe": "followed", "startingOffsets": "earliest", "commitGroupId": "followers"}
    rows = available_now(spark, cluster_of_one, tmp_path, maxOffsetsPerTrigger="400", **options)
    assert rows == [(partition, offset) for partition in range(3) for offset in range(300)]
    assert lags(cluster_of_one, "followers") == dict.fromkeys(range(4), 0)
    assert lags(cluster_of_one, "followers", "lag_s") == dict.fromkeys(range(4), 0)


def test_a_query_goes_on_where_a_consumer_group_stood(
    spark: SparkSession, cluster_of_one: LocalCluster, tmp_path: Path
) -> None:
    """The way over from a consumer, that has committed what it read of two partitions out of three."""
    create_topic(cluster_of_one.bootstrap, "taken-over", 3, 1)
    producer = Producer({"bootstrap.servers": cluster_of_one.bootstrap})
    for number in range(300):
        producer.produce("taken-over", b"x", partition=number % 3)
    assert producer.flush(WAIT_S) == 0
    settings = {"group.id": "taken-over", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer(client_config(cluster_of_one.bootstrap, **settings))
    try:
        consumer.subscribe(["taken-over"])
        read: list[Any] = []

        def has_read() -> bool:
            read.extend(consumer.consume(100, 0.5))
            return len(read) >= 300

        wait_for(has_read, "the consumer has read", WAIT_S)
        assert all(message.error() is None for message in read)
        commit(consumer, [TopicPartition("taken-over", 0, 40), TopicPartition("taken-over", 1, 100)])
    finally:
        consumer.close()
    assert lags(cluster_of_one, "taken-over") == {0: 60, 1: 0}
    options = {"subscribe": "taken-over", "startingOffsets": "group", "commitGroupId": "taken-over"}
    rows = available_now(spark, cluster_of_one, tmp_path, **options)
    assert rows == [(0, offset) for offset in range(40, 100)] + [(2, offset) for offset in range(100)]
    assert lags(cluster_of_one, "taken-over") == dict.fromkeys(range(3), 0)
    # From then on the checkpoint says where it is, whatever becomes of the group.
    done = subprocess.run(
        [
            *(sys.executable, "-m", "penstock.cli.main", "group", "reset-offsets", "taken-over"),
            *("--to-earliest", "--execute", "--bootstrap", cluster_of_one.bootstrap),
        ],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert lags(cluster_of_one, "taken-over") == dict.fromkeys(range(3), 100)
    assert available_now(spark, cluster_of_one, tmp_path, **options) == []
    assert lags(cluster_of_one, "taken-over") == dict.fromkeys(range(3), 0)


APPLICATION = """
    import sys
    from pyspark.sql import SparkSession
    from support.spark import started

    gateway, directory, group = sys.argv[1:]
    spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
             .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
             .config("spark.driver.memory", "1g").getOrCreate())
    writer = (spark.readStream.format("penstock").option("gateway", gateway).option("subscribe", group)
              .option("startingOffsets", "earliest").option("commitGroupId", group).load()
              .writeStream.format("noop").option("checkpointLocation", f"{directory}/checkpoint"))
    started(writer.start).awaitTermination()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate_per_s", "followed"), [(200, 1), pytest.param(5_000, 4, marks=only_in_long_form)]
)
def test_lag_follows_a_steady_load_rises_after_a_kill_and_falls_again(
    cluster_of_one: LocalCluster, tmp_path: Path, rate_per_s: int, followed: int
) -> None:
    """`penstock group describe` tells. `followed` is how often the group is seen to pass where the log ended a moment
    before."""
    group = f"long-{rate_per_s}"
    create_topic(cluster_of_one.bootstrap, group, 2, 1)
    log = tmp_path / "application.log"
    script = tmp_path / "application.py"
    script.write_text(textwrap.dedent(APPLICATION))

    def driver() -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, str(script), cluster_of_one.gateway, str(tmp_path), group],
                env={
                    **os.environ,
                    "PYTHONPATH": str(Path(__file__).parents[1]),
                    "PYSPARK_PYTHON": sys.executable,
                },
                stdout=subprocess.DEVNULL,
                stderr=output,
                start_new_session=True,
            )

    def kill(child: subprocess.Popen[bytes]) -> None:
        if child.poll() is None:
            os.killpg(child.pid, 9)
            child.wait()

    def lag() -> int | None:
        """Of the whole group; None until it has an offset in both partitions."""
        told = lags(cluster_of_one, group)
        return sum(told.values()) if len(told) == 2 else None

    def follows(load: Load) -> list[int]:
        """The lags that were told while the group passed the log's end of that moment, several times over."""
        told: list[int] = []
        for _ in range(followed):
            end = len(load.ledger.acked)

            def has_passed() -> bool:
                assert child.poll() is None, log.read_text()[-4000:]
                acked = len(load.ledger.acked)
                now = lag()
                if now is None:
                    return False
                told.append(now)
                return acked - now >= end  # noqa: B023 # the log ends there at least

            wait_for(has_passed, f"the group passes offset {end}", WAIT_S)
        return told

    child = driver()
    try:
        with Load(cluster_of_one.bootstrap, group, rate_per_s=rate_per_s, timeout_s=WAIT_S) as load:
            wait_for(lambda: lag() is not None, "the group is there", WAIT_S)
            print("lags under a steady load:", follows(load))
            kill(child)
            before = lag()
            assert before is not None
            load.wait_for_acks(2 * rate_per_s, WAIT_S)
            # Some of those may have been in the log before they were acknowledged.
            wait_for(lambda: (lag() or 0) >= before + rate_per_s, "the lag rises", WAIT_S)
            assert all(seconds > 0 for seconds in lags(cluster_of_one, group, "lag_s").values())
            print("lag at the kill, and after more load:", before, lag())
            child = driver()
            print("lags after the restart:", follows(load))
        wait_for(lambda: lags(cluster_of_one, group) == {0: 0, 1: 0}, "no lag is left", WAIT_S)
        print("records:", len(load.ledger.acked))
    finally:
        kill(child)
