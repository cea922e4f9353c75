"""The data source that Spark finds under the name `penstock`."""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from pyspark_penstock.errors import NotBuiltYetError
from pyspark_penstock.options import parse_options
from pyspark_penstock.reader import PenstockReader
from pyspark_penstock.refused import RefusedStream
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
        # At load(): what holds for a batch read and a stream alike is refused here already.
        return spark_schema(include_headers=parse_options(dict(self.options)).include_headers)

    def reader(self, schema: StructType) -> PenstockReader:
        options = parse_options(dict(self.options), streaming=False)
        return PenstockReader(options, arrow_schema(schema, include_headers=options.include_headers))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        try:
            options = parse_options(dict(self.options), streaming=True)
            return PenstockStreamReader(
                options, arrow_schema(schema, include_headers=options.include_headers)
            )
        except Exception as error:
            return RefusedStream(error)  # raised here it would be buried, see there

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise NotBuiltYetError(_NO_WRITE)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        raise NotBuiltYetError(_NO_WRITE)
