"""`archive --compact`: small files of a date and a partition become one.

New files are written first; then a note says which manifest takes the place of all, and from there on it is done,
by the next run if this one is killed. Who reads by the manifests while that happens may find a file gone, and reads
again.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from pyspark_penstock.jobs.archive_files import ArchiveFiles, DataFile, Manifest, merged, move_in, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_penstock.jobs.frame import Progress

SMALL_BYTES: Final = 128 * 1024 * 1024
TARGET_BYTES: Final = 256 * 1024 * 1024
_PART: Final = "_partition"


def compact_archive(spark: SparkSession, files: ArchiveFiles, progress: Progress) -> int:
    """Returns how many files were joined."""
    groups = small_files(files.files())
    chosen = [item for group in groups for item in group]
    if not chosen:
        return 0
    progress(f"joining {len(chosen)} files into {len(groups)}")
    whole = merged(files.manifests)
    prefix = f"joined-{files.prefix(whole.query_id, whole.batch_id)}"
    files.drop_leftovers(prefix)
    folders = [name.split("=")[0] for name in PurePosixPath(chosen[0].path).parent.parts]
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
    with files.staging() as staging:
        (
            ordered.write.mode("overwrite")
            .option("maxRecordsPerFile", max(TARGET_BYTES // mean, 1))
            .partitionBy(*folders, _PART)
            .parquet(str(staging))
        )
        joined = tuple(move_in(staging, files.directory, prefix))
    gone = {item.path for item in chosen}
    kept = tuple(item for item in whole.files if item.path not in gone)
    replacing = replace(whole, files=kept + joined)
    note = {
        "manifest": json.loads(replacing.text()),
        "manifests": sorted({item.name for item in files.manifests} - {replacing.name}),
        "files": sorted(gone),
    }
    put(files.room / "compact.json", json.dumps(note))
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
    note = files.room / "compact.json"
    if not note.is_file():
        return
    form = json.loads(note.read_text())
    manifest = Manifest.parse(json.dumps(form["manifest"]), str(note))
    put(files.manifest_room / manifest.name, manifest.text())
    for name in form["manifests"]:
        (files.manifest_room / name).unlink(missing_ok=True)
    for path in form["files"]:
        (files.directory / path).unlink(missing_ok=True)
    note.unlink()
    files.manifests = [manifest]
