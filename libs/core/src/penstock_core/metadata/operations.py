"""Operations, what they move, and what operators said of nodes (since `metadata.level` 3).

A part of the image of its own, as `security` is. What the fields mean is said in the contract (metadata.proto); how
operations go on is decided by the active controller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock_core.errors import InvariantBroken
from penstock_core.ids import NodeId, TopicId, TopicPartition
from penstock_proto.v1 import metadata_pb2 as pb

ENDED: Final = frozenset({pb.OPERATION_STATE_DONE, pb.OPERATION_STATE_CANCELLED, pb.OPERATION_STATE_FAILED})
"""States that an operation never leaves."""


@dataclass(frozen=True, slots=True)
class OperationMove:
    """One partition that an operation moves; see OperationMoveRecord."""

    key: TopicPartition
    replicas: tuple[NodeId, ...]
    replicas_before: tuple[NodeId, ...]
    bytes: int
    skipped: str = ""

    def to_pb(self, operation_id: int) -> pb.OperationMoveRecord:
        """The record of the move."""
        return pb.OperationMoveRecord(
            operation_id=operation_id,
            topic_id=self.key.topic_id,
            partition=self.key.partition,
            replicas=self.replicas,
            replicas_before=self.replicas_before,
            bytes=self.bytes,
            skipped=self.skipped,
        )

    @classmethod
    def from_pb(cls, r: pb.OperationMoveRecord) -> OperationMove:
        """The move of a record."""
        return cls(
            TopicPartition(TopicId(r.topic_id), r.partition),
            tuple(NodeId(n) for n in r.replicas),
            tuple(NodeId(n) for n in r.replicas_before),
            r.bytes,
            r.skipped,
        )


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """What an operator said of a node; see NodePolicyRecord."""

    cordoned: bool = False
    draining: bool = False
    operation_id: int = 0

    def to_pb(self, node_id: NodeId) -> pb.NodePolicyRecord:
        """The record of the policy."""
        return pb.NodePolicyRecord(
            node_id=node_id, cordoned=self.cordoned, draining=self.draining, operation_id=self.operation_id
        )


@dataclass(frozen=True, slots=True)
class OperationsImage:
    """All of it, as of one metadata version. Treat every map, and every record in it, as read-only."""

    # By id, in the order of ids.
    operations: Mapping[int, pb.OperationRecord] = field(default_factory=dict)
    # Of operations that go on, by their id.
    moves: Mapping[int, Mapping[TopicPartition, OperationMove]] = field(default_factory=dict)
    policies: Mapping[NodeId, NodePolicy] = field(default_factory=dict)
    # By directory id; those of operation 0 were replaced, and may come back.
    retired: Mapping[bytes, pb.RetiredDirectoryRecord] = field(default_factory=dict)

    def is_cordoned(self, node_id: NodeId) -> bool:
        """Whether a node takes no new replicas and is not preferred to lead: cordoned, or being drained."""
        policy = self.policies.get(node_id)
        return policy is not None and (policy.cordoned or policy.draining)

    def to_records(self) -> Iterator[pb.MetadataRecord]:
        """Records that, applied to an empty image, give this one back."""
        for operation in self.operations.values():
            yield pb.MetadataRecord(operation=operation)
        for operation_id, moves in self.moves.items():
            for move in moves.values():
                yield pb.MetadataRecord(operation_move=move.to_pb(operation_id))
        for node_id, policy in self.policies.items():
            yield pb.MetadataRecord(node_policy=policy.to_pb(node_id))
        for retired in self.retired.values():
            yield pb.MetadataRecord(retired_directory=retired)


class OperationsBuilder:
    """Replays the records of this part onto private copies of the maps that they touch."""

    def __init__(self, base: OperationsImage) -> None:
        self._base = base
        self._operations: dict[int, pb.OperationRecord] | None = None
        self._moves: dict[int, Mapping[TopicPartition, OperationMove]] | None = None
        # Moves whose map is already a private copy, by operation.
        self._private: dict[int, dict[TopicPartition, OperationMove]] = {}
        self._policies: dict[NodeId, NodePolicy] | None = None
        self._retired: dict[bytes, pb.RetiredDirectoryRecord] | None = None

    def finish(self) -> OperationsImage:
        """The image with what was replayed."""
        base = self._base
        return OperationsImage(
            operations=base.operations if self._operations is None else self._operations,
            moves=base.moves if self._moves is None else self._moves,
            policies=base.policies if self._policies is None else self._policies,
            retired=base.retired if self._retired is None else self._retired,
        )

    def operation(self, r: pb.OperationRecord) -> None:
        """Set an operation; one that has ended has no moves."""
        self._own_operations()[r.operation_id] = r
        if r.state in ENDED:
            self._own_moves().pop(r.operation_id, None)
            self._private.pop(r.operation_id, None)

    def operation_removed(self, r: pb.OperationRemovedRecord) -> None:
        """Forget one."""
        if self._own_operations().pop(r.operation_id, None) is None:
            raise InvariantBroken(f"removed operation {r.operation_id} is not there")
        self._own_moves().pop(r.operation_id, None)
        self._private.pop(r.operation_id, None)

    def move(self, r: pb.OperationMoveRecord) -> None:
        """Set a move of an operation that goes on."""
        operation = self._own_operations().get(r.operation_id)
        if operation is None or operation.state in ENDED:
            raise InvariantBroken(f"move of operation {r.operation_id}, which is not under way")
        private = self._private.get(r.operation_id)
        if private is None:
            private = self._private[r.operation_id] = dict(self._own_moves().get(r.operation_id, {}))
            self._own_moves()[r.operation_id] = private
        move = OperationMove.from_pb(r)
        private[move.key] = move

    def policy(self, r: pb.NodePolicyRecord) -> None:
        """Set what was said of a node, or take it away."""
        if r.cordoned or r.draining:
            self._own_policies()[NodeId(r.node_id)] = NodePolicy(r.cordoned, r.draining, r.operation_id)
        else:
            self._own_policies().pop(NodeId(r.node_id), None)

    def node_removed(self, node_id: NodeId) -> None:
        """A node is gone, and with it what was said of it."""
        if node_id in (self._base.policies if self._policies is None else self._policies):
            self._own_policies().pop(node_id, None)

    def retired_directory(self, r: pb.RetiredDirectoryRecord) -> None:
        """Remember a directory that was a node's, or forget it."""
        if self._retired is None:
            self._retired = dict(self._base.retired)
        if r.forgotten:
            self._retired.pop(r.directory_id, None)
        else:
            self._retired[r.directory_id] = r

    def _own_operations(self) -> dict[int, pb.OperationRecord]:
        if self._operations is None:
            self._operations = dict(self._base.operations)
        return self._operations

    def _own_moves(self) -> dict[int, Mapping[TopicPartition, OperationMove]]:
        if self._moves is None:
            self._moves = dict(self._base.moves)
        return self._moves

    def _own_policies(self) -> dict[NodeId, NodePolicy]:
        if self._policies is None:
            self._policies = dict(self._base.policies)
        return self._policies
