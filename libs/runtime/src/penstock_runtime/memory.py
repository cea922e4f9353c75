"""Keeping the C allocator's memory small in a process with several threads.

glibc gives each thread an arena of its own and keeps what was freed. Batches are allocated on
the loop's thread and freed by whoever is last, so arenas fill with holes. Two arenas and an early
trim keep a role's resident memory near what it really holds. Best effort: other C libraries
have no `mallopt`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import Callable
from time import perf_counter

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

ARENAS = 2
TRIM_BYTES = 4 * 1024 * 1024
TRIM_REST_S = 0.25
"""Between two trims of a `Trimmer`: they take less than a hundredth of it."""
TRIM_SHARE = 0.05
"""Of a loop's time, the most that trims of a `RoomForTls` take."""
MMAP_BYTES = 4 * 1024 * 1024
"""Above it, memory comes straight from the kernel and goes straight back. A fixed value: left to
itself the threshold grows with every large buffer that is freed."""


def trim_allocator() -> None:
    """Give free memory back to the kernel. Takes a millisecond or so: off the loop, but at the start."""
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    malloc_trim(0)


class Trimmer:
    """Gives memory back to the kernel a moment after some has come free, off the loop and not too often.

    For what many at once have taken and left: what of it lies in holes stays with the process otherwise.
    """

    def __init__(self) -> None:
        self._is_due = False

    def freed(self) -> None:
        """Some has, or will have in a moment. Costs nothing while one is due."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(TRIM_REST_S, self._trim)

    def _trim(self) -> None:
        self._is_due = False
        with contextlib.suppress(RuntimeError):  # the process ends: its executor takes nothing more
            asyncio.get_running_loop().run_in_executor(None, trim_allocator)


class RoomForTls:
    """Memory for a TLS connection in which nobody has written yet.

    uvloop takes 256 KiB for each; what a client sends touches their first page, and pages that nobody touched cost
    nothing. But the allocator puts them over what has just been freed, the buffers of the handshake before or a batch
    that passed, and those pages stay as long as the connection does: some 47 KB of memory each, and not 27.
    """

    def __init__(
        self, clock_s: Callable[[], float] = perf_counter, trim: Callable[[], None] = trim_allocator
    ) -> None:
        self._clock_s = clock_s
        self._trim = trim
        self._due_s = 0.0

    def make(self) -> None:
        """Call just before the connection is made. Takes a tenth of a millisecond; is left out where it takes longer
        and the last one was just now."""
        begun_s = self._clock_s()
        if begun_s < self._due_s:
            return
        self._trim()
        ended_s = self._clock_s()
        self._due_s = ended_s + (ended_s - begun_s) / TRIM_SHARE


def bound_allocator() -> None:
    """Call once, early. Affects the whole process."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_ARENA_MAX, ARENAS)
    mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES)
    mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)
