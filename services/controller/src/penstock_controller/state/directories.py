"""Data directories that were nodes', and are no more: which of them are refused.

A node that comes with another directory than before leaves the old one behind. That one may come back at first: the
new one may be the wrong volume, mounted by mistake, and the old one all that there is of some records. Once a
`node-replace` in the node's own place is done, everything is in sync with the new one, and the old one is refused for
ever: whoever came with it after that would take the id away from the directory that counts. So is what a node had
before, when the node is removed: it would come back by itself, with records of then.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from penstock_controller.state.generation import Context
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.levels import KIND_LEVELS, level_of
from penstock_proto.v1 import metadata_pb2 as pb

FORMER_MAX: Final = 4
"""Directories of a node that may come back and are remembered; the oldest is forgotten."""
_LAST_MS: Final = 253_402_300_799_000
"""The last time that has a date, whatever a clock or a backup says."""


def retired(image: MetadataImage, directory_id: bytes) -> pb.RetiredDirectoryRecord | None:
    """What retired a directory for ever; None where nothing did."""
    record = image.operations.retired.get(directory_id)
    return record if record is not None and record.operation_id else None


def all_retired(image: MetadataImage) -> Iterable[pb.RetiredDirectoryRecord]:
    """Every directory that is refused for ever."""
    return (record for record in image.operations.retired.values() if record.operation_id)


def former(image: MetadataImage, node_id: NodeId) -> list[pb.RetiredDirectoryRecord]:
    """Directories that the node had and may come back with, the one that it had longest ago first."""
    found = [r for r in image.operations.retired.values() if r.node_id == node_id and not r.operation_id]
    return sorted(found, key=lambda r: (r.replaced_ms, r.directory_id))


def check_not_retired(image: MetadataImage, directory_id: bytes) -> None:
    """Raises POLICY_VIOLATION, with all that is to be said of it, for a directory that was retired."""
    record = retired(image, directory_id)
    if record is None:
        return
    if not record.replaced_by:
        raise PenstockError(
            ErrorCode.POLICY_VIOLATION,
            f"directory {directory_id.hex()} was that of node {record.node_id} and was retired by operation "
            f"{record.operation_id}; what it holds is elsewhere: empty it to start a new node with it",
        )
    what = (
        f"directory {directory_id.hex()} was that of node {record.node_id} until {_when(record)}the node came with "
        f"directory {record.replaced_by.hex()} in its place"
    )
    removed_by = _removed_by(image, record)
    if removed_by:
        raise PenstockError(
            ErrorCode.POLICY_VIOLATION,
            f"{what}; the node was removed by operation {removed_by}; empty this directory to start a new node with it",
        )
    raise PenstockError(
        ErrorCode.POLICY_VIOLATION,
        f"{what}, which operation {record.operation_id} has seen filled; start node {record.node_id} with the "
        "directory that it has now, or empty this one and give it another node_id",
    )


def _removed_by(image: MetadataImage, record: pb.RetiredDirectoryRecord) -> int:
    """The operation that removed the node of a directory that was replaced; 0 where the node goes on.

    Told by the last directory that came in its place, for another node may have the id by now.
    """
    last: pb.RetiredDirectoryRecord | None = record
    for _ in image.operations.retired:
        if last is None or not last.replaced_by:
            break
        last = retired(image, last.replaced_by)
    return last.operation_id if last is not None and not last.replaced_by else 0


def came_with(ctx: Context, node_id: NodeId, directory_id: bytes) -> list[pb.MetadataRecord]:
    """What is to be remembered when a node registers with a directory: the one that it had before."""
    if level_of(ctx.image) < KIND_LEVELS["retired_directory"]:
        return []
    records = []
    known = ctx.image.operations.retired.get(directory_id)
    if known is not None and not known.operation_id:
        records.append(_forgotten(known))
    old = ctx.image.nodes.get(node_id)
    if old is None or old.directory_id == directory_id or retired(ctx.image, old.directory_id):
        return records
    before = [r for r in former(ctx.image, node_id) if r.directory_id != directory_id]
    records += [_forgotten(r) for r in before[: max(0, len(before) + 1 - FORMER_MAX)]]
    left = pb.RetiredDirectoryRecord(
        directory_id=old.directory_id, node_id=node_id, replaced_by=directory_id, replaced_ms=ctx.now_ms
    )
    records.append(pb.MetadataRecord(retired_directory=left))
    return records


def replaced(image: MetadataImage, node_ids: Iterable[NodeId], operation_id: int) -> list[pb.MetadataRecord]:
    """Retires what nodes had before the directories that they have now: these hold all again, or the nodes are gone."""
    records = []
    for node_id in node_ids:
        for record in former(image, node_id):
            refused = pb.RetiredDirectoryRecord()
            refused.CopyFrom(record)
            refused.operation_id = operation_id
            records.append(pb.MetadataRecord(retired_directory=refused))
    return records


def forgotten(image: MetadataImage) -> list[pb.MetadataRecord]:
    """Forgets all that may come back: nothing is refused, or let in, for it."""
    return [_forgotten(r) for r in image.operations.retired.values() if not r.operation_id]


def _forgotten(record: pb.RetiredDirectoryRecord) -> pb.MetadataRecord:
    gone = pb.RetiredDirectoryRecord(directory_id=record.directory_id, node_id=record.node_id, forgotten=True)
    return pb.MetadataRecord(retired_directory=gone)


def _when(record: pb.RetiredDirectoryRecord) -> str:
    if record.replaced_ms <= 0:
        return ""
    at = datetime.fromtimestamp(min(record.replaced_ms, _LAST_MS) / 1000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S} UTC, when "
