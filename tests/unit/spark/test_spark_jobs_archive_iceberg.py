"""An archive's table: real files, a real SQLite catalog, kills between manifest and snapshot. No Spark."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType

from pyspark_penstock.errors import OptionError
from pyspark_penstock.jobs import archive_iceberg
from pyspark_penstock.jobs.archive import archive
from pyspark_penstock.jobs.archive_catalog import CatalogFile
from pyspark_penstock.jobs.archive_files import ArchiveFiles, DataFile, Manifest, described
from pyspark_penstock.jobs.archive_iceberg import ArchiveTable, names_of
from pyspark_penstock.jobs.frame import JobError, exit_code

QUERY = "57a06024-6a69-46ac-a419-2dd581c19d59"
TOPIC_ID = bytes.fromhex("ab" * 16)
NAME = "lake.flights"
DAY_US = 86_400_000_000
START_US = 1_764_028_800_000_000
"""Midnight in UTC."""
COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""As Spark writes read_archive.SCHEMA."""
Rows = list[tuple[int, int, bytes]]


class Lake:
    """An archive with its files, and a catalog, in one directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.directory = path / "archive"
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{path}/catalog.db",
            "warehouse": f"file://{path}/warehouse",
        }
        self.file = path / "lake.toml"
        self.write_file()

    def write_file(self, **more: str) -> str:
        lines = [f"{name} = {json.dumps(value)}" for name, value in (self.properties | more).items()]
        self.file.write_text("\n".join(['name = "lake"', "[properties]", *lines]))
        self.file.chmod(0o600)
        return str(self.file)

    @property
    def files(self) -> ArchiveFiles:
        return ArchiveFiles.at(str(self.directory))

    def written(
        self,
        batch_id: int,
        starts: dict[int, int],
        ends: dict[int, int],
        us: int = START_US,
        day: str = "2025-11-25",
    ) -> Manifest:
        """A micro-batch whose files are there, and which no manifest names yet."""
        items = []
        for part, end in ends.items():
            offsets = range(starts[part], end)
            if not offsets:
                continue
            rows = {
                "key": [None] * len(offsets),
                "value": [b"value %d" % offset for offset in offsets],
                "topic": ["flights"] * len(offsets),
                "partition": [part] * len(offsets),
                "offset": list(offsets),
                "timestamp": pa.array([us + offset for offset in offsets], pa.int64()).cast(
                    COLUMNS.field(5).type
                ),
                "timestampType": [0] * len(offsets),
                "headers": [[("trace", b"%d" % offset)] if offset % 2 else None for offset in offsets],
            }
            path = self.directory / f"date={day}" / f"{QUERY[:8]}-{batch_id:010d}-{part:05d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table(rows, schema=COLUMNS), path)
            items.append(DataFile(path=str(path.relative_to(self.directory)), **described(path)))
        return Manifest(batch_id, QUERY, "flights", TOPIC_ID.hex(), starts, ends, tuple(items))

    def archived(self, batch_id: int, starts: dict[int, int], ends: dict[int, int], **more: Any) -> Manifest:
        """A micro-batch that is in the archive."""
        manifest = self.written(batch_id, starts, ends, **more)
        self.files.add(manifest)
        return manifest

    @contextmanager
    def opened(
        self, name: str = NAME, topic: str = "flights", topic_id: bytes = TOPIC_ID
    ) -> Iterator[ArchiveTable]:
        """As a run does it."""
        with (
            self.files.alone(),
            ArchiveTable.opened(CatalogFile.read(str(self.file)), name, self.files, topic, topic_id) as table,
        ):
            yield table

    def run(self, **more: Any) -> int:
        """A run that finds nothing new in the topic; returns how many snapshots it made."""
        with self.opened(**more) as table:
            return table.snapshots_added

    @contextmanager
    def catalog(self) -> Iterator[Catalog]:
        with load_catalog("lake", **self.properties) as found:
            yield found

    def table(self, name: str = NAME) -> Table:
        with self.catalog() as catalog:
            return catalog.load_table(name)

    def rows(self, name: str = NAME) -> Rows:
        columns = ("partition", "offset", "value")
        found = self.table(name).scan(selected_fields=columns).to_arrow().to_pylist()
        return sorted((row["partition"], row["offset"], row["value"]) for row in found)

    def expected(self) -> Rows:
        """By the manifests."""
        columns = ["partition", "offset", "value"]
        files = [pq.ParquetFile(self.directory / item.path) for item in self.files.files()]
        found = [row for file in files for row in file.read(columns).to_pylist()]
        return sorted((row["partition"], row["offset"], row["value"]) for row in found)

    def marks(self, name: str = NAME) -> list[tuple[str, str]]:
        """Query and micro-batch of each snapshot."""
        found = []
        for snapshot in self.table(name).snapshots():
            assert snapshot.summary is not None
            told = snapshot.summary.additional_properties
            found.append((told["penstock.query-id"], told["penstock.batch-id"]))
        return found


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_a_snapshot_per_micro_batch_and_none_twice(lake: Lake) -> None:
    lake.archived(0, {0: 0, 1: 0}, {0: 5, 1: 3})
    lake.archived(1, {0: 5, 1: 3}, {0: 9, 1: 3})
    assert lake.run() == 2
    assert lake.rows() == lake.expected() != []
    assert lake.marks() == [(QUERY, "0"), (QUERY, "1")]
    before = lake.table().metadata_location
    assert lake.run() == 0
    assert lake.table().metadata_location == before
    with lake.opened() as table:
        third = lake.written(2, {0: 9, 1: 3}, {0: 9, 1: 8})
        lake.files.add(third)
        table.add(third)
        table.add(third)
        assert table.snapshots_added == 1
        assert table.upto() == {0: 9, 1: 8}
    assert lake.rows() == lake.expected()
    assert len(lake.marks()) == 3


def test_the_table_has_the_archives_columns_and_properties(lake: Lake) -> None:
    lake.archived(0, {0: 0}, {0: 2})
    lake.run()
    table = lake.table()
    found = table.scan().to_arrow().sort_by("offset")
    assert found.column_names == COLUMNS.names
    without, one = found.column("headers").to_pylist()
    assert not without  # null in the file; PyIceberg 0.12 reads it as an empty list
    assert one == [{"key": "trace", "value": b"1"}]
    assert str(found.schema.field("timestamp").type) == "timestamp[us, tz=UTC]"
    told = {name: value for name, value in table.properties.items() if "name-mapping" not in name}
    assert told == {
        "penstock.topic": "flights",
        "penstock.topic-id": "ab" * 16,
        "penstock.archive": str(lake.directory),
        "penstock.offsets": '{"0":2}',
        "gc.enabled": "false",
        "commit.manifest-merge.enabled": "true",
    }
    assert table.location() == f"file://{lake.path}/warehouse/lake/flights"
    paths = [task.file.file_path for task in table.scan().plan_files()]
    assert paths == [f"file://{lake.directory}/{item.path}" for item in lake.files.files()]


def test_time_and_offset_choose_files_though_there_are_no_partitions(lake: Lake) -> None:
    for number in range(3):
        lake.archived(number, {0: 5 * number}, {0: 5 * number + 5}, us=START_US + number * DAY_US)
    lake.run()
    scan = lake.table().scan
    assert len(list(scan().plan_files())) == 3
    assert len(list(scan("timestamp >= '2025-11-26T00:00:00+00:00'").plan_files())) == 2
    assert len(list(scan("offset >= 10").plan_files())) == 1


@pytest.mark.parametrize(
    ("us", "day"),
    [
        (2**63 - 100, "+294247-01-10"),
        (253_402_300_800_000_000, "+10000-01-01"),
        (253_402_300_799_999_990, "9999-12-31"),
        (-62_135_596_800_000_000, "0001-01-01"),
        (-62_135_596_800_000_100, "0000-12-31"),
        (-(2**63), "-290308-12-21"),
        (-5, "1969-12-31"),
    ],
)
def test_times_that_no_calendar_of_python_has_are_taken(lake: Lake, us: int, day: str) -> None:
    lake.archived(0, {0: 0}, {0: 3}, us=us, day=day)
    lake.archived(1, {0: 3}, {0: 4})
    assert lake.run() == 2
    table = lake.table()
    assert lake.rows() == lake.expected()
    times = table.scan().to_arrow().sort_by("offset").column("timestamp").cast(pa.int64()).to_pylist()
    assert times[:3] == [us, us + 1, us + 2]
    assert "write.metadata.metrics.column.timestamp" not in table.properties
    late = table.scan("timestamp >= '2025-11-25T00:00:00+00:00'").to_arrow()
    assert late.num_rows == (4 if us > START_US else 1)


def test_what_the_tables_owner_says_of_bounds_stays(lake: Lake) -> None:
    lake.run()
    name = "write.metadata.metrics.column.timestamp"
    with lake.catalog() as catalog, catalog.load_table(NAME).transaction() as transaction:
        transaction.set_properties({name: "full"})
    lake.archived(0, {0: 0}, {0: 3}, us=2**62, day="+148108-01-01")
    lake.run()
    assert lake.table().properties[name] == "full"


class Killed(BaseException):
    """Stands for a kill."""


def test_killed_between_manifest_and_snapshot(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest is there, and the next run makes the snapshot, before anything else."""
    lake.archived(0, {0: 0}, {0: 5})
    lake.run()
    lake.archived(1, {0: 5}, {0: 9})  # and no more of that run

    def commit(*_: Any) -> None:
        raise Killed

    monkeypatch.setattr(ArchiveTable, "_commit", commit)
    with pytest.raises(Killed):
        lake.run()
    monkeypatch.undo()
    assert len(lake.rows()) == 5
    assert lake.run() == 1
    assert lake.rows() == lake.expected()
    assert lake.marks() == [(QUERY, "0"), (QUERY, "1")]


