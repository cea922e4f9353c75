"""An archive's directory: manifests, leftovers, joined files, and runs killed between two of them. No Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_penstock.errors import OptionError
from pyspark_penstock.jobs import archive_compact
from pyspark_penstock.jobs.archive_compact import (
    SMALL_BYTES,
    compact_archive,
    finish_compaction,
    small_files,
)
from pyspark_penstock.jobs.archive_files import (
    ArchiveFiles,
    DataFile,
    Manifest,
    by_text,
    described,
    merged,
    move_in,
    put,
)
from pyspark_penstock.jobs.frame import JobError, quiet

QUERY = "57a06024-6a69-46ac-a419-2dd581c19d59"


def data_file(number: int, partition: int = 0, size: int = 10, folder: str = "date=2026-11-25") -> DataFile:
    return DataFile(f"{folder}/f{number}.parquet", 5, size, partition, number * 5, number * 5 + 5)


def manifest(batch_id: int, start: dict[int, int], end: dict[int, int], *files: DataFile) -> Manifest:
    return Manifest(batch_id, QUERY, "flights", "ab" * 16, start, end, files)


def test_a_manifest_read_again_is_the_same(tmp_path: Path) -> None:
    archive = ArchiveFiles.at(str(tmp_path))
    assert archive.manifests == []
    assert archive.upto() == {}
    one = manifest(0, {0: 0, 1: 0}, {0: 5, 1: 0}, data_file(0))
    archive.add(one)
    archive.add(manifest(1, {0: 5, 1: 0}, {0: 10, 1: 7}, data_file(1), data_file(2, 1)))
    again = ArchiveFiles.open(str(tmp_path), "flights")
    assert again.manifests == archive.manifests
    assert (again.rows(), len(again.files()), again.upto()) == (15, 3, {0: 10, 1: 7})
    assert again.has(QUERY, 0)
    assert again.has(QUERY, 1)
    assert not again.has(QUERY, 2)
    assert not again.has("another", 0)
    form = json.loads((archive.manifest_room / one.name).read_text())
    assert list(form) == ["batch_id", "query_id", "topic", "topic_id", "isolation", "from", "to", "files"]
    assert list(form["files"][0]) == ["path", "rows", "bytes", "partition", "from_offset", "to_offset"]


def test_joined_manifests_cover_all_and_are_the_last(tmp_path: Path) -> None:
    items = [
        manifest(1, {0: 5, 1: 0}, {0: 10, 1: 7}),
        manifest(0, {0: 0}, {0: 5}),
        manifest(2, {0: 10, 1: 7, 2: 3}, {0: 10, 1: 7, 2: 3}),
    ]
    whole = merged(items)
    assert (whole.batch_id, whole.start, whole.end) == (2, {0: 0, 1: 0, 2: 3}, {0: 10, 1: 7, 2: 3})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"batch_id": 1}', "[" * 100_000])
def test_what_is_no_manifest_is_named(tmp_path: Path, text: str) -> None:
    archive = ArchiveFiles.at(str(tmp_path))
    archive.manifest_room.mkdir(parents=True)
    (archive.manifest_room / "0.json").write_text(text)
    with pytest.raises(JobError, match=r"0\.json: this is no manifest"):
        ArchiveFiles.at(str(tmp_path))


def test_other_topics_and_topics_made_anew(tmp_path: Path) -> None:
    archive = ArchiveFiles.at(str(tmp_path))
    archive.add(manifest(0, {0: 0}, {0: 5}))
    with pytest.raises(JobError, match="is the archive of topic 'flights', not of 'orders'"):
        archive.check_topic("orders")
    archive.check_topic_id(b"\xab" * 16)
    with pytest.raises(JobError, match="made anew"):
        archive.check_topic_id(b"\xac" * 16)


@pytest.mark.parametrize("directory", ["s3://bucket/flights", "", "hdfs://x/y"])
def test_only_directories(directory: str) -> None:
    with pytest.raises(OptionError, match="an archive is a directory"):
        ArchiveFiles.at(directory)


def test_no_archive_there(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="there is no archive in"):
        ArchiveFiles.open(str(tmp_path), "flights")


def parquet(path: Path, partition: int, first: int, count: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {
            "value": pa.array([b"x"] * count, pa.binary()),
            "partition": pa.array([partition] * count, pa.int32()),
            "offset": pa.array(range(first, first + count), pa.int64()),
        }
    )
    pq.write_table(table, path, row_group_size=3)


def test_files_move_in_under_names_of_their_batch(tmp_path: Path) -> None:
    staging = tmp_path / "_penstock" / "staging"
    parquet(staging / "date=2026-11-25" / "hour=07" / "part-0.parquet", 3, 100, 7)
    parquet(staging / "date=2026-11-26" / "hour=08" / "_partition=3" / "part-1.parquet", 3, 107, 2)
    parquet(staging / "date=2026-11-26" / "hour=09" / "part-2.parquet", 3, 0, 0)
    found = list(move_in(staging, tmp_path, "57a06024-0000000000-"))
    assert [(item.path, item.rows, item.partition, item.from_offset, item.to_offset) for item in found] == [
        ("date=2026-11-25/hour=07/57a06024-0000000000-00000.parquet", 7, 3, 100, 107),
        ("date=2026-11-26/hour=08/57a06024-0000000000-00001.parquet", 2, 3, 107, 109),
    ]
    for item in found:
        assert described(tmp_path / item.path)["bytes"] == item.bytes == (tmp_path / item.path).stat().st_size


def test_leftovers_of_a_killed_batch_go_and_nothing_else(tmp_path: Path) -> None:
    archive = ArchiveFiles.at(str(tmp_path))
    prefix = archive.prefix(QUERY, 3)
    named = f"date=2026-11-25/{prefix}00000.parquet"
    others = [f"date=2026-11-25/{archive.prefix(QUERY, 4)}00000.parquet", "date=2026-11-25/somebody.parquet"]
    leftover = f"date=2026-11-26/hour=01/{prefix}00007.parquet"
    for name in (named, *others, leftover):
        parquet(tmp_path / name, 0, 0, 1)
    archive.add(manifest(2, {0: 0}, {0: 5}, replace(data_file(0), path=named)))
    archive.drop_leftovers(prefix)
    assert [(tmp_path / name).exists() for name in (named, *others, leftover)] == [True, True, True, False]


def test_which_files_are_joined() -> None:
    files = [
        data_file(0), data_file(1), data_file(2, partition=1), data_file(3, size=SMALL_BYTES),
        data_file(4, folder="date=2026-11-26"), data_file(5),
    ]  # fmt: skip
    assert small_files(files) == [[files[0], files[1], files[5]]]


@pytest.mark.parametrize("done", range(4))
def test_a_decided_compaction_is_finished_wherever_it_was_killed(tmp_path: Path, done: int) -> None:
    archive = ArchiveFiles.at(str(tmp_path))
    for number in range(3):
        parquet(tmp_path / data_file(number).path, 0, number * 5, 5)
        archive.add(manifest(number, {0: number * 5}, {0: number * 5 + 5}, data_file(number)))
    joined = replace(data_file(0), path="date=2026-11-25/joined.parquet", rows=15, to_offset=15)
    parquet(tmp_path / joined.path, 0, 0, 15)
    whole = replace(merged(archive.manifests), files=(joined,))
    note = {
        "manifest": json.loads(whole.text()),
        "manifests": [item.name for item in archive.manifests if item.name != whole.name],
        "files": [data_file(number).path for number in range(3)],
    }
    put(archive.room / "compact.json", json.dumps(note))
    if done > 0:
        put(archive.manifest_room / whole.name, whole.text())
    if done > 1:
        (archive.manifest_room / archive.manifests[0].name).unlink()
    if done > 2:
        (tmp_path / data_file(0).path).unlink()
    again = ArchiveFiles.at(str(tmp_path))
    finish_compaction(again)
    for found in (again, ArchiveFiles.at(str(tmp_path))):
        assert (found.files(), found.upto(), found.has(QUERY, 2)) == ([joined], {0: 15}, True)
    assert sorted(path.name for path in tmp_path.rglob("*.parquet")) == ["joined.parquet"]
    assert not (archive.room / "compact.json").exists()
    finish_compaction(again)


def test_a_kill_before_the_decision_changes_nothing(tmp_path: Path) -> None:
    archive = ArchiveFiles.at(str(tmp_path))
    archive.add(manifest(0, {0: 0}, {0: 5}, data_file(0)))
    (archive.room / ".compact.json.tmp").write_text("{")
    finish_compaction(archive)
    assert ArchiveFiles.at(str(tmp_path)).files() == [data_file(0)]


class JoiningSpark:
    """As much of a session as `compact_archive` uses: it reads files, and writes one per folder and partition, or
    several of `maxRecordsPerFile` rows."""

    def __init__(self, drops_rows: int = 0) -> None:
        self.read = self.write = self
        self.settings: dict[str, str] = {}
        self.conf = self
        self.written_with: list[dict[str, str]] = []
        self._drops_rows = drops_rows

    def get(self, name: str, default: str | None = None) -> str | None:
        return self.settings.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def unset(self, name: str) -> None:
        self.settings.pop(name, None)

    def option(self, name: str, value: Any) -> JoiningSpark:
        if name == "maxRecordsPerFile":
            self._most = int(value)
        elif name == "basePath":
            self._base = Path(value)
        return self

    def _same(self, *_: Any) -> JoiningSpark:
        return self

    selectExpr = withColumn = repartition = sortWithinPartitions = mode = partitionBy = _same  # noqa: N815

    def parquet(self, *paths: str) -> JoiningSpark:
        if len(paths) == 1 and "staging" in paths[0]:
            self._write(Path(paths[0]))
        else:
            self._tables: dict[tuple[str, int], list[Any]] = {}
            for path in paths:
                with pq.ParquetFile(path) as file:
                    table = file.read()
                folder = str(Path(path).parent.relative_to(self._base))
                self._tables.setdefault((folder, table.column("partition")[0].as_py()), []).append(table)
            assert len({folder.count("/") for folder, _ in self._tables}) == 1, (
                "Conflicting partition column names"
            )
        return self

    def _write(self, staging: Path) -> None:
        self.written_with.append(dict(self.settings))
        for (folder, partition), tables in self._tables.items():
            room = staging / folder / f"_partition={partition}"
            room.mkdir(parents=True)
            whole = pa.concat_tables(tables).sort_by("offset")
            whole = whole.slice(0, len(whole) - self._drops_rows)
            for first in range(0, len(whole), self._most):
                pq.write_table(whole.slice(first, self._most), room / f"part-{first:08d}.parquet")


def written(
    archive: ArchiveFiles,
    batch_id: int,
    partition: int,
    first: int,
    count: int,
    folder: str = "date=2026-11-25",
) -> None:
    """A micro-batch with one file."""
    path = archive.directory / folder / f"{archive.prefix(QUERY, batch_id)}00000.parquet"
    parquet(path, partition, first, count)
    item = DataFile(path=str(path.relative_to(archive.directory)), **described(path))
    archive.add(manifest(batch_id, {partition: first}, {partition: first + count}, item))


def held(archive: ArchiveFiles) -> list[tuple[int, int]]:
    """Partition and offset of every row, by the manifests."""
    rows = []
    for item in archive.files():
        with pq.ParquetFile(archive.directory / item.path) as file:
            table = file.read()
        columns = (table.column(name).to_pylist() for name in ("partition", "offset"))
        rows += list(zip(*columns, strict=True))
    return sorted(rows)


@pytest.fixture
def plain_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_compact, "_expression", str)


@pytest.mark.usefixtures("plain_expressions")
def test_what_was_joined_is_joined_again_without_a_new_batch_and_no_row_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files go by the mean size of all rows, so that those of small rows are small still."""
    archive = ArchiveFiles.at(str(tmp_path))
    for batch_id in range(4):
        written(archive, batch_id, batch_id % 2, batch_id // 2 * 6, 6)
    rows = held(archive)
    for target_bytes in (3, 4, 100):  # rows are taken for a byte each
        monkeypatch.setattr(archive_compact, "TARGET_BYTES", target_bytes)
        monkeypatch.setattr(archive_compact, "SMALL_BYTES", 1 << 20)
        archive.manifests = [
            replace(one, files=tuple(replace(item, bytes=item.rows) for item in one.files))
            for one in archive.manifests
        ]
        assert compact_archive(JoiningSpark(), archive, quiet) > 0  # type: ignore[arg-type]
        assert held(archive) == rows
        assert held(ArchiveFiles.at(str(tmp_path))) == rows
    named = {item.path for item in archive.files()}
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("date=*/*.parquet")} == named


