"""Runs the cases of the parity table with both sources in one Spark session of its own JVM.

Standard input: one JSON document, `{"jars": [...], "sources": {format: {option: value}}, "addresses": {format:
bootstrap}, "cases": [...]}`; a case is `{"name", "options", "columns", "stream", "bare", "write", "reads", "loses",
"resumed", "topic"}`: `bare` is one without the options of `sources`, `write` a SELECT whose rows are written, in a
stream out of `incoming`, which is read by the options `reads`, and one that `loses` runs twice, and has records deleted
from its `topic` in between. Several run at once, each in a session of its own: most of a case is waiting for processes
to start.
Standard output: one line a case and source, `{"name", "format", "rows"}` with rows as lists in order (none of a
write; of a stream each ends with the number of its micro-batch), or `{"name", "format", "error"}`. A case that is
`resumed` has `offsets`, what `penstock spark offsets` says of the checkpoint, and `rest`: the rows of a batch that
starts where it says that the first micro-batch has ended.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from support.kafka import client_config, lose
from support.spark import run_to_end

AT_ONCE = 2
"""As many as there are processors: with more of them the Python process of a source comes up too late for Spark."""

COLUMNS = [
    "hex(key) AS key",
    "hex(value) AS value",
    "topic",
    "partition",
    "offset",
    "unix_micros(timestamp) AS micros",
    "timestampType",
]


LOSING = (20, 30, 40)
"""Of a case that loses: where the log ends for the first run, and where it starts and ends for the second."""


def rows_of(frame: DataFrame, columns: list[str]) -> list[list[Any]]:
    return sorted(
        ([str(value) for value in row] for row in frame.selectExpr(*columns).collect()),
        key=lambda row: (row[2], int(row[3]), int(row[4])),
    )


def read(spark: SparkSession, form: str, base: dict[str, str], case: dict[str, Any]) -> list[list[Any]]:
    columns = COLUMNS + case["columns"]
    options = ({} if case["bare"] else base) | case["options"]
    if case["write"] and case["stream"]:
        return write_stream(spark, form, base, case)
    if case["write"]:
        # In one task, so that the order of a partition is that of the rows.
        frame = spark.sql(case["write"]).coalesce(1)
        frame.write.format(form).mode("append").options(**options).save()
        return []
    if not case["stream"]:
        return rows_of(spark.read.format(form).options(**options).load(), columns)
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = Path(directory)
        if not case["loses"]:
            return read_stream(spark, form, options, columns, checkpoint)
        address, topic = case["address"], case["topic"]
        first, start, end = LOSING
        produce(address, topic, 0, first)
        rows = read_stream(spark, form, options, columns, checkpoint)
        produce(address, topic, first, end)
        lose(address, topic, start)
        return rows + read_stream(spark, form, options, columns, checkpoint)


def produce(bootstrap: str, topic: str, start: int, end: int) -> None:
    producer = Producer(client_config(bootstrap))
    for number in range(start, end):
        producer.produce(topic, b"v%d" % number, partition=0, timestamp=1_700_000_000_000 + number)
    assert producer.flush(120) == 0


def read_stream(
    spark: SparkSession, form: str, options: dict[str, str], columns: list[str], checkpoint: Path
) -> list[list[Any]]:
    found: dict[int, list[list[Any]]] = {}

    def collect(batch: DataFrame, number: int) -> None:
        found[number] = [[*row, str(number)] for row in rows_of(batch, columns)]

    frame = spark.readStream.format(form).options(**options).load()
    writer = frame.writeStream.foreachBatch(collect).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(checkpoint))

    run_to_end(writer.start)
    return sorted(
        (row for rows in found.values() for row in rows), key=lambda row: (row[2], int(row[3]), int(row[4]))
    )


def write_stream(
    spark: SparkSession, form: str, base: dict[str, str], case: dict[str, Any]
) -> list[list[Any]]:
    spark.readStream.format(form).options(**base | case["reads"]).load().createOrReplaceTempView("incoming")
    with tempfile.TemporaryDirectory() as directory:
        writer = spark.sql(case["write"]).writeStream.format(form).options(**base | case["options"])
        writer = writer.option("checkpointLocation", directory).trigger(availableNow=True)
        run_to_end(writer.start)
    return []


def resumed(spark: SparkSession, form: str, base: dict[str, str], case: dict[str, Any]) -> dict[str, Any]:
    """Of a query whose checkpoint was looked at."""
    with tempfile.TemporaryDirectory() as directory:
        checkpoint, ahead = Path(directory) / "checkpoint", Path(directory) / "ahead"
        rows = read_stream(spark, form, base | case["options"], COLUMNS + case["columns"], checkpoint)
        shutil.copytree(checkpoint, ahead)
        for path in (ahead / "commits").iterdir():
            if path.name.strip(".").removesuffix(".crc") != "0":
                path.unlink()  # as it was when the first micro-batch had ended
        options = base | {"subscribe": case["options"]["subscribe"], "startingOffsets": spark_offsets(ahead)}
        rest = rows_of(spark.read.format(form).options(**options).load(), COLUMNS)
        return {"rows": rows, "offsets": json.loads(spark_offsets(checkpoint, "--json")), "rest": rest}


def spark_offsets(checkpoint: Path, *more: str) -> str:
    """By the command."""
    words = ["-m", "penstock.cli.main", "spark", "offsets", "--checkpoint", str(checkpoint), *more]
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=True, timeout=120
    ).stdout.strip()


def sentence(text: str) -> str:
    """What Spark shows last of a Python source's exception, in one line; the whole text of a Java one."""
    # Of an action in foreachBatch there is one more, of the call to Java, which does not say why.
    lines = [line for line in text.splitlines() if "Error: " in line and "Py4JJavaError: " not in line]
    return lines[-1] if lines else text[:20_000]


def session_of_thread(spark: SparkSession) -> SparkSession:
    """A new one. Whoever writes finds sinks in Python by the session of the thread alone, which new threads lack."""
    session = spark.newSession()
    SparkSession._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
    return session


def main() -> None:
    work = json.loads(sys.stdin.read())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(work["jars"]))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")

    def answer(case: dict[str, Any], form: str) -> dict[str, Any]:
        told: dict[str, Any] = {"name": case["name"], "format": form}
        try:
            given = case | {"address": work["addresses"][form]}
            session, base = session_of_thread(spark), work["sources"][form]
            if case["resumed"]:
                told |= resumed(session, form, base, given)
            else:
                told["rows"] = read(session, form, base, given)
        except Exception as error:
            told["error"] = sentence(str(error)) or type(error).__name__
        return told

    with ThreadPoolExecutor(AT_ONCE) as threads:
        asked = [threads.submit(answer, case, form) for case in work["cases"] for form in work["sources"]]
        for future in asked:
            print(json.dumps(future.result()), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
