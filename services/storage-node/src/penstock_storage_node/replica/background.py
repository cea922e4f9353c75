"""What a node does by the clock: expire waits, write checkpoints, drop old segments, flush."""

from __future__ import annotations

import asyncio
from itertools import islice

from penstock_core.config.topic import LONG_MAX
from penstock_runtime.memory import trim_allocator
from penstock_storage_node.disk import space
from penstock_storage_node.disk.health import is_full
from penstock_storage_node.log import LogDirectory, LogState
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.replica.stray_proof import judge
from penstock_storage_node.replica.strays import StrayJanitor
from penstock_storage_node.settings import StorageNodeSettings

TICK_MS = 100
"""How often waits expire; where none was seen, a new one may expire as late as the ISR is looked at."""
ISR_TICKS = 5
"""The ISR of each partition is looked at every that many ticks."""
SECOND_TICKS = 10

TRIM_AFTER_BYTES = 32 * 1024 * 1024
"""Traffic after which free memory is given back at the next checkpoint."""

SLICE = 200
"""Partitions looked at without letting the loop do other things."""


class BackgroundJobs:
    """Three tasks for the life of the role."""

    def __init__(
        self,
        manager: ReplicaManager,
        directory: LogDirectory,
        settings: StorageNodeSettings,
        tick_ms: int = TICK_MS,
    ) -> None:
        self._manager = manager
        self._directory = directory
        self._settings = settings
        self._tick_ms = tick_ms
        self._trimmed_at_bytes = 0
        self._tick_count = 0
        self._may_rest = False
        self._probing: asyncio.Task[None] | None = None
        self.strays = StrayJanitor(
            directory,
            manager.pool,
            manager.lifecycle,
            manager.health,
            retention_ms=settings.stray_retention_ms,
            wall_ms=manager.wall_ms,
            monotonic_ms=manager.clock_ms,
            judge=lambda identity: judge(manager.registry.image, manager.registry.node_id, identity),
        )

    def start(self) -> None:
        """Begin."""
        create_task = self._manager.lifecycle.create_task
        create_task(self._tick(), "ticks")
        create_task(self._checkpoints(), "checkpoints")
        create_task(self._retention(), "retention")

    async def _tick(self) -> None:
        while True:
            ticks = ISR_TICKS if self._may_rest else 1
            await asyncio.sleep(ticks * self._tick_ms / 1000)
            self.tick(ticks)

    def tick(self, ticks: int = 1) -> None:
        """Every `tick_ms`, or once for ISR_TICKS of them: a node at rest wakes seldom."""
        manager = self._manager
        now_ms = manager.clock_ms()
        last_second = self._tick_count // SECOND_TICKS
        self._tick_count += ticks
        leading, waiting = manager.registry.leading, manager.drain.effects.waiting
        # Many partitions are looked at in parts: all at once would hold up the loop.
        first, step = (0, 1) if ticks == ISR_TICKS else (self._tick_count % ISR_TICKS, ISR_TICKS)
        for partition in islice(leading, first, None, step):
            if partition.replica.leadership is not None:
                partition.replica.leadership.tick(now_ms)
        for leadership in list(waiting):
            leadership.expire(now_ms)
            if not leadership.waiting_count:
                del waiting[leadership]
        self._may_rest = not waiting and len(leading) <= SLICE
        if self._tick_count // SECOND_TICKS != last_second:
            for partition in manager.registry.partitions.values():
                if partition.log.state is LogState.FULL:
                    partition.kick()
                elif partition.log.settings.flush_ms < LONG_MAX:
                    partition.flush_if_due(now_ms)
            idle = not manager.health.failed and (self._probing is None or self._probing.done())
            if idle and manager.health.space.probe_is_due(now_ms):
                self._probing = manager.lifecycle.create_task(self._look_for_room(now_ms), "look for room")
        if not manager.drain.effects.empty:
            manager.drain.schedule()

    async def _look_for_room(self, now_ms: int) -> None:
        manager, directory = self._manager, self._directory

        def probe() -> tuple[int, int]:
            space.probe(directory.fs, str(directory.path))
            return directory.fs.room(str(directory.path))

        try:
            total_bytes, free_bytes = await manager.pool.run(probe)
        except OSError as e:
            if not is_full(e):
                manager.health.fail(space.PROBE_FILE, e)
                return
            manager.health.note_probe(now_ms, has_room=False)
        else:
            manager.health.note_probe(now_ms, has_room=manager.health.has_room(total_bytes, free_bytes))

    async def write_checkpoints(self) -> None:
        """High watermarks, recovery points and log starts of all partitions."""
        manager = self._manager
        partitions = manager.registry.partitions
        rows = [(p.log, p.replica.high_watermark) for p in partitions.values()]
        risen = [
            (p, p.log.log_start_offset)
            for p in partitions.values()
            if p.log.log_start_offset > p.saved_log_start_offset
        ]
        await manager.pool.run(lambda: self._directory.offsets.write(rows))
        for partition, offset in risen:
            partition.saved_log_start_offset = min(offset, partition.log.log_start_offset)
            if partition.replica.following is not None:
                manager.roles.followers.on_progress(partition)

    async def _checkpoints(self) -> None:
        clock_s = self._manager.clocks.s
        last_flush_s = clock_s()
        while True:
            await asyncio.sleep(self._settings.checkpoint_interval_ms / 1000)
            everything = (clock_s() - last_flush_s) * 1000 >= self._settings.flush_interval_ms
            if everything:
                last_flush_s = clock_s()
            for partition in self._manager.registry.partitions.values():
                # What was written before a switch to fsync is flushed without delay.
                partition.flush(everything=everything or partition.replica.wants_fsync)
            await self._trim()
            try:
                await self.write_checkpoints()
            except OSError as e:
                if is_full(e):
                    # Not fatal: the next start scans more than it would have to.
                    self._manager.health.note_full("checkpoints")
                else:
                    self._manager.health.fail("checkpoints", e)

    async def _trim(self) -> None:
        metrics = self._manager.metrics
        moved_bytes = (
            metrics.produced_bytes + metrics.replicated_in_bytes + metrics.fetched_bytes + metrics.range_bytes
        )
        if moved_bytes - self._trimmed_at_bytes >= TRIM_AFTER_BYTES:
            self._trimmed_at_bytes = moved_bytes
            await self._manager.pool.run(trim_allocator)

    async def _retention(self) -> None:
        while True:
            await self.strays.look()
            await asyncio.sleep(self._settings.retention_check_interval_ms / 1000)
            for number, partition in enumerate(list(self._manager.registry.partitions.values())):
                if number % SLICE == SLICE - 1:
                    await asyncio.sleep(0)
                work = self._manager.log_starts.drop_old_segments(partition)
                if work is not None:
                    await asyncio.wait([work])  # one by one; it tells its failures itself
