"""An archive's directory: manifests, leftovers, joined files, and runs killed between two of them. No Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_penstock.errors import OptionError
from pyspark_penstock.jobs.archive_compact import SMALL_BYTES, finish_compaction, small_files
from pyspark_penstock.jobs.archive_files import (
    ArchiveFiles,
    DataFile,
    Manifest,
    described,
    merged,
    move_in,
    put,
)
from pyspark_penstock.jobs.frame import JobError

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
