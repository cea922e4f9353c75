"""Every system call on data files, behind one object.

Tests put another FileSystem here that records calls, forgets what was not synced or
fails at will; so nothing else in `log/` may touch `os` or `open`.

Rules
  * Files are opened read-write and without O_APPEND: positions are always given.
  * `OpenFiles` keeps at most `open_files_max` descriptors, the least recently used go
    first. A file in use is pinned, so its descriptor can't be closed (and its number
    reused) under a pool thread. Where the process has no descriptor left, for clients have them, those that
    nobody uses are given back: a disk must not count as failed for want of one.
  * What makes a file reachable (create, rename, unlink) is durable only after
    `sync_directory` on its folder.

Warts: a descriptor that was evicted between a write and a later flush job takes with it
the kernel's memory of a failed write-back on that descriptor (Linux reports it again on
a new one only while the inode stays cached). Write jobs with fsync hold their pin from
write to flush, so this concerns durability "replicated" only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from penstock_core.failpoints import hit
from penstock_kafka.records.batch import Buffer
from penstock_storage_node.log.aborted_index import AbortedRows
from penstock_storage_node.log.index import IndexHeads

T = TypeVar("T")

IOV_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)
"""Buffers per pwritev; Linux takes 1024."""

OPEN_FILES_MAX = 1024
"""Data files that one process keeps open when nothing else is said."""

_OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
_FLOCK = "@hhqqi4x"
"""struct flock of Linux: type, whence, start, length, process."""
_LIBC = ctypes.CDLL(None, use_errno=True)


class OpenFile:
    """An open descriptor. Valid while pinned."""

    __slots__ = ("fd", "forgotten", "path", "pins")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        self.pins = 1
        self.forgotten = False


class OpenFiles:
    """Descriptors by path, least recently used first out. Thread-safe."""

    def __init__(self, fs: FileSystem, files_max: int) -> None:
        self._fs = fs
        self._max = files_max
        self._lock = threading.Lock()
        self._files: OrderedDict[str, OpenFile] = OrderedDict()
        self._forgotten_count = 0

    def __len__(self) -> int:
        return len(self._files)

    def pin(self, path: str) -> OpenFile:
        """Open `path` (or take it from the cache) and hold it; may block. Raises OSError."""
        found = self.pin_if_open(path)
        if found is not None:
            return found
        forgotten_count = self._forgotten_count
        fd = self._fs.open(path)
        with self._lock:
            other = self._files.get(path)
            if other is None and self._forgotten_count != forgotten_count:
                # Perhaps this one, between the two lines above: good for its opener only.
                opened, extra = OpenFile(path, fd), []
                opened.forgotten = True
            elif other is None:
                opened = OpenFile(path, fd)
                self._files[path] = opened
                extra = self._overdue()
            else:  # another thread was faster
                other.pins += 1
                opened, extra = other, [fd]
        for old in extra:
            self._fs.close(old)
        return opened

    def pin_if_open(self, path: str) -> OpenFile | None:
        """Hold `path` if it is open already; never blocks."""
        with self._lock:
            found = self._files.get(path)
            if found is not None:
                found.pins += 1
                self._files.move_to_end(path)
            return found

    def unpin(self, file: OpenFile) -> None:
        with self._lock:
            file.pins -= 1
            closing = [file.fd] if file.forgotten and file.pins == 0 else self._overdue()
        for fd in closing:
            self._fs.close(fd)

    def forget(self, path: str) -> None:
        """Close `path` as soon as nobody holds it (it was renamed or deleted)."""
        with self._lock:
            self._forgotten_count += 1
            file = self._files.pop(path, None)
            if file is None:
                return
            file.forgotten = True
            closing = file.pins == 0
        if closing:
            self._fs.close(file.fd)

    def close_all(self) -> None:
        for path in list(self._files):
            self.forget(path)

    def give_back(self) -> bool:
        """Close the file that was used least recently; False when all are in use."""
        with self._lock:
            idle = next((path for path, file in self._files.items() if file.pins == 0), None)
            if idle is None:
                return False
            fd = self._files.pop(idle).fd
        self._fs.close(fd)
        return True

    def _overdue(self) -> list[int]:
        """Descriptors to close, taken out of the cache. The lock is held."""
        closing: list[int] = []
        while len(self._files) > self._max:
            # No copy of what is open: with more logs than files that stay so, this is done for each file.
            idle = next((path for path, file in self._files.items() if file.pins == 0), None)
            if idle is None:
                break
            closing.append(self._files.pop(idle).fd)
        return closing


class FileSystem:
    """The real disk. Methods raise OSError; paths are strings."""

    def __init__(self, *, open_files_max: int = OPEN_FILES_MAX) -> None:
        self.files = OpenFiles(self, open_files_max)
        self.index_heads = IndexHeads()
        self.aborted_rows = AbortedRows()

    def _with_descriptor(self, call: Callable[[], T]) -> T:
        """`call` needs a descriptor that may have to be made room for."""
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS or not self.files.give_back():
                    raise

    def _descriptor(self, path: str, flags: int, mode: int = 0) -> int:
        return self._with_descriptor(lambda: os.open(path, flags, mode))

    # --- files

    def open(self, path: str) -> int:
        """Descriptor of an existing file."""
        return self._descriptor(path, _OPEN_FLAGS)

    def create(self, path: str) -> int:
        """Descriptor of a new, empty file; what stood there is emptied."""
        return self._descriptor(path, _OPEN_FLAGS | os.O_CREAT | os.O_TRUNC, 0o640)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """One system call; returns the bytes written, which may be fewer."""
        return os.pwritev(fd, buffers, position)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        return os.pread(fd, size, position)

    def preadv_nowait(self, fd: int, buffer: bytearray, position: int) -> int:
        """What is in the page cache, without waiting; BlockingIOError when nothing is."""
        try:
            return os.preadv(fd, [buffer], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):  # e.g. some network and overlay filesystems
                raise BlockingIOError(errno.EAGAIN, "no RWF_NOWAIT on this filesystem") from error
            raise

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def sync_filesystem(self, fd: int) -> None:
        """Flush everything dirty on the filesystem of `fd`, directories included (syncfs(2)).

        Reports what went wrong since the last call on this very descriptor, or since it was
        opened. See `penstock_storage_node.disk.group_flush` for where that may be relied on.
        """
        if _LIBC.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"syncfs: {os.strerror(number)}")

    def open_directory(self, path: str) -> int:
        """Descriptor of a directory, for `sync_filesystem`."""
        return self._descriptor(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def room(self, path: str) -> tuple[int, int]:
        """(bytes, free bytes) of the filesystem that a directory is on, as `df` counts.

        What is kept for root is in neither: nobody can fill it, so it is no part of how full a disk is.
        """
        found = os.statvfs(path)
        kept = found.f_bfree - found.f_bavail
        return (found.f_blocks - kept) * found.f_frsize, found.f_bavail * found.f_frsize

    def device(self, fd: int) -> int:
        """Number of the filesystem that a file is on."""
        return os.fstat(fd).st_dev

    def ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def path_size(self, path: str) -> int:
        return os.stat(path).st_size  # noqa: PTH116

    def modified_ms(self, path: str) -> int:
        """Last modification, ms since 1970."""
        return os.stat(path).st_mtime_ns // 1_000_000  # noqa: PTH116

    # --- names

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)  # noqa: PTH112 - strings all the way: this is called for thousands

    def list_directory(self, path: str) -> list[str]:
        return sorted(self._with_descriptor(lambda: os.listdir(path)))  # noqa: PTH208

    def make_directory(self, path: str) -> None:
        Path(path).mkdir(mode=0o750)

    def remove_directory(self, path: str) -> None:
        Path(path).rmdir()

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces a file at `target`."""
        Path(source).rename(target)

    def unlink(self, path: str) -> None:
        Path(path).unlink()

    def sync_directory(self, path: str) -> None:
        fd = self._descriptor(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> int:
        """Descriptor that holds an exclusive lock until closed; BlockingIOError when another holds it."""
        fd = os.open(path, _OPEN_FLAGS | os.O_CREAT, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        # A lock of this kind can be asked for without being taken, see `is_locked`. Some filesystems have none.
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        return fd

    def is_locked(self, path: str) -> bool:
        """Whether a process holds the lock on this file. Takes none itself, so nobody fails to get it because of it."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked)
        finally:
            os.close(fd)
        return bool(struct.unpack(_FLOCK, found)[0] != fcntl.F_UNLCK)


def write_fully(fs: FileSystem, fd: int, buffers: Sequence[Buffer], position: int) -> int:
    """Write all buffers from `position` on; returns the position after them.

    Short writes go on where they ended, so a caller sees either everything or OSError.
    """
    pending = list(buffers)
    first = 0
    while first < len(pending):
        group = pending[first : first + IOV_MAX]
        written = fs.pwritev(fd, group, position)
        if written <= 0:
            raise OSError(errno.EIO, "pwritev wrote nothing")
        position += written
        for buffer in group:
            size = len(buffer)
            if written < size:
                pending[first] = memoryview(buffer)[written:]
                break
            written -= size
            first += 1
    return position


def read_file(fs: FileSystem, path: str) -> bytes:
    """The whole of a small file."""
    fd = fs.open(path)
    try:
        return read_fully(fs, fd, fs.size(fd), 0)
    finally:
        fs.close(fd)


def read_fully(fs: FileSystem, fd: int, size: int, position: int) -> bytes:
    """`size` bytes, or fewer where the file ends."""
    data = fs.pread(fd, size, position)
    if len(data) == size or not data:
        return data
    parts = [data]
    got = len(data)
    while got < size and (data := fs.pread(fd, size - got, position + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def write_file_atomically(fs: FileSystem, path: str, data: bytes) -> None:
    """Durable on return; a crash leaves the old content or the new, never a mix."""
    temporary = path + ".tmp"
    fd = fs.create(temporary)
    try:
        write_fully(fs, fd, [data], 0)
        fs.fdatasync(fd)
    finally:
        fs.close(fd)
    hit("log.file.before_rename")
    fs.rename(temporary, path)
    hit("log.file.before_directory_sync")
    fs.sync_directory(path.rpartition("/")[0])


def unlink_if_exists(fs: FileSystem, path: str) -> None:
    try:
        fs.unlink(path)
    except FileNotFoundError:
        return


def remove_tree(fs: FileSystem, path: str) -> None:
    """Remove a directory of files (one level of folders deep is all a partition has)."""
    for name in fs.list_directory(path):
        child = f"{path}/{name}"
        if fs.is_directory(child):
            remove_tree(fs, child)
        else:
            fs.files.forget(child)
            unlink_if_exists(fs, child)
    fs.remove_directory(path)