@pytest.mark.parametrize("is_in", [False, True], ids=["before the commit", "after the commit"])
def test_killed_around_the_commit(lake: Lake, monkeypatch: pytest.MonkeyPatch, is_in: bool) -> None:
    """Files and offsets come by one commit; who dies behind it finds the micro-batch in the table."""
    lake.archived(0, {0: 0}, {0: 5})
    real = Table._do_commit

    def commit(self: Table, **given: Any) -> None:
        if is_in:
            real(self, **given)
        raise Killed

    monkeypatch.setattr(Table, "_do_commit", commit)
    with pytest.raises(Killed):
        lake.run()
    monkeypatch.undo()
    assert len(lake.rows()) == (5 if is_in else 0)
    assert lake.run() == (0 if is_in else 1)
    assert lake.rows() == lake.expected()
    assert len(lake.marks()) == 1


def test_killed_before_the_archive_knows_of_its_table(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.archived(0, {0: 0}, {0: 5})

    def note(*_: Any) -> None:
        raise Killed

    monkeypatch.setattr(ArchiveFiles, "note_table", note)
    with pytest.raises(Killed):
        lake.run()
    monkeypatch.undo()
    assert lake.files.tables() == {}
    assert lake.run() == 1
    assert lake.files.tables() == {str(lake.table().metadata.table_uuid): NAME}


def test_a_commit_whose_answer_is_lost_is_known_by_its_offsets(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.archived(0, {0: 0}, {0: 5})
    real = Table._do_commit

    def commit(self: Table, **given: Any) -> None:
        real(self, **given)
        raise ConnectionError("the answer is lost")

    monkeypatch.setattr(Table, "_do_commit", commit)
    with pytest.raises(
        JobError, match=r"does not take micro-batch 0 into table lake\.flights .*the answer is lost"
    ):
        lake.run()
    monkeypatch.undo()
    assert lake.run() == 0
    assert lake.rows() == lake.expected()


def test_expired_snapshots_bring_nothing_back(lake: Lake) -> None:
    for number in range(3):
        lake.archived(number, {0: number}, {0: number + 1})
    lake.run()
    with lake.catalog() as catalog:
        table = catalog.load_table(NAME)
        old = [each.snapshot_id for each in table.snapshots()][:-1]
        table.maintenance.expire_snapshots().by_ids(old).commit()
    assert lake.marks() == [(QUERY, "2")]
    assert lake.run() == 0
    assert lake.rows() == lake.expected()
    assert all((lake.directory / item.path).is_file() for item in lake.files.files())


def test_what_the_table_keeps_of_many_micro_batches_is_joined(lake: Lake) -> None:
    lake.archived(0, {0: 0}, {0: 2})
    lake.run()
    with lake.catalog() as catalog, catalog.load_table(NAME).transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "3"})
    for number in range(1, 8):
        lake.archived(number, {0: 2 * number}, {0: 2 * number + 2})
    assert lake.run() == 7
    table = lake.table()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) < 5
    assert lake.rows() == lake.expected()
    assert len(lake.marks()) == 8
    assert lake.run() == 0


