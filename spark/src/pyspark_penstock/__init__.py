"""Penstock as a Spark data source: no jar, one address, Arrow all the way.

    df = (spark.read.format("penstock")
          .option("gateway", "127.0.0.1:9094")
          .option("subscribe", "flights")
          .load())
    df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "partition", "offset").show()

    query = (spark.readStream.format("penstock")
             .option("gateway", "127.0.0.1:9094,127.0.0.1:9104")
             .option("subscribe", "flights")
             .option("startingOffsets", "earliest")
             .load()
             .writeStream.format("parquet")
             .option("path", "flights").option("checkpointLocation", "flights-checkpoint")
             .trigger(availableNow=True).start())

`gateway` is the gRPC address of one or more gateways, not the Kafka port. Rows and option
names are those of Spark's Kafka connector, so moving a job over means changing the format
and the address. Naming fewer columns reads less: `.schema("value BINARY")`.

It needs PySpark 4.2 or later on Python 3.11 or later, and this package installed where the
executors run. Nothing has to be registered: Spark finds modules named `pyspark_*`.

Parts: `options` and `client_settings` (what was asked), `refused` (a stream that must not begin),
`parts` (what is loaded when it is needed), `planning` (bounds to offsets to ranges), `pushdown`
(what filters leave of them), `tiling` and `by_bytes` (ranges to Spark partitions), `questions`
(asked for plans), `group_commits` (progress as a consumer group's), `progress`, `epochs` (where a
log was cut) and `stream` (micro-batches), `gateway`, `fetch` and `answers` (calls), `direct`
(fetching from storage nodes), `silence` (a stream that says nothing), `rights` (who lacks one), `memory`
(what a worker gives back), `decode` (record batches to Arrow), `batch_rows` (rows about stored
batches), `encode` (Arrow to record batches) and `sink` (what is written), `jobs` (`penstock spark run`).
"""

from contextlib import suppress

with suppress(ImportError):
    # What is missing is told where it is needed: an error here would take every Python source out of the session.
    from penstock_core.process import grpc_environment

    grpc_environment.prepare()

from pyspark_penstock.source import DefaultSource

__version__ = "0.1.0"

__all__ = ["DefaultSource"]
