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

Parts: `options` (what was asked), `planning` (bounds to offsets to ranges), `tiling` (ranges
to Spark partitions), `progress` and `stream` (micro-batches), `gateway` and `fetch` (calls),
`decode` (record batches to Arrow); `encode` (Arrow to record batches) and `sink` (what is written).
"""

from penstock_core.process import grpc_environment

grpc_environment.prepare()

from pyspark_penstock.source import DefaultSource  # noqa: E402  # it imports gRPC

__version__ = "0.1.0"

__all__ = ["DefaultSource"]
