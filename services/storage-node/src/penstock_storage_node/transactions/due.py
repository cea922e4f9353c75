"""Markers of decisions that are not written yet, in a shard."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from penstock_storage_node.transactions.effects import TopicPartitionName
from penstock_storage_node.transactions.ids import Id, must
from penstock_storage_node.transactions.records import TransactionValue

Key = tuple[int, int]
"""Producer id and epoch."""


class Due:
    """By producer id and epoch."""

    def __init__(self) -> None:
        self._left: dict[Key, tuple[Id, set[TopicPartitionName]]] = {}
        self._behind: dict[Key, deque[Id]] = {}
        """Others with the same producer id and epoch, as only a damaged log has: one after the other."""

    @property
    def left(self) -> Mapping[Key, frozenset[TopicPartitionName]]:
        """Partitions without their marker."""
        return {key: frozenset(left) for key, (_, left) in self._left.items()}

    def add(self, entry: Id, value: TransactionValue) -> bool:
        """A decision counts; whether its markers are to be sent now."""
        key = value.producer_id, value.producer_epoch
        if key in self._left:
            self._behind.setdefault(key, deque()).append(entry)
            return False
        self._left[key] = (entry, set(value.partitions))
        return True

    def written(self, key: Key, partitions: Iterable[TopicPartitionName]) -> Id | None:
        """Those partitions have their marker; the id that has all of them now."""
        entry, left = self._left[key]
        left.difference_update(partitions)
        if left:
            return None
        del self._left[key]
        return entry

    def next_behind(self, key: Key) -> Id | None:
        """Whose turn it is now."""
        behind = self._behind.pop(key, None)
        if not behind:
            return None
        entry = behind.popleft()
        if behind:
            self._behind[key] = behind
        return entry

    def __contains__(self, key: Key) -> bool:
        return key in self._left

    def has(self, entry: Id, value: TransactionValue) -> bool:
        """Whether an id's decision is among these, or waits for its turn."""
        key = value.producer_id, value.producer_epoch
        first, _ = self._left.get(key, (None, None))
        return first is entry or entry in self._behind.get(key, ())

    def forget_all(self) -> None:
        """Leadership is lost."""
        self._left, self._behind = {}, {}

    def validate(self) -> None:
        """As `Shard.validate`."""
        for entry, left in self._left.values():
            must(left and entry.current, entry.name, "markers are due", left)
            must(entry.pending is None, entry.name, "nothing ends before its markers are written", left)
