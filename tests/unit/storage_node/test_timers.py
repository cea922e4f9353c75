"""Timers as data: what rings when, and who is told that it comes earlier."""

from __future__ import annotations

import random

from penstock_storage_node.timers import NEVER_MS, Timer, TimerQueue


def test_it_tells_when_it_must_be_looked_at_earlier_and_not_otherwise() -> None:
    queue, told = TimerQueue(), []
    queue.on_earlier = lambda: told.append(queue.next_ms)
    first, second = Timer("a", ()), Timer("b", ())
    queue.set(first, 100)
    queue.set(second, 200)
    queue.set(first, 150)
    assert told == [100], "a later one, or one put off, changes nothing"
    queue.set(second, 50)
    assert told == [100, 50]
    second.cancel()
    queue.set(second, 60)
    assert told == [100, 50], "it looks at 50 anyway"
    assert (queue.due(59), queue.due(60)) == (None, second)


def test_whoever_looks_when_told_misses_nothing() -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    queue, timers = TimerQueue(), [Timer("t", (number,)) for number in range(8)]
    alarm_ms = NEVER_MS

    def earlier() -> None:
        nonlocal alarm_ms
        assert queue.next_ms < alarm_ms, f"seed {seed}: told although it looks earlier"
        alarm_ms = queue.next_ms

    queue.on_earlier = earlier
    for now_ms in range(2_000):
        for timer in timers:
            if rng.random() < 0.05:
                queue.set(timer, now_ms + rng.randint(1, 100))
            elif rng.random() < 0.02:
                timer.cancel()
        if alarm_ms <= now_ms:
            while queue.due(now_ms) is not None:
                pass
            alarm_ms = queue.next_ms
        assert all(timer.deadline_ms > now_ms for timer in timers), f"seed {seed}: missed at {now_ms} ms"
