"""bench.runner.figures: medians, ratios within pairs, and how sure a ratio is."""

from __future__ import annotations

import statistics

import pytest
from bench.runner.figures import Ratio, interval, ratio, spread, verdict
from hypothesis import given
from hypothesis import strategies as st

POSITIVE = st.floats(0.001, 1e6)


def test_a_spread_is_of_all_values() -> None:
    found = spread([3.0, 1.0, 10.0])
    assert (found.count, found.median, found.low, found.high) == (3, 3.0, 1.0, 10.0)
    with pytest.raises(ValueError, match="nothing was measured"):
        spread([])


def test_ratios_are_taken_within_pairs() -> None:
    # The machine was twice as fast in the second pair; the ratio knows nothing of it.
    found = ratio([(30.0, 10.0), (60.0, 20.0), (32.0, 10.0)])
    assert found.pairs == 3
    assert found.median == 3.0
    assert found.low == 3.0
    assert found.high == pytest.approx(3.2)


def test_a_pair_whose_base_is_nothing_says_nothing() -> None:
    assert ratio([(1.0, 0.0), (4.0, 2.0)]).pairs == 1
    with pytest.raises(ValueError, match="no pair"):
        ratio([(1.0, 0.0)])


def test_one_pair_has_no_width() -> None:
    found = ratio([(4.0, 2.0)])
    assert (found.low, found.median, found.high) == (2.0, 2.0, 2.0)


@given(st.lists(POSITIVE, min_size=1, max_size=9))
def test_an_interval_holds_the_median_lies_within_the_values_and_is_the_same_each_time(
    values: list[float],
) -> None:
    low, high = interval(values, 400)
    assert min(values) <= low <= statistics.median(values) <= high <= max(values)
    assert (low, high) == interval(values, 400)


def test_more_pairs_make_it_narrower() -> None:
    values = [1.0, 1.1, 1.2, 1.3, 1.4]
    few, many = interval(values), interval(values * 20)
    assert many[1] - many[0] < few[1] - few[0]


@pytest.mark.parametrize(
    ("low", "median", "high", "at_most", "so"),
    [
        (5.1, 6, 7, False, "reached"),
        (4.9, 6, 7, False, "perhaps"),
        (1, 4.9, 7, False, "missed"),
        (1, 2, 5, True, "reached"),
        (1, 2, 5.1, True, "perhaps"),
        (1, 5.1, 6, True, "missed"),
    ],
)
def test_a_goal_is_reached_when_the_whole_interval_is(
    low: float, median: float, high: float, at_most: bool, so: str
) -> None:
    assert verdict(Ratio(5, median, low, high), 5, at_most=at_most) == so
