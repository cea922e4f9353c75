"""`archive --format iceberg` through a real Spark session; the table is read by PyIceberg."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from pyspark_penstock.jobs import archive, audit, read_archive
from pyspark_penstock.jobs.archive_files import Manifest
from pyspark_penstock.jobs.archive_iceberg import ArchiveTable
from pyspark_penstock.jobs.frame import JobError, one_line
from unit.spark.spark_batches import Rec, encode_batch

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from unit.spark.spark_memory_gateway import MemoryGateway

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

TIME_MS = 1_700_000_000_000
FAR_MS = TIME_MS * 1000
"""µs where ms belong: in the year 55840."""
COLUMNS = "key, value, topic, partition, offset, unix_micros(timestamp) AS us, timestampType, headers"
Rows = list[tuple[Any, ...]]


class Lake:
    """Options of a run, and the table as another reader sees it."""

    def __init__(self, path: Path, cluster: MemoryGateway) -> None:
        self._properties = {
            "type": "sql",
            "uri": f"sqlite:///{path}/catalog.db",
            "warehouse": f"file://{path}/warehouse",
        }
        file = path / "lake.toml"
        lines = [f"{name} = {json.dumps(value)}" for name, value in self._properties.items()]
        file.write_text("\n".join(['name = "lake"', "[properties]", *lines]))
        file.chmod(0o600)
        self.directory = str(path / "archive")
        self.files: dict[str, Any] = {
            "topic": "flights",
            "to": self.directory,
            "gateway": cluster.addresses[0],
        }
        self.options = self.files | {
            "format": "iceberg",
            "table": "lake.flights",
            "catalog": str(file),
        }

    def table(self) -> Table:
        with load_catalog("lake", **self._properties) as catalog:
            return catalog.load_table("lake.flights")

    def rows(self) -> Rows:
        """Of all columns."""
        found = self.table().scan().to_arrow()
        at = found.column_names.index("timestamp")
        found = found.set_column(at, "us", found.column("timestamp").cast(pa.int64()))
        return sorted_rows(found.to_pylist())

    def marks(self) -> list[tuple[str, str]]:
        summaries = [snapshot.summary for snapshot in self.table().snapshots()]
        return [(str(one["penstock.query-id"]), str(one["penstock.batch-id"])) for one in summaries if one]


def sorted_rows(rows: list[dict[str, Any]]) -> Rows:
    # PyIceberg 0.12 reads a list that is null as an empty one.
    plain = [row | {"headers": [tuple(one.values()) for one in row["headers"] or []]} for row in rows]
    return sorted((tuple(row.values()) for row in plain), key=lambda row: (row[3], row[4]))


def of(frame: DataFrame) -> Rows:
    found = frame.selectExpr(*COLUMNS.split(", ")).collect()
    return sorted_rows([row.asDict(recursive=True) for row in found])


def in_topic(spark: SparkSession, cluster: MemoryGateway) -> Rows:
    return of(
        spark.read.format("penstock")
        .options(gateway=cluster.addresses[0], subscribe="flights", includeHeaders="true")
        .load()
    )


@pytest.fixture
def lake(spark: SparkSession, cluster: MemoryGateway, tmp_path: Path) -> Iterator[Lake]:
    """A topic of two partitions, with headers and with times of all kinds, and a session that writes as of old."""
    cluster.create("flights", 2)
    cluster.append("flights", 0, [b"value %d" % i for i in range(250)], timestamp_ms=TIME_MS)
    cluster.append("flights", 1, [b"value %d" % i for i in range(30)], timestamp_ms=TIME_MS + 86_400_000)
    log = cluster.topics["flights"].logs[1]
    records = [
        Rec(30, -5, None, None, [("a", b"1"), ("a", None)]),
        Rec(31, FAR_MS, b"k", b"", []),
    ]
    log.batches.append((30, 31, encode_batch(records)))
    log.times.append((FAR_MS, 30))
    log.end = 32
    kept = {
        "spark.sql.parquet.writeLegacyFormat": "true",
        "spark.sql.parquet.outputTimestampType": "INT96",
    }
    for name, value in kept.items():
        spark.conf.set(name, value)
    yield Lake(tmp_path, cluster)
    for name in kept:
        spark.conf.unset(name)


def test_the_table_is_the_topic_and_a_second_run_adds_nothing(
    spark: SparkSession, cluster: MemoryGateway, lake: Lake
) -> None:
    result = archive(spark, records_per_batch=120, **lake.options)
    assert (result["rows"], result["ok"]) == (282, True)
    marks = lake.marks()
    assert result["iceberg"] == {
        "table": "lake.flights",
        "location": lake.table().location(),
        "snapshots_added": len(marks),
    }
    assert [batch for _, batch in marks] == [str(number) for number in range(len(marks))] != ["0"]
    assert len({query for query, _ in marks}) == 1
    expected = in_topic(spark, cluster)
    assert len(expected) == 282
    assert lake.rows() == expected == of(read_archive(spark, lake.directory))

    before = lake.table().metadata_location
    again = archive(spark, **lake.options)
    assert (again["rows"], again["iceberg"]["snapshots_added"]) == (0, 0)
    assert lake.table().metadata_location == before

    cluster.append("flights", 0, [b"new"], timestamp_ms=TIME_MS)
    archive(spark, by="hour", **lake.options)
    assert lake.rows() == in_topic(spark, cluster)
    assert len(lake.marks()) == len(marks) + 1
    audited = audit(
        spark, topic="flights", archive=lake.directory, compacted=False, gateway=cluster.addresses[0]
    )
    assert audited["ok"]


class Killed(Exception):
    """Stands for a kill."""


def test_killed_between_manifest_and_snapshot(
    spark: SparkSession, cluster: MemoryGateway, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second micro-batch; the next run makes good what the manifests have, also one of parquet alone between."""
    add = ArchiveTable.add

    def adds(self: ArchiveTable, manifest: Manifest) -> None:
        if manifest.batch_id == 1:
            raise Killed
        add(self, manifest)

    monkeypatch.setattr(ArchiveTable, "add", adds)
    with pytest.raises(Exception, match="Killed"):
        archive(spark, records_per_batch=120, **lake.options)
    monkeypatch.undo()
    assert [batch for _, batch in lake.marks()] == ["0"]
    archive(spark, records_per_batch=120, **lake.files)
    assert len(lake.marks()) == 1
    archive(spark, **lake.options)
    assert lake.rows() == in_topic(spark, cluster)
    assert len(set(lake.marks())) == len(lake.marks()) > 2
    with pytest.raises(
        JobError, match=r"cannot be joined, since the Iceberg tables lake\.flights refer to them"
    ):
        archive(spark, compact=True, **lake.files)


def test_a_catalog_that_goes_meanwhile_is_a_sentence(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.table import Table

    def commit(*_: Any, **__: Any) -> None:
        raise ConnectionError("the catalog is gone")

    monkeypatch.setattr(Table, "_do_commit", commit)
    with pytest.raises(Exception, match="the catalog is gone") as caught:
        archive(spark, **lake.options)
    text = one_line(caught.value)
    assert text.startswith("catalog lake of ")
    assert (
        "does not take micro-batch 0 into table lake.flights (ConnectionError: the catalog is gone); see"
        in text
    )
