"""Gives memory back that a worker has freed: Spark uses its Python workers again and again.

What gRPC's threads take and a reader frees stays in the arenas of glibc, a little more with each task: workers grew
from 300 to 500 MB and went on. Above a bound all of it is handed back to the system between two tasks, where it holds
nothing that is in use.
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

KEPT_BYTES = 160 << 20
"""A worker's memory below which nothing is given back: what imports and one chunk's buffers take, and some more."""

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Memory of this process that is in RAM; 0 where the system doesn't say."""
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0


def give_back(kept_bytes: int = KEPT_BYTES) -> None:
    """Hands what is free back to the system, when the process has more than `kept_bytes`."""
    if resident_bytes() <= kept_bytes:
        return
    import pyarrow as pa  # where a table is read without it there is nothing to do

    pa.default_memory_pool().release_unused()
    _malloc_trim()(0)


def giving_back(batches: Iterator[Any]) -> Iterator[Any]:
    """The same batches; memory is given back behind the last."""
    try:
        yield from batches
    finally:
        give_back()


@cache
def _malloc_trim() -> Callable[[int], Any]:
    """glibc's; elsewhere (musl, macOS) nothing."""
    try:
        trim: Callable[[int], Any] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return lambda _: None
    return trim
