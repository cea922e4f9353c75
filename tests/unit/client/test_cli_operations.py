"""Commands that plan and steer changes of the cluster, against a gateway that is a real gRPC server."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import follow, node_rows
from penstock.cli.admin import Admin as Asking
from penstock.cli.admin import Where
from penstock.cli.gateways import cluster_id_at
from penstock.cli.main import run
from penstock.connector import PLAINTEXT
from penstock.errors import ExitCode
from penstock_core.operation_documents import NO_CONDITION, operation_document
from penstock_proto.v1 import metadata_pb2
from penstock_proto.v1 import operations_pb2 as pb
from unit.client.admin_gateway import DONE, RUNNING, Admin, serving

PENDING = metadata_pb2.OPERATION_STATE_PENDING


class Session:
    """The command in this process, without a terminal."""

    def __init__(self, admin: Admin, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.admin = admin
        self.address = address
        self._capsys = capsys

    def run(self, *words: str, expect: int = ExitCode.OK) -> tuple[str, str]:
        code = run([*words, "--gateway", self.address])
        captured = self._capsys.readouterr()
        assert code == expect, (words, code, captured.out, captured.err)
        return captured.out, captured.err

    def json(self, *words: str, expect: int = ExitCode.OK) -> Any:
        return json.loads(self.run(*words, "--json", expect=expect)[0])


class Terminal(io.StringIO):
    """Where a person has typed."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("BOOTSTRAP", "GATEWAY", "LOCAL_DIR", "CLIENT_CONFIG"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(follow, "POLL_S", 0.01)


@pytest.fixture
def session(capsys: pytest.CaptureFixture[str]) -> Iterator[Session]:
    admin = Admin()  # type: ignore[abstract]
    with serving(admin) as address:
        yield Session(admin, address, capsys)


COMMANDS: list[tuple[list[str], str, dict[str, Any]]] = [
    (["node", "add", "4,5"], "node-add", {"node_ids": [4, 5]}),
    (["node", "drain", "3"], "node-drain", {"node_ids": [3]}),
    (["node", "uncordon", "3"], "node-uncordon", {"node_ids": [3]}),
    (["node", "replace", "3"], "node-replace", {"node_ids": [3]}),
    (
        ["node", "replace", "3", "--with", "7"],
        "node-replace",
        {"node_ids": [3], "replacement_node_id": 7},
    ),
    (["node", "remove", "3"], "node-remove", {"node_ids": [3]}),
    (
        ["topic", "set-replication-factor", "a,b", "3"],
        "set-replication-factor",
        {"topics": ["a", "b"], "replication_factor": 3},
    ),
    (["cluster", "rebalance"], "rebalance", {"goals": ["replicas", "leaders"]}),
    (
        [
            *("cluster", "rebalance", "--goal", "bytes,leaders", "--topic", "a", "--topic", "b"),
            *("--exclude-node", "5", "--max-bytes", "10GB"),
        ],
        "rebalance",
        {
            "goals": ["leaders", "bytes"],
            "topics": ["a", "b"],
            "excluded_node_ids": [5],
            "max_bytes": 10**10,
        },
    ),
    (["leader", "elect"], "leader-elect", {}),
    (["controller", "replace", "3"], "controller-replace", {"controller_id": 3}),
    (
        ["leader", "elect", "--topic", "a", "--partition", "0", "-p", "3"],
        "leader-elect",
        {"topics": ["a"], "partitions": [0, 3]},
    ),
]


@pytest.mark.parametrize(("words", "kind", "parameters"), COMMANDS, ids=lambda w: str(w))
def test_what_a_command_asks_for(
    session: Session, words: list[str], kind: str, parameters: dict[str, Any]
) -> None:
    plan = session.json(*words, "--dry-run")
    (request,) = session.admin.asked
    assert request.kind == kind
    assert request.parameters == metadata_pb2.OperationParameters(**parameters)
    assert request.throttle == metadata_pb2.OperationThrottle(auto=True)
    assert list(request.allowed_gates) == []
    assert (plan["kind"], plan["plan_id"]) == (kind, "00112233aabbccdd")
    assert session.admin.started == []
    begun = session.json(*words, "--yes")
    assert (begun["operation_id"], begun["kind"], begun["state"]) == (121, kind, "pending")
    (started,) = session.admin.started
    assert (started.request, started.plan_id) == (request, "")


