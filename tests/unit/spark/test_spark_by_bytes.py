"""Plans by bytes: even parts, capped micro-batches, and what holds when nobody knows sizes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from pyspark_penstock.by_bytes import capped, tile_by_bytes
from pyspark_penstock.questions import Sized
from pyspark_penstock.tiling import OffsetRange


class Logs:
    """Batches (first offset, end, bytes) by partition, and the call that tells of them."""

    def __init__(self, *logs: list[tuple[int, int, int]]) -> None:
        self.logs = logs
        self.calls = 0

    def size(self, part: OffsetRange) -> int:
        batches = self.logs[part.partition]
        return sum(size for first, end, size in batches if first < part.end and end > part.start)

    def ask(self, ranges: Sequence[OffsetRange], cut_bytes: int, cuts_max: int) -> list[Sized]:
        self.calls += 1
        return [self._one(item, cut_bytes, cuts_max) for item in ranges]

    def _one(self, item: OffsetRange, cut_bytes: int, cuts_max: int) -> Sized:
        if not cut_bytes:
            return Sized(self.size(item))
        inside = [b for b in self.logs[item.partition] if b[0] < item.end and b[1] > item.start]
        while True:
            cuts, taken = [], 0
            for (_, end, size), (_, _, following) in pairwise(inside):
                taken += size
                if taken + following > cut_bytes:
                    cuts.append(end)
                    taken = 0
            if len(cuts) <= cuts_max:
                return Sized(self.size(item), tuple(cuts))
            cut_bytes *= 2

    def whole(self) -> list[OffsetRange]:
        return [OffsetRange("t", index, 0, log[-1][1]) for index, log in enumerate(self.logs)]


def skewed(count: int = 5_000) -> list[tuple[int, int, int]]:
    """Half of the records 10 B, half 10 KiB, in batches of at most 20,000 bytes or so."""
    batches = [(at, at + 500, 500 * 20) for at in range(0, count, 500)]
    return batches + [(at, at + 1, 10_300) for at in range(count, 2 * count)]


def test_splits_are_even_in_bytes_and_exact() -> None:
    logs = Logs(skewed())
    tiles = tile_by_bytes(logs.ask, logs.whole(), 8, None, None)
    assert tiles is not None
    assert len(tiles) == 8
    assert [tiles[0].start, *(tile.end for tile in tiles)] == [*(tile.start for tile in tiles), 10_000]
    even = logs.size(logs.whole()[0]) / 8
    assert all(abs(logs.size(tile) - even) <= 10_300 + 64 * 1024 for tile in tiles)
    assert logs.calls < 20


def test_no_part_is_above_the_bytes_that_it_may_have() -> None:
    logs = Logs(skewed(1_000), skewed(300))
    tiles = tile_by_bytes(logs.ask, logs.whole(), None, None, 500_000)
    assert tiles is not None
    assert all(logs.size(tile) <= 500_000 + 10_300 for tile in tiles)
    for part in (0, 1):
        own = [tile for tile in tiles if tile.partition == part]
        assert all(low.end == high.start for low, high in pairwise(own))


@pytest.mark.parametrize("seed", range(20))
def test_micro_batches_stay_within_their_bytes_and_come_to_the_end(seed: int) -> None:
    chance = random.Random(seed)
    logs = []
    for _ in range(chance.randint(1, 4)):
        at, log = 0, []
        for _ in range(chance.randint(1, 300)):
            count = chance.randint(1, 40)
            log.append((at, at + count, chance.choice([70, 3_000, 30_000])))
            at += count
        logs.append(log)
    known = Logs(*logs)
    ranges, bytes_max = known.whole(), chance.choice([1, 50_000, 1_000_000])
    for _ in range(2_000):
        step = capped(known.ask, ranges, bytes_max, turn=sum(item.start for item in ranges))
        assert step is not None
        taken = sum(known.size(item) for item in step)
        assert any(item.size > 0 for item in step)
        assert taken <= max(bytes_max, 30_000)
        ranges = [
            OffsetRange("t", item.partition, done.end, item.end)
            for item, done in zip(ranges, step, strict=True)
        ]
        if not any(item.size for item in ranges):
            break
    assert not any(item.size for item in ranges)


def test_a_long_backlog_is_cut_near_its_start() -> None:
    logs = Logs([(at, at + 1, 1_000) for at in range(200_000)])
    step = capped(logs.ask, logs.whole(), 1_000_000)
    assert step is not None
    assert 900_000 <= logs.size(step[0]) <= 1_000_000


def test_nobody_knows_sizes() -> None:
    nobody = lambda ranges, cut_bytes, cuts_max: None  # noqa: E731
    assert capped(nobody, [OffsetRange("t", 0, 0, 5)], 1) is None
    assert tile_by_bytes(nobody, [OffsetRange("t", 0, 0, 5)], 2, None, None) is None
