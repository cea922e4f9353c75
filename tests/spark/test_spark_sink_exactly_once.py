"""What Spark writes exactly once: a reader of committed records finds each row once, whatever is run again."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cli.main import run
from support.cluster import running_cluster
from support.kafka import create_topic, produce, read_all
from support.spark import WAIT_S, started

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.local.cluster import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(1200)]

COUNT = 3000
DOCUMENT = Path(__file__).parents[2] / "docs/spark.md"


@pytest.fixture(scope="module")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("once"), controllers=1, nodes=1, gateways=1) as cluster:
        for topic in ("source", "streamed", "written", "numbers", "counts"):
            create_topic(cluster.bootstrap, topic, 2, 1)
        produce(cluster.bootstrap, "source", COUNT)
        yield cluster


def committed(cluster: LocalCluster, topic: str) -> Counter[bytes]:
    """Values that a reader of committed records finds, and how often."""
    found = read_all(cluster.bootstrap, topic, WAIT_S, **{"isolation.level": "read_committed"})
    return Counter(record.value for record in found)


def last_line(error: BaseException) -> str:
    return [line for line in str(error).splitlines() if "Error: " in line][-1]


def copy(
    spark: SparkSession, cluster: LocalCluster, checkpoint: Path, tasks: int, **options: str
) -> tuple[str, Any]:
    """Streams all of the source into `streamed`: the query's id, and its error or None."""
    rows = spark.readStream.format("penstock").options(
        gateway=cluster.gateway, subscribe="source", startingOffsets="earliest", maxOffsetsPerTrigger="1000"
    )
    chosen = rows.load().selectExpr("key", "value").repartition(tasks)
    sink = chosen.writeStream.format("penstock").options(gateway=cluster.gateway, topic="streamed", **options)
    sink = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = started(sink.start)
    try:
        assert query.awaitTermination(int(WAIT_S))
    except Exception as error:
        return query.id, error
    return query.id, None


def described(cluster: LocalCluster, sink: str, capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    assert run(["spark", "sink", "describe", sink, "--gateway", cluster.gateway, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_stream_that_repeats_a_micro_batch_and_one_that_is_not_its(
    spark: SparkSession, penstock: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tmp_path / "checkpoint"
    query, error = copy(spark, penstock, checkpoint, 2, sinkId="copy")
    assert error is None
    wanted = Counter(record.value for record in read_all(penstock.bootstrap, "source"))
    assert committed(penstock, "streamed") == wanted
    # As if the driver had died between the decision and Spark's log of it; and another plan for the rows.
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
    before = described(penstock, "copy", capsys)
    assert (before["query_id"], before["epoch"], before["open"]) == (query, last, [])
    again, error = copy(spark, penstock, checkpoint, 3, sinkId="copy")
    assert (again, error) == (query, None)
    assert committed(penstock, "streamed") == wanted
    assert described(penstock, "copy", capsys)["epoch"] == last
    _, error = copy(spark, penstock, tmp_path / "other", 2, sinkId="copy")
    assert error is not None
    assert f"sink copy belongs to query {query}, and this is " in last_line(error)
    assert "sinkTakeover" in last_line(error)
    assert committed(penstock, "streamed") == wanted
    # As if the power had gone before the last micro-batch was on the disk; and more has come since.
    for room in ("offsets", "commits"):
        for name in (f"{last}", f".{last}.crc"):
            (checkpoint / room / name).unlink(missing_ok=True)
    produce(penstock.bootstrap, "source", 100, first=COUNT)
    again, error = copy(spark, penstock, checkpoint, 2, sinkId="copy")
    assert error is not None
    assert (
        f"RefusedUnitError: sink copy has micro-batch {last} of this query, which was made of other input"
        in last_line(error)
    )
    assert committed(penstock, "streamed") == wanted
    assert described(penstock, "copy", capsys)["epoch"] == last


def test_batches_with_a_version_and_without(
    spark: SparkSession, penstock: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(frame: DataFrame, **options: str) -> None:
        given = {"gateway": penstock.gateway, "topic": "written", "compression": "zstd"} | options
        frame.write.format("penstock").mode("append").options(**given).save()

    def rows(first: int) -> DataFrame:
        return spark.range(first, first + COUNT).selectExpr("CAST(id AS STRING) AS value")

    versioned = partial(write, txnAppId="nightly")
    versioned(rows(0), txnVersion="3")
    for version in ("3", "2"):
        versioned(rows(0), txnVersion=version)
    versioned(rows(COUNT), txnVersion="4")
    write(rows(2 * COUNT))
    assert committed(penstock, "written") == Counter(b"%d" % at for at in range(3 * COUNT))
    found = described(penstock, "spark-nightly", capsys)
    assert (found["query_id"], found["epoch"], found["once"], found["open"]) == ("nightly", 4, False, [])
    with pytest.raises(Exception, match="option txnVersion is given without txnAppId; give both, or neither"):
        write(rows(0), txnVersion="1")


def example_of_foreach_batch(gateway: str, checkpoint: Path) -> str:
    """The code of docs/spark.md, with this cluster and a checkpoint that can be looked at."""
    found = re.search(r"```python\n( *def write\(rows, batch_id\):\n.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None
    code = textwrap.dedent(found[1])
    for words, instead in {
        '"127.0.0.1:9094"': repr(gateway),
        ".foreachBatch(write)": f".foreachBatch(write).option('checkpointLocation', {str(checkpoint)!r})",
        ".start()": ".trigger(availableNow=True).start()",
    }.items():
        assert code.count(words) == 1, code
        code = code.replace(words, instead)
    return code


def test_the_example_of_foreach_batch_in_update_mode(
    spark: SparkSession, penstock: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tmp_path / "checkpoint"
    code = example_of_foreach_batch(penstock.gateway, checkpoint)
    read = spark.readStream.format("penstock").options(
        gateway=penstock.gateway, subscribe="numbers", startingOffsets="earliest"
    )
    grouped = read.load().selectExpr("CAST(key AS STRING) AS key").groupBy("key").count()
    counts = grouped.selectExpr("key", "concat(key, ' ', count) AS value")

    def query() -> Any:
        named: dict[str, Any] = {"counts": counts}
        exec(code, named)
        return named["query"]

    def run_to_end() -> None:
        assert started(query).awaitTermination(int(WAIT_S))

    keys = [b"key-%d" % number for number in range(5)]
    produce(penstock.bootstrap, "numbers", 50, keys=5)
    run_to_end()
    first = committed(penstock, "counts")
    assert sum(first.values()) == len({value.split(b" ")[0] for value in first}) == len(keys)
    produce(penstock.bootstrap, "numbers", 50, first=50, keys=5)
    run_to_end()
    both = committed(penstock, "counts")
    assert sum(both.values()) == 2 * len(keys)
    # As if the driver had died between the decision and Spark's log of it: the micro-batch is written again.
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
    run_to_end()
    assert (commits / str(last)).exists()
    assert committed(penstock, "counts") == both
    found = described(penstock, "spark-counts", capsys)
    assert (found["query_id"], found["epoch"], found["state"], found["open"]) == ("counts", last, "done", [])
    produce(penstock.bootstrap, "numbers", 50, first=100, keys=5)
    run_to_end()
    assert sum(committed(penstock, "counts").values()) == 3 * len(keys)
