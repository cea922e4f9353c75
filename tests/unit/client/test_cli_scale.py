"""`penstock scale`: what it is asked for, who goes, and what is said where nobody here starts processes."""

from __future__ import annotations

import io
import json
import random
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.cli.main import run
from penstock.cli.planned import How
from penstock.cli.scale_choice import Candidate, choices, domains, highest, parse_target
from penstock.cli.scale_nodes import removed_nodes, scale_nodes
from penstock.cli.scale_state import Ended, Scaling
from penstock.cli.via.compose import ComposeWay
from penstock.cli.via.scaling import LocalScaler
from penstock.cli.via.ways import ProcessName
from penstock.errors import CommandError, ExitCode
from penstock_proto.v1 import metadata_pb2, operations_pb2
from unit.client.admin_gateway import Admin, serving

SEED = random.SystemRandom().randrange(2**32)
KEYS = {
    *("service", "from", "to", "via", "operations", "started", "stopped"),
    *("removed_nodes", "command", "plans"),
}


def best(nodes: list[Candidate], count: int) -> list[int]:
    return next(choices(nodes, count))


def test_targets() -> None:
    assert parse_target("storage-node=5") == ("storage-node", 5)
    assert parse_target("gateway=1") == ("gateway", 1)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("storage-node", "storage-node"),
        ("gateway=0", "from 1"),
        ("gateway=-1", "from 1"),
        ("gateway=1001", "1,000"),
        ("gateway=two", "from 1"),
        ("controller=5", "controllers"),
        ("node=5", "storage-node=N"),
        ("=3", "storage-node=N"),
    ],
)
def test_targets_that_are_none(text: str, named: str) -> None:
    with pytest.raises(CommandError, match=named) as caught:
        parse_target(text)
    assert caught.value.exit_code == ExitCode.USAGE


def test_the_node_with_fewest_bytes_goes() -> None:
    sizes = {1: 500, 2: 100, 3: 300, 4: None, 5: 200}
    nodes = [Candidate(n, size_bytes=size) for n, size in sizes.items()]
    assert best(nodes, 1) == [2]
    assert best(nodes, 2) == [2, 5]
    assert best(nodes, 4) == [1, 2, 3, 5], "one that has told nothing may hold most"


def test_of_equal_ones_the_youngest_goes() -> None:
    assert best([Candidate(n, size_bytes=7) for n in range(1, 6)], 2) == [4, 5]


def test_one_that_holds_nothing_or_is_gone_goes_first() -> None:
    nodes = [
        Candidate(1, size_bytes=1),
        Candidate(2, condition="fenced", size_bytes=900),
        Candidate(3, condition="drained", size_bytes=0),
        Candidate(4, size_bytes=2),
    ]
    assert best(nodes, 1) == [3]
    assert best(nodes, 2) == [2, 3]


def test_as_many_domains_stay_as_can() -> None:
    racks = ["a/1", "a/2", "b/1", "b/2", "c/1"]
    nodes = [Candidate(n, rack, size_bytes=n) for n, rack in enumerate(racks, 1)]
    assert {racks[n - 1][0] for n in {1, 2, 3, 4, 5} - set(best(nodes, 2))} == {"a", "b", "c"}
    # Two of one host: one of them, though the other host's is smaller.
    pair = [
        Candidate(1, "a/1", size_bytes=9),
        Candidate(2, "a/1", size_bytes=8),
        Candidate(3, "a/2", size_bytes=1),
    ]
    assert best(pair, 1) == [2]
    assert domains("zone/host") == ["zone", "zone/host"]
    assert domains("") == []


def test_choices_of_any_cluster() -> None:
    """Each has the right number of nodes that are there; no zone is given up before it has to be."""
    rng = random.Random(SEED)
    for _ in range(300):
        zones = rng.randrange(1, 5)
        nodes = [
            Candidate(n, f"z{rng.randrange(zones)}/h{rng.randrange(3)}", size_bytes=rng.randrange(1000))
            for n in rng.sample(range(1, 100), rng.randrange(2, 12))
        ]
        count = rng.randrange(1, len(nodes))
        known = {node.node_id: node for node in nodes}
        seen = list(choices(nodes, count))
        assert 1 <= len(seen) <= 8, SEED
        for chosen in seen:
            assert len(set(chosen)) == count, SEED
            assert set(chosen) <= known.keys(), SEED
        before = Counter(node.rack.split("/")[0] for node in nodes)
        after = Counter(known[n].rack.split("/")[0] for n in known.keys() - set(seen[0]))
        assert len(after) == min(len(before), len(nodes) - count), SEED


