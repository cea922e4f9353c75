"""Removes logs that were set aside, once they have been so for `stray_retention_ms`.

Age is told by the wall clock, because it must outlast the process. Within a process a step of that
clock counts for nothing: now is never later than the time of the start plus what has passed since.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock_runtime.lifecycle import Lifecycle
from penstock_storage_node.disk.health import DiskHealth, is_unreadable
from penstock_storage_node.disk.pool import DiskPool
from penstock_storage_node.log import LogDirectory, strays
from penstock_storage_node.log.fs import remove_tree

REMOVALS_MAX = 16
"""Directories removed in one look; the next look takes the next."""


class StrayJanitor:
    """One per node. Lives on the event loop; what touches files runs in the pool, one directory at a time."""

    def __init__(
        self,
        directory: LogDirectory,
        pool: DiskPool,
        lifecycle: Lifecycle,
        health: DiskHealth,
        *,
        retention_ms: int,
        wall_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self.count = 0
        """Strays on the disk, as of the last look."""
        self.size_bytes = 0
        """What they take, as of the last look."""
        self._directory = directory
        self._pool = pool
        self._lifecycle = lifecycle
        self._health = health
        self._retention_ms = retention_ms
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self._start_wall_ms, self._start_ms = wall_ms(), monotonic_ms()

    def _now_ms(self) -> int:
        return min(self._wall_ms(), self._start_wall_ms + self._monotonic_ms() - self._start_ms)

    async def look(self) -> None:
        """Count the strays and remove those that are due. Failures are told here."""
        if self._health.failed:
            return
        fs, root, now_ms = self._directory.fs, str(self._directory.path), self._now_ms()
        new_uuid = self._directory.ports.new_uuid
        path = root
        try:
            found = await self._pool.run(lambda: strays.find(fs, root, now_ms, new_uuid))
            self.count = len(found)
            paths = [f"{root}/{stray.name}" for stray in found]
            sizes = await self._pool.run(lambda: {path: strays.size_bytes(fs, path) for path in paths})
            self.size_bytes = sum(sizes.values())
            for stray in strays.overdue(found, now_ms, self._retention_ms, REMOVALS_MAX):
                path = f"{root}/{stray.name}"
                await self._pool.run(lambda path=path: remove_tree(fs, path))  # type: ignore[misc]
                self.count -= 1
                self.size_bytes -= sizes[path]
                self._lifecycle.log.info(
                    "removed a log that was set aside: it was kept for stray_retention_ms",
                    path=path,
                    set_aside_ms=stray.set_aside_ms,
                )
        except OSError as error:
            self._lifecycle.log.warning("a log that was set aside remains", path=path, reason=str(error))
            if is_unreadable(error):
                self._health.fail("removal of what was set aside", error)
