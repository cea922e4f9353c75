"""What people read of plans and operations, and how they write sizes and rates."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli import plans
from penstock.cli.follow import ended_text, progress_text
from penstock.cli.node_change import parse_node_ids
from penstock.cli.operation import operation_facts
from penstock.cli.rates import parse_size, parse_throttle, rate_text, size_text, span_text
from penstock.cli.rebalance import parse_goals
from penstock.errors import CommandError, ExitCode
from penstock_core.operation_documents import operation_document, plan_document
from penstock_proto.v1 import metadata_pb2, operations_pb2


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("auto", None),
        ("AUTO", None),
        ("50MB/s", 50_000_000),
        ("48MiB/s", 48 * 1024 * 1024),
        ("1000", 1000),
        ("1000/s", 1000),
        ("1.5 GB/s", 1_500_000_000),
        ("64kb", 64_000),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_rates_are_read_as_they_are_written(text: str, bytes_per_s: int | None) -> None:
    assert parse_throttle(text) == bytes_per_s


@pytest.mark.parametrize(
    "text", ["", "fast", "0", "-5", "50 Mbit", "MB/s", "1e9", "50MB/h", "nan", "9" * 400, "10000PB", "٣"]
)
def test_what_is_no_rate_is_a_usage_error_that_says_what_is(text: str) -> None:
    with pytest.raises(CommandError) as told:
        parse_throttle(text)
    assert told.value.exit_code == ExitCode.USAGE
    assert "50MB/s" in told.value.message
    assert repr(text) in told.value.message
    with pytest.raises(CommandError, match="--max-bytes"):
        parse_size(text, "--max-bytes")


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (3_400_000_000, "3.4 GB"),
        (48_000_000, "48.0 MB"),
        (250_000_000, "250 MB"),
        (7 * 10**18, "7000 PB"),
    ],
)
def test_sizes_are_short(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text
    assert rate_text(size_bytes) == f"{text}/s"


@pytest.mark.parametrize(
    ("span_s", "text"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (59.6, "1 min"),
        (130, "2 min 10 s"),
        (3_600, "1 h"),
        (3_665, "1 h 1 min"),
        (90_000, "1 d 1 h"),
        (86_460, "1 d"),
    ],
)
def test_spans_are_short(span_s: float, text: str) -> None:
    assert span_text(span_s) == text


def test_lists_of_nodes_and_goals() -> None:
    assert parse_node_ids("4, 5,4") == [4, 5]
    assert parse_goals("bytes,replicas") == ["replicas", "bytes"]
    for bad in ("", "4,", "0", "a", "4;5", "99999999999"):
        with pytest.raises(CommandError, match="4,5,6"):
            parse_node_ids(bad)
    with pytest.raises(CommandError, match="replicas,leaders,bytes"):
        parse_goals("disks")


def a_plan(moves: int = 2, **more: Any) -> operations_pb2.Plan:
    """Of a drain of node 3."""
    plan = operations_pb2.Plan(
        **{
            "kind": "node-drain",
            "plan_id": "00112233aabbccdd",
            "metadata_version": 120,
            "runnable": True,
            "parameters": metadata_pb2.OperationParameters(node_ids=[3]),
            "throttle": metadata_pb2.OperationThrottle(auto=True),
            "eta_s": 130.0,
            **more,
        }
    )
    for partition in range(moves):
        move = plan.moves.add(topic="flights", partition=partition, to=[1, 4], bytes=1_500_000_000)
        getattr(move, "from").extend([3, 1])
    plan.totals.moves = plan.totals.replicas_added = plan.totals.replicas_removed = moves
    plan.totals.leader_changes = 1
    plan.totals.bytes = 1_500_000_000 * moves
    plan.nodes.add(
        node_id=1, rack="a", replicas_before=4, replicas_after=4, leaders_before=1, leaders_after=1
    )
    plan.nodes.add(
        node_id=4,
        rack="b",
        replicas_before=1,
        replicas_after=3,
        bytes_after=3_000_000_000,
        disk_free_bytes_before=9_000_000_000,
        disk_free_bytes_after=6_000_000_000,
    )
    plan.gates.add(name="quorum", ok=True)
    return plan


PLAN = """\
plan      00112233aabbccdd of metadata version 120
what      node-drain node 3
moves     2 partitions: 2 replicas made, 2 removed, 1 leader changed
bytes     3.0 GB
throttle  auto
time      about 2 min 10 s

TOPIC    PARTITION  FROM  TO   BYTES
flights  0          3,1   1,4  1.5 GB
flights  1          3,1   1,4  1.5 GB

