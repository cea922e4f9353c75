"""Plans of controllers that lost their disk: with which new directory one is to vote (decision 0015).

What is to be done is done when it is begun: the record that admits the directory, in one command with the record of the
operation. What goes on afterwards is only a look at the controller, until it votes.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock_controller.state import controllers
from penstock_controller.state.causes import cause
from penstock_controller.state.controllers import QuorumView
from penstock_controller.state.generation import Context, Generated
from penstock_controller.state.operations.engine.admission import COPYING
from penstock_controller.state.operations.engine.kinds import CONTROLLER_REPLACE, live_operations
from penstock_controller.state.operations.engine.start import start_operation
from penstock_controller.state.operations.plans import gates
from penstock_controller.state.operations.plans.gates import Finding, check_allowed
from penstock_controller.state.operations.plans.plan import plan_id
from penstock_controller.state.operations.processes import CONTROLLER, controller_name
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import metadata_pb2 as meta
from penstock_proto.v1 import operations_pb2 as pb


def plan_admission(image: MetadataImage, request: pb.PlanRequest, view: QuorumView) -> pb.Plan:
    """The plan. Raises PenstockError where there is nothing to replace, or no new directory to replace it with."""
    controller_id = _asked(request)
    conflict = _conflict(image)
    why = controllers.unfit(image, controller_id, b"", view)
    if why and conflict.ok:
        raise _invalid(why)
    said = view.connected.get(controller_id)
    plan = pb.Plan(
        kind=CONTROLLER_REPLACE,
        metadata_version=image.version,
        parameters=meta.OperationParameters(controller_id=controller_id),
        warnings=_warnings(image, controller_id, view),
    )
    if said is not None:
        action = f"votes with directory {said.directory_id.hex()}"
        plan.steps.add(name=controller_name(controller_id), role=CONTROLLER, action=action)
    plan.plan_id = plan_id(plan.kind, plan.parameters, (), plan.steps)
    absent = controllers.absent_voters(image, controller_id, view)
    for finding in (gates.quorum((not absent, absent)), conflict, gates.versions(image)):
        plan.gates.append(finding.to_pb(request.allowed_gates))
    plan.runnable = not any(gate.blocking for gate in plan.gates)
    return plan


def start_admission(
    ctx: Context, request: pb.StartOperationRequest, view: QuorumView, now_ms: int
) -> Generated[pb.StartOperationResponse]:
    """Admit the directory, unless a gate refuses. Raises as `plan_admission`. `now_ms`: wall clock."""
    plan = plan_admission(ctx.image, request.request, view)
    made = start_operation(ctx, request, plan, now_ms)
    if not made.reply.HasField("operation"):
        return made
    record = made.reply.operation.record
    record.phase = COPYING
    for step in record.steps:
        step.state, step.started_ms = meta.OPERATION_STEP_STATE_RUNNING, now_ms
    controller_id = plan.parameters.controller_id
    rest = [r for r in made.records if r.WhichOneof("record") != "operation"]
    records = [
        meta.MetadataRecord(operation=record),
        controllers.admission(controller_id, view.connected[controller_id].directory_id),
        *rest,
    ]
    why = cause("replace", f"controller {controller_id}", "", request.principal, record.operation_id)
    return Generated(made.reply, records, causes=made.causes + why)


def _asked(request: pb.PlanRequest) -> int:
    for field, _ in request.parameters.ListFields():
        if field.name != "controller_id":
            raise _invalid(f"{CONTROLLER_REPLACE} has no parameter {field.name}; it has controller_id")
    check_allowed(request.allowed_gates)
    if request.parameters.controller_id < 1:
        raise _invalid(
            f"{CONTROLLER_REPLACE} needs the id of a controller (controller_id); see `penstock controller list`"
        )
    return request.parameters.controller_id


def _conflict(image: MetadataImage) -> Finding:
    """One at a time: the one before has to vote, or somebody has to look why it does not."""
    others = [
        f"controller {other.parameters.controller_id} (operation {other.operation_id})"
        for other in live_operations(image)
        if other.kind == CONTROLLER_REPLACE
    ]
    if not others:
        return Finding(gates.CONFLICT)
    return Finding(
        gates.CONFLICT,
        "another controller is being replaced; wait until it votes, or cancel that operation",
        tuple(others),
    )


def _warnings(image: MetadataImage, controller_id: int, view: QuorumView) -> Iterator[str]:
    old = image.controllers.get(controller_id, b"")
    if old:
        yield f"directory {old.hex()} of controller {controller_id} is refused from then on"
    if len(view.members) > 1:
        yield "until it has copied the log, the other controllers are the majority: keep them running"


def _invalid(message: str) -> PenstockError:
    return PenstockError(ErrorCode.INVALID_REQUEST, message)
