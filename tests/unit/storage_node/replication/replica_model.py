"""A model of a log for tests of the replication state machines: one record per batch.

What it leaves out (files, jobs, checks) is what `PartitionLog`'s own tests cover; what it
keeps is what replication decides by: ends, epochs, truncation, and losing what was not flushed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_ENTRY = struct.Struct(">iI")
ENTRY_BYTES = _ENTRY.size


class ModelLog:
    """Entries are (leader epoch, value); offsets are list indexes."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []
        self.epochs: list[tuple[int, int]] = []  # (epoch, start offset)
        self.log_start_offset = 0
        self.written_offset = 0
        self.flushed_offset = 0
        self.tombstones_gone_below = 0
        self.clean_until = 0

    @property
    def first_segment_offset(self) -> int:
        return self.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return len(self.entries)

    @property
    def latest_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else -1

    def start_epoch(self, epoch: int) -> None:
        """As LeaderEpochFileCache.assign: an epoch that this node led without writing
        anything gives way to an older one that another leader did write here."""
        if self.epochs and self.epochs[-1][0] == epoch:
            return
        end = self.log_end_offset
        while self.epochs and (self.epochs[-1][0] >= epoch or self.epochs[-1][1] >= end):
            self.epochs.pop()
        self.epochs.append((epoch, end))

    def append(self, epoch: int, value: int) -> tuple[int, int, list[bytes | bytearray | memoryview], int]:
        """As leader; what to push: (base, end, buffers, bytes)."""
        base = self.log_end_offset
        self.entries.append((epoch, value))
        return base, base + 1, [_ENTRY.pack(epoch, value)], ENTRY_BYTES

    def read(self, offset: int, max_bytes: int) -> tuple[int, int, list[bytes | bytearray | memoryview], int]:
        count = max(1, max_bytes // ENTRY_BYTES)
        found = self.entries[offset : offset + count]
        return offset, offset + len(found), [_ENTRY.pack(*e) for e in found], len(found) * ENTRY_BYTES

    def append_as_follower(
        self,
        records: bytes | memoryview,
        leader_epoch: int,
        *,
        base_offset: int | None = None,
        epoch_starts: Sequence[tuple[int, int]] = (),
    ) -> int:
        for position in range(0, len(records), ENTRY_BYTES):
            epoch, value = _ENTRY.unpack_from(records, position)
            if epoch > leader_epoch:
                break
            self.start_epoch(epoch)
            self.entries.append((epoch, value))
        return self.log_end_offset - 1

    def epoch_starts_between(self, from_offset: int, to_offset: int) -> tuple[tuple[int, int], ...]:
        return tuple(entry for entry in self.epochs if from_offset <= entry[1] < to_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        if not self.epochs or epoch > self.epochs[-1][0]:
            return -1, -1
        found = (epoch, self.epochs[0][1])  # older than anything kept
        for index, (known, _) in enumerate(self.epochs):
            if known <= epoch:
                last = index == len(self.epochs) - 1
                found = (known, self.log_end_offset if last else self.epochs[index + 1][1])
        return found

    def raise_log_start(self, offset: int) -> None:
        self.log_start_offset = max(self.log_start_offset, offset)

    def truncate_to(self, offset: int) -> None:
        del self.entries[offset:]
        self.epochs = [(e, start) for e, start in self.epochs if start < offset]
        self.written_offset = min(self.written_offset, offset)
        self.flushed_offset = min(self.flushed_offset, offset)

    def write(self, *, flush: bool = True) -> None:
        self.written_offset = self.log_end_offset
        if flush:
            self.flushed_offset = self.log_end_offset

    def crash(self) -> None:
        """Power goes: what was not flushed is gone."""
        self.truncate_to(self.flushed_offset)