def test_another_writer_meanwhile_costs_nothing(lake: Lake) -> None:
    lake.archived(0, {0: 0}, {0: 5})
    with lake.opened() as table:
        with lake.catalog() as catalog, catalog.load_table(NAME).transaction() as transaction:
            transaction.delete("offset = 3")
        added = lake.archived(1, {0: 5}, {0: 9})
        table.add(added)
    assert lake.rows() == [row for row in lake.expected() if row[1] != 3]
    assert lake.run() == 0


def test_micro_batches_without_records_move_the_offsets_alone(lake: Lake) -> None:
    lake.archived(0, {0: 0}, {0: 5})
    lake.archived(1, {0: 5, 1: 0}, {0: 5, 1: 0})
    assert lake.run() == 1
    assert json.loads(lake.table().properties["penstock.offsets"]) == {"0": 5, "1": 0}


def test_a_query_that_counts_anew_comes_behind_the_one_before(lake: Lake) -> None:
    """Names of manifests begin with the micro-batch's number, which begins at 0 without a checkpoint."""
    lake.archived(7, {0: 0}, {0: 5})
    later = replace(lake.written(0, {0: 5}, {0: 9}), query_id="0" * 36)
    lake.files.add(later)
    assert [each.batch_id for each in lake.files.manifests] == [0, 7]
    assert lake.run() == 2
    assert lake.marks() == [(QUERY, "7"), ("0" * 36, "0")]
    assert lake.rows() == lake.expected()


