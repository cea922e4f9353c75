"""A client of Spark Connect, as a process of its own: reads and writes topics, and says what came of it as JSON.

It needs pyspark[connect] and nothing else of what the tests have: with --zip our packages come from there, to itself
and to the server.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


WAIT_S = 1_000
TRIES_MAX = 20
LATE_WORKER = "Python worker failed to connect back"
"""Spark gives the Python process of a streaming source 10 s to come up: without a processor for so long, begin anew."""


def read(spark: SparkSession, gateway: str, topic: str) -> DataFrame:
    return spark.read.format("penstock").options(gateway=gateway, subscribe=topic).load()


def batch_read(spark: SparkSession, gateway: str, _: str) -> list[Any]:
    """Every record of the topic `source`."""
    rows = read(spark, gateway, "source").selectExpr("partition", "offset", "CAST(value AS STRING) AS value")
    return sorted(list(row) for row in rows.collect())


def sql(spark: SparkSession, gateway: str, _: str) -> list[Any]:
    """How many records a view has, by partition."""
    spark.sql(
        "CREATE TEMPORARY VIEW flights USING penstock "
        f"OPTIONS (gateway '{gateway}', subscribe 'source', includeHeaders 'true')"
    )
    rows = spark.sql("SELECT partition, count(*) FROM flights GROUP BY partition ORDER BY partition")
    return [list(row) for row in rows.collect()]


def batch_write(spark: SparkSession, gateway: str, directory: str) -> bool:
    """Copies `source` to `written`, twice as the same version: exactly once."""
    for _ in range(2):
        writer = read(spark, gateway, "source").select("key", "value").write.format("penstock").mode("append")
        writer.options(gateway=gateway, topic="written", txnAppId="connect", txnVersion="1").save()
    return True


def streamed(rows: DataFrame, gateway: str, topic: str, checkpoint: str) -> bool:
    sink = rows.writeStream.format("penstock").options(
        gateway=gateway, topic=topic, checkpointLocation=checkpoint
    )
    for left in reversed(range(TRIES_MAX)):
        try:
            return bool(sink.trigger(availableNow=True).start().awaitTermination(WAIT_S))
        except Exception as error:
            if LATE_WORKER not in str(error) or not left:
                raise
    return False


def stream_write(spark: SparkSession, gateway: str, directory: str) -> bool:
    """Files become records of `streamed`."""
    files, checkpoint = f"{directory}/files", f"{directory}/written"
    spark.range(1000).selectExpr("CAST(id AS STRING) AS value").write.parquet(files)
    rows = spark.readStream.schema("value STRING").option("maxFilesPerTrigger", "1").parquet(files)
    return streamed(rows, gateway, "streamed", checkpoint)


def stream_read(spark: SparkSession, gateway: str, directory: str) -> bool:
    """Streams `source` to `copied`."""
    rows = spark.readStream.format("penstock").options(
        gateway=gateway, subscribe="source", startingOffsets="earliest", maxOffsetsPerTrigger="1000"
    )
    return streamed(rows.load().select("key", "value"), gateway, "copied", f"{directory}/copied")


def refused(spark: SparkSession, gateway: str, _: str) -> int:
    """A topic that is not there."""
    return read(spark, gateway, "nothing").count()


STEPS: dict[str, Callable[[Any, str, str], Any]] = {
    step.__name__: step for step in (batch_read, sql, batch_write, stream_write, stream_read, refused)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--remote", required=True)
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--directory", required=True, help="the server's and the executors' too")
    parser.add_argument("--zip", default="")
    parser.add_argument("steps", nargs="+", choices=["before", *STEPS])
    arguments = parser.parse_args()
    from pyspark.sql import SparkSession

    spark: Any = SparkSession.builder.remote(arguments.remote).getOrCreate()
    found: dict[str, Any] = {"module": type(spark).__module__}

    def step(name: str, call: Callable[[Any, str, str], Any]) -> None:
        try:
            found[name] = call(spark, arguments.gateway, arguments.directory)
        except Exception as error:
            found[name] = {"error": type(error).__name__, "text": str(error)}

    if "before" in arguments.steps:
        step("before", batch_read)
    if arguments.zip:
        spark.addArtifacts(arguments.zip, pyfile=True)
        import pyspark_penstock

        found["from"] = pyspark_penstock.__file__
        spark.dataSource.register(pyspark_penstock.DefaultSource)
    for name in arguments.steps:
        if name != "before":
            step(name, STEPS[name])
    spark.stop()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
