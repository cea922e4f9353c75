"""An in-memory disk that forgets what was not synced, for tests and for the simulated cluster.

What a crash keeps
  * of a file: its content at the last fdatasync, and of the writes and truncations since
    then whatever the test wants (`Content`): all, none, a prefix down to the byte, any
    set of sectors (holes read as zeros), or the full length with zeros at the end;
  * of a directory: its names at the last sync_directory, and some first part of the
    creates, renames and unlinks since.

Faults: `fail_on` may raise for any call; `space_bytes` is a full disk (writes stop
short, then ENOSPC); `crash_countdown` ends the process at the nth changing call;
`cold_chance` makes page-cache reads miss; `short_write_chance` makes pwritev write less,
up to the end of a sector: a kernel comes up short between pages.
Everything random comes from the `random.Random` given, so a seed replays a run.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence

from penstock_kafka.records.batch import Buffer
from penstock_storage_node.log.fs import OPEN_FILES_MAX, FileSystem

SECTOR_BYTES = 512
"""What a disk writes whole or not at all."""

DISK_BYTES = 1 << 40
"""What a disk says that it has."""

WriteOp = tuple[int, bytes]
"""(position, bytes); a truncation is (size, b"")."""


class SimulatedCrash(BaseException):  # a crash is nothing that code may catch as an error
    """The process ends here."""


class SimulatedFile:
    """Content now, content at the last sync, and what came between, in order."""

    __slots__ = ("data", "modified_ms", "pending", "synced")

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""
        self.pending: list[WriteOp] = []
        self.modified_ms = 0


class SimulatedDirectory:
    """Names now, names at the last sync, and what came between, in order."""

    __slots__ = ("names", "pending", "synced")

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.synced: dict[str, Node] = {}
        self.pending: list[tuple[str, str, Node | None]] = []


Node = SimulatedFile | SimulatedDirectory

Content = Callable[[str, SimulatedFile], bytes]
"""What a crash leaves of the file with this path."""


def apply_ops(content: bytes | bytearray, ops: Sequence[WriteOp]) -> bytes:
    """Content after these writes and truncations."""
    data = bytearray(content)
    for position, written in ops:
        if not written:
            del data[position:]
            data.extend(bytes(position - len(data)))
            continue
        if len(data) < position:
            data.extend(bytes(position - len(data)))
        data[position : position + len(written)] = written
    return bytes(data)


def keep_all(path: str, file: SimulatedFile) -> bytes:
    """The process ended, the machine did not."""
    del path
    return bytes(file.data)


def keep_synced(path: str, file: SimulatedFile) -> bytes:
    """Power cut at its strictest: nothing that wasn't synced."""
    del path
    return file.synced


def keep_random(rng: random.Random) -> Content:
    """A power cut: another fate for each file."""

    def content(path: str, file: SimulatedFile) -> bytes:
        del path
        fate = rng.choice(("all", "none", "cut", "subset", "zeros"))
        if fate == "all" or not file.pending:
            return bytes(file.data)
        if fate == "none":
            return file.synced
        if fate == "cut":
            count = rng.randrange(len(file.pending))
            position, written = file.pending[count]
            torn = written[: rng.randint(0, len(written))]
            ops = file.pending[:count] + ([(position, torn)] if torn else [])
            return apply_ops(file.synced, ops)
        if fate == "subset":
            return _some_sectors(rng, file)
        start = min((position for position, _ in file.pending), default=0)
        end = len(file.data)
        keep = rng.randint(min(start, end), end)
        return bytes(file.data[:keep]) + bytes(end - keep)

    return content


