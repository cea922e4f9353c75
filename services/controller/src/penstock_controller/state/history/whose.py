"""Which cause of a command a change belongs to: several requests share a command. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock_core.ids import NodeId, TopicPartition
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_proto.v1 import metadata_pb2 as pb

NO_CAUSE: Final = pb.Cause()


class Causes:
    """The causes of one command, asked for each change."""

    def __init__(self, causes: Sequence[pb.Cause], before: MetadataImage, after: MetadataImage) -> None:
        """Where the command names none (one of an older build), what the nodes' own records show stands in."""
        self._images = before, after
        self._by_subject: dict[str, pb.Cause] = {}
        for cause in causes or _seen(before, after):
            self._by_subject.setdefault(cause.subject, cause)
        self._nodes = [
            (NodeId(int(subject[5:])), cause)
            for subject, cause in self._by_subject.items()
            if subject.startswith("node ") and subject[5:].isdecimal()
        ]
        self._operations = [c for c in self._by_subject.values() if c.subject.startswith("operation ")]

    def of(self, subject: str) -> pb.Cause:
        """Of a change of a node, gateway, topic, operation and so on."""
        found = self._by_subject.get(subject) or self._alone(self._operations)
        if found is None:
            # Somebody's reassignment is recorded as an operation.
            asked = self._by_subject.get("cluster")
            found = asked if asked is not None and asked.kind == "move" else None
        return found or NO_CAUSE

    def of_partition(self, name: str, old: PartitionImage, new: PartitionImage) -> pb.Cause:
        """Of a change of the partition of that name."""
        found = self._by_subject.get(f"partition {name}")
        if found is not None:
            return self._of_move(found, new.key) if old.replicas != new.replicas else found
        touched = {*old.isr} ^ {*new.isr} | {*old.elr} ^ {*new.elr}
        if old.leader != new.leader:
            touched |= {old.leader, new.leader}
        moved = old.replicas != new.replicas or old.adding_replicas != new.adding_replicas
        if not moved:
            for node_id, cause in self._nodes:
                if node_id in touched:
                    return cause
        for cause in self._operations:
            if self._moves(cause.operation_id, new.key):
                return cause
        topic = self._by_subject.get(f"topic {name.rpartition('-')[0]}")
        # Leaders are moved by operations that have no moves of their own, too.
        return topic or self._alone(self._operations) or self._by_subject.get("cluster") or self._node_of(old)

    def _of_move(self, cause: pb.Cause, key: TopicPartition) -> pb.Cause:
        """The same, with the operation whose move ends by it: a leader speaks of the ISR alone."""
        if cause.operation_id:
            return cause
        ids = {i for image in self._images for i, moves in image.operations.moves.items() if key in moves}
        if len(ids) != 1:
            return cause
        named = pb.Cause()
        named.CopyFrom(cause)
        named.operation_id = ids.pop()
        return named

    def _moves(self, operation_id: int, key: TopicPartition) -> bool:
        return any(key in image.operations.moves.get(operation_id, ()) for image in self._images)

    def _alone(self, causes: Sequence[pb.Cause]) -> pb.Cause | None:
        return causes[0] if len(causes) == 1 else None

    def _node_of(self, partition: PartitionImage) -> pb.Cause:
        return next((cause for node_id, cause in self._nodes if node_id in partition.replicas), NO_CAUSE)


def _seen(before: MetadataImage, after: MetadataImage) -> Iterable[pb.Cause]:
    if before.nodes is after.nodes:
        return
    for node_id, new in after.nodes.items():
        old = before.nodes.get(node_id)
        if old is new:
            continue
        kind = ""
        if old is None or old.node_epoch != new.node_epoch:
            kind = "register"
        elif new.fenced and not old.fenced:
            kind = "fence"
        elif new.in_controlled_shutdown and not old.in_controlled_shutdown:
            kind = "drain"
        elif new.active and not old.active:
            kind = "unfence"
        if kind:
            yield pb.Cause(kind=kind, subject=f"node {node_id}")


__all__ = ["NO_CAUSE", "Causes"]
