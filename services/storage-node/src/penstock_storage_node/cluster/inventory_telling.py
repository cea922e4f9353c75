"""Telling the controller which logs the metadata do not account for: all of them at once, in parts, and again when
something of it changed. A plain state machine.

What a broken session left without an answer may not have been heard: a new session begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_proto.v1.operations_pb2 import UnknownReplica

PART_MAX = 2_000
"""Logs in one report."""


@dataclass(frozen=True, slots=True)
class InventoryPart:
    """What one report tells."""

    replicas: Sequence[UnknownReplica]
    version: int
    is_first: bool
    is_last: bool


class InventoryTelling:
    """Of one node, over all its sessions."""

    def __init__(self, part_max: int = PART_MAX) -> None:
        self._part_max = part_max
        self._newest: tuple[int, list[UnknownReplica]] | None = None
        self._told: list[UnknownReplica] | None = None
        """What the controller of this session was told, to the end."""
        self._told_version = -1
        self._under_way: tuple[int, list[UnknownReplica]] | None = None
        self._at = 0

    def begin(self) -> None:
        """A new session."""
        self._told, self._under_way, self._told_version = None, None, -1

    def looked(self, version: int, replicas: list[UnknownReplica], restored_version: int) -> None:
        """This is there now, by metadata of this version; and when those were restored, 0 for never."""
        self._newest = (version, replicas)
        if self._told_version < restored_version <= version:
            # Those who choose leaders wait for what is seen by the restored metadata, be it the same.
            self._told = None

    def is_wanted(self, restored_version: int) -> bool:
        """Whether a leader may be chosen by what is told next."""
        return self._told_version < restored_version or bool(restored_version and self._told)

    @property
    def has_more(self) -> bool:
        """Whether a part waits to be told."""
        return self._under_way is not None or (self._newest is not None and self._newest[1] != self._told)

    def next_part(self) -> InventoryPart | None:
        """What to tell now, None for nothing."""
        if self._under_way is None:
            if not self.has_more:
                return None
            self._under_way, self._at = self._newest, 0
        assert self._under_way is not None
        version, replicas = self._under_way
        at, end = self._at, self._at + self._part_max
        self._at = end
        is_last = end >= len(replicas)
        if is_last:
            self._told, self._told_version, self._under_way = replicas, version, None
        return InventoryPart(replicas[at:end], version, at == 0, is_last)


__all__ = ["InventoryPart", "InventoryTelling"]
