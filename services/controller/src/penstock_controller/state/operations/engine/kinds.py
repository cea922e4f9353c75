"""What the kinds of operations do, and whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock_controller.state.operations.plans.gates import CONFLICT
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.operations import ENDED
from penstock_proto.v1 import metadata_pb2 as pb

RUN_AT_ONCE_MAX: Final = 2
"""Operations that move data side by side; others wait, oldest first."""

REBALANCE: Final = "rebalance"
LEADER_ELECT: Final = "leader-elect"
REASSIGNMENT: Final = "reassignment"
"""What clients ask for by AlterPartitionReassignments: it acts at once, so no window, gate or turn bounds it."""

ROLLING_RESTART: Final = "rolling-restart"
CONTROLLER_REPLACE: Final = "controller-replace"
EXECUTOR_GONE: Final = "executor gone"
"""Begins the reason of a rolling operation that nobody carries out."""

_DRAIN: Final = "node-drain"
_REMOVE: Final = "node-remove"
_REPLACE: Final = "node-replace"
_TAKING_BACK: Final = frozenset({"node-add", "node-uncordon"})
_OF_NODES: Final = frozenset({_DRAIN, _REMOVE, _REPLACE, *_TAKING_BACK})


def nodes_of(record: pb.OperationRecord) -> tuple[NodeId, ...]:
    """Nodes that the operation is about, for kinds that are about nodes."""
    if record.kind not in _OF_NODES:
        return ()
    named = [NodeId(n) for n in record.parameters.node_ids]
    if record.parameters.replacement_node_id:
        named.append(NodeId(record.parameters.replacement_node_id))
    return tuple(named)


def drained_by(record: pb.OperationRecord) -> tuple[NodeId, ...]:
    """Nodes that keep nothing."""
    replaced = record.kind == _REPLACE and record.parameters.replacement_node_id
    if record.kind in (_DRAIN, _REMOVE) or replaced:
        return tuple(NodeId(n) for n in record.parameters.node_ids)
    return ()


def removed_by(record: pb.OperationRecord) -> tuple[NodeId, ...]:
    """Nodes that are forgotten at its end, and whose directories are retired."""
    return () if record.kind == _DRAIN else drained_by(record)


def refilled_by(record: pb.OperationRecord) -> tuple[NodeId, ...]:
    """Nodes that come back with an empty directory and fetch what they had."""
    if record.kind == _REPLACE and not record.parameters.replacement_node_id:
        return tuple(NodeId(n) for n in record.parameters.node_ids)
    return ()


def mended_by(record: pb.OperationRecord) -> frozenset[NodeId]:
    """Nodes that are out of the way afterwards, or made anew: that they are missing is no reason to wait."""
    return frozenset((*drained_by(record), *refilled_by(record)))


def uncordoned_by(record: pb.OperationRecord) -> tuple[NodeId, ...]:
    """Nodes that take replicas again."""
    return tuple(NodeId(n) for n in record.parameters.node_ids) if record.kind in _TAKING_BACK else ()


def live_operations(image: MetadataImage) -> Iterator[pb.OperationRecord]:
    """Those that have not ended, oldest first."""
    for record in image.operations.operations.values():
        if record.state not in ENDED:
            yield record


def moves_data(record: pb.OperationRecord) -> bool:
    """Whether it counts among those of which few run side by side."""
    return record.moves_total > 0 and record.kind not in (LEADER_ELECT, REASSIGNMENT)


def is_rolling(record: pb.OperationRecord) -> bool:
    """Whether it does something to one process after another: such a one runs alone."""
    return record.kind == ROLLING_RESTART


def judged_by_controllers(record: pb.OperationRecord) -> bool:
    """Whether its progress is in what controllers say of themselves, and not in the image alone."""
    return record.kind in (ROLLING_RESTART, CONTROLLER_REPLACE)


def waits_for_a_person(record: pb.OperationRecord) -> bool:
    """Paused, and not to go on by itself: a person said so, somebody else moves what it was to move, or the command
    that carries it out is gone and has left no process half restarted."""
    if record.state != pb.OPERATION_STATE_PAUSED:
        return False
    if is_rolling(record):
        under_way = any(step.state == pb.OPERATION_STEP_STATE_RUNNING for step in record.steps)
        return not under_way and (record.paused_by_hand or record.reason.startswith(EXECUTOR_GONE))
    return record.paused_by_hand or record.reason.startswith(CONFLICT)


def ahead_of(image: MetadataImage, record: pb.OperationRecord) -> list[int]:
    """Operations that run, or wait, before this one; not such as wait for a person."""
    return [other.operation_id for other in _ahead_of(image, record)]


def _ahead_of(image: MetadataImage, record: pb.OperationRecord) -> list[pb.OperationRecord]:
    if not takes_turns(record):
        return []
    return [
        other
        for other in live_operations(image)
        if other.operation_id != record.operation_id and takes_turns(other) and not waits_for_a_person(other)
        if other.state != pb.OPERATION_STATE_PENDING or other.operation_id < record.operation_id
    ]


def takes_turns(record: pb.OperationRecord) -> bool:
    """Whether it waits for others, and others for it."""
    return moves_data(record) or is_rolling(record)


def has_turn(image: MetadataImage, record: pb.OperationRecord) -> bool:
    """Whether it may run now: few that move data run side by side, a rolling one runs alone."""
    ahead = _ahead_of(image, record)
    if is_rolling(record):
        return not ahead
    return len(ahead) < RUN_AT_ONCE_MAX and not any(is_rolling(other) for other in ahead)
