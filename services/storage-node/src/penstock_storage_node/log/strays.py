"""Logs that were set aside: what their directories are called, and when one may be removed.

A stray's name says when it was set aside, because nothing else does: a modification time changes
with a copy, and a file in the directory would need space that a full disk doesn't have.

  <topic>-<partition>.<ms since 1970>.<32 hex digits>-stray     ours
  <topic>-<partition>.<32 hex digits>-stray                     of earlier versions, and of Kafka

The latter get the time at which they were first seen. So do those whose time hasn't 13 digits: a clock that
stood before September 2001 was not set. Whatever else ends in -stray is somebody's
own directory, and not looked at.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock_core.errors import PenstockError
from penstock_core.ids import TopicId
from penstock_storage_node.log import checkpoints
from penstock_storage_node.log.fs import FileSystem, read_file

FILE_NAME_BYTES_MAX = 255
CLOCK_MS_MIN = 10**12
"""The first time of 13 digits."""

_STRAY = re.compile(r"(.+?)(?:\.(\d{13}))?\.[0-9a-f]{32}-stray\Z")


def away_name(
    name: str, suffix: str, *, stamp_ms: int | None = None, new_uuid: Callable[[], uuid.UUID] = uuid.uuid4
) -> str:
    """What a directory is renamed to that shall be in nobody's way; long names are cut to fit."""
    stamp = "" if stamp_ms is None else f".{stamp_ms}"
    ending = f"{stamp}.{new_uuid().hex}-{suffix}"
    return f"{name[: FILE_NAME_BYTES_MAX - len(ending)]}{ending}"


@dataclass(frozen=True, slots=True)
class Stray:
    """A directory that was set aside."""

    name: str
    of: str
    """The name it had, as far as it is known."""
    set_aside_ms: int | None
    """None when its name doesn't say."""


def parse(name: str) -> Stray | None:
    """What a name in the data directory says; None when it is no stray's."""
    match = _STRAY.match(name)
    if match is None:
        return None
    return Stray(name, match[1], None if match[2] is None else int(match[2]))


@dataclass(frozen=True, slots=True)
class StrayIdentity:
    """Which partition a stray is a log of. Its topic's name of today, if there is one, the metadata say."""

    topic_id: TopicId
    partition: int


def identify(fs: FileSystem, root: str, stray: Stray) -> StrayIdentity | None:
    """(pool) As its own files and its name say it; None where they don't, say of a name that had to be cut."""
    number = stray.of.rpartition("-")[2]
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        return None
    try:
        data = read_file(fs, f"{root}/{stray.name}/{checkpoints.PARTITION_METADATA_FILE}")
        return StrayIdentity(TopicId(checkpoints.decode_partition_metadata(data)), int(number))
    except (OSError, PenstockError):
        return None


def overdue(strays: Iterable[Stray], now_ms: int, retention_ms: int, removals_max: int) -> list[Stray]:
    """Those to remove now, the oldest first. A retention below 0 keeps all.

    One of unknown age, or set aside in the future (the clock was or is wrong), is never among them.
    """
    if retention_ms < 0:
        return []
    aged = [(s.set_aside_ms, s) for s in strays if s.set_aside_ms is not None]
    found = sorted((at, s.name, s) for at, s in aged if at <= now_ms and now_ms - at >= retention_ms)
    return [stray for _, _, stray in found[:removals_max]]


def size_bytes(fs: FileSystem, path: str) -> int:
    """(pool) What the files of a stray take; 0 when it is gone, or may not be looked into. Raises OSError."""
    try:
        return sum(fs.path_size(f"{path}/{name}") for name in fs.list_directory(path))
    except (FileNotFoundError, PermissionError):
        return 0


def find(
    fs: FileSystem, root: str, now_ms: int, new_uuid: Callable[[], uuid.UUID] = uuid.uuid4
) -> list[Stray]:
    """(pool) All strays in a data directory; those without a time are given this one. Raises OSError."""
    found: list[Stray] = []
    for name in fs.list_directory(root):
        stray = parse(name)
        if stray is None or not fs.is_directory(f"{root}/{name}"):
            continue
        if stray.set_aside_ms is None and now_ms >= CLOCK_MS_MIN:
            target = away_name(stray.of, "stray", stamp_ms=now_ms, new_uuid=new_uuid)
            fs.rename(f"{root}/{name}", f"{root}/{target}")
            fs.sync_directory(root)
            stray = Stray(target, stray.of, now_ms)
        found.append(stray)
    return found
