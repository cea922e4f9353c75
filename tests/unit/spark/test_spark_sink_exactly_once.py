"""Tasks and a driver of exactly-once writing to a gateway, without Spark: what each is told, and what readers see."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, StructField, StructType

from pyspark_penstock.encode import Rows, encode_batches
from pyspark_penstock.errors import GatewayError, OptionError, PenstockError
from pyspark_penstock.jobs.frame import Cluster, JobError
from pyspark_penstock.jobs.writing import Checkpoint, Target
from pyspark_penstock.sink import calls
from pyspark_penstock.sink.options import SinkOptions, parse_sink_options
from pyspark_penstock.sink.producer import Producer, StageEndedError
from pyspark_penstock.sink.protocol import BeginStage, CommitUnit, Entry, RefusedUnitError, Triple, Unit
from pyspark_penstock.sink.units import Task, current_task, planned_from, terms_of, unit_of
from pyspark_penstock.sink.writer import BatchWriter, StreamWriter, stream_writer
from unit.spark.spark_stage_gateway import StageGateway, unimplemented

QUERY = "4b5c"
GIVEN = {"gateway": "127.0.0.1:9094", "topic": "t"}


@pytest.fixture
def cluster() -> Iterator[StageGateway]:
    memory = StageGateway()
    memory.start()
    memory.create("t", 3)
    yield memory
    memory.stop()


def stream(cluster: StageGateway, **given: str) -> StreamWriter:
    options = parse_sink_options({"gateway": ",".join(cluster.addresses), "topic": "t", **given})
    writer = pickle.loads(pickle.dumps(StreamWriter(options)))
    assert isinstance(writer, StreamWriter)
    return writer


def batch(cluster: StageGateway, single: str = "a1", **given: str) -> BatchWriter:
    options = parse_sink_options({"gateway": cluster.addresses[0], "topic": "t", **given}, single=single)
    return BatchWriter(options)


def table(count: int, first: int = 0, **columns: Any) -> Any:
    values = pa.array([b"%d" % at for at in range(first, first + count)], pa.binary())
    return pa.RecordBatch.from_pydict({"value": values, **columns})


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Says which task Spark runs from now on."""

    def set_task(partition: int = 0, attempt: int = 0, query: str = QUERY, number: int = 0) -> None:
        monkeypatch.setattr(
            "pyspark_penstock.sink.writer.current_task", lambda: Task(partition, attempt, query, number)
        )

    return set_task


def values(cluster: StageGateway) -> list[int]:
    return sorted(int(row["value"]) for row in cluster.committed("t"))


