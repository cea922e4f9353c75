"""What `make bench-transactions` decides without a system: rows, goals, what clients tell, pauses, raw requests."""

from __future__ import annotations

import json
import signal
import struct
from pathlib import Path
from typing import Any

import pytest
from bench.runner import __main__ as command
from bench.runner import store
from bench.runner.charts import charts
from bench.runner.documents import Document, Sample, from_json, summaries
from bench.runner.driver import ClientFailed, Driver, together, told_in
from bench.runner.figures import at
from bench.runner.java import java_entry
from bench.runner.pauses import Story, longest_pause_s, steady
from bench.runner.plan import visits
from bench.runner.rows import Kind, choose
from bench.runner.session import MEASURES
from bench.runner.suites import BENCH, SUITES, TRANSACTIONS, Suite, rows_of
from bench.runner.tables import GOALS_HEAD, goal_line, page_block, words
from bench.runner.transaction_rows import FAULTS, TRANSACTION_ROWS
from bench.runner.transactional_ids import (
    Cluster,
    add_partition,
    added,
    init_producer,
    inited,
    produce,
    produced,
)
from bench.runner.transactions import flush_times_ms

from penstock_kafka.records.batch import HEADER_BYTES
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import parse_request_header
from penstock_kafka.wire.groups import transaction_partition
from support.waiting import wait_for

ROWS = {row.name: row for row in TRANSACTION_ROWS}

# -- rows ------------------------------------------------------------------------------------------


def goals(name: str) -> set[tuple[str, str, str]]:
    return {(goal.contender, goal.figure, goal.text) for goal in ROWS[name].goals}


@pytest.mark.parametrize(("commit_ms", "bound"), [(100, "0.85"), (1000, "0.95")])
@pytest.mark.parametrize("client", ["java", "librdkafka"])
def test_producing_is_held_against_its_own_rate_and_against_kafkas(
    commit_ms: int, bound: str, client: str
) -> None:
    assert goals(f"transact-{commit_ms}ms-{client}") == {
        ("replicated", "mb_per_s", f">= {bound} x replicated-plain"),
        ("fsync", "mb_per_s", f">= {bound} x fsync-plain"),
        ("replicated", "mb_per_s", ">= 1.5 x kafka"),
        ("fsync", "mb_per_s", ">= 1 x kafka"),
    }


def test_goals_of_the_other_rows() -> None:
    assert ("fsync", "commit_p99_ms", "<= 1 x kafka") in goals("commit-100p-java")
    assert ("replicated", "transactions_per_s", ">= 1.5 x kafka") in goals("back-to-back-1-java")
    assert ("replicated", "transactions_per_s", ">= 1 x kafka") in goals("back-to-back-500-librdkafka")
    assert ("fsync", "records_per_s", ">= 1.2 x kafka") in goals("copy-100ms")
    assert goals("read-committed-aborts") == {("direct", "mb_per_s", ">= 0.9 x direct-plain")}
    assert ("fsync", "commit_pause_s", "<= 2") in goals("fault-leader-killed")
    assert ("gateway-fsync", "reader_standstill_s", "<= 3") in goals("fault-coordinator-stopped")
    assert ("gateway-fsync", "commit_pause_s", "<= 0.2 x kafka") in goals("fault-coordinator-killed")
    assert goals("idle-ids-10000") == {("penstock", "more_node_rss_mb", "<= 10")}
    assert not goals("open-1000"), "it is told, and no more"


@pytest.mark.parametrize("name", sorted(ROWS))
def test_goals_are_of_what_a_row_measures(name: str) -> None:
    row = ROWS[name]
    for goal in row.goals:
        assert goal.figure in row.figures
        assert row.contender(goal.contender)
        assert not goal.against or row.contender(goal.against)
    assert row.kind is Kind.ELSEWHERE or row.kind in MEASURES
    assert row.client in ("java", "librdkafka")
    assert row.load.fault in ("", *FAULTS)


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.command)
def test_names_of_a_suite_are_its_rows_alone(suite: Suite) -> None:
    names = [row.name for row in suite.rows]
    assert len(names) == len(set(names))
    assert rows_of(suite.name) is suite.rows


def test_every_row_is_visited_and_each_system_is_hurt_in_a_visit_of_its_own() -> None:
    planned = list(visits(TRANSACTION_ROWS, 1))
    found = {(run.row, run.contender) for visit in planned for run in visit.runs()}
    wanted = {(r.name, c.name) for r in TRANSACTION_ROWS if not r.module for c in r.contenders}
    assert found == wanted
    for visit in planned:
        if any(step.row.kind is Kind.FAULT for step in visit.steps):
            assert len({step.row.name for step in visit.steps}) == 1


