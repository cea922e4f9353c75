"""Plans, operations and the state of nodes as JSON documents: the command line and REST say the same.

Ids and bytes are integers, times are ms since 1970 under names that end in `_ms`, durations seconds under `_s`; what is
not there or not known is None. Pure.
"""

from __future__ import annotations

from typing import Any, Final

from penstock_proto.v1 import metadata_pb2, operations_pb2

Json = dict[str, Any]

STATES: Final = {
    metadata_pb2.OPERATION_STATE_PENDING: "pending",
    metadata_pb2.OPERATION_STATE_RUNNING: "running",
    metadata_pb2.OPERATION_STATE_PAUSED: "paused",
    metadata_pb2.OPERATION_STATE_CANCELLING: "cancelling",
    metadata_pb2.OPERATION_STATE_DONE: "done",
    metadata_pb2.OPERATION_STATE_CANCELLED: "cancelled",
    metadata_pb2.OPERATION_STATE_FAILED: "failed",
}
STEP_STATES: Final = {
    metadata_pb2.OPERATION_STEP_STATE_TODO: "todo",
    metadata_pb2.OPERATION_STEP_STATE_RUNNING: "running",
    metadata_pb2.OPERATION_STEP_STATE_DONE: "done",
    metadata_pb2.OPERATION_STEP_STATE_SKIPPED: "skipped",
}
_STEPS_OVER: Final = (metadata_pb2.OPERATION_STEP_STATE_DONE, metadata_pb2.OPERATION_STEP_STATE_SKIPPED)
ENDED: Final = frozenset({"done", "cancelled", "failed"})
"""States that an operation never leaves."""


def plan_document(plan: operations_pb2.Plan) -> Json:
    """What an operation would do."""
    totals = plan.totals
    return {
        "kind": plan.kind,
        "plan_id": plan.plan_id,
        "metadata_version": plan.metadata_version,
        "runnable": plan.runnable,
        "parameters": parameters_document(plan.parameters),
        "totals": {
            "moves": totals.moves,
            "replicas_added": totals.replicas_added,
            "replicas_removed": totals.replicas_removed,
            "leader_changes": totals.leader_changes,
            "bytes": totals.bytes,
        },
        "throttle": _throttle(plan.throttle, 0),
        "eta_s": _told(plan, "eta_s"),
        "gates": [_gate(gate) for gate in plan.gates],
        "moves": [_move(move) for move in plan.moves],
        "steps": [{"name": s.name, "role": s.role, "action": s.action} for s in plan.steps],
        "nodes": [_planned_node(node) for node in plan.nodes],
        "warnings": list(plan.warnings),
    }


def operation_document(operation: operations_pb2.Operation) -> Json:
    """An operation and how far it is."""
    record, progress = operation.record, operation.progress
    state = STATES.get(record.state, "pending")
    return {
        "operation_id": record.operation_id,
        "kind": record.kind,
        "state": state,
        "phase": record.phase or None,
        "reason": record.reason or None,
        "plan_id": record.plan_id or None,
        "parameters": parameters_document(record.parameters),
        "created_by": record.created_by or None,
        "created_ms": record.created_ms or None,
        "started_ms": record.started_ms or None,
        "finished_ms": record.finished_ms or None,
        "throttle": {
            **_throttle(record.throttle, progress.limit_bytes_per_s),
            "measured_bytes_per_s": progress.measured_bytes_per_s,
        },
        "progress": _progress(record, progress, state),
        "eta_s": _told(progress, "eta_s"),
        "waiting_for": progress.waiting_for or None,
        "produce_p99_ms": {
            name: _told(progress, f"produce_p99_{name}_ms") for name in ("before", "now", "worst")
        },
        "steps": [_step(step) for step in record.steps],
    }


def condition_document(node: operations_pb2.NodeCondition) -> Json:
    """What the controllers add to what is known of a node."""
    return {
        "condition": node.condition,
        "rack": node.rack or None,
        "version": node.version or None,
        "feature_level": node.feature_level,
        "bytes": _told(node, "log_bytes"),
        "disk_total_bytes": _told(node, "disk_total_bytes"),
        "disk_free_bytes": _told(node, "disk_free_bytes"),
        "operation_id": node.operation_id or None,
    }


