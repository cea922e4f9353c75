"""`make security` fails on a bound that is missed, and there are no exceptions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from security.judge import NEAR, is_near, judge, one_of
from security.measure import Cost

GOOD = Cost("idle_sockets", "many", True, "shut", 100.0, 20.0, 0, 2.0, 180.0, 0)


def test_what_is_within_the_bounds_is_well() -> None:
    assert not judge([GOOD])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"refused": False}, "was not refused: shut"),
        ({"lost": 1}, "1 processes lost"),
        ({"lag_ms": 101.0}, "101.0 ms of loop lag, the bound is 100"),
        ({"memory_mb": 20.5}, "20.5 MB of memory, the bound is 20"),
        ({"p99_ratio": 2.1}, "2.1 times the p99"),
    ],
)
def test_each_bound_that_is_missed_is_told(change: dict[str, float], words: str) -> None:
    (line,) = judge([replace(GOOD, **change)])  # type: ignore[arg-type]
    assert line.startswith("idle_sockets (plain, a stranger): ") and words in line


def test_times_near_their_bound_or_beyond_are_measured_again_and_nothing_else_is() -> None:
    calm = replace(GOOD, lag_ms=NEAR * 100, p99_ratio=NEAR * 2)
    assert not is_near(calm)
    assert not is_near(replace(calm, memory_mb=100.0, lost=1, failures=9, refused=False, large_ms=9e9))
    for more in ({"lag_ms": 81.0}, {"lag_ms": 200.0}, {"p99_ratio": 1.61}, {"p99_ratio": 4.0}):
        assert is_near(replace(calm, **more))  # type: ignore[arg-type]


def test_of_several_measurements_the_median_time_counts_and_the_worst_of_all_else() -> None:
    one = replace(GOOD, lag_ms=10.0, p99_ratio=1.0, memory_mb=1.0)
    assert one_of([one]) == one
    slow = replace(one, lag_ms=120.0, p99_ratio=2.4, memory_mb=2.0)
    assert not judge([one_of([slow, one, one])])
    assert len(judge([one_of([one, slow, slow])])) == 2, "luck does not save a row that is beyond"
    odd = replace(one, lost=1, failures=3, large_ms=999.0, memory_mb=21.0, refused=False, said="let in")
    row = one_of([one, odd, slow])
    assert (row.lost, row.failures, row.large_ms, row.memory_mb) == (1, 3, 999.0, 21.0)
    assert (row.refused, row.said) == (False, "let in")
    assert (row.lag_ms, row.lags_ms) == (10.0, (10.0, 10.0, 120.0))
    assert (row.p99_ratio, row.p99_ratios) == (1.0, (1.0, 1.0, 2.4))


def test_what_only_stands_for_comparison_has_no_bounds() -> None:
    row = replace(GOOD, attack="ordinary_large_write", memory_mb=79.0)
    assert not judge([row], frozenset({"ordinary_large_write"}))
