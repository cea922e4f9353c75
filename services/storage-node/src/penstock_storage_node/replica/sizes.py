"""What this node's replicas take on its disk, looked at where something has changed.

A node may have 100,000 replicas: nobody walks them to know their sizes. Who changes a log says so (`note`), and the
next look measures those logs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Protocol

from penstock_core.ids import TopicPartition


class MeasuredLog(Protocol):
    """What is looked at of a log."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def staged_bytes(self) -> int: ...


class ReplicaSizes:
    """One per node. Lives on the event loop."""

    def __init__(self, log_of: Callable[[TopicPartition], MeasuredLog | None]) -> None:
        """`log_of` gives a replica's log, None when the node is no replica any more."""
        self._log_of = log_of
        self._changed: dict[TopicPartition, None] = {}
        self._sizes: dict[TopicPartition, int] = {}
        self.total_bytes = 0
        """Of all replicas, as of the last look."""

    @property
    def sizes(self) -> Mapping[TopicPartition, int]:
        """Bytes of every replica's segments on disk, as of the last look."""
        return self._sizes

    def note(self, key: TopicPartition) -> None:
        """The replica is new or gone, or its files have changed."""
        self._changed[key] = None

    def look(self, changed: Callable[[TopicPartition], None]) -> Generator[None, None, None]:
        """Measure what was noted before now, a replica a step; `changed(replica)` where the size is another one."""
        noted, self._changed = self._changed, {}
        for key in noted:
            log = self._log_of(key)
            if log is None:
                size, before = 0, self._sizes.pop(key, 0)
            else:
                size, before = max(log.size_bytes - log.staged_bytes, 0), self._sizes.get(key, 0)
                self._sizes[key] = size
            if size != before:
                self.total_bytes += size - before
                changed(key)
            yield


__all__ = ["MeasuredLog", "ReplicaSizes"]
