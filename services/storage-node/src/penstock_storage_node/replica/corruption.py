"""Bits that a disk forgot: what this node does when a read shows it.

Rules
  * While another in-sync replica has the records, this node behaves as after an EIO: it gives up its
    roles, so that others serve, and waits to be started anew. The mark that it leaves beside the
    segments makes that start read the log from the damaged segment on, cut it at the first batch that
    is wrong, tell the controllers what it lacks (rule "Coming back"), and fetch it
    again.
  * Damage in what this process wrote itself is no fault of the disk, and others may have the same: it
    is told and nothing else, so that one bad batch can't take down a node after the other.
  * The only in-sync replica cuts nothing: all that lies behind the damage would go too. The reader
    hears CORRUPT_MESSAGE, as from Kafka, and may go on behind it.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicPartition
from penstock_runtime.lifecycle import Lifecycle
from penstock_storage_node.disk.health import DiskHealth
from penstock_storage_node.log.damage import DamagedData
from penstock_storage_node.metrics import NodeMetrics
from penstock_storage_node.replica.partition import Partition


class CorruptionHandler:
    """One per node. Lives on the event loop."""

    def __init__(
        self,
        has_others_in_sync: Callable[[TopicPartition], bool],
        mark: Callable[[Partition, int, Callable[[object, BaseException | None], None]], None],
        health: DiskHealth,
        metrics: NodeMetrics,
        lifecycle: Lifecycle,
    ) -> None:
        self._has_others_in_sync = has_others_in_sync
        self._mark = mark
        """Leaves a mark beside the segments for the next start, in the pool; calls back when it is there."""
        self._health = health
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._seen: set[tuple[TopicPartition, int]] = set()
        self._is_given_up = False

    def note(self, partition: Partition, error: DamagedData) -> PenstockError:
        """A read of `partition` met damage; returns what to tell the reader."""
        has_others = self._has_others_in_sync(partition.key)
        place = (partition.key, error.base_offset)
        is_new = place not in self._seen
        if is_new:
            self._seen.add(place)
            self._metrics.damaged_segments += 1
        if has_others and error.is_from_disk:
            if not self._is_given_up:  # it may have been the only copy when it was met first
                self._is_given_up = True
                self._give_up(partition, error)
        elif is_new:
            self._lifecycle.log.error(
                "data damaged: readers must seek past the damage, or have all before it deleted "
                "(kafka-delete-records)",
                partition=partition.name,
                in_sync_elsewhere=has_others,
                reason=error.message,
            )
        if has_others:
            return error
        return PenstockError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{partition.name}: {error.message}, and no other in-sync replica has it: seek past the damage",
        )

    def _give_up(self, partition: Partition, error: DamagedData) -> None:
        def marked(_: object, failure: BaseException | None) -> None:
            if failure is not None:
                self._lifecycle.log.error(
                    "damage not marked: delete the partition's directory before the next start",
                    partition=partition.name,
                    reason=str(failure),
                )
            self._health.fail(partition.name, error)

        self._mark(partition, error.base_offset, marked)


__all__ = ["CorruptionHandler"]
