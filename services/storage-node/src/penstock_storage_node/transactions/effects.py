"""What the coordinator wants done elsewhere: markers to write, and markers to forget.

The way back, for whoever carries them out (`Shard`): `markers_written(producer_id, producer_epoch, partitions)`
for those that are done, all at once or some by some, twice without harm. A partition that is
not there any more is done, and so is one whose log has a newer epoch of that producer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class TopicPartitionName(NamedTuple):
    """A partition as the records of `__transaction_state` name it."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class MarkersDue:
    """A decision that the high watermark covers: write its marker to every one of `partitions`, and try for ever.

    (state partition, coordinator epoch, producer id, producer epoch) names it: no other with the same is under way.
    """

    state_partition: int
    """Partition of `__transaction_state` that decided."""
    coordinator_epoch: int
    """Leader epoch of that partition."""
    producer_id: int
    producer_epoch: int
    """The marker's, which is the transaction's own or, when the server or TV2 raised it, one more."""
    commit: bool
    """Else abort."""
    partitions: tuple[TopicPartitionName, ...]
    """Sorted; never empty."""
    transaction_version: int
    """As in WriteTxnMarkers 2 (KIP-1228): by which rules the transaction was ended, 0 to 2. By 2 the marker's epoch is
    higher than any of the transaction's batches."""


@dataclass(frozen=True, slots=True)
class MarkersWithdrawn:
    """That coordinator is one no more: forget all its markers that are not sent."""

    state_partition: int
    coordinator_epoch: int
