"""Batch reads through a real Spark session."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

from unit.spark.spark_batches import Rec, encode_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from unit.spark.spark_memory_gateway import MemoryGateway

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

VALUES = [b"value %d" % i for i in range(5000)]


@pytest.fixture
def flights(cluster: MemoryGateway) -> MemoryGateway:
    cluster.create("flights", 3)
    cluster.append("flights", 0, VALUES)
    cluster.append("flights", 2, VALUES[:1234], size=37, codec="zstd")
    return cluster


def load(spark: SparkSession, cluster: MemoryGateway, schema: str = "", **options: str) -> DataFrame:
    reader = spark.read.format("penstock").option("gateway", ",".join(cluster.addresses))
    for name, value in ({"subscribe": "flights"} | options).items():
        reader = reader.option(name, value)
    return (reader.schema(schema) if schema else reader).load()


def offsets(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["offset"]) for row in frame.select("partition", "offset").collect())


WHOLE = [(0, i) for i in range(5000)] + [(2, i) for i in range(1234)]


def test_count_and_rows(spark: SparkSession, flights: MemoryGateway) -> None:
    frame = load(spark, flights)
    assert frame.count() == 6234
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert all(field.nullable for field in frame.schema.fields)
    row = frame.where("partition = 2 and offset = 1000").first()
    assert row is not None
    assert (bytes(row["key"]), bytes(row["value"]), row["topic"], row["timestampType"]) == (
        b"1000", b"value 1000", "flights", 0,
    )  # fmt: skip
    age = dt.datetime.now() - row["timestamp"]  # noqa: DTZ005 # Spark gives local times
    assert dt.timedelta() < age < dt.timedelta(hours=1)
    assert offsets(frame) == WHOLE
    text = frame.selectExpr("CAST(value AS STRING) AS v").groupBy("v").count()
    assert text.count() == 5000


def test_tiling_reaches_spark(spark: SparkSession, flights: MemoryGateway) -> None:
    frame = load(spark, flights, minPartitions="7")
    assert frame.rdd.getNumPartitions() >= 7
    assert offsets(frame) == WHOLE
    frame = load(spark, flights, maxRecordsPerPartition="1000")
    assert frame.rdd.getNumPartitions() == 7
    assert offsets(frame) == WHOLE


def test_bounds(spark: SparkSession, flights: MemoryGateway) -> None:
    frame = load(
        spark, flights,
        startingOffsets='{"flights":{"0":4990,"1":-2,"2":1230}}', endingOffsets='{"flights":{"0":-1,"1":-1,"2":1232}}',
    )  # fmt: skip
    assert offsets(frame) == [(0, i) for i in range(4990, 5000)] + [(2, 1230), (2, 1231)]


@pytest.mark.parametrize(
    "schema",
    ["value BINARY", "offset BIGINT, partition INT", "timestamp TIMESTAMP, key BINARY", "topic STRING"],
)
def test_projections(spark: SparkSession, flights: MemoryGateway, schema: str) -> None:
    names = [item.split()[0] for item in schema.split(", ")]
    frame, whole = load(spark, flights, schema), load(spark, flights)
    assert frame.columns == names
    assert frame.count() == 6234
    assert sorted(map(str, frame.collect())) == sorted(map(str, whole.select(*names).collect()))


def test_filters_decide_what_is_read(spark: SparkSession, flights: MemoryGateway) -> None:
    switch = "spark.sql.python.filterPushdown.enabled"
    frame = load(spark, flights, pushdown="true")
    with pytest.raises(AnalysisException, match=switch):
        frame.where("partition = 0").count()
    spark.conf.set(switch, "true")
    try:
        flights.calls.clear()
        frame = load(spark, flights, pushdown="true")
        some = frame.where("topic = 'flights' AND partition IN (0, 1) AND offset >= 4990 AND offset < 4995")
        assert offsets(some) == [(0, offset) for offset in range(4990, 4995)]
        assert [call for call in flights.calls if call.startswith("FetchRange")] == ["FetchRange 4990"]
        assert frame.where("timestamp > now() + INTERVAL 1 DAY").count() == 0
        assert frame.where("timestamp > now() - INTERVAL 1 DAY").count() == 6234
        assert offsets(frame) == WHOLE
    finally:
        spark.conf.unset(switch)


def test_headers_and_nulls(spark: SparkSession, cluster: MemoryGateway) -> None:
    cluster.create("flights", 1)
    recs = [
        Rec(0, 1_700_000_000_123, None, b"", [("a", b"1"), ("a", None)]),
        Rec(1, 1_700_000_000_124, b"", None),
        Rec(2, -1, b"k", b"v"),
    ]
    log = cluster.topics["flights"].logs[0]
    log.batches.append((0, 2, encode_batch(recs)))
    log.end = 3
    rows: list[Any] = load(spark, cluster, includeHeaders="true").orderBy("offset").collect()
    assert [row["key"] for row in rows] == [None, b"", b"k"]
    assert [row["value"] for row in rows] == [b"", None, b"v"]
    assert [tuple(item) for item in rows[0]["headers"]] == [("a", b"1"), ("a", None)]
    assert rows[1]["headers"] is None
    frame = load(spark, cluster).selectExpr("offset", "unix_millis(timestamp) AS ms").orderBy("offset")
    assert [row["ms"] for row in frame.collect()] == [1_700_000_000_123, 1_700_000_000_124, -1]


def test_empty_topics(spark: SparkSession, cluster: MemoryGateway) -> None:
    cluster.create("flights", 2)
    assert load(spark, cluster).count() == 0
    assert load(spark, cluster).collect() == []
    frame = spark.read.format("penstock").option("gateway", cluster.addresses[0])
    assert frame.option("subscribePattern", "nothing.*").load().count() == 0


def test_sql(spark: SparkSession, flights: MemoryGateway) -> None:
    spark.sql(
        "CREATE TEMPORARY VIEW flights USING penstock "
        f"OPTIONS (gateway '{flights.addresses[0]}', subscribe 'flights', failOnDataLoss 'false')"
    )
    try:
        row = spark.sql("SELECT count(*) AS n, max(offset) AS top FROM flights").first()
        assert row is not None
        assert (row["n"], row["top"]) == (6234, 4999)
    finally:
        spark.catalog.dropTempView("flights")


def test_a_stream_broken_under_a_task(spark: SparkSession, flights: MemoryGateway) -> None:
    broken: list[int] = []

    def fault(context: Any, sent: int) -> None:
        import grpc

        if sent == 1 and len(broken) < 4:
            broken.append(sent)
            context.abort(grpc.StatusCode.UNAVAILABLE, "going down")

    flights.fault = fault
    assert offsets(load(spark, flights, **{"fetch.chunkBytes": "4096"})) == WHOLE
    assert broken


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"subscribe": "absent"}, "no such topic or partition: absent"),
        ({"startingOfsets": "earliest"}, "unknown option startingofsets"),
        ({"startingOffsets": "latest"}, "can't be latest"),
        ({"kafka.max.pol.records": "1"}, r"did you mean kafka.max.poll.records\?"),
        ({"startingOffsets": '{"flights":{"0":1}}'}, "missing: flights-1, flights-2"),
    ],
)
def test_errors_say_what_is_wrong(
    spark: SparkSession, flights: MemoryGateway, options: dict[str, str], match: str
) -> None:
    with pytest.raises(AnalysisException, match=match):
        load(spark, flights, **options).count()


def test_data_loss_fails_the_job(spark: SparkSession, flights: MemoryGateway) -> None:
    flights.trim("flights", 0, 100)
    with pytest.raises(AnalysisException, match="outside 100"):
        load(spark, flights, startingOffsets='{"flights":{"0":0,"1":0,"2":0}}').count()
    assert load(spark, flights).count() == 6134


def test_another_delivery_is_refused(spark: SparkSession, flights: MemoryGateway) -> None:
    frame = spark.sql("SELECT X'00' AS value")
    writer = frame.write.format("penstock").mode("append").option("gateway", flights.addresses[0])
    with pytest.raises(AnalysisException, match="must be exactly-once or at-least-once, not 'at-most-once'"):
        writer.option("topic", "t").option("delivery", "at-most-once").save()


def test_corrupt_batches_fail_the_job(spark: SparkSession, flights: MemoryGateway) -> None:
    log = flights.topics["flights"].logs[0]
    first, last, data = log.batches[3]
    log.batches[3] = (first, last, data[:-1] + b"?")
    with pytest.raises(Exception, match=r"topic flights partition 0.*CRC-32C"):
        load(spark, flights).count()
