"""Spark at gateways that sign clients in: only the path of the client file travels, and tokens are renewed."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.doors import PASSWORD, Doors, client_file_text, doors_cluster
from support.spark import WAIT_S, started
from support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(1800)]

TOKEN_LIFETIME_MS = 1_000


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with doors_cluster(tmp_path_factory.mktemp("doors"), TOKEN_LIFETIME_MS) as made:
        yield made


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def logged_spark(spark_jvm: None, events: Path) -> Iterator[SparkSession]:
    """With an event log, which has all that Spark's UI shows."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("penstock-credentials")
        .config("spark.ui.enabled", "false")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", events.as_uri())
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.streaming.stopTimeout", "180s")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def client_file(doors: Doors, directory: Path, user: str = "alice", password: str = PASSWORD) -> Path:
    path = directory / f"{user}.properties"
    path.touch(0o600)
    path.write_text(client_file_text(user, password, doors.files.ca))
    return path


def read(spark: SparkSession, doors: Doors, file: Path, **options: str) -> DataFrame:
    reader = spark.read.format("penstock").option("gateway", ",".join(doors.addresses("grpc")))
    return reader.option("subscribe", "open").option("credentialsFile", str(file)).options(**options).load()


def test_a_batch_by_a_file_and_its_refusals(logged_spark: SparkSession, doors: Doors, tmp_path: Path) -> None:
    doors.client("alice").produce("open", b"for the batch")
    file = client_file(doors, tmp_path)
    frame = read(logged_spark, doors, file)
    assert b"for the batch" in {bytes(row["value"]) for row in frame.collect()}
    with contextlib.redirect_stdout(io.StringIO()) as plan:
        frame.explain("formatted")
    assert PASSWORD not in plan.getvalue()
    os.chmod(file, 0o644)  # noqa: PTH101
    wrong = client_file(doors, tmp_path, "mallory")
    for refused, says in (
        (file, "chmod 600"),
        (wrong, "refused the credentials of User mallory .*; look at credentialsFile"),
        (tmp_path / "none", "No such"),
    ):
        with pytest.raises(Exception, match=says) as caught:
            read(logged_spark, doors, refused).count()
        assert PASSWORD not in str(caught.value)
    nobody = client_file(doors, tmp_path, "nobody")
    with pytest.raises(Exception, match="not allowed to describe topic open"):
        read(logged_spark, doors, nobody).count()


def test_a_stream_goes_on_over_many_tokens_and_no_secret_is_anywhere(
    logged_spark: SparkSession, doors: Doors, events: Path, tmp_path: Path
) -> None:
    file, checkpoint = client_file(doors, tmp_path), tmp_path / "checkpoint"
    seen: set[bytes] = set()
    alice = doors.client("alice")

    def sign_ins() -> float:
        found = 0.0
        for gateway in (0, 1):
            for line in doors.get("/metrics", "alice", gateway=gateway)[1].splitlines():
                if line.startswith('penstock_kafka_sign_ins_total{listener="grpc"') and "success" in line:
                    found += float(line.rpartition(" ")[2])
        return found

    def begin() -> Any:
        stream = logged_spark.readStream.format("penstock").options(
            gateway=",".join(doors.addresses("grpc")),
            subscribe="open",
            startingOffsets="earliest",
            credentialsFile=str(file),
        )
        return (
            stream.load()
            .writeStream.foreachBatch(
                lambda frame, _: seen.update(bytes(row["value"]) for row in frame.collect())
            )
            .option("checkpointLocation", str(checkpoint))
            .start()
        )

    query = started(begin)
    before, stop, sent = sign_ins(), threading.Event(), list[bytes]()

    def produce() -> None:
        while not stop.wait(0.2):
            value = f"streamed {len(sent)}".encode()
            assert alice.produce("open", value) == 0
            sent.append(value)

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        # Of the producer one each 0.6 s; the reader's come to that.
        wait_for(lambda: sign_ins() - before > 30 or not query.isActive, "tokens are renewed", WAIT_S)
    finally:
        stop.set()
        producing.join()
    wait_for(lambda: seen.issuperset(sent) or not query.isActive, "all is read", WAIT_S)
    assert query.isActive, query.exception()
    token = alice.metadata()[0][1].removeprefix("Bearer ")[:40]
    query.stop()
    places = [*checkpoint.rglob("*"), *events.rglob("*")]
    searched = b"".join(path.read_bytes() for path in places if path.is_file())
    assert b"penstock-credentials" in searched  # what may be seen is there
    assert b'{"open"' in searched
    assert PASSWORD.encode() not in searched
    assert b"pst1." not in searched
    assert token.encode() not in searched
