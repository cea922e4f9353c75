"""`cluster rolling-restart` and `operation resume --via`: what is restarted, by whom, and how the command ends."""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import restarting
from penstock.cli.main import run
from penstock.cli.via.exec_command import ExecWay
from penstock.cli.via.ways import ProcessName
from penstock.errors import CommandError, ExitCode
from penstock_core.errors import ErrorCode
from penstock_proto.v1 import metadata_pb2
from penstock_proto.v1 import operations_pb2 as pb
from unit.client.admin_gateway import DONE, RUNNING, Admin, serving

NAMES = ("gateway-1", "node-1", "controller-1")
STEP_RUNNING = metadata_pb2.OPERATION_STEP_STATE_RUNNING
STEP_DONE = metadata_pb2.OPERATION_STEP_STATE_DONE


class Restarting(Admin):
    """Hands out one step after another; a process counts as restarted once its name is in the file."""

    def __init__(self, done: Path) -> None:
        super().__init__()
        self.done = done
        self.executions: list[pb.ExecuteOperationRequest] = []
        self.taken = 0
        """So many requests are told that another command is at work."""
        self.late = ""
        del self.plan.moves[:]
        self.plan.totals.Clear()
        for name in NAMES:
            self.plan.steps.add(name=name, role=role_of(name), action="restart")

    def begin(self, state: int = RUNNING) -> None:
        self.record = metadata_pb2.OperationRecord(operation_id=121, kind="rolling-restart", state=state)  # type: ignore[arg-type]
        self.states = [state]
        for name in NAMES:
            self.record.steps.add(name=name, role=role_of(name), boot_id_before=name.encode())

    def ExecuteOperation(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.executions.append(request)
        response = pb.ExecuteOperationResponse(ask_again_ms=10)
        if self.taken:
            self.taken -= 1
            response.error.code = ErrorCode.REBALANCE_IN_PROGRESS
            response.error.message = "operation 121 is carried out by another command"
            return response
        assert self.record is not None
        if not self.record.steps:
            self.begin()
        restarted = self.done.read_text().split() if self.done.exists() else []
        for step in self.record.steps:
            if step.name in restarted:
                step.state = STEP_DONE
                continue
            step.state = STEP_RUNNING
            if self.late == step.name:
                step.reason = f"{step.name} is not back"
                self.record.state = metadata_pb2.OPERATION_STATE_PAUSED
            elif not request.leaving:
                response.step.CopyFrom(step)
                response.http = "127.0.0.1:8080"
            break
        else:
            self.record.state = DONE
        response.operation.CopyFrom(pb.Operation(record=self.record))
        return response


def role_of(name: str) -> str:
    return {"gateway": "gateway", "node": "storage-node", "controller": "controller"}[name.split("-")[0]]


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("BOOTSTRAP", "GATEWAY", "LOCAL_DIR", "CLIENT_CONFIG"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(restarting, "ASK_S", 0.01)


class Session:
    """The command in this process, without a terminal, and the operator's script that restarts."""

    def __init__(self, admin: Restarting, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.admin = admin
        self.script = admin.done.with_name("restart.py")
        self.script.write_text("import sys\nopen(sys.argv[1], 'a').write(sys.argv[2] + '\\n')\n")
        self.exec = (
            *("--via", "exec", "--command"),
            shlex.join([sys.executable, str(self.script), str(admin.done), "{name}"]),
        )
        self._address = address
        self._capsys = capsys

    def run(self, *words: str, expect: int = ExitCode.OK) -> tuple[str, str]:
        code = run([*words, "--gateway", self._address])
        captured = self._capsys.readouterr()
        assert code == expect, (words, code, captured.out, captured.err)
        return captured.out, captured.err

    @property
    def restarted(self) -> list[str]:
        return self.admin.done.read_text().split() if self.admin.done.exists() else []


@pytest.fixture
def session(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Session]:
    admin = Restarting(tmp_path / "restarted")  # type: ignore[abstract]
    with serving(admin) as address:
        yield Session(admin, address, capsys)


RESTART = ("cluster", "rolling-restart")


def test_each_is_restarted_once_and_the_end_is_told(session: Session) -> None:
    out, _ = session.run(
        *RESTART, "--yes", "--json", "--role", "gateway", "--step-timeout", "60", *session.exec
    )
    told = json.loads(out)
    assert told["state"] == "done"
    assert [(step["name"], step["state"]) for step in told["steps"]] == [(name, "done") for name in NAMES]
    assert (told["progress"]["steps_total"], told["progress"]["steps_done"]) == (3, 3)
    assert session.restarted == list(NAMES)
    parameters = session.admin.started[0].request.parameters
    assert (list(parameters.roles), parameters.step_timeout_s) == (["gateway"], 60)
    assert {e.via for e in session.admin.executions} == {"exec"}
    assert len({e.executor_id for e in session.admin.executions}) == 1


def test_the_plan_is_shown_and_a_dry_run_needs_no_way(session: Session) -> None:
    out, _ = session.run(*RESTART, "--dry-run")
    assert all(name in out for name in NAMES)
    told = json.loads(session.run(*RESTART, "--dry-run", "--json")[0])
    assert told["steps"] == [{"name": n, "role": role_of(n), "action": "restart"} for n in NAMES]
    assert session.admin.started == []


def test_a_gate_refuses(session: Session) -> None:
    session.admin.plan.runnable = False
    session.admin.plan.gates.add(name="min-isr", blocking=True, detail="node-3 is down")
    out, err = session.run(*RESTART, "--yes", "--json", *session.exec, expect=ExitCode.REFUSED)
    assert json.loads(out)["gates"][0]["name"] == "min-isr"
    assert "node-3 is down" in err
    assert session.admin.started == []


def test_a_process_that_does_not_come_back_ends_the_command(session: Session) -> None:
    session.admin.late = "node-1"
    _, err = session.run(*RESTART, "--yes", *session.exec, expect=ExitCode.FAILED)
    assert "node-1 is not back" in err
    assert "operation resume 121" in err
    assert session.admin.executions[-1].leaving
    assert session.restarted == ["gateway-1"]


def test_a_restart_that_fails_ends_the_command(session: Session) -> None:
    session.script.write_text("raise SystemExit(7)")
    _, err = session.run(*RESTART, "--yes", *session.exec, expect=ExitCode.FAILED)
    assert "gateway-1" in err
    assert "ended with 7" in err
    assert session.admin.executions[-1].leaving


def test_the_wait_is_over(session: Session) -> None:
    _, err = session.run(*RESTART, "--yes", "--wait", "0", *session.exec, expect=ExitCode.GOES_ON)
    assert "operation 121" in err
    assert session.admin.executions[-1].leaving


def test_resume_waits_for_the_lease_of_another_command(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.admin.begin(metadata_pb2.OPERATION_STATE_PAUSED)
    session.admin.taken = 1
    out, err = session.run("operation", "resume", "121", "--json", *session.exec)
    assert json.loads(out)["state"] == "done"
    assert "another command" in err
    assert session.admin.controlled[0].control == pb.OPERATION_CONTROL_RESUME
    assert session.restarted == list(NAMES)
    monkeypatch.setattr(restarting, "TAKE_OVER_S", 0.0)
    session.admin.begin(metadata_pb2.OPERATION_STATE_PAUSED)
    session.admin.taken = 1
    _, err = session.run("operation", "resume", "121", *session.exec, expect=ExitCode.FAILED)
    assert "another command" in err


def test_operation_show_names_the_steps(session: Session) -> None:
    session.admin.begin()
    assert session.admin.record is not None
    session.admin.record.steps[0].state = STEP_DONE
    out, _ = session.run("operation", "show", "121")
    assert "1 of 3 steps" in out
    assert "node-1" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--via"),
        (["--via", "exec"], "--command"),
        (["--via", "local"], "--dir"),
        (["--command", "x {name}"], "--via exec"),
        (["--via", "exec", "--command", "restart.sh"], "{name}"),
        (["--via", "exec", "--command", "x {name"], "--command"),
        (["--via", "exec", "--command", "x {user}"], "{user}"),
        (["--via", "exec", "--command", "x {name.__class__}"], "no such field"),
        (["--via", "exec", "--command", "x '{name}"], "quot"),
        (["--via", "exec", "--command", ""], "empty"),
        (["--via", "exec", "--command", "x {name}", "--recreate"], "--via compose"),
        (["--via", "local", "--project", "p"], "--via compose"),
    ],
)
def test_ways_that_cannot_be_meant(session: Session, words: list[str], said: str) -> None:
    _, err = session.run(*RESTART, "--yes", *words, expect=ExitCode.USAGE)
    assert said in err
    assert session.admin.started == []


def test_the_command_for_a_process_goes_through_no_shell() -> None:
    way = ExecWay("ssh 'a b' {role}/{name} {id} --at={http} '{{x}}' '; rm {name}'")
    node = ProcessName("storage-node", "node-3", "10.0.0.3:8080")
    assert way.words(node) == [
        *("ssh", "a b", "storage-node/node-3", "3", "--at=10.0.0.3:8080", "{x}", "; rm node-3"),
    ]
    strange = ProcessName("gateway", "g $(rm) 'x", "")
    assert way.words(strange)[2:4] == ["gateway/g $(rm) 'x", "g $(rm) 'x"]
    with pytest.raises(CommandError, match="cannot run"):
        ExecWay("/absent/command {name}").restart(node)