def test_what_only_a_gateway_can_do_is_not_asked_of_controllers(capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--dry-run"], ["--plan-id", "0" * 16], ["--watch", "--yes"]):
        assert run(["controller", "replace", "3", "--controllers", "127.0.0.1:1", *option]) == ExitCode.USAGE
        error = capsys.readouterr().err
        assert (f"{option[0]} needs a gateway" in error, error.count("\n")) == (True, 1)


def test_the_old_timeout_is_a_wait(session: Session) -> None:
    session.admin.states = [RUNNING]
    words = ("controller", "replace", "3", "--yes", "--timeout", "0.05")
    assert "goes on" in session.run(*words, expect=ExitCode.GOES_ON)[1]


def test_the_common_options_reach_the_controllers(session: Session) -> None:
    session.json(
        *("node", "drain", "3", "--yes", "--throttle", "48MiB/s", "--allow", "health", "--allow", "racks"),
        *("--plan-id", "00112233AABBCCDD"),
    )
    (started,) = session.admin.started
    assert started.request.throttle == metadata_pb2.OperationThrottle(bytes_per_s=48 << 20)
    assert list(started.request.allowed_gates) == ["health", "racks"]
    assert started.plan_id == "00112233aabbccdd"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["node", "drain", "3"], "--yes"),
        (["cluster", "rebalance", "--json"], "--dry-run"),
        (["node", "add", "4;5", "--yes"], "4;5"),
        (["node", "drain", "0", "--yes"], "ID"),
        (["node", "drain", "3", "--yes", "--throttle", "fast"], "fast"),
        (["node", "drain", "3", "--yes", "--allow", "quorum"], "quorum"),
        (["node", "drain", "3", "--yes", "--plan-id", "xyz"], "xyz"),
        (["node", "drain", "3", "--yes", "--wait", "-1"], "--wait"),
        (["node", "drain", "3", "--yes", "--wait", "nan"], "--wait"),
        (["cluster", "rebalance", "--yes", "--goal", "disks"], "disks"),
        (["cluster", "rebalance", "--yes", "--max-bytes", "much"], "much"),
        (["topic", "set-replication-factor", ",", "3", "--yes"], "topics"),
        (["leader", "elect", "--partition", "3", "--yes"], "--topic"),
        (["operation", "throttle", "121", "slow"], "slow"),
        (["operation", "show", "x"], "ID"),
    ],
)
def test_bad_usage_is_one_line_and_nobody_is_asked(session: Session, words: list[str], named: str) -> None:
    out, err = session.run(*words, expect=ExitCode.USAGE)
    assert (out, err.count("\n")) == ("", 1)
    assert named in err
    assert session.admin.asked == []


def test_the_plan_is_shown_before_it_is_begun(session: Session) -> None:
    out, err = session.run("node", "drain", "3", "--yes")
    assert out.startswith("plan      00112233aabbccdd of metadata version 120\nwhat      node-drain node 3\n")
    assert (
        err == "operation 121 (node-drain) is pending; `penstock operation watch 121` shows how far it is\n"
    )
    out, err = session.run("node", "drain", "3", "--dry-run")
    assert "node-drain node 3" in out
    assert err == "nothing was changed; leave --dry-run out to do it\n"


