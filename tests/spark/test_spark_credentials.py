"""Spark at gateways that sign clients in: only the path of the client file travels, and tokens are renewed.

The long form, with every job as a command on a standalone Spark: make spark-credentials-test.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from penstock.local.ports import choose_free
from support.doors import PASSWORD, Doors, client_file_text, doors_cluster
from support.kafka import create_topic, read_all
from support.spark import WAIT_S, started
from support.spark_pages import WatchedPages, pages
from support.spark_standalone import standalone_spark
from support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(7200)]

TOKEN_LIFETIME_MS = 1_000
long_form = pytest.mark.skipif(
    "PENSTOCK_SPARK_CREDENTIALS" not in os.environ, reason="of the long form: make spark-credentials-test"
)
COUNT = 2000
SPLIT = PASSWORD.index(":") + 1
CANARIES = [
    PASSWORD[SPLIT:].encode(),  # however the colon is written
    *(base64.b64encode(b"." * shift + PASSWORD.encode())[4:20] for shift in range(3)),
    b"pst1.",  # a gateway's tokens
]


def files_of(*places: Path) -> dict[str, bytes]:
    """What is in files below some places."""
    return {str(path): path.read_bytes() for place in places for path in place.rglob("*") if path.is_file()}


def check_no_canary(texts: Iterable[tuple[str, bytes]]) -> None:
    for name, text in texts:
        for canary in CANARIES:
            assert canary not in text, f"{canary!r} in {name}"


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with doors_cluster(tmp_path_factory.mktemp("doors"), TOKEN_LIFETIME_MS) as made:
        yield made


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def logged_spark(spark_jvm: None, events: Path) -> Iterator[SparkSession]:
    """With its web pages, and an event log."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("penstock-credentials")
        .config("spark.ui.enabled", "true")
        .config("spark.ui.port", "0")
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
    with pytest.raises(
        Exception,
        match=r"not allowed to describe topic open; User nobody of .*nobody.* needs the right Describe",
    ):
        read(logged_spark, doors, nobody).count()
    doors.set_user("describer", PASSWORD)
    doors.allow("describer", AclOperation.DESCRIBE, "open")
    describer = client_file(doors, tmp_path, "describer")
    with pytest.raises(
        Exception, match=r"not allowed to read topic open; User describer of .* needs the right Read"
    ):
        read(logged_spark, doors, describer).count()


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


def committed(doors: Doors, topic: str) -> Counter[bytes]:
    found = read_all(doors.kafka, topic, WAIT_S, **{"isolation.level": "read_committed"})
    return Counter(record.value for record in found)


def last_line(error: BaseException) -> str:
    return [line for line in str(error).splitlines() if "Error: " in line][-1]


@pytest.fixture(scope="module")
def writing(doors: Doors) -> None:
    """Topics that alice may write to, under every sink's name; and somebody who may read alone."""
    for topic in ("copies", "streams"):
        create_topic(doors.kafka, topic, 2)
        doors.allow("alice", AclOperation.ALL, topic)
        doors.allow("nobody", AclOperation.DESCRIBE, topic)
    doors.allow("alice", AclOperation.ALL, "*", ResourceType.TRANSACTIONAL_ID)


def test_exactly_once_by_a_file_and_no_secret_is_on_any_page(
    logged_spark: SparkSession, doors: Doors, writing: None, events: Path, tmp_path: Path
) -> None:
    file, checkpoint = client_file(doors, tmp_path), tmp_path / "checkpoint"
    gateway = ",".join(doors.addresses("grpc"))
    rows = logged_spark.range(100).selectExpr("CAST(id AS STRING) AS value")

    def write(file: Path, **options: str) -> None:
        given = {"gateway": gateway, "credentialsFile": str(file), "topic": "copies"} | options
        rows.write.format("penstock").mode("append").options(**given).save()

    for _ in range(2):
        write(file, txnAppId="signed", txnVersion="1")
    assert committed(doors, "copies") == Counter(b"%d" % number for number in range(100))
    source = logged_spark.readStream.format("penstock").options(
        gateway=gateway, subscribe="copies", startingOffsets="earliest", credentialsFile=str(file),
        isolation="read_committed",
    )  # fmt: skip

    def begin() -> Any:
        sink = source.load().writeStream.format("penstock").options(
            gateway=gateway, topic="streams", credentialsFile=str(file), checkpointLocation=str(checkpoint)
        )  # fmt: skip
        return sink.trigger(availableNow=True).start()

    assert started(begin).awaitTermination(int(WAIT_S))
    assert committed(doors, "streams") == Counter(b"%d" % number for number in range(100))
    nobody = client_file(doors, tmp_path, "nobody")
    with pytest.raises(Exception, match="not allowed") as caught:
        write(nobody, txnAppId="unsigned", txnVersion="1")
    assert re.search(
        r"GatewayError: not allowed to write as sink spark-unsigned .*; User nobody of .* needs the right Write on the "
        "transactional ids", last_line(caught.value),
    ), str(caught.value)  # fmt: skip
    address = logged_spark.sparkContext.uiWebUrl
    assert address is not None
    assert address.startswith("http://127.0.0.1:"), address
    shown = pages(address)
    print(len(shown), "pages")
    for part in (
        "/environment/",
        "/SQL/execution/?id=",
        "/StreamingQuery/statistics",
        "/api/v1/applications/",
    ):
        assert any(part in url for url in shown), (part, sorted(shown))
    assert any(b"penstock-credentials" in text for text in shown.values())
    check_no_canary(shown.items())
    check_no_canary(files_of(checkpoint, events).items())


