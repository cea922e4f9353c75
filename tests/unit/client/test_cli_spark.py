"""`penstock spark`: checkpoints read from files, and what a job says before Spark is started. No Spark."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import spark_run
from penstock.cli.local_gateways import LocalGateways
from penstock.cli.main import run
from penstock.connector import load

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
            "--format iceberg takes --table and --catalog",
        ),
        (
            ["archive", "--topic", "t", "--to", "d", "--format", "iceberg", "--table", "n.t"],
            "--format iceberg takes --table and --catalog",
        ),
        (
            ["archive", "--topic", "t", "--to", "d", "--table", "n.t"],
            "--table and --catalog go with --format iceberg",
        ),
        (["archive", "--topic", "t", "--to", "d", "--catalog", "/none"], "/none"),
        (
            [
                *("archive", "--topic", "t", "--to", "d", "--format", "iceberg"),
                *("--table", "n.t", "--catalog", __file__, "--compact"),
            ],
            "--compact does not go with --format iceberg",
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


RESULT: dict[str, Any] = {
    "job": "audit", "ok": True, "rows": 12, "bytes": 340, "seconds": 2.5, "rows_per_s": 4.8, "from": {"t": {"0": 0}},
    "to": {"t": {"0": 12}}, "findings": [],
    "partitions": [
        {
            "partition": 0, "first": 0, "last": 11, "records": 12, "control": 0, "aborted": 0, "compacted": 0,
            "lost": 0, "duplicated": 0, "crc_errors": 0, "sequence_gaps": 0, "sequence_repeats": 0, "unreadable": 0,
        }
    ],
}  # fmt: skip
LOST = {
    "kind": "lost",
    "topic": "t",
    "partition": 0,
    "from": 3,
    "to": 5,
    "count": 2,
    "sample": [{"offset": 3}],
}


class Bad(Exception):
    """An error of a job."""


class Job:
    """In the place of penstock-spark: every job, and what it is called with."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.name = ""
        self.wanted: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        self.name = name
        return self._run

    def _run(self, _spark: Any, *, progress: Any, **wanted: Any) -> Any:
        self.wanted = wanted
        progress("t: 12 offsets to explain")
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    @staticmethod
    def one_line(error: BaseException) -> str:
        return f"in one line: {error}"

    @staticmethod
    def exit_code(error: BaseException) -> int:
        return 2 if isinstance(error, Bad) else 1


@contextmanager
def no_session(_job: str, _cluster: Any) -> Iterator[None]:
    yield None


def run_fake(monkeypatch: pytest.MonkeyPatch, answer: Any, *words: str) -> tuple[int, Job]:
    job = fake(monkeypatch, answer)
    return run(["spark", "run", "audit", "--topic", "t", *words]), job


def fake(monkeypatch: pytest.MonkeyPatch, answer: Any) -> Job:
    job = Job(answer)
    monkeypatch.setattr(spark_run, "find_gateway", lambda *_: "127.0.0.1:9094")
    monkeypatch.setattr(spark_run, "_jobs", lambda: (job, job))
    monkeypatch.setattr(spark_run, "_session", no_session)
    return job


def test_what_a_job_is_called_with(monkeypatch: pytest.MonkeyPatch) -> None:
    _, job = run_fake(
        monkeypatch,
        RESULT,
        "--against",
        "u",
        "--keys-moved",
        "--compacted",
        "no",
        "--isolation",
        "read_committed",
    )
    assert job.wanted == {
        "topic": "t", "against": "u", "archive": "", "keys_moved": True, "compacted": False,
        "isolation": "read_committed", "gateway": "127.0.0.1:9094", "credentials_file": "",
    }  # fmt: skip
    _, job = run_fake(monkeypatch, RESULT, "--gateway", "a:1,b:2")
    assert (job.wanted["gateway"], job.wanted["compacted"]) == ("a:1,b:2", None)