@pytest.mark.usefixtures("plain_expressions")
def test_files_that_lose_rows_when_they_are_joined_stay_as_they_are(tmp_path: Path) -> None:
    archive = ArchiveFiles.at(str(tmp_path))
    for batch_id in range(2):
        written(archive, batch_id, 0, batch_id * 6, 6)
    rows = held(archive)
    with pytest.raises(JobError, match=r"2 files in .* with 12 rows came to 11 rows"):
        compact_archive(JoiningSpark(drops_rows=1), archive, quiet)  # type: ignore[arg-type]
    assert held(ArchiveFiles.at(str(tmp_path))) == rows
    # The next one clears up, and writes as the micro-batches did.
    spark = JoiningSpark()
    spark.settings["spark.sql.sources.partitionOverwriteMode"] = "dynamic"
    assert compact_archive(spark, archive, quiet) == 2  # type: ignore[arg-type]
    assert spark.written_with == [
        {
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
            "spark.sql.parquet.writeLegacyFormat": "false",
            "spark.sql.sources.partitionOverwriteMode": "static",
        }
    ]
    assert spark.settings == {"spark.sql.sources.partitionOverwriteMode": "dynamic"}
    assert held(archive) == rows
    assert len(list(tmp_path.rglob("date=*/*.parquet"))) == 1