def command(doors: Doors, file: Path, *words: str, log: Path, master: str = "local[2]") -> list[str]:
    return [
        sys.executable, "-m", "penstock.cli.main", "spark", "run", *words, "--json", "--master", master,
        "--gateway", ",".join(doors.addresses("grpc")), "--credentials-file", str(file), "--spark-log", str(log),
        "--conf", "spark.driver.memory=1g", "--conf", "spark.sql.shuffle.partitions=2",
        "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1",
        "--conf", "spark.log.level=INFO",
    ]  # fmt: skip


def called(words: list[str], state: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command; its checkpoints are in `state`, and no page of Spark is beyond this machine."""
    environment = os.environ | {
        "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "XDG_STATE_HOME": str(state)
    }  # fmt: skip
    return subprocess.run(
        words, capture_output=True, text=True, timeout=3 * WAIT_S, check=False, env=environment
    )


def check_refused(done: subprocess.CompletedProcess[str], sentence: str) -> None:
    """Exit code 1, and one line that says why."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert [line for line in done.stderr.splitlines() if "error" in line.lower() or "Traceback" in line] == [
        last
    ]
    assert re.fullmatch(f"penstock: error: .*{sentence}.*", last), last


def test_a_job_without_rights_ends_in_one_line(doors: Doors, tmp_path: Path) -> None:
    nobody, log = client_file(doors, tmp_path, "nobody"), tmp_path / "spark.log"
    done = called(command(doors, nobody, "audit", "--topic", "open", log=log), tmp_path / "state")
    check_refused(done, "not allowed to describe topic open; User nobody of .* needs the right Describe")
    assert b"Setting Spark log level" in log.read_bytes()
    check_no_canary([("the log", log.read_bytes()), ("stderr", done.stderr.encode())])


@pytest.fixture(scope="module")
def flights(doors: Doors) -> None:
    """A topic of JSON, ten minutes of it, and one record that is an hour later."""
    for user, topics in (("alice", "*"), ("reader", "flights")):
        doors.set_user(user, PASSWORD)
        right = AclOperation.ALL if user == "alice" else AclOperation.READ
        doors.allow(user, right, topics)
    doors.allow("reader", AclOperation.DESCRIBE, "copy")
    doors.allow("alice", AclOperation.ALL, "*", ResourceType.TRANSACTIONAL_ID)
    for operation in (AclOperation.CREATE, AclOperation.ALTER):
        doors.allow("alice", operation, "kafka-cluster", ResourceType.BROKER)
    for topic, partitions in (("flights", 2), ("copy", 3), ("again", 2), ("counts", 1)):
        create_topic(doors.kafka, topic, partitions)
    producer = confluent_kafka.Producer({"bootstrap.servers": doors.kafka, "linger.ms": 20})
    begin_ms = time.time_ns() // 1_000_000 - 7_200_000
    for number in range(COUNT):
        value = json.dumps({"carrier": "PN" if number % 3 else "UA", "flight": number})
        producer.produce("flights", value, str(number % 100), timestamp=begin_ms + number * 300)
    for partition in (0, 1):
        late = json.dumps({"carrier": "PN", "flight": -partition})
        producer.produce("flights", late, partition=partition, timestamp=begin_ms + 4_000_000)
    assert producer.flush(WAIT_S) == 0


JOBS = {
    "audit": (),
    "archive": ("--to", "{directory}/archive"),
    "repartition": ("--to", "copy", "--partitions", "3"),
    "replay": ("--to", "again", "--keep-partitions"),
    "windowed": (
        *("--to", "counts", "--window", "1m", "--watermark", "1m", "--group-by", "carrier"),
        *("--schema", "carrier STRING, flight INT", "--available-now"),
    ),
    "report": ("--out", "{directory}/report.html"),
}


