"""Tiling and caps are exact for any offsets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_penstock.tiling import OffsetRange, apportion, cap, tile

sizes_of = st.lists(st.integers(0, 10_000), max_size=12)


def ranges(sizes: list[int]) -> list[OffsetRange]:
    return [
        OffsetRange(f"t{index % 3}", index, index * 7, index * 7 + size, b"i")
        for index, size in enumerate(sizes)
    ]


@given(sizes_of, st.none() | st.integers(1, 200), st.none() | st.integers(1, 3000))
def test_tiles_are_exact(sizes: list[int], least: int | None, most: int | None) -> None:
    whole = ranges(sizes)
    tiles = tile(whole, least, most)
    assert all(item.size > 0 for item in tiles)
    assert most is None or all(item.size <= most for item in tiles)
    assert len(tiles) >= min(least or 0, sum(sizes))
    if least is None and most is None:
        assert tiles == [item for item in whole if item.size]
    for item in whole:
        own = [part for part in tiles if part.partition == item.partition]
        bounds = [(part.start, part.end) for part in own]
        if item.size == 0:
            assert not own
            continue
        assert bounds[0][0] == item.start
        assert bounds[-1][1] == item.end
        assert all(a[1] == b[0] for a, b in zip(bounds, bounds[1:], strict=False))
        assert max(part.size for part in own) - min(part.size for part in own) <= 1
        assert {(part.topic, part.topic_id) for part in own} == {(item.topic, b"i")}


@given(sizes_of, st.integers(0, 200_000), st.integers(0, 1000))
def test_shares_add_up(sizes: list[int], total: int, turn: int) -> None:
    shares = apportion(sizes, total, turn)
    assert sum(shares) == min(total, sum(sizes))
    assert all(0 <= share <= size for share, size in zip(shares, sizes, strict=True))
    if total >= sum(size > 0 for size in sizes):
        assert all(share > 0 for share, size in zip(shares, sizes, strict=True) if size)


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 5000)), min_size=1, max_size=8),
    st.integers(1, 4000),
)
def test_capped_batches_reach_the_end(waiting: list[tuple[int, int]], most: int) -> None:
    start = {("t", index): first for index, (first, _) in enumerate(waiting)}
    end = {("t", index): first + size for index, (first, size) in enumerate(waiting)}
    total = sum(end.values()) - sum(start.values())
    at, steps = dict(start), 0
    while at != end:
        after = cap(at, end, most)
        assert all(at[key] <= after[key] <= end[key] for key in at)
        assert sum(after.values()) - sum(at.values()) == min(most, sum(end.values()) - sum(at.values()))
        at, steps = after, steps + 1
    assert steps == -(-total // most)


def test_small_partitions_are_not_starved() -> None:
    assert apportion([1_000_000, 1], 100) == [99, 1]


def test_too_few_for_all_take_turns() -> None:
    assert apportion([9, 9, 9], 2, turn=0) == [1, 1, 0]
    assert apportion([9, 9, 9], 2, turn=2) == [1, 0, 1]


def test_a_partition_that_went_back_stays() -> None:
    assert cap({("t", 0): 10, ("t", 1): 0}, {("t", 0): 5, ("t", 1): 50}, 20) == {("t", 0): 10, ("t", 1): 20}