@pytest.mark.parametrize("answer", ["y\n", "n\n"])
def test_a_person_is_asked_and_begins_the_plan_that_was_shown(
    session: Session, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    yes = answer == "y\n"
    out, err = session.run("node", "drain", "3", expect=ExitCode.OK if yes else ExitCode.FAILED)
    assert "node-drain node 3" in out
    assert "Begin node-drain of node 3 (1 move, 0 B)?" in err
    assert [start.plan_id for start in session.admin.started] == (["00112233aabbccdd"] if yes else [])
    assert ("nothing was changed" in err) != yes


@pytest.mark.parametrize("word", ["--yes", "--dry-run"])
def test_a_gate_refuses_with_the_plan_and_nothing_is_begun(session: Session, word: str) -> None:
    session.admin.plan.runnable = False
    session.admin.plan.gates.add(name="disk-room", blocking=True, detail="no room on node 4", items=["t-0"])
    plan = session.json("node", "drain", "3", word, expect=ExitCode.REFUSED)
    assert [gate["name"] for gate in plan["gates"] if gate["blocking"]] == ["disk-room"]
    out, err = session.run("node", "drain", "3", word, expect=ExitCode.REFUSED)
    assert "node-drain node 3" in out
    assert err.endswith("refused by disk-room: no room on node 4 (t-0); nothing was changed\n")
    assert session.admin.started == []


@pytest.mark.parametrize("word", ["--yes", "--dry-run"])
def test_another_plan_than_the_approved_one_is_refused(session: Session, word: str) -> None:
    plan = session.json(
        *("node", "drain", "3", word, "--plan-id", "0123456789abcdef"), expect=ExitCode.REFUSED
    )
    assert not plan["runnable"]
    assert [gate["name"] for gate in plan["gates"] if gate["blocking"]] == ["plan-changed"]
    assert session.admin.started == []


def test_a_gate_that_closes_between_plan_and_start_refuses_too(session: Session) -> None:
    session.admin.refuse_start_with = "conflict"
    plan = session.json("node", "drain", "3", "--yes", expect=ExitCode.REFUSED)
    assert [gate["name"] for gate in plan["gates"] if gate["blocking"]] == ["conflict"]
    assert len(session.admin.started) == 1


def test_what_cannot_be_planned_is_one_line(session: Session) -> None:
    session.admin.error.code, session.admin.error.message = 102, "no storage node has the id 77"
    for words in (("--yes",), ("--dry-run", "--json")):
        out, err = session.run("node", "drain", "77", *words, expect=ExitCode.FAILED)
        assert (out, err) == ("", "penstock: error: no storage node has the id 77\n")


def test_waiting_ends_with_the_operation(session: Session) -> None:
    session.admin.states = [PENDING, RUNNING, DONE]
    found = session.json("node", "drain", "3", "--yes", "--wait", "60")
    assert (found["state"], found["progress"]["moves_done"]) == ("done", 1)
    session.admin.states, session.admin.looks = [metadata_pb2.OPERATION_STATE_CANCELLED], 0
    out, err = session.run("node", "drain", "3", "--yes", "--wait", "60", "--json", expect=ExitCode.FAILED)
    assert json.loads(out)["state"] == "cancelled"
    assert "operation 121 (node-drain) is cancelled" in err


def test_waiting_that_runs_out_says_that_it_goes_on(session: Session) -> None:
    session.admin.states = [RUNNING]
    out, err = session.run("node", "drain", "3", "--yes", "--wait", "0.05", "--json", expect=ExitCode.GOES_ON)
    assert json.loads(out)["state"] == "running"
    assert "operation 121 is running after 0.05 s and goes on; `penstock operation watch 121`" in err


def test_watching_tells_each_change_in_a_line(session: Session) -> None:
    session.admin.states = [PENDING, RUNNING, RUNNING, DONE]
    out, _ = session.run("node", "drain", "3", "--yes", "--watch")
    lines = [line for line in out.splitlines() if line.startswith("operation 121")]
    assert [line.split(": ")[1].split(",")[0] for line in lines] == ["pending", "running", "done"]
    session.admin.states, session.admin.looks = [RUNNING, DONE], 0
    out, err = session.run("operation", "watch", "121", "--json")
    assert json.loads(out)["state"] == "done"
    assert "running" in err


def test_a_watcher_outlasts_gateways_that_are_away_for_a_while(session: Session) -> None:
    session.admin.states = [RUNNING]
    session.run("node", "drain", "3", "--yes")
    session.admin.states = [RUNNING, DONE]

    def lose(_s: float) -> None:
        if session.admin.looks == 1:
            session.admin.unavailable, session.admin.looks = 5, 2

    with Asking(lambda: session.address) as asking:
        begun = operation_document(asking.operation(121))
        assert follow.follow(asking, begun, sleep=lose) == ExitCode.OK
    assert (session.admin.unavailable, session.admin.looks) == (0, 3)


def test_a_watcher_goes_on_at_another_gateway(session: Session, tmp_path: Path) -> None:
    session.admin.states = [RUNNING, RUNNING, DONE]
    session.run("node", "drain", "3", "--yes")
    with ExitStack() as first:
        lost = first.enter_context(serving(session.admin))
        where = Where(f"{lost},{session.address}", None, tmp_path, PLAINTEXT)
        with Asking.at(where) as asking:
            begun = operation_document(asking.operation(121))
            assert asking.address == lost
            assert follow.follow(asking, begun, sleep=lambda _s: first.close()) == ExitCode.OK
            assert asking.address == session.address


def test_a_bar_at_a_terminal(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    session.admin.states = [RUNNING, DONE]
    out, _ = session.run("node", "drain", "3", "--yes", "--watch")
    assert "operation 121 (" not in out
    assert "operation 121 (node-drain) is done" in screen.getvalue()


def test_ctrl_c_only_stops_watching(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    session.admin.states = [RUNNING]
    session.run("node", "drain", "3", "--yes")

    def interrupt(_s: float) -> None:
        raise KeyboardInterrupt

    with Asking(lambda: session.address) as asking:
        begun = operation_document(asking.operation(121))
        assert follow.follow(asking, begun, watch=True, sleep=interrupt) == ExitCode.INTERRUPTED
    assert "operation 121 goes on" in capsys.readouterr().err
    assert session.admin.controlled == []


def test_a_start_whose_answer_was_lost_is_found_again(session: Session) -> None:
    session.admin.lose_start_after = lambda: None
    assert session.json("node", "drain", "3", "--yes")["operation_id"] == 121
    assert len(session.admin.started) == 1, "it is never sent twice"


def test_a_start_that_left_no_trace_may_have_been_done_or_not(session: Session) -> None:
    def forget() -> None:
        session.admin.record = None

    session.admin.lose_start_after = forget
    out, err = session.run("node", "drain", "3", "--yes", "--json", expect=ExitCode.UNREACHABLE)
    assert (out, err.count("\n")) == ("", 1)
    assert "it may have begun or not: `penstock operation list --all` shows it" in err


def test_an_older_operation_is_not_taken_for_the_one_that_was_begun(session: Session) -> None:
    session.json("node", "drain", "3", "--yes")
    session.admin.plan.metadata_version = 500
    session.admin.refuse_start_with = "conflict"
    session.run("node", "drain", "3", "--yes", expect=ExitCode.REFUSED)


def test_operations_are_listed_and_shown(session: Session) -> None:
    assert session.json("operation", "list") == []
    assert session.run("operation", "list") == (
        "",
        "no operation goes on; --all shows those that have ended\n",
    )
    session.json("node", "drain", "3", "--yes")
    session.admin.states = [RUNNING]
    (found,) = session.json("operation", "list", "--all")
    assert session.admin.asked[-1].ended
    assert found == session.json("operation", "show", "121")
    out, _ = session.run("operation", "list")
    assert out.splitlines()[1].split()[:5] == ["121", "node-drain", "node", "3", "running"]
    assert not session.admin.asked[-1].ended
    out, _ = session.run("operation", "show", "121")
    assert "what       node-drain node 3\n" in out
    _, err = session.run("operation", "show", "4", expect=ExitCode.FAILED)
    assert err == "penstock: error: there is no operation 4\n"


def test_operations_are_steered(session: Session) -> None:
    _, err = session.run("operation", "pause", "121", expect=ExitCode.FAILED)
    assert err == "penstock: error: there is no operation 121\n"
    session.json("node", "drain", "3", "--yes")
    session.admin.controlled.clear()
    assert session.json("operation", "pause", "121")["state"] == "paused"
    session.run("operation", "resume", "121")
    assert session.run("operation", "throttle", "121", "20MB/s")[1] == (
        "operation 121: throttle 20.0 MB/s for each node and direction\n"
    )
    assert session.json("operation", "throttle", "121", "auto")["throttle"]["mode"] == "auto"
    assert session.json("operation", "cancel", "121")["state"] == "cancelling"
    assert [
        (c.operation_id, c.control, c.throttle.auto, c.throttle.bytes_per_s) for c in session.admin.controlled
    ] == [
        (121, pb.OPERATION_CONTROL_PAUSE, False, 0),
        (121, pb.OPERATION_CONTROL_RESUME, False, 0),
        (121, pb.OPERATION_CONTROL_THROTTLE, False, 20_000_000),
        (121, pb.OPERATION_CONTROL_THROTTLE, True, 0),
        (121, pb.OPERATION_CONTROL_CANCEL, False, 0),
    ]
    session.admin.states = [metadata_pb2.OPERATION_STATE_CANCELLED]
    assert session.json("operation", "cancel", "121", "--wait", "60")["state"] == "cancelled"


def test_an_older_gateway_is_named_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(None) as address:
        for words in (["node", "drain", "3", "--dry-run"], ["operation", "list"]):
            assert run([*words, "--gateway", address]) == ExitCode.FAILED
            captured = capsys.readouterr()
            assert captured.out == ""
            assert captured.err == (
                f"penstock: error: gateway {address}: its build is older than this command's and knows no "
                "operations; install a newer one\n"
            )
        assert run(["node", "list", "--gateway", address, "--json"]) == ExitCode.OK
        rows = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in rows] == [1, 2]
    assert {row[key] for row in rows for key in NO_CONDITION} == {None}


def test_nodes_are_listed_by_a_gateway_alone(session: Session) -> None:
    one, two, three = session.json("node", "list")
    assert one == {
        "id": 1,
        "address": "127.0.0.1:5001",
        "state": "alive",
        "leads": 1,
        "replicas": 2,
        "in_sync": 1,
        "node_id": 1,
        "condition": "draining",
        "rack": "a",
        "version": None,
        "feature_level": 0,
        "bytes": 7,
        "disk_total_bytes": None,
        "disk_free_bytes": None,
        "operation_id": 121,
    }
    assert (two["address"], two["state"], two["condition"]) == (None, "absent", "fenced")
    assert (three["id"], three["replicas"], three["condition"]) == (3, 0, "ok")
    out, _ = session.run("node", "list")
    assert out.splitlines()[:2] == [
        "ID  ADDRESS         STATE   LEADS  REPLICAS  IN_SYNC  CONDITION",
        "1   127.0.0.1:5001  alive   1      2         1        draining",
    ]


def test_conditions_come_from_a_gateway_of_the_same_cluster_alone(session: Session, tmp_path: Path) -> None:
    assert set(NO_CONDITION) == set(node_rows.CONDITION_KEYS)
    here = Where(session.address, None, tmp_path, PLAINTEXT)
    cluster_id = cluster_id_at(session.address)
    assert isinstance(cluster_id, str)
    assert {n: row["condition"] for n, row in node_rows._conditions(here, cluster_id).items()} == {
        1: "draining",
        2: "fenced",
        3: "ok",
    }
    assert node_rows._conditions(here, "another") == {}
    assert node_rows._conditions(Where("127.0.0.1:1", None, tmp_path, PLAINTEXT), cluster_id) == {}
    # Nobody named a gateway, and the brokers are elsewhere: their ports are not guessed at.
    assert node_rows._conditions(Where(None, "192.0.2.1:9092", tmp_path, PLAINTEXT), cluster_id) == {}
