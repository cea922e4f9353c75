"""`repartition`: the records of a topic into another one, with other partitions or another key, exactly once.

A streaming query with the trigger AvailableNow. Its checkpoint says where a run that was killed goes on, and the sink
which of its micro-batches have been written; a micro-batch that was is not written again. Later runs copy what is new.

Each partition of the source is one task of a micro-batch, which writes in its order, and micro-batches come one after
another: records of a key stay in order as long as the key does, and has not moved in the source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark_penstock.errors import OptionError
from pyspark_penstock.jobs.frame import DEFAULT_GATEWAY, Cluster, Outcome, Progress, quiet, span_of
from pyspark_penstock.jobs.streams import Tally, to_its_end
from pyspark_penstock.jobs.writing import (
    MEASURES,
    TIME,
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
"""Of one micro-batch, which counts at once."""


def repartition(
    spark: SparkSession,
    *,
    topic: str,
    to: str,
    partitions: int = 0,
    key: str = "",
    checkpoint: str = "",
    records_per_batch: int = RECORDS_PER_BATCH,
    gateway: str = DEFAULT_GATEWAY,
    credentials_file: str = "",
    progress: Progress = quiet,
) -> dict[str, Any]:
    """Copies the committed records of `topic` to `to`, where their keys decide the partition.

    `partitions`: how many `to` has, and is made with where it is missing; 0 for any, where it is there. `key`: SQL over
    `key, value, partition, offset, timestamp, headers` that gives the new key. `checkpoint`: a directory for what the
    next run goes on from; "" for one of the user's state, by the two topics. Raises PenstockError.
    """
    outcome = Outcome("repartition")
    cluster = Cluster(gateway, credentials_file, "read_committed")
    source = span_of(cluster, topic)
    if partitions < 0:
        raise OptionError(f"a topic has partitions, not {partitions}; leave the number out for what there is")
    # Before the other topic is made: a key that is none leaves nothing behind.
    rows = keyed(stream(source, spark, records_per_batch), key)
    target = target_of(cluster, to, topic, partitions)
    sink = sink_name("repartition", source, target)
    told = {
        "job": "repartition",
        "topic_id": source.topic_id.hex(),
        "to_id": target.topic_id.hex(),
        "key": key,
    }
    place = Checkpoint.at(checkpoint, sink, told)
    place.check_sink(target, sink)
    begun = source.first | place.upto(topic)
    tally = Tally(topic, progress)
    writer = (
        observed(rows)
        .writeStream.format("penstock")
        .options(**target.options(sinkId=sink))
        .option("checkpointLocation", str(place.directory))
        .trigger(availableNow=True)
    )
    with written_by_one(source, target, place):
        to_its_end(writer, tally.look)
    outcome.rows, outcome.bytes = tally.total("rows"), tally.total("bytes")
    outcome.cover(topic, begun, begun | place.upto(topic))
    outcome.more = {"checkpoint": str(place.directory), "sink": sink}
    return outcome.as_dict()


def keyed(rows: DataFrame, key: str) -> DataFrame:
    """What is written. Raises OptionError for an expression that is none."""
    if not key.strip():
        return rows.selectExpr("key", "value", "headers", TIME)
    try:
        kind = rows.selectExpr(f"({key}) AS made").schema["made"].dataType
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise OptionError(f"--key {key!r} is no SQL over a record's columns: {first}") from None
    return rows.selectExpr(f"({key}) AS made", "value", "headers", TIME).selectExpr(
        f"{to_key(kind, 'made')} AS key", "value", "headers", "timestamp"
    )


def observed(rows: DataFrame) -> DataFrame:
    """The same rows, whose count and bytes each micro-batch reports."""
    from pyspark.sql.functions import expr

    return rows.observe("written", *(expr(item) for item in MEASURES))
