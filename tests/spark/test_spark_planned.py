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
from confluent_kafka import Producer

from support.cluster import running_cluster
from support.kafka import create_topic
from support.spark import WAIT_S, started
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


def lags(cluster: LocalCluster, group: str) -> list[int]:
    """Of every partition that the group has an offset of."""
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
    return list(_found(json.loads(done.stdout), "lag")) if done.returncode == 0 else []


def _found(value: Any, name: str) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == name and isinstance(inner, int):
                yield inner
            else:
                yield from _found(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _found(inner, name)


def test_after_available_now_the_group_has_no_lag(
    spark: SparkSession, cluster_of_one: LocalCluster, tmp_path: Path
) -> None:
    skewed(cluster_of_one, "followed")
    query = started(
        spark.readStream.format("penstock")
        .option("gateway", cluster_of_one.gateway)
        .option("subscribe", "followed")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "700")
        .option("commitGroupId", "followers")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start
    )
    assert query.awaitTermination(int(WAIT_S))
    assert lags(cluster_of_one, "followers") == [0]


APPLICATION = """
    import sys
    from pyspark.sql import SparkSession
    from support.spark import started

    gateway, directory = sys.argv[1:]
    spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
             .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
             .config("spark.driver.memory", "1g").getOrCreate())
    writer = (spark.readStream.format("penstock").option("gateway", gateway).option("subscribe", "long")
              .option("startingOffsets", "earliest").option("commitGroupId", "long").load()
              .writeStream.format("noop").option("checkpointLocation", f"{directory}/checkpoint"))
    started(writer.start).awaitTermination()
"""


@pytest.mark.slow
def test_lag_follows_rises_after_a_kill_and_falls_again(cluster_of_one: LocalCluster, tmp_path: Path) -> None:
    create_topic(cluster_of_one.bootstrap, "long", 2, 1)
    producer = Producer({"bootstrap.servers": cluster_of_one.bootstrap})
    log = tmp_path / "application.log"
    script = tmp_path / "application.py"
    script.write_text(textwrap.dedent(APPLICATION))

    def produce() -> None:
        for index in range(5_000):
            producer.produce("long", b"x" * 100, partition=index % 2)
        assert producer.flush(WAIT_S) == 0

    def driver() -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, str(script), cluster_of_one.gateway, str(tmp_path)],
                env={
                    **os.environ,
                    "PYTHONPATH": str(Path(__file__).parents[1]),
                    "PYSPARK_PYTHON": sys.executable,
                },
                stdout=subprocess.DEVNULL,
                stderr=output,
                start_new_session=True,
            )

    def has_caught_up() -> bool:
        assert child.poll() is None, log.read_text()[-4000:]
        return lags(cluster_of_one, "long") == [0, 0]

    produce()
    child = driver()
    try:
        wait_for(has_caught_up, "the group has caught up", WAIT_S)
        produce()
        wait_for(has_caught_up, "the group follows", WAIT_S)
    finally:
        os.killpg(child.pid, 9)
        child.wait()
    produce()
    assert lags(cluster_of_one, "long") == [2_500, 2_500]
    child = driver()
    try:
        wait_for(has_caught_up, "the group has caught up after the restart", WAIT_S)
    finally:
        os.killpg(child.pid, 9)
        child.wait()
