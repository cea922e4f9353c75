"""A controller with a new directory, on its way to a vote.

The directory is admitted by the command that begins the operation. Here it is only judged, from what the controller
says of itself: so it does not matter which controller is active meanwhile, nor how often it is looked at.
"""

from __future__ import annotations

from typing import Final

from penstock_controller.state.causes import of_operation
from penstock_controller.state.generation import Context, Generated
from penstock_controller.state.operations.engine import endings
from penstock_controller.state.operations.processes import QuorumSeen, controller_id_of
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.operations import ENDED
from penstock_proto.v1 import metadata_pb2 as pb

COPYING: Final = "copying the log"
PATIENCE_S: Final = 300
"""After which it pauses, so that somebody looks; it ends by itself once the controller votes."""

_OVER: Final = (pb.OPERATION_STEP_STATE_DONE, pb.OPERATION_STEP_STATE_SKIPPED)


def next_admission(ctx: Context, operation_id: int, quorum: QuorumSeen, now_ms: int) -> Generated[bool]:
    """The next records of the operation; the reply says whether there are any. `now_ms`: wall clock."""
    old = ctx.image.operations.operations.get(operation_id)
    if old is None or old.state in ENDED:
        return Generated(False)
    new = pb.OperationRecord()
    new.CopyFrom(old)
    _judge(ctx.image, new, quorum, now_ms)
    if new == old:
        return Generated(False)
    records = [pb.MetadataRecord(operation=new)]
    if new.state in ENDED:
        records += endings.forgotten(ctx.image, operation_id)
    return Generated(True, records, causes=of_operation(old, operation_id))


def waits_for(image: MetadataImage, record: pb.OperationRecord, quorum: QuorumSeen) -> str:
    """For people; empty where it is not known, or nothing."""
    for step in record.steps:
        lacks = None if step.state in _OVER else _lacks(image, step, quorum)
        if lacks:
            return f"{step.name}, which {lacks}"
    return ""


def _judge(image: MetadataImage, record: pb.OperationRecord, quorum: QuorumSeen, now_ms: int) -> None:
    if record.state == pb.OPERATION_STATE_CANCELLING:
        _end(record, pb.OPERATION_STATE_CANCELLED, now_ms)
        record.phase = "cancelled"
        name = f"controller {record.parameters.controller_id}"
        record.reason = f"{name} stays admitted, and votes once it has copied the log"
        return
    if record.paused_by_hand:
        return
    left = 0
    for step in record.steps:
        if step.state in _OVER:
            continue
        lacks = _lacks(image, step, quorum)
        if lacks == "":
            step.state, step.reason, step.finished_ms = pb.OPERATION_STEP_STATE_DONE, "", now_ms
            continue
        left += 1
        late = now_ms - step.started_ms > PATIENCE_S * 1000
        if lacks and late and record.state == pb.OPERATION_STATE_RUNNING:
            record.state = pb.OPERATION_STATE_PAUSED
            record.reason = (
                f"{step.name} {lacks}, {PATIENCE_S} s after it was admitted; see its log. This ends by itself once it "
                "votes"
            )
    if not left:
        record.reason = ""
        record.phase = "done"
        _end(record, pb.OPERATION_STATE_DONE, now_ms)
    elif record.state == pb.OPERATION_STATE_PENDING:
        record.state = pb.OPERATION_STATE_RUNNING


def _end(record: pb.OperationRecord, state: pb.OperationState.ValueType, now_ms: int) -> None:
    record.state = state
    record.paused_by_hand = False
    record.finished_ms = now_ms


def _lacks(image: MetadataImage, step: pb.OperationStep, quorum: QuorumSeen) -> str | None:
    """What it needs yet to be a voter; empty for nothing, None while nobody was asked."""
    if not quorum.members:
        return None
    controller_id = controller_id_of(step.name)
    if controller_id not in quorum.members:
        return "is not in raft_peers any more"
    said = quorum.answers.get(controller_id)
    if said is None:
        return "does not answer"
    admitted = image.controllers.get(controller_id, said.directory_id)
    if said.directory_id != admitted:
        return f"runs with directory {said.directory_id.hex()}, and {admitted.hex()} was admitted"
    if said.voting:
        return ""
    behind = f": it lacks {said.behind_entries:,} entries" if said.behind_entries else ""
    return f"has yet to copy the log{behind}"
