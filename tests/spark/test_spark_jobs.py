"""Jobs through a real Spark session, on logs that were made up batch by batch, faults included."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from pyspark_penstock.errors import OptionError
from pyspark_penstock.jobs import archive, archive_files, audit, read_archive, report
from pyspark_penstock.jobs.archive_files import ArchiveFiles
from pyspark_penstock.jobs.frame import JobError, one_line
from unit.spark.spark_stored import TRANSACTIONAL, data, marker, store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from unit.spark.spark_memory_gateway import MemoryGateway

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

Found = list[tuple[str, int, int, int, int]]


def run(spark: SparkSession, cluster: MemoryGateway, topic: str = "flights", **more: Any) -> dict[str, Any]:
    return audit(spark, topic=topic, gateway=cluster.addresses[0], **({"compacted": False} | more))


def found(result: dict[str, Any], topic: str = "flights") -> Found:
    items = [item for item in result["findings"] if item["topic"] == topic]
    return sorted(
        (item["kind"], item["partition"], item["from"], item["to"], item["count"]) for item in items
    )


def counts(result: dict[str, Any], partition: int) -> dict[str, int]:
    row = dict(result["partitions"][partition])
    assert row.pop("partition") == partition
    return {name: value for name, value in row.items() if value or name in ("first", "last", "records")}


def faulty(cluster: MemoryGateway) -> None:
    """A partition for each thing that may be the matter with one."""
    cluster.create("flights", 11)
    txn = TRANSACTIONAL
    store(cluster, "flights", 0, data(0), data(10), data(20))
    store(cluster, "flights", 1, data(0), data(20), start=0)
    store(cluster, "flights", 2, data(0), data(10, damaged=True), data(20))
    store(cluster, "flights", 3, data(0), data(8), data(18))
    store(cluster, "flights", 4, data(0, 4, last=9), data(10))
    store(cluster, "flights", 5, data(10), data(20), start=15)
    store(
        cluster, "flights", 6,
        data(0, producer=(7, 0, 0), attributes=txn), data(10, producer=(8, 0, 0), attributes=txn), data(20),
        marker(30, 7, commit=False), marker(31, 8, commit=True),
        data(32, 3, producer=(7, 0, 10), attributes=txn), marker(35, 7, commit=True),
        data(36, producer=(9, 0, 0), attributes=txn),
    )  # fmt: skip
    store(
        cluster, "flights", 7,
        data(0, producer=(5, 0, 2**31 - 4)), data(10, producer=(5, 0, 6)), data(20, producer=(5, 0, 26)),
        data(30, producer=(5, 1, 0)), data(40, producer=(5, 1, 0)), data(50, producer=(6, 0, 500)),
    )  # fmt: skip
    store(cluster, "flights", 8, data(5), start=0)
    store(cluster, "flights", 9, data(0))
    cluster.topics["flights"].logs[9].end = 25


def test_each_fault_is_found_and_nothing_else(spark: SparkSession, cluster: MemoryGateway) -> None:
    faulty(cluster)
    result = run(spark, cluster)
    assert not result["ok"]
    assert found(result) == sorted(
        [
            ("lost", 1, 10, 20, 10),
            ("crc", 2, 10, 20, 10),
            ("duplicated", 3, 8, 10, 2),
            ("sequence_gap", 7, 20, 30, 1),
            ("sequence_repeat", 7, 40, 50, 1),
            ("lost", 8, 0, 5, 5),
            ("lost", 9, 10, 25, 15),
        ]
    )
    assert [counts(result, part) for part in range(11)] == [
        {"first": 0, "last": 29, "records": 30},
        {"first": 0, "last": 29, "records": 20, "lost": 10},
        {"first": 0, "last": 29, "records": 30, "crc_errors": 1},
        {"first": 0, "last": 27, "records": 30, "duplicated": 2},
        {"first": 0, "last": 19, "records": 14, "compacted": 6},
        {"first": 15, "last": 29, "records": 15},
        {"first": 0, "last": 45, "records": 33, "control": 3, "aborted": 10},
        {"first": 0, "last": 59, "records": 60, "sequence_gaps": 1, "sequence_repeats": 1},
        {"first": 0, "last": 14, "records": 10, "lost": 5},
        {"first": 0, "last": 24, "records": 10, "lost": 15},
        {"first": 0, "last": -1, "records": 0},
    ]
    for row in result["partitions"]:
        explained = sum(
            row[name] for name in ("records", "control", "aborted", "compacted", "lost", "unreadable")
        )
        assert explained == row["last"] - row["first"] + 1 + row["duplicated"]
    assert result["rows"] == sum(row["records"] for row in result["partitions"])
    assert result["from"]["flights"]["5"] == 15
    assert result["to"]["flights"]["9"] == 25
    assert json.loads(json.dumps(result)) == result


def test_holes_of_a_compacted_topic_are_none(spark: SparkSession, cluster: MemoryGateway) -> None:
    cluster.create("flights", 2)
    store(cluster, "flights", 0, data(5, 3, last=9, producer=(1, 0, 0)), data(20, producer=(1, 0, 40)))
    cluster.topics["flights"].logs[0].end = 33
    result = run(spark, cluster, compacted=True)
    assert result["ok"]
    assert counts(result, 0) == {"first": 0, "last": 32, "records": 13, "compacted": 20}


def test_what_a_node_does_not_give_out(spark: SparkSession, cluster: MemoryGateway) -> None:
    import grpc

    cluster.create("flights", 1)
    store(cluster, "flights", 0, data(0), data(10), data(20))

    def fault(context: Any, _sent: int) -> None:
        context.abort(grpc.StatusCode.UNAVAILABLE, "the leader is gone")

    cluster.fault = fault
    from pyspark_penstock.jobs import stored

    schema = stored.SCHEMA
    frame = (
        spark.read.format("penstock")
        .options(gateway=cluster.addresses[0], subscribe="flights", rows="batches")
        .option("kafkaConsumer.pollTimeoutMs", "500")
        .schema(schema)
        .load()
    )
    (row,) = stored.explain(spark, frame, {0: 0}, {0: 30}, is_compacted=False).collect()
    assert (row["baseOffset"], row["lastOffset"], row["n_unreadable"]) == (0, 29, 30)
    assert "the leader is gone" in row["unreadable"]


def copies(cluster: MemoryGateway) -> None:
    for name in ("flights", "copy"):
        cluster.create(name, 2)
        for part in (0, 1):
            cluster.append(
                name, part, [b"value %d" % (i % 40) for i in range(60)], size=7 + part, timestamp_ms=1
            )
    cluster.append("copy", 0, [], size=1)


def test_a_copy_is_equal_however_it_is_batched(spark: SparkSession, cluster: MemoryGateway) -> None:
    copies(cluster)
    result = run(spark, cluster, against="copy")
    assert result["ok"], result["findings"]
    assert result["to"]["copy"] == {"0": 60, "1": 60}


def test_what_a_copy_has_twice_lacks_or_has_otherwise(spark: SparkSession, cluster: MemoryGateway) -> None:
    copies(cluster)
    cluster.create("copy", 2)
    values = [b"value %d" % (i % 40) for i in range(60)]
    cluster.append("copy", 0, values[:10], timestamp_ms=5)
    cluster.topics["copy"].logs[0].end = 9  # the last is written over: another value under the same key
    cluster.topics["copy"].logs[0].batches.clear()
    cluster.topics["copy"].logs[0].end = 0
    cluster.append("copy", 0, [*values[:9], b"otherwise", *values[10:]], timestamp_ms=5)
    again = cluster.topics["flights"].logs[1]
    log = cluster.topics["copy"].logs[1]
    log.batches, log.end = list(again.batches), again.end
    from unit.spark.spark_batches import Rec, encode_batch

    for rec in (Rec(60, 9, b"7", values[7]), Rec(61, 9, b"new", b"new"), Rec(62, 9, None, None)):
        log.batches.append((rec.offset, rec.offset, encode_batch([rec])))
    log.end = 63
    result = run(spark, cluster, against="copy")
    assert found(result) == [("different", 0, 9, 10, 1)]
    assert found(result, "copy") == [("duplicated", 1, 60, 61, 1), ("extra", 1, 61, 63, 2)]
    (different,) = (item for item in result["findings"] if item["kind"] == "different")
    assert different["sample"] == [{"offset": 9, "key": "9", "value": "value 9", "here": 1, "there": 0}]
    turned = audit(spark, topic="copy", against="flights", compacted=False, gateway=cluster.addresses[0])
    assert found(turned, "copy") == [
        ("different", 0, 9, 10, 1),
        ("duplicated", 1, 60, 61, 1),
        ("missing", 1, 61, 63, 2),
    ]


def test_keys_that_moved(spark: SparkSession, cluster: MemoryGateway) -> None:
    cluster.create("flights", 2)
    cluster.create("copy", 1)
    cluster.append("flights", 0, [b"a", b"b"], keys=False)
    cluster.append("flights", 1, [b"c"], keys=False)
    cluster.append("copy", 0, [b"c", b"b", b"a"], keys=False)
    assert run(spark, cluster, against="copy", keys_moved=True)["ok"]
    result = run(spark, cluster, against="copy")
    assert found(result) == [("missing", 1, 0, 1, 1)]
    assert found(result, "copy") == [("extra", 0, 0, 1, 1)]


def snapshot(directory: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in directory.rglob("*")
        if path.is_file() and "checkpoint" not in path.parts
    }


def by_manifests(directory: Path) -> list[tuple[int, int, bytes]]:
    """What another reader than Spark finds."""
    rows = []
    for path in sorted((directory / "_penstock" / "manifest").glob("*.json")):
        for item in json.loads(path.read_text())["files"]:
            table = pq.read_table(directory / item["path"], partitioning=None).to_pylist()
            assert len(table) == item["rows"]
            assert all(item["from_offset"] <= row["offset"] < item["to_offset"] for row in table)
            rows += [(row["partition"], row["offset"], row["value"]) for row in table]
    return sorted(rows)


def in_topic(cluster: MemoryGateway, lengths: tuple[int, ...]) -> list[tuple[int, int, bytes]]:
    return [(part, i, b"value %d" % i) for part, count in enumerate(lengths) for i in range(count)]


def test_an_archive_grows_by_what_is_new(spark: SparkSession, cluster: MemoryGateway, tmp_path: Path) -> None:
    cluster.create("flights", 2)
    values = [b"value %d" % i for i in range(900)]
    cluster.append("flights", 0, values[:500], timestamp_ms=1_700_000_000_000)
    cluster.append("flights", 1, values[:30], timestamp_ms=1_700_000_000_000 + 3_600_000)
    where: dict[str, Any] = {"topic": "flights", "to": str(tmp_path / "a"), "gateway": cluster.addresses[0]}
    first = archive(spark, by="hour", records_per_batch=300, **where)
    assert (first["rows"], first["ok"], first["archive"]["rows"]) == (530, True, 530)
    assert first["files_added"] == first["archive"]["files"] >= 4
    cluster.append("flights", 0, values[500:600], timestamp_ms=1_700_000_000_000)
    second = archive(spark, by="hour", compact=True, **where)
    assert (second["rows"], second["archive"]["rows"]) == (100, 630)
    assert second["archive"]["files"] == 2
    assert second["from"]["flights"] == {"0": 500, "1": 30}
    before = snapshot(tmp_path / "a")
    third = archive(spark, by="hour", compact=True, **where)
    assert (third["rows"], third["files_added"], third["archive"]) == (0, 0, second["archive"])
    assert snapshot(tmp_path / "a") == before
    assert by_manifests(tmp_path / "a") == in_topic(cluster, (600, 30))
    names = {
        str(path.parent.relative_to(tmp_path / "a")) for path in (tmp_path / "a").rglob("date=*/**/*.parquet")
    }
    assert names == {"date=2023-11-14/hour=22", "date=2023-11-14/hour=23"}
    rows = read_archive(spark, where["to"])
    assert rows.columns == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    ]
    assert rows.count() == 630
    assert run(spark, cluster, archive=where["to"])["ok"]
    cluster.create("orders")
    with pytest.raises(JobError, match="is the archive of topic 'flights'"):
        archive(spark, topic="orders", to=where["to"], gateway=cluster.addresses[0])


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata", "UTC"])
def test_an_archives_hours_are_those_of_utc_whatever_the_sessions_zone_leaves_out(
    spark: SparkSession, cluster: MemoryGateway, tmp_path: Path, zone: str
) -> None:
    """At 02:00 in Berlin on 2026-03-29, and at midnight in Sao Paulo on 2018-11-04, an hour is left out."""
    cluster.create("flights")
    times = [
        "2018-11-03T23:30",
        "2018-11-04T00:30",
        "2026-03-29T01:30",
        "2026-03-29T02:30",
        "2026-03-29T03:30",
    ]
    for time in times:
        moment = dt.datetime.fromisoformat(time).replace(tzinfo=dt.UTC)
        cluster.append("flights", 0, [b"x"], timestamp_ms=int(moment.timestamp() * 1000))
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        archive(spark, topic="flights", to=str(tmp_path / "a"), by="hour", gateway=cluster.addresses[0])
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    names = sorted(
        str(path.parent.relative_to(tmp_path / "a")) for path in (tmp_path / "a").rglob("date=*/**/*.parquet")
    )
    assert names == [f"date={time[:10]}/hour={time[11:13]}" for time in times]


class Killed(Exception):
    """Stands for a kill between two steps."""


KINDS = ["after a manifest", "among files", "before a manifest"]


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(KINDS[:2], id="one after another"),
        pytest.param(
            KINDS * 3,
            id="many",
            marks=pytest.mark.skipif(
                "PENSTOCK_SPARK_JOBS" not in os.environ, reason="of the long form: make spark-jobs-test"
            ),
        ),
    ],
)
def test_killed_anywhere_it_ends_equal(
    kinds: list[str],
    spark: SparkSession,
    cluster: MemoryGateway,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each run gets to the micro-batch behind the last one's, or is killed in it."""
    counts = (100 * len(kinds), 40 * len(kinds))
    cluster.create("flights", 2)
    for part, count in enumerate(counts):
        cluster.append("flights", part, [b"value %d" % i for i in range(count)])
    where: dict[str, Any] = {"topic": "flights", "to": str(tmp_path / "a"), "gateway": cluster.addresses[0]}
    add, put = ArchiveFiles.add, archive_files.described
    for kind in kinds:

        def adds(self: ArchiveFiles, manifest: Any, kind: str = kind) -> None:
            if kind == "before a manifest":
                raise Killed
            add(self, manifest)
            if kind == "after a manifest":
                raise Killed

        first: list[Path] = []

        def describes(path: Path, kind: str = kind, first: list[Path] = first) -> dict[str, int]:
            if kind == "among files" and first:
                raise Killed
            first.append(path)
            return put(path)

        monkeypatch.setattr(ArchiveFiles, "add", adds)
        monkeypatch.setattr(archive_files, "described", describes)
        with pytest.raises(Exception, match="Killed"):
            archive(spark, records_per_batch=140, **where)
        monkeypatch.undo()
    result = archive(spark, records_per_batch=140, **where)
    assert result["archive"]["rows"] == sum(counts)
    assert by_manifests(tmp_path / "a") == in_topic(cluster, counts)
    named = {item.path for item in ArchiveFiles.at(where["to"]).files()}
    there = {str(path.relative_to(tmp_path / "a")) for path in (tmp_path / "a").rglob("date=*/**/*.parquet")}
    assert named == there


