"""The data source that Spark finds under the name `penstock`."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pyspark_penstock.options import parse_options
from pyspark_penstock.reader import PenstockReader
from pyspark_penstock.schema import arrow_schema, spark_schema
from pyspark_penstock.stream import PenstockStreamReader


class DefaultSource(DataSource):
    """`spark.read.format("penstock")`, `spark.readStream`, and what writes: `df.write`, `df.writeStream`.

    Spark registers it by itself, because its module's name begins with `pyspark_`.
    """

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        text = str(self.options.get("includeHeaders", "false")).strip().lower()
        return spark_schema(include_headers=text == "true")

    def reader(self, schema: StructType) -> PenstockReader:
        options = parse_options(dict(self.options), streaming=False)
        return PenstockReader(options, arrow_schema(schema, include_headers=options.include_headers))

    def streamReader(self, schema: StructType) -> PenstockStreamReader:  # noqa: N802
        options = parse_options(dict(self.options), streaming=True)
        return PenstockStreamReader(options, arrow_schema(schema, include_headers=options.include_headers))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from pyspark_penstock.sink.writer import batch_writer

        return batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        from pyspark_penstock.sink.writer import stream_writer

        return stream_writer(dict(self.options), schema)
