"""Logs that were set aside: those proved superfluous go after `stray_retention_ms`, others stay until a person says.

Age is told by the wall clock, because it must outlast the process. Within a process a step of that
clock counts for nothing: now is never later than the time of the start plus what has passed since.
What is superfluous, `stray_proof` says, by the metadata of the moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock_core.errors import ErrorCode, PenstockError
from penstock_runtime.lifecycle import Lifecycle
from penstock_storage_node.disk.health import DiskHealth, is_unreadable
from penstock_storage_node.disk.pool import DiskPool
from penstock_storage_node.log import LogDirectory, strays
from penstock_storage_node.log.fs import remove_tree
from penstock_storage_node.log.strays import Stray, StrayIdentity
from penstock_storage_node.replica.stray_proof import Verdict

REMOVALS_MAX = 16
"""Directories removed in one look; the next look takes the next."""


@dataclass(frozen=True, slots=True)
class StrayLog:
    """One of them, as it is now."""

    stray: Stray
    identity: StrayIdentity | None
    size_bytes: int
    verdict: Verdict


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
        judge: Callable[[StrayIdentity | None], Verdict],
    ) -> None:
        """`judge` goes by the newest metadata that this node has."""
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
        self._judge = judge
        self._start_wall_ms, self._start_ms = wall_ms(), monotonic_ms()

    def _now_ms(self) -> int:
        return min(self._wall_ms(), self._start_wall_ms + self._monotonic_ms() - self._start_ms)

    async def look(self) -> None:
        """Count the strays and remove those that are due. Failures are told here."""
        if self._health.failed:
            return
        fs, root, now_ms = self._directory.fs, str(self._directory.path), self._now_ms()
        path = root
        try:
            found = await self.describe()
            superfluous = {each.stray.name: each for each in found if each.verdict.is_superfluous}
            due = strays.overdue(
                (each.stray for each in superfluous.values()), now_ms, self._retention_ms, REMOVALS_MAX
            )
            for stray in due:
                path = f"{root}/{stray.name}"
                each = superfluous[stray.name]
                if not self._judge(each.identity).is_superfluous:
                    continue  # the metadata have moved on meanwhile
                await self._pool.run(lambda path=path: remove_tree(fs, path))  # type: ignore[misc]
                self._gone(each.size_bytes)
                self._lifecycle.log.info(
                    "removed a log that was set aside: it was kept for stray_retention_ms",
                    path=path,
                    set_aside_ms=stray.set_aside_ms,
                    reason=each.verdict.reason,
                )
        except OSError as error:
            self._lifecycle.log.warning("a log that was set aside remains", path=path, reason=str(error))
            if is_unreadable(error):
                self._health.fail("removal of what was set aside", error)

    async def describe(self) -> list[StrayLog]:
        """All of them, by name. Raises OSError."""
        fs, root, now_ms = self._directory.fs, str(self._directory.path), self._now_ms()
        new_uuid = self._directory.ports.new_uuid
        found = await self._pool.run(lambda: strays.find(fs, root, now_ms, new_uuid))
        logs = []
        for stray in found:
            identity, size_bytes = await self._pool.run(
                lambda stray=stray: (  # type: ignore[misc]
                    strays.identify(fs, root, stray),
                    strays.size_bytes(fs, f"{root}/{stray.name}"),
                )
            )
            logs.append(StrayLog(stray, identity, size_bytes, self._judge(identity)))
        self.count = len(logs)
        self.size_bytes = sum(each.size_bytes for each in logs)
        return logs

    async def delete(self, name: str, by: str) -> int:
        """Delete one because a person says so; the bytes freed. Raises PenstockError, or OSError."""
        fs, root = self._directory.fs, str(self._directory.path)
        path = f"{root}/{name}"
        is_stray = "/" not in name and strays.parse(name) is not None
        if not is_stray or not await self._pool.run(lambda: fs.is_directory(path)):
            raise PenstockError(
                ErrorCode.INVALID_REQUEST, f"data directory {root} has no log {name} that was set aside"
            )
        size_bytes = await self._pool.run(lambda: strays.size_bytes(fs, path))
        await self._pool.run(lambda: remove_tree(fs, path))
        self._gone(size_bytes)
        self._lifecycle.log.warning(
            "deleted a log that was set aside, as asked", path=path, size_bytes=size_bytes, by=by
        )
        return size_bytes

    def why(self, each: StrayLog) -> str:
        """Why it stays, or when it goes, for people."""
        if not each.verdict.is_superfluous:
            return f"kept: {each.verdict.reason}"
        if self._retention_ms < 0:
            return f"kept, since stray_retention_ms is -1: {each.verdict.reason}"
        return f"goes {_duration(self._retention_ms)} after it was set aside: {each.verdict.reason}"

    def _gone(self, size_bytes: int) -> None:
        self.count = max(0, self.count - 1)
        self.size_bytes = max(0, self.size_bytes - size_bytes)


def _duration(ms: int) -> str:
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if ms >= unit_ms and ms % unit_ms == 0:
            return f"{ms // unit_ms} {unit}"
    return f"{ms / 1000:g} s"
