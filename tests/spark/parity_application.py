"""Runs the cases of the parity table with both sources in one Spark session of its own JVM.

Standard input: one JSON document, `{"jars": [...], "sources": {format: {option: value}}, "cases": [...]}`; a case is
`{"name", "options", "columns", "stream", "bare", "write", "reads"}`: `bare` is one without the options of `sources`,
and `write` a SELECT whose rows are written, in a stream out of `incoming`, which is read by the options `reads`.
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
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from support.spark import started

COLUMNS = [
    "hex(key) AS key",
    "hex(value) AS value",
    "topic",
    "partition",
    "offset",
    "unix_micros(timestamp) AS micros",
    "timestampType",
]


def rows_of(frame: DataFrame, columns: list[str]) -> list[list[Any]]:
    return sorted(
        ([str(value) for value in row] for row in frame.selectExpr(*columns).collect()),
        key=lambda row: (row[2], int(row[3]), int(row[4])),
    )


def read(
    spark: SparkSession,
    form: str,
    base: dict[str, str],
    case: dict[str, Any],
    checkpoint: Path | None = None,
) -> list[list[Any]]:
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
    found: list[list[Any]] = []

    def collect(batch: DataFrame, number: int) -> None:
        found.extend([*row, str(number)] for row in rows_of(batch, columns))

    frame = spark.readStream.format(form).options(**options).load()
    writer = frame.writeStream.foreachBatch(collect).trigger(availableNow=True)
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", str(checkpoint))

    def start() -> Any:
        found.clear()  # of a query that is started anew
        return writer.start()

    started(start).awaitTermination()
    return sorted(found, key=lambda row: (row[2], int(row[3]), int(row[4])))


def write_stream(
    spark: SparkSession, form: str, base: dict[str, str], case: dict[str, Any]
) -> list[list[Any]]:
    spark.readStream.format(form).options(**base | case["reads"]).load().createOrReplaceTempView("incoming")
    with tempfile.TemporaryDirectory() as directory:
        writer = spark.sql(case["write"]).writeStream.format(form).options(**base | case["options"])
        writer = writer.option("checkpointLocation", directory).trigger(availableNow=True)
        started(writer.start).awaitTermination()
    return []


def resumed(spark: SparkSession, form: str, base: dict[str, str], case: dict[str, Any]) -> dict[str, Any]:
    """Of a query whose checkpoint was looked at."""
    with tempfile.TemporaryDirectory() as directory:
        checkpoint, ahead = Path(directory) / "checkpoint", Path(directory) / "ahead"
        rows = read(spark, form, base, case, checkpoint)
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
    lines = [line for line in text.splitlines() if "Error: " in line]
    return lines[-1] if lines else text[:4000]


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
    for case in work["cases"]:
        for form, base in work["sources"].items():
            answer: dict[str, Any] = {"name": case["name"], "format": form}
            try:
                if case["resumed"]:
                    answer |= resumed(spark, form, base, case)
                else:
                    answer["rows"] = read(spark, form, base, case)
            except Exception as error:
                answer["error"] = sentence(str(error)) or type(error).__name__
            print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