def test_a_dropped_table_is_made_again_from_the_manifests(lake: Lake) -> None:
    lake.archived(0, {0: 0}, {0: 5})
    lake.run()
    with lake.catalog() as catalog:
        catalog.drop_table(NAME)
    lake.archived(1, {0: 5}, {0: 9})
    assert lake.run() == 2
    assert lake.rows() == lake.expected()
    assert len(lake.files.tables()) == 2


def test_two_tables_of_one_archive_and_names_of_many_parts(lake: Lake) -> None:
    lake.archived(0, {0: 0}, {0: 5})
    lake.run()
    lake.run(name="a.b.c")
    assert lake.rows("a.b.c") == lake.rows() == lake.expected()
    assert sorted(lake.files.tables().values()) == ["a.b.c", NAME]


@pytest.mark.parametrize("name", ["with space", "per%20cent", "ümlaut"])
def test_directories_with_other_signs(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / "lake").mkdir()
    lake = Lake(tmp_path / "lake")  # the catalog is a URI, by rules of its own
    lake.directory = tmp_path / name
    lake.archived(0, {0: 0}, {0: 5})
    lake.run()
    assert lake.rows() == lake.expected()


@pytest.mark.parametrize("sign", ["#", "?"])
def test_a_directory_that_no_uri_can_name(lake: Lake, sign: str) -> None:
    lake.directory = lake.path / f"a{sign}b"
    with pytest.raises(OptionError, match="no # or \\? may be in it"):
        lake.run()


