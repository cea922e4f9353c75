"""Keeping the C allocator's memory small in a process with several threads.

glibc gives each thread an arena of its own and keeps what was freed. Batches are allocated on
the loop's thread and freed by whoever is last, so arenas fill with holes. Two arenas and an early
trim keep a role's resident memory near what it really holds. Best effort: other C libraries
have no `mallopt`.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

ARENAS = 2
TRIM_BYTES = 4 * 1024 * 1024
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


def bound_allocator() -> None:
    """Call once, early. Affects the whole process."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_ARENA_MAX, ARENAS)
    mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES)
    mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)
