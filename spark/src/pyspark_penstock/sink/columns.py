"""Columns of what is written: names and types of Spark's Kafka connector.

Columns of other names are left out, as the connector does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import StructType

from pyspark_penstock.encode import Rows, header_tails
from pyspark_penstock.encode.arrow import to_binary
from pyspark_penstock.errors import OptionError, RowError

_HEADERS = "array<struct<key:string,value:binary>>"
_TYPES = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": (_HEADERS,),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp", "double"),
}


def check_schema(schema: StructType, topic: str) -> None:
    """Raises OptionError for columns that can't be written. `topic`: the option, "" for none."""
    names = [field.name for field in schema.fields if field.name in _TYPES]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OptionError(f"a column is there twice: {', '.join(twice)}; drop or rename one of them")
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in types:
        raise OptionError(
            f"no column value among {', '.join(types) or 'none'}; select what is to be written AS value"
        )
    for name, allowed in _TYPES.items():
        if types.get(name, allowed[0]) not in allowed:
            raise OptionError(f"column {name} has type {types[name]}; cast it to {' or '.join(allowed)}")
    if "topic" not in types and not topic:
        raise OptionError('there is no column topic; add one, or name a topic by option("topic", ...)')


@dataclass(frozen=True, slots=True)
class Share:
    """Rows for one topic."""

    topic: str
    rows: Rows
    named: Any | None
    """The column partition; null where the row names none."""


def shares(table: Any, topic: str, now_ms: int) -> Iterator[Share]:
    """The rows of an Arrow table by topic, in their order. `now_ms` is the time of rows without one.

    Raises RowError for a row that can't be written.
    """
    columns = {name: _whole(table.column(name)) for name in table.schema.names if name in _TYPES}
    rows = Rows(
        to_binary(columns["key"]) if "key" in columns else None,
        to_binary(columns["value"]),
        _times(columns.get("timestamp"), table.num_rows, now_ms),
        _tails(columns.get("headers")),
    )
    named = columns.get("partition")
    if topic:
        yield Share(topic, rows, named)
        return
    if columns["topic"].null_count:
        raise RowError(
            'a row has null as topic; give it one, or name a topic for all by option("topic", ...)'
        )
    coded = columns["topic"].dictionary_encode()
    topics = coded.dictionary.to_pylist()
    if len(topics) == 1:
        yield Share(topics[0], rows, named)
        return
    codes = coded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    borders = np.searchsorted(codes[order], np.arange(len(topics) + 1))
    for at, name in enumerate(topics):
        chosen: NDArray[np.int64] = order[borders[at] : borders[at + 1]]
        yield Share(name, rows.take(chosen), None if named is None else named.take(pa.array(chosen)))


def _whole(column: Any) -> Any:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def _tails(headers: Any | None) -> Any | None:
    return None if headers is None or headers.null_count == len(headers) else header_tails(headers)


def _times(column: Any | None, count: int, now_ms: int) -> NDArray[np.int64]:
    """ms since 1970. A double is in seconds, as where Spark casts a timestamp to one."""
    if column is None:
        return np.full(count, now_ms, np.int64)
    if pa.types.is_floating(column.type):
        scaled = pc.floor(pc.multiply(column, 1000.0))
        try:
            millis = scaled.cast(pa.int64())
        except pa.ArrowInvalid:
            raise RowError(
                "a row has a timestamp that is no time in seconds since 1970; correct it or make it null"
            ) from None
        times: NDArray[np.int64] = millis.fill_null(now_ms).to_numpy(zero_copy_only=False)
    else:
        micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        times = micros.fill_null(now_ms * 1000).to_numpy(zero_copy_only=False) // 1000
    if count and int(times.min()) < 0:
        raise RowError(
            "a row has a timestamp before 1970, which Kafka doesn't take; correct it or make it null"
        )
    return times
