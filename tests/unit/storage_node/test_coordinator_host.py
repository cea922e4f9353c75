"""The time of coordinators: they are looked at when something is due, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from penstock_runtime.lifecycle import Lifecycle
from penstock_storage_node import coordinator_host
from penstock_storage_node.coordinator_host import CoordinatorHost, Hosted
from penstock_storage_node.timers import Timer, TimerQueue


class Shard:
    """A coordinator of timers alone."""

    closed = False

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self.timers = TimerQueue()
        self.rang = asyncio.Event()
        self.looks = 0

    @property
    def next_timer_ms(self) -> int:
        self.looks += 1
        return self.timers.next_ms

    def tell_earlier(self, told: Callable[[], None]) -> None:
        self.timers.on_earlier = told

    def tick(self, most: int | None = None) -> int:
        count = 0
        while self.timers.due(self._clock_ms()) is not None:
            count += 1
            self.rang.set()
        return count

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Nothing is read here."""

    def close(self) -> None:
        """Nothing is held here."""


class Host(CoordinatorHost[Shard]):
    topic = "coordinated"
    what = "timer"

    def serve(self, hosted: Hosted[Shard]) -> None:
        """Nothing is to be done."""

    def counts(self, shard: Shard) -> dict[str, Any]:
        return {}


async def host_of(shard: Shard, clock_ms: Callable[[], int]) -> tuple[Host, asyncio.Task[None]]:
    loop = asyncio.get_running_loop()
    manager: Any = SimpleNamespace(clocks=SimpleNamespace(s=loop.time), clock_ms=clock_ms)
    host = Host(manager, Lifecycle("test"), tick_ms=1)
    log = SimpleNamespace(log_start_offset=0, log_end_offset=0)
    leadership = SimpleNamespace(wait_all=lambda _end, _until_ms, waiter: waiter.acknowledge(0))
    manager.drain = SimpleNamespace(effects=SimpleNamespace(empty=True))
    partition: Any = SimpleNamespace(log=log, name="coordinated-0")
    hosted = Hosted(partition, leadership, shard)  # type: ignore[arg-type]
    host._hosted[0] = hosted
    ticking = asyncio.ensure_future(host._tick())
    await host._load(hosted)
    return host, ticking


async def test_a_timer_that_is_set_while_nothing_was_due_rings() -> None:
    loop = asyncio.get_running_loop()

    def clock_ms() -> int:
        return int(loop.time() * 1000)

    shard = Shard(clock_ms)
    _, ticking = await host_of(shard, clock_ms)
    for _ in range(3):
        shard.rang.clear()
        shard.timers.set(Timer("far", ()), clock_ms() + 3_600_000)
        await asyncio.sleep(0)
        shard.timers.set(Timer("near", ()), clock_ms() + 5)
        async with asyncio.timeout(60):
            await shard.rang.wait()
    ticking.cancel()


async def test_nobody_looks_while_nothing_is_due(monkeypatch: Any) -> None:
    monkeypatch.setattr(coordinator_host, "_LOOK_MS", 3_600_000)
    loop = asyncio.get_running_loop()

    def clock_ms() -> int:
        return int(loop.time() * 1000)

    shard = Shard(clock_ms)
    host, ticking = await host_of(shard, clock_ms)
    shard.timers.set(Timer("far", ()), clock_ms() + 3_600_000)
    turns_of_other_work = 50
    for _ in range(turns_of_other_work):
        await asyncio.sleep(2 * host._tick_ms / 1000)
    assert shard.looks <= 5, "when it was loaded, when the timer was set"
    ticking.cancel()
