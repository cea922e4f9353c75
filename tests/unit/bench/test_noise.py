"""bench.runner.noise: when a run is void."""

from __future__ import annotations

import pytest
from bench.runner.noise import Noise, Reading, noise

QUIET = (0.0, 0.0)


def test_what_is_neither_ours_nor_idle_is_others() -> None:
    found = noise(Reading(100, 10, 1, 5), Reading(120, 20, 1, 13), QUIET)
    assert found.others == pytest.approx(0.1)
    assert found.steal == 0


def test_steal_is_a_share_of_all_cores() -> None:
    assert noise(Reading(0, 0, 0, 0), Reading(20, 10, 2, 10), QUIET).steal == pytest.approx(0.1)


def test_clocks_that_were_not_read_at_one_moment_are_no_negative_noise() -> None:
    assert noise(Reading(0, 0, 0, 0), Reading(20, 10, 0, 10.02), QUIET).others == 0


def test_a_run_of_no_time_is_judged_by_the_calibrations() -> None:
    assert noise(Reading(5, 5, 0, 0), Reading(5, 5, 0, 0), (0.1, 0.3)) == Noise(0, 0, 0.3)


@pytest.mark.parametrize(
    ("steal", "others", "waiting", "why"),
    [
        (0.05, 0.10, 0.15, ""),
        (0.06, 0.5, 0.5, "the hypervisor took 6% of the time, and 5% is the most that counts"),
        (0.0, 0.2, 0.5, "other processes took 20% of the time, and 10% is the most that counts"),
        (0.0, 0.0, 0.4, "a loop beside the run waited for 40% of the time, and 15% is the most that counts"),
    ],
)
def test_a_run_is_void_with_the_reason(steal: float, others: float, waiting: float, why: str) -> None:
    assert Noise(steal, others, waiting).verdict == why