@long_form
def test_every_job_by_a_file_and_no_secret_is_anywhere(doors: Doors, flights: None, tmp_path: Path) -> None:
    """On a standalone Spark: what driver, executors, master and workers write and show, and what jobs leave behind."""
    alice = client_file(doors, tmp_path)
    events, work = tmp_path / "events", tmp_path / "standalone"
    for directory in (events, work):
        directory.mkdir()
    said: list[tuple[str, bytes]] = []
    shown: dict[str, int] = {}
    results: dict[str, Any] = {}
    with standalone_spark(work) as master:
        logs = "".join(path.read_text() for path in work.glob("*.txt"))
        own = re.findall(r"Bound (?:Master|Worker)WebUI to \S+, and started at (http://\S+)", logs)
        assert len(own) == 3, own
        for job, options in JOBS.items():
            (port,) = choose_free(1, set())
            words = [word.format(directory=tmp_path) if "{directory}" in word else word for word in options]
            words = command(
                doors, alice, job, "--topic", "flights", *words, log=tmp_path / f"{job}.log", master=master
            )
            for setting in (
                "spark.ui.enabled=true", f"spark.ui.port={port}", "spark.eventLog.enabled=true",
                f"spark.eventLog.dir={events.as_uri()}", "spark.executor.memory=512m",
            ):  # fmt: skip
                words += ["--conf", setting]
            with WatchedPages(f"http://127.0.0.1:{port}") as watched:
                done = called(words, tmp_path / "state")
            assert done.returncode == 0, done.stdout + done.stderr
            results[job] = json.loads(done.stdout)
            shown[job] = len(watched.urls)
            said += [(f"{job}: stdout", done.stdout.encode()), (f"{job}: stderr", done.stderr.encode())]
            said += [(f"{job}: a page", text) for text in watched.texts]
            assert any("/environment/" in url for url in watched.urls), (job, watched.urls)
        said += [(url, text) for address in own for url, text in pages(address).items()]
    print("pages by job:", shown)
    wanted = Counter(record.value for record in read_all(doors.kafka, "flights"))
    assert [results[job]["findings"] for job in JOBS] == [[]] * len(JOBS)
    assert {
        job: results[job]["rows"] for job in ("audit", "archive", "repartition", "replay", "report")
    } == dict.fromkeys(("audit", "archive", "repartition", "replay", "report"), COUNT + 2)
    assert committed(doors, "copy") == committed(doors, "again") == wanted
    counts = [json.loads(value) for value in committed(doors, "counts")]
    assert sum(item["count"] for item in counts) == COUNT
    assert {item["carrier"] for item in counts} == {"PN", "UA"}
    assert "flights" in (tmp_path / "report.html").read_text()
    places = [events, work, *(tmp_path / name for name in ("archive", "state")), tmp_path / "report.html"]
    written = files_of(*(place for place in places if place.is_dir()))
    written |= {str(path): path.read_bytes() for path in (*tmp_path.glob("*.log"), tmp_path / "report.html")}
    for part in ("/app-", "/events/", "/state/penstock/spark/", "/archive/_penstock/", "audit.log"):
        assert any(part in name for name in written), (part, sorted(written)[:50])
    assert any("/stderr" in name and b"Executor" in text for name, text in written.items())
    logged = [text for name, text in written.items() if "/events/" in name]
    for job in JOBS:
        assert any(f"penstock {job}".encode() in text for text in logged), job
    print(len(written), "files,", len(said), "texts")
    check_no_canary(written.items())
    check_no_canary(said)


@long_form
@pytest.mark.parametrize("job", JOBS)
def test_every_job_without_rights(doors: Doors, flights: None, tmp_path: Path, job: str) -> None:
    words = [word.format(directory=tmp_path) if "{directory}" in word else word for word in JOBS[job]]
    nobody = client_file(doors, tmp_path, "nobody")
    done = called(
        command(doors, nobody, job, "--topic", "flights", *words, log=tmp_path / "log"), tmp_path / "state"
    )
    check_refused(done, "not allowed to describe topic flights; User nobody of .* needs the right Describe")


@long_form
def test_a_job_that_may_read_alone(doors: Doors, flights: None, tmp_path: Path) -> None:
    reader = client_file(doors, tmp_path, "reader")
    words = command(doors, reader, "repartition", "--topic", "flights", "--to", "copy", log=tmp_path / "log")
    check_refused(
        called(words, tmp_path / "state"),
        "not allowed to write .* User reader of .* needs the right Write",
    )
