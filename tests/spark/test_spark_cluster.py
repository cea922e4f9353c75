"""Spark against a real cluster: what Kafka clients produced comes out complete, whoever dies meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance.wire import leaders_known
from support.cluster import running_cluster
from support.kafka import Load, create_topic, describe, produce, wait_for_full_isr
from support.spark import WAIT_S, started
from support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.local.cluster import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("spark"), gateways=2) as cluster:
        yield cluster


def create(cluster: LocalCluster, topic: str, partitions: int) -> None:
    """A topic that both gateways know: Spark asks whichever it likes."""
    create_topic(cluster.bootstrap, topic, partitions, 3)
    for address in cluster.bootstrap.split(","):
        wait_for(partial(is_known, address, topic, partitions), f"{topic} known at {address}", WAIT_S)


def is_known(address: str, topic: str, partitions: int) -> bool:
    return leaders_known(address, topic) == partitions


def read(spark: SparkSession, cluster: LocalCluster, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("penstock").option("gateway", cluster.gateway).option("subscribe", topic)
    return reader.options(**options).load()


def check_exact(frame: DataFrame, count: int) -> None:
    """Every offset once, from 0 on in each partition, and `count` in all."""
    rows = frame.groupBy("partition").agg({"offset": "max", "*": "count"}).collect()
    assert sum(row["count(1)"] for row in rows) == count
    assert all(row["max(offset)"] + 1 == row["count(1)"] for row in rows)
    assert frame.select("partition", "offset").distinct().count() == count


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd", "snappy", "gzip"])
def test_everything_that_was_produced(spark: SparkSession, penstock: LocalCluster, codec: str) -> None:
    topic = f"all-{codec}"
    create(penstock, topic, 3)
    config: dict[str, Any] = {"compression.type": codec}
    produce(penstock.bootstrap, topic, 20_000, keys=50, **config)
    frame = read(spark, penstock, topic)
    check_exact(frame, 20_000)
    assert frame.select("value").distinct().count() == 20_000
    # Splits that cut through stored batches give the same rows.
    split = read(spark, penstock, topic, minPartitions="17")
    assert split.rdd.getNumPartitions() >= 17
    assert split.exceptAll(frame).count() == 0
    assert split.count() == 20_000


def test_bounds_by_offset_and_time(spark: SparkSession, penstock: LocalCluster) -> None:
    create(penstock, "bounds", 1)
    produce(penstock.bootstrap, "bounds", 3_000)
    middle = read(
        spark, penstock, "bounds", startingOffsets='{"bounds":{"0":700}}', endingOffsets='{"bounds":{"0":801}}'
    )  # fmt: skip
    assert sorted(row["offset"] for row in middle.collect()) == list(range(700, 801))
    last = read(spark, penstock, "bounds").selectExpr("max(unix_millis(timestamp)) AS ms").first()
    assert last is not None
    assert read(spark, penstock, "bounds", startingTimestamp=str(last["ms"])).count() >= 1
    later = read(
        spark, penstock, "bounds",
        startingTimestamp=str(last["ms"] + 1), startingOffsetsByTimestampStrategy="latest",
    )  # fmt: skip
    assert later.count() == 0


def test_leader_and_gateway_die_under_a_stream(
    spark: SparkSession, penstock: LocalCluster, tmp_path: Path
) -> None:
    create(penstock, "events", 4)
    frame = (
        spark.readStream.format("penstock")
        .option("gateway", penstock.gateway)
        .option("subscribe", "events")
        .option("startingOffsets", "earliest")
        .load()
    )

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = batch.selectExpr("partition", "offset")
        rows.write.mode("overwrite").parquet(str(tmp_path / "out" / f"batch={batch_id}"))

    def start(**trigger: Any) -> Any:
        writer = frame.writeStream.foreachBatch(write).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        return started((writer.trigger(**trigger) if trigger else writer).start)

    query = start()
    with Load(penstock.bootstrap, "events", rate_per_s=2_000, timeout_s=WAIT_S) as load:
        load.wait_for_acks(4_000, WAIT_S)
        leaders = Counter(part.leader for part in describe(penstock.bootstrap, "events").values())
        victim = f"node-{leaders.most_common(1)[0][0]}"
        penstock.kill(victim)
        load.wait_for_acks(3_000, WAIT_S)
        penstock.kill("gateway-2")
        load.wait_for_acks(3_000, WAIT_S)
        penstock.start(victim, "gateway-2")
        wait_for_full_isr(penstock.bootstrap, "events", WAIT_S)
    assert query.exception() is None
    query.stop()
    query = start(availableNow=True)
    assert query.awaitTermination(WAIT_S)
    rows = spark.read.parquet(str(tmp_path / "out"))
    check_exact(rows, len(load.ledger.acked))