def test_a_changed_archive_is_found(spark: SparkSession, cluster: MemoryGateway, tmp_path: Path) -> None:
    cluster.create("flights", 2)
    cluster.append("flights", 0, [b"value %d" % i for i in range(50)])
    cluster.append("flights", 1, [b"value %d" % i for i in range(20)])
    where: dict[str, Any] = {"topic": "flights", "to": str(tmp_path / "a"), "gateway": cluster.addresses[0]}
    archive(spark, **where)
    cluster.append("flights", 0, [b"not archived yet"])
    files = {item.partition: tmp_path / "a" / item.path for item in ArchiveFiles.at(where["to"]).files()}
    table = pq.read_table(files[0], partitioning=None)
    rows = table.to_pylist()
    rows[7]["value"] = b"changed"
    del rows[20:22]
    rows.append(rows[30])
    pq.write_table(type(table).from_pylist(rows, schema=table.schema), files[0])
    files[1].unlink()
    result = run(spark, cluster, archive=where["to"])
    assert found(result) == [
        ("different", 0, 7, 8, 1), ("duplicated", 0, 32, 33, 1), ("missing", 0, 20, 22, 2), ("missing", 1, 0, 20, 20),
    ]  # fmt: skip
    assert result["archive"]["behind"] == 1
    with pytest.raises(JobError, match=r"1 files of the archive in .* are gone"):
        read_archive(spark, where["to"])


