"""What clients reassign by themselves (AlterPartitionReassignments), as operations see it.

It acts at once. What it begins is kept as an operation of kind "reassignment"; and a partition that another operation
has to do with is left to whoever asked last, in the same command: no other active controller begins that move again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from penstock_controller.state.generation import Context, NextCommand
from penstock_controller.state.operations.engine.kinds import REASSIGNMENT
from penstock_controller.state.operations.engine.stages import target_of
from penstock_controller.state.operations.plans.gates import CONFLICT, OPERATIONS_LEVEL
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_core.metadata.levels import level_of
from penstock_core.metadata.operations import OperationMove
from penstock_proto.v1 import metadata_pb2 as pb

TAKEN: Final = "somebody else gave it other replicas"
"""Why a move is left out."""
REPLICAS: Final = "moving replicas"
"""What an operation is about while it moves them."""
_NAMED_MAX: Final = 3

Records = list[pb.MetadataRecord]


@dataclass(frozen=True, slots=True)
class Reaimed:
    """A partition, before and after somebody gave it other replicas, or another order of them."""

    topic: str
    old: PartitionImage
    new: PartitionImage
    cancels: bool = False
    """It takes back what was under way, and begins nothing."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.topic}-{self.old.partition}"


def some_of(names: Sequence[str]) -> str:
    """The first few by name."""
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more


def conflict_over(names: Sequence[str]) -> str:
    """Why an operation is paused whose partitions somebody else reassigned."""
    return f"{CONFLICT}: somebody else reassigned {some_of(names)}; resume the operation to go on without, or cancel it"


def reassigned(
    ctx: Context,
    changed: Sequence[Reaimed],
    principal: str,
    now_ms: int,
    bytes_of: Callable[[PartitionImage], int | None],
) -> tuple[Records, Iterator[pb.MetadataRecord]]:
    """Records of operations that go with changed partitions: some at once, and one for each move.

    None of them below the level that operations came with. Raises NextCommand.
    """
    if not changed or level_of(ctx.image) < OPERATIONS_LEVEL:
        return [], iter(())
    taken = _taken(ctx.image, changed)
    records = _paused(ctx.image, taken)
    begun: list[OperationMove] = []
    if any(each.new.reassigning and not each.cancels for each in changed):
        if ctx.version in ctx.image.operations.operations:
            raise NextCommand
        begun = [_move(each, bytes_of) for each in changed if not each.cancels]
        record = pb.OperationRecord(
            operation_id=ctx.version,
            kind=REASSIGNMENT,
            state=pb.OPERATION_STATE_RUNNING,
            phase=REPLICAS,
            created_by=principal,
            created_ms=now_ms,
            started_ms=now_ms,
            throttle=pb.OperationThrottle(),
            moves_total=len(begun),
            bytes_total=sum(move.bytes for move in begun),
        )
        records.append(pb.MetadataRecord(operation=record))
    return records, _moves(ctx.version, begun, taken)


def _move(each: Reaimed, bytes_of: Callable[[PartitionImage], int | None]) -> OperationMove:
    before = tuple(n for n in each.old.replicas if n not in each.old.adding_replicas)
    wanted = target_of(each.new)
    added = sum(n not in before for n in wanted)
    copied = added * (bytes_of(each.old) or 0) if added else 0
    return OperationMove(each.old.key, wanted, before, copied)


def _taken(
    image: MetadataImage, changed: Sequence[Reaimed]
) -> dict[int, list[tuple[Reaimed, OperationMove]]]:
    """Moves of operations that go on, by operation, whose partition is now aimed elsewhere."""
    keys = {each.old.key for each in changed}
    found: dict[int, list[tuple[Reaimed, OperationMove]]] = {}
    for operation_id, moves in image.operations.moves.items():
        common = moves.keys() & keys
        if not common:
            continue
        goes_back = image.operations.operations[operation_id].state == pb.OPERATION_STATE_CANCELLING
        for each in changed:
            if each.old.key not in common:
                continue
            move = moves[each.old.key]
            aim = move.replicas_before if goes_back else move.replicas
            if not move.skipped and target_of(each.new) != aim:
                found.setdefault(operation_id, []).append((each, move))
    return found


def _paused(image: MetadataImage, taken: dict[int, list[tuple[Reaimed, OperationMove]]]) -> Records:
    """Operations that lost partitions wait for a person; but one that clients asked for just goes on with the rest."""
    records = []
    for operation_id, lost in taken.items():
        old = image.operations.operations[operation_id]
        if old.kind == REASSIGNMENT or old.paused_by_hand or old.state == pb.OPERATION_STATE_CANCELLING:
            continue
        record = pb.OperationRecord()
        record.CopyFrom(old)
        record.state = pb.OPERATION_STATE_PAUSED
        record.reason = conflict_over([each.name for each, _ in lost])
        records.append(pb.MetadataRecord(operation=record))
    return records


def _moves(
    operation_id: int, begun: list[OperationMove], taken: dict[int, list[tuple[Reaimed, OperationMove]]]
) -> Iterator[pb.MetadataRecord]:
    for move in begun:
        yield pb.MetadataRecord(operation_move=move.to_pb(operation_id))
    for other, lost in taken.items():
        for _, move in lost:
            record = move.to_pb(other)
            record.skipped = TAKEN
            yield pb.MetadataRecord(operation_move=record)


__all__ = ["REPLICAS", "TAKEN", "Reaimed", "conflict_over", "reassigned", "some_of"]
