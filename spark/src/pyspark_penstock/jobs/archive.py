"""`archive`: a topic as Parquet files by date, each record once, and each run only what is new.

A streaming query with the trigger AvailableNow writes micro-batches; a micro-batch is in the archive once its manifest
is. One that was killed is written again with the same offsets, since they stand in the checkpoint. Where the checkpoint
is gone the manifests say where to go on.

Files hold records of one partition, in order: the source gives one Spark partition per partition of the topic, or
several, never two in one.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark_penstock.errors import NotBuiltYetError, OptionError
from pyspark_penstock.jobs.archive_compact import compact_archive, finish_compaction
from pyspark_penstock.jobs.archive_files import (
    ArchiveFiles,
    DataFile,
    Manifest,
    by_text,
    move_in,
)
from pyspark_penstock.jobs.frame import (
    DEFAULT_GATEWAY,
    Cluster,
    JobError,
    Outcome,
    Progress,
    Span,
    quiet,
    span_of,
)
from pyspark_penstock.jobs.read_archive import SCHEMA
from pyspark_penstock.jobs.streams import to_its_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS_PER_BATCH: Final = 1_000_000
"""Of one micro-batch: what a killed run does again at most."""
_UTC = "to_utc_timestamp(timestamp, current_timezone())"
_PARTS: Final = {
    "date": {"date": f"date_format({_UTC}, 'yyyy-MM-dd')"},
    "hour": {"date": f"date_format({_UTC}, 'yyyy-MM-dd')", "hour": f"date_format({_UTC}, 'HH')"},
}
_WRITE: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.sources.partitionOverwriteMode": "static",
}
"""Spark's own default for times, INT96, is nobody else's."""


def archive(
    spark: SparkSession,
    *,
    topic: str,
    to: str,
    by: str = "date",
    isolation: str = "read_uncommitted",
    compact: bool = False,
    format: str = "parquet",
    records_per_batch: int = RECORDS_PER_BATCH,
    gateway: str = DEFAULT_GATEWAY,
    credentials_file: str = "",
    progress: Progress = quiet,
) -> dict[str, Any]:
    """Archives what `topic` has and the directory `to` has not; `compact` then joins small files.

    Raises PenstockError.
    """
    if by not in _PARTS:
        raise OptionError(f"an archive is kept by date or by hour, not by {by!r}")
    if format != "parquet":
        raise NotBuiltYetError(f"format {format} is not built yet; leave it out for parquet")
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise JobError(
            "archive moves files about, which Spark Connect's client can't; run it in a session of its own"
        )
    outcome = Outcome("archive")
    span = span_of(Cluster(gateway, credentials_file, isolation), topic)
    with ArchiveFiles.at(to).alone():
        files = ArchiveFiles.at(to)
        finish_compaction(files)
        files.check_topic(topic)
        files.check_topic_id(span.topic_id)
        if files.isolation(isolation) != isolation:
            raise OptionError(
                f"{to} was read with isolation {files.isolation(isolation)}, not {isolation}: name another directory"
            )
        before = len(files.manifests)
        begun = dict(span.first) | files.upto()
        _query(spark, span, files, by, records_per_batch, progress)
        added = [item for manifest in files.manifests[before:] for item in manifest.files]
        joined = compact_archive(spark, files, progress) if compact else 0
    outcome.rows = sum(item.rows for item in added)
    outcome.bytes = sum(item.bytes for item in added)
    outcome.cover(topic, begun, begun | files.upto())
    outcome.more = {"files_added": len(added), "archive": {"files": len(files.files()), "rows": files.rows()}}
    if compact:
        outcome.more["files_joined"] = joined
    return outcome.as_dict()


def _query(
    spark: SparkSession, span: Span, files: ArchiveFiles, by: str, records_per_batch: int, progress: Progress
) -> None:
    options = span.cluster.raw() | {
        "subscribe": span.topic,
        "startingOffsets": _start(span, files),
        "maxOffsetsPerTrigger": str(records_per_batch),
        "includeHeaders": "true",
    }
    rows = spark.readStream.format("penstock").options(**options).schema(SCHEMA).load()

    def write(frame: DataFrame, batch_id: int) -> None:
        manifest = _manifest(files, span, batch_id)
        if files.has(manifest.query_id, batch_id):
            return
        added = _written(frame, files, manifest, by)
        files.add(replace(manifest, files=added))
        progress(
            f"{span.topic}: batch {batch_id}, {sum(item.rows for item in added)} rows in {len(added)} files"
        )

    kept = {name: spark.conf.get(name, None) for name in _WRITE}
    try:
        for name, value in _WRITE.items():
            spark.conf.set(name, value)
        to_its_end(
            rows.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(files.checkpoint))
            .trigger(availableNow=True)
        )
    finally:
        for name, before in kept.items():
            if before is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, before)


def _start(span: Span, files: ArchiveFiles) -> str:
    """For a query without a checkpoint; one that has it goes on from there."""
    upto = files.upto()
    return json.dumps({span.topic: by_text({part: upto.get(part, -2) for part in span.first})})


def _manifest(files: ArchiveFiles, span: Span, batch_id: int) -> Manifest:
    """Of a micro-batch, without its files: what Spark has noted in the checkpoint before it runs."""
    query_id = json.loads((files.checkpoint / "metadata").read_text())["id"]
    form = json.loads((files.checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[-1])
    start, end = (
        {int(part): int(offset) for part, offset in form.get(name, {}).get(span.topic, {}).items()}
        for name in ("from", "to")
    )
    return Manifest(
        batch_id,
        query_id,
        span.topic,
        span.topic_id.hex(),
        start or end,
        end,
        isolation=span.cluster.isolation,
    )


def _written(frame: DataFrame, files: ArchiveFiles, manifest: Manifest, by: str) -> tuple[DataFile, ...]:
    """Writes a micro-batch's files where they belong; no manifest names them yet."""
    prefix = files.prefix(manifest.query_id, manifest.batch_id)
    files.drop_leftovers(prefix)
    names = list(_PARTS[by])
    for name, text in _PARTS[by].items():
        frame = frame.selectExpr("*", f"{text} AS {name}")
    with files.staging() as staging:
        ordered = frame.sortWithinPartitions(*names, "offset")
        ordered.write.mode("overwrite").partitionBy(*names).parquet(str(staging))
        return tuple(move_in(staging, files.directory, prefix))
