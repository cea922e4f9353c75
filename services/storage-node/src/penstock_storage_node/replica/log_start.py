"""The lower end of a partition's log: log starts, old segments, and what a next start must know of gaps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock_runtime.lifecycle import Lifecycle
from penstock_storage_node.disk.pool import DiskPool
from penstock_storage_node.log import LogDirectory
from penstock_storage_node.replica.partition import Partition


class LogStarts:
    """Of all partitions of a node. Lives on the event loop."""

    def __init__(
        self,
        pool: DiskPool,
        directory: LogDirectory,
        lifecycle: Lifecycle,
        on_removed: Callable[[object, BaseException | None], None],
        wall_ms: Callable[[], int],
        producer_idle_max_ms: Callable[[], int],
    ) -> None:
        self._pool = pool
        self._directory = directory
        self._lifecycle = lifecycle
        self._on_removed = on_removed
        self._wall_ms = wall_ms
        self._producer_idle_max_ms = producer_idle_max_ms

    def mark_compacted(self, partition: Partition) -> None:
        """Let the next start know that this log may come to have gaps."""
        log, directory = partition.log, self._directory
        if log.settings.is_compacted and not directory.offsets.is_marked_compacted(log):
            self._pool.write(
                lambda: directory.offsets.mark_compacted(log.topic, log.partition), self._on_removed
            )

    def drop_old_segments(self, partition: Partition) -> asyncio.Future[Any] | None:
        """Let go of whole segments that retention or the log start has passed; what returned is done when
        their files are gone, or never will be by this try."""
        if partition.closed or partition.busy or partition.compacting:
            return None
        work = partition.log.delete_old_segments(
            partition.replica.high_watermark, self._wall_ms(), self._producer_idle_max_ms()
        )
        # A cut that began meanwhile could make files anew under the names that are on their way out, and a
        # compaction exchange those that are looked at.
        future = None if work is None else partition.beside(work)
        if work is not None:
            partition.note_size()
        partition.kick()  # it may have closed the active segment, and no append comes
        if future is not None:
            future.add_done_callback(lambda done: self._note_left(partition, done))
        return future

    def _note_left(self, partition: Partition, done: asyncio.Future[Any]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            # The next round tries again.
            self._lifecycle.log.error(
                "old segments not removed", partition=partition.name, reason=str(error) or repr(error)
            )

    def follow(self, partition: Partition, tell_leader: Callable[[Partition], None]) -> None:
        """A follower's log start rose with its leader's: put it on disk, tell the leader, drop segments."""
        self._lifecycle.create_task(self._follow(partition, tell_leader), f"log start of {partition.name}")

    async def _follow(self, partition: Partition, tell_leader: Callable[[Partition], None]) -> None:
        try:
            await partition.save_log_start()
        except OSError as e:
            # The next round of checkpoints tries again.
            self._lifecycle.log.warning("log start not saved", partition=partition.name, reason=str(e))
        if partition.replica.following is not None:
            tell_leader(partition)
        self.drop_old_segments(partition)
