"""Power cuts for real processes: power_cut.c records, this undoes what was not synced.

Use: `with PowerCut(directory, scratch) as power: cluster.up(...)`; kill every process;
`power.cut(dice)`; start them again. Everything under `<directory>/<member>/data` then is
what a disk may hold after losing power: data, names, controllers' journals, snapshots and
checkpoints alike. Processes must be started inside the `with`.

Theory: the page cache survives SIGKILL, so a kill alone tests no fsync. The shim sits
between every library of the process and the kernel and needs neither root nor a mount;
and as the model replays the very calls, a call that it overlooked shows up as lost data
(or as a difference between model and disk, which `differences` counts).
"""

from __future__ import annotations

import heapq
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crash.disk_model import Directory, File, Node, change, cut, walk

SOURCE = Path(__file__).with_name("power_cut.c")
COMPILER_FLAGS = ("-shared", "-fPIC", "-O2")
LINKED = ("-ldl", "-lpthread")
VARIABLES = ("LD_PRELOAD", "POWER_CUT_ROOT", "POWER_CUT_JOURNAL")
_HEAD = struct.Struct("<IIQqiII")
_MAGIC = 0x0FF0C0DE
OPEN, CLOSE, WRITE, TRUNCATE, SYNC, SYNC_ALL, RENAME, UNLINK, MKDIR, RMDIR = range(1, 11)

Record = tuple[int, int, int, int, int, bytes, bytes]
"""(time, process, op, number, fd, first, second)."""


@dataclass
class _OpenFile:
    node: Node
    member: str
    is_synchronous: bool


