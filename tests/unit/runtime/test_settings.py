"""Settings from flags, environment and TOML, and what is said of bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from penstock_runtime.settings import (
    ListenerSettings,
    RoleSettings,
    StartupError,
    load_settings,
    parse_address,
    parse_member,
)


class Door(BaseModel):
    """A table with secrets in it."""

    model_config = ConfigDict(extra="forbid")

    key: SecretStr = SecretStr("")
    bearer_token: str = ""
    key_password_file: str = ""
    width: int = 0


class NodeSettings(RoleSettings):
    """A node for tests."""

    example = "penstock-node --node-id 1"

    node_id: int = Field(description="100% needed")
    listeners: list[ListenerSettings] = Field(default_factory=list, description="Kafka listeners")
    ports: list[int] = Field(default_factory=list)
    api_token: str = ""
    key: SecretStr = SecretStr("")
    door: Door | None = None
    limits: dict[str, int] = Field(default_factory=dict)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.upper().startswith("PENSTOCK_"):
            monkeypatch.delenv(name)


def load(*argv: str) -> NodeSettings:
    return load_settings(NodeSettings, argv, "node")


def problem(*argv: str) -> str:
    with pytest.raises(StartupError) as e:
        load(*argv)
    assert e.value.exit_code == 2
    return e.value.message


def toml(tmp_path: Path, text: str) -> str:
    path = tmp_path / "p.toml"
    path.write_text(text)
    return str(path)


def test_a_flag_wins_over_the_environment_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = toml(tmp_path, 'node_id = 1\nrack = "file"\ngrpc_bind = "127.0.0.1:1"\n')
    monkeypatch.setenv("PENSTOCK_RACK", "environment")
    monkeypatch.setenv("PENSTOCK_GRPC_BIND", "127.0.0.1:2")
    monkeypatch.setenv("PENSTOCK_UNKNOWN_THING", "ignored")
    settings = load("--config", path, "--grpc-bind", "127.0.0.1:3")
    assert (settings.node_id, settings.rack, settings.grpc_bind) == (1, "environment", "127.0.0.1:3")
    assert settings.log_level == "INFO"


def test_the_file_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CONFIG", toml(tmp_path, "node_id = 7"))
    assert load().node_id == 7


def test_lists_as_commas_as_json_and_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ["a:1", "2@b:2"]
    assert load("--node-id=1", "--controllers", "a:1, 2@b:2").controllers == expected
    assert load("--node-id=1", "--controllers", '["a:1","2@b:2"]').controllers == expected
    assert load("--node-id=1", "--controllers", "a:1", "--controllers", "2@b:2").controllers == expected
    assert load("--node-id=1", "--ports", "1,2").ports == [1, 2]
    monkeypatch.setenv("PENSTOCK_CONTROLLERS", "a:1,2@b:2")
    assert load("--node-id=1").controllers == expected
    path = toml(tmp_path, 'controllers = ["c:1"]\n[limits]\nx = 1\n')
    monkeypatch.delenv("PENSTOCK_CONTROLLERS")
    assert load("--node-id=1", "--config", path).controllers == ["c:1"]
    assert load("--node-id=1", "--config", path).limits == {"x": 1}
    assert load("--node-id=1", "--limits", '{"y": 2}').limits == {"y": 2}


def test_listeners_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = '{"name":"DIRECT","bind":"127.0.0.1:9393","mode":"direct"}'
    expected = [ListenerSettings(name="DIRECT", bind="127.0.0.1:9393", mode="direct")]
    assert load("--node-id=1", "--listeners", f"[{one}]").listeners == expected
    assert load("--node-id=1", "--listeners", one).listeners == expected
    monkeypatch.setenv("PENSTOCK_LISTENERS", f"[{one}]")
    assert load("--node-id=1").listeners == expected
    path = toml(
        tmp_path,
        '[[listeners]]\nname = "PROXY"\nbind = "127.0.0.1:1"\nproxy_protocol = true\n'
        'proxy_from = ["10.1.0.0/16"]\n'
        '[listeners.advertised]\nhost-gateway = "localhost:9092"\n"10.0.0.0/8" = "gw:9092"\n"*" = "auto"\n',
    )
    monkeypatch.delenv("PENSTOCK_LISTENERS")
    (listener,) = load("--node-id=1", "--config", path).listeners
    assert listener.proxy_protocol
    assert listener.proxy_from == ("10.1.0.0/16",)
    assert listener.advertised_by_network() == [
        ("host-gateway", ("localhost", 9092)),
        ("10.0.0.0/8", ("gw", 9092)),
        ("*", None),
    ]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), ["--node-id is missing", "PENSTOCK_NODE_ID", "node_id in the TOML"]),
        (("--node-id", "x"), ["--node-id = x", "integer"]),
        (("--node-idd", "1"), ["--node-idd", "did you mean --node-id"]),
        (("--node-i", "1"), ["unknown flag --node-i"]),
        (
            ("--node-id=1", "--rack=a/b/c/d"),
            ["--rack = a/b/c/d", "has 4 levels, at most 3", "write ZONE/HOST"],
        ),
        (("--node-id=1", "--rack=a//b"), ["--rack = a//b", "has a level that is empty"]),
        (
            ("--broker.rack=a",),
            ["unknown flag --broker.rack: broker.rack is Kafka's name; here it is --rack"],
        ),
        (
            ("--node-id=1", "--log-dirs", "x"),
            ["unknown flag --log-dirs: log.dirs is Kafka's", "--data-dir (one"],
        ),
        (("stray",), ["stray"]),
        (("--node-id",), ["--node-id", "expected one argument"]),
        (("--node-id=1", "--grpc-bind", "host"), ["--grpc-bind = host", "write host:port"]),
        (("--node-id=1", "--grpc-bind", "a:99999"), ["--grpc-bind", "65535"]),
        (("--node-id=1", "--controllers", "x@a:1"), ["--controllers", "1@host:port"]),
        (("--node-id=1", "--log-level", "loud"), ["--log-level = LOUD", "'WARNING'"]),
        (("--node-id=1", "--config", "/none.toml"), ["/none.toml", "No such file"]),
        (("--node-id=1", "--listeners", "[{]"), ["--listeners", "not JSON"]),
        (("--node-id=1", "--listeners", "A"), ["--listeners", "as JSON"]),
        (
            ("--node-id=1", "--listeners", '[{"name":"A","bind":"a:1","security":"SSL"}]'),
            ["listener A: security = SSL needs tls"],
        ),
        (
            ("--node-id=1", "--listeners", '[{"name":"A","bind":"a:1","security":"TLS"}]'),
            ["--listeners[0].security: ", "PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"],
        ),
        (
            ("--node-id=1", "--listeners", '[{"name":"A","bind":"a:1","max_reauth_ms":1}]'),
            ["listener A: security = PLAINTEXT has no use for sasl_mechanisms and max_reauth_ms"],
        ),
        (
            (
                "--node-id=1",
                "--listeners",
                '[{"name":"A","bind":"a:1","security":"SASL_PLAINTEXT","sasl_mechanisms":["GSSAPI"]}]',
            ),
            ["--listeners[0].sasl_mechanisms", "'GSSAPI' is none of SCRAM-SHA-256, SCRAM-SHA-512, PLAIN"],
        ),
        (
            ("--node-id=1", "--listeners", '[{"name":"A","bind":"a:1","mod":"x"}]'),
            ["unknown listeners[0].mod", "did you mean mode"],
        ),
        (
            ("--node-id=1", "--listeners", '[{"name":"A","bind":"a:1"},{"name":"A","bind":"a:2"}]'),
            ["listeners: two have the name A"],
        ),
        (
            ("--node-id=1", "--listeners", '[{"name":"A","bind":"a:1","advertised":{"10.0.0.1/8":"x:1"}}]'),
            ["--listeners[0].advertised", "CIDR"],
        ),
    ],
)
def test_a_bad_flag_is_one_line_that_names_it(argv: tuple[str, ...], words: list[str]) -> None:
    message = problem(*argv)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_bad_variables_and_keys_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toml(tmp_path, 'node_id = 1\ndata_dirr = "x"\nlog_format = "xml"\n')
    monkeypatch.setenv("PENSTOCK_SHUTDOWN_TIMEOUT_MS", "-5")
    lines = sorted(problem("--config", path).splitlines())
    assert len(lines) == 3
    assert lines[0].startswith("PENSTOCK_SHUTDOWN_TIMEOUT_MS = -5")
    assert lines[1].startswith("log_format in the TOML file = xml")
    assert lines[2] == "unknown key 'data_dirr'; did you mean data_dir?"
    assert "is not TOML" in problem("--config", toml(tmp_path, "node_id ="))


def test_keys_of_a_server_properties_are_told_what_they_are_called_here(tmp_path: Path) -> None:
    """Unquoted dots of a TOML key make tables: the names are put together again."""
    text = 'node_id = 1\nlog.retention.hours = 1\nlog.dirs = "x"\n[broker]\nrack = "a"\n'
    lines = sorted(problem("--config", toml(tmp_path, text)).splitlines())
    assert lines == [
        "unknown key 'broker': broker.rack is Kafka's name; here it is rack",
        "unknown key 'log': log.retention.hours is a setting of the running cluster: `penstock config set cluster "
        "log.retention.ms=VALUE`; log.dirs is Kafka's name; here it is data_dir (one directory)",
    ]
    (line,) = problem("--config", toml(tmp_path, 'node_id = 1\n"broker.rack" = "a"\n')).splitlines()
    assert line == "unknown key 'broker.rack': broker.rack is Kafka's name; here it is rack"


def test_secrets_are_printed_nowhere(tmp_path: Path) -> None:
    settings = load("--node-id=1", "--api-token", "hunter2", "--key", "hunter3")
    assert "hunter" not in str(settings.printable())
    assert settings.printable()["node_id"] == 1
    assert "hunter" not in problem("--api-token", "hunter2")
    path = toml(tmp_path, 'node_id = 1\napi_token = ["hunter4"]')
    assert "hunter" not in problem("--config", path)


def test_secrets_in_tables_are_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = '{"key": "hunter1", "bearer_token": "hunter2", "key_password_file": "/etc/word"}'
    settings = load("--node-id=1", "--door", table)
    assert "hunter" not in f"{settings.printable()}"
    assert settings.printable()["door"]["key_password_file"] == "/etc/word"  # type: ignore[index]
    for wrong in (
        '{"key": {"it": "hunter1"}}',
        '{"width": "hunter1"}',
        '{"wide": "hunter1"}',
        '{"key": "hunter1"',
        '"hunter1"',
    ):
        told = problem("--node-id=1", "--door", wrong)
        assert "hunter" not in told, told
        assert "door" in told
        monkeypatch.setenv("PENSTOCK_DOOR", wrong)
        assert "hunter" not in problem("--node-id=1")
        monkeypatch.delenv("PENSTOCK_DOOR")
    path = toml(tmp_path, 'node_id = 1\n[door]\nwidth = "hunter1"')
    told = problem("--config", path)
    assert "door.width" in told
    assert "hunter" not in told
    path = toml(tmp_path, 'node_id = 1\ndoor = "hunter1')
    assert "hunter" not in problem("--config", path)


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        load("--help")
    assert e.value.code == 0
    text = capsys.readouterr().out
    for word in (
        "A node for tests.",
        "--node-id",
        "100% needed (required)",
        "PENSTOCK_SOME_NAME",
        "example:",
    ):
        assert word in text
    with pytest.raises(SystemExit):
        load("--version")
    assert capsys.readouterr().out.startswith("penstock-node ")


def test_booleans_with_and_without_a_value() -> None:
    assert load("--node-id=1", "--allow-insecure-bind").allow_insecure_bind
    assert load("--node-id=1", "--allow-insecure-bind=true").allow_insecure_bind
    assert not load("--node-id=1", "--allow-insecure-bind", "false").allow_insecure_bind
    assert load("--node-id", "-1").node_id == -1


def test_plaintext_ports_are_named_or_all() -> None:
    assert load("--node-id=1").plaintext == frozenset()
    assert load("--node-id=1", "--allow-plaintext=grpc,listener:PROXY").plaintext == frozenset(
        {
            "grpc",
            "listener:PROXY",
        }
    )
    assert load("--node-id=1", "--allow-insecure-bind", "--allow-plaintext=grpc").plaintext is True
    with pytest.raises(StartupError, match="'kafka' is no port; use grpc, raft, http or listener:NAME"):
        load("--node-id=1", "--allow-plaintext=kafka")


def test_addresses() -> None:
    assert parse_address("[::1]:5") == ("::1", 5)
    assert str(parse_address("[::1]:5")) == "[::1]:5"
    assert parse_address(":5") == ("", 5)
    assert parse_member("3@h:5") == (3, ("h", 5))
    assert parse_member("h:5") == (None, ("h", 5))
    for bad in ("h", "h:", "h:x", "::1:5", "h:70000", "a b:1", "http://x:1", "h:\u0661"):
        with pytest.raises(ValueError):
            parse_address(bad)
