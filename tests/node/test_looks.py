"""Looks at a log's files whose client went away: the thread is at the files still, until it is done.

A consumer may close its connection while its Fetch waits for the disk. Its task ends at once, the read in the pool does
not: were the log cut, or its files exchanged, meanwhile, the read would find half of either, and what it remembers of a
file (heads of indexes, aborted transactions, by path) would be taken for the new one's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from node.harness import KEY, MiniCluster, eventually


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    made = await MiniCluster(tmp_path).start(1)
    made.make_topic(isr=(1,), min_insync_replicas="1")
    await eventually(lambda: KEY in made.nodes[1].manager.registry.partitions)
    yield made
    await made.stop()


@pytest.mark.parametrize("way", ["cut", "swap"])
async def test_what_wants_the_files_waits_for_a_look_that_nobody_waits_for(
    cluster: MiniCluster, way: str
) -> None:
    partition = cluster.nodes[1].partition
    begun, go_on, over = threading.Event(), threading.Event(), threading.Event()
    was_over: list[bool] = []

    def look() -> None:
        begun.set()
        go_on.wait()
        over.set()

    def run() -> bool:
        was_over.append(over.is_set())
        return True

    looking = asyncio.create_task(partition.look_up(look))
    await eventually(begun.is_set)
    looking.cancel()
    with suppress(asyncio.CancelledError):
        await looking
    assert looking.cancelled()
    alone = (
        partition.exclusive(run)
        if way == "cut"
        else asyncio.ensure_future(partition.swap(run, lambda _: None))
    )
    # Whatever the pool was given before this has begun by then: its lanes take jobs in their order.
    for _ in range(4):
        await partition._ports.pool.run(lambda: None)
    try:
        assert was_over == []
    finally:
        go_on.set()
        await alone
    assert was_over == [True]
    assert partition.access.looking == 0
