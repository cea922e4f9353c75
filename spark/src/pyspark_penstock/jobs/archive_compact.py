"""`archive --compact`: small files of a date and a partition become one.

New files are written first; then a note says which manifest takes the place of all, and from there on it is done,
by the next run if this one is killed. Who reads by the manifests while that happens may find a file gone, and reads
again.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from pyspark_penstock.jobs.archive_files import (
    ArchiveFiles,
    Compaction,
    DataFile,
    flush_directory,
    merged,
    move_in,
    put,
    written_for_all,
)
from pyspark_penstock.jobs.frame import JobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_penstock.jobs.frame import Progress

SMALL_BYTES: Final = 128 * 1024 * 1024
TARGET_BYTES: Final = 256 * 1024 * 1024
_PART: Final = "_partition"
_JOINED: Final = "joined-"


def compact_archive(spark: SparkSession, files: ArchiveFiles, progress: Progress) -> int:
    """Returns how many files were joined: those by date and those by hour apart, for no table has both."""
    forms = sorted({_folders(item) for item in files.files()})
    return sum(_compact(spark, files, folders, progress) for folders in forms)


def _folders(item: DataFile) -> tuple[str, ...]:
    """Names of the columns by which a file is kept."""
    return tuple(name.split("=")[0] for name in PurePosixPath(item.path).parent.parts)


def _compact(spark: SparkSession, files: ArchiveFiles, folders: tuple[str, ...], progress: Progress) -> int:
    groups = small_files([item for item in files.files() if _folders(item) == folders])
    chosen = [item for group in groups for item in group]
    if not chosen:
        return 0
    progress(f"joining {len(chosen)} files into {len(groups)}")
    whole = merged(files.manifests)
    files.drop_leftovers(_JOINED)
    # Of this compaction alone: what it joins may be another's work, behind which no micro-batch has come.
    prefix = f"{_JOINED}{files.prefix(whole.query_id, whole.batch_id)}{uuid.uuid4().hex[:8]}-"
    mean = max(sum(item.bytes for item in chosen) // max(sum(item.rows for item in chosen), 1), 1)
    frame = spark.read.option("basePath", str(files.directory)).parquet(
        *[str(files.directory / item.path) for item in chosen]
    )
    frame = frame.selectExpr("*", f"partition AS {_PART}")
    for name in folders:  # as text: `hour=07` must not become a number
        kind = (
            "date_format(date, 'yyyy-MM-dd')" if name == "date" else f"lpad(CAST({name} AS STRING), 2, '0')"
        )
        frame = frame.withColumn(name, _expression(kind))
    ordered = frame.repartition(*folders, _PART).sortWithinPartitions(*folders, _PART, "offset")
    with files.staging() as staging, written_for_all(spark):
        (
            ordered.write.mode("overwrite")
            .option("maxRecordsPerFile", max(TARGET_BYTES // mean, 1))
            .partitionBy(*folders, _PART)
            .parquet(str(staging))
        )
        joined = tuple(move_in(staging, files.directory, prefix))
    before, after = (sum(item.rows for item in some) for some in (chosen, joined))
    if before != after:
        raise JobError(
            f"{len(chosen)} files in {files.directory} with {before} rows came to {after} rows when they were joined; "
            "they are left as they are: see that nobody else changes them"
        )
    gone = {item.path for item in chosen}
    kept = tuple(item for item in whole.files if item.path not in gone)
    replacing = replace(whole, files=kept + joined)
    others = {item.name for item in files.manifests} - {replacing.name}
    put(files.compaction, Compaction(replacing, tuple(others), tuple(gone)).text())
    finish_compaction(files)
    return len(chosen)


def _expression(text: str) -> Any:
    from pyspark.sql.functions import expr

    return expr(text)


def small_files(files: list[DataFile]) -> list[list[DataFile]]:
    """Groups worth joining: two or more small files of one directory and partition."""
    groups: dict[tuple[str, int], list[DataFile]] = {}
    for item in files:
        if item.bytes < SMALL_BYTES:
            groups.setdefault((str(PurePosixPath(item.path).parent), item.partition), []).append(item)
    return [group for group in groups.values() if len(group) > 1]


def finish_compaction(files: ArchiveFiles) -> None:
    """Does what a decided compaction has yet to do; nothing when there is none."""
    decided = files.decided()
    if decided is None:
        return
    put(files.manifest_room / decided.manifest.name, decided.manifest.text())
    for name in decided.manifests:
        (files.manifest_room / name).unlink(missing_ok=True)
    for path in decided.files:
        (files.directory / path).unlink(missing_ok=True)
    # Were the note gone and a manifest back after a loss of power, its rows would be there twice.
    flush_directory(files.manifest_room)
    files.compaction.unlink()
    files.manifests = [decided.manifest]
