"""A run finds the machine's memory full of page cache, as on a machine that has been up for a while.

Virtual machines may give free memory back to their hypervisor (Linux: CONFIG_PAGE_REPORTING, virtio-balloon), and get
it again page by page, each at the cost of a fault of the hypervisor: a gigabyte written to the page cache took 3 s of
CPU in free memory, and 0.35 s where clean pages were reclaimed for it. That is several times what a broker spends on
the same gigabyte, it is not the same from one run to the next, and neither system can do anything about it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import psutil

PORTION_BYTES: Final = 256 * 1024 * 1024
"""Read between two looks at what is free."""
_BLOCK_BYTES: Final = 1024 * 1024
_SIZE_BYTES: Final = 1 << 40
"""A file without a written block takes no room on disk, however large; this much fits every file system."""


class PageCache:
    """Fills free memory with pages of a file that has nothing but holes: they are clean, and the first to be
    reclaimed. The file is made in `folder` and is nameless from then on. Where reading takes no memory (tmpfs, which
    shows one page for all holes) or where a container may have no more of it, nothing is filled."""

    def __init__(
        self,
        folder: Path,
        free_bytes: Callable[[], int] = lambda: int(psutil.virtual_memory().free),
        total_bytes: int = 0,
        portion_bytes: int = PORTION_BYTES,
    ) -> None:
        """`total_bytes`: the machine's memory, more than which is never read at once; 0 asks for it."""
        file = folder / "holes"
        self._handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        file.unlink()
        os.ftruncate(self._handle, _SIZE_BYTES)
        self._free_bytes = free_bytes
        self._total_bytes = total_bytes or int(psutil.virtual_memory().total)
        self._portion_bytes = portion_bytes
        self._block = bytearray(_BLOCK_BYTES)
        self._offset = 0

    def fill(self) -> int:
        """Until reading takes less than half of its size from what is free, as pages are reclaimed for it. Returns
        what was read, bytes."""
        read_bytes = 0
        before = self._free_bytes()
        while read_bytes < self._total_bytes:
            # What was read before may be in memory still: go on behind it.
            for _ in range(self._portion_bytes // _BLOCK_BYTES):
                os.preadv(self._handle, [self._block], self._offset)
                self._offset = (self._offset + _BLOCK_BYTES) % _SIZE_BYTES
            read_bytes += self._portion_bytes
            after = self._free_bytes()
            if before - after < self._portion_bytes // 2:
                break
            before = after
        return read_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Its pages are free again."""
        os.close(self._handle)
