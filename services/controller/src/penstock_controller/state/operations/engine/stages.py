"""Where a move stands, read from the partition as the image has it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from penstock_core.ids import NodeId
from penstock_core.metadata import PartitionImage
from penstock_core.metadata.operations import OperationMove

Place = tuple[NodeId, bool]
"""A node and a direction: True is what comes in."""


class Stage(IntEnum):
    """Where a move stands."""

    TODO = 0
    RUNNING = 1
    BACK = 2
    """On its way to the replicas of before."""
    DONE = 3
    SKIPPED = 4
    GONE = 5
    """There is no such partition any more, and the move does not say so yet."""
    FOREIGN = 6
    """Somebody else gave it other replicas, and the move does not say so yet."""


class Rank(IntEnum):
    """What goes first."""

    FREE = 0
    """Nothing is copied, so it is in nobody's way."""
    BELOW_MIN_ISR = 1
    BELOW_FACTOR = 2
    DOMAINS = 3
    DRAIN = 4
    EVENNESS = 5


def target_of(partition: PartitionImage) -> tuple[NodeId, ...]:
    """The replicas that a partition has or is on its way to."""
    if not partition.removing_replicas:
        return partition.replicas
    return tuple(n for n in partition.replicas if n not in partition.removing_replicas)


def stage_of(move: OperationMove, partition: PartitionImage | None) -> Stage:
    """Read from the image, never counted."""
    if partition is None:
        return Stage.SKIPPED if move.skipped else Stage.GONE
    target = target_of(partition)
    back = partition.reassigning and target == move.replicas_before
    if move.skipped:
        return Stage.BACK if back else Stage.SKIPPED
    if target == move.replicas:
        return Stage.RUNNING if partition.reassigning else Stage.DONE
    if target == move.replicas_before:
        return Stage.BACK if back else Stage.TODO
    return Stage.FOREIGN


@dataclass(slots=True, eq=False)
class Slot:
    """A move, and its partition as it was looked at last."""

    number: int
    move: OperationMove
    added: tuple[NodeId, ...]
    improves_domains: bool
    topic: str = ""
    partition: PartitionImage | None = None
    stage: Stage = Stage.TODO
    rank: Rank = Rank.EVENNESS
    places: tuple[Place, ...] = ()
    """Where it takes room: at who sends, which is the leader, and at each that receives."""
    seen_running: bool = False

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.topic or self.move.key.topic_id.hex()}-{self.move.key.partition}"
