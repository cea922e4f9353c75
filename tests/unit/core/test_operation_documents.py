"""Plans and operations as JSON: the keys that scripts rely on, and null for what is not there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock_core import operation_documents as documents
from penstock_proto.v1 import metadata_pb2, operations_pb2


def test_a_plan() -> None:
    plan = operations_pb2.Plan(
        kind="node-drain",
        plan_id="00112233aabbccdd",
        metadata_version=120,
        runnable=True,
        parameters=metadata_pb2.OperationParameters(node_ids=[3]),
        throttle=metadata_pb2.OperationThrottle(bytes_per_s=50_000_000),
        eta_s=12.5,
        totals=operations_pb2.PlanTotals(moves=1, replicas_added=1, replicas_removed=1, bytes=1000),
        warnings=["be careful"],
    )
    plan.gates.add(name="racks", ok=False, detail="two share a rack", items=["t-0"])
    move = plan.moves.add(topic="t", partition=0, to=[1, 4], bytes=1000)
    getattr(move, "from").extend([3, 1])
    plan.nodes.add(node_id=4, replicas_after=1, bytes_after=1000, disk_free_bytes_before=5000)
    document = documents.plan_document(plan)
    assert json.loads(json.dumps(document)) == document
    assert document == {
        "kind": "node-drain",
        "plan_id": "00112233aabbccdd",
        "metadata_version": 120,
        "runnable": True,
        "parameters": {
            "node_ids": [3],
            "replacement_node_id": None,
            "topics": [],
            "replication_factor": None,
            "goals": [],
            "excluded_node_ids": [],
            "max_bytes": None,
            "partitions": [],
            "roles": [],
            "process_names": [],
            "step_timeout_s": None,
            "level": None,
            "downgrade": False,
            "controller_id": None,
        },
        "totals": {
            "moves": 1,
            "replicas_added": 1,
            "replicas_removed": 1,
            "leader_changes": 0,
            "bytes": 1000,
        },
        "throttle": {"mode": "fixed", "bytes_per_s": 50_000_000},
        "eta_s": 12.5,
        "gates": [
            {
                "name": "racks",
                "ok": False,
                "blocking": False,
                "detail": "two share a rack",
                "items": ["t-0"],
            }
        ],
        "moves": [
            {
                "topic": "t",
                "partition": 0,
                "from": [3, 1],
                "to": [1, 4],
                "leader_from": 3,
                "leader_to": 1,
                "bytes": 1000,
            }
        ],
        "steps": [],
        "nodes": [
            {
                "node_id": 4,
                "rack": None,
                "replicas": {"before": 0, "after": 1},
                "leaders": {"before": 0, "after": 0},
                "bytes": {"before": 0, "after": 1000},
                "disk_free_bytes": {"before": 5000, "after": None, "least": None},
            }
        ],
        "warnings": ["be careful"],
    }


def operation(state: int = metadata_pb2.OPERATION_STATE_RUNNING, **progress: float) -> documents.Json:
    record = metadata_pb2.OperationRecord(
        operation_id=17,
        kind="rebalance",
        state=state,  # type: ignore[arg-type]
        created_by="User:ops",
        created_ms=1_000,
        throttle=metadata_pb2.OperationThrottle(auto=True),
        moves_total=4,
        bytes_total=1000,
        moves_done=3,
        moves_skipped=1,
        bytes_done=900,
    )
    return documents.operation_document(
        operations_pb2.Operation(record=record, progress=operations_pb2.OperationProgress(**progress))  # type: ignore[arg-type]
    )


def test_an_operation_that_goes_on() -> None:
    found = operation(
        moves_total=4,
        moves_done=1,
        moves_running=2,
        bytes_total=1000,
        bytes_done=250,
        eta_s=3.5,
        limit_bytes_per_s=64,
        measured_bytes_per_s=60,
        produce_p99_before_ms=4.5,
    )
    assert set(found) == {
        *("operation_id", "kind", "state", "phase", "reason", "plan_id", "parameters", "created_by"),
        *("created_ms", "started_ms", "finished_ms", "throttle", "progress", "eta_s", "waiting_for"),
        *("produce_p99_ms", "steps"),
    }
    assert (found["state"], found["phase"], found["reason"], found["started_ms"]) == (
        "running",
        None,
        None,
        None,
    )
    assert found["throttle"] == {"mode": "auto", "bytes_per_s": 64, "measured_bytes_per_s": 60}
    assert found["produce_p99_ms"] == {"before": 4.5, "now": None, "worst": None}
    assert found["progress"] == {
        "moves_total": 4,
        "moves_done": 1,
        "moves_running": 2,
        "moves_skipped": 1,
        "bytes_total": 1000,
        "bytes_done": 250,
        "steps_total": 0,
        "steps_done": 0,
        "ratio": 0.25,
    }
    assert (found["eta_s"], found["waiting_for"]) == (3.5, None)


def test_an_ended_operation_tells_what_it_came_to() -> None:
    found = operation(metadata_pb2.OPERATION_STATE_DONE)
    assert found["state"] == "done"
    assert found["progress"]["moves_done"] == 3
    assert found["progress"]["ratio"] == 1.0
    assert found["eta_s"] is None
    assert operation(metadata_pb2.OPERATION_STATE_CANCELLED)["progress"]["ratio"] == 0.9


@pytest.mark.parametrize("number", metadata_pb2.OperationState.values())
def test_every_state_has_a_word(number: Any) -> None:
    name = metadata_pb2.OperationState.Name(number)
    assert documents.STATES[number] == name.removeprefix("OPERATION_STATE_").lower()


def test_a_nodes_condition_has_the_same_keys_where_nothing_is_known() -> None:
    told = operations_pb2.NodeCondition(
        node_id=3, condition="draining", version="0.1.0", log_bytes=0, operation_id=17
    )
    found = documents.condition_document(told)
    assert found.keys() == documents.NO_CONDITION.keys()
    assert set(documents.NO_CONDITION.values()) == {None}
    assert (found["condition"], found["rack"], found["bytes"], found["disk_total_bytes"]) == (
        "draining",
        None,
        0,
        None,
    )
    assert found["operation_id"] == 17
