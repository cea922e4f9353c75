"""The largest of lately, against all that was seen."""

from __future__ import annotations

import random

from penstock_runtime.recent_max import RecentMax


def test_it_is_the_largest_of_the_window_give_or_take_a_part_of_it() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    recent, seen, now_s = RecentMax(60.0), [], 1_000.0
    assert recent.value(now_s) == 0
    for _ in range(3_000):
        now_s += rng.choice((0.0, 0.1, 0.5, 5.0))
        value = rng.random()
        recent.add(now_s, value)
        seen.append((now_s, value))
        now_s += rng.choice((0.0, 0.2))
        least = max((v for at, v in seen if at > now_s - 60.0), default=0.0)
        most = max((v for at, v in seen if at > now_s - 62.0), default=0.0)
        assert least <= recent.value(now_s) <= most
    assert recent.value(now_s + 100) == 0