def test_rows_are_chosen_of_the_suite_and_a_hint_names_its_command() -> None:
    found = choose("", quick=True, rows=TRANSACTIONS.rows)
    assert {row.name for row in found} < set(ROWS)
    assert {row.kind for row in found} >= {Kind.TRANSACT, Kind.COMMITS, Kind.REPEAT, Kind.FAULT}
    with pytest.raises(LookupError, match="`make bench-transactions BENCH=--list`"):
        choose("produce-1k", quick=False, rows=TRANSACTIONS.rows, command=TRANSACTIONS.command)


def test_the_list_has_the_rows_of_the_suite(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert command.main(["--list"], TRANSACTIONS, "") == 0
    said = capsys.readouterr().out
    assert "rows of make bench-transactions" in said
    assert all(name in said for name in ROWS)
    assert "produce-1k-1p" not in said


# -- documents -------------------------------------------------------------------------------------


def document(*samples: Sample) -> Document:
    return Document(
        "1a2b3c4",
        "2026-11-28",
        {"cores": "2"},
        {"Kafka": "4.3.1"},
        suite="transactions",
        samples=list(samples),
    )


def speeds(contender: str, *values: float) -> list[Sample]:
    row = "transact-100ms-java"
    return [Sample(row, contender, n, {"mb_per_s": value}) for n, value in enumerate(values)]


HELD = document(
    *speeds("kafka", 40, 41, 42, 43, 44),
    *speeds("fsync", 80, 82, 84, 86, 88),
    *speeds("fsync-plain", 100, 100, 100, 100, 100),
    *speeds("replicated", 44, 44, 44, 44, 44),
    Sample("fault-leader-stopped", "kafka", 0, {"commit_pause_s": 50.0, "reader_standstill_s": 51.0}),
    Sample("fault-leader-stopped", "gateway-fsync", 0, {"commit_pause_s": 2.0, "reader_standstill_s": 11.0}),
)


def test_a_document_of_transactions_is_kept_apart_and_read_as_it_was_written() -> None:
    assert from_json(json.loads(json.dumps(HELD.to_json()))) == HELD
    assert store.file_name(HELD) == "2026-11-28-1a2b3c4-transactions.json"
    assert HELD.fits(Document("1a2b3c4", "2026-11-28", {}, {})).startswith("its suite is transactions")
    with pytest.raises(ValueError, match="suite elsewhere"):
        summaries(Document("", "", {}, {}, suite="elsewhere"))


def test_a_document_of_before_there_were_suites_is_one_of_make_bench() -> None:
    held = HELD.to_json()
    del held["suite"]
    assert from_json(held).suite == BENCH.name


def test_the_table_says_what_was_reached() -> None:
    judged = [goal_line(one.row, goal) for one in summaries(HELD) for goal in one.goals]
    verdicts = {(line[1], line[2], line[3]): line[-1] for line in judged}
    assert verdicts == {
        ("fsync", "MB/s", ">= 0.85 x fsync-plain"): "missed",
        ("replicated", "MB/s", ">= 1.5 x kafka"): "missed",
        ("fsync", "MB/s", ">= 1 x kafka"): "reached",
        ("gateway-fsync", "commit pause, s", "<= 0.2 x kafka"): "reached (few pairs)",
        ("gateway-fsync", "commit pause, s", "<= 3"): "reached (few pairs)",
        ("gateway-fsync", "reader standstill, s", "<= 0.2 x kafka"): "missed (few pairs)",
        ("gateway-fsync", "reader standstill, s", "<= 3"): "missed (few pairs)",
    }


def test_the_page_has_each_kind_of_row_under_its_title() -> None:
    rows = [row for row in TRANSACTION_ROWS if row.kind is not Kind.ELSEWHERE]
    held = document(*(Sample(r.name, r.contenders[0].name, 0, dict.fromkeys(r.figures, 1.0)) for r in rows))
    text = page_block(held)
    assert all(f"| {row.title} |" in text for row in rows)
    assert "| " + " | ".join(GOALS_HEAD) + " |" not in text, "nothing of Penstock was measured"
    assert [chart.name for chart in charts(held)] == ["transact"]


def test_rates_are_told_as_such() -> None:
    assert words("transactions_per_s") == "transactions, 1/s"
    assert words("log_mb_per_s") == "log, MB/s"
    assert words("cpu_of_a_transaction_ms") == "cpu of a transaction, ms"


# -- what clients tell -----------------------------------------------------------------------------

TOLD = {"records": 10, "bytes": 1000, "begin_ns": 5_000_000_000, "end_ns": 7_000_000_000, "cpu_s": 0.5}


def test_a_result_is_the_last_line() -> None:
    told = {
        **TOLD,
        "transactions": 4,
        "committed": 9,
        "commit_ms": [1, 2, 3, 4],
        "transaction_ms": [5, 6, 7, 8],
    }
    found = together([told_in(f"a word of a library\n{json.dumps(told)}\n")])
    assert (found.transactions, found.committed) == (4, 9)
    assert (found.commit_ms, found.transaction_ms) == ((1, 2, 3, 4), (5, 6, 7, 8))
    assert (found.elapsed_s, found.begin_ns, found.end_ns) == (2.0, 5_000_000_000, 7_000_000_000)


def test_clients_side_by_side_are_added_up() -> None:
    other = {**TOLD, "begin_ns": 4_000_000_000, "transactions": 3, "committed": 3}
    found = together([{**TOLD, "transactions": 4, "committed": 9}, other])
    assert (found.transactions, found.committed, found.elapsed_s) == (7, 12, 3.0)
    assert found.commit_ms == ()


@pytest.mark.parametrize("out", ["", "no result", "[1]", '"text"', "7"])
def test_what_is_no_result_is_told(out: str) -> None:
    with pytest.raises(ClientFailed, match=r"no result|has no"):
        told_in(out)


def test_a_result_that_lacks_something_is_told() -> None:
    with pytest.raises(ClientFailed, match="has no bytes, records"):
        told_in(json.dumps({"begin_ns": 1, "end_ns": 2, "cpu_s": 0.1}))


def test_settings_to_come_in_are_told_to_each_client_in_its_words() -> None:
    entry = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "bench",
        "sasl.password": 'a"b\\c',
        "ssl.ca.location": "/ca.pem",
    }
    assert java_entry(entry) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="bench" password="a\\"b\\\\c";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
    }
    assert java_entry({}) == {}
    with pytest.raises(ValueError, match="no word for colour"):
        java_entry({"colour": "red"})


