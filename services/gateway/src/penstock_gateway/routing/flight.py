"""A request in flight, or a part of one whose partitions have one leader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

from penstock_core.ids import NO_NODE, LeaderEpoch, NodeId, TopicPartition
from penstock_kafka.producer_retries import ProducerSequence
from penstock_kafka.wire.apis import OnLoss

P = TypeVar("P")
"""What a flight carries; it belongs to the shell."""


class State(Enum):
    """Where a flight stands."""

    HELD = auto()
    QUEUED = auto()
    SENT = auto()
    DONE = auto()


@dataclass(slots=True, eq=False)
class InFlight(Generic[P]):
    """One request, or part of one."""

    on_loss: OnLoss
    partitions: Sequence[TopicPartition]
    payload: P
    size_bytes: int
    hold_ms: int
    """Longest time unsent."""
    answer_ms: int
    """Longest time that the node may take."""
    split: Callable[[Sequence[Sequence[int]]], Sequence[InFlight[P]]]
    """Parts of this flight by groups of indices into `partitions`."""
    sequence: Callable[[int], ProducerSequence | None] = lambda _: None
    """The idempotent producer's place of the batch for `partitions[i]`, if it has one."""
    seq: int = 0
    state: State = State.HELD
    node_id: NodeId = NO_NODE
    until_ms: int = 0
    """When the present state ends: held too long, or no answer."""
    expires_ms: int = 0
    """When holding ends, from the first time it was held; never put off again."""
    refused_by: tuple[NodeId, LeaderEpoch] | None = None
    retry_ms: int = 0

    @property
    def is_ordered(self) -> bool:
        """It may not overtake an earlier one of its partitions."""
        return self.on_loss is OnLoss.MAYBE_WRITTEN
