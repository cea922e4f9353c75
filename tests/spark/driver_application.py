"""A driver of Spark by itself, which runs streams that are asked for: one JSON document per line each way.

Its standard error is the driver's log, executors' included, since it is a local Spark. A request is `{"options",
"checkpoint"}` and runs that stream with Trigger.AvailableNow to its end; with `"fail_at": n` it fails before
micro-batch n is written, and with `"command": [...], "command_at": n` that program runs when n is planned and not
read yet. The answer is `{"rows": [[topic, partition, offset, value], ...], "error": null or the last line of Spark's
exception}`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from support.spark import WAIT_S, last_error_line, run_to_end


def run(spark: SparkSession, asked: dict[str, Any]) -> dict[str, Any]:
    found: dict[int, list[list[Any]]] = {}

    def write(batch: DataFrame, number: int) -> None:
        if number == asked.get("fail_at"):
            raise RuntimeError("crash of the test")
        if number == asked.get("command_at"):
            subprocess.run(asked["command"], check=True, capture_output=True, timeout=WAIT_S)
        rows = batch.selectExpr("topic", "partition", "offset", "string(value) AS value").collect()
        found[number] = [list(row) for row in rows]

    writer = (
        spark.readStream.format("penstock")
        .options(**asked["options"])
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", asked["checkpoint"])
        .trigger(availableNow=True)
    )
    error = None
    try:
        run_to_end(writer.start)
    except Exception as raised:
        error = last_error_line(raised)
    return {"rows": sorted(row for rows in found.values() for row in rows), "error": error}


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    for line in sys.stdin:
        print(json.dumps(run(spark, json.loads(line))), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