def script(tmp_path: Path, text: str) -> Path:
    program = tmp_path / "client"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o700)
    return program


def test_each_client_is_started_by_its_own_program(tmp_path: Path) -> None:
    rdkafka = script(tmp_path, f"echo '{json.dumps(TOLD | {'records': 1})}'")
    java = ("/bin/sh", "-c", f"echo '{json.dumps(TOLD | {'records': 2})}'")
    client = Driver(rdkafka, tmp_path, {}, java)
    assert client.run("transact", "127.0.0.1:1", {}).records == 1
    assert client.by("java").run("transact", "127.0.0.1:1", {}).records == 2
    assert client.run("transact", "127.0.0.1:1", {}).records == 1


def test_a_client_that_tells_is_ended_with_its_block(tmp_path: Path) -> None:
    client = Driver(script(tmp_path, "echo commit 5; echo read 6; exec sleep 60"), tmp_path, {})
    with client.telling("endure", "127.0.0.1:1", {}) as story:
        wait_for(lambda: steady(story, ("commit", "read"), 0, 1), "what the client tells")
    assert (story.times_ns["commit"], story.times_ns["read"]) == ([5], [6])


@pytest.mark.parametrize(
    ("text", "why"),
    [("echo no >&2; exit 4", "no"), ("echo commit 5; echo dance 6", "'dance 6'")],
)
def test_a_client_that_ends_or_tells_something_else_has_failed(tmp_path: Path, text: str, why: str) -> None:
    client = Driver(script(tmp_path, text), tmp_path, {})
    with (
        pytest.raises(ClientFailed, match=why),
        client.telling("endure", "127.0.0.1:1", {}) as story,
    ):
        wait_for(lambda: story.ended, "the client's end")


# -- pauses ----------------------------------------------------------------------------------------

MS = 1_000_000


def test_the_longest_pause_begins_with_the_last_event_before_the_fault() -> None:
    times = [100 * MS, 150 * MS, 200 * MS, 2200 * MS, 2250 * MS]
    assert longest_pause_s(times, 220 * MS, 2260 * MS) == pytest.approx(2.0)


def test_a_pause_of_before_the_fault_does_not_count() -> None:
    assert longest_pause_s([0, 5000 * MS, 5050 * MS], 5060 * MS, 5100 * MS) == pytest.approx(0.05)


def test_a_pause_that_has_no_end_counts_up_to_the_end() -> None:
    assert longest_pause_s([100 * MS], 120 * MS, 9100 * MS) == pytest.approx(9.0)
    assert longest_pause_s([], 100 * MS, 600 * MS) == pytest.approx(0.5)


def test_a_story_has_times_and_reasons() -> None:
    story = Story()
    for line in ("commit 5\n", "read 6", "aborted 7 Broker: producer fenced", "fatal 8 it is over"):
        story.add(line)
    assert story.times_ns == {"commit": [5], "read": [6], "aborted": [7], "fatal": [8]}
    assert story.reasons == ["aborted: Broker: producer fenced", "fatal: it is over"]
    assert steady(story, ("commit", "read"), 5, 1)
    assert not steady(story, ("commit", "read"), 6, 1)
    assert story.count_since("aborted", 8) == 0


