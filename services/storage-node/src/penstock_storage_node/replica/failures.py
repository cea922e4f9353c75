"""What becomes of a write or a read that failed: whether it is the disk's fault, and who has to know."""

from __future__ import annotations

from penstock_storage_node.disk.health import DiskHealth, is_full, is_unreadable
from penstock_storage_node.log import LogState
from penstock_storage_node.log.damage import DamagedData
from penstock_storage_node.metrics import NodeMetrics
from penstock_storage_node.replica.corruption import CorruptionHandler
from penstock_storage_node.replica.partition import Partition


class FailureHandler:
    """One per node. Lives on the event loop."""

    def __init__(self, health: DiskHealth, corruption: CorruptionHandler, metrics: NodeMetrics) -> None:
        self._health = health
        self._corruption = corruption
        self._metrics = metrics

    def write_failed(self, partition: Partition, error: BaseException) -> None:
        """A write, a flush or a change of `partition`'s files failed."""
        self._metrics.write_failures += 1
        if partition.log.state is not LogState.FAILED and is_full(error):
            self._health.note_full(partition.name)
        else:
            self._health.fail(partition.name, error)

    def read_failed(self, partition: Partition, error: BaseException) -> BaseException:
        """A read failed. The node may have to draw its conclusions; returns what to tell the reader."""
        if isinstance(error, DamagedData):
            return self._corruption.note(partition, error)
        if is_unreadable(error):
            # An error of the disk itself: others must serve what this one can't.
            self._health.fail(partition.name, error)
        return error
