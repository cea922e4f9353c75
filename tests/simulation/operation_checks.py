"""What must hold of operations: looked at in the step that applies a command, as `invariants` does.

The rules are told by the image alone, in words of their own: what a change did to a partition is compared with what
operations may do, never with what the engine meant to do.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock_controller.state import directories
from penstock_controller.state.generation import Context
from penstock_controller.state.operations.engine.steps import next_steps
from penstock_controller.state.operations.plans.gates import OPERATIONS_LEVEL
from penstock_controller.state.operations.reports import Reports
from penstock_core.config.topic import TopicConfig
from penstock_core.ids import NO_NODE, NodeId, TopicId, TopicPartition
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_core.metadata.levels import level_of
from penstock_core.metadata.operations import ENDED
from penstock_proto.v1 import metadata_pb2 as pb
from simulation.operation_goals import GoalChecks

if TYPE_CHECKING:
    from simulation.invariants import Checker

Change = tuple[PartitionImage, PartitionImage]

_EMPTYING: Final = frozenset({"node-drain", "node-remove", "node-replace"})
"""Kinds that leave nothing on the nodes that they are about."""
_MAY_BECOME: Final = {
    pb.OPERATION_STATE_CANCELLING: frozenset({pb.OPERATION_STATE_CANCELLING, pb.OPERATION_STATE_CANCELLED}),
    **{state: frozenset({state}) for state in ENDED},
}
"""What a state may become; of those that are not here, anything."""


class OperationChecks:
    """Of one run."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self.goals = GoalChecks(checker)
        self._left: dict[NodeId, list[bytes]] = {}
        """Directories that a node had before the one that it has, the one of long ago first."""

    def on_applied(
        self,
        before: MetadataImage,
        image: MetadataImage,
        records: Sequence[pb.MetadataRecord],
        changes: Sequence[Change],
    ) -> None:
        """A command made `image` of `before`; `changes`: of partitions, in order."""
        self.goals.on_applied(before, image, records, changes)
        for old, new in changes:
            self._check_removal(old, new)
            self._check_leader(before, image, old, new)
            self._check_min_isr(before, old, new)
            for node_id in {*old.replicas} - {*new.replicas}:
                self._checker.logs.on_removed(f"n{node_id}", new.key)
        for record in records:
            kind = record.WhichOneof("record")
            if kind == "operation":
                self._check_operation(before, image, record.operation)
                if self._checker.world.operator is not None:
                    self._checker.world.operator.throttles.changed(record.operation, image.version)
            elif kind == "node":
                self._check_not_retired(image, record.node)
                self._note_directory(before, record.node)
            elif kind == "node_removed":
                self._check_empty(image, NodeId(record.node_removed.node_id), "which is removed")
        if changes and image.operations.moves:
            self._check_repeated(image, {new.key for _, new in changes})

    def _fail(self, name: str, message: str) -> None:
        self._checker.fail(name, message)

    # --- partitions

    def _check_removal(self, old: PartitionImage, new: PartitionImage) -> None:
        """I2: a replica that was whole goes only when all that stay are in sync."""
        gone = {*old.replicas} - {*old.adding_replicas} - {*new.replicas}
        if gone and not {*new.replicas} <= {*new.isr}:
            self._fail(
                "nothing is removed before what takes its place is in sync",
                f"{sorted(gone)} of {old} in {new}",
            )

    def _check_leader(
        self, before: MetadataImage, image: MetadataImage, old: PartitionImage, new: PartitionImage
    ) -> None:
        """A cordoned node begins to lead only what nobody else can."""
        if new.leader in (old.leader, NO_NODE):
            return
        if not all(each.operations.is_cordoned(new.leader) for each in (before, image)):
            return
        others = [
            n
            for n in new.isr
            if n in old.isr
            and all(
                n in each.nodes
                and each.nodes[n].active
                and not each.nodes[n].disk_full
                and not each.operations.is_cordoned(n)
                for each in (before, image)
            )
        ]
        if others:
            self._fail(
                "a cordoned node leads only what nobody else can",
                f"{new.leader} leads {new}, {others} could",
            )

    def _check_min_isr(self, before: MetadataImage, old: PartitionImage, new: PartitionImage) -> None:
        """I1: beginning a move, or taking it back, leaves enough in sync where there were enough."""
        operator = self._checker.world.operator
        target = target_of(new)
        if operator is None or operator.gives_way or target_of(old) == target or len(new.isr) >= len(old.isr):
            return
        for moves in before.operations.moves.values():
            move = moves.get(new.key)
            if move is None or target not in (move.replicas, move.replicas_before):
                continue
            configs = before.config("topic", before.topics[new.topic_id].name)
            needed = min(TopicConfig.from_config(configs, new.factor).min_insync_replicas, new.factor)
            if len(new.isr) < min(needed, len(old.isr)):
                self._fail("operations take nothing below min ISR", f"{old} becomes {new}, it needs {needed}")

    # --- operations

    def _check_operation(self, before: MetadataImage, image: MetadataImage, now: pb.OperationRecord) -> None:
        old = before.operations.operations.get(now.operation_id)
        name = f"operation {now.operation_id} ({now.kind})"
        if old is not None and now.state not in _MAY_BECOME.get(old.state, {now.state}):
            self._fail("operations end once", f"{name}: from {old.state} to {now.state}")
        if now.state == pb.OPERATION_STATE_PAUSED and not now.reason:
            self._fail("a paused operation says why", name)
        if now.state not in ENDED or (old is not None and old.state in ENDED):
            return
        self._checker.world.counts[f"operations {_word(now.state)}: {now.kind}"] += 1
        self._checker.world.say("OPERATION", f"{name}: {_word(now.state)} {now.reason}")
        if now.operation_id in image.operations.moves:
            self._fail("an ended operation moves nothing", name)
        if now.state == pb.OPERATION_STATE_CANCELLED:
            self._check_cancelled(before, image, now, name)
        elif now.state == pb.OPERATION_STATE_DONE:
            self._check_done(before, image, now, name)

    def _check_cancelled(
        self, before: MetadataImage, image: MetadataImage, now: pb.OperationRecord, name: str
    ) -> None:
        left = [n for n, p in image.operations.policies.items() if p.operation_id == now.operation_id]
        if left:
            self._fail("cancelled operations leave nothing behind", f"{name}: nodes {left} are cordoned")
        for key, move in before.operations.moves.get(now.operation_id, {}).items():
            state = image.partition(*key)
            # What was given up is somebody else's.
            if state is not None and state.reassigning and not move.skipped:
                self._fail("cancelled operations leave nothing behind", f"{name}: {state} is reassigned")

    def _check_done(
        self, before: MetadataImage, image: MetadataImage, now: pb.OperationRecord, name: str
    ) -> None:
        for key, move in before.operations.moves.get(now.operation_id, {}).items():
            state = image.partition(*key)
            done = state is None or (state.replicas == move.replicas and not state.reassigning)
            if not done and not move.skipped and not self._was_taken_away(before, image, key):
                self._fail("done means done", f"{name}: {state}, wanted {move.replicas}")
        if now.kind in ("node-remove", "node-replace"):
            self._check_left(image, now, name)
        if now.kind in _EMPTYING and (now.kind != "node-replace" or now.parameters.replacement_node_id):
            for node_id in now.parameters.node_ids:
                self._check_empty(image, NodeId(node_id), f"which {name} has emptied")

    @staticmethod
    def _was_taken_away(before: MetadataImage, image: MetadataImage, key: TopicPartition) -> bool:
        """Somebody re-aimed it in the same command, after it was found done."""
        return image.partition(*key) is not before.partition(*key)

    def _note_directory(self, before: MetadataImage, node: pb.NodeRecord) -> None:
        old = before.nodes.get(NodeId(node.node_id))
        left = self._left.setdefault(NodeId(node.node_id), [])
        if old is not None and old.directory_id != node.directory_id and level_of(before) >= OPERATIONS_LEVEL:
            left.append(old.directory_id)
        if node.directory_id in left:
            left.remove(node.directory_id)

    def _check_left(self, image: MetadataImage, now: pb.OperationRecord, name: str) -> None:
        """What a node had before is refused once it is replaced or removed."""
        for node_id in now.parameters.node_ids:
            left = self._left.pop(NodeId(node_id), [])
            if len(left) > directories.FORMER_MAX:
                continue  # which of them are remembered depends on clocks
            for directory_id in left:
                if directories.retired(image, directory_id) is None:
                    self._fail(
                        "what a node had before is refused",
                        f"{name} is done, and directory {directory_id.hex()} of node {node_id} may come back",
                    )

    def _check_empty(self, image: MetadataImage, node_id: NodeId, why: str) -> None:
        for topic in image.topics.values():
            for state in topic.partitions.values():
                if node_id in state.replicas:
                    self._fail("an emptied node holds nothing", f"node {node_id}, {why}: {state}")

    def _check_not_retired(self, image: MetadataImage, node: pb.NodeRecord) -> None:
        """I8."""
        retired = directories.retired(image, node.directory_id)
        holder = image.nodes.get(NodeId(node.node_id))
        # One command may fence a node and then retire it (seed 11): what counts is what the command leaves.
        if retired is not None and holder is not None and holder.directory_id == node.directory_id:
            self._fail(
                "a retired directory never holds a role again",
                f"node {node.node_id} registers with that of node {retired.node_id}",
            )

    # --- I5

    def _check_repeated(self, image: MetadataImage, changed: set[TopicPartition]) -> None:
        """Who looks at the image that a step has made, and remembers nothing, takes no step twice."""
        for operation_id, moves in image.operations.moves.items():
            aimed = {
                key for key in changed if key in moves and self._is_aimed(image, key, moves[key].replicas)
            }
            if not aimed or image.operations.operations[operation_id].state != pb.OPERATION_STATE_RUNNING:
                continue
            self._tell(image, aimed)
            ctx = Context(image, random.Random(0), alive=lambda _: True)
            records = next_steps(ctx, operation_id, Reports(), 0).records
            skipped = {
                TopicPartition(TopicId(r.operation_move.topic_id), r.operation_move.partition)
                for r in records
                if r.HasField("operation_move")
            }
            for record in records:
                if not record.HasField("partition"):
                    continue
                again = PartitionImage.from_pb(record.partition)
                state = image.partition(*again.key)
                # Leadership may leave it, and a move whose target is gone is taken back.
                if again.key not in aimed or again.key in skipped or state is None:
                    continue
                if again.leader == state.leader:
                    self._fail("a repeated step changes nothing", f"{operation_id}: {state} to {again}")

    def _tell(self, image: MetadataImage, aimed: set[TopicPartition]) -> None:
        operator = self._checker.world.operator
        for key in sorted(aimed):
            state = image.partition(*key)
            if operator is not None and state is not None and state.reassigning:
                operator.on_step(state)

    @staticmethod
    def _is_aimed(image: MetadataImage, key: TopicPartition, wanted: tuple[NodeId, ...]) -> bool:
        state = image.partition(*key)
        return state is not None and target_of(state) == wanted


def target_of(state: PartitionImage) -> tuple[NodeId, ...]:
    """The replicas that a partition has in the end."""
    return tuple(n for n in state.replicas if n not in state.removing_replicas)


def _word(state: pb.OperationState.ValueType) -> str:
    return pb.OperationState.Name(state).removeprefix("OPERATION_STATE_").lower()
