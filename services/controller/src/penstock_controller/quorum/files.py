"""Durable file operations: what must be on the disk is there when these return.

Every replacement is tmp + fsync + rename + fsync of the directory: after a crash the
name holds either the old or the new content, whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from penstock_core.failpoints import hit


class DamagedFile(Exception):
    """A file does not hold what was once synced to it. Names the file and the mend."""


class SystemCalls(Protocol):
    """What of `os` these files are written with; the module itself is the real one."""

    def open(self, path: Any, flags: int, mode: int = ..., /) -> int: ...

    def close(self, fd: int, /) -> None: ...

    def fsync(self, fd: int, /) -> None: ...

    def fdatasync(self, fd: int, /) -> None: ...

    def pwrite(self, fd: int, data: memoryview, offset: int, /) -> int: ...

    def ftruncate(self, fd: int, size: int, /) -> None: ...

    def fstat(self, fd: int, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Files:
    """Operations on one system's files."""

    system: SystemCalls = os

    def sync_directory(self, directory: Path) -> None:
        """Make created, renamed and removed names of `directory` durable."""
        system = self.system
        fd = system.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            system.fsync(fd)
        finally:
            system.close(fd)

    def make_directory(self, path: Path) -> None:
        """Make a directory and its parents, durably. Raises OSError."""
        missing = []
        current = path
        while not current.exists():
            missing.append(current)
            current = current.parent
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            self.sync_directory(each.parent)

    def write_all(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        """`pwrite` until all of `data` is written."""
        view, pwrite = memoryview(data), self.system.pwrite
        while view:
            written = pwrite(fd, view, offset)
            view = view[written:]
            offset += written

    def replace_durably(self, path: Path, parts: Iterable[bytes]) -> None:
        """Put a file of `parts` under `path`, atomically and durably."""
        system, tmp = self.system, path.with_name(path.name + ".tmp")
        fd = system.open(tmp, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            offset = 0
            for part in parts:
                self.write_all(fd, part, offset)
                offset += len(part)
            system.fsync(fd)
        finally:
            system.close(fd)
        hit("controller.file.before_rename")
        tmp.replace(path)
        hit("controller.file.before_directory_sync")
        self.sync_directory(path.parent)


REAL_FILES = Files()
