"""How operations end: what they came to, what becomes of their nodes, and which of them are forgotten."""

from __future__ import annotations

from typing import Final

from penstock_controller.state import directories
from penstock_controller.state.operations.engine import policies
from penstock_controller.state.operations.engine.kinds import drained_by, refilled_by, removed_by
from penstock_controller.state.operations.engine.ledger import Ledger
from penstock_controller.state.operations.engine.stages import Stage
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_core.metadata.operations import ENDED
from penstock_proto.v1 import metadata_pb2 as pb

KEPT_MAX: Final = 200
"""Ended operations that are remembered."""
_FORGOTTEN_AT_ONCE: Final = 20
_NAMED_MAX: Final = 3


def ended(
    image: MetadataImage,
    ledger: Ledger,
    state: pb.OperationState.ValueType,
    now_ms: int,
    *,
    phase: str,
    reason: str = "",
) -> list[pb.MetadataRecord]:
    """The record of an ended operation, with what it came to."""
    record = pb.OperationRecord()
    record.CopyFrom(ledger.record)
    record.state = state
    record.phase = phase
    record.reason = reason
    record.paused_by_hand = False
    record.finished_ms = now_ms
    record.moves_done = ledger.count(Stage.DONE)
    record.moves_skipped = ledger.skipped + ledger.count(Stage.FOREIGN) + ledger.count(Stage.GONE)
    record.bytes_done = ledger.bytes_done
    return [pb.MetadataRecord(operation=record), *forgotten(image, record.operation_id)]


def cancelled(image: MetadataImage, ledger: Ledger, now_ms: int) -> list[pb.MetadataRecord]:
    """None of its partitions is on its way any more."""
    records = policies.lifted(image, ledger.record)
    return records + ended(image, ledger, pb.OPERATION_STATE_CANCELLED, now_ms, phase="cancelled")


def done(image: MetadataImage, ledger: Ledger, now_ms: int) -> list[pb.MetadataRecord]:
    """All that was to move has moved. Nodes that are to go are gone with it, in the same command; what they had before,
    or a node that was replaced in its place, is refused from then on."""
    record = ledger.record
    removed = [n for n in removed_by(record) if n in image.nodes]
    records = [] if removed_by(record) else policies.drained(image, record)
    for node_id in removed:
        retired = pb.RetiredDirectoryRecord(
            directory_id=image.nodes[node_id].directory_id,
            node_id=node_id,
            operation_id=record.operation_id,
        )
        records.append(pb.MetadataRecord(retired_directory=retired))
        records.append(pb.MetadataRecord(node_removed=pb.NodeRemovedRecord(node_id=node_id)))
    records += directories.replaced(image, (*removed, *refilled_by(record)), record.operation_id)
    # That a disk of before was changed once is no news of the one that it has now.
    same = [n for n in refilled_by(record) if n in image.nodes and not directories.former(image, n)]
    reason = ""
    if same:
        reason = (
            f"node {same[0]} has the directory that it had: nothing was made anew, and none is refused for it; to "
            "change its disk, start it with an empty one, then replace it again"
        )
    return records + ended(image, ledger, pb.OPERATION_STATE_DONE, now_ms, phase="done", reason=reason)


def left_over(
    image: MetadataImage, ledger: Ledger, held: list[PartitionImage], now_ms: int
) -> list[pb.MetadataRecord]:
    """Failed: nodes that were to be emptied still hold these partitions. They stay cordoned."""
    some = [f"{image.topics[p.topic_id].name}-{p.partition}" for p in held[:_NAMED_MAX]]
    more = f" and {len(held) - len(some)} more" if len(held) > len(some) else ""
    nodes = drained_by(ledger.record)
    reason = (
        f"node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))} still hold{'s' * (len(nodes) == 1)} "
        f"{', '.join(some)}{more}, which the plan did not move; start the operation again for what is left"
    )
    records = policies.drained(image, ledger.record)
    return records + ended(
        image, ledger, pb.OPERATION_STATE_FAILED, now_ms, phase="not all replicas moved", reason=reason
    )


def forgotten(image: MetadataImage, ending: int = 0) -> list[pb.MetadataRecord]:
    """Records that forget the oldest ended operations, so that few enough are kept with the one that is ending."""
    old = sorted(i for i, each in image.operations.operations.items() if each.state in ENDED)
    excess = min(len(old) + bool(ending) - KEPT_MAX, _FORGOTTEN_AT_ONCE)
    return [
        pb.MetadataRecord(operation_removed=pb.OperationRemovedRecord(operation_id=operation_id))
        for operation_id in old[: max(0, excess)]
    ]
