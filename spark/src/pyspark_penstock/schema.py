"""Row schema of the source and its Arrow form.

The columns are those of Spark's Kafka connector (KafkaRecordToRowConverter), so that a
job moves over by changing the format and the address. A user schema may name any subset
in any order; columns that are not named are never materialised.

Spark compares the first Arrow batch's schema with its own exactly (SPARK-55583): order,
nullability, `binary` rather than `large_binary`, and `timestamp[us, tz=UTC]`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_penstock.errors import OptionError

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": _HEADERS,
}

_ARROW: dict[str, Any] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
}


def spark_schema(*, include_headers: bool) -> StructType:
    """The whole schema; `headers` only when the option includeHeaders is set, as in Kafka's connector."""
    names = [name for name in COLUMNS if name != "headers" or include_headers]
    return StructType([StructField(name, COLUMNS[name]) for name in names])


def _headers_arrow(headers: ArrayType) -> Any:
    struct = headers.elementType
    if not isinstance(struct, StructType):
        raise OptionError("column headers must be array<struct<key:string,value:binary>>")
    fields = [
        pa.field("key", pa.string(), nullable=struct["key"].nullable),
        pa.field("value", pa.binary(), nullable=struct["value"].nullable),
    ]
    return pa.list_(pa.field("element", pa.struct(fields), nullable=headers.containsNull))


def _plain(data_type: DataType) -> str:
    """The type without its nullability: users write `not null` where they please."""
    return data_type.simpleString()


def arrow_schema(schema: StructType, *, include_headers: bool) -> Any:
    """The Arrow schema of a projection, field for field what Spark expects.

    Raises OptionError for a column or type that this source doesn't have.
    """
    if not schema.fields:
        raise OptionError(f"the schema has no column; name some of: {', '.join(COLUMNS)}")
    fields: list[Any] = []
    for field in schema.fields:
        expected = COLUMNS.get(field.name)
        if expected is None:
            raise OptionError(f"no column {field.name!r} in this source; it has: {', '.join(COLUMNS)}")
        if _plain(field.dataType) != _plain(expected):
            raise OptionError(
                f"column {field.name!r} has type {_plain(expected)}, not {_plain(field.dataType)}; "
                "read it so and cast it in the query"
            )
        if field.name == "headers":
            if not include_headers:
                raise OptionError('column headers needs option("includeHeaders", "true")')
            if not isinstance(field.dataType, ArrayType):
                raise OptionError("column headers must be array<struct<key:string,value:binary>>")
            arrow_type = _headers_arrow(field.dataType)
        else:
            arrow_type = _ARROW[field.name]
        fields.append(pa.field(field.name, arrow_type, nullable=field.nullable))
    names = [field.name for field in schema.fields]
    if len(set(names)) != len(names):
        raise OptionError(f"a column is named twice in the schema: {', '.join(names)}")
    return pa.schema(fields)