def _some_sectors(rng: random.Random, file: SimulatedFile) -> bytes:
    """Each sector as it once was since the sync.

    A kernel writes pages back at any moment and in any order, so a sector holds the first few of
    the changes made to it, or all or none; never a later one without an earlier one that it shares
    the sector with. A truncation may be lost though later writes are not.
    """
    data = bytearray(file.synced)
    count = len(file.pending)
    kept: dict[int, int] = {}
    for number, (position, written) in enumerate(file.pending):
        if not written:
            if rng.random() < 0.5:
                data = bytearray(apply_ops(data, [(position, written)]))
            continue
        end = position + len(written)
        for sector in range(position // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            if sector not in kept:
                kept[sector] = rng.choice((0, count, rng.randint(0, count)))
            if number < kept[sector]:
                start = max(sector * SECTOR_BYTES, position)
                piece = written[start - position : (sector + 1) * SECTOR_BYTES - position]
                data.extend(bytes(max(start - len(data), 0)))
                data[start : start + len(piece)] = piece
    return bytes(data)


class SimulatedFileSystem(FileSystem):
    """See the module. The root directory "/" is always there."""

    def __init__(
        self,
        rng: random.Random,
        *,
        open_files_max: int = OPEN_FILES_MAX,
        root: SimulatedDirectory | None = None,
        first: SimulatedFileSystem | None = None,
    ) -> None:
        """`first`: this is the same disk for another process, with descriptors of its own; faults and space are
        those of `first`."""
        super().__init__(open_files_max=open_files_max)
        self.random = rng
        self.calls: list[tuple[str, str]] = []
        """(call, path) of everything that changes the disk, in order."""
        self.fail_on: Callable[[str, str], OSError | None] = _no_fault
        self.space_bytes: int | None = None
        """Bytes that files may grow by before ENOSPC."""
        self.total_bytes = DISK_BYTES
        self.crash_countdown: int | None = None
        self.cold_chance = 0.0
        self.short_write_chance = 0.0
        self.now_ms = 0
        self._first = first
        if root is None:
            root = SimulatedDirectory() if first is None else first._root
        self._root: SimulatedDirectory = root
        self._descriptors: dict[int, tuple[str, SimulatedFile]] = {}
        self._locks: set[str] = set()
        self._next_fd = 1000

    @property
    def open_count(self) -> int:
        return len(self._descriptors)

    def crash(
        self, content: Content = keep_all, *, keep_names: Callable[[int], int] | None = None
    ) -> SimulatedFileSystem:
        """The disk as the next process finds it. `keep_names`: of n unsynced name changes, how many stay."""
        root = _survivors("", self._root, content, keep_names or (lambda count: count))
        return SimulatedFileSystem(self.random, root=root)

    def restart(self) -> SimulatedFileSystem:
        """The disk after the process alone ended: all is there, and what wasn't synced still isn't."""
        return SimulatedFileSystem(self.random, root=self._root)

    # --- plumbing

    def _find(self, path: str) -> Node:
        node: Node = self._root
        for name in path.strip("/").split("/"):
            if not isinstance(node, SimulatedDirectory) or (name and name not in node.names):
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            node = node.names[name] if name else node
        return node

    def _parent(self, path: str) -> tuple[SimulatedDirectory, str]:
        parent, _, name = path.rpartition("/")
        node = self._find(parent)
        if not isinstance(node, SimulatedDirectory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", parent)
        return node, name

    def _file(self, fd: int) -> tuple[str, SimulatedFile]:
        try:
            return self._descriptors[fd]
        except KeyError:
            raise OSError(errno.EBADF, f"descriptor {fd} is closed") from None

    def _change(self, call: str, path: str) -> None:
        """Everything that changes the disk passes here first."""
        if self._first is not None:
            self._first._change(call, path)
            return
        self.calls.append((call, path))
        if self.crash_countdown is not None:
            self.crash_countdown -= 1
            if self.crash_countdown < 0:
                raise SimulatedCrash(call, path)
        error = self.fail_on(call, path)
        if error is not None:
            raise error

    def _open(self, path: str, file: SimulatedFile) -> int:
        self._next_fd += 1
        self._descriptors[self._next_fd] = (path, file)
        return self._next_fd

    # --- files

    def open(self, path: str) -> int:
        node = self._find(path)
        if not isinstance(node, SimulatedFile):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return self._open(path, node)

    def create(self, path: str) -> int:
        self._change("create", path)
        parent, name = self._parent(path)
        old = parent.names.get(name)
        if isinstance(old, SimulatedFile):
            old.data.clear()
            old.pending.append((0, b""))
            return self._open(path, old)
        file = SimulatedFile()
        file.modified_ms = self.now_ms
        parent.names[name] = file
        parent.pending.append(("link", name, file))
        return self._open(path, file)

    def close(self, fd: int) -> None:
        path, _ = self._file(fd)
        self._locks.discard(path)
        del self._descriptors[fd]

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        path, file = self._file(fd)
        self._change("pwritev", path)
        data = b"".join(buffers)
        if not data:
            return 0
        if self.random.random() < self.short_write_chance:
            end = position + self.random.randint(1, len(data))
            data = data[: max(end - end % SECTOR_BYTES - position, 0)] or data
        growth = max(position + len(data) - len(file.data), 0)
        disk = self._first or self
        if disk.space_bytes is not None:
            if growth > disk.space_bytes:
                data = data[: max(len(data) - (growth - disk.space_bytes), 0)]
                if not data:
                    raise OSError(errno.ENOSPC, "no space left", path)
            disk.space_bytes -= max(position + len(data) - len(file.data), 0)
        file.pending.append((position, data))
        file.data.extend(bytes(max(position - len(file.data), 0)))
        file.data[position : position + len(data)] = data
        file.modified_ms = self.now_ms
        return len(data)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        return bytes(self._file(fd)[1].data[position : position + size])

    def preadv_nowait(self, fd: int, buffer: bytearray, position: int) -> int:
        if self.random.random() < self.cold_chance:
            raise BlockingIOError(errno.EAGAIN, "not in the page cache")
        data = self._file(fd)[1].data[position : position + len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def fdatasync(self, fd: int) -> None:
        path, file = self._file(fd)
        self._change("fdatasync", path)
        file.synced = bytes(file.data)
        file.pending.clear()

    def sync_filesystem(self, fd: int) -> None:
        del fd
        self._change("sync_filesystem", "/")
        waiting: list[Node] = [self._root]
        while waiting:
            node = waiting.pop()
            if isinstance(node, SimulatedFile):
                node.synced = bytes(node.data)
            else:
                node.synced = dict(node.names)
                waiting.extend(node.names.values())
            node.pending.clear()

    def open_directory(self, path: str) -> int:
        self._find(path)
        return self._open(path, SimulatedFile())

    def room(self, path: str) -> tuple[int, int]:
        self._find(path)
        disk = self._first or self
        return disk.total_bytes, disk.total_bytes // 2 if disk.space_bytes is None else disk.space_bytes

    def used_bytes(self) -> int:
        """What all files take."""
        used, waiting = 0, [self._root]
        while waiting:
            for node in waiting.pop().names.values():
                if isinstance(node, SimulatedDirectory):
                    waiting.append(node)
                elif isinstance(node, SimulatedFile):
                    used += len(node.data)
        return used

    def device(self, fd: int) -> int:
        del fd
        return 0

    def ftruncate(self, fd: int, size: int) -> None:
        path, file = self._file(fd)
        self._change("ftruncate", path)
        disk = self._first or self
        if disk.space_bytes is not None:
            disk.space_bytes += max(len(file.data) - size, 0)
        file.pending.append((size, b""))
        del file.data[size:]
        file.data.extend(bytes(size - len(file.data)))

    def size(self, fd: int) -> int:
        return len(self._file(fd)[1].data)

    def path_size(self, path: str) -> int:
        node = self._find(path)
        return len(node.data) if isinstance(node, SimulatedFile) else 0

    def modified_ms(self, path: str) -> int:
        node = self._find(path)
        return node.modified_ms if isinstance(node, SimulatedFile) else 0

    # --- names

    def exists(self, path: str) -> bool:
        try:
            self._find(path)
        except FileNotFoundError:
            return False
        return True

    def is_directory(self, path: str) -> bool:
        return self.exists(path) and isinstance(self._find(path), SimulatedDirectory)

    def list_directory(self, path: str) -> list[str]:
        node = self._find(path)
        if not isinstance(node, SimulatedDirectory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return sorted(node.names)

    def make_directory(self, path: str) -> None:
        self._change("make_directory", path)
        parent, name = self._parent(path)
        if name in parent.names:
            raise FileExistsError(errno.EEXIST, "exists", path)
        directory = SimulatedDirectory()
        parent.names[name] = directory
        parent.pending.append(("link", name, directory))

    def remove_directory(self, path: str) -> None:
        self._change("remove_directory", path)
        self._unlink(path)

    def rename(self, source: str, target: str) -> None:
        self._change("rename", source)
        parent, old = self._parent(source)
        other, new = self._parent(target)
        if parent is not other:
            raise OSError(errno.EXDEV, "only within a directory", source)
        node = self._find(source)
        del parent.names[old]
        parent.names[new] = node
        parent.pending.append(("rename " + old, new, node))

    def unlink(self, path: str) -> None:
        self._change("unlink", path)
        self._unlink(path)

    def _unlink(self, path: str) -> None:
        parent, name = self._parent(path)
        node = self._find(path)
        disk = self._first or self
        if disk.space_bytes is not None and isinstance(node, SimulatedFile):
            disk.space_bytes += len(node.data)
        del parent.names[name]
        parent.pending.append(("unlink", name, None))

    def sync_directory(self, path: str) -> None:
        self._change("sync_directory", path)
        node = self._find(path)
        if isinstance(node, SimulatedDirectory):
            node.synced = dict(node.names)
            node.pending.clear()

    def lock(self, path: str) -> int:
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, "locked", path)
        fd = self.open(path) if self.exists(path) else self.create(path)
        self._locks.add(path)
        return fd

    def is_locked(self, path: str) -> bool:
        self._find(path)
        return path in self._locks


def _no_fault(call: str, path: str) -> OSError | None:
    del call, path
    return None


def _survivors(
    path: str, directory: SimulatedDirectory, content: Content, keep_names: Callable[[int], int]
) -> SimulatedDirectory:
    names = dict(directory.synced)
    for what, name, node in directory.pending[: keep_names(len(directory.pending))]:
        if node is None:
            names.pop(name, None)
            continue
        if what.startswith("rename "):
            names.pop(what.removeprefix("rename "), None)
        names[name] = node
    kept = SimulatedDirectory()
    for name, node in names.items():
        child = f"{path}/{name}"
        if isinstance(node, SimulatedDirectory):
            kept.names[name] = _survivors(child, node, content, keep_names)
        else:
            file = SimulatedFile()
            file.synced = content(child, node)
            file.data = bytearray(file.synced)
            file.modified_ms = node.modified_ms
            kept.names[name] = file
    kept.synced = dict(kept.names)
    return kept