class PowerCut:
    """Environment of the processes, and the model of their disks."""

    def __init__(self, directory: Path, scratch: Path) -> None:
        self.directory = directory.resolve()
        self.journals = scratch / "power-cut-journals"
        self.journals.mkdir(parents=True)
        self.recorder = scratch / "power_cut.so"
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            raise RuntimeError("power cuts need a C compiler: install gcc")
        subprocess.run(
            [compiler, *COMPILER_FLAGS, "-o", self.recorder, SOURCE, *LINKED],
            check=True,
        )
        self.disks: dict[str, Directory] = {}
        self.sync_count = 0
        self.write_count = 0
        self._open: dict[tuple[int, int], _OpenFile] = {}
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> PowerCut:
        values = (self.recorder, self.directory, self.journals)
        for name, value in zip(VARIABLES, values, strict=True):
            self._before[name] = os.environ.get(name)
            os.environ[name] = str(value)
        return self

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    # --- after the kill -------------------------------------------------------------------

    def cut(self, dice: random.Random, fate: str | None = None) -> int:
        """Every process is dead: leave on the disk what a power cut would. Returns the losses, files and names.

        `fate`: see `disk_model.cut`.
        """
        self.absorb()
        before = {member: dict(walk(disk)) for member, disk in self.disks.items()}
        lost = 0
        for member, disk in self.disks.items():
            unsettled = {
                path for path, node in before[member].items() if isinstance(node, File) and node.pending
            }
            lost += cut(disk, dice, fate)
            write_tree(self._place(member), before[member], dict(walk(disk)), unsettled)
        return lost

    def absorb(self) -> None:
        """Take in the journals of processes that have ended."""
        for record in self.take_records():
            self.apply(record)
        self._open.clear()

    def take_records(self) -> list[Record]:
        """What the processes that have ended did, in order; told once."""
        files = sorted(self.journals.glob("*.ops"))
        streams = [_records(path.read_bytes(), number) for number, path in enumerate(files)]
        records = list(heapq.merge(*streams))
        for path in files:
            path.unlink()
        return records

    def differences(self) -> list[str]:
        """Paths where disk and model (with nothing dropped) are not the same; a change in flight at a kill may be."""
        found = []
        for member, disk in self.disks.items():
            place = self._place(member)
            expected = dict(walk(disk))
            there = {str(path.relative_to(place)) for path in place.rglob("*")}
            found += [f"{member}/{path}" for path in there ^ set(expected)]
            for path, node in expected.items():
                if isinstance(node, File) and path in there and (place / path).read_bytes() != node.now():
                    found.append(f"{member}/{path}")
        return sorted(found)

    # --- inside -----------------------------------------------------------------------------

    def _place(self, member: str) -> Path:
        return self.directory / member / "data"

    def apply(self, record: Record) -> None:
        """Do to the model what a process did to its disk."""
        time, process, op, number, fd, first, second = record
        if op == OPEN:
            self._opened(time, process, fd, number, first.decode())
        elif op == CLOSE:
            self._open.pop((process, fd), None)
        elif op in (WRITE, TRUNCATE):
            held = self._open.get((process, fd))
            if held is None or not isinstance(held.node, File):
                return
            self.write_count += 1
            held.node.pending.append((time, number, first if op == WRITE else None))
            if held.is_synchronous:
                held.node.settle(time)
        elif op in (SYNC, SYNC_ALL):
            self.sync_count += 1
            held = self._open.get((process, fd))
            if held is not None and op == SYNC:
                held.node.settle(number)
            elif held is not None:
                disk = self.disks[held.member]
                for node in [disk, *(node for _, node in walk(disk))]:
                    node.settle(number)
        elif op == RENAME:
            self._renamed(time, first.decode(), second.decode())
        else:
            directory, name, _ = self._find(first.decode())
            if name and op == MKDIR:
                change(time, (directory, name, Directory()))
            elif name:
                change(time, (directory, name, None))

    def _opened(self, time: int, process: int, fd: int, flags: int, path: str) -> None:
        directory, name, member = self._find(path)
        node: Node | None = directory.names.get(name) if name else directory
        if node is None:
            node = File()
            change(time, (directory, name, node))
        elif isinstance(node, File) and flags & os.O_TRUNC:
            node.pending.append((time, 0, None))
        synchronous = bool(flags & (os.O_DSYNC | os.O_SYNC))
        self._open[process, fd] = _OpenFile(node, member, synchronous)

    def _renamed(self, time: int, source: str, target: str) -> None:
        from_directory, from_name, _ = self._find(source)
        to_directory, to_name, _ = self._find(target)
        node = from_directory.names[from_name]
        change(time, (from_directory, from_name, None), (to_directory, to_name, node))

    def _find(self, path: str) -> tuple[Directory, str, str]:
        """(directory, name in it, member); the name is "" for a disk's top."""
        member, _, *parts = Path(path).relative_to(self.directory).parts
        directory = self.disks.setdefault(member, Directory())
        for part in parts[:-1]:
            node = directory.names[part]
            if not isinstance(node, Directory):
                raise NotADirectoryError(path)
            directory = node
        return directory, parts[-1] if parts else "", member


def write_tree(place: Path, before: dict[str, Node], after: dict[str, Node], unsettled: set[str]) -> None:
    """Make the files under `place`, which are those of `before`, those of `after`."""
    for path, node in after.items():
        target = place / path
        if isinstance(node, Directory):
            if target.is_file():
                target.unlink()
            target.mkdir(exist_ok=True)
        elif before.get(path) is not node or path in unsettled or not target.is_file():
            if target.is_dir():
                shutil.rmtree(target)
            target.write_bytes(node.synced)
    for found in sorted(place.rglob("*"), key=lambda p: -len(p.parts)):
        if str(found.relative_to(place)) not in after:
            if found.is_dir():
                shutil.rmtree(found)
            else:
                found.unlink(missing_ok=True)


def _records(data: bytes, process: int) -> Iterator[Record]:
    """Whole records of one journal; the last may have been cut by the kill."""
    at = 0
    while at + _HEAD.size <= len(data):
        magic, op, time, number, fd, first_bytes, second_bytes = _HEAD.unpack_from(data, at)
        if magic != _MAGIC:
            raise ValueError(f"no record at byte {at} of a power-cut journal")
        start = at + _HEAD.size
        end = start + first_bytes + second_bytes
        if end > len(data):
            return
        yield (
            time,
            process,
            op,
            number,
            fd,
            data[start : start + first_bytes],
            data[start + first_bytes : end],
        )
        at = end
