"""`penstock explain`: what the gateway says, for people and for machines, and what cannot be asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.cli.explain import parse_since
from penstock.cli.main import run
from penstock.errors import CommandError, ExitCode
from penstock_proto.v1 import operations_pb2 as pb
from unit.client.admin_gateway import Admin, serving

NOW_MS = 1_800_000_000_000
AT_MS = 1_769_860_800_000  # 2026-01-31 12:00:00 UTC


class Explaining(Admin):
    """Knows node 2, operation 9 and partition flights-3."""

    def __init__(self) -> None:
        super().__init__()
        self.explained: list[pb.ExplainRequest] = []

    def Explain(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.explained.append(request)
        if (request.topic, request.partition) != ("flights", 3) and not (
            request.node_id == 2 or request.operation_id == 9
        ):
            response = pb.ExplainResponse()
            response.error.code, response.error.message = (
                3,
                "no topic has the name 'x'; see `penstock topic list`",
            )
            return response
        return pb.ExplainResponse(
            subject="partition flights-3",
            summary="flights-3 is well",
            now=["node 3 leads it since epoch 5"],
            story=[
                pb.StoryLine(
                    time_ms=AT_MS,
                    version=7,
                    event="leader",
                    cause="fence",
                    detail="node 2 fell silent.",
                    by="",
                ),
                pb.StoryLine(
                    time_ms=AT_MS + 86_400_000, version=8, event="isr", detail="node \x1b[31m2 is back."
                ),
            ],
            incomplete_before_ms=NOW_MS * 2,
        )


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Explaining, str]]:
    for name in ("BOOTSTRAP", "GATEWAY", "LOCAL_DIR", "CLIENT_CONFIG"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    admin = Explaining()  # type: ignore[abstract]
    with serving(admin) as address:
        yield admin, address


def test_for_people(gateway: tuple[Explaining, str], capsys: pytest.CaptureFixture[str]) -> None:
    admin, address = gateway
    assert (
        run(["explain", "partition", "flights-3", "--since", "2026-01-31T00:00Z", "--gateway", address]) == 0
    )
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "flights-3 is well.",
        "  node 3 leads it since epoch 5",
        "",
        "2026-01-31 (UTC)",
        "12:00:00 node 2 fell silent.",
        "",
        "2026-02-01 (UTC)",
        r"12:00:00 node \x1b[31m2 is back.",
    ]
    assert "not everything is known" in said.err
    (request,) = admin.explained
    assert (request.topic, request.partition, request.since_ms) == ("flights", 3, AT_MS - 43_200_000)


def test_for_machines(gateway: tuple[Explaining, str], capsys: pytest.CaptureFixture[str]) -> None:
    admin, address = gateway
    assert run(["explain", "node", "2", "--json", "--gateway", address]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["subject", "summary", "now", "story", "incomplete_before_ms"]
    assert found["story"][0] == {
        "time_ms": AT_MS,
        "version": 7,
        "event": "leader",
        "cause": "fence",
        "detail": "node 2 fell silent.",
        "by": None,
    }
    assert run(["explain", "operation", "9", "--gateway", address]) == 0
    assert [r.operation_id or r.node_id for r in admin.explained] == [2, 9]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["partition", "x-1"], ExitCode.FAILED, "no topic has the name 'x'"),
        (["partition", "flights"], ExitCode.USAGE, "say TOPIC-N"),
        (["partition", "flights-"], ExitCode.USAGE, "say TOPIC-N"),
        (["node", "0"], ExitCode.USAGE, "0 is not in the range"),
        (["operation", "nine"], ExitCode.USAGE, "'nine' is not a valid integer"),
        (["node", "2", "--since", "yesterday"], ExitCode.USAGE, "--since 'yesterday'"),
        (["node", "2", "--since", "2999-01-01"], ExitCode.USAGE, "yet to come"),
    ],
)
def test_what_cannot_be_asked(
    gateway: tuple[Explaining, str],
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    said: str,
) -> None:
    assert run(["explain", *words, "--gateway", gateway[1]]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_an_older_gateway_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(None) as address:
        assert run(["explain", "node", "2", "--gateway", address]) == ExitCode.FAILED
    assert "older than this command's" in capsys.readouterr().err


def test_spans_and_times() -> None:
    assert parse_since("30m", NOW_MS) == NOW_MS - 1_800_000
    assert parse_since("2h", NOW_MS) == NOW_MS - 7_200_000
    assert parse_since("7d", NOW_MS) == NOW_MS - 604_800_000
    assert parse_since("2026-01-31T12:00", NOW_MS) == AT_MS
    assert parse_since("2026-01-31T13:00+01:00", NOW_MS) == AT_MS
    for text in ("", "2", "h", "-2h", "1970-01-01", "0001-01-01", "2h ago"):
        with pytest.raises(CommandError):
            parse_since(text, NOW_MS)
