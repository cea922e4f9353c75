"""Finds where a log was cut, by the leader epochs that its batches carry.

A position in a checkpoint says under which leader epoch it was told: everything below it was written in that epoch or
an earlier one. When the partition has a later one, and a batch below the position was written in it, then the log was
cut where the first such batch begins: what stood from there to the position is gone, and what stands there now is new.

A gateway tells that place (`questions.epoch_ends`). One of an older build does not: epochs never fall along a log, so
it is found by halving, as here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class BatchHead(NamedTuple):
    """Where a stored batch begins and ends, and the leader epoch that it was written in."""

    base_offset: int
    next_offset: int
    epoch: int


FirstBatch = Callable[[int, int], BatchHead | None]
"""The first batch that holds an offset in [start, end), or None: compaction leaves gaps."""


def find_cut(first_batch: FirstBatch, log_start: int, log_end: int, position: int, epoch: int) -> int | None:
    """First offset below `position` that was written after `epoch`; None when there is none."""
    high = min(log_end, position)
    if log_start >= high:
        return None
    last = first_batch(high - 1, high)
    if last is not None and last.epoch <= epoch:
        return None
    low, cut = log_start, None
    while low < high:
        middle = (low + high) // 2
        head = first_batch(middle, high)
        if head is None:
            high = middle
        elif head.epoch > epoch:
            cut = head.base_offset
            high = min(middle, cut)
        else:
            low = head.next_offset
    return cut if cut is not None and cut < position else None
