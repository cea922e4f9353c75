"""Plans of rolling restarts: which processes in which order, and whether the cluster can do without each of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable
from typing import Final

from penstock_controller.state.operations.plans import gates
from penstock_controller.state.operations.plans.gates import Finding
from penstock_controller.state.operations.processes import (
    CONTROLLER,
    GATEWAY,
    NODE,
    ROLES,
    QuorumSeen,
    all_processes,
    node_id_of,
    node_name,
)
from penstock_controller.state.operations.stops import Harm, harm_of_stop, min_isr_rules
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.operations import ENDED
from penstock_proto.v1 import metadata_pb2 as meta
from penstock_proto.v1 import operations_pb2 as pb

RESTART: Final = "restart"
STEP_TIMEOUT_S_MAX: Final = 86_400
_A_STEP: Final = 64
"""Partitions looked at between two steps."""


def plan_rolling(
    image: MetadataImage, request: pb.PlanRequest, alive: Callable[[NodeId], bool], quorum: QuorumSeen
) -> Generator[None, None, pb.Plan]:
    """The plan, but for its id. Raises PenstockError for a role or a process that is not there."""
    chosen = chosen_processes(image, request.parameters, quorum)
    plan = pb.Plan(
        kind=request.kind,
        metadata_version=image.version,
        parameters=request.parameters,
        throttle=request.throttle,
        steps=[pb.PlannedStep(name=name, role=role, action=RESTART) for role, name in chosen],
        warnings=_warnings(image, chosen, quorum),
    )
    nodes = [node_id_of(name) for role, name in chosen if role == NODE]
    health = yield from gates.health(image)
    short, single = yield from _without_each(image, frozenset(nodes))
    for finding in (
        Finding(gates.QUORUM, quorum.trouble()),
        Finding(gates.DISK_ROOM),
        conflict_of_processes(image),
        gates.versions(image),
        short,
        Finding(gates.RACKS),
        _all_live(image, health, nodes, alive),
        single,
    ):
        plan.gates.append(finding.to_pb(request.allowed_gates))
    plan.runnable = not any(gate.blocking for gate in plan.gates)
    return plan


def chosen_processes(
    image: MetadataImage, parameters: meta.OperationParameters, quorum: QuorumSeen
) -> list[tuple[str, str]]:
    """Role and name of each that is meant, in the order in which they are restarted. Raises PenstockError."""
    for role in parameters.roles:
        if role not in ROLES:
            raise _invalid(f"there is no role {role!r}; there are {', '.join(sorted(ROLES))}")
    if parameters.step_timeout_s > STEP_TIMEOUT_S_MAX:
        raise _invalid(f"step_timeout_s is {parameters.step_timeout_s}; use at most {STEP_TIMEOUT_S_MAX:,}")
    found = [
        (role, name)
        for role, name in all_processes(image, quorum)
        if not parameters.roles or role in parameters.roles
    ]
    names = {name for _, name in found}
    for name in parameters.process_names:
        if name not in names:
            of = f" among {_listed(parameters.roles)}" if parameters.roles else ""
            raise PenstockError(
                ErrorCode.RESOURCE_NOT_FOUND,
                f"there is no process {name!r}{of}; there are {_listed([name for _, name in found])}",
            )
    if parameters.process_names:
        found = [(role, name) for role, name in found if name in parameters.process_names]
    if not found:
        raise PenstockError(
            ErrorCode.RESOURCE_NOT_FOUND, f"there is no process among {_listed(parameters.roles)} to restart"
        )
    return found


def _warnings(image: MetadataImage, chosen: Collection[tuple[str, str]], quorum: QuorumSeen) -> Iterable[str]:
    roles = {role for role, _ in chosen}
    if GATEWAY in roles and len(image.gateways) == 1:
        yield "there is one gateway: clients that come through it are without an address while it restarts"
    if CONTROLLER in roles and len(quorum.members) == 1:
        yield "there is one controller: nothing of the metadata can change while it restarts"


def conflict_of_processes(image: MetadataImage) -> Finding:
    """Two that go from process to process would each count on what the other stops, or exchanges."""
    others = [
        f"operation {operation.operation_id}"
        for operation in image.operations.operations.values()
        if operation.steps and operation.state not in ENDED
    ]
    if not others:
        return Finding(gates.CONFLICT)
    return Finding(
        gates.CONFLICT,
        "another operation goes from process to process; wait until it is done, or cancel it",
        tuple(others),
    )


def _without_each(
    image: MetadataImage, nodes: Collection[NodeId]
) -> Generator[None, None, tuple[Finding, Finding]]:
    """What partitions would suffer while one of these nodes after another is away."""
    short: list[str] = []
    dark: list[str] = []
    count = 0
    for topic in sorted(image.topics.values(), key=lambda t: t.name):
        rules = min_isr_rules(image, topic)
        for number in sorted(topic.partitions):
            partition = topic.partitions[number]
            for node_id in partition.isr:
                harm = harm_of_stop(partition, rules, node_id) if node_id in nodes else Harm.NONE
                if harm is not Harm.NONE:
                    (dark if harm is Harm.DARK else short).append(
                        f"{topic.name}-{number} (without {node_name(node_id)})"
                    )
            count += 1
            if count % _A_STEP == 0:
                yield
    return (
        Finding(
            gates.MIN_ISR,
            "partitions would have fewer replicas in sync than acknowledgements need while a node restarts; bring the "
            "nodes that are missing back first, or allow it (`--allow min-isr`)"
            if short
            else "",
            tuple(short),
        ),
        Finding(
            gates.SINGLE_REPLICA,
            "partitions have a single replica and would be offline while its node restarts; give their topics more "
            "(`penstock topic set-replication-factor`), or allow it (`--allow single-replica`)"
            if dark
            else "",
            tuple(dark),
        ),
    )


def _all_live(
    image: MetadataImage, health: Finding, nodes: Iterable[NodeId], alive: Callable[[NodeId], bool]
) -> Finding:
    """Partitions are well, and so are the nodes that are to be restarted."""
    away = [f"{node_name(n)} (not live)" for n in nodes if not (image.nodes[n].active and alive(n))]
    if not away:
        return health
    said = "nodes that are to be restarted are not live; start them first, or leave them out (`--name`)"
    detail = f"{said}; {health.detail}" if health.detail else said
    return Finding(gates.HEALTH, detail, (*away, *health.items))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _invalid(message: str) -> PenstockError:
    return PenstockError(ErrorCode.INVALID_REQUEST, message)