def parameters_document(parameters: metadata_pb2.OperationParameters) -> Json:
    """What an operation was asked to do."""
    return {
        "node_ids": list(parameters.node_ids),
        "replacement_node_id": parameters.replacement_node_id or None,
        "topics": list(parameters.topics),
        "replication_factor": parameters.replication_factor or None,
        "goals": list(parameters.goals),
        "excluded_node_ids": list(parameters.excluded_node_ids),
        "max_bytes": _told(parameters, "max_bytes"),
        "partitions": list(parameters.partitions),
        "roles": list(parameters.roles),
        "process_names": list(parameters.process_names),
        "step_timeout_s": parameters.step_timeout_s or None,
        "level": parameters.level or None,
        "downgrade": parameters.downgrade,
        "controller_id": parameters.controller_id or None,
    }


def _throttle(throttle: metadata_pb2.OperationThrottle, limit_bytes_per_s: int) -> Json:
    """`limit_bytes_per_s`: what nodes are told while nothing is fixed; 0 for nothing."""
    fixed = throttle.bytes_per_s
    return {"mode": "auto" if throttle.auto else "fixed", "bytes_per_s": fixed or limit_bytes_per_s or None}


def _gate(gate: operations_pb2.Gate) -> Json:
    return {
        "name": gate.name,
        "ok": gate.ok,
        "blocking": gate.blocking,
        "detail": gate.detail or None,
        "items": list(gate.items),
    }


def _move(move: operations_pb2.PlannedMove) -> Json:
    before, after = list(getattr(move, "from")), list(move.to)
    return {
        "topic": move.topic,
        "partition": move.partition,
        "from": before,
        "to": after,
        "leader_from": before[0] if before else None,
        "leader_to": after[0] if after else None,
        "bytes": move.bytes,
    }


def _step(step: metadata_pb2.OperationStep) -> Json:
    return {
        "name": step.name,
        "role": step.role,
        "state": STEP_STATES.get(step.state, "todo"),
        "started_ms": step.started_ms or None,
        "finished_ms": step.finished_ms or None,
        "reason": step.reason or None,
    }


def _planned_node(node: operations_pb2.PlannedNode) -> Json:
    return {
        "node_id": node.node_id,
        "rack": node.rack or None,
        "replicas": {"before": node.replicas_before, "after": node.replicas_after},
        "leaders": {"before": node.leaders_before, "after": node.leaders_after},
        "bytes": {"before": node.bytes_before, "after": node.bytes_after},
        "disk_free_bytes": {
            name: _told(node, f"disk_free_bytes_{name}") for name in ("before", "after", "least")
        },
    }


def _progress(
    record: metadata_pb2.OperationRecord, progress: operations_pb2.OperationProgress, state: str
) -> Json:
    # An ended operation has its counts in the record; its moves are gone.
    counts = {
        "moves_total": progress.moves_total or record.moves_total,
        "moves_done": progress.moves_done or record.moves_done,
        "moves_running": progress.moves_running,
        "moves_skipped": progress.moves_skipped or record.moves_skipped,
        "bytes_total": progress.bytes_total or record.bytes_total,
        "bytes_done": progress.bytes_done or record.bytes_done,
        "steps_total": len(record.steps),
        "steps_done": sum(step.state in _STEPS_OVER for step in record.steps),
    }
    return {**counts, "ratio": _ratio(counts, state)}


def _ratio(counts: dict[str, int], state: str) -> float:
    """Between 0 and 1: of bytes where any are copied, else of moves, else of steps."""
    if state == "done":
        return 1.0
    if counts["bytes_total"]:
        return min(1.0, counts["bytes_done"] / counts["bytes_total"])
    if counts["moves_total"]:
        return min(1.0, (counts["moves_done"] + counts["moves_skipped"]) / counts["moves_total"])
    if counts["steps_total"]:
        return counts["steps_done"] / counts["steps_total"]
    return 0.0


def _told(message: Any, field: str) -> Any:
    """A field of a message, None where it was left out."""
    return getattr(message, field) if message.HasField(field) else None


NO_CONDITION: Final[Json] = dict.fromkeys(condition_document(operations_pb2.NodeCondition()))
"""The same keys of a node of which the controllers were not asked, or say nothing."""
