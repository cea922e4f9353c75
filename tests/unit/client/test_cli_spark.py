"""`penstock spark`: checkpoints read from files, and what a job says before Spark is started. No Spark."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import spark_run
from penstock.cli.main import run

QUERY = "57a06024-6a69-46ac-a419-2dd581c19d59"
PENSTOCK = {"v": 1, "from": {"a": {"0": 1}}, "to": {"a": {"0": 5, "1": 7}}, "ids": {"a": "ab" * 16}}
KAFKA = {"b": {"0": 23, "11": 4}}


def checkpoint(directory: Path, *batches: list[Any], committed: int) -> Path:
    for name in ("offsets", "commits"):
        (directory / name).mkdir(parents=True)
    (directory / "metadata").write_text(json.dumps({"id": QUERY}))
    for number, sources in enumerate(batches):
        lines = [
            "v1",
            '{"batchWatermarkMs":0}',
            *(x if isinstance(x, str) else json.dumps(x) for x in sources),
        ]
        (directory / "offsets" / str(number)).write_text("\n".join(lines))
        (directory / "offsets" / f".{number}.crc").write_bytes(b"crc")
        if number < committed:
            (directory / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return directory


def test_the_last_committed_batch_of_each_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, last = {"b": {"0": 1}}, PENSTOCK | {"to": {"a": {"0": 99}}}
    where = checkpoint(tmp_path / "c", [PENSTOCK, first], [PENSTOCK, KAFKA], [last, KAFKA], committed=2)
    assert run(["spark", "offsets", "--checkpoint", str(where)]) == 0
    captured = capsys.readouterr()
    assert [json.loads(line) for line in captured.out.splitlines()] == [{"a": {"0": 5, "1": 7}}, KAFKA]
    assert captured.err == f"query {QUERY}, micro-batch 1\n"
    assert run(["spark", "offsets", "--checkpoint", str(where), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "query_id": QUERY,
        "batch_id": 1,
        "sources": [
            {"source": 0, "kind": "penstock", "startingOffsets": {"a": {"0": 5, "1": 7}}},
            {"source": 1, "kind": "kafka", "startingOffsets": KAFKA},
        ],
    }


@pytest.mark.parametrize(
    "line", ["-", "{}", '{"logOffset":5}', "5", "[" * 100_000, '{"a":{"x":1}}', '{"a":{"0":true}}']
)
def test_sources_that_are_none_of_ours(tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    where = checkpoint(tmp_path / "c", [line, KAFKA], committed=1)
    assert run(["spark", "offsets", "--checkpoint", str(where)]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == KAFKA
    assert "source 0 is none of Kafka's or Penstock's" in captured.err


def test_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["spark", "offsets", "--checkpoint", str(tmp_path)]) == 1
    assert "is no checkpoint that can be read: it has no offsets" in capsys.readouterr().err
    where = checkpoint(tmp_path / "c", [KAFKA], committed=0)
    assert run(["spark", "offsets", "--checkpoint", str(where)]) == 1
    assert "no micro-batch is committed yet" in capsys.readouterr().err
    assert run(["spark", "offsets", "--checkpoint", str(tmp_path / "none")]) == 2


def test_a_form_that_is_not_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = checkpoint(tmp_path / "c", [KAFKA], committed=1)
    (where / "offsets" / "0").write_bytes(b"\x00\x01\x02")
    assert run(["spark", "offsets", "--checkpoint", str(where)]) == 1
    assert "has a form that is not known" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["audit"], "--topic"),
        (["audit", "--topic", "t", "--against", "u", "--archive", "d"], "exclude each other"),
        (["audit", "--topic", "t", "--keys-moved"], "--keys-moved goes with --against"),
        (["audit", "--topic", "t", "--isolation", "serial"], "--isolation"),
        (["audit", "--topic", "t", "--conf", "spark.x"], "write it as K=V"),
        (["archive", "--topic", "t"], "--to"),
        (["archive", "--topic", "t", "--to", "d", "--by", "year"], "--by"),
        (["archive", "--topic", "t", "--to", "d", "--credentials-file", "/none"], "/none"),
        (
            ["archive", "--topic", "t", "--to", "d", "--format", "iceberg"],
            "--format iceberg is not built yet",
        ),
        (["frob"], "frob"),
    ],
)
def test_bad_options(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["spark", "run", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert text in captured.err


@pytest.mark.parametrize("missing", ["pyspark", "pyspark_penstock.jobs"])
def test_a_missing_package_is_a_line_with_the_mend(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(spark_run, "find_gateway", lambda *_: "127.0.0.1:9094")
    assert run(["spark", "run", "audit", "--topic", "t"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("pip install penstock-spark\n")
    assert captured.err.count("\n") == 1
