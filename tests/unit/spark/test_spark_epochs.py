"""Where a log was cut, found by the leader epochs of its batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_penstock.epochs import BatchHead, find_cut


@st.composite
def logs(draw: st.DrawFn) -> list[BatchHead]:
    """Batches with gaps between them, epochs that never fall."""
    at, epoch, batches = draw(st.integers(0, 5)), 0, []
    for _ in range(draw(st.integers(0, 30))):
        at += draw(st.sampled_from([0, 0, 0, 3]))
        epoch += draw(st.sampled_from([0, 0, 1, 2]))
        size = draw(st.integers(1, 5))
        batches.append(BatchHead(at, at + size, epoch))
        at += size
    return batches


@given(logs(), st.integers(0, 5), st.integers(0, 40), st.integers(0, 60))
def test_the_first_offset_of_a_later_epoch(
    batches: list[BatchHead], above: int, position: int, epoch: int
) -> None:
    start = batches[0].base_offset if batches else 0
    end = (batches[-1].next_offset if batches else 0) + above
    asked: list[int] = []

    def first_batch(at: int, to: int) -> BatchHead | None:
        assert start <= at < to <= end
        asked.append(at)
        return next((b for b in batches if b.next_offset > at and b.base_offset < to), None)

    found = find_cut(first_batch, start, end, position, epoch)
    later = [b.base_offset for b in batches if b.epoch > epoch and b.base_offset < position]
    assert found == min(later, default=None)
    assert len(asked) <= 2 + max(end - start, 1).bit_length()


def test_a_log_that_went_on_is_settled_by_one_question() -> None:
    asked: list[int] = []

    def first_batch(at: int, to: int) -> BatchHead | None:
        asked.append(at)
        return BatchHead(0, 1_000_000, 4)

    assert find_cut(first_batch, 0, 2_000_000, 1_000_000, 4) is None
    assert asked == [999_999]
