"""Spark as a reader of committed records: what is aborted or undecided is not there, however the ranges are cut."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.cluster import running_cluster
from support.spark import WAIT_S
from support.transaction_file import leave_transactions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(900)]

TOPIC = "decided"


def values(frame: DataFrame) -> list[str]:
    rows = frame.where("offset > 0").selectExpr("offset", "string(value) AS value").collect()
    return [row["value"] for row in sorted(rows, key=lambda row: row["offset"])]


def test_committed_records_alone(spark: SparkSession, tmp_path: Path) -> None:
    with running_cluster(tmp_path, controllers=1, nodes=1, gateways=1) as cluster:
        _, everything, committed = leave_transactions(cluster, tmp_path, TOPIC)
        options = {"gateway": cluster.gateway, "subscribe": TOPIC}
        reader = spark.read.format("penstock").options(**options)
        assert values(reader.load()) == everything
        for cut in ({}, {"minPartitions": "7"}, {"fetch.chunkBytes": "1024"}):
            decided = spark.read.format("penstock").options(**options, **cut, isolation="read_committed")
            assert values(decided.load()) == committed, cut
        stream = (
            spark.readStream.format("penstock")
            .options(**options, startingOffsets="earliest", maxOffsetsPerTrigger="50")
            .option("kafka.isolation.level", "read_committed")
            .load()
            .writeStream.format("memory")
            .queryName("committed")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert stream.awaitTermination(int(WAIT_S))
        assert values(spark.table("committed")) == committed
