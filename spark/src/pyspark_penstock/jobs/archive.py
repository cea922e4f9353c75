"""`archive`: a topic as Parquet files by date, each record once, and each run only what is new.

A streaming query with the trigger AvailableNow writes micro-batches; a micro-batch is in the archive once its manifest
is. One that was killed is written again with the same offsets, since they stand in the checkpoint. Where the checkpoint
is gone the manifests say where to go on.

With a table of Iceberg a micro-batch goes there as well, once its manifest is there (archive_iceberg).

Files hold records of one partition, in order: the source gives one Spark partition per partition of the topic, or
several, never two in one.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark_penstock.errors import OptionError
from pyspark_penstock.jobs.archive_catalog import CatalogFile
from pyspark_penstock.jobs.archive_compact import compact_archive, finish_compaction
from pyspark_penstock.jobs.archive_files import (
    ArchiveFiles,
    DataFile,
    Manifest,
    by_text,
    move_in,
    written_for_all,
)
from pyspark_penstock.jobs.archive_iceberg import ArchiveTable, names_of
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
_DAY: Final = 86_400_000_000
"""In µs."""
# By numbers: what formats a time does so in the session's time zone, which leaves out an hour of UTC in spring.
_DATE: Final = (
    f"CAST(date_add(DATE'1970-01-01', CAST((unix_micros(timestamp) - pmod(unix_micros(timestamp), {_DAY})) div {_DAY} "
    "AS INT)) AS STRING)"
)
_HOUR: Final = f"lpad(CAST(pmod(unix_micros(timestamp), {_DAY}) div {_DAY // 24} AS STRING), 2, '0')"
_PARTS: Final = {"date": {"date": _DATE}, "hour": {"date": _DATE, "hour": _HOUR}}


def archive(
    spark: SparkSession,
    *,
    topic: str,
    to: str,
    by: str = "date",
    isolation: str = "read_uncommitted",
    compact: bool = False,
    format: str = "parquet",
    table: str = "",
    catalog: str = "",
    records_per_batch: int = RECORDS_PER_BATCH,
    gateway: str = DEFAULT_GATEWAY,
    credentials_file: str = "",
    progress: Progress = quiet,
) -> dict[str, Any]:
    """Archives what `topic` has and the directory `to` has not; `compact` then joins small files.

    With the format "iceberg" the files are a table too: `table` of the catalog that the file `catalog` names.

    Raises PenstockError.
    """
    if by not in _PARTS:
        raise OptionError(f"an archive is kept by date or by hour, not by {by!r}")
    catalog_file = _catalog_file(format, table, catalog, compact)
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
        if compact:
            files.check_no_table()
        if files.isolation(isolation) != isolation:
            raise OptionError(
                f"{to} was read with isolation {files.isolation(isolation)}, not {isolation}: name another directory"
            )
        before = len(files.manifests)
        begun = dict(span.first) | files.upto()
        if files.drop_old_checkpoint():
            progress(f"{topic}: the checkpoint is older than the manifests, and goes; on where they end")
        if files.drop_newer_checkpoint(topic):
            progress(f"{topic}: the checkpoint is newer than the manifests, and goes; on where they end")
        with _table(catalog_file, table, files, span) as opened:
            _query(spark, span, files, opened, by, records_per_batch, progress)
        added = [item for manifest in files.manifests[before:] for item in manifest.files]
        joined = compact_archive(spark, files, progress) if compact else 0
    outcome.rows = sum(item.rows for item in added)
    outcome.bytes = sum(item.bytes for item in added)
    outcome.cover(topic, begun, begun | files.upto())
    outcome.more = {"files_added": len(added), "archive": {"files": len(files.files()), "rows": files.rows()}}
    if compact:
        outcome.more["files_joined"] = joined
    if opened is not None:
        outcome.more["iceberg"] = {
            "table": opened.name,
            "location": opened.location,
            "snapshots_added": opened.snapshots_added,
        }
    return outcome.as_dict()


def _catalog_file(format: str, table: str, catalog: str, compact: bool) -> CatalogFile | None:
    """None where no table is asked for. Raises OptionError."""
    if format == "parquet":
        if table or catalog:
            raise OptionError("table and catalog go with the format iceberg; leave them out for parquet")
        return None
    if format != "iceberg":
        raise OptionError(f"an archive has the format parquet or iceberg, not {format!r}")
    if not table or not catalog:
        raise OptionError("the format iceberg takes a table, NS.T, and a catalog, the file that names one")
    if compact:
        raise OptionError(
            "files that an Iceberg table refers to cannot be joined: leave out compact, or the format iceberg"
        )
    names_of(table)
    return CatalogFile.read(catalog)


def _table(
    file: CatalogFile | None, name: str, files: ArchiveFiles, span: Span
) -> AbstractContextManager[ArchiveTable | None]:
    """The table, if one is asked for, with all that the archive has."""
    if file is None:
        return nullcontext()
    return ArchiveTable.opened(file, name, files, span.topic, span.topic_id)


def _query(
    spark: SparkSession,
    span: Span,
    files: ArchiveFiles,
    table: ArchiveTable | None,
    by: str,
    records_per_batch: int,
    progress: Progress,
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
        if files.is_in(manifest):
            return
        added = _written(frame, files, manifest, by)
        whole = replace(manifest, files=added)
        files.add(whole)
        if table is not None:
            table.add(whole)
        progress(
            f"{span.topic}: batch {batch_id}, {sum(item.rows for item in added)} rows in {len(added)} files"
        )

    with written_for_all(spark):
        to_its_end(
            rows.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(files.checkpoint))
            .trigger(availableNow=True)
        )


def _start(span: Span, files: ArchiveFiles) -> str:
    """For a query without a checkpoint; one that has it goes on from there."""
    upto = files.upto()
    return json.dumps({span.topic: by_text({part: upto.get(part, -2) for part in span.first})})


def _manifest(files: ArchiveFiles, span: Span, batch_id: int) -> Manifest:
    """Of a micro-batch, without its files: what Spark has noted in the checkpoint before it runs."""
    query_id = json.loads((files.checkpoint / "metadata").read_text())["id"]
    start, end = files.planned(batch_id, span.topic)
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