NODE  RACK  REPLICAS  LEADERS  BYTES          DISK_FREE
4     b     1 -> 3    0        0 B -> 3.0 GB  9.0 GB -> 6.0 GB

GATE    STATE  DETAIL
quorum  open   -
"""


def test_a_plan_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    plans.show_plan(plan_document(a_plan()))
    assert capsys.readouterr().out == PLAN


def test_a_long_plan_is_shortened_with_a_count(capsys: pytest.CaptureFixture[str]) -> None:
    plan = a_plan(1_234)
    plan.warnings.append("it is \x1b[31mlarge")
    plans.show_plan(plan_document(plan))
    out = capsys.readouterr().out
    assert out.count("flights") == plans.MOVES_SHOWN
    assert "... and 1,214 moves more; --json shows all" in out
    assert out.endswith("warning: it is \\x1b[31mlarge\n")


def test_a_plan_of_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    plans.show_plan(plan_document(operations_pb2.Plan(kind="rebalance", plan_id="0" * 16, runnable=True)))
    out = capsys.readouterr().out
    assert "moves     none: every partition stays as it is\n" in out
    assert "time      not known" in out


def test_a_refusal_names_the_gates_that_stop_it_and_no_others() -> None:
    plan = a_plan(runnable=False)
    plan.gates.add(name="racks", detail="spread gets worse")
    plan.gates.add(
        name="disk-room",
        blocking=True,
        detail="no room on node 4; add one",
        items=[f"t-{n}" for n in range(7)],
    )
    document = plan_document(plan)
    said = plans.refusal(document)
    assert said == (
        "refused by disk-room: no room on node 4; add one (t-0, t-1, t-2, t-3, t-4 and 2 more); "
        "nothing was changed"
    )
    assert [plans.gate_row(gate)[1] for gate in document["gates"]] == ["open", "allowed away", "stops it"]
    assert plans.refusal(plan_document(a_plan())) is None


def test_what_an_operation_is_about() -> None:
    def about(**fields: Any) -> str:
        from penstock_core.operation_documents import parameters_document

        return plans.subject(parameters_document(metadata_pb2.OperationParameters(**fields)))

    assert about(node_ids=[3], replacement_node_id=7) == "node 3 by node 7"
    assert about(topics=["a", "b"], replication_factor=3) == "topics a, b to 3 replicas"
    assert about(topics=["a"], partitions=[0, 4]) == "topic a partitions 0, 4"
    assert about(goals=["bytes"], excluded_node_ids=[5], max_bytes=10**9) == (
        "goal bytes without node 5 at most 1.0 GB"
    )
    assert about(topics=list("abcdefg")) == "topics a, b, c, d, e and 2 more"
    assert about() == ""


def test_an_operation_in_words() -> None:
    record = metadata_pb2.OperationRecord(
        operation_id=17,
        kind="node-drain",
        parameters=metadata_pb2.OperationParameters(node_ids=[3]),
        state=metadata_pb2.OPERATION_STATE_RUNNING,
        phase="moving replicas",
        created_by="User:ops",
        created_ms=1_769_860_800_000,
        throttle=metadata_pb2.OperationThrottle(auto=True),
    )
    progress = operations_pb2.OperationProgress(
        moves_total=12,
        moves_done=5,
        bytes_total=4_000_000,
        bytes_done=1_000_000,
        eta_s=40,
        measured_bytes_per_s=48_000_000,
        limit_bytes_per_s=64_000_000,
        waiting_for="node 4 to catch up",
        produce_p99_now_ms=3.25,
    )
    found = operation_document(operations_pb2.Operation(record=record, progress=progress))
    assert progress_text(found) == (
        "running, moving replicas, 25%, 5 of 12 moves, 1.0 MB of 4.0 MB, 48.0 MB/s, 40 s left, node 4 to catch up"
    )
    facts = dict(operation_facts(found))
    assert facts["what"] == "node-drain node 3"
    assert facts["created"] == "2026-01-31 12:00:00 UTC by User:ops"
    assert facts["throttle"] == "auto, 64.0 MB/s now"
    assert facts["produce p99"] == "3.2 ms now"
    record.state = metadata_pb2.OPERATION_STATE_FAILED
    record.reason = "node 4 is gone"
    record.started_ms, record.finished_ms = 1_000, 131_000
    assert ended_text(operation_document(operations_pb2.Operation(record=record, progress=progress))) == (
        "operation 17 (node-drain) failed (node 4 is gone): 5 moves, 1.0 MB in 2 min 10 s"
    )