def test_errors_are_one_sentence(spark: SparkSession, cluster: MemoryGateway, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="there is no topic 'none'"):
        run(spark, cluster, "none")
    with pytest.raises(OptionError, match="with another or with an archive, not with both"):
        run(spark, cluster, against="a", archive="b")
    cluster.create("flights")
    with pytest.raises(JobError, match="there is no archive in"):
        run(spark, cluster, archive=str(tmp_path))
    with pytest.raises(OptionError, match=r"the format iceberg takes a table, NS\.T, and a catalog"):
        archive(spark, topic="flights", to=str(tmp_path), format="iceberg", gateway=cluster.addresses[0])
    cluster.append("flights", 0, [b"a"])
    archive(spark, topic="flights", to=str(tmp_path / "a"), gateway=cluster.addresses[0])
    cluster.trim("flights", 0, 1)
    cluster.append("flights", 0, [b"b", b"c"])
    cluster.trim("flights", 0, 2)
    with pytest.raises(Exception, match="are gone") as caught:
        archive(spark, topic="flights", to=str(tmp_path / "a"), gateway=cluster.addresses[0])
    text = one_line(caught.value)
    assert "offsets 1 to 1 are gone" in text
    assert "\n" not in text
    assert "SQLSTATE" not in text


def test_a_report_has_the_numbers_of_the_audit(
    spark: SparkSession, cluster: MemoryGateway, tmp_path: Path
) -> None:
    cluster.create("flights", 2)
    store(cluster, "flights", 0, data(0), data(20), marker(30, 7, commit=True))
    cluster.append("flights", 1, [b"x" * 100] * 7, codec="zstd", timestamp_ms=1_700_000_500_000, keys=False)
    groups = [{"group": "g<1>", "partition": 0, "committed": 4, "end": 31, "lag": 27}]
    out = tmp_path / "flights.html"
    where: dict[str, Any] = {"topic": "flights", "gateway": cluster.addresses[0], "compacted": False}
    result = report(spark, out=str(out), groups=groups, **where)
    audited = audit(spark, **where)
    for name in ("rows", "bytes", "partitions", "findings", "from", "to", "ok"):
        assert result[name] == audited[name], name
    assert (result["job"], result["rows"], result["distinct_keys"]) == ("report", 27, 3)
    text = out.read_text()
    for shown in ("g&lt;1&gt;", "zstd", "lost", "2023-11-14 22:13:20", "64 B to 128 B: 7", "no key: 7"):
        assert shown in text, shown
    with pytest.raises(OptionError, match="is no place for a file"):
        report(spark, out=str(tmp_path / "none" / "x.html"), **where)
