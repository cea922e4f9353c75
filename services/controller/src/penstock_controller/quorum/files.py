"""Durable file operations: what must be on the disk is there when these return.

Every replacement is tmp + fsync + rename + fsync of the directory: after a crash the
name holds either the old or the new content, whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from penstock_core.failpoints import hit


class DamagedFile(Exception):
    """A file does not hold what was once synced to it. Names the file and the mend."""


def sync_directory(directory: Path) -> None:
    """Make created, renamed and removed names of `directory` durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: Path) -> None:
    """Make a directory and its parents, durably. Raises OSError."""
    missing = []
    current = path
    while not current.exists():
        missing.append(current)
        current = current.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_directory(each.parent)


def write_all(fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """`pwrite` until all of `data` is written."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written


def replace_durably(path: Path, parts: Iterable[bytes]) -> None:
    """Put a file of `parts` under `path`, atomically and durably."""
    tmp = path.with_name(path.name + ".tmp")
    fd = os.open(tmp, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        offset = 0
        for part in parts:
            write_all(fd, part, offset)
            offset += len(part)
        os.fsync(fd)
    finally:
        os.close(fd)
    hit("controller.file.before_rename")
    tmp.replace(path)
    hit("controller.file.before_directory_sync")
    sync_directory(path.parent)
