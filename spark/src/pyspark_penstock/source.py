"""The data source that Spark finds under the name `penstock`.

It imports nothing that may fail: what it needs is loaded by its methods (see `parts`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark_penstock.options import parse_options
from pyspark_penstock.parts import part

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType
else:
    try:
        from pyspark.sql.datasource import DataSource
    except ImportError:  # PySpark before 4.0, which has no Python sources and never asks for one
        DataSource = object


class DefaultSource(DataSource):
    """`spark.read.format("penstock")`, `spark.readStream`, and what writes: `df.write`, `df.writeStream`.

    Spark registers it by itself, because its module's name begins with `pyspark_`.
    """

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        # At load(): what holds for a batch read and a stream alike is refused here already.
        part("stream")
        options = parse_options(dict(self.options))
        form: StructType
        if options.batch_rows:
            form = part("batch_rows").spark_schema()
        else:
            form = part("schema").spark_schema(include_headers=options.include_headers)
        return form

    def reader(self, schema: StructType) -> DataSourceReader:
        reader: DataSourceReader = self._reader("reader", "batch_reader", schema, streaming=False)
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        reader: DataSourceStreamReader
        try:
            reader = self._reader("stream", "PenstockStreamReader", schema, streaming=True)
        except Exception as error:
            reader = part("refused").RefusedStream(error)  # raised here it would be buried, see there
        return reader

    def _reader(self, module: str, name: str, schema: StructType, *, streaming: bool) -> Any:
        made = getattr(part(module), name)
        options = parse_options(dict(self.options), streaming=streaming)
        if options.batch_rows:
            return made(options, part("batch_rows").arrow_schema(schema))
        return made(options, part("schema").arrow_schema(schema, include_headers=options.include_headers))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return part("sink.writer").batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        return part("sink.writer").stream_writer(dict(self.options), schema)
