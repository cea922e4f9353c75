"""All six jobs as commands, on `flights` of a cluster of real processes, with their output looked at.

`make test` runs windowed and report on a small topic, and what fails. The long form runs all of them on one topic of
PENSTOCK_SPARK_RECORDS records: make spark-jobs-test RECORDS=10000000.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.local import ports
from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster
from support.kafka import client_config, create_topic, read_all
from support.spark_jobs import command, command_at, done

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(4 * 3600)]

IS_LONG = "PENSTOCK_SPARK_JOBS" in os.environ
long = pytest.mark.skipif(not IS_LONG, reason="of the long form: make spark-jobs-test")
COUNT = int(os.environ.get("PENSTOCK_SPARK_RECORDS") or (200_000 if IS_LONG else 6_000))
PARTITIONS = 3
CARRIERS = ("9E", "AA", "B6", "DL", "UA")
BEGIN_MS = 1_700_000_000_000
SPAN_MS = 3 * 3600 * 1000
WINDOW_MS, WATERMARK_MS = 600_000, 300_000
GROUP, BEHIND = "board", 7
"""A consumer group, and how many records it has not read of each partition."""


@dataclass(frozen=True)
class Flights:
    """The topic, and what it holds: counted while it was written."""

    cluster: LocalCluster
    ends: dict[str, int]
    windows: Counter[tuple[int, str]]
    """By the begin of a window, in ms, and carrier."""
    last_ms: int


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flights]:
    with running_cluster(tmp_path_factory.mktemp("flights"), controllers=1, nodes=1, gateways=1) as cluster:
        # The records are years old, and retention would take them.
        create_topic(cluster.bootstrap, "flights", PARTITIONS, 1, retention_ms="-1")
        yield fill(cluster)


def fill(cluster: LocalCluster) -> Flights:
    """COUNT records over three hours, in their order."""
    failed: list[str] = []
    producer = Producer(
        client_config(
            cluster.bootstrap,
            **{
                "linger.ms": 50,
                "batch.size": 500_000,
                "compression.type": "zstd",
                "enable.idempotence": True,
            },
        )
    )

    def told(error: object, _: object) -> None:
        if error is not None:
            failed.append(str(error))

    windows: Counter[tuple[int, str]] = Counter()
    ends: Counter[str] = Counter()
    time_ms = BEGIN_MS
    for number in range(COUNT):
        carrier = CARRIERS[number * number % len(CARRIERS)]
        time_ms = BEGIN_MS + SPAN_MS * number // COUNT
        while True:
            try:
                producer.produce(
                    "flights",
                    b'{"carrier":"%s","flight":%d,"delay":%d}' % (carrier.encode(), number, number % 90 - 15),
                    b"%s%d" % (carrier.encode(), number % 997),
                    partition=number % PARTITIONS,
                    timestamp=time_ms,
                    on_delivery=told,
                )
                break
            except BufferError:
                producer.poll(0.05)
        windows[time_ms - time_ms % WINDOW_MS, carrier] += 1
        ends[str(number % PARTITIONS)] += 1
        if number % 1_000 == 0:
            producer.poll(0)
    assert producer.flush(600) == 0
    assert not failed, failed[:3]
    return Flights(cluster, dict(ends), windows, time_ms)


def values(cluster: LocalCluster, topic: str) -> list[bytes]:
    """Those that are committed."""
    return [
        item.value
        for item in read_all(cluster.bootstrap, topic, 600, **{"isolation.level": "read_committed"})
    ]


def test_windows_are_those_of_their_batch_query(flights: Flights, tmp_path: Path) -> None:
    create_topic(flights.cluster.bootstrap, "per-carrier", 2, 1, retention_ms="-1")
    words = command(
        flights.cluster, "windowed", "--topic", "flights", "--to", "per-carrier", "--window", "10m",
        "--watermark", "5m", "--group-by", "carrier", "--schema", "carrier STRING, delay INT", "--available-now",
        "--checkpoint", str(tmp_path / "c"),
    )  # fmt: skip
    result = done(words)
    assert (result["ok"], result["rows"], result["late"]) == (True, COUNT, 0)
    assert result["to"]["flights"] == flights.ends
    expected = {
        (iso(begin_ms), iso(begin_ms + WINDOW_MS), carrier, count)
        for (begin_ms, carrier), count in flights.windows.items()
        if begin_ms + WINDOW_MS <= flights.last_ms - WATERMARK_MS
    }
    found = [json.loads(value) for value in values(flights.cluster, "per-carrier")]
    assert len(found) == result["windows"] == len(expected) > 0
    assert {(row["start"], row["end"], row["carrier"], row["count"]) for row in found} == expected
    print(f"windowed: {result['rows']} rows in {result['seconds']} s, {result['windows']} windows")


def iso(at_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(at_ms // 1000))


def test_a_report_of_the_topic_and_of_who_reads_it(flights: Flights, tmp_path: Path) -> None:
    consumer = Consumer(client_config(flights.cluster.bootstrap, **{"group.id": GROUP}))
    try:
        at = [TopicPartition("flights", int(part), end - BEHIND) for part, end in flights.ends.items()]
        consumer.commit(offsets=at, asynchronous=False)
    finally:
        consumer.close()
    out = tmp_path / "flights.html"
    words = ("report", "--topic", "flights", "--out", str(out), "--bootstrap", flights.cluster.bootstrap)
    result = done(command(flights.cluster, *words))
    assert (result["ok"], result["rows"], result["findings"]) == (True, COUNT, [])
    assert result["to"]["flights"] == flights.ends
    assert [row["records"] for row in result["partitions"]] == list(flights.ends.values())
    page = out.read_text()
    for shown in (GROUP, "zstd", "2023-11-15 01:", f"{COUNT:,}"):
        assert shown in page, shown
    lags = page[page.index(GROUP) :]
    assert lags.count(f">{BEHIND}<") >= PARTITIONS, "the lag of each partition"
    print(f"report: {result['rows']} rows in {result['seconds']} s, {out.stat().st_size} bytes")


def test_what_fails_says_so_in_one_line(flights: Flights) -> None:
    (port,) = ports.choose_free(1, set())
    told = done(command_at(f"127.0.0.1:{port}", "audit", "--topic", "flights"), 3)
    assert told.splitlines()[-1].startswith("penstock: error: no gateway "), told
    assert f"127.0.0.1:{port}" in told
    told = done(command(flights.cluster, "audit", "--topic", "departures"), 1)
    assert told.splitlines() == [
        "penstock: error: there is no topic 'departures'; create it first, or correct the name"
    ]


@long
def test_an_archive_and_nothing_new(flights: Flights, tmp_path: Path) -> None:
    words = command(flights.cluster, "archive", "--topic", "flights", "--to", str(tmp_path / "a"))
    first = done(words)
    assert (first["rows"], first["archive"]["rows"], first["to"]["flights"]) == (COUNT, COUNT, flights.ends)
    before = files(tmp_path / "a")
    again = done(words)
    assert (again["rows"], again["files_added"]) == (0, 0)
    assert files(tmp_path / "a") == before
    assert rows_by_manifests(tmp_path / "a") == COUNT
    audited = done(command(flights.cluster, "audit", "--topic", "flights", "--archive", str(tmp_path / "a")))
    assert (audited["rows"], audited["findings"]) == (COUNT, [])
    print(f"archive: {first['rows']} rows in {first['seconds']} s; audit with it: {audited['seconds']} s")
    create_topic(flights.cluster.bootstrap, "from-archive", PARTITIONS, 1, retention_ms="-1")
    replayed = done(
        command(
            flights.cluster,
            "replay",
            "--archive",
            str(tmp_path / "a"),
            "--to",
            "from-archive",
            "--keep-partitions",
        )
    )
    assert replayed["rows"] == COUNT
    check_copy(flights.cluster, "from-archive")
    print(f"replay from it: {replayed['rows']} rows in {replayed['seconds']} s")


def files(directory: Path) -> dict[str, tuple[int, int]]:
    """All but the checkpoint's: size and time of change."""
    return {
        str(path.relative_to(directory)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file() and "checkpoint" not in path.relative_to(directory).parts
    }


def rows_by_manifests(directory: Path) -> int:
    manifests = [
        json.loads(path.read_text()) for path in (directory / "_penstock" / "manifest").glob("*.json")
    ]
    paths = [item["path"] for one in manifests for item in one["files"]]
    return sum(pq.ParquetFile(directory / path).metadata.num_rows for path in paths)


def check_copy(cluster: LocalCluster, topic: str, *more: str) -> None:
    words = ("audit", "--topic", "flights", "--against", topic, "--isolation", "read_committed", *more)
    result = done(command(cluster, *words))
    assert (result["rows"], result["findings"]) == (COUNT, [])


@long
def test_a_repartition_and_an_audit_against_it(flights: Flights, tmp_path: Path) -> None:
    words = command(
        flights.cluster, "repartition", "--topic", "flights", "--to", "flights-7", "--partitions", "7",
        "--checkpoint", str(tmp_path / "c"),
    )  # fmt: skip
    result = done(words)
    assert (result["rows"], result["to"]["flights"]) == (COUNT, flights.ends)
    assert done(words)["rows"] == 0
    check_copy(flights.cluster, "flights-7", "--keys-moved")
    print(f"repartition: {result['rows']} rows in {result['seconds']} s")


@long
def test_a_replay_that_is_killed_and_goes_on(flights: Flights, tmp_path: Path) -> None:
    """Each time at a random moment; PENSTOCK_SPARK_SEED repeats them."""
    seed = int(os.environ.get("PENSTOCK_SPARK_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"PENSTOCK_SPARK_SEED={seed}")
    dice = random.Random(seed)
    create_topic(flights.cluster.bootstrap, "again", PARTITIONS, 1, retention_ms="-1")
    # Slices of 5 s, some 6 of them, so that kills fall before, in and between them.
    words = command(
        flights.cluster, "replay", "--topic", "flights", "--to", "again", "--rate", str(COUNT / 30),
        "--keep-partitions", "--run", "monday", "--checkpoint", str(tmp_path / "c"),
    )  # fmt: skip
    for _ in range(int(os.environ.get("PENSTOCK_SPARK_KILLS", "5"))):
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
            try:
                code = process.wait(dice.uniform(8, 40))
                log.seek(0)
                assert code == 0, log.read().decode(errors="replace")
                print("ended before its kill")
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    result = done(words)
    assert (result["ok"], result["to"]["flights"]) == (True, flights.ends)
    assert done(words)["rows"] == 0
    check_copy(flights.cluster, "again")
    print(f"replay: the last run wrote {result['rows']} rows in {result['seconds']} s")
