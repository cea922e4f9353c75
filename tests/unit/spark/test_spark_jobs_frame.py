"""What every job says at its end, and errors in one line. No Spark."""

from __future__ import annotations

import pytest

from pyspark_penstock.errors import DataLossError, GatewayError, NotBuiltYetError, OptionError
from pyspark_penstock.jobs.frame import Finding, JobError, Outcome, exit_code, fold, one_line


def lost(start: int, end: int, partition: int = 0, kind: str = "lost") -> Finding:
    return Finding(kind, "flights", partition, start, end, end - start, [{"at": start}])


def test_neighbours_are_one_finding() -> None:
    found = fold([lost(20, 30), lost(0, 10), lost(10, 20), lost(40, 41), lost(30, 40, partition=1)])
    assert [(item.partition, item.start, item.end, item.count) for item in found] == [
        (0, 0, 30, 30), (0, 40, 41, 1), (1, 30, 40, 10),
    ]  # fmt: skip
    assert found[0].sample == [{"at": 0}, {"at": 10}, {"at": 20}]


def test_kinds_are_not_mixed() -> None:
    assert len(fold([lost(0, 10), lost(0, 10, kind="crc")])) == 2


def test_too_many_are_told_as_one_that_spans_the_rest() -> None:
    found = fold([lost(2 * at, 2 * at + 1) for at in range(1000)], most=10)
    assert len(found) == 10
    assert (found[-1].start, found[-1].end, found[-1].count) == (18, 1999, 991)
    assert len(found[-1].as_dict()["sample"]) == 20


def test_the_result_has_every_field() -> None:
    outcome = Outcome("audit")
    outcome.rows, outcome.bytes = 5, 50
    outcome.cover("flights", {1: 3, 0: 0}, {1: 4, 0: 9})
    outcome.more["partitions"] = []
    found = outcome.as_dict()
    assert list(found) == [
        "job", "ok", "rows", "bytes", "seconds", "rows_per_s", "from", "to", "findings", "partitions",
    ]  # fmt: skip
    assert found["ok"]
    assert found["from"] == {"flights": {"0": 0, "1": 3}}
    assert found["to"] == {"flights": {"0": 9, "1": 4}}
    outcome.findings.append(lost(0, 1))
    found = outcome.as_dict()
    assert not found["ok"]
    assert found["findings"] == [
        {
            "kind": "lost",
            "topic": "flights",
            "partition": 0,
            "from": 0,
            "to": 1,
            "count": 1,
            "sample": [{"at": 0}],
        }
    ]


SPARK_TEXT = """[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: An exception was raised
Traceback (most recent call last):
  File "reader.py", line 70, in read
pyspark_penstock.errors.DataLossError: topic flights partition 0: offsets 1 to 2 are gone
SQLSTATE: XXKST
"""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (JobError("no such thing"), "no such thing"),
        (RuntimeError(SPARK_TEXT), "topic flights partition 0: offsets 1 to 2 are gone"),
        (RuntimeError("first line\nsecond"), "RuntimeError: first line"),
        (RuntimeError("x\njava.io.IOException: disk full\n\tat a.b"), "java.io.IOException: disk full"),
        (RuntimeError(""), "RuntimeError: no reason given"),
    ],
)
def test_an_error_in_one_line(error: Exception, text: str) -> None:
    assert one_line(error) == text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OptionError("x"), 2),
        (NotBuiltYetError("x"), 2),
        (GatewayError("no gateway answers at a:1 (x)"), 3),
        (GatewayError("topic flights: TopicAuthorizationFailed"), 1),
        (DataLossError("x"), 1),
        (ValueError("x"), 1),
    ],
)
def test_exit_codes(error: Exception, code: int) -> None:
    assert exit_code(error) == code
