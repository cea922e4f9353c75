"""Whether the disk is full, and when it counts as having room again: a plain state machine.

Full is whoever met ENOSPC or EDQUOT, at once, and whose disk has less free than a reserve: so
leadership goes away before producers are refused. Room is found by trying: when nobody has met a full
disk for a while (`hold_ms`), a file of PROBE_BYTES is written and removed. Free bytes as the system
gives them are no answer alone, because quotas are not in them; but twice the reserve have to be there too.

A disk that is filled up again soon after it had room is given twice the time of before, so that
leadership, which goes away from full disks (decision 0023), does not come and go with it.
"""

from __future__ import annotations

from penstock_core.failpoints import hit
from penstock_storage_node.log.fs import FileSystem, unlink_if_exists, write_fully

HOLD_MS = 30_000
"""Without anybody meeting a full disk, before room is looked for."""
HOLD_MAX_MS = 600_000
RELAPSE_MS = 600_000
"""Full again within that time of having room: the next hold is twice as long."""
PROBE_BYTES = 4 * 1024 * 1024
PROBE_FILE = ".space-probe"


RESERVE_SHARE = 20
"""Of a small disk, this part of it is the most that the reserve can be."""


def reserve_bytes(wanted_bytes: int, total_bytes: int) -> int:
    """What is to be free on a disk of `total_bytes`."""
    return min(wanted_bytes, total_bytes // RESERVE_SHARE)


class DiskSpace:
    """One per node. Times in ms of any one clock that does not go back."""

    def __init__(self) -> None:
        self.full = False
        self.hold_ms = HOLD_MS
        self._met_full_ms = 0
        self._had_room_ms: int | None = None

    def on_full(self, now_ms: int) -> bool:
        """Somebody met a full disk. True: it was not known to be full."""
        self._met_full_ms = now_ms
        if self.full:
            return False
        self.full = True
        relapsed = self._had_room_ms is not None and now_ms - self._had_room_ms < RELAPSE_MS
        self.hold_ms = min(2 * self.hold_ms, HOLD_MAX_MS) if relapsed else HOLD_MS
        return True

    def probe_is_due(self, now_ms: int) -> bool:
        """Whether to look for room."""
        return self.full and now_ms - self._met_full_ms >= self.hold_ms

    def on_probe(self, began_ms: int, now_ms: int, *, has_room: bool) -> bool:
        """What a look that began at `began_ms` has found. True: the disk counts as having room now."""
        if not has_room:
            self.on_full(now_ms)
        if not self.full or self._met_full_ms >= began_ms:
            return False  # somebody met a full disk meanwhile
        self.full = False
        self._had_room_ms = now_ms
        return True


def probe(fs: FileSystem, root: str) -> None:
    """(pool) Write PROBE_BYTES into a file of `root` and remove it. Raises OSError, of a full disk too."""
    # What says of a log that it finds no space (a failpoint) says it of this.
    hit("log.append.before_write")
    path = f"{root}/{PROBE_FILE}"
    try:
        fd = fs.create(path)
        try:
            write_fully(fs, fd, [bytes(PROBE_BYTES)], 0)
        finally:
            fs.close(fd)
    finally:
        unlink_if_exists(fs, path)
