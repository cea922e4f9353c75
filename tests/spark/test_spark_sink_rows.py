"""Rows that Spark writes lie where librdkafka puts them, and Kafka's clients read what was written, to the byte.

make spark-sink-rows takes a million rows; SEED repeats the keys.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition
from kafka.partitioner.default import murmur2

from support.cluster import running_cluster
from support.kafka import client_config, create_topic, read_all
from support.spark import WAIT_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.local.cluster import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(3600)]

LONG = "PENSTOCK_SPARK_SINK_ROWS" in os.environ
COUNT = int(os.environ.get("PENSTOCK_SPARK_SINK_ROWS") or 20_000)
DELIVERIES = ("at-least-once", "exactly-once") if LONG else ("at-least-once",)
SEED = int(os.environ.get("SEED") or random.randrange(1 << 32))
PARTITIONS = 7
CODECS = ("none", "gzip", "snappy", "lz4", "zstd") if LONG else ("snappy", "zstd")
"""The short form takes the two whose forms differ most between clients; test_spark_sink.py has all of them."""
LARGE_BYTES = 1 << 20
FIRST_MS = 1_700_000_000_000

Headers = list[tuple[str, bytes | None]]
Row = tuple[bytes | None, bytes | None, Headers, int]
"""Key, value, headers, timestamp in ms: what a reader finds."""


@pytest.fixture(scope="module")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("rows"), controllers=1, nodes=1, gateways=1) as cluster:
        yield cluster


def frame_of(spark: SparkSession, path: Path, columns: dict[str, Any]) -> DataFrame:
    """By way of a file: a million rows are no argument of a call."""
    pq.write_table(pa.table(columns), path)
    return spark.read.parquet(str(path))


def write(frame: DataFrame, cluster: LocalCluster, **options: str) -> None:
    frame.write.format("penstock").mode("append").options(gateway=cluster.gateway, **options).save()


def random_keys(dice: random.Random, count: int) -> list[bytes | None]:
    """Of every length modulo 4, which murmur2 treats apart, and of bytes above 127; a few empty, null and large."""
    keys: list[bytes | None] = [dice.randbytes(dice.randrange(1, 41)) for _ in range(count)]
    for at in range(0, count, 100):
        keys[at] = None
        keys[at + 1] = b""
    for at in (2, 3, 4, 5):
        keys[at] = dice.randbytes(LARGE_BYTES + at)
    return keys


def produce_by_librdkafka(cluster: LocalCluster, topic: str, keys: Sequence[bytes | None]) -> None:
    config = {"partitioner": "murmur2_random", "message.max.bytes": 8_000_000, "linger.ms": 20}
    producer = Producer(client_config(cluster.bootstrap, **config))
    errors: list[Any] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            errors.append(error)

    for number, key in enumerate(keys):
        while True:
            try:
                producer.produce(topic, b"%d" % number, key, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    assert errors == []


def places(cluster: LocalCluster, topic: str, keys: Sequence[bytes | None]) -> list[int]:
    """The partition of each number; each is there once, with its key."""
    found = [-1] * len(keys)
    for record in read_all(cluster.bootstrap, topic, WAIT_S, **{"isolation.level": "read_committed"}):
        number = int(record.value)
        assert found[number] == -1, f"{number} is there twice"
        assert record.key == keys[number], number
        found[number] = record.partition
    missing = found.count(-1)
    assert missing == 0, f"{missing} rows are missing, the first is {found.index(-1)}"
    return found


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_random_keys_lie_where_librdkafka_puts_them(
    spark: SparkSession, penstock: LocalCluster, tmp_path: Path, delivery: str
) -> None:
    print(f"\n{COUNT} rows, SEED={SEED}")
    keys = random_keys(random.Random(SEED), COUNT)
    ours, theirs = f"by-spark-{delivery}", f"by-librdkafka-{delivery}"
    for topic in (ours, theirs):
        create_topic(penstock.bootstrap, topic, PARTITIONS, 1, max_message_bytes="8000000")
    columns = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array([b"%d" % number for number in range(COUNT)], pa.binary()),
    }
    frame = frame_of(spark, tmp_path / "rows.parquet", columns)
    write(frame.repartition(4), penstock, topic=ours, delivery=delivery)
    produce_by_librdkafka(penstock, theirs, keys)
    found, wanted = places(penstock, ours, keys), places(penstock, theirs, keys)
    # librdkafka tells no empty key from one that isn't there: for those Kafka's own rule, by kafka-python's hash.
    strays = [number for number, key in enumerate(keys) if key and found[number] != wanted[number]]
    assert not strays, f"{len(strays)} rows lie elsewhere, the first is {strays[0]}: {keys[strays[0]]!r:.100}"
    of_empty = (murmur2(b"") & 0x7FFFFFFF) % PARTITIONS
    assert {found[number] for number, key in enumerate(keys) if key == b""} == {of_empty}
    assert {found[number] for number, key in enumerate(keys) if key} == set(range(PARTITIONS))


def every_shape(dice: random.Random) -> list[tuple[bytes | None, bytes | None, Headers | None]]:
    """Each key with each value and each list of headers."""
    texts = (None, b"", b"small \x00\xff", dice.randbytes(LARGE_BYTES))
    many: Headers = [(f"h{at % 40}", None if at % 5 == 0 else dice.randbytes(at - 1)) for at in range(50)]
    headers: tuple[Headers | None, ...] = (None, [], [("", None)], [("ä", b"")], many)
    # Not of one word alone: above 1 MiB a batch that grows more than 1100-fold is taken for a bomb (compatibility.md).
    compressible = b"".join(b"%07d " % at for at in range(LARGE_BYTES // 8))
    return list(product(texts, (*texts[:3], compressible), headers))


@pytest.mark.parametrize("codec", CODECS)
def test_every_shape_of_row_is_read_back_equal(
    spark: SparkSession, penstock: LocalCluster, tmp_path: Path, codec: str
) -> None:
    shapes = every_shape(random.Random(SEED))
    topic = f"shapes-{codec}"
    create_topic(penstock.bootstrap, topic, 1, 1, max_message_bytes="8000000")
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    lists = [None if given is None else [{"key": k, "value": v} for k, v in given] for _, _, given in shapes]
    columns = {
        "key": pa.array([key for key, _, _ in shapes], pa.binary()),
        "value": pa.array([value for _, value, _ in shapes], pa.binary()),
        "headers": pa.array(lists, header),
        "timestamp": pa.array(range(FIRST_MS, FIRST_MS + len(shapes)), pa.int64()).cast(pa.timestamp("ms", "UTC")),
    }  # fmt: skip
    frame = frame_of(spark, tmp_path / "rows.parquet", columns)
    write(frame.coalesce(1), penstock, topic=topic, compression=codec, delivery="at-least-once")
    wanted = [(key, value, given or [], FIRST_MS + at) for at, (key, value, given) in enumerate(shapes)]
    check_equal(by_confluent(penstock.bootstrap, topic, len(wanted)), wanted)
    check_equal(by_kafka_python(penstock.bootstrap, topic, len(wanted)), wanted)


def check_equal(found: list[Row], wanted: list[Row]) -> None:
    """In words that fit a line, as rows of a megabyte don't."""
    assert len(found) == len(wanted)
    different = [at for at, row in enumerate(wanted) if found[at] != row]
    assert not different, (
        f"{len(different)} rows differ, the first is row {different[0]}: {found[different[0]]!r:.300}"
    )


def by_confluent(bootstrap: str, topic: str, count: int) -> list[Row]:
    consumer = Consumer(client_config(bootstrap, **{"group.id": "unused", "check.crcs": True}))
    found: list[Row] = []
    deadline_s = time.monotonic() + WAIT_S
    try:
        consumer.assign([ConfluentPartition(topic, 0, 0)])
        while len(found) < count and time.monotonic() < deadline_s:
            for message in consumer.consume(100, timeout=0.5):
                assert message.error() is None, message.error()
                headers: Any = message.headers()
                found.append((message.key(), message.value(), headers or [], message.timestamp()[1]))
    finally:
        consumer.close()
    return found


def by_kafka_python(bootstrap: str, topic: str, count: int) -> list[Row]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, check_crcs=True)
    found: list[Row] = []
    deadline_s = time.monotonic() + WAIT_S
    try:
        consumer.assign([PythonPartition(topic, 0)])
        consumer.seek(PythonPartition(topic, 0), 0)
        while len(found) < count and time.monotonic() < deadline_s:
            for rows in consumer.poll(500).values():
                found += [(row.key, row.value, list(row.headers), row.timestamp) for row in rows]
    finally:
        consumer.close()
    return found
