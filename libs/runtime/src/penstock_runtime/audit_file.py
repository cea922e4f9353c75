"""The file that audit lines go to, or standard error. Blocks: one thread writes.

The file is opened for appending, for the owner alone (0600). When it has been renamed or removed (logrotate) the next
line begins a new one; when it has `bytes_max` it is renamed here: PATH.1 is the newest of `files` old ones.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Protocol

STDERR = "stderr"


class Sink(Protocol):
    """Where lines go."""

    def write(self, data: bytes) -> int:
        """Write what comes next, or some of it; how many bytes. Raises OSError."""
        ...

    def close(self) -> None:
        """The end."""


class StderrSink:
    """Standard error, among the process's log."""

    def write(self, data: bytes) -> int:
        """See `Sink`."""
        return os.write(2, data)

    def close(self) -> None:
        """See `Sink`."""


class FileSink:
    """A file of its own."""

    def __init__(self, path: Path, bytes_max: int, files: int) -> None:
        """Open it. Raises OSError. `bytes_max` 0: of any size; `files` old ones are kept."""
        self._path = path
        self._bytes_max = bytes_max
        self._files = files
        self._fd = -1
        self._size = 0
        self._mid_line = False
        self._open()

    def write(self, data: bytes) -> int:
        """See `Sink`."""
        if self._fd < 0 or self._was_moved():
            self._open()
        too_large = self._bytes_max and self._size and self._size + len(data) > self._bytes_max
        if too_large and not self._mid_line:
            self._rotate()
        count = os.write(self._fd, data)
        self._size += count
        self._mid_line = data[count - 1 : count] != b"\n"
        return count

    def _was_moved(self) -> bool:
        try:
            there, ours = self._path.stat(), os.fstat(self._fd)
        except FileNotFoundError:
            return True
        return (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._path, flags, 0o600)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "is no file")
            os.fchmod(fd, 0o600)
        except OSError:
            os.close(fd)
            raise
        self.close()
        self._fd, self._size, self._mid_line = fd, found.st_size, False

    def _rotate(self) -> None:
        for number in range(self._files - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.replace(self._numbered(number + 1))
        if self._files:
            self._path.replace(self._numbered(1))
        else:
            self._path.unlink()
        self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def close(self) -> None:
        """See `Sink`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
