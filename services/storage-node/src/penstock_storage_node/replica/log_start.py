"""The lower end of a partition's log: log starts, old segments, and what a next start must know of gaps."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock_storage_node.replica.manager import ReplicaManager
    from penstock_storage_node.replica.partition import Partition


def mark_compacted(manager: ReplicaManager, partition: Partition) -> None:
    """Let the next start know that this log may come to have gaps."""
    log, directory = partition.log, manager.directory
    if log.settings.is_compacted and not directory.is_marked_compacted(log):
        manager.pool.write(lambda: directory.mark_compacted(log.topic, log.partition), manager.on_removed)


def drop_old_segments(manager: ReplicaManager, partition: Partition) -> asyncio.Future[Any] | None:
    """Let go of whole segments that retention or the log start has passed; what returned is done when
    their files are gone, or never will be by this try."""
    if partition.closed or partition.busy or partition.compacting:
        return None
    now_ms = time.time_ns() // 1_000_000
    work = partition.log.delete_old_segments(partition.replica.high_watermark, now_ms)
    # A cut that began meanwhile could make files anew under the names that are on their way out, and a
    # compaction exchange those that are looked at.
    future = None if work is None else partition.beside(work)
    partition.kick()  # it may have closed the active segment, and no append comes
    if future is not None:
        future.add_done_callback(lambda done: _note_left(manager, partition, done))
    return future


def _note_left(manager: ReplicaManager, partition: Partition, done: asyncio.Future[Any]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        # The next round tries again.
        manager.lifecycle.log.error(
            "old segments not removed", partition=partition.name, reason=str(error) or repr(error)
        )


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
