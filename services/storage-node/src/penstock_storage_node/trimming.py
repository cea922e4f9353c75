"""The lower end of a partition's log: log starts, old segments, and what a next start must know of gaps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock_storage_node.partition import Partition
    from penstock_storage_node.replicas import ReplicaManager


def mark_compacted(manager: ReplicaManager, partition: Partition) -> None:
    """Let the next start know that this log may come to have gaps."""
    log, directory = partition.log, manager.directory
    if log.settings.is_compacted and not directory.is_marked_compacted(log):
        manager.pool.write(lambda: directory.mark_compacted(log.topic, log.partition), manager.on_removed)


def drop_old_segments(manager: ReplicaManager, partition: Partition) -> None:
    """Let go of whole segments that retention or the log start has passed."""
    if partition.closed or partition.busy or partition.compacting:
        return
    now_ms = time.time_ns() // 1_000_000
    remove = partition.log.delete_old_segments(partition.replica.high_watermark, now_ms)
    partition.kick()  # it may have closed the active segment, and no append comes
    if remove is not None:
        manager.pool.write(remove, manager.on_removed)


def follow_log_start(manager: ReplicaManager, partition: Partition) -> None:
    """A follower's log start rose with its leader's: put it on disk, tell the leader, drop segments."""
    manager.lifecycle.create_task(_follow_log_start(manager, partition), f"log start of {partition.name}")


async def _follow_log_start(manager: ReplicaManager, partition: Partition) -> None:
    try:
        await partition.save_log_start()
    except OSError as e:
        # The next round of checkpoints tries again.
        manager.lifecycle.log.warning("log start not saved", partition=partition.name, reason=str(e))
    if partition.replica.following is not None:
        manager.links.on_progress(partition)
    drop_old_segments(manager, partition)
