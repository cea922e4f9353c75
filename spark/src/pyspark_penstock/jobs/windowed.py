"""`windowed`: how many records a window of time has of each value of a field, into another topic once it is closed.

    {"start": "2026-11-26T14:00:00.000Z", "end": "2026-11-26T14:10:00.000Z", "carrier": "PN", "count": 17}

Windows go by the record's time. One is closed when a record is that much later than its end as the watermark says; what
comes later still is left out, and counted as `late`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark_penstock.errors import OptionError
from pyspark_penstock.jobs.frame import DEFAULT_GATEWAY, Cluster, Outcome, Progress, quiet, span_of
from pyspark_penstock.jobs.streams import Tally, to_its_end
from pyspark_penstock.jobs.times import duration_ms
from pyspark_penstock.jobs.writing import (
    MEASURES,
    Checkpoint,
    sink_name,
    stream,
    target_of,
    to_key,
    written_by_one,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS_PER_BATCH: Final = 1_000_000
_OWN: Final = ("start", "end", "count")
_TASKS: Final = "spark.sql.shuffle.partitions"
_SPARKS_TASKS: Final = "200"


def windowed(
    spark: SparkSession,
    *,
    topic: str,
    to: str,
    window: str,
    watermark: str,
    group_by: str,
    schema: str,
    available_now: bool = False,
    checkpoint: str = "",
    records_per_batch: int = RECORDS_PER_BATCH,
    gateway: str = DEFAULT_GATEWAY,
    credentials_file: str = "",
    progress: Progress = quiet,
) -> dict[str, Any]:
    """Counts the committed records of `topic`, JSON by `schema` (DDL), and writes what windows come to to `to`.

    `window` and `watermark` are durations like `10m`. It goes on until it is interrupted, or with `available_now` to
    the end that the topic has now. `checkpoint` as in `repartition`. Raises PenstockError.
    """
    window_ms, watermark_ms = duration_ms("window", window), duration_ms("watermark", watermark)
    field = field_of(schema, group_by)
    outcome = Outcome("windowed")
    cluster = Cluster(gateway, credentials_file, "read_committed")
    source = span_of(cluster, topic)
    target = target_of(cluster, to, topic)
    words = {"window_ms": window_ms, "watermark_ms": watermark_ms, "group_by": group_by, "schema": schema}
    sink = sink_name("windowed", source, target, *map(str, words.values()))
    told = {"job": "windowed", "topic_id": source.topic_id.hex(), "to_id": target.topic_id.hex(), **words}
    place = Checkpoint.at(checkpoint, sink, told)
    place.check_sink(target, sink)
    begun = source.first | place.upto(topic)
    from pyspark.sql.functions import expr

    rows = stream(source, spark, records_per_batch).observe("read", *(expr(item) for item in MEASURES))
    counts = counted(
        rows.withWatermark("timestamp", f"{watermark_ms} milliseconds"), window_ms, group_by, schema
    )
    tally = Tally(topic, progress)
    writer = (
        as_json(counts, group_by, to_key(field, "field"))
        .observe("closed", expr("count(*) AS windows"))
        .writeStream.format("penstock")
        .outputMode("append")
        .options(**target.options(sinkId=sink))
        .option("checkpointLocation", str(place.directory))
    )
    if available_now:
        writer = writer.trigger(availableNow=True)
    with _tasks(spark, len(source.first)), written_by_one(source, target, place):
        to_its_end(writer, tally.look)
    outcome.rows, outcome.bytes = tally.total("rows"), tally.total("bytes")
    outcome.cover(topic, begun, begun | place.upto(topic))
    outcome.more = {"windows": tally.total("windows"), "late": tally.total("late")}
    outcome.more |= {"checkpoint": str(place.directory), "sink": sink}
    return outcome.as_dict()


def field_of(schema: str, name: str) -> Any:
    """The type of the field that is counted by. Raises OptionError."""
    from pyspark.sql.types import StructType

    try:
        read = StructType.fromDDL(schema)
        fields = {field.name: field.dataType for field in read.fields} if isinstance(read, StructType) else {}
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise OptionError(
            f"schema {schema!r} is no list of columns and types like 'carrier STRING, n INT': {first}"
        ) from None
    if name not in fields:
        raise OptionError(
            f"group-by {name!r} is not in the schema, which has {', '.join(fields) or 'nothing'}"
        )
    if name in _OWN:
        raise OptionError(f"group-by {name!r} has the name of a window's own; give the field another one")
    try:
        to_key(fields[name], name)
    except OptionError:
        raise OptionError(
            f"group-by {name!r} has type {fields[name].simpleString()}; count by a plain one"
        ) from None
    return fields[name]


def counted(rows: DataFrame, window_ms: int, group_by: str, schema: str) -> DataFrame:
    """Counts by window and field, as `window, field, count`: of a stream with a watermark, or of a batch."""
    from pyspark.sql.functions import col, from_json, window

    read = from_json(col("value").cast("string"), schema)
    fields = rows.select("timestamp", read.getField(group_by).alias("field"))
    return fields.groupBy(window("timestamp", f"{window_ms} milliseconds").alias("window"), "field").count()


def as_json(counts: DataFrame, group_by: str, key: str) -> DataFrame:
    """Rows of `counted` as what is written: times in UTC."""
    name = group_by.replace("`", "``")
    return counts.selectExpr(
        f"{key} AS key",
        f"to_json(struct(window.start AS start, window.end AS end, field AS `{name}`, count), "
        "map('timeZone', 'UTC', 'ignoreNullFields', 'false')) AS value",
    )


@contextmanager
def _tasks(spark: SparkSession, partitions: int) -> Iterator[None]:
    """As many tasks as the source has partitions, unless the session says another number than Spark does."""
    kept = spark.conf.get(_TASKS, _SPARKS_TASKS) or _SPARKS_TASKS
    try:
        if kept == _SPARKS_TASKS:
            spark.conf.set(_TASKS, str(max(partitions, 1)))
        yield
    finally:
        spark.conf.set(_TASKS, kept)
