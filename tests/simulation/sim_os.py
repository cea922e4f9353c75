"""`os`, `Path`, `time` and `socket` as the controller's file and Raft modules see them.

The quorum's files are written with `os` and `pathlib`; here those names lead to the simulated
disk of the host that the path begins with (`/c1/...`), so that torn, lost and reordered writes
meet the controllers too.
"""

from __future__ import annotations

import io
import os
import posixpath
import stat
from fnmatch import fnmatchcase
from typing import Any

from penstock_storage_node.log.fs import read_file
from support.simulated_fs import SimulatedFileSystem


class Disks:
    """The disk of each host."""

    def __init__(self) -> None:
        self.by_host: dict[str, SimulatedFileSystem] = {}

    def of(self, path: str) -> SimulatedFileSystem:
        return self.by_host[path.split("/", 2)[1]]


class SimOs:
    """The part of `os` that the quorum's modules use."""

    O_RDWR, O_CREAT, O_TRUNC, O_CLOEXEC = os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_CLOEXEC
    O_RDONLY, O_DIRECTORY = os.O_RDONLY, os.O_DIRECTORY

    def __init__(self, disks: Disks) -> None:
        self._disks = disks
        self._open: dict[int, tuple[SimulatedFileSystem, int, str]] = {}
        self._next = 1 << 20
        self.path = _SimOsPath(disks)

    def open(self, path: Any, flags: int, _mode: int = 0o777) -> int:
        name = str(path)
        fs = self._disks.of(name)
        self._next += 1
        if flags & os.O_DIRECTORY:
            self._open[self._next] = (fs, -1, name)
        else:
            fd = fs.create(name) if flags & os.O_TRUNC else fs.open(name)
            self._open[self._next] = (fs, fd, name)
        return self._next

    def close(self, fd: int) -> None:
        fs, inner, _ = self._open.pop(fd)
        if inner >= 0:
            fs.close(inner)

    def fsync(self, fd: int) -> None:
        fs, inner, name = self._open[fd]
        if inner < 0:
            fs.sync_directory(name)
        else:
            fs.fdatasync(inner)

    fdatasync = fsync

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        fs, inner, _ = self._open[fd]
        return fs.pwritev(inner, [data], offset)

    def ftruncate(self, fd: int, size: int) -> None:
        fs, inner, _ = self._open[fd]
        fs.ftruncate(inner, size)

    def fstat(self, fd: int) -> Any:
        fs, inner, _ = self._open[fd]
        return _Stat(fs.size(inner))


class _Stat:
    def __init__(self, st_size: int) -> None:
        self.st_size = st_size
        self.st_mode = stat.S_IFREG | 0o600
        self.st_mtime = 0.0
        """For metrics alone."""


class _SimOsPath:
    def __init__(self, disks: Disks) -> None:
        self._disks = disks

    def isfile(self, path: str) -> bool:
        fs = self._disks.of(path)
        return fs.exists(path) and not fs.is_directory(path)


class _WriteFile(io.BytesIO):
    """What `SimPath.open("wb")` gives: content reaches the file at each flush."""

    def __init__(self, sim_os: SimOs, path: str) -> None:
        super().__init__()
        self._os = sim_os
        self._fd = sim_os.open(path, os.O_TRUNC | os.O_CREAT)
        self._written = 0

    def flush(self) -> None:
        data = self.getvalue()[self._written :]
        if data:
            self._os.pwrite(self._fd, data, self._written)
            self._written += len(data)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if not self.closed:
            self.flush()
            self._os.close(self._fd)
            super().close()


class SimPath:
    """As much of `pathlib.Path` as the quorum's modules use."""

    def __init__(self, sim_os: SimOs, disks: Disks, path: str) -> None:
        self._os = sim_os
        self._disks = disks
        self._path = path

    def _at(self, path: str) -> SimPath:
        return SimPath(self._os, self._disks, path)

    def __truediv__(self, name: str) -> SimPath:
        return self._at(f"{self._path}/{name}")

    def __str__(self) -> str:
        return self._path

    __fspath__ = __str__

    @property
    def name(self) -> str:
        return posixpath.basename(self._path)

    @property
    def parent(self) -> SimPath:
        return self._at(posixpath.dirname(self._path))

    def with_name(self, name: str) -> SimPath:
        return self.parent / name

    def mkdir(self, **_: object) -> None:
        fs = self._disks.of(self._path)
        if not fs.exists(self._path):
            fs.make_directory(self._path)
            fs.sync_directory("/")

    def exists(self) -> bool:
        return self._disks.of(self._path).exists(self._path)

    def read_bytes(self) -> bytes:
        return read_file(self._disks.of(self._path), self._path)

    def read_text(self) -> str:
        return self.read_bytes().decode()

    def stat(self) -> Any:
        return _Stat(self._disks.of(self._path).path_size(self._path))

    def open(self, mode: str) -> Any:
        if mode == "wb":
            return _WriteFile(self._os, self._path)
        return io.BytesIO(self.read_bytes())

    def unlink(self) -> None:
        self._disks.of(self._path).unlink(self._path)

    def replace(self, target: SimPath) -> None:
        self._disks.of(self._path).rename(self._path, str(target))

    def glob(self, pattern: str) -> list[SimPath]:
        names = self._disks.of(self._path).list_directory(self._path)
        return [self / name for name in names if fnmatchcase(name, pattern)]