@pytest.mark.parametrize("line", ["", "dance 5", "commit", "commit -5", "commit soon"])
def test_a_line_that_tells_nothing_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="what happened when"):
        Story().add(line)


# -- counters --------------------------------------------------------------------------------------

SAMPLES = [(1000, {"broker": 1.0}), (2000, {"broker": 2.0}), (4000, {"broker": 6.0})]


@pytest.mark.parametrize(
    ("time_ns", "value"),
    [(0, 1.0), (1000, 1.0), (1500, 1.5), (2000, 2.0), (3000, 4.0), (4000, 6.0), (9000, 6.0)],
)
def test_a_counter_between_two_looks_is_in_proportion(time_ns: int, value: float) -> None:
    assert at(SAMPLES, time_ns) == {"broker": pytest.approx(value)}


def test_counters_of_one_look_and_of_none() -> None:
    assert at(SAMPLES[:1], 5) == {"broker": 1.0}
    with pytest.raises(ValueError, match="no samples"):
        at([], 5)


def test_flush_times_are_sorted_and_leave_nothing(tmp_path: Path) -> None:
    found = flush_times_ms(tmp_path, 5)
    assert found == sorted(found)
    assert len(found) == 5
    assert list(tmp_path.iterdir()) == []


# -- raw requests ----------------------------------------------------------------------------------


def parsed(frame: bytes) -> tuple[ApiKey, int, Any]:
    (size,) = struct.unpack_from(">i", frame)
    assert size == len(frame) - 4
    header = parse_request_header(frame[4:])
    return ApiKey(header.api_key), header.api_version, codec.decode_request(header, frame[4:])


def answer(api_key: ApiKey, version: int, **values: object) -> bytes:
    """Without its correlation id."""
    return codec.encode_body(codec.build(codec.response_type(api_key, version), **values))


def part(api_key: ApiKey, version: int, schema: str, **values: object) -> object:
    return codec.build(codec.entity_type(api_key, version, schema), **values)


def test_a_producer_is_asked_for_by_its_id() -> None:
    api_key, version, request = parsed(init_producer("application-1"))
    assert (api_key, version) == (ApiKey.INIT_PRODUCER_ID, 1)
    assert request.transactional_id == "application-1"
    assert request.transaction_timeout.total_seconds() == 600
    told = answer(
        api_key, version, throttle_time=0, error_code=codec.error_code(0), producer_id=4711, producer_epoch=3
    )
    assert inited(told) == (0, 4711, 3)


def test_a_partition_is_added_to_a_transaction() -> None:
    api_key, version, request = parsed(add_partition("application-1", 4711, 3, "topic", 7))
    assert (api_key, version) == (ApiKey.ADD_PARTITIONS_TO_TXN, 0)
    assert (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch) == (4711, 3)
    (topic,) = request.v3_and_below_topics
    assert (topic.name, topic.partitions) == ("topic", (7,))
    one = part(
        api_key, version, "AddPartitionsToTxnPartitionResult",
        partition_index=7, partition_error_code=codec.error_code(51),
    )  # fmt: skip
    results = part(
        api_key, version, "AddPartitionsToTxnTopicResult", name="topic", results_by_partition=(one,)
    )
    assert added(answer(api_key, version, throttle_time=0, results_by_topic_v3_and_below=(results,))) == 51


def test_a_record_of_a_transaction_is_sent() -> None:
    api_key, version, request = parsed(produce("application-1", 4711, 3, "topic", 7))
    assert (api_key, version, request.transactional_id, request.acks) == (
        ApiKey.PRODUCE,
        3,
        "application-1",
        -1,
    )
    (topic,) = request.topic_data
    (partition,) = topic.partition_data
    assert (topic.name, partition.index) == ("topic", 7)
    assert len(partition.records) > HEADER_BYTES
    one = part(
        api_key, version, "PartitionProduceResponse",
        index=7, error_code=codec.error_code(6), base_offset=-1, log_append_time=-1,
    )  # fmt: skip
    results = part(api_key, version, "TopicProduceResponse", name="topic", partition_responses=(one,))
    assert produced(answer(api_key, version, responses=(results,), throttle_time=0)) == 6


def test_each_id_has_its_coordinator() -> None:
    cluster = Cluster({1: "a:1", 2: "b:2"}, {n: 1 + n % 2 for n in range(50)})
    assert cluster.coordinator("application-1") == 1 + transaction_partition("application-1", 50) % 2
