"""What a disk would hold after a power cut: files and names, with what was synced of them. Pure.

Rules, stricter than any one file system:
  * of a file: its content at the last sync, and of the writes and truncations since then
    whatever the dice want: all, none, a first part torn at a sector, any set of sectors
    (holes are zeros), or the full length with zeros from some sector on;
  * of a directory: its names at the last sync of that directory, and some first part of the
    creates, renames and unlinks since. Syncing a file does not make its name durable. A
    rename happens in both directories or in neither;
  * a sync covers what was done before it began.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

SECTOR_BYTES = 512

Write = tuple[int, int, bytes | None]
"""(time, position, bytes); a truncation is (time, size, None)."""


@dataclass(eq=False)
class File:
    """Content at the last sync and what came since."""

    synced: bytearray = field(default_factory=bytearray)
    pending: list[Write] = field(default_factory=list)

    def settle(self, until: int) -> None:
        """Changes up to that time are on the disk."""
        done = 0
        for time, position, data in self.pending:
            if time > until:
                break
            apply(self.synced, position, data)
            done += 1
        del self.pending[:done]

    def now(self) -> bytes:
        """What a reader sees: everything."""
        content = bytearray(self.synced)
        for _, position, data in self.pending:
            apply(content, position, data)
        return bytes(content)


@dataclass(eq=False)
class NameChange:
    """One atomic change of names: (directory, name, node or None) each."""

    time: int
    parts: list[tuple[Directory, str, Node | None]]


@dataclass(eq=False)
class Directory:
    """Names now, names at the last sync, and what came since."""

    names: dict[str, Node] = field(default_factory=dict)
    synced: dict[str, Node] = field(default_factory=dict)
    pending: list[NameChange] = field(default_factory=list)

    def settle(self, until: int) -> None:
        """Changes up to that time are on the disk, and with a rename what came before it elsewhere."""
        while self.pending and self.pending[0].time <= until:
            change = self.pending[0]
            for other in {part[0] for part in change.parts}:
                if change in other.pending:
                    first = other.pending.index(change)
                    if first:
                        other.settle(other.pending[first - 1].time)
            for directory, name, node in change.parts:
                if change in directory.pending:
                    directory.pending.remove(change)
                if node is None:
                    directory.synced.pop(name, None)
                else:
                    directory.synced[name] = node


Node = File | Directory


def apply(content: bytearray, position: int, data: bytes | None) -> None:
    """One write, or a truncation."""
    if data is None:
        del content[position:]
        content.extend(bytes(position - len(content)))
        return
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def change(time: int, *parts: tuple[Directory, str, Node | None]) -> None:
    """Change names, all at once."""
    made = NameChange(time, list(parts))
    for directory, name, node in parts:
        if node is None:
            directory.names.pop(name, None)
        else:
            directory.names[name] = node
    for directory in {part[0] for part in parts}:
        directory.pending.append(made)


def walk(directory: Directory, path: str = "") -> Iterator[tuple[str, Node]]:
    """Everything reachable now, directories before what is in them."""
    for name, node in directory.names.items():
        below = f"{path}/{name}" if path else name
        yield below, node
        if isinstance(node, Directory):
            yield from walk(node, below)


FATES = ("all", "none", "cut", "sectors", "zeros")


def survivor(file: File, dice: random.Random, fate: str) -> bytes:
    """Content of a file after the cut."""
    if fate == "all":
        return file.now()
    content = bytearray(file.synced)
    if fate == "cut":
        kept = dice.randrange(len(file.pending))
        for _, position, data in file.pending[:kept]:
            apply(content, position, data)
        _, position, data = file.pending[kept]
        if data is not None:
            end = torn_at(position, len(data), dice)
            apply(content, position, data[: end - position])
    elif fate == "sectors":
        for _, position, data in file.pending:
            if data is None:
                if dice.random() < 0.5:
                    apply(content, position, None)
                continue
            for start, end in sectors(position, len(data)):
                if dice.random() < 0.5:
                    apply(content, start, data[start - position : end - position])
    elif fate == "zeros":
        whole = file.now()
        first = min((position for _, position, _ in file.pending), default=0)
        keep = torn_at(first, max(len(whole) - first, 0), dice)
        content = bytearray(whole[:keep]) + bytes(max(len(whole) - keep, 0))
    return bytes(content)


def sectors(position: int, size: int) -> Iterator[tuple[int, int]]:
    """[start, end) of each sector that a write touches."""
    at = position
    while at < position + size:
        end = min((at // SECTOR_BYTES + 1) * SECTOR_BYTES, position + size)
        yield at, end
        at = end


def torn_at(position: int, size: int, dice: random.Random) -> int:
    """Where a write of that many bytes may have ended: nowhere, at a sector's end, or whole."""
    ends = [position, *(end for _, end in sectors(position, size))]
    return dice.choice(ends)


def cut(top: Directory, dice: random.Random, fate: str | None = None) -> int:
    """Lose power: afterwards all of `top` is durable as it then is. Returns files and names that lost something.

    `fate` None: another one for each file; "none": nothing unsynced survives; "all": a mere kill.
    """
    lost = 0
    for directory in [top, *(node for _, node in walk(top) if isinstance(node, Directory))]:
        if directory.pending:
            kept = {"all": len(directory.pending), "none": 0}.get(
                fate or "", dice.randint(0, len(directory.pending))
            )
            lost += len(directory.pending) - kept
            if kept:
                directory.settle(directory.pending[kept - 1].time)
    _forget_names(top)
    for _, node in walk(top):
        if isinstance(node, File) and node.pending:
            before = node.now()
            after = survivor(node, dice, fate or dice.choice(FATES))
            lost += before != after
            node.synced, node.pending = bytearray(after), []
    return lost


def _forget_names(directory: Directory) -> None:
    directory.pending = []
    directory.names = dict(directory.synced)
    for node in directory.names.values():
        if isinstance(node, Directory):
            _forget_names(node)
