"""Plans of upgrades: which processes understand the level to reach, and what would be in the way of a lower one.

An upgrade is done when it is begun: it is the record of the level, in one command with the record of the operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from penstock_controller.state import directories
from penstock_controller.state.features import level_records
from penstock_controller.state.generation import Context, Generated, config_record
from penstock_controller.state.operations.engine.kinds import live_operations
from penstock_controller.state.operations.engine.start import start_operation
from penstock_controller.state.operations.plans import gates
from penstock_controller.state.operations.plans.gates import OPERATIONS_LEVEL, Finding, check_allowed
from penstock_controller.state.operations.plans.plan import plan_id
from penstock_controller.state.operations.plans.rolling import conflict_of_processes
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.levels import (
    LEVEL_MIN,
    METADATA_LEVEL,
    TRANSACTION_VERSION,
    TRANSACTIONS_LEVEL,
    level_of,
    transaction_version,
    understood,
)
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import metadata_pb2 as meta
from penstock_proto.v1 import operations_pb2 as pb

UPGRADE: Final = "upgrade"
Controllers = Mapping[int, common.ProcessInfo | None]
"""Every controller of the quorum as it says it is, by id; None for one that did not answer."""
_TAKES: Final = frozenset({"level", "downgrade"})


def plan_upgrade(image: MetadataImage, request: pb.PlanRequest, controllers: Controllers) -> pb.Plan:
    """The plan; its parameters name the level, where the request leaves it to the controllers.

    Raises PenstockError for a level that there cannot be.
    """
    level = _wanted(image, request)
    now = level_of(image)
    steps: list[pb.PlannedStep] = []
    behind: list[str] = []
    for name, role, process in _processes(image, controllers):
        steps.append(step := _step(name, role, process))
        if step.feature_level < level:
            behind.append(f"{name} ({step.action})")
    plan = pb.Plan(
        kind=UPGRADE,
        metadata_version=image.version,
        parameters=meta.OperationParameters(level=level, downgrade=level < now),
        steps=steps,
        warnings=_warnings(now, level),
        metadata_level=now,
    )
    plan.plan_id = plan_id(plan.kind, plan.parameters, (), plan.steps)
    for finding in (_quorum(controllers), conflict_of_processes(image), _versions(image, level, behind)):
        plan.gates.append(finding.to_pb(request.allowed_gates))
    plan.runnable = not any(gate.blocking for gate in plan.gates)
    return plan


def start_upgrade(
    ctx: Context, request: pb.StartOperationRequest, controllers: Controllers, now_ms: int
) -> Generated[pb.StartOperationResponse]:
    """Set the level, unless a gate refuses. The reply's operation is done; kept if the cluster then has operations,
    and if anything was to do. Raises as `plan_upgrade`. `now_ms`: wall clock."""
    plan = plan_upgrade(ctx.image, request.request, controllers)
    made = start_operation(ctx, request, plan, now_ms)
    if not made.reply.HasField("operation"):
        return made
    record = made.reply.operation.record
    record.state = meta.OPERATION_STATE_DONE
    record.phase = "done"
    record.started_ms = record.finished_ms = now_ms
    level = plan.parameters.level
    if level == level_of(ctx.image):
        return Generated(made.reply)
    records = [*_left_behind(ctx.image, level), *level_records(ctx, level)]
    if level >= OPERATIONS_LEVEL:
        told = [r for r in made.records if r.WhichOneof("record") != "operation"]
        records += [meta.MetadataRecord(operation=record), *told]
    return Generated(made.reply, records)


def _wanted(image: MetadataImage, request: pb.PlanRequest) -> int:
    parameters = request.parameters
    for field, _ in parameters.ListFields():
        if field.name not in _TAKES:
            raise _invalid(f"{UPGRADE} has no parameter {field.name}; it has {', '.join(sorted(_TAKES))}")
    check_allowed(request.allowed_gates)
    now = level_of(image)
    level = parameters.level or (now - 1 if parameters.downgrade else FEATURE_LEVEL)
    if level > FEATURE_LEVEL:
        raise _invalid(
            f"the controllers understand {METADATA_LEVEL} up to {FEATURE_LEVEL}, not {level}; "
            "install a newer build on them first"
        )
    if level < LEVEL_MIN:
        raise _invalid(f"{METADATA_LEVEL} is {now}, and there is none below {LEVEL_MIN}")
    if level < now and not parameters.downgrade:
        raise _invalid(
            f"{METADATA_LEVEL} is {now} and does not go back to {level} unless --downgrade says so"
        )
    if level > now and parameters.downgrade:
        raise _invalid(f"{METADATA_LEVEL} is {now}: to go to {level} is no downgrade")
    return level


def _processes(
    image: MetadataImage, controllers: Controllers
) -> Iterator[tuple[str, str, common.ProcessInfo | None]]:
    """Name, role, and what each says of itself."""
    for controller_id, process in sorted(controllers.items()):
        yield f"controller-{controller_id}", "controller", process
    for node_id, node in sorted(image.nodes.items()):
        told = common.ProcessInfo(version=node.version, feature_level=node.feature_level)
        yield f"node-{node_id}", "storage-node", told
    for gateway_id, gateway in sorted(image.gateways.items()):
        yield gateway_id, "gateway", gateway.record.process


def _step(name: str, role: str, process: common.ProcessInfo | None) -> pb.PlannedStep:
    if process is None:
        return pb.PlannedStep(name=name, role=role, action="does not answer")
    knows = understood(process.feature_level)
    return pb.PlannedStep(
        name=name,
        role=role,
        action=f"understands level {knows}",
        version=process.version,
        feature_level=knows,
    )


def _quorum(controllers: Controllers) -> Finding:
    there = sum(process is not None for process in controllers.values())
    if there > len(controllers) // 2:
        return gates.quorum((True, ""))
    return gates.quorum((False, f"{there} of {len(controllers)} controllers answer; start the others"))


def _versions(image: MetadataImage, level: int, behind: list[str]) -> Finding:
    if behind:
        detail = (
            f"{METADATA_LEVEL} {level} has to wait for processes of older builds: install a newer one there, "
            "or take them out of the cluster"
        )
        return Finding(gates.VERSIONS, detail, tuple(behind))
    used = list(in_use(image, level)) if level < level_of(image) else []
    if used:
        return Finding(gates.VERSIONS, f"{METADATA_LEVEL} {level} does not know what is in use", tuple(used))
    return Finding(gates.VERSIONS)


def in_use(image: MetadataImage, level: int) -> Iterator[str]:
    """What a cluster of `level` could not have, by name. What is only remembered does not count: ended operations, and
    who set a setting."""
    if level < 2:
        yield "secrets of the cluster"
        return
    if level < TRANSACTIONS_LEVEL and (version := transaction_version(image)):
        yield f"{TRANSACTION_VERSION} {version}"
    if level >= OPERATIONS_LEVEL:
        return
    for record in live_operations(image):
        yield f"operation {record.operation_id} ({record.kind})"
    for node_id in sorted(image.operations.policies):
        yield f"node {node_id} (cordoned)"
    for retired in directories.all_retired(image):
        yield f"directory {retired.directory_id.hex()} of node {retired.node_id} (retired)"
    if image.restored_version:
        yield f"metadata restored at version {image.restored_version}"


def _left_behind(image: MetadataImage, level: int) -> Iterator[meta.MetadataRecord]:
    """Before the level falls: what is only remembered is forgotten."""
    if level >= OPERATIONS_LEVEL or level_of(image) < OPERATIONS_LEVEL:
        return
    for (kind, name), authors in image.config_authors.items():
        for key in authors:
            yield config_record(kind, name, key, image.config(kind, name)[key])
    for operation_id in image.operations.operations:
        yield meta.MetadataRecord(operation_removed=meta.OperationRemovedRecord(operation_id=operation_id))
    yield from directories.forgotten(image)


def _warnings(now: int, level: int) -> list[str]:
    if level == now:
        return [f"{METADATA_LEVEL} is {now} already"]
    if level > now:
        return [f"builds that do not understand level {level} are refused from then on"]
    if level < OPERATIONS_LEVEL:
        return ["ended operations, and who set which setting, are forgotten"]
    return []


def _invalid(message: str) -> PenstockError:
    return PenstockError(ErrorCode.INVALID_REQUEST, message)