@pytest.mark.usefixtures("plain_expressions")
def test_files_by_date_and_files_by_hour_are_joined_apart(tmp_path: Path) -> None:
    archive = ArchiveFiles.at(str(tmp_path))
    for batch_id in range(4):
        folder = "date=2026-11-25" if batch_id < 2 else "date=2026-11-25/hour=07"
        written(archive, batch_id, 0, batch_id * 6, 6, folder)
    rows = held(archive)
    assert compact_archive(JoiningSpark(), archive, quiet) == 4  # type: ignore[arg-type]
    assert held(ArchiveFiles.at(str(tmp_path))) == rows
    assert sorted(str(Path(item.path).parent) for item in archive.files()) == [
        "date=2026-11-25",
        "date=2026-11-25/hour=07",
    ]


@pytest.mark.parametrize("done", range(4))
def test_rows_are_there_once_while_a_decided_compaction_is_not_ended(tmp_path: Path, done: int) -> None:
    """Whoever reads: the run that would end it may never come."""
    archive = ArchiveFiles.at(str(tmp_path))
    for number in range(3):
        archive.add(manifest(number, {0: number * 5}, {0: number * 5 + 5}, data_file(number)))
    joined = replace(data_file(0), path="date=2026-11-25/joined.parquet", rows=15, to_offset=15)
    whole = replace(merged(archive.manifests), files=(joined,))
    others = [item.name for item in archive.manifests if item.name != whole.name]
    note = {"manifest": json.loads(whole.text()), "manifests": others, "files": []}
    put(archive.room / "compact.json", json.dumps(note))
    if done:
        put(archive.manifest_room / whole.name, whole.text())
    for name in others[: done - 1 if done else 0]:
        (archive.manifest_room / name).unlink()
    found = ArchiveFiles.open(str(tmp_path), "flights")
    assert (found.rows(), found.files(), found.upto()) == (15, [joined], {0: 15})