def made_by_hand(lake: Lake, **properties: str) -> None:
    with lake.catalog() as catalog:
        catalog.create_namespace_if_not_exists("lake")
        schema = Schema(NestedField(1, "key", StringType()), NestedField(2, "offset", LongType()))
        catalog.create_table(NAME, schema, properties=properties)


def test_a_table_of_somebody_else_is_refused(lake: Lake) -> None:
    made_by_hand(lake)
    with pytest.raises(JobError, match=r"table lake\.flights was not made by archive; name another one"):
        lake.run()


def test_a_table_of_other_columns_is_refused(lake: Lake) -> None:
    made_by_hand(
        lake,
        **{
            "penstock.topic": "flights", "penstock.topic-id": TOPIC_ID.hex(),
            "penstock.archive": str(lake.directory), "penstock.offsets": "{}",
        },
    )  # fmt: skip
    with pytest.raises(
        JobError, match=r"has not the archive's columns \(key is large_string, value is missing, "
    ):
        lake.run()


def test_a_table_may_have_more_columns(lake: Lake) -> None:
    lake.archived(0, {0: 0}, {0: 5})
    lake.run()
    with lake.catalog() as catalog, catalog.load_table(NAME).update_schema() as update:
        update.add_column("note", StringType())
    lake.archived(1, {0: 5}, {0: 9})
    assert lake.run() == 1
    assert lake.rows() == lake.expected()


def test_a_table_of_another_topic_or_archive_is_refused(lake: Lake) -> None:
    lake.archived(0, {0: 0}, {0: 5})
    lake.run()
    with pytest.raises(
        JobError, match="is the archive of topic 'flights', not of 'orders'; name another table"
    ):
        lake.run(topic="orders")
    with pytest.raises(JobError, match="topic 'flights' was deleted and made anew since table"):
        lake.run(topic_id=bytes(16))
    other = lake.path / "other"
    shutil.copytree(lake.directory, other)
    before, lake.directory = lake.directory, other
    with pytest.raises(JobError, match=f"is of the archive in {before}, not in {other}; name another table"):
        lake.run()


def test_a_directory_that_lost_what_its_table_has_is_refused(lake: Lake) -> None:
    lake.archived(0, {0: 0}, {0: 5})
    second = lake.archived(1, {0: 5}, {0: 9})
    lake.run()
    (lake.files.manifest_room / second.name).unlink()
    with pytest.raises(JobError, match=r"has records that the archive in .* has not: put back its manifests"):
        lake.run()
    shutil.rmtree(lake.directory)
    lake.archived(0, {0: 0}, {0: 20})  # goes further, with other files
    with pytest.raises(JobError, match=r"has records that the archive in .* has not"):
        lake.run()
    with lake.catalog() as catalog:
        catalog.drop_table(NAME)
    assert lake.run() == 1
    assert lake.rows() == lake.expected()


def test_micro_batches_that_were_cut_otherwise_are_refused(lake: Lake) -> None:
    lake.archived(0, {0: 0}, {0: 5})
    lake.run()
    (lake.files.manifest_room / lake.files.manifests[0].name).unlink()
    lake.archived(0, {0: 0}, {0: 3})
    lake.archived(1, {0: 3}, {0: 9})
    with pytest.raises(
        JobError, match=r"has a part of .*0000000001-57a06024\.json only: manifests were changed"
    ):
        lake.run()
    assert len(lake.marks()) == 1


