"""How often a node looks at what waits there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock_storage_node.replica.background import ISR_TICKS, BackgroundJobs
from penstock_storage_node.replication.effects import Effects


class Leadership:
    """That of one partition, and how often its waits were looked at."""

    def __init__(self, waiting_count: int = 0) -> None:
        self.waiting_count = waiting_count
        self.looks = 0

    def tick(self, _now_ms: int) -> None:
        self.looks += 1

    def expire(self, _now_ms: int) -> None:
        self.looks += 1


def jobs_of(*leaderships: Leadership) -> BackgroundJobs:
    leading = [SimpleNamespace(replica=SimpleNamespace(leadership=each)) for each in leaderships]
    manager = SimpleNamespace(
        clock_ms=lambda: 0,
        wall_ms=lambda: 0,
        pool=None,
        lifecycle=None,
        health=SimpleNamespace(failed=True),
        registry=SimpleNamespace(leading=leading, partitions={}),
        drain=SimpleNamespace(effects=Effects()),
    )
    return BackgroundJobs(
        cast(Any, manager), cast(Any, None), cast(Any, SimpleNamespace(stray_retention_ms=0))
    )


def rests(jobs: BackgroundJobs) -> bool:
    return jobs._may_rest


@pytest.mark.parametrize("where", range(ISR_TICKS))
def test_a_node_does_not_rest_while_somebody_waits_whatever_is_due_of_that_partition(where: int) -> None:
    leaderships = [Leadership() for _ in range(ISR_TICKS)]
    jobs = jobs_of(*leaderships)
    jobs.tick()
    assert rests(jobs)
    jobs._manager.drain.effects.waiting[leaderships[where]] = None
    leaderships[where].waiting_count = 1
    # It rested when the wait began, and sees it when it wakes.
    jobs.tick(ISR_TICKS)
    assert not rests(jobs)
    for _ in range(2 * ISR_TICKS):
        jobs.tick()
        assert not rests(jobs)
    assert leaderships[where].looks >= 2 * ISR_TICKS
    leaderships[where].waiting_count = 0
    jobs.tick()
    assert rests(jobs)


def test_each_partition_is_looked_at_once_in_five_ticks_and_who_waits_in_each() -> None:
    leaderships = [Leadership() for _ in range(3 * ISR_TICKS + 2)]
    jobs = jobs_of(*leaderships)
    jobs._manager.drain.effects.waiting[leaderships[1]] = None
    leaderships[1].waiting_count = 1
    for _ in range(2 * ISR_TICKS):
        jobs.tick()
    assert leaderships[1].looks == 2 + 2 * ISR_TICKS
    assert {each.looks for each in leaderships if each is not leaderships[1]} == {2}
