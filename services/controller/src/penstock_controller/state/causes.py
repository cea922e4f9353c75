"""Why commands change what they change: the makers of causes, for the history that `penstock explain` tells. Pure.

A cause is no state. Who generates records says with them why; an older build passes over it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.operations import ENDED
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb

CAUSES_PER_COMMAND_MAX: Final = 200
DETAIL_LENGTH_MAX: Final = 300
"""Characters. With both a command grows by at most some 100 KB."""
ISR_CAUSES_MAX: Final = 100
"""Of one call of a leader; beyond, those of one reason share one."""

Causes = tuple[pb.Cause, ...]


def cause(kind: str, subject: str, detail: str = "", principal: str = "", operation_id: int = 0) -> Causes:
    """One cause, as `Generated.causes` has it."""
    return (
        pb.Cause(
            kind=kind,
            subject=subject[:DETAIL_LENGTH_MAX],
            detail=detail[:DETAIL_LENGTH_MAX],
            principal=principal[:DETAIL_LENGTH_MAX],
            operation_id=operation_id,
        ),
    )


def of_topics(detail: str, names: Iterable[str], principal: str) -> Causes:
    """Topics made, grown or deleted."""
    made: list[pb.Cause] = []
    for name in names:
        if len(made) == CAUSES_PER_COMMAND_MAX:
            break
        made += cause("topic", f"topic {name}", detail, principal)
    return tuple(made)


def of_configs(request: api.AlterConfigsRequest) -> Causes:
    """Settings changed by somebody."""
    made: list[pb.Cause] = []
    for resource in request.resources[:CAUSES_PER_COMMAND_MAX]:
        subject = f"{resource.resource_type} {resource.resource_name}".strip()
        made += cause("config", subject, "settings changed", request.principal)
    return tuple(made)


def of_registration(
    node_id: NodeId, known: bool, new_directory: bool, request: api.RegisterNodeRequest
) -> Causes:
    """A storage node's process came."""
    if not known:
        detail = "new"
    elif new_directory:
        detail = "with a new directory"
    elif request.damaged:
        detail = f"with {len(request.damaged)} damaged replicas"
    else:
        detail = "after a clean stop" if request.clean_shutdown else "after an unclean stop"
    return cause("register", f"node {node_id}", detail)


def of_drain(image: MetadataImage, node_id: NodeId, disk_failed: bool) -> Causes:
    """A storage node's process ends: its disk failed, an operation restarts it, or somebody sent it TERM."""
    if disk_failed:
        return cause("drain", f"node {node_id}", "disk failed")
    name = f"node-{node_id}"
    for operation_id, record in image.operations.operations.items():
        if record.state in ENDED:
            continue
        running = (s for s in record.steps if s.state == pb.OPERATION_STEP_STATE_RUNNING)
        if any(step.name == name for step in running):
            detail = f"restarted by {record.kind}"
            return cause("drain", f"node {node_id}", detail, record.created_by, operation_id)
    return cause("drain", f"node {node_id}", "TERM")


def of_operation(record: pb.OperationRecord | None, operation_id: int) -> Causes:
    """An operation's own step."""
    subject = f"operation {operation_id}"
    if record is None:
        return cause("operation", subject, operation_id=operation_id)
    return cause("operation", subject, record.kind, record.created_by, operation_id)


def of_isr(names: Sequence[str], proposals: Sequence[api.IsrProposal], leader: NodeId) -> Causes:
    """What a leader said of the ISRs that it wants, by partition name."""
    if len(names) <= ISR_CAUSES_MAX:
        return tuple(
            each
            for name, said in zip(names, proposals, strict=True)
            for each in cause(
                "isr", f"partition {name}", _isr_detail(leader, said.reason, said.lag_ms, said.lag_bytes)
            )
        )
    worst: dict[str, tuple[int, int]] = {}
    for said in proposals:
        lag_ms, lag_bytes = worst.get(said.reason, (0, 0))
        worst[said.reason] = max(lag_ms, said.lag_ms), max(lag_bytes, said.lag_bytes)
    made: list[pb.Cause] = []
    for reason, (lag_ms, lag_bytes) in list(worst.items())[:ISR_CAUSES_MAX]:
        made += cause("isr", f"node {leader}", _isr_detail(leader, reason, lag_ms, lag_bytes))
    return tuple(made)


def _isr_detail(leader: NodeId, reason: str, lag_ms: int, lag_bytes: int) -> str:
    said = [reason[:100] or "no reason given"]
    if lag_ms:
        said.append(f"{lag_ms} ms")
    if lag_bytes:
        said.append(f"{lag_bytes} bytes")
    return f"leader {leader}: " + ", ".join(said)


def bounded(causes: Iterable[pb.Cause]) -> list[pb.Cause]:
    """At most CAUSES_PER_COMMAND_MAX, each once."""
    kept: dict[bytes, pb.Cause] = {}
    for each in causes:
        kept.setdefault(each.SerializeToString(deterministic=True), each)
        if len(kept) == CAUSES_PER_COMMAND_MAX:
            break
    return list(kept.values())