# -- options and units --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"delivery": "sometimes"}, "option delivery must be exactly-once or at-least-once, not 'sometimes'"),
        ({"delivery": "at-least-once", "sinkId": "s"}, "option sinkId belongs to delivery=exactly-once; lea"),
        ({"sinkId": "a b"}, "option sinkId must be 1 to 200 letters, digits, and char.*, not 'a b'"),
        ({"sinkId": ""}, "option sinkId must be"),
        ({"sinkTakeover": "perhaps"}, "option sinkTakeover must be true or false"),
        ({"txnAppId": "a"}, "option txnAppId is given without txnVersion; give both, or neither"),
        ({"txnVersion": "1"}, "option txnVersion is given without txnAppId"),
        ({"txnAppId": "a", "txnVersion": "x"}, "option txnVersion must be a whole number"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "option txnVersion must be between 0 and"),
        ({"txnAppId": "a b", "txnVersion": "1"}, "option txnAppId must be 1 to 190 letters"),
        ({"stagingTimeoutMs": "5"}, "option stagingTimeoutMs must be between 1000 and"),
        ({"sinkld": "x"}, "unknown option sinkld; did you mean sinkId?"),
    ],
)
def test_refused_options(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parse_sink_options(GIVEN | given, single="one")


def test_a_version_is_for_batch_writes() -> None:
    with pytest.raises(
        OptionError, match=r"option txnAppId is for batch writes: a stream has its query's id.*leave"
    ):
        parse_sink_options(GIVEN | {"txnAppId": "a", "txnVersion": "1"})


def test_exactly_once_is_the_default() -> None:
    parsed = parse_sink_options(GIVEN, single="one")
    assert (parsed.exactly_once, parsed.staging_timeout_ms, parsed.single) == (True, 900_000, "one")
    plain = parse_sink_options(GIVEN | {"delivery": "at-least-once"}, single="one")
    assert (plain.exactly_once, plain.single) == (False, "")


def test_which_unit_a_task_writes() -> None:
    in_stream, outside = Task(query=QUERY, batch=7), Task()
    plain, named = SinkOptions(("g:1",), single="a1"), SinkOptions(("g:1",), sink="s", single="a1")
    versioned = SinkOptions(("g:1",), version=("app", 3), single="a1")
    assert unit_of(plain, in_stream, streaming=True) == Unit(f"spark-{QUERY}", QUERY, 7)
    assert unit_of(named, in_stream, streaming=True) == Unit("s", QUERY, 7)
    assert unit_of(named, in_stream, streaming=False) == Unit("s", QUERY, 7)
    assert unit_of(versioned, in_stream, streaming=False) == Unit("spark-app", "app", 3)
    assert unit_of(versioned, outside, streaming=False) == Unit("spark-app", "app", 3)
    single = unit_of(plain, outside, streaming=False)
    assert single == Unit("spark-a1", "a1", 0)
    assert [terms_of(plain, unit).once for unit in (single, Unit("s", QUERY, 7), None)] == [
        True, False, False,
    ]  # fmt: skip
    assert current_task() == Task()


@pytest.mark.parametrize(
    ("options", "task", "streaming", "says"),
    [
        (SinkOptions(("g:1",)), Task(), True, "Spark does not tell this task which query"),
        (
            SinkOptions(("g:1",)),
            Task(query=QUERY, batch=-1),
            True,
            "does not tell this task which query and micro",
        ),
        (SinkOptions(("g:1",), sink="s"), Task(query=QUERY, batch=-1), False, "give each its own txnAppId"),
        (
            SinkOptions(("g:1",), single="a"),
            Task(query=QUERY),
            False,
            "in foreachBatch is repeated with.*txnAppId",
        ),
        (
            SinkOptions(("g:1",), sink="s", single="a"),
            Task(),
            False,
            "option sinkId is given for a batch wri",
        ),
    ],
)
def test_writes_without_a_unit_are_refused(
    options: SinkOptions, task: Task, streaming: bool, says: str
) -> None:
    with pytest.raises(OptionError, match=says):
        unit_of(options, task, streaming=streaming)


# -- a stream -----------------------------------------------------------------------------------


def test_a_micro_batch_counts_with_its_commit(cluster: StageGateway, task: Any) -> None:
    writer = stream(cluster)
    messages: list[Any] = []
    for partition in range(2):
        task(partition)
        messages.append(writer.write(iter([table(100, partition * 100), table(50, 200 + partition * 50)])))
    task(2)
    messages.append(writer.write(iter([])))
    assert values(cluster) == []
    assert sorted(cluster.open_stages()) == [f"spark-{QUERY}-0-0-0", f"spark-{QUERY}-1-0-0"]
    assert all(len(pickle.dumps(message)) < 1000 for message in messages)
    writer.commit(messages, 0)
    assert values(cluster) == list(range(300))
    assert sum(said.rows for said in cluster.rows_said) == 300
    assert {said.partition for said in cluster.rows_said} <= {0, 1, 2}
    assert cluster.once == [False]


def test_a_repeated_micro_batch_is_read_no_further_and_told(
    cluster: StageGateway, task: Any, caplog: pytest.LogCaptureFixture
) -> None:
    writer = stream(cluster, sinkId="s")
    task()
    writer.commit([writer.write(iter([table(10)]))], 0)

    def rows() -> Iterator[Any]:
        yield pa.RecordBatch.from_pydict({"value": pa.array([b"x" * (5 << 20)])})
        pytest.fail("it was read further")

    message = writer.write(rows())
    with caplog.at_level(logging.WARNING, "pyspark_penstock"):
        writer.commit([message], 0)
    assert values(cluster) == list(range(10))
    assert "sink s has micro-batch 0 of 4b5c already: micro-batch 0 was skipped" in caplog.text


def test_losers_and_tasks_that_fail_leave_nothing_open(cluster: StageGateway, task: Any) -> None:
    writer = stream(cluster)
    task()
    loser = writer.write(iter([table(10)]))

    def fails() -> Iterator[Any]:
        large = pa.array([b"x" * (5 << 20)])
        yield pa.RecordBatch.from_pydict({"value": large, "timestamp": pa.array([5.0])})
        assert len(cluster.open_stages()) == 2
        yield table(1, timestamp=pa.array([-5.0]))

    task(attempt=1)
    with pytest.raises(PenstockError, match="before 1970"):
        writer.write(fails())
    assert cluster.open_stages() == [f"spark-{QUERY}-0-0-0"]
    task(attempt=2)
    winner = writer.write(iter([table(10)]))
    writer.commit([winner], 0)
    assert cluster.open_stages() == []
    assert values(cluster) == list(range(10))
    # The loser's commit, of a driver that wakes: the micro-batch is decided, and that is a success.
    writer.commit([loser], 0)
    task(number=1)
    given_up = writer.write(iter([table(10)]))
    writer.abort([given_up, None], 1)
    assert cluster.open_stages() == []
    assert values(cluster) == list(range(10))


def test_a_stage_that_cannot_be_aborted_keeps_no_other_from_it(
    cluster: StageGateway, task: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = stream(cluster, sinkId="s")
    messages: list[WriterCommitMessage | None] = []
    for partition in range(4):
        task(partition)
        messages.append(writer.write(iter([table(10)])))

    def denied(_: Any, request: Any) -> tuple[int, str] | None:
        name = getattr(request, "triple", None) and request.triple.transactional_id
        return {"s-1-0-0": (53, "no right"), "s-2-0-0": (53, "none either")}.get(name or "")

    cluster.stage_fault = denied
    with caplog.at_level(logging.WARNING, "pyspark_penstock"):
        writer.abort(messages, 0)
    assert cluster.open_stages() == ["s-1-0-0", "s-2-0-0"]
    assert (
        "stages of a write that failed, 2, end by stagingTimeoutMs: not allowed to write as sink s (no right)"
        in (caplog.text)
    )
    # Where nobody answers Spark is held up once, and not once for each stage.
    asked: list[str] = []

    def not_yet(_: Any, request: Any) -> tuple[int, str]:
        asked.append(request.triple.transactional_id)
        return 15, "not yet"

    cluster.stage_fault = not_yet
    monkeypatch.setattr("pyspark_penstock.sink.staging.ABORTS_BUDGET_MS", 0)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "pyspark_penstock"):
        writer.abort(messages, 0)
    assert asked == ["s-0-0-0"]
    assert "stages of a write that failed, 4, end by stagingTimeoutMs" in caplog.text


def test_a_stage_that_ended_before_its_commit_is_a_micro_batch_that_failed(
    cluster: StageGateway, task: Any
) -> None:
    writer = stream(cluster, sinkId="s")
    task()
    message = writer.write(iter([table(10)]))
    cluster.time_out()
    with pytest.raises(
        RefusedUnitError, match=r"micro-batch 0 of sink s was not committed, for stage s-0-0-0 had ended"
    ):
        writer.commit([message], 0)
    writer.abort([message], 0)
    writer.commit([writer.write(iter([table(10)]))], 0)
    assert values(cluster) == list(range(10))


def test_a_stage_that_ends_while_rows_come_is_a_task_that_failed(cluster: StageGateway, task: Any) -> None:
    writer = stream(cluster, sinkId="s")
    task()

    def rows() -> Iterator[Any]:
        for _ in range(2):
            yield pa.RecordBatch.from_pydict({"value": pa.array([b"x" * (5 << 20)])})
            cluster.time_out()

    with pytest.raises(
        StageEndedError, match=r"^stage s-0-0-0 has ended \(.*EPOCH.*stagingTimeoutMs.*Spark repeats the task"
    ):
        writer.write(rows())


def test_another_query_and_an_older_micro_batch_are_refused(cluster: StageGateway, task: Any) -> None:
    writer = stream(cluster, sinkId="s")
    task(number=5)
    writer.commit([writer.write(iter([table(10)]))], 5)
    task(number=4)
    with pytest.raises(RefusedUnitError, match="sink s has micro-batch 5 of this query, and this is 4"):
        writer.write(iter([table(10)]))
    task(query="other")
    with pytest.raises(RefusedUnitError, match=r"belongs to query 4b5c, and this is other;.*sinkTakeover"):
        writer.write(iter([table(10)]))
    taking = stream(cluster, sinkId="s", sinkTakeover="true")
    taking.commit([taking.write(iter([table(10, 10)]))], 0)
    assert values(cluster) == list(range(20))


def planned(directory: Path, number: int, words: str) -> Path:
    path = directory / "offsets" / str(number)
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"v1\n{words}")
    return path


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_a_micro_batch_that_was_planned_anew_from_other_input_is_not_left_out(
    cluster: StageGateway, task: Any, tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint that lost its last micro-batch with the power: what came between would be in neither."""
    writer = stream(cluster, sinkId="s", checkpointLocation=form.format(tmp_path))
    planned(tmp_path, 3, '{"to":10}')
    task(number=3)
    writer.commit([writer.write(iter([table(10)]))], 3)
    with caplog.at_level(logging.WARNING, "pyspark_penstock"):
        writer.commit([writer.write(iter([table(10)]))], 3)
    assert "sink s has micro-batch 3 of 4b5c already" in caplog.text
    late: WriterCommitMessage | None = writer.write(iter([table(15)]))
    empty: WriterCommitMessage | None = writer.write(iter([]))
    planned(tmp_path, 3, '{"to":15}')
    for messages in ([late], [late, empty], [empty]):
        with pytest.raises(
            RefusedUnitError,
            match=r"^sink s has micro-batch 3 of this query, which was made of other input: the che",
        ) as told:
            writer.commit(messages, 3)
        assert "\n" not in str(told.value)
    assert values(cluster) == list(range(10))
    beside = stream(cluster, sinkId="s2", checkpointLocation=form.format(tmp_path))
    beside.commit([beside.write(iter([table(15)]))], 3)
    assert len(values(cluster)) == 25


@pytest.mark.parametrize("kept", [b"", b"\x02of a later form"])
def test_a_sink_that_tells_no_input_or_one_of_another_form_is_believed(
    cluster: StageGateway, task: Any, tmp_path: Path, kept: bytes
) -> None:
    writer = stream(cluster, sinkId="s", checkpointLocation=str(tmp_path))
    planned(tmp_path, 0, "one")
    task()
    writer.commit([writer.write(iter([table(10)]))], 0)
    assert cluster.last["s"].input == planned_from(str(tmp_path), 0)
    cluster.last["s"].input = kept
    planned(tmp_path, 0, "other")
    writer.commit([writer.write(iter([table(10)]))], 0)
    assert values(cluster) == list(range(10))


def test_what_a_micro_batch_was_planned_from(tmp_path: Path) -> None:
    one = planned(tmp_path, 7, "one")
    digest = planned_from(str(tmp_path), 7)
    assert (len(digest), digest[:1]) == (17, b"\x01")
    assert planned_from(f"FILE:{tmp_path}", 7) == digest
    one.write_text("another")
    assert planned_from(str(tmp_path), 7) not in (b"", digest)
    one.write_text("")
    for directory in ("", "hdfs://namenode/c", "s3a://bucket/c", f"{tmp_path}/none", "\0"):
        assert planned_from(directory, 7) == b""
    assert planned_from(str(tmp_path), 7) == b""
    assert planned_from(str(tmp_path), 8) == b""


# -- batches ------------------------------------------------------------------------------------


def test_a_single_write_and_a_version(
    cluster: StageGateway, task: Any, caplog: pytest.LogCaptureFixture
) -> None:
    task(query="")
    single = batch(cluster)
    single.commit([single.write(iter([table(10)]))])
    assert (cluster.once, list(cluster.last)) == ([True], ["spark-a1"])
    for version, first in ((2, 10), (2, 99), (1, 99), (3, 20)):
        writer = batch(cluster, f"b{version}", txnAppId="app", txnVersion=str(version))
        writer.commit([writer.write(iter([table(10, first)]))])
    assert values(cluster) == list(range(30))
    assert "sink spark-app has txnVersion 2 of app already: txnVersion 1 was skipped" in caplog.text
    assert cluster.once == [True, False, False]
    assert cluster.open_stages() == []


# -- whatever breaks ----------------------------------------------------------------------------


def test_a_gateway_that_dies_costs_no_task_and_no_row(cluster: StageGateway, task: Any) -> None:
    cluster.start()
    now: str | None = None
    trouble = iter(([None, "lose", "refuse", "abort", None, None, "late"] * 30) + [None] * 10_000)

    def refuse(context: Any, _: Any) -> tuple[int, str] | None:
        nonlocal now
        now = next(trouble)
        if now == "abort":
            context.abort(grpc.StatusCode.UNAVAILABLE, "going down")
        return {"refuse": (6, "NOT_LEADER_OR_FOLLOWER"), "late": (51, "CONCURRENT_TRANSACTIONS")}.get(
            now or ""
        )

    def lose(context: Any, _: Any) -> None:
        if now == "lose":
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone before it answered")

    cluster.refuse, cluster.lose = refuse, lose
    task()
    options = parse_sink_options({"gateway": ",".join(["127.0.0.1:1", *cluster.addresses]), "topic": "t"})
    calls_made = calls.SinkCalls(options.gateways)
    begun = calls_made.begin(BeginStage(Unit("s", "q", 0), 0, 0, 900_000))
    producer = Producer(options.gateways, stage=begun.triple)
    for first in range(0, 5000, 500):
        keyless = pa.array([b"%d" % at for at in range(first, first + 500)])
        rows = Rows(None, keyless, np.full(500, 5))
        sequences = producer.sequences("t")
        producer.send("t", encode_batches(rows, np.arange(500) % 3, batch_bytes=1000, sequences=sequences))
    producer.flush()
    producer.close()
    assert begun.triple is not None
    calls_made.commit(CommitUnit(Unit("s", "q", 0), (begun.triple,)))
    found = [int(row["value"]) for row in cluster.committed("t")]
    assert sorted(found) == list(range(5000))
    assert cluster.repeats > 0
    for partition in range(3):
        there = [int(row["value"]) for row in cluster.rows("t") if row["partition"] == partition]
        assert there == sorted(there)


def test_too_large_batches_of_a_stage_are_cut_in_their_place(cluster: StageGateway, task: Any) -> None:
    cluster.batch_bytes_max = 20_000
    writer = stream(cluster)
    task()
    zeros = pa.array([0] * 5000, pa.int32())
    writer.commit([writer.write(iter([table(5000, partition=zeros)]))], 0)
    assert [int(row["value"]) for row in cluster.committed("t")] == list(range(5000))


def test_a_sequence_that_is_known_is_a_success(cluster: StageGateway, task: Any) -> None:
    cluster.refuse = lambda *_: (46, "DUPLICATE_SEQUENCE_NUMBER")
    writer = stream(cluster)
    task()
    writer.write(iter([table(5)]))


def test_a_place_that_stays_lost_ends_the_task(cluster: StageGateway) -> None:
    cluster.refuse = lambda *_: (45, "OUT_OF_ORDER_SEQUENCE_NUMBER")
    producer = Producer(cluster.addresses, stage=Triple("s-0-0-0", 1, 0), missing_grace_ms=200)
    rows = Rows(None, pa.array([b"v"]), np.full(1, 5))
    producer.send("t", encode_batches(rows, np.zeros(1, np.int64), sequences=producer.sequences("t")))
    with pytest.raises(StageEndedError, match=r"stage s-0-0-0 has ended \(t-0: OUT|OUT_OF_ORDER"):
        producer.flush()


def test_a_decision_whose_answer_was_lost_is_asked_for_again(cluster: StageGateway, task: Any) -> None:
    lost = iter([True])

    def after(context: Any) -> None:
        if next(lost, False):
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone before it answered")

    cluster.after_commit = after
    writer = stream(cluster)
    task()
    writer.commit([writer.write(iter([table(10)]))], 0)
    assert values(cluster) == list(range(10))
    assert len(cluster.once) == 1


def test_the_driver_finds_gateways_that_nobody_configured(
    cluster: StageGateway, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_known", {})
    cluster.start()
    writer = BatchWriter(parse_sink_options({"gateway": cluster.addresses[0], "topic": "t"}, single="a1"))
    task(query="")
    first = writer.write(iter([table(10)]))
    calls.SinkCalls([cluster.addresses[0]]).learn()
    cluster.stop_one(0)
    writer.commit([first])
    assert values(cluster) == list(range(10))


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        (
            (35, "transaction.version is 1"),
            GatewayError,
            r"^the cluster can't write exactly once \(trans.*transaction.version=2",
        ),
        (
            (53, "User:bob may not"),
            GatewayError,
            r"^not allowed to write as sink s \(User:bob.*who comes without .* Write on",
        ),
        (
            (50, "900000 is above it"),
            OptionError,
            "^option stagingTimeoutMs is not taken.*give less, or raise",
        ),
        ((42, "what is this"), PenstockError, "^sink s: what is this$"),
    ],
)
def test_refusals_of_the_broker_are_one_sentence(
    cluster: StageGateway, task: Any, fault: tuple[int, str], kind: type[Exception], says: str
) -> None:
    cluster.stage_fault = lambda *_: fault
    task()
    with pytest.raises(kind, match=says) as caught:
        stream(cluster, sinkId="s").write(iter([table(5)]))
    assert len(str(caught.value).splitlines()) == 1


def test_older_gateways_are_named_and_a_newer_one_among_them_is_found(
    cluster: StageGateway, task: Any
) -> None:
    task()
    cluster.stage_fault = unimplemented
    with pytest.raises(
        GatewayError, match=r"^gateways of an older build, .* answer at 127.*; upgrade them, or set option"
    ):
        stream(cluster).write(iter([table(5)]))
    asked = iter([unimplemented])
    cluster.start()
    cluster.stage_fault = lambda context, call: next(asked, lambda *_: None)(context, call)
    stream(cluster).write(iter([table(5)]))
    assert len(cluster.open_stages()) == 1


def test_who_finds_no_coordinator_says_what_was_told_last(
    cluster: StageGateway, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "BEGIN_BUDGET_MS", 200)
    cluster.stage_fault = lambda *_: (15, "COORDINATOR_NOT_AVAILABLE")
    task()
    with pytest.raises(GatewayError, match=r"sink s: 127.*COORDINATOR_NOT_AVAILABLE; gateways answer at"):
        stream(cluster, sinkId="s").write(iter([table(5)]))


def test_the_only_gateway_that_is_configured_may_go_once_the_driver_has_begun(
    cluster: StageGateway, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks, and the process that commits, know others from the one that made the writer."""
    cluster.start()
    given = {"gateway": cluster.addresses[0], "topic": "t"}
    made = pickle.dumps(stream_writer(given, StructType([StructField("value", BinaryType())])))
    cluster.stop_one(0)
    for name in ("BEGIN_BUDGET_MS", "COMMIT_BUDGET_MS"):
        monkeypatch.setattr(calls, name, 5_000)
    calls._known.clear()
    task()
    writer = pickle.loads(made)
    writer.commit([writer.write(iter([table(10)]))], 0)
    assert values(cluster) == list(range(10))
    plain = given | {"delivery": "at-least-once", "gateway": ",".join(cluster.addresses)}
    stream_writer(plain, StructType([StructField("value", BinaryType())])).write(iter([table(5)]))
    assert len(cluster.rows("t")) == 15


def test_what_a_sink_has_decided_last_can_be_asked(cluster: StageGateway, task: Any) -> None:
    driver = calls.SinkCalls(cluster.addresses)
    assert driver.last("s") is None
    writer = stream(cluster, sinkId="s")
    task(number=4)
    message = writer.write(iter([table(10)]))
    assert driver.last("s") is None
    writer.commit([message], 4)
    assert driver.last("s") == Entry(QUERY, 4)


def test_a_checkpoint_that_has_lost_what_its_sink_has_is_refused(
    cluster: StageGateway, task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its micro-batch would be planned anew with a later end, and left out as one that is done."""
    target = Target(Cluster(",".join(cluster.addresses)), "t", b"t" * 16, 3)
    place = Checkpoint(tmp_path)
    place.check_sink(target, "s")
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    (tmp_path / "offsets").mkdir()
    writer = stream(cluster, sinkId="s")
    for number in range(2):
        task(number=number)
        (tmp_path / "offsets" / str(number)).write_text("v1")
        writer.commit([writer.write(iter([table(10)]))], number)
        place.check_sink(target, "s")
    (tmp_path / "offsets" / "1").unlink()
    with pytest.raises(JobError, match="has lost micro-batch 1, which is in t: it was put back, or"):
        place.check_sink(target, "s")
    # Of another query the sink itself says what there is to say.
    (tmp_path / "metadata").write_text(json.dumps({"id": "another"}))
    place.check_sink(target, "s")
    monkeypatch.setattr(calls, "DESCRIBE_BUDGET_MS", 100)
    place.check_sink(replace(target, cluster=Cluster("127.0.0.1:1")), "s")
