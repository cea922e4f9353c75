"""The slots of a directory that several processes share: which there are, whose they are, and which nobody opened.

Each `slot-N/` is a data directory. It is one of three things:

  live      a node has registered with it: `meta.properties` has its id
  retired   that node was removed (`retired` says by which operation); the directory never holds a role again, but
            a process that starts may empty it and begin anew in it
  new       neither

A process that starts takes the lowest live slot that no other holds, and only without one a new or retired one. A
spare, whose own slot was retired while it ran, takes live ones alone. So it does not matter which of several
processes are stopped when there are to be fewer: spares take over the live slots among theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock_storage_node.log import checkpoints
from penstock_storage_node.log.fs import FileSystem, read_file

SLOTS_MAX = 1000
"""Slots that a process tries."""

_SLOT = re.compile(r"slot-(0|[1-9][0-9]{0,3})\Z")


def name_of(number: int) -> str:
    """Of slot `number`'s directory."""
    return f"slot-{number}"


def found(fs: FileSystem, root: str) -> list[tuple[int, str]]:
    """(number, name) of the slots that are there, by number. Raises OSError, but not where nothing is there yet."""
    try:
        names = fs.list_directory(root)
    except FileNotFoundError:
        return []
    matches = [match for name in names if (match := _SLOT.match(name)) is not None]
    return sorted((int(match[1]), match[0]) for match in matches if int(match[1]) < SLOTS_MAX)


def retired_by(fs: FileSystem, path: str) -> int:
    """The operation that retired a directory, 0 when none did; -1 where the mark does not say which."""
    try:
        values = checkpoints.decode_properties(read_file(fs, f"{path}/{checkpoints.RETIRED_FILE}"))
        return int(values["operation"]) or -1
    except FileNotFoundError:
        return 0
    except (KeyError, ValueError):
        return -1  # the mark itself is what counts


def is_live(fs: FileSystem, path: str) -> bool:
    """Whether a node has registered with a directory and was not removed, as far as its files can be read."""
    try:
        values = checkpoints.decode_properties(read_file(fs, f"{path}/{checkpoints.META_PROPERTIES_FILE}"))
        return int(values.get("node.id", "-1")) > 0 and not retired_by(fs, path)
    except (OSError, ValueError):
        return False


def unclaimed(fs: FileSystem, root: str) -> list[str]:
    """(pool) Names of live slots that no process holds at this moment, by number. Raises OSError."""
    return [
        name for _, name in found(fs, root) if is_live(fs, f"{root}/{name}") and not _is_held(fs, root, name)
    ]


def _is_held(fs: FileSystem, root: str, name: str) -> bool:
    try:
        return fs.is_locked(f"{root}/{name}/{checkpoints.LOCK_FILE}")
    except FileNotFoundError:
        return False


class UnclaimedSlots:
    """Tells slots that stay unclaimed from those whose process is just being started again."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        """Those that two looks in a row found so."""
        self._before: frozenset[str] = frozenset()

    def note(self, names: Iterable[str]) -> bool:
        """What a look has found. True: `names` changed."""
        seen = list(names)
        steady = tuple(name for name in seen if name in self._before)
        self._before = frozenset(seen)
        changed, self.names = steady != self.names, steady
        return changed
