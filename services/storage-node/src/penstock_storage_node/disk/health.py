"""Whether this node's disk can be trusted, and what people are told when it can't.

Rules
  * A failed write or flush, or an EIO of any kind, is final for the whole node: what the page
    cache holds may be gone without another error, and the next file is on the same disk. The
    node gives up every role, acknowledges nothing, is not ready and tells the controllers.
    Only a new start, which reads everything anew, makes it good.
  * A full disk is no failure: whoever met it tries again until there is space. The controllers
    hear of it, so that in-sync replicas with room lead in the meantime (see `space`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from penstock_core.errors import PenstockError
from penstock_runtime.lifecycle import Lifecycle
from penstock_storage_node.disk import space
from penstock_storage_node.disk.space import DiskSpace
from penstock_storage_node.log.jobs import FULL_ERRORS

FULL_LOG_INTERVAL_MS = 10_000
"""A full disk is said that often."""


def disk_errno(error: BaseException) -> int:
    """Number of the OSError that `error` is or was raised from, 0 when there is none."""
    for each in (error, error.__cause__):
        if isinstance(each, OSError):
            return each.errno or errno.EIO
    return 0


def is_full(error: BaseException) -> bool:
    """The disk, or a quota, has no space left."""
    return disk_errno(error) in FULL_ERRORS


def is_unreadable(error: BaseException) -> bool:
    """A read met the disk's own error, not a missing or wrong file."""
    return disk_errno(error) == errno.EIO


class DiskHealth:
    """One per node. Lives on the event loop."""

    def __init__(self, lifecycle: Lifecycle, clock_ms: Callable[[], int]) -> None:
        self._lifecycle = lifecycle
        self._clock_ms = clock_ms
        self._quiet_until_ms = 0
        self.reason = ""
        """Why the disk counts as failed; "" while it doesn't."""
        self.listeners: list[Callable[[], None]] = []
        """Called once, when it fails."""
        self.space_listeners: list[Callable[[], None]] = []
        """Called when it becomes full, and when it has room again."""
        self.space = DiskSpace()
        self.reserve_bytes = 0
        """Free bytes below which the disk counts as full, fewer on a small one; 0: only when a write finds no space."""

    @property
    def failed(self) -> bool:
        return bool(self.reason)

    def note_full(self, name: str) -> None:
        """A log met a full disk."""
        now_ms = self._clock_ms()
        became_full = self.space.on_full(now_ms)
        if now_ms >= self._quiet_until_ms:
            self._quiet_until_ms = now_ms + FULL_LOG_INTERVAL_MS
            self._lifecycle.log.error(
                "disk full: producers are refused until space is freed; writing goes on by itself",
                partition=name,
            )
        if became_full:
            self._tell_space()

    def note_room(self, total_bytes: int, free_bytes: int) -> None:
        """What the system says of the disk."""
        reserve = space.reserve_bytes(self.reserve_bytes, total_bytes)
        if free_bytes < reserve and self.space.on_full(self._clock_ms()):
            self._lifecycle.log.error(
                "disk nearly full: others lead where they can, until twice disk_reserve_bytes are free; free space",
                free_bytes=free_bytes,
                reserve_bytes=reserve,
            )
            self._tell_space()

    def has_room(self, total_bytes: int, free_bytes: int) -> bool:
        """Whether so much is free that a disk that was full may count as having room."""
        return free_bytes >= 2 * space.reserve_bytes(self.reserve_bytes, total_bytes)

    def note_probe(self, began_ms: int, *, has_room: bool) -> None:
        """A look for room that began at `began_ms` has ended."""
        if self.space.on_probe(began_ms, self._clock_ms(), has_room=has_room):
            self._lifecycle.log.info("the disk has room again")
            self._tell_space()

    def _tell_space(self) -> None:
        for listener in self.space_listeners:
            listener()

    def fail(self, name: str, error: BaseException) -> None:
        """The disk failed under `name`."""
        cause = error.__cause__ if isinstance(error, PenstockError) and error.__cause__ else error
        self._lifecycle.log.error("disk failed", partition=name, reason=str(cause))
        if self.reason:
            return
        self.reason = f"{name}: {cause}"
        self._lifecycle.set_not_ready(
            f"the disk failed ({self.reason}); mend or replace it and restart this node"
        )
        for listener in self.listeners:
            listener()
