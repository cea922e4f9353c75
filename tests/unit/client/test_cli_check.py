"""`penstock cluster check` and `capacity`, against a gateway that is a real gRPC server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.cli import check
from penstock.cli.main import run
from penstock.errors import ExitCode
from penstock_proto.v1 import operations_pb2 as pb
from unit.client.admin_gateway import Admin, serving

UNSAFE = pb.Finding(
    severity="warning",
    code="domain-unsafe",
    subject="topic flights",
    detail="it does not outlive the loss of one host",
    hint="`penstock cluster rebalance --topic flights`",
)
STRAYS = pb.Finding(severity="info", code="strays", subject="node 1", detail="2 logs", hint="look")


class Observed(Admin):
    """Tells findings, one list at each look; the last one stays."""

    def __init__(self) -> None:
        super().__init__()
        self.findings: list[list[pb.Finding]] = [[]]
        self.looked = 0
        self.away = 0
        """So many looks find no active controller."""
        self.told = pb.DescribeCapacityResponse()

    def CheckCluster(self, request: Any, context: Any) -> Any:  # noqa: N802 - the API's names
        self.looked += 1
        if self.away:
            self.away -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "no active controller answers")
        found = self.findings.pop(0) if len(self.findings) > 1 else self.findings[0]
        return pb.CheckClusterResponse(findings=found, metadata_version=9)

    def DescribeCapacity(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self.told


class Session:
    def __init__(self, admin: Observed, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.admin = admin
        self._address = address
        self._capsys = capsys

    def run(self, *words: str, expect: int = ExitCode.OK) -> tuple[str, str]:
        code = run(["cluster", *words, "--gateway", self._address])
        captured = self._capsys.readouterr()
        assert code == expect, (words, code, captured.out, captured.err)
        return captured.out, captured.err


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("BOOTSTRAP", "GATEWAY", "LOCAL_DIR", "CLIENT_CONFIG"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check, "POLL_S", 0.01)


@pytest.fixture
def session(capsys: pytest.CaptureFixture[str]) -> Iterator[Session]:
    admin = Observed()  # type: ignore[abstract]
    with serving(admin) as address:
        yield Session(admin, address, capsys)


def test_well_is_0_and_says_so(session: Session) -> None:
    assert session.run("check") == ("", "nothing is amiss\n")
    out, _ = session.run("check", "--json")
    assert json.loads(out) == {"ok": True, "findings": []}


def test_a_warning_is_1_and_info_is_not(session: Session) -> None:
    session.admin.findings = [[UNSAFE, STRAYS]]
    out, _ = session.run("check", expect=ExitCode.FAILED)
    head, unsafe, strays = out.splitlines()
    assert head.split() == ["SEVERITY", "CODE", "SUBJECT", "DETAIL", "WHAT_MENDS_IT"]
    assert unsafe.startswith("warning   domain-unsafe  topic flights  it does not outlive")
    assert strays.startswith("info")
    out, _ = session.run("check", "--json", expect=ExitCode.FAILED)
    found = json.loads(out)
    assert not found["ok"]
    assert [set(each) for each in found["findings"]] == [
        {"severity", "code", "subject", "detail", "hint"}
    ] * 2
    session.admin.findings = [[STRAYS]]
    _, err = session.run("check")
    assert err == "no error and no warning\n"


def test_waiting_ends_once_it_is_well(session: Session) -> None:
    session.admin.findings = [[UNSAFE], [UNSAFE], []]
    session.admin.away = 4
    out, _ = session.run("check", "--wait", "60", "--json")
    assert json.loads(out)["ok"]
    assert session.admin.looked == 7


def test_waiting_that_runs_out_shows_what_is_left(session: Session) -> None:
    session.admin.findings = [[UNSAFE]]
    out, _ = session.run("check", "--wait", "0.1", expect=ExitCode.FAILED)
    assert "topic flights" in out
    assert session.admin.looked > 1


def test_nobody_to_ask_is_3(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["cluster", "check", "--wait", "0.1", "--gateway", "127.0.0.1:1"])
    assert code == ExitCode.UNREACHABLE
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_an_older_gateway_is_named_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(None) as address:
        assert run(["cluster", "check", "--gateway", address]) == ExitCode.FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert "install a newer one" in line


def test_capacity_is_a_table(session: Session) -> None:
    session.admin.told = pb.DescribeCapacityResponse(
        nodes=[
            pb.NodeCapacity(
                node_id=1,
                disk_total_bytes=100 * 10**9,
                disk_free_bytes=25 * 10**9,
                log_bytes=60 * 10**9,
                growth_bytes_per_s=2e6,
                full_in_s=12_500,
                in_bytes_per_s=2e6,
                out_bytes_per_s=0,
                loop_busy_ratio=0.5,
            ),
            pb.NodeCapacity(node_id=2),
        ],
        survives_node=True,
        survives_rack=False,
    )
    out, _ = session.run("capacity")
    first = next(line for line in out.splitlines() if line.startswith("1 "))
    for cell in ("75%", "25.0 GB", "60.0 GB", "2.0 MB/s", "3 h 28 min", "0 B/s", "50%"):
        assert cell in first
    assert next(line for line in out.splitlines() if line.startswith("2 ")).split() == ["2", *["-"] * 8]
    assert [line.split()[-1] for line in out.splitlines()[-3:]] == ["yes", "none", "no"]
    out, _ = session.run("capacity", "--json")
    assert json.loads(out)["nodes"][0]["full_in_s"] == 12_500


@pytest.mark.parametrize(("free", "bar"), [(100, "░" * 20), (50, "█" * 10 + "░" * 10), (0, "█" * 20)])
def test_a_bar_at_a_terminal(free: int, bar: str) -> None:
    node = dict.fromkeys(
        ("disk_total_bytes", "log_bytes", "growth_bytes_per_s", "full_in_s", "in_bytes_per_s"), None
    )
    node |= {"node_id": 1, "disk_total_bytes": 100, "disk_free_bytes": free, "out_bytes_per_s": None}
    row = check.capacity_row({**node, "loop_busy_ratio": None}, bars=True)
    assert row[1] == f"{bar} {100 - free}%"
