"""Streaming reads through a real Spark session, crashes and restarts included."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyspark_penstock import options
from support.spark import WAIT_S, last_error_line, only_in_long_form, run_to_end, started
from support.spark_refused import AT_LOAD, AT_START, IN_SHORT_FORM, Refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from unit.spark.spark_memory_gateway import MemoryGateway

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


@pytest.fixture
def flights(cluster: MemoryGateway) -> MemoryGateway:
    cluster.create("flights", 2)
    return cluster


def stream(spark: SparkSession, cluster: MemoryGateway, **options: str) -> DataFrame:
    reader = spark.readStream.format("penstock").option("gateway", ",".join(cluster.addresses))
    for name, value in ({"subscribe": "flights"} | options).items():
        reader = reader.option(name, value)
    return reader.load()


def to_files(
    frame: DataFrame, directory: Path, fail: Callable[[int, str], None] = lambda batch, point: None
) -> Any:
    """A sink that may see a batch twice and keeps it once: what a replay must not change."""

    def write(batch: DataFrame, batch_id: int) -> None:
        fail(batch_id, "before")
        rows = batch.selectExpr("partition", "offset", "CAST(value AS STRING) AS value")
        rows.write.mode("overwrite").parquet(str(directory / "out" / f"batch={batch_id}"))
        fail(batch_id, "after")

    return frame.writeStream.foreachBatch(write).option("checkpointLocation", str(directory / "checkpoint"))


def found(spark: SparkSession, directory: Path) -> list[tuple[int, int, str]]:
    rows = spark.read.parquet(str(directory / "out")).select("partition", "offset", "value").collect()
    return sorted((row["partition"], row["offset"], row["value"]) for row in rows)


def wait_until(condition: Callable[[], bool], query: Any = None) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if query is not None and query.exception() is not None:
            raise query.exception()
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.05)


def text(first: int, count: int) -> list[bytes]:
    return [b"n%d" % number for number in range(first, first + count)]


def test_available_now_ends_under_a_live_producer(
    spark: SparkSession, flights: MemoryGateway, tmp_path: Path
) -> None:
    flights.append("flights", 0, text(0, 1000))
    flights.append("flights", 1, text(1000, 500), size=7)
    stop = threading.Event()

    def produce() -> None:
        number = 10_000
        # Slow enough that what comes while Spark starts on a busy machine is a few batches more, not a hundred.
        while not stop.wait(0.05):
            flights.append("flights", 0, text(number, 10))
            number += 10

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        frame = stream(
            spark, flights, startingOffsets="earliest", maxOffsetsPerTrigger="700", minPartitions="3"
        )
        query = started(to_files(frame, tmp_path).trigger(availableNow=True).start)
        assert query.awaitTermination(WAIT_S), "did not end"
        assert query.exception() is None
    finally:
        stop.set()
        producer.join()
    rows = found(spark, tmp_path)
    assert rows[:1000] == [(0, i, f"n{i}") for i in range(1000)]
    assert [row for row in rows if row[0] == 1] == [(1, i, f"n{1000 + i}") for i in range(500)]
    assert [row[1] for row in rows if row[0] == 0] == list(range(len(rows) - 500))
    # The rest comes with the next run of the same query.
    query = started(to_files(frame, tmp_path).trigger(availableNow=True).start)
    assert query.awaitTermination(WAIT_S)
    log = flights.topics["flights"].logs[0]
    assert [row[1] for row in found(spark, tmp_path) if row[0] == 0] == list(range(log.end))


@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("crash_at", [0, 2])
def test_restart_after_a_failed_batch(
    spark: SparkSession, flights: MemoryGateway, tmp_path: Path, point: str, crash_at: int
) -> None:
    """startingOffsets=latest: exactly what was produced since the query began, crash or not."""
    flights.append("flights", 0, text(0, 50))
    flights.append("flights", 1, text(50, 5))

    def fail(batch: int, where: str) -> None:
        if (batch, where) == (crash_at, point):
            raise RuntimeError("crash of the test")

    frame = stream(spark, flights, startingOffsets="latest", maxOffsetsPerTrigger="40")
    query = started(to_files(frame, tmp_path, fail).start)
    began = tmp_path / "checkpoint" / "offsets" / "0"
    wait_until(began.exists)
    flights.append("flights", 0, text(100, 60))
    flights.append("flights", 1, text(200, 30))
    wait_until(lambda: not query.isActive)
    assert "crash of the test" in str(query.exception())
    flights.append("flights", 1, text(300, 20))
    query = started(to_files(frame, tmp_path).trigger(availableNow=True).start)
    assert query.awaitTermination(WAIT_S)
    want = [(0, 50 + i, f"n{100 + i}") for i in range(60)]
    want += [(1, 5 + i, f"n{200 + i}") for i in range(30)] + [(1, 35 + i, f"n{300 + i}") for i in range(20)]
    assert found(spark, tmp_path) == want


APPLICATION = """
    import os, signal, sys
    from pyspark.sql import SparkSession
    from support.spark import started

    gateway, directory = sys.argv[1:]
    spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
             .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
             .config("spark.driver.memory", "1g").getOrCreate())

    def write(batch, batch_id):
        rows = batch.selectExpr("partition", "offset", "CAST(value AS STRING) AS value")
        rows.write.mode("overwrite").parquet(f"{directory}/out/batch={batch_id}")
        if batch_id == 1:
            os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
            os._exit(9)

    writer = (spark.readStream.format("penstock").option("gateway", gateway).option("subscribe", "flights")
              .option("maxOffsetsPerTrigger", "40").load()
              .writeStream.foreachBatch(write).option("checkpointLocation", f"{directory}/checkpoint"))
    started(writer.start).awaitTermination()
