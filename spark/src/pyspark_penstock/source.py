"""The data source that Spark finds under the name `penstock`."""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pyspark_penstock import batch_rows
from pyspark_penstock.errors import NotBuiltYetError
from pyspark_penstock.options import parse_options
from pyspark_penstock.reader import PenstockReader
from pyspark_penstock.schema import arrow_schema, spark_schema
from pyspark_penstock.stream import PenstockStreamReader

_NO_WRITE = 'writing with format("penstock") is not built yet; produce with any Kafka client'


class DefaultSource(DataSource):
    """`spark.read.format("penstock")` and `spark.readStream.format("penstock")`.

    Spark registers it by itself, because its module's name begins with `pyspark_`.
    """

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        if str(self.options.get("rows", "")).strip().lower() == "batches":
            return batch_rows.spark_schema()
        text = str(self.options.get("includeHeaders", "false")).strip().lower()
        return spark_schema(include_headers=text == "true")

    def reader(self, schema: StructType) -> PenstockReader:
        options = parse_options(dict(self.options), streaming=False)
        if options.batch_rows:
            return PenstockReader(options, batch_rows.arrow_schema(schema))
        return PenstockReader(options, arrow_schema(schema, include_headers=options.include_headers))

    def streamReader(self, schema: StructType) -> PenstockStreamReader:  # noqa: N802
        options = parse_options(dict(self.options), streaming=True)
        return PenstockStreamReader(options, arrow_schema(schema, include_headers=options.include_headers))

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise NotBuiltYetError(_NO_WRITE)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        raise NotBuiltYetError(_NO_WRITE)
