"""The disk pool's order of results, failures and end."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable

import pytest

from penstock_storage_node.disk.pool import DiskPool
from support.waiting import eventually


async def test_results_and_errors_come_back_on_the_loop() -> None:
    pool = DiskPool(2)
    here = threading.get_ident()
    seen: list[tuple[object, BaseException | None, bool]] = []
    done = asyncio.Event()

    def result(value: object, error: BaseException | None) -> None:
        seen.append((value, error, threading.get_ident() == here))
        if len(seen) == 101:
            done.set()

    def fail() -> None:
        raise OSError(5, "broken")

    for number in range(100):
        (pool.write if number % 2 else pool.read)(lambda n=number: n, result)  # type: ignore[misc]
    pool.write(fail, result)
    assert pool.jobs_waiting == 101
    await asyncio.wait_for(done.wait(), 60)
    assert all(on_loop for _, _, on_loop in seen)
    assert sorted(v for v, e, _ in seen if e is None) == list(range(100))  # type: ignore[type-var]
    assert sum(isinstance(e, OSError) for _, e, _ in seen) == 1
    assert (pool.jobs_done, pool.jobs_waiting) == (101, 0)
    pool.stop()


class Large:
    """What a job brings from the disk."""


async def test_an_idle_thread_keeps_nothing_alive() -> None:
    """Each thread held its last job, and with it a batch of 90 MiB, until it got another."""
    pool = DiskPool(2)
    found = [weakref.ref(await run(Large)) for run in (pool.run, pool.run_read)]
    await eventually(lambda: not any(ref() for ref in found), "both results are gone")
    pool.stop()


async def test_awaited_jobs_raise() -> None:
    pool = DiskPool(1)
    assert await pool.run(lambda: 3) == 3

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await pool.run_read(fail)
    pool.stop()


def blocking(begun: threading.Event, gate: threading.Event) -> Callable[[], bool]:
    """A job that says when it begins and ends when the gate opens."""

    def job() -> bool:
        begun.set()
        return gate.wait(60)

    return job


async def test_a_blocked_write_holds_up_no_read() -> None:
    pool = DiskPool(1)
    begun, gate = threading.Event(), threading.Event()
    blocked = asyncio.ensure_future(pool.run(blocking(begun, gate)))
    await eventually(begun.is_set, "the write")
    assert await asyncio.wait_for(pool.run_read(lambda: "read"), 60) == "read"
    assert not blocked.done()
    gate.set()
    assert await blocked
    pool.stop()


async def test_a_cancelled_waiter_does_no_harm() -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    pool = DiskPool(1)
    begun, gate = threading.Event(), threading.Event()
    blocked = asyncio.ensure_future(pool.run(blocking(begun, gate)))
    await eventually(begun.is_set, "the job")
    blocked.cancel()
    gate.set()
    assert await pool.run(lambda: 1) == 1
    await eventually(lambda: pool.jobs_done == 2, "the cancelled job's end")
    assert blocked.cancelled()
    assert errors == []
    pool.stop()