def test_a_local_node_that_the_cluster_does_not_know_is_no_spare_while_it_may_have_data(
    tmp_path: Path,
) -> None:
    """As after `cluster import`: whoever is stopped as a spare loses its directory."""
    scaler: Any = LocalScaler(tmp_path)
    members = [SimpleNamespace(id=n, name=f"node-{n}") for n in range(1, 6)]
    scaler._cluster = SimpleNamespace(directory=tmp_path, state=SimpleNamespace(of_role=lambda _: members))
    for number in (1, 2, 3, 4):
        data = tmp_path / f"node-{number}" / "data"
        data.mkdir(parents=True)
        data.joinpath("meta.properties").write_text(f"version=1\ndirectory.id=x\nnode.id={number}\n")
    tmp_path.joinpath("node-3", "data", "retired").write_text("operation=7\n")

    def spares(known: list[int], *removed: int) -> list[str]:
        return [process.name for process in scaler.spares(known, lambda: removed)]

    assert spares([1, 2, 3, 4, 5]) == []
    assert spares([1, 2]) == ["node-3", "node-5"], "one says that it was retired, the other never had an id"
    assert spares([1, 2], 4) == ["node-3", "node-4", "node-5"], "a dead one could not be told"
    assert spares([]) == ["node-3", "node-5"]


def test_who_was_removed_is_told_by_operations() -> None:
    def done(kind: str, state: metadata_pb2.OperationState.ValueType, **parameters: Any) -> SimpleNamespace:
        given = metadata_pb2.OperationParameters(**parameters)
        return SimpleNamespace(record=metadata_pb2.OperationRecord(kind=kind, state=state, parameters=given))

    good, failed = metadata_pb2.OPERATION_STATE_DONE, metadata_pb2.OPERATION_STATE_FAILED
    admin: Any = SimpleNamespace(
        operations=lambda ended: [
            done("node-remove", good, node_ids=[4, 5]),
            done("node-remove", failed, node_ids=[6]),
            done("node-replace", good, node_ids=[7], replacement_node_id=8),
            done("node-replace", good, node_ids=[9]),
            done("node-drain", good, node_ids=[1]),
        ]
    )
    assert removed_nodes(admin) == {4, 5, 7}


def test_numbers_that_are_identities_go_from_above() -> None:
    nodes = [Candidate(n, size_bytes=10 - n) for n in (3, 1, 2)]
    assert highest(nodes, 2) == [2, 3]


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("BOOTSTRAP", "GATEWAY", "LOCAL_DIR", "CLIENT_CONFIG"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())


def printed(capsys: pytest.CaptureFixture[str], *words: str, expect: int = 0) -> Any:
    """A cluster of three nodes; nothing is started and nothing begun."""
    admin = Admin()  # type: ignore[abstract]
    with serving(admin) as address:
        code = run(["scale", *words, "--via", "print", "--json", "--gateway", address])
    out = capsys.readouterr()
    assert code == expect, out
    assert admin.started == []
    assert [request.parameters for request in admin.asked] == [
        metadata_pb2.OperationParameters(node_ids=plan["parameters"]["node_ids"])
        for plan in json.loads(out.out)["plans"]
    ]
    return json.loads(out.out)


def test_what_to_type_for_more_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(capsys, "storage-node=5")
    assert set(told) == KEYS
    assert (told["service"], told["from"], told["to"], told["via"]) == ("storage-node", 3, 5, "print")
    assert told["command"] == (
        "kubectl scale statefulset storage-node --replicas=5 && kubectl rollout status statefulset storage-node && "
        "penstock node add 4,5 --yes"
    )
    assert told["plans"] == []


def test_what_to_type_for_fewer_nodes_with_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(capsys, "storage-node=1")
    assert told["command"] == (
        "penstock node remove 2,3 --yes --wait 86400 && kubectl scale statefulset storage-node --replicas=1 && "
        "kubectl delete pvc data-storage-node-2 data-storage-node-3"
    )
    (plan,) = told["plans"]
    assert (plan["kind"], plan["parameters"]["node_ids"]) == ("node-remove", [2, 3])
    assert told["removed_nodes"] == told["operations"] == []