@pytest.mark.parametrize("text", [None, "", "[]", '{"a": 1}', "[" * 100_000])
def test_a_table_whose_offsets_are_gone_is_refused(lake: Lake, text: str | None) -> None:
    lake.archived(0, {0: 0}, {0: 5})
    lake.run()
    with lake.catalog() as catalog, catalog.load_table(NAME).transaction() as transaction:
        if text is None:
            transaction.remove_properties("penstock.offsets")
        else:
            transaction.set_properties({"penstock.offsets": text})
    with pytest.raises(JobError, match=r"has no penstock\.offsets among its properties that can be read"):
        lake.run()


def test_files_that_are_in_the_table_already_are_refused_whatever_its_offsets_say(lake: Lake) -> None:
    lake.archived(0, {0: 0}, {0: 5})
    lake.run()
    with lake.catalog() as catalog, catalog.load_table(NAME).transaction() as transaction:
        transaction.set_properties({"penstock.offsets": "{}"})
    with pytest.raises(JobError, match="already referenced by table"):
        lake.run()
    assert lake.rows() == lake.expected()


def test_a_file_that_is_gone_is_named(lake: Lake) -> None:
    manifest = lake.archived(0, {0: 0}, {0: 5})
    (lake.directory / manifest.files[0].path).unlink()
    with pytest.raises(JobError, match=r"does not take micro-batch 0 .*FileNotFoundError: .*00000\.parquet"):
        lake.run()


def test_files_of_a_table_are_not_joined(lake: Lake) -> None:
    files = lake.files
    files.check_no_table()
    lake.archived(0, {0: 0}, {0: 5})
    lake.run()
    with pytest.raises(
        JobError, match=r"cannot be joined, since the Iceberg tables lake\.flights refer to them"
    ):
        files.check_no_table()
    files.table_notes.write_text("{}")
    with pytest.raises(JobError, match=r"iceberg\.json: this is no note of an archive's tables"):
        files.check_no_table()


@pytest.mark.parametrize("name", ["flights", "", ".", "a.", ".b", "a..b", "a. b"])
def test_names_of_tables(name: str) -> None:
    with pytest.raises(OptionError, match=r"named by its namespace and its name, NS\.T, not"):
        names_of(name)
    assert names_of("a.b.c") == ("a", "b", "c")


