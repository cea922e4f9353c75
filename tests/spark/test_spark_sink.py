"""What Spark writes, read back by Kafka's clients; and what it refuses, in one sentence each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from support.cluster import running_cluster
from support.kafka import client_config, create_topic, read_all
from support.spark import WAIT_S, started
from support.waiting import wait_for
from unit.spark.spark_sink_gateway import SinkGateway

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.local.cluster import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

DELIVERY = {"delivery": "at-least-once"}
KEYED = ("CAST(id % 997 AS STRING) AS key", "concat('value ', id) AS value")


@pytest.fixture(scope="module")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("sink"), controllers=1, nodes=1, gateways=1) as cluster:
        yield cluster


@pytest.fixture
def memory() -> Iterator[SinkGateway]:
    made = SinkGateway()
    made.start()
    made.create("t", 3)
    yield made
    made.stop()


def write(frame: DataFrame, gateway: str, **options: str) -> None:
    frame.write.format("penstock").mode("append").options(gateway=gateway, **DELIVERY, **options).save()


def messages(bootstrap: str, topic: str, count: int) -> list[Any]:
    """So many records of partition 0, as confluent-kafka has them."""
    consumer = Consumer(client_config(bootstrap, **{"group.id": "unused", "check.crcs": True}))
    found: list[Any] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])

        def all_here() -> bool:
            found.extend(message for message in consumer.consume(100, timeout=1) if message.error() is None)
            return len(found) >= count

        wait_for(all_here, f"{count} records of {topic}", WAIT_S)
    finally:
        consumer.close()
    return found


@pytest.mark.cluster
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_rows_come_back_equal(spark: SparkSession, penstock: LocalCluster, codec: str) -> None:
    topic = f"equal-{codec}"
    create_topic(penstock.bootstrap, topic, 1, 1, max_message_bytes="8000000")
    schema = "key string, value binary, headers array<struct<key:string,value:binary>>, timestamp timestamp, other int"
    large = b"".join(b"%06d" % at for at in range(200_000))
    rows: list[tuple[Any, ...]] = [
        (None, b"no key", None),
        ("k", None, []),
        ("", b"", [("h", b"1"), ("h", None), ("", b"")]),
        ("ä", large, [(f"h{at}", b"x" * at) for at in range(50)]),
    ]
    frame = spark.createDataFrame([(key, value, headers, None, 1) for key, value, headers in rows], schema)
    times = "timestamp_millis(1700000000000 + coalesce(length(value), 0)) AS timestamp"
    write(
        frame.selectExpr("key", "value", "headers", times, "other").coalesce(1),
        penstock.gateway, topic=topic, compression=codec,
    )  # fmt: skip
    found = messages(penstock.bootstrap, topic, len(rows))
    for message, (key, value, headers) in zip(found, rows, strict=True):
        assert message.key() == (None if key is None else key.encode())
        assert message.value() == value
        assert (message.headers() or []) == (headers or [])
        assert message.timestamp()[1] == 1700000000000 + len(value or b"")


@pytest.mark.cluster
def test_a_stream_appends_and_a_complete_one_writes_all_again(
    spark: SparkSession, penstock: LocalCluster, tmp_path: Path
) -> None:
    for topic in ("source", "appended", "complete"):
        create_topic(penstock.bootstrap, topic, 2, 1)
    write(spark.range(3000).selectExpr(*KEYED), penstock.gateway, topic="source")
    read = spark.readStream.format("penstock").options(
        gateway=penstock.gateway, subscribe="source", startingOffsets="earliest", maxOffsetsPerTrigger="1000"
    )

    def run(frame: DataFrame, mode: str, topic: str) -> None:
        sink = (
            frame.writeStream.format("penstock")
            .outputMode(mode)
            .options(gateway=penstock.gateway, **DELIVERY)
        )
        sink = sink.option("checkpointLocation", str(tmp_path / topic)).trigger(availableNow=True)
        query = started(lambda: sink.option("topic", topic).start())
        assert query.awaitTermination(int(WAIT_S)), query.exception()

    run(read.load().selectExpr("key", "value"), "append", "appended")
    appended = Counter((found.key, found.value) for found in read_all(penstock.bootstrap, "appended"))
    assert appended == Counter((found.key, found.value) for found in read_all(penstock.bootstrap, "source"))
    counts = read.load().groupBy().count().selectExpr("CAST(count AS STRING) AS value")
    run(counts, "complete", "complete")
    assert sorted(found.value for found in read_all(penstock.bootstrap, "complete")) == [
        b"1000",
        b"2000",
        b"3000",
    ]


def last_line(error: BaseException) -> str:
    """The last line that names an error, which is what Spark shows last of what Python raised."""
    return [line for line in str(error).splitlines() if "Error: " in line][-1]


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        (
            "'v' AS value",
            {"topic": "t", "delivery": "sometimes"},
            "option delivery must be exactly-once or at",
        ),
        ("'v' AS value", {"topic": "t", "delivery": "exactly-once"}, "gateways of an older build, which don"),
        ("'v' AS value", {}, 'there is no column topic; add one, or name a topic by option("topic", ...)'),
        ("'v' AS value", {"topci": "t"}, "unknown option topci"),
        ("'k' AS key", {"topic": "t"}, "no column value among key"),
        ("id AS value", {"topic": "t"}, "column value has type bigint; cast it to binary or string"),
        ("'v' AS value, if(id > 1, 't', null) AS topic", {}, "a row has null as topic; give it one"),
        (
            "'v' AS value, 3 AS partition",
            {"topic": "t"},
            "column partition has 3, and topic t has the partitions 0 t",
        ),
        ("'v' AS value", {"topic": "denied"}, "User:bob is not allowed to write to topic denied"),
        ("repeat('v', 9999) AS value", {"topic": "t"}, "above what it takes"),
        ("'v' AS value", {"topic": "absent"}, "no such topic: absent; create it first"),
    ],
)
def test_what_is_refused_is_one_sentence(
    spark: SparkSession, memory: SinkGateway, columns: str, options: dict[str, str], says: str
) -> None:
    memory.create("denied")
    memory.batch_bytes_max = 5000
    denied = (29, "User:bob is not allowed to write to topic denied")
    memory.refuse = lambda _, request: denied if request.topic == "denied" else None
    frame = spark.sql(f"SELECT {columns} FROM range(3)")
    given = {"gateway": memory.addresses[0]} | DELIVERY | options
    with pytest.raises(Exception, match=r"(?s)Error") as caught:
        frame.write.format("penstock").mode("append").options(**given).save()
    assert says in last_line(caught.value)


def test_a_batch_is_not_overwritten_and_a_streams_refusal_is_the_last_line(
    spark: SparkSession, memory: SinkGateway, tmp_path: Path
) -> None:
    frame = spark.sql("SELECT 'v' AS value FROM range(1)")
    given = {"gateway": memory.addresses[0], "topic": "t"}
    with pytest.raises(Exception, match="topics can't be overwritten"):
        frame.write.format("penstock").mode("overwrite").options(**given, **DELIVERY).save()
    stream = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    sink = stream.writeStream.format("penstock").options(**given, txnVersion="1")
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(Exception, match=r"(?s)Error") as caught:
        query.awaitTermination(int(WAIT_S))
    assert "option txnVersion is for batch writes" in last_line(caught.value)
    assert memory.rows("t") == []


def test_update_mode_is_refused_by_spark(spark: SparkSession, memory: SinkGateway, tmp_path: Path) -> None:
    """Before anything runs; docs/spark.md says what to take instead."""
    stream = spark.readStream.format("rate").load().groupBy("value").count()
    sink = stream.selectExpr("CAST(value AS STRING) AS value").writeStream.format("penstock")
    sink = sink.outputMode("update").options(gateway=memory.addresses[0], topic="t")
    with pytest.raises(Exception, match="does not support Update mode"):
        # Spark says so in the query's own thread, before `start` returns or a moment later.
        sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(60)
    assert memory.rows("t") == []