@pytest.mark.parametrize(
    ("words", "asked"),
    [([], "localhost:9001,localhost:9002"), (["--gateway", "localhost:9001"], "localhost:9001")],
)
def test_in_the_directory_of_a_secure_cluster_jobs_come_in_as_its_admin(
    words: list[str], asked: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "admin.properties"
    file.write_text("security.protocol=PLAINTEXT\n")
    file.chmod(0o600)
    told: list[Any] = []

    def own(directory: Path, addresses: str) -> Any:
        assert directory == tmp_path
        return load(file) if addresses == asked else None

    monkeypatch.setattr(
        spark_run, "local_gateways", lambda *_: LocalGateways(["localhost:9001", "localhost:9002"], "")
    )
    monkeypatch.setattr(spark_run, "own_connector", own)
    job = fake(monkeypatch, RESULT)

    def find(*given: Any) -> str:
        told.append(given)
        return "localhost:9002"

    monkeypatch.setattr(spark_run, "find_gateway", find)
    assert run(["spark", "run", "audit", "--topic", "t", "--dir", str(tmp_path), *words]) == 0
    assert job.wanted["credentials_file"] == str(file)
    assert told[0][3].file.path == str(file)


COMMON = {"gateway": "127.0.0.1:9094", "credentials_file": ""}


def test_an_archive_that_is_a_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lake.toml").touch()
    monkeypatch.chdir(tmp_path)
    answer = RESULT | {"iceberg": {"table": "lake.t", "location": "file:///t", "snapshots_added": 3}}
    job = fake(monkeypatch, answer)
    words = ["archive", "--topic", "t", "--to", "d", "--format", "iceberg", "--table", "lake.t"]
    assert run(["spark", "run", *words, "--catalog", "lake.toml"]) == 0
    assert job.wanted == COMMON | {
        "topic": "t", "to": "d", "by": "date", "compact": False, "isolation": "read_uncommitted", "format": "iceberg",
        "table": "lake.t", "catalog": str(tmp_path / "lake.toml"),
    }  # fmt: skip
    assert "lake.t, 3 snapshots added" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (
            ["repartition", "--topic", "a", "--to", "b", "--partitions", "6", "--key", "k", "--checkpoint", "/c"],
            {"topic": "a", "to": "b", "partitions": 6, "key": "k", "checkpoint": "/c"},
        ),
        (
            ["repartition", "--topic", "a", "--to", "b"],
            {"topic": "a", "to": "b", "partitions": 0, "key": "", "checkpoint": ""},
        ),
        (
            ["replay", "--archive", "/a", "--to", "b", "--since", "5", "--rate", "5000", "--keep-partitions"],
            {
                "topic": "", "archive": "/a", "to": "b", "since": "5", "until": "", "rate": 5000.0, "speed": 0.0,
                "keep_partitions": True,
                "run": "",
                "checkpoint": "",
            },
        ),
        (
            [
                "windowed", "--topic", "a", "--to", "b", "--window", "10m", "--watermark", "5m", "--group-by", "f",
                "--schema", "f STRING", "--available-now",
            ],
            {
                "topic": "a", "to": "b", "window": "10m", "watermark": "5m", "group_by": "f", "schema": "f STRING",
                "available_now": True, "checkpoint": "",
            },
        ),
    ],
)  # fmt: skip
def test_jobs_that_write(words: list[str], wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    job = fake(monkeypatch, RESULT)
    assert run(["spark", "run", *words]) == 0
    assert (job.name, job.wanted) == (words[0], wanted | COMMON)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["replay", "--to", "b"], "give --topic or --archive, one of them"),
        (
            ["replay", "--to", "b", "--topic", "a", "--archive", "/a"],
            "give --topic or --archive, one of them",
        ),
        (
            ["replay", "--to", "b", "--topic", "a", "--rate", "1", "--speed", "2"],
            "--rate and --speed exclude each other",
        ),
        (["replay", "--to", "b", "--topic", "a", "--rate", "0"], "'--rate': 0.0 is not in the range x>0"),
        (
            ["repartition", "--topic", "a", "--to", "b", "--partitions", "0"],
            "'--partitions': 0 is not in the ra",
        ),
        (["windowed", "--topic", "a", "--to", "b", "--window", "1h"], "Missing option '--watermark'"),
    ],
)
def test_bad_options_of_jobs_that_write(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["spark", "run", *words]) == 2
    assert says in capsys.readouterr().err


def test_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = run_fake(monkeypatch, RESULT)
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "t: 12 offsets to explain\n")
    lines = captured.out.splitlines()
    assert lines[0].split() == ["job", "audit"]
    assert lines[6].split() == [
        "PARTITION", "FIRST", "LAST", "RECORDS", "CONTROL", "ABORTED", "COMPACTED", "LOST", "UNREADABLE", "CRC_ERRORS",
    ]  # fmt: skip
    assert lines[7].split() == ["0", "0", "11", "12", "0", "0", "0", "0", "0", "0"]
    assert lines[-1] == "nothing found"


def test_findings_are_exit_code_4(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = RESULT | {"ok": False, "findings": [LOST]}
    assert run_fake(monkeypatch, result)[0] == 4
    assert capsys.readouterr().out.splitlines()[-1].split()[:6] == ["lost", "t", "0", "3", "5", "2"]
    assert run_fake(monkeypatch, result, "--json")[0] == 4
    assert json.loads(capsys.readouterr().out) == result


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (Bad("no"), 2, "in one line: no"),
        (ValueError("x"), 1, "in one line: x"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_a_job_that_fails(
    error: BaseException,
    code: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_fake(monkeypatch, error)[0] == code
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if line]  # click ends the line in which ^C stands
    assert lines == ["t: 12 offsets to explain", f"penstock: error: {text}"]


def test_the_environment_says_where_jobs_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in compose, where nobody wants to say it each time; what is empty says nothing."""
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=PLAINTEXT\n")
    file.chmod(0o600)
    told: list[Any] = []

    @contextmanager
    def session(_job: str, cluster: Any) -> Iterator[None]:
        told.append(cluster)
        yield None

    job = fake(monkeypatch, RESULT)
    monkeypatch.setattr(spark_run, "_session", session)
    for config in (str(file), ""):
        monkeypatch.setenv("PENSTOCK_SPARK_MASTER", "spark://m:7077")
        monkeypatch.setenv("PENSTOCK_GATEWAY", "g:9094")
        monkeypatch.setenv("PENSTOCK_CLIENT_CONFIG", config)
        assert run(["spark", "run", "audit", "--topic", "t"]) == 0
        assert told[-1].master == "spark://m:7077"
        assert (job.wanted["gateway"], job.wanted["credentials_file"]) == ("g:9094", config)