@pytest.mark.parametrize("moment", range(3))
def test_who_reads_while_a_compaction_is_ended_sees_one_state_or_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    archive = ArchiveFiles.at(str(tmp_path))
    for number in range(3):
        archive.add(manifest(number, {0: number * 5}, {0: number * 5 + 5}, data_file(number)))
    joined = replace(data_file(0), path="date=2026-11-25/joined.parquet", rows=15, to_offset=15)
    whole = replace(merged(archive.manifests), files=(joined,))
    note = {
        "manifest": json.loads(whole.text()),
        "manifests": [item.name for item in archive.manifests if item.name != whole.name],
        "files": [],
    }
    parse, seen = Manifest.parse, 0

    def parsed(text: str, where: str) -> Manifest:
        nonlocal seen
        found, seen = parse(text, where), seen + 1
        if seen == moment + 1:
            put(archive.room / "compact.json", json.dumps(note))
            finish_compaction(archive)
        return found

    monkeypatch.setattr(Manifest, "parse", staticmethod(parsed))
    assert ArchiveFiles.at(str(tmp_path)).rows() == 15


@pytest.mark.parametrize("text", ["", "[]", '{"manifest": {}}'])
def test_what_is_no_note_of_a_compaction_is_named(tmp_path: Path, text: str) -> None:
    archive = ArchiveFiles.at(str(tmp_path))
    archive.add(manifest(0, {0: 0}, {0: 5}, data_file(0)))
    (archive.room / "compact.json").write_text(text)
    with pytest.raises(JobError, match=r"compact\.json: this is no "):
        ArchiveFiles.at(str(tmp_path))


