"""Spark as a reader of committed records: what is aborted or undecided is not there, however the ranges are cut.

Held against confluent-kafka's consumer, and Kafka's Java one, on transactions that confluent-kafka has written. The
batches of `leave_transactions` are crafted: their transactions end in an order that no client brings about.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.cluster import running_cluster
from support.interleaved import (
    ISOLATIONS,
    Interleaved,
    Interleaving,
    Row,
    check_reading,
    read_by_confluent,
    read_by_java,
)
from support.java import missing_java, shared_driver
from support.kafka import create_topic
from support.spark import WAIT_S, LiveQuery, only_in_long_form, run_to_end
from support.transaction_file import leave_transactions
from support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.local.cluster import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(900)]

TOPIC = "decided"
PARTITIONS = 3
CODECS = {"interleaved-none": "none", "interleaved-zstd": "zstd"}
MODES = ("gateway", "direct")
SEED = int(os.environ.get("PENSTOCK_SPARK_COMMITTED_SEED", random.randrange(1 << 32)))


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(
        tmp_path_factory.mktemp("interleaved"), controllers=1, nodes=1, gateways=1, steady=True
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def interleaved(steady: LocalCluster) -> Iterator[dict[str, Interleaved]]:
    """By topic. Each has a transaction that is open."""
    print(f"PENSTOCK_SPARK_COMMITTED_SEED={SEED}")
    dice = random.Random(SEED)
    with _interleaving(steady, dice, CODECS) as writing:
        yield {topic: one.write() for topic, one in writing.items()}


@contextmanager
def _interleaving(
    cluster: LocalCluster, dice: random.Random, codecs: dict[str, str]
) -> Iterator[dict[str, Interleaving]]:
    writing: dict[str, Interleaving] = {}
    try:
        for topic, codec in codecs.items():
            create_topic(cluster.bootstrap, topic, PARTITIONS, 1)
            writing[topic] = Interleaving(cluster.bootstrap, topic, codec, dice)
        yield writing
    finally:
        for one in writing.values():
            one.close()


def rows_of(frame: DataFrame) -> list[Row]:
    """As consumers' rows."""
    return sorted(
        Row(row["topic"], row["partition"], row["offset"], _bytes(row["key"]), bytes(row["value"]))
        for row in frame.select("topic", "partition", "offset", "key", "value").collect()
    )


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def read_by_spark(spark: SparkSession, cluster: LocalCluster, **options: str) -> list[Row]:
    reader = spark.read.format("penstock").option("gateway", cluster.gateway)
    return rows_of(reader.option("subscribe", ",".join(CODECS)).options(**options).load())


def consumed(
    read: Callable[[str, str, str], list[Row]],
    cluster: LocalCluster,
    written: dict[str, Interleaved],
    level: str,
) -> list[Row]:
    """What a consumer reads of the topics; it must be what their producers know of."""
    found = []
    for topic, known in written.items():
        rows = read(cluster.bootstrap, topic, level)
        check_reading(known, level, [row.value for row in rows])
        found += rows
    return sorted(found)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_the_rows_are_a_confluent_consumers(
    spark: SparkSession, steady: LocalCluster, interleaved: dict[str, Interleaved], isolation: str
) -> None:
    expected = consumed(read_by_confluent, steady, interleaved, isolation)
    assert {(row.topic, row.partition) for row in expected} == {
        (topic, number) for topic in CODECS for number in range(PARTITIONS)
    }
    for mode in MODES:
        assert read_by_spark(spark, steady, isolation=isolation, fetchMode=mode) == expected, mode
    option = {"kafka.isolation.level": isolation}
    assert read_by_spark(spark, steady, **option, **{"fetch.chunkBytes": "1024"}) == expected


@only_in_long_form
@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("mode", MODES)
def test_ranges_may_be_cut_inside_transactions(
    spark: SparkSession, steady: LocalCluster, interleaved: dict[str, Interleaved], isolation: str, mode: str
) -> None:
    expected = consumed(read_by_confluent, steady, interleaved, isolation)
    for count in ("17", "50"):
        cut = {"minPartitions": count, "fetchMode": mode}
        assert read_by_spark(spark, steady, isolation=isolation, **cut) == expected, count


@pytest.mark.skipif(missing_java() is not None, reason=missing_java() or "")
def test_the_rows_are_a_java_consumers(
    spark: SparkSession, steady: LocalCluster, interleaved: dict[str, Interleaved]
) -> None:
    def read(bootstrap: str, topic: str, isolation: str) -> list[Row]:
        return read_by_java(shared_driver(), bootstrap, topic, isolation)

    expected = consumed(read, steady, interleaved, "read_committed")
    assert read_by_spark(spark, steady, isolation="read_committed") == expected


@pytest.mark.parametrize(
    ("mode", "commits"), [("gateway", True), pytest.param("direct", False, marks=only_in_long_form)]
)
def test_a_stream_waits_at_the_last_stable_offset_and_goes_on(
    spark: SparkSession, steady: LocalCluster, tmp_path: Path, mode: str, commits: bool
) -> None:
    """While a transaction is open nothing of its partition comes from there on, of others everything."""
    topic = f"waiting-{mode}"
    batches: dict[int, list[Row]] = {}

    def collect(batch: DataFrame, batch_id: int) -> None:
        batches[batch_id] = rows_of(batch)

    def found() -> list[Row]:
        return sorted(row for rows in list(batches.values()) for row in rows)

    def has_come(value: bytes) -> bool:
        query.check()
        return any(row.value == value for row in found())

    def comes(value: bytes) -> None:
        wait_for(lambda: has_come(value), f"{value!r} comes", WAIT_S)

    with _interleaving(steady, random.Random(SEED), {topic: "none"}) as writing:
        one = writing[topic]
        written = one.write()
        frame = (
            spark.readStream.format("penstock")
            .options(gateway=steady.gateway, subscribe=topic, startingOffsets="earliest")
            .options(isolation="read_committed", fetchMode=mode)
            .load()
        )

        writer = frame.writeStream.foreachBatch(collect)
        query = LiveQuery(writer.option("checkpointLocation", str(tmp_path)).start)
        try:
            for number in range(2):
                # In micro-batches that come later than those records, which nobody sees.
                for partition in range(1, PARTITIONS):
                    comes(one.plain(partition))
                assert found() == read_by_confluent(steady.bootstrap, topic, "read_committed")
                check_reading(written, "read_committed", [row.value for row in found()])
                assert written.undecided and written.behind
                last = max(written.behind)
                one.decide(commits=commits == (number == 0))
                comes(last)
                comes(one.plain(0))
                assert found() == read_by_confluent(steady.bootstrap, topic, "read_committed")
                check_reading(written, "read_committed", [row.value for row in found()])
                if number == 0:
                    one.leave_open()
        finally:
            query.stop()


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
        run_to_end(
            spark.readStream.format("penstock")
            .options(**options, startingOffsets="earliest", maxOffsetsPerTrigger="50")
            .option("kafka.isolation.level", "read_committed")
            .load()
            .writeStream.format("memory")
            .queryName("committed")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start
        )
        assert values(spark.table("committed")) == committed