SPARK: Any = object()
"""No session gets as far as being used."""


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"format": "iceberg"}, "takes a table, NS.T, and a catalog"),
        ({"format": "iceberg", "table": "a.b"}, "takes a table, NS.T, and a catalog"),
        ({"format": "iceberg", "table": "b", "catalog": "/none"}, "named by its namespace and its name"),
        ({"format": "iceberg", "table": "a.b", "catalog": "/none"}, "/none: No such file or directory"),
        ({"format": "iceberg", "table": "a.b", "catalog": "/none", "compact": True}, "leave out compact"),
        ({"table": "a.b"}, "go with the format iceberg"),
        ({"catalog": "/none"}, "go with the format iceberg"),
        ({"format": "delta"}, "has the format parquet or iceberg, not 'delta'"),
    ],
)
def test_what_a_table_takes(wanted: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        archive(SPARK, topic="t", to="/none", **wanted)


def test_a_catalogs_file(tmp_path: Path) -> None:
    path = tmp_path / "lake.toml"
    path.write_text(
        'name = "lake"\n[properties]\ntype = "rest"\ns3.endpoint = "http://h"\n"s3.region" = "r"\n'
        "s3.path-style-access = true\ntimeout = 5\n[properties.header]\nX-A = 'b'\n"
    )
    path.chmod(0o600)
    found = CatalogFile.read(str(path))
    assert (found.name, found.properties) == (
        "lake",
        {
            "type": "rest", "s3.endpoint": "http://h", "s3.region": "r", "s3.path-style-access": "true",
            "timeout": "5", "header.X-A": "b",
        },
    )  # fmt: skip
    assert "http" not in repr(found)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = secret", "lake.toml is no TOML; correct it"),
        ("[properties]\n", 'has to hold name = "..." and a table'),
        ('name = ""\n[properties]\n', "has to hold name"),
        ('name = "lake"\n', "has to hold name"),
        ('name = "lake"\nproperties = 5\n', "has to hold name"),
        ('name = "lake"\nuri = "x"\n[properties]\n', "and nothing else"),
        (
            'name = "lake"\n[properties]\na.b = ["secret"]\n',
            "property a.b has to be a string, a whole number",
        ),
    ],
)
def test_files_that_name_no_catalog(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "lake.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(OptionError) as caught:
        CatalogFile.read(str(path))
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_catalogs_file_that_others_may_read_is_refused(lake: Lake) -> None:
    lake.file.chmod(0o640)
    with pytest.raises(OptionError, match="mode 0640, others may read it: run `chmod 600"):
        CatalogFile.read(str(lake.file))


def test_a_catalog_that_is_not_reached(lake: Lake) -> None:
    lake.write_file(uri=f"sqlite:///{lake.path}/none/catalog.db")
    with pytest.raises(JobError) as caught:
        lake.run()
    text = str(caught.value)
    assert text.startswith(f"catalog lake of {lake.file} cannot be opened (OperationalError: ")
    assert "unable to open database file" in text
    assert "\n" not in text
    assert exit_code(caught.value) == 1


def test_a_rest_catalog_that_is_not_reached(lake: Lake, unused_tcp_port: int) -> None:
    lake.write_file(type="rest", uri=f"http://127.0.0.1:{unused_tcp_port}", token="geheim-1234")
    with pytest.raises(JobError, match=r"cannot be opened \(ConnectionError: .*Connection refused") as caught:
        lake.run()
    assert "geheim" not in str(caught.value)


def test_no_warehouse_to_make_a_table_in(lake: Lake) -> None:
    del lake.properties["warehouse"]
    lake.write_file()
    with pytest.raises(
        JobError, match=r"does not make table lake\.flights, where its property warehouse says"
    ):
        lake.run()


def test_no_secret_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a library says of what it was given."""
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__OAUTH", "from-the-environment")
    properties = {
        "uri": "postgresql://me:p%40ss-word@db/lake?sslpassword=in-the-query",
        "credential": "client:client-secret",
        "s3.secret-access-key": "very-secret",
        "s3.endpoint": "http://minio:9000",
        "py-io-impl": "true",
    }
    file = CatalogFile(str(tmp_path / "lake.toml"), "lake", properties)
    said = (
        "true: p%40ss-word p@ss-word in-the-query client:client-secret client-secret very-secret from-the-environment "
        "http://other:one@h http://minio:9000\nand more: very-secret"
    )
    with pytest.raises(JobError) as caught, file.explained("fails"):
        raise ValueError(said)
    told = str(caught.value)
    for secret in (*said.split()[1:-5], "other", "and more"):
        assert secret not in told
    assert "http://minio:9000" in told
    assert "true: ***" in told
    with pytest.raises(JobError, match=r"fails \(TimeoutError\); see"), file.explained("fails"):
        raise TimeoutError
    with pytest.raises(JobError) as caught, file.explained("fails"):
        raise ValueError("x" * 5000)
    assert len(str(caught.value)) < 700
    with pytest.raises(OptionError, match="as it was"), file.explained("fails"):
        raise OptionError("as it was")


def test_without_the_extra_it_says_what_to_install(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(JobError, match=r"pip install 'penstock-spark\[iceberg\]'$"):
        lake.run()


def test_no_job_but_this_imports_pyiceberg() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, pyspark_penstock.jobs; "
            "print([n for n in sys.modules if n.split('.')[0] in ('pyiceberg', 'sqlalchemy')])",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_the_columns_are_those_that_an_archive_is_read_with() -> None:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    from pyspark_penstock.jobs.read_archive import SCHEMA

    names = [each.split()[0] for each in SCHEMA.split(", ") if not each.startswith("value: ")]
    assert schema_to_pyarrow(archive_iceberg._schema()).names == names == COLUMNS.names