def noted(
    archive: ArchiveFiles, query: str, batch_id: int, start: dict[int, int], end: dict[int, int]
) -> None:
    """What Spark has in a checkpoint before it runs a micro-batch."""
    (archive.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (archive.checkpoint / "metadata").write_text(json.dumps({"id": query}))
    form = {"v": 1, "from": {"flights": by_text(start)}, "to": {"flights": by_text(end)}, "ids": {}}
    path = archive.checkpoint / "offsets" / str(batch_id)
    path.write_text(f"v1\n{{}}\n{json.dumps(form)}")


def test_a_checkpoint_that_has_lost_a_micro_batch_goes(tmp_path: Path) -> None:
    """It was put back, or its file was not on the disk when the power went; a manifest always is."""
    archive = ArchiveFiles.at(str(tmp_path))
    for batch_id in range(2):
        start, end = {0: batch_id * 5}, {0: batch_id * 5 + 5}
        noted(archive, QUERY, batch_id, start, end)
        archive.add(manifest(batch_id, start, end))
    assert archive.drop_old_checkpoint() is False
    assert archive.checkpoint.is_dir()
    (archive.checkpoint / "offsets" / "1").unlink()
    assert archive.drop_old_checkpoint() is True
    assert not archive.checkpoint.exists()
    assert archive.drop_old_checkpoint() is False


def test_a_checkpoint_with_a_commit_that_no_manifest_has_goes(tmp_path: Path) -> None:
    """Manifests were put back: from the checkpoint on, what lies between would be in no file."""
    archive = ArchiveFiles.at(str(tmp_path))
    (archive.checkpoint / "commits").mkdir(parents=True)
    assert archive.drop_newer_checkpoint("flights") is False
    for batch_id in range(3):
        start, end = {0: batch_id * 5}, {0: batch_id * 5 + 5}
        noted(archive, QUERY, batch_id, start, end)
        # Killed anywhere: planned, in, committed.
        assert archive.drop_newer_checkpoint("flights") is False
        archive.add(manifest(batch_id, start, end))
        assert archive.drop_newer_checkpoint("flights") is False
        (archive.checkpoint / "commits" / str(batch_id)).write_text("v1\n{}")
        (archive.checkpoint / "commits" / f".{batch_id}.crc").write_text("")
        assert archive.drop_newer_checkpoint("flights") is False
    (archive.manifest_room / archive.manifests[-1].name).unlink()
    archive = ArchiveFiles.at(str(tmp_path))
    assert archive.drop_old_checkpoint() is False
    assert archive.drop_newer_checkpoint("flights") is True
    assert not archive.checkpoint.exists()
    assert archive.upto() == {0: 10}
    # Without any manifest, and of a partition that none names.
    for has in ([], [manifest(0, {1: 0}, {1: 9})]):
        noted(archive, QUERY, 0, {0: 0}, {0: 5})
        (archive.checkpoint / "commits").mkdir()
        (archive.checkpoint / "commits" / "0").write_text("v1\n{}")
        archive.manifests = has
        assert archive.drop_newer_checkpoint("flights") is True


def test_a_kill_leaves_no_half_of_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With offsets 0 to 2 and the commit 0 Spark would run 2 again, and leave out 1, which no manifest has."""
    archive = ArchiveFiles.at(str(tmp_path))
    (archive.checkpoint / "commits").mkdir(parents=True)
    for batch_id in range(3):
        noted(archive, QUERY, batch_id, {0: batch_id * 5}, {0: batch_id * 5 + 5})
        (archive.checkpoint / "commits" / str(batch_id)).write_text("v1\n{}")
    archive.add(manifest(0, {0: 0}, {0: 5}))

    def killed(path: Path, **_: object) -> None:
        for commits in path.rglob("commits"):
            for batch_id in (1, 2):
                (commits / str(batch_id)).unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("pyspark_penstock.jobs.archive_files.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            archive.drop_newer_checkpoint("flights")
    assert not archive.checkpoint.exists()
    with archive.staging():
        pass
    assert not (archive.room / "staging").exists()


@pytest.mark.parametrize("text", ["", "v1\n{}\n", 'v1\n{}\n{"to": {"flights": {"0": 7}}}', "v1\n{}\n-"])
def test_a_checkpoint_with_another_end_of_a_micro_batch_that_is_in_goes(tmp_path: Path, text: str) -> None:
    archive = ArchiveFiles.at(str(tmp_path))
    noted(archive, QUERY, 0, {0: 0}, {0: 5})
    archive.add(manifest(0, {0: 0}, {0: 5}))
    (archive.checkpoint / "offsets" / "0").write_text(text)
    assert archive.drop_old_checkpoint() is True


def test_a_checkpoint_with_a_micro_batch_more_stays(tmp_path: Path) -> None:
    """It was killed before the manifest; and one of another query says nothing of these manifests."""
    archive = ArchiveFiles.at(str(tmp_path))
    noted(archive, QUERY, 0, {0: 0}, {0: 5})
    archive.add(manifest(0, {0: 0}, {0: 5}))
    noted(archive, QUERY, 1, {0: 5}, {0: 9})
    assert archive.drop_old_checkpoint() is False
    noted(archive, "another", 0, {0: 5}, {0: 9})
    assert archive.drop_old_checkpoint() is False


def test_a_micro_batch_that_is_in_is_known_by_its_offsets(tmp_path: Path) -> None:
    archive = ArchiveFiles.at(str(tmp_path))
    assert not archive.is_in(manifest(0, {0: 0}, {0: 0}))
    archive.add(manifest(0, {0: 0}, {0: 5}, data_file(0)))
    assert archive.is_in(manifest(0, {0: 0}, {0: 5}))
    assert not archive.is_in(manifest(1, {0: 5}, {0: 9}))
    assert not archive.is_in(manifest(1, {0: 5}, {0: 5}))
    assert not archive.is_in(manifest(1, {0: 5, 1: 0}, {0: 5, 1: 3}))
    # Of another query, whose checkpoint says that it has yet to be written.
    assert archive.is_in(replace(manifest(3, {0: 0}, {0: 5}), query_id="another"))


@pytest.mark.parametrize(
    "wanted",
    [
        manifest(0, {0: 0}, {0: 9}),
        manifest(1, {0: 3}, {0: 9}),
        manifest(0, {0: 5}, {0: 9}),
        manifest(0, {0: 0, 1: 0}, {0: 5, 1: 2}),
    ],
)
def test_a_micro_batch_of_which_a_part_is_in_is_neither_left_out_nor_written_twice(
    tmp_path: Path, wanted: Manifest
) -> None:
    archive = ArchiveFiles.at(str(tmp_path))
    archive.add(manifest(0, {0: 0}, {0: 5}, data_file(0)))
    with pytest.raises(JobError, match=r"other offsets than the checkpoint has: remove .*checkpoint, and"):
        archive.is_in(wanted)
