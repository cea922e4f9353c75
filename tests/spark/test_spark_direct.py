"""Spark at the nodes' own Kafka listeners: the rows that gateways give, whoever dies meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from conformance.wire import leaders_known
from penstock.local.plan import NODE, Member
from penstock_core.process.credentials import load_client_file
from support.cluster import running_cluster
from support.kafka import Load, create_topic, describe, produce, wait_for_full_isr
from support.spark import WAIT_S, started
from support.transaction_file import leave_transactions
from support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.local.cluster import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("direct"), racks=("a", "b", "c"), steady=True) as cluster:
        yield cluster


def create(cluster: LocalCluster, topic: str, partitions: int) -> None:
    create_topic(cluster.bootstrap, topic, partitions, 3)
    wait_for(partial(has_leaders, cluster.bootstrap, topic, partitions), f"{topic} is known", WAIT_S)


def has_leaders(address: str, topic: str, partitions: int) -> bool:
    return leaders_known(address, topic) == partitions


def read(spark: SparkSession, cluster: LocalCluster, topic: str, mode: str, **options: str) -> DataFrame:
    reader = spark.read.format("penstock").option("gateway", cluster.gateway).option("subscribe", topic)
    return reader.options(**options).option("fetchMode", mode).load()


def metric(member: Member, name: str) -> float:
    with urlopen(f"http://127.0.0.1:{member.ports['http']}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def relayed_bytes(cluster: LocalCluster) -> float:
    """What the nodes have sent to readers by way of gateways."""
    return sum(metric(member, "penstock_node_range_bytes_total") for member in cluster.state.of_role(NODE))


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_rows_are_the_gateways(spark: SparkSession, penstock: LocalCluster, codec: str) -> None:
    topic = f"direct-{codec}"
    create(penstock, topic, 3)
    config: dict[str, Any] = {"compression.type": codec}
    produce(penstock.bootstrap, topic, 20_000, keys=50, **config)
    relayed = read(spark, penstock, topic, "gateway").cache()
    assert relayed.count() == 20_000
    before = relayed_bytes(penstock)
    for mode in ("direct", "auto"):
        for cut in ({}, {"minPartitions": "17"}, {"fetch.chunkBytes": "4096"}):
            frame = read(spark, penstock, topic, mode, **cut)
            assert frame.count() == 20_000
            assert frame.exceptAll(relayed).count() == 0, (mode, cut)
    assert relayed_bytes(penstock) == before
    relayed.unpersist()


def test_committed_rows_are_the_gateways(spark: SparkSession, tmp_path: Path) -> None:
    with running_cluster(tmp_path, controllers=1, nodes=1, gateways=1) as cluster:
        _, everything, committed = leave_transactions(cluster, tmp_path, "decided")
        for isolation, expected in (("read_uncommitted", everything), ("read_committed", committed)):
            for cut in ({}, {"minPartitions": "7"}, {"fetch.chunkBytes": "1024"}):
                frame = read(spark, cluster, "decided", "direct", isolation=isolation, **cut)
                rows = frame.where("offset > 0").selectExpr("offset", "string(value) AS value").collect()
                values = [row["value"] for row in sorted(rows, key=lambda row: row["offset"])]
                assert values == expected, (isolation, cut)
            kinds = {"isolation": isolation, "rows": "batches"}
            stored = read(spark, cluster, "decided", "direct", **kinds)
            assert stored.exceptAll(read(spark, cluster, "decided", "gateway", **kinds)).count() == 0
            assert stored.count() > 0


def test_a_follower_in_the_rack_serves(spark: SparkSession, penstock: LocalCluster) -> None:
    create(penstock, "near", 1)
    produce(penstock.bootstrap, "near", 5_000)
    wait_for_full_isr(penstock.bootstrap, "near", WAIT_S)
    leader = describe(penstock.bootstrap, "near")[0].leader
    follower = next(member for member in penstock.state.of_role(NODE) if member.id != leader)

    def is_served_by_it() -> bool:
        before = metric(follower, "penstock_node_fetched_bytes_total")
        frame = read(spark, penstock, "near", "direct", rack=follower.rack)
        assert frame.select("value").distinct().count() == 5_000
        return metric(follower, "penstock_node_fetched_bytes_total") > before

    # It may not know yet that what it has is committed.
    wait_for(is_served_by_it, "a follower serves", WAIT_S)


def test_with_sign_in_and_tls(spark: SparkSession, tmp_path: Path) -> None:
    """By the node's listener of security SASL_SSL, with the admin's file."""
    with running_cluster(tmp_path, controllers=1, nodes=1, secure=True, steady=True) as cluster:
        assert cluster.client_file is not None
        config: dict[str, Any] = load_client_file(cluster.client_file).librdkafka()
        admin = AdminClient(config)
        admin.create_topics([NewTopic("signed", 2, 1)])["signed"].result(WAIT_S)
        producer = Producer(config)
        for number in range(5_000):
            producer.produce("signed", b"value %d" % number, partition=number % 2)
        assert producer.flush(WAIT_S) == 0
        file = str(cluster.client_file.absolute())
        for mode in ("direct", "auto", "gateway"):
            frame = read(spark, cluster, "signed", mode, credentialsFile=file, minPartitions="5")
            assert frame.select("value").distinct().count() == 5_000, mode


@pytest.mark.parametrize("mode", ["direct", "auto"])
def test_a_leader_dies_under_a_stream(
    spark: SparkSession, penstock: LocalCluster, tmp_path: Path, mode: str
) -> None:
    topic = f"killed-{mode}"
    create(penstock, topic, 4)
    frame = (
        spark.readStream.format("penstock")
        .options(gateway=penstock.gateway, subscribe=topic, startingOffsets="earliest", fetchMode=mode)
        .load()
    )

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = batch.selectExpr("partition", "offset")
        rows.write.mode("overwrite").parquet(str(tmp_path / "out" / f"batch={batch_id}"))

    def start(**trigger: Any) -> Any:
        writer = frame.writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return started((writer.trigger(**trigger) if trigger else writer).start)

    query = start()
    with Load(penstock.bootstrap, topic, rate_per_s=2_000, timeout_s=WAIT_S) as load:
        load.wait_for_acks(4_000, WAIT_S)
        leaders = Counter(part.leader for part in describe(penstock.bootstrap, topic).values())
        victim = f"node-{leaders.most_common(1)[0][0]}"
        penstock.kill(victim)
        load.wait_for_acks(6_000, WAIT_S)
        penstock.start(victim)
        wait_for_full_isr(penstock.bootstrap, topic, WAIT_S)
    assert query.exception() is None
    query.stop()
    query = start(availableNow=True)
    assert query.awaitTermination(WAIT_S)
    rows = spark.read.parquet(str(tmp_path / "out"))
    count = len(load.ledger.acked)
    counted = rows.groupBy("partition").agg({"offset": "max", "*": "count"}).collect()
    assert sum(row["count(1)"] for row in counted) == count
    assert all(row["max(offset)"] + 1 == row["count(1)"] for row in counted)
    assert rows.distinct().count() == count
