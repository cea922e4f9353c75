"""How operations begin, and what operators say to those that go on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock_controller.state.causes import cause, of_operation
from penstock_controller.state.generation import Context, Generated, NextCommand, error_pb, make_error
from penstock_controller.state.operations.engine import endings, policies
from penstock_controller.state.operations.engine.kinds import (
    CONTROLLER_REPLACE,
    REASSIGNMENT,
    drained_by,
    has_turn,
    is_rolling,
    live_operations,
    nodes_of,
)
from penstock_controller.state.operations.plans.gates import onto
from penstock_controller.state.operations.processes import NOT_ASKED, QuorumSeen, boot_id_of
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId, TopicId, TopicPartition
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.operations import ENDED
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api

PLAN_CHANGED = "plan-changed"
WAITING = "waiting for its turn"
BEGINNING = "beginning"
_ITEMS_MAX = 100
_SAID = {
    api.OPERATION_CONTROL_PAUSE: "paused",
    api.OPERATION_CONTROL_RESUME: "resumed",
    api.OPERATION_CONTROL_CANCEL: "cancelled",
    api.OPERATION_CONTROL_THROTTLE: "throttled",
}


def start_operation(
    ctx: Context,
    request: api.StartOperationRequest,
    plan: api.Plan,
    now_ms: int,
    quorum: QuorumSeen = NOT_ASKED,
) -> Generated[api.StartOperationResponse]:
    """Begin what a plan says, unless a gate refuses or what it stands on has changed. `now_ms`: wall clock.

    `quorum`: the controllers as they were when the plan was made, where it is about them.
    """
    if not plan.runnable:
        return _refused(plan, [gate for gate in plan.gates if gate.blocking])
    if request.plan_id and request.plan_id != plan.plan_id:
        gate = _gate(
            f"plan {request.plan_id} was approved, and now it would be {plan.plan_id}; look at it anew"
        )
        return _refused(plan, [gate])
    changed = _changed(ctx.image, plan)
    if changed:
        gate = _gate(
            "what the plan stands on has changed since it was made; plan again", changed[:_ITEMS_MAX]
        )
        return _refused(plan, [gate])
    if ctx.version in ctx.image.operations.operations:
        raise NextCommand
    record = pb.OperationRecord(
        operation_id=ctx.version,
        kind=plan.kind,
        parameters=plan.parameters,
        plan_id=plan.plan_id,
        state=pb.OPERATION_STATE_PENDING,
        phase=WAITING,
        created_by=request.principal,
        created_ms=now_ms,
        throttle=plan.throttle,
        allowed_gates=request.request.allowed_gates,
        moves_total=len(plan.moves),
        bytes_total=sum(move.bytes for move in plan.moves),
        steps=_steps(ctx.image, plan, quorum),
    )
    if has_turn(ctx.image, record):
        record.state = pb.OPERATION_STATE_RUNNING
        record.phase = BEGINNING
        record.started_ms = now_ms
    reply = api.StartOperationResponse(plan=plan, version=ctx.version)
    reply.operation.CopyFrom(_told(record))
    records = [
        pb.MetadataRecord(operation=record),
        *policies.begun(ctx.image, record),
        *endings.forgotten(ctx.image),
    ]
    moves = _moves(record.operation_id, plan) if plan.moves else None
    return Generated(reply, records, moves, of_operation(record, record.operation_id))


def _moves(operation_id: int, plan: api.Plan) -> Iterator[pb.MetadataRecord]:
    for move in plan.moves:
        yield pb.MetadataRecord(
            operation_move=pb.OperationMoveRecord(
                operation_id=operation_id,
                topic_id=move.topic_id,
                partition=move.partition,
                replicas=move.to,
                replicas_before=getattr(move, "from"),
                bytes=move.bytes,
            )
        )


def _steps(image: MetadataImage, plan: api.Plan, quorum: QuorumSeen) -> Iterator[pb.OperationStep]:
    """Each with the boot id of now: one that has another when its turn comes needs no restart any more."""
    for step in plan.steps:
        boot_id = boot_id_of(image, quorum, step.role, step.name)
        yield pb.OperationStep(name=step.name, role=step.role, boot_id_before=boot_id)


def _changed(image: MetadataImage, plan: api.Plan) -> list[str]:
    """What is not any more as the plan found it, by name."""
    # Not by the version alone: others that share the command came before, and count already.
    found = []
    nodes = nodes_of(pb.OperationRecord(kind=plan.kind, parameters=plan.parameters))
    if plan.steps:
        # One with another disk is what a rolling restart that goes on may wait for.
        beside = is_rolling if plan.kind == CONTROLLER_REPLACE else lambda _: False
        rolling = (o.operation_id for o in live_operations(image) if o.steps and not beside(o))
        found += [f"operation {operation_id}" for operation_id in rolling]
    busy = {n: other.operation_id for other in live_operations(image) for n in nodes_of(other)}
    for node_id in nodes:
        if node_id not in image.nodes:
            found.append(f"node {node_id} (is not there)")
        elif node_id in busy:
            found.append(f"node {node_id} (operation {busy[node_id]})")
    leaving = set(drained_by(pb.OperationRecord(kind=plan.kind, parameters=plan.parameters)))
    if leaving:
        # Of operations that began since: what they have yet to bring here would wait until the node is taken back.
        for operation in live_operations(image):
            moves = image.operations.moves.get(operation.operation_id, {})
            found += [
                onto(image, move, operation.operation_id)
                for move in moves.values()
                if not move.skipped and not leaving.isdisjoint(move.replicas)
            ]
    found += _closed(image, plan, nodes)
    for move in plan.moves:
        topic = image.topics.get(TopicId(move.topic_id))
        partition = None if topic is None else topic.partitions.get(move.partition)
        name = f"{move.topic}-{move.partition}"
        if partition is None:
            found.append(f"{name} (is not there)")
        elif partition.reassigning:
            found.append(f"{name} (being reassigned)")
        elif list(partition.replicas) != list(getattr(move, "from")):
            found.append(f"{name} (has other replicas)")
        elif (other := _mover(image, partition.key)) is not None:
            found.append(f"{name} (operation {other})")
    return found


def _closed(image: MetadataImage, plan: api.Plan, own: Iterable[NodeId]) -> list[str]:
    """Nodes that were to get replicas and may not any more: the operation would wait for them without an end."""
    if plan.kind == REASSIGNMENT:
        return []
    targets = {NodeId(n) for move in plan.moves for n in {*move.to}.difference(getattr(move, "from"))}
    found = []
    for node_id in sorted(targets.difference(own)):
        if node_id not in image.nodes:
            found.append(f"node {node_id} (is not there)")
        elif image.operations.is_cordoned(node_id):
            found.append(f"node {node_id} (is cordoned)")
    return found


def _mover(image: MetadataImage, key: TopicPartition) -> int | None:
    """An operation that has the partition among its moves."""
    for operation_id, moves in image.operations.moves.items():
        move = moves.get(key)
        if move is not None and not move.skipped:
            return operation_id
    return None


def _gate(detail: str, items: list[str] | None = None) -> api.Gate:
    return api.Gate(name=PLAN_CHANGED, blocking=True, detail=detail, items=items or [])


def _refused(plan: api.Plan, gates: list[api.Gate]) -> Generated[api.StartOperationResponse]:
    """No operation: the plan with the gates that refuse it."""
    reply = api.StartOperationResponse(plan=plan)
    reply.plan.runnable = False
    told = {gate.name for gate in plan.gates if gate.blocking}
    reply.plan.gates.extend(gate for gate in gates if gate.name not in told)
    said = "; ".join(f"{gate.name}: {_with_items(gate)}" for gate in gates)
    message = f"{plan.kind} was not begun: {said or 'the plan may not run'}"
    reply.error.CopyFrom(make_error(ErrorCode.POLICY_VIOLATION, message))
    return Generated(reply)


def _with_items(gate: api.Gate) -> str:
    if not gate.items:
        return gate.detail
    more = f" and {len(gate.items) - 3} more" if len(gate.items) > 3 else ""
    return f"{gate.detail} ({', '.join(gate.items[:3])}{more})"


def _told(record: pb.OperationRecord) -> api.Operation:
    progress = api.OperationProgress(moves_total=record.moves_total, bytes_total=record.bytes_total)
    return api.Operation(record=record, progress=progress)


# --- what operators say ----------------------------------------------------------------------


def control_operation(
    ctx: Context, request: api.ControlOperationRequest, now_ms: int
) -> Generated[api.ControlOperationResponse]:
    """Pause, resume, cancel or throttle. What is so already stays so, and is no error."""
    try:
        old = _live(ctx.image, request.operation_id, request.control)
        new = pb.OperationRecord()
        new.CopyFrom(old)
        _control(ctx.image, new, request, now_ms)
    except PenstockError as error:
        return Generated(api.ControlOperationResponse(error=error_pb(error)))
    records = [] if new == old else [pb.MetadataRecord(operation=new)]
    if new.state == pb.OPERATION_STATE_CANCELLING:
        records += policies.lifted(ctx.image, new)
    reply = api.ControlOperationResponse(version=ctx.version)
    reply.operation.CopyFrom(_told(new))
    said = _SAID.get(request.control, "changed")
    why = cause("operation", f"operation {new.operation_id}", said, request.principal, new.operation_id)
    return Generated(reply, records, causes=why)


def _live(
    image: MetadataImage, operation_id: int, control: api.OperationControl.ValueType
) -> pb.OperationRecord:
    """The operation, where there is anything to say to it."""
    record = image.operations.operations.get(operation_id)
    if record is None:
        raise PenstockError(
            ErrorCode.RESOURCE_NOT_FOUND,
            f"there is no operation {operation_id}; see `penstock operation list --all`",
        )
    is_so = control == api.OPERATION_CONTROL_CANCEL and record.state == pb.OPERATION_STATE_CANCELLED
    if record.state in ENDED and not is_so:
        state = pb.OperationState.Name(record.state).removeprefix("OPERATION_STATE_").lower()
        raise PenstockError(
            ErrorCode.POLICY_VIOLATION, f"operation {operation_id} ({record.kind}) has ended: {state}"
        )
    return record


def _control(
    image: MetadataImage, record: pb.OperationRecord, request: api.ControlOperationRequest, now_ms: int
) -> None:
    """Change a copy of its record."""
    what = request.control
    if what == api.OPERATION_CONTROL_THROTTLE:
        if request.throttle.auto and request.throttle.bytes_per_s:
            raise PenstockError(
                ErrorCode.INVALID_REQUEST,
                f"the throttle is both auto and {request.throttle.bytes_per_s:,} bytes/s; choose one of them",
            )
        record.throttle.CopyFrom(request.throttle)
        return
    if what not in (
        api.OPERATION_CONTROL_PAUSE,
        api.OPERATION_CONTROL_RESUME,
        api.OPERATION_CONTROL_CANCEL,
    ):
        raise PenstockError(
            ErrorCode.INVALID_REQUEST, f"control {what} is not known; say pause, resume, cancel or throttle"
        )
    if record.state == pb.OPERATION_STATE_CANCELLING:
        if what == api.OPERATION_CONTROL_CANCEL:
            return
        raise PenstockError(
            ErrorCode.POLICY_VIOLATION,
            f"operation {record.operation_id} ({record.kind}) is being cancelled and cannot go on; start it again",
        )
    by = request.principal or "an operator"
    if record.state == pb.OPERATION_STATE_CANCELLED:
        return
    if what == api.OPERATION_CONTROL_CANCEL:
        record.state = pb.OPERATION_STATE_CANCELLING
        record.phase = "cancelling"
        record.reason = ""
        record.paused_by_hand = False
    elif what == api.OPERATION_CONTROL_PAUSE:
        if not record.paused_by_hand:
            record.reason = f"paused by {by}"
        record.state = pb.OPERATION_STATE_PAUSED
        record.paused_by_hand = True
    elif record.state == pb.OPERATION_STATE_PAUSED:
        record.paused_by_hand = False
        record.reason = ""
        runs = record.kind == REASSIGNMENT or has_turn(image, record)
        record.state = pb.OPERATION_STATE_RUNNING if runs else pb.OPERATION_STATE_PENDING
        if runs and not record.started_ms:
            record.started_ms = now_ms
        for step in record.steps:
            # Whoever says so has looked after the process: it gets its whole time again.
            if step.state == pb.OPERATION_STEP_STATE_RUNNING:
                step.started_ms, step.reason = now_ms, ""


__all__ = ["control_operation", "start_operation"]
