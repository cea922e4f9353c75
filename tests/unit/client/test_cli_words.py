"""What the command says: help, errors, exit codes, formats. No cluster needed."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from penstock.cli import consume, output
from penstock.cli.main import COMMANDS, cli, run
from penstock.errors import CommandError
from unit.client.cli_tree import commands


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port at which nothing listens, and nothing can meanwhile: it is bound."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield int(probe.getsockname()[1])


def test_every_command_has_help_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for name, command in commands():
        assert run([*name.split(), "--help"]) == 0
        text = capsys.readouterr().out
        if not isinstance(command, click.Group):
            assert "Examples:" in text, name
            assert f"penstock {name}" in text, name


def test_lazy_help_texts_are_those_of_the_commands() -> None:
    for name, (module, text) in COMMANDS.items():
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert command.help is not None
        assert module.endswith(name)
        assert command.help.splitlines()[0].startswith(text.rstrip(".").split(":")[0].split(",")[0]), name


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nonsense"], "nonsense"),
        (["topic", "create"], "TOPIC"),
        (["topic", "create", "x", "--partitions", "0"], "--partitions"),
        (["topic", "create", "x", "--config", "a"], "KEY=VALUE"),
        (["local", "up", "--port", "abc"], "--port"),
        (["local", "up", "--controllers", "4"], "--controllers 4"),
        (["local", "kill", "node-1", "--signal", "HUP"], "--signal"),
        (["local", "frob"], "frob"),
        (["topic", "list", "--bootstrap", "nowhere"], "HOST:PORT"),
        (["topic", "list", "--bootstrap", "h:99999"], "HOST:PORT"),
        (["consume", "x", "--from", "noon"], "--from 'noon'"),
        (["consume", "x", "--format", "xml"], "--format 'xml'"),
        (["produce", "x", "--file", "/no/such/file"], "/no/such/file"),
        (["produce", "x", "--key-separator", ""], "--key-separator"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(
    arguments: list[str],
    word: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert word in captured.err
    assert list(tmp_path.iterdir()) == []


def test_bootstrap_comes_from_the_environment(
    dead_port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", f"127.0.0.1:{dead_port}")
    assert run(["topic", "list"]) == 3
    assert str(dead_port) in capsys.readouterr().err


def test_a_fault_of_ours_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def boom(*_: object, **__: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("penstock.cli.local.LocalCluster", boom)
    monkeypatch.delenv("PENSTOCK_DEBUG", raising=False)
    assert run(["local", "status"]) == 1
    assert "boom" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "where"),
    [
        ("earliest", ("earliest", 0)),
        ("latest", ("latest", 0)),
        ("42", ("offset", 42)),
        ("-5", ("last", 5)),
        ("@1357016400000", ("time", 1357016400000)),
        ("2013-01-01", ("time", 1356998400000)),
        ("2013-01-01T05:00:00Z", ("time", 1357016400000)),
        ("2013-01-01T05:00:00+01:00", ("time", 1357012800000)),
        # A broker takes -1 for the end, and -2 for the beginning.
        ("1969-12-31T23:59:59.999Z", ("time", 0)),
        ("1812-06-24", ("time", 0)),
        ("@99999999999999999999", ("time", 2**63 - 1)),
    ],
)
def test_where_to_start(word: str, where: tuple[str, int]) -> None:
    assert consume.parse_start(word) == where


class FakeMessage:
    """A record as confluent-kafka gives it."""

    def __init__(self, key: bytes | None = b"k", value: bytes | None = b"v", headers: Any = None) -> None:
        self._key, self._value, self._headers = key, value, headers

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 7

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return 1, 1000

    def headers(self) -> Any:
        return self._headers


@pytest.mark.parametrize(
    ("form", "message", "expected"),
    [
        ("value", FakeMessage(), b"v\n"),
        ("value", FakeMessage(value=None), b"\n"),
        ("key-value", FakeMessage(), b"k\tv\n"),
        ("full", FakeMessage(), b"t/3@7 1000 k v\n"),
        ("%p:%o|%%|%k\\n", FakeMessage(), b"3:7|%|k\n"),
        ("%v", FakeMessage(value=b"\xff\xfe"), b"\xff\xfe"),
        ("%h\\n", FakeMessage(headers=[("a", b"1"), ("b", None)]), b"a=1,b=\n"),
    ],
)
def test_templates(form: str, message: Any, expected: bytes) -> None:
    assert consume.make_format(form)(message) == expected


def test_json_keeps_bytes_that_are_no_text() -> None:
    line = consume.make_format("json")(FakeMessage(key=None, value=b"\xff", headers=[("a", b"1")]))  # type: ignore[arg-type]
    assert json.loads(line) == {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp": 1000,
        "key": None,
        "value_base64": "/w==",
        "headers": [{"name": "a", "value": "1"}],
    }


def test_plain_tables_are_aligned_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("name", "in sync"), [["node-1", [1, 2]], ["n", None]])
    assert capsys.readouterr().out == "NAME    IN_SYNC\nnode-1  1,2\nn       -\n"


def test_command_error_carries_its_code() -> None:
    assert CommandError("x").exit_code == 1
