"""Jobs that write topics, through a real Spark session and the gateway in memory."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyspark_penstock.errors import OptionError
from pyspark_penstock.jobs import archive, audit, repartition, replay, windowed
from pyspark_penstock.jobs.frame import JobError
from pyspark_penstock.jobs.windowed import as_json, counted
from unit.spark.spark_stage_gateway import StageGateway

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

BEGIN_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Checkpoints go where the test is."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def memory() -> Iterator[StageGateway]:
    made = StageGateway()
    made.start()
    for name, partitions in (("flights", 2), ("copy", 3)):
        made.create(name, partitions)
    yield made
    made.stop()


def fill(memory: StageGateway, counts: tuple[int, ...], topic: str = "flights") -> None:
    for part, count in enumerate(counts):
        memory.append(topic, part, [b"%d-%d" % (part, at) for at in range(count)], timestamp_ms=BEGIN_MS)


def values(memory: StageGateway, topic: str) -> list[bytes]:
    return sorted(row["value"] for row in memory.committed(topic))


def test_a_topic_is_repartitioned_and_goes_on(
    spark: SparkSession, memory: StageGateway, tmp_path: Path
) -> None:
    fill(memory, (300, 40))
    where: dict[str, Any] = {"topic": "flights", "to": "copy", "gateway": memory.addresses[0]}
    first = repartition(spark, records_per_batch=200, partitions=3, **where)
    assert (first["ok"], first["rows"], first["to"]["flights"]) == (True, 340, {"0": 300, "1": 40})
    assert first["bytes"] == sum(len(row["value"]) + len(row["key"]) for row in memory.rows("flights"))
    audited: dict[str, Any] = {"gateway": memory.addresses[0], "compacted": False}
    equal = audit(spark, topic="flights", against="copy", keys_moved=True, **audited)
    assert equal["ok"], equal["findings"]
    memory.append("flights", 1, [b"new"])
    again = repartition(spark, **where)
    assert (again["rows"], again["from"]["flights"]) == (1, {"0": 300, "1": 40})
    assert len(values(memory, "copy")) == 341
    with pytest.raises(
        JobError, match=r"copy has been written from flights by a run whose checkpoint is not"
    ):
        repartition(spark, checkpoint=str(tmp_path / "lost"), **where)
    assert len(values(memory, "copy")) == 341
    with pytest.raises(JobError, match=r"is the checkpoint of another job \(key ''\); name another with"):
        repartition(spark, key="upper(CAST(key AS STRING))", checkpoint=first["checkpoint"], **where)


def test_a_new_key_and_bad_input(spark: SparkSession, memory: StageGateway, tmp_path: Path) -> None:
    fill(memory, (20, 5))
    where: dict[str, Any] = {"topic": "flights", "gateway": memory.addresses[0]}
    result = repartition(spark, to="copy", key="offset % 3", checkpoint=str(tmp_path / "c"), **where)
    assert result["rows"] == 25
    rows = memory.committed("copy")
    assert {row["key"] for row in rows} == {b"0", b"1", b"2"}
    assert {row["timestamp"] for row in rows} == {BEGIN_MS}
    for key in (b"0", b"1", b"2"):  # a key is in one partition
        assert len({row["partition"] for row in rows if row["key"] == key}) == 1
    cases: list[tuple[dict[str, Any], str]] = [
        ({"to": "copy", "key": "nothing + 1"}, "--key 'nothing \\+ 1' is no SQL over a record's columns: "),
        ({"to": "copy", "key": "headers"}, "a key of type array<.*> can't be written"),
        ({"to": "flights"}, "topic 'flights' can't be read and written by the same job"),
    ]
    for told, says in cases:
        with pytest.raises(OptionError, match=says) as caught:
            repartition(spark, **told, **where)
        assert "\n" not in str(caught.value)
    with pytest.raises(JobError, match="there is no topic 'none' to write to; make it first: penstock topic"):
        repartition(spark, to="none", **where)
    with pytest.raises(JobError, match="topic 'copy' has 3 partitions, not 7"):
        repartition(spark, to="copy", partitions=7, **where)
    with pytest.raises(OptionError, match="a topic has partitions, not -1"):
        repartition(spark, to="new", partitions=-1, **where)
    with pytest.raises(OptionError, match="is no SQL over"):
        repartition(spark, to="new", partitions=7, key="nothing + 1", **where)
    assert "new" not in memory.topics
    made = repartition(spark, to="new", partitions=7, **where)
    assert (made["rows"], len(memory.topics["new"].logs)) == (25, 7)
    assert values(memory, "new") == sorted(row["value"] for row in memory.rows("flights"))


def test_a_replay_in_its_order_from_topic_and_archive(
    spark: SparkSession, memory: StageGateway, tmp_path: Path
) -> None:
    fill(memory, (300, 40))
    memory.append("flights", 1, [b"late"], timestamp_ms=BEGIN_MS + 60_000)
    gateway = memory.addresses[0]
    archive(spark, topic="flights", to=str(tmp_path / "a"), gateway=gateway)
    sources: list[dict[str, Any]] = [{"topic": "flights"}, {"archive": str(tmp_path / "a")}]
    for source in sources:
        memory.create("copy", 2)
        result = replay(
            spark, to="copy", until=str(BEGIN_MS + 1), keep_partitions=True, records_per_slice=150,
            gateway=gateway, **source,
        )  # fmt: skip
        assert (result["rows"], result["rate"]) == (340, result["rows_per_s"])
        assert result["to"]["flights"] == {"0": 300, "1": 40}
        for part, count in ((0, 300), (1, 40)):
            assert [row["value"] for row in memory.committed("copy") if row["partition"] == part] == [
                b"%d-%d" % (part, at) for at in range(count)
            ]
    memory.create("copy", 2)
    late = replay(
        spark, to="copy", since="2023-11-14T22:13:21Z", archive=str(tmp_path / "a"), gateway=gateway
    )
    assert (late["rows"], values(memory, "copy")) == (1, [b"late"])
    memory.create("copy", 1)
    with pytest.raises(JobError, match="topic 'copy' has 1 partitions, and flights 2"):
        replay(spark, to="copy", topic="flights", keep_partitions=True, gateway=gateway)


def test_a_replay_in_time(spark: SparkSession, memory: StageGateway) -> None:
    fill(memory, (300, 40))
    for second in range(1, 5):
        memory.append("flights", 0, [b"x"], timestamp_ms=BEGIN_MS + second * 60_000)
    gateway = memory.addresses[0]
    memory.append("flights", 0, [b"y"], timestamp_ms=BEGIN_MS)  # out of order: goes with the one ahead of it
    assert replay(spark, topic="flights", to="copy", speed=60, gateway=gateway)["rows"] == 345
    assert len(values(memory, "copy")) == 345
    began = time.monotonic()
    memory.create("copy", 2)
    result = replay(spark, topic="flights", to="copy", rate=50, until=str(BEGIN_MS + 60_000), gateway=gateway)
    assert result["rows"] == 341
    assert time.monotonic() - began >= 340 / 50 - 1
    assert len(values(memory, "copy")) == 341


class Ended(Exception):
    """Of a run that a test ends where a kill could."""


def test_a_replay_with_a_name_goes_on(spark: SparkSession, memory: StageGateway, tmp_path: Path) -> None:
    fill(memory, (300, 40))
    gateway = memory.addresses[0]
    where: dict[str, Any] = {
        "to": "copy",
        "gateway": gateway,
        "keep_partitions": True,
        "records_per_slice": 100,
    }
    sources: list[dict[str, Any]] = [
        {"topic": "flights"},
        {"topic": "flights", "speed": 10.0},
        {"archive": str(tmp_path / "a")},
    ]
    for number, source in enumerate(sources):
        memory.create("copy", 2)
        expected = sorted(row["value"] for row in memory.rows("flights"))
        if "archive" in source:
            archive(spark, topic="flights", to=source["archive"], gateway=gateway)

        def end_now(line: str) -> None:
            raise Ended(line)

        name = f"run-{number}"
        with pytest.raises(Ended, match="slice 0, "):
            replay(spark, run=name, progress=end_now, **where, **source)
        ahead = len(values(memory, "copy"))
        assert 0 < ahead < len(expected)
        # What comes meanwhile is none of this replay's records: their offsets are those of its first start.
        memory.append("flights", 1, [b"late"], timestamp_ms=BEGIN_MS + (number + 1) * 60_000)
        result = replay(spark, run=name, **where, **source)
        assert values(memory, "copy") == expected
        assert (result["run"], result["rows"]) == (name, len(expected) - ahead)
        done = replay(spark, run=name, **where, **source)
        assert (done["rows"], values(memory, "copy")) == (0, expected)
        assert done["from"] == done["to"] == result["to"]
    again: dict[str, Any] = where | sources[-1]
    with pytest.raises(JobError, match=r"is the checkpoint of another job \(rate 0.0\); give another --run"):
        replay(spark, run=name, **(again | {"rate": 20.0}))
    with pytest.raises(
        JobError, match=r"copy has \d+ slices of run 'run-2', and .*lost does not say which: name"
    ):
        replay(spark, run=name, checkpoint=str(tmp_path / "lost"), **again)
    with pytest.raises(OptionError, match="a checkpoint belongs to a run with a name"):
        replay(spark, checkpoint=str(tmp_path / "lost"), **again)
    assert values(memory, "copy") == expected


def test_windows_equal_the_batch_query(spark: SparkSession, memory: StageGateway, tmp_path: Path) -> None:
    carriers = ["PN", "XY", None]
    for minute in range(30):
        rows = [{"carrier": carriers[at % (minute % 3 + 1)], "n": at} for at in range(7)]
        memory.append(
            "flights",
            minute % 2,
            [json.dumps(row).encode() for row in rows],
            timestamp_ms=BEGIN_MS + minute * 60_000,
        )
    gateway = memory.addresses[0]
    words: dict[str, Any] = {"group_by": "carrier", "schema": "carrier STRING, n INT"}
    result = windowed(
        spark, topic="flights", to="copy", window="10m", watermark="5 minutes", available_now=True,
        records_per_batch=60, gateway=gateway, **words,
    )  # fmt: skip
    assert (result["rows"], result["late"]) == (210, 0)
    written = sorted(values(memory, "copy"))
    assert len(written) == result["windows"] > 0
    frame = spark.read.format("penstock").options(gateway=gateway, subscribe="flights").load()
    closed = counted(frame, 600_000, words["group_by"], words["schema"]).where(
        f"unix_millis(window.end) <= {BEGIN_MS + (29 - 5) * 60_000}"
    )
    expected = sorted(row["value"].encode() for row in as_json(closed, "carrier", "field").collect())
    assert written == expected
    assert list(json.loads(written[0])) == ["start", "end", "carrier", "count"]
    assert json.loads(written[0])["start"] == "2023-11-14T22:10:00.000Z"
    told: dict[str, str]
    for told, says in (
        ({"window": "often"}, "window must be a duration like 30s"),
        ({"group_by": "none"}, "group-by 'none' is not in the schema, which has carrier, n"),
        ({"schema": "carrier STRIN"}, "schema 'carrier STRIN' is no list of columns and types"),
    ):
        given: dict[str, Any] = {"window": "10m", "watermark": "5m", **words, **told}
        with pytest.raises(OptionError, match=says):
            windowed(spark, topic="flights", to="copy", gateway=gateway, **given)