"""


@pytest.mark.slow
def test_kill_9_between_batches(spark: SparkSession, flights: MemoryGateway, tmp_path: Path) -> None:
    flights.append("flights", 0, text(0, 50))
    script = tmp_path / "application.py"
    script.write_text(textwrap.dedent(APPLICATION))
    child = subprocess.Popen(
        [sys.executable, str(script), flights.addresses[0], str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: (tmp_path / "checkpoint" / "commits" / "0").exists() or child.poll() is not None)
        flights.append("flights", 0, text(100, 60))
        assert child.wait(WAIT_S) == 9
    finally:
        child.kill()
        child.wait()
    flights.append("flights", 1, text(300, 20))
    query = started(to_files(stream(spark, flights), tmp_path).trigger(availableNow=True).start)
    assert query.awaitTermination(WAIT_S)
    want = [(0, 50 + i, f"n{100 + i}") for i in range(60)] + [(1, i, f"n{300 + i}") for i in range(20)]
    assert found(spark, tmp_path) == want


def test_progress_and_new_partitions(spark: SparkSession, flights: MemoryGateway, tmp_path: Path) -> None:
    flights.append("flights", 0, text(0, 10))
    query = started(to_files(stream(spark, flights, startingOffsets="earliest"), tmp_path).start)
    try:
        out = tmp_path / "checkpoint" / "commits" / "0"
        wait_until(out.exists, query)
        flights.topics["flights"].logs.append(type(flights.topics["flights"].logs[0])())
        flights.append("flights", 2, text(50, 5))

        def has_told() -> bool:
            # The first batch after the new partition may have found it empty.
            told = query.lastProgress
            return told is not None and '"2": 5' in str(told["sources"][0]["endOffset"]).replace("'", '"')

        wait_until(has_told, query)
        wait_until(lambda: (tmp_path / "checkpoint" / "commits" / "1").exists(), query)
    finally:
        query.stop()
    assert found(spark, tmp_path) == [(0, i, f"n{i}") for i in range(10)] + [
        (2, i, f"n{50 + i}") for i in range(5)
    ]


CLIENT_FILE = """
security.protocol=SASL_PLAINTEXT
sasl.mechanism=SCRAM-SHA-512
sasl.username=reader
sasl.password=canary
"""
REFUSED = [
    pytest.param(case, id=" ".join((*case.options, case.schema)).strip(), marks=marks)
    for case, marks in (
        (case, () if case in IN_SHORT_FORM else only_in_long_form) for case in (*AT_START, *AT_LOAD)
    )
]


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_stream_refuses_is_the_last_line(
    spark: SparkSession, flights: MemoryGateway, tmp_path: Path, case: Refused
) -> None:
    paths = {name: tmp_path / f"{name}.properties" for name in ("file", "open", "none")}
    for name in ("file", "open"):
        paths[name].write_text(CLIENT_FILE)
        paths[name].chmod(0o600 if name == "file" else 0o644)
    given = {"gateway": flights.addresses[0], "subscribe": "flights"} | {
        name: str(paths[value[1:-1]]) if value[1:-1] in paths else value
        for name, value in case.options.items()
    }
    reader = spark.readStream.format("penstock").options(
        **{name: text for name, text in given.items() if text}
    )
    frames = []

    def run() -> None:
        frames.append((reader.schema(case.schema) if case.schema else reader).load())
        run_to_end(to_files(frames[0], tmp_path).start)

    with pytest.raises(Exception, match="Error: ") as refused:
        run()
    # What the options alone can tell is told before the query starts.
    assert bool(frames) == (case in AT_START)
    last = last_error_line(refused.value)
    assert f"Error: {case.sentence}" in last
    if "{open}" in case.options.values():
        assert "mode 0644, others may read it: run `chmod 600" in last, last
    assert "UnboundLocalError" not in str(refused.value)
    assert "canary" not in str(refused.value)


def test_every_name_that_is_refused_is_among_them() -> None:
    names = {name.lower() for case in (*AT_START, *AT_LOAD) for name in case.options}
    assert names >= (options._REFUSED | options._NOT_BUILT_YET).keys()


def test_data_loss_stops_the_query(spark: SparkSession, flights: MemoryGateway, tmp_path: Path) -> None:
    flights.append("flights", 0, text(0, 10))
    frame = stream(spark, flights, startingOffsets="earliest")
    query = started(to_files(frame, tmp_path).trigger(availableNow=True).start)
    assert query.awaitTermination(WAIT_S)
    flights.create("flights", 2)
    flights.append("flights", 0, text(50, 5))
    query = started(to_files(frame, tmp_path).trigger(availableNow=True).start)
    with pytest.raises(Exception, match="made anew"):
        query.awaitTermination(WAIT_S)
    lenient = stream(spark, flights, startingOffsets="earliest", failOnDataLoss="false")
    query = started(to_files(lenient, tmp_path).trigger(availableNow=True).start)
    assert query.awaitTermination(WAIT_S)
    assert [row[2] for row in found(spark, tmp_path)][-5:] == [f"n{i}" for i in range(5, 10)]
    assert {row[2] for row in found(spark, tmp_path)} == {f"n{i}" for i in (*range(10), *range(50, 55))}
