"""Which leader epoch starts at which offset (KIP-101, KIP-279).

Source of the rules: org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache.

Unlike Kafka, `assign` does not write the file at once: the next write job does, before
its data are flushed. That is enough, because an epoch that has data stands in its
batches, which recovery scans from the recovery point on, and one without data decides
nothing. So a node that becomes leader of thousands of partitions at once flushes no file.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

NO_EPOCH = -1
NO_OFFSET = -1


class LeaderEpochs:
    """Entries (epoch, start offset), both strictly rising."""

    __slots__ = ("_epochs", "_starts", "is_dirty")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in entries or ():
            self.assign(epoch, start)
        self.is_dirty = False

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int:
        """Newest epoch, -1 when none is known."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` begins at `start_offset`; an epoch once assigned stays where it is."""
        if self._epochs and self._epochs[-1] == epoch and self._starts[-1] <= start_offset:
            return
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.is_dirty = True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Largest known epoch <= `epoch` and where it ends; (-1, -1) when that can't be said."""
        if epoch == NO_EPOCH or not self._epochs:
            return NO_EPOCH, NO_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        after = bisect_right(self._epochs, epoch)
        if after == len(self._epochs):
            return NO_EPOCH, NO_OFFSET
        if after == 0:  # older than anything kept: the follower starts where our log does
            return epoch, self._starts[0]
        return self._epochs[after - 1], self._starts[after]

    def starts_between(self, from_offset: int, to_offset: int) -> tuple[tuple[int, int], ...]:
        """Entries whose start lies in from_offset <= start < to_offset."""
        if not self._starts or self._starts[-1] < from_offset:
            return ()
        first, end = bisect_left(self._starts, from_offset), bisect_left(self._starts, to_offset)
        return tuple(zip(self._epochs[first:end], self._starts[first:end], strict=True))

    def assign_batch(
        self, epoch: int, base_offset: int, gap_from: int, known: Iterable[tuple[int, int]]
    ) -> None:
        """Note a batch that is appended at `base_offset`, where the batch before it ends at `gap_from`.

        Between the two compaction may have taken the first batches of this epoch, and all of others: what is
        `known` of where they begin counts before what the batch says.
        """
        for other, start in known:
            if self.latest < other <= epoch and gap_from <= start <= base_offset:
                self.assign(other, start)
        self.assign(epoch, base_offset)

    def epoch_at(self, offset: int) -> int:
        """Epoch of the record at `offset`, -1 when unknown."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop epochs that start at or after `end_offset`."""
        keep = bisect_left(self._starts, end_offset)
        if keep < len(self._starts):
            del self._epochs[keep:]
            del self._starts[keep:]
            self.is_dirty = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop epochs that end at or before `start_offset`; the one that holds it now starts there."""
        index = bisect_right(self._starts, start_offset) - 1
        if index < 0 or (index == 0 and self._starts[0] == start_offset):
            return
        del self._epochs[:index]
        del self._starts[:index]
        self._starts[0] = start_offset
        self.is_dirty = True

    def clear(self) -> None:
        self._epochs.clear()
        self._starts.clear()
        self.is_dirty = True