class Started:
    """Five storage nodes, of which 4 and 5 hold nothing yet: a command was killed between starting and filling them."""

    def __init__(self, *, busy: bool = False, moves: int = 3, replicas: int = 6, gate: str = "") -> None:
        self.begun: list[list[int]] = []
        self._gate = gate
        self._busy = busy
        self._moves = moves
        self._replicas = replicas

    def nodes(self) -> list[operations_pb2.NodeCondition]:
        return [
            operations_pb2.NodeCondition(
                node_id=n, condition="ok", replicas=self._replicas if n < 4 else 0, log_bytes=9
            )
            for n in range(1, 6)
        ]

    def operations(self, *, ended: bool) -> list[operations_pb2.Operation]:
        record = metadata_pb2.OperationRecord(operation_id=7, kind="node-add")
        record.parameters.node_ids.extend((4, 5))
        return [operations_pb2.Operation(record=record)] if self._busy and not ended else []

    def plan(self, request: operations_pb2.PlanRequest) -> operations_pb2.Plan:
        plan = operations_pb2.Plan(kind=request.kind, parameters=request.parameters, runnable=True)
        for n in range(self._moves):
            plan.moves.add(topic="t", partition=n, to=[4])
        if self._gate:
            plan.runnable = False
            plan.gates.add(name=self._gate, blocking=True, detail="closed")
        return plan

    def start(self, request: operations_pb2.StartOperationRequest) -> operations_pb2.StartOperationResponse:
        assert request.request.kind == "node-add"
        self.begun.append(list(request.request.parameters.node_ids))
        record = metadata_pb2.OperationRecord(operation_id=9, kind="node-add")
        return operations_pb2.StartOperationResponse(operation=operations_pb2.Operation(record=record))


def scaled(admin: Started, count: int = 5, *, dry_run: bool = False) -> Scaling:
    scaler = SimpleNamespace(
        via="local",
        is_numbered=False,
        spares=lambda _ids, _removed: [],
        command=lambda *_: "",
        running=lambda _: 5,
    )
    scaling = Scaling("storage-node", count, "local")
    where: Any = None
    how = How(where, dry_run, True, None, (), "", None, False, True)
    scale_nodes(admin, scaler, how, scaling)  # type: ignore[arg-type]
    return scaling


def test_given_once_more_it_gives_nodes_their_share_that_were_started_already() -> None:
    admin = Started()
    told = scaled(admin, dry_run=True)
    assert (admin.begun, len(told.plans)) == ([], 1)
    told = scaled(admin)
    assert admin.begun == [[4, 5]]
    assert [each["operation_id"] for each in told.operations] == [9]


def test_a_dry_run_says_so_where_a_gate_keeps_them_from_their_share() -> None:
    admin = Started(gate="health")
    with pytest.raises(Ended) as ended:
        scaled(admin, dry_run=True)
    assert ended.value.error.exit_code == ExitCode.REFUSED
    assert "health" in ended.value.error.message
    assert admin.begun == []


@pytest.mark.parametrize("why_not", [{"busy": True}, {"moves": 0}, {"replicas": 0}])
def test_nodes_that_get_their_share_or_have_none_to_get_are_left_alone(why_not: dict[str, Any]) -> None:
    admin = Started(**why_not)
    told = scaled(admin)
    assert (admin.begun, told.plans) == ([], [])


def test_what_to_type_for_gateways(capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(capsys, "gateway=3")
    assert told["command"] == "kubectl scale deployment gateway --replicas=3"


def test_a_closed_gate_is_code_4_with_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(capsys, "storage-node=2", "--plan-id", "ffffffffffffffff", expect=ExitCode.REFUSED)
    assert [gate["name"] for gate in told["plans"][0]["gates"] if gate["blocking"]] == ["plan-changed"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["storage-node=5", "--yes"], "--via compose"),
        (["storage-node=5", "--yes", "--via", "local"], "--dir"),
        (["storage-node=5", "--via", "compose"], "--yes"),
        (["storage-node=5", "--yes", "--via", "print", "--project", "p"], "--via compose"),
    ],
)
def test_usage_errors_say_what_to_give(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Admin()) as address:  # type: ignore[abstract]
        assert run(["scale", *words, "--gateway", address]) == ExitCode.USAGE
    assert named in capsys.readouterr().err


def test_without_compose_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError, match="docker"):
        ComposeWay().restart(ProcessName("storage-node", "node-1"))
    with pytest.raises(CommandError, match="docker"):
        ComposeWay().start_more("gateway", 1)
    fake = tmp_path / "docker"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(CommandError, match=r"neither `docker compose` \(v2\) nor `docker-compose` \(1.29\)"):
        ComposeWay().start_more("gateway", 1)


def test_a_compose_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "compose.yaml"
    with pytest.raises(CommandError, match=f"{missing}: there is no such file"):
        ComposeWay(missing).start_more("storage-node", 1)
    with pytest.raises(CommandError, match="controllers"):
        ComposeWay(missing).start_more("controller", 1)
