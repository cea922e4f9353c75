"""Bytes of ranges and their cuts, against batches that are known one by one."""

from __future__ import annotations

import random
from array import array
from itertools import pairwise

import pytest

from penstock_kafka.records.batch import iter_batches
from penstock_storage_node.log.sizes import SegmentSizes, size_range
from unit.storage_node.log.log_model import filled, read_all_batches

STEP = 4096


def log_of(seed: int) -> tuple[list[SegmentSizes], list[tuple[int, int, int]]]:
    """Segments with indexes as `Segment.note` makes them, and each batch's (first, end, bytes)."""
    chance = random.Random(seed)
    segments, batches = [], []
    offset = 100
    for _ in range(chance.randint(1, 5)):
        base, size, since = offset, 0, 0
        offsets, positions = array("I"), array("I")
        for _ in range(chance.randint(1, 200)):
            count = chance.randint(1, 50)
            taken = chance.choice([80, 500, 5_000, 20_000])
            if since > STEP:
                offsets.append(offset + count - 1 - base)
                positions.append(size)
                since = 0
            batches.append((offset, offset + count, taken))
            offset, size, since = offset + count, size + taken, since + taken
        segments.append(SegmentSizes(base, offset, size, offsets, positions))
    return segments, batches


@pytest.mark.parametrize("seed", range(30))
def test_sizes_and_cuts_are_true_to_a_batch_and_a_step(seed: int) -> None:
    segments, batches = log_of(seed)
    chance = random.Random(seed)
    ends = {end for _, end, _ in batches}
    slack = STEP + 20_000

    def truth(low: int, high: int) -> int:
        return sum(taken for first, end, taken in batches if first >= low and end <= high)

    for _ in range(20):
        start, end = sorted(chance.sample(sorted(ends | {100}), 2)) if len(ends) > 1 else (100, max(ends))
        cut_bytes = chance.choice([1, 1_000, 30_000, 200_000])
        size, cuts = size_range(segments, start, end, cut_bytes, 1_000_000)
        assert abs(size - truth(start, end)) <= slack
        assert cuts == sorted(set(cuts))
        assert ends.issuperset(cuts)
        assert all(start < cut < end for cut in cuts)
        for low, high in pairwise([start, *cuts, end]):
            assert truth(low, high) <= cut_bytes + 2 * slack
        assert size_range(segments, start, end, 0, 1_000).cuts == []
        few = size_range(segments, start, end, cut_bytes, 3)
        assert len(few.cuts) <= 3
        assert few.size_bytes == size


def test_the_whole_log_is_all_its_bytes() -> None:
    segments, batches = log_of(7)
    whole = size_range(segments, 0, 1 << 40, 0, 0)
    assert whole.size_bytes == sum(taken for _, _, taken in batches)
    assert size_range(segments, 50, 60, 10, 10) == (0, [])
    assert size_range([], 0, 10, 10, 10) == (0, [])


def test_a_real_log_tells_ends_of_its_batches() -> None:
    log, _ = filled()
    ends = {
        info.base_offset + info.last_offset_delta + 1
        for data in read_all_batches(log)
        for info in iter_batches(data)
    }
    found = log.size_range(0, log.log_end_offset, 500, 100)
    assert found.size_bytes == log.size_bytes
    assert len(found.cuts) > 3
    assert ends.issuperset(found.cuts)
