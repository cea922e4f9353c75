"""`read_archive`: the rows of an archive, each once, as its manifests say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark_penstock.jobs.archive_files import ArchiveFiles
from pyspark_penstock.jobs.frame import JobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""The source's columns, and headers."""


def read_archive(spark: SparkSession, directory: str, *, present_only: bool = False) -> DataFrame:
    """Rows of the files that the manifests in `directory` name, and of no other.

    Files that are named and gone are an error, but with `present_only` are left out. Raises PenstockError.
    """
    found = ArchiveFiles.at(directory)
    if not found.manifests:
        raise JobError(f"there is no archive in {directory}: no manifest in {found.manifest_room}")
    paths = [found.directory / item.path for item in found.files()]
    missing = [path for path in paths if not path.is_file()]
    if missing and not present_only:
        raise JobError(
            f"{len(missing)} files of the archive in {directory} are gone, e.g. {missing[0]}; "
            "put them back, or archive the topic into another directory"
        )
    gone = set(missing)
    there = [str(path) for path in paths if path not in gone]
    if not there:
        return spark.createDataFrame([], SCHEMA)
    return spark.read.schema(SCHEMA).parquet(*there)
