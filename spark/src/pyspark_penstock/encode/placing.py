"""Which partition a row goes to: the one it names, its key's by Kafka's murmur2, or for null keys each in turn.

As Kafka's producers do: rows without a key stay with one partition until there is a batch of them, and then go on
with the next (KIP-480), so that batches don't become small.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyspark_penstock.encode.arrow import Ints, nulls_of
from pyspark_penstock.encode.murmur2 import murmur2

STICKY_BYTES = 64 * 1024
"""Bytes of rows without a key that go to one partition before the next one is taken."""

Partitions = NDArray[np.int64]


class Placing:
    """Of one topic in one task."""

    def __init__(
        self, partitions: int, *, sticky_bytes: int = STICKY_BYTES, first: int | None = None
    ) -> None:
        """`first` is where rows without a key begin; by chance when None, so that tasks differ."""
        self._count = partitions
        self._sticky_bytes = sticky_bytes
        # It spreads load, and protects nothing.
        self._first = random.randrange(partitions) if first is None else first  # noqa: S311
        self._bytes = 0

    def place(self, keys: Any | None, sizes: Ints, named: Any | None = None) -> Partitions:
        """A partition for each row. `sizes`: its bytes, about. `named`: the column partition, null where none is named.

        What is named is not checked here.
        """
        count = len(sizes)
        if keys is None:
            placed = np.zeros(count, np.int64)
            without = np.ones(count, np.bool_)
        else:
            placed = (murmur2(keys) & np.uint32(0x7FFFFFFF)).astype(np.int64) % self._count
            without = nulls_of(keys) if keys.null_count else np.zeros(count, np.bool_)
        if named is not None:
            known = ~nulls_of(named)
            placed[known] = named.fill_null(0).to_numpy(zero_copy_only=False)[known]
            without &= ~known
        if without.any():
            placed[without] = self._in_turn(sizes[without])
        return placed

    def _in_turn(self, sizes: Ints) -> Partitions:
        after = self._bytes + np.cumsum(sizes)
        self._bytes = int(after[-1])
        turns: Partitions = (self._first + (after - sizes) // self._sticky_bytes) % self._count
        return turns
