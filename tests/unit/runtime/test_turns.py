"""Long work in slices: what it leaves to others of its loop, and of its machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from time import perf_counter, thread_time
from typing import Any

import pytest

from penstock_runtime.turns import LONG_SLICE_S, REST_MOST, REST_WITH_OTHERS_S, LoopTurns, Rests

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def test_nobody_rests_who_has_the_processor_to_himself() -> None:
    rests = Rests()
    assert [rests.after(LONG_SLICE_S, LONG_SLICE_S, 0.0, 0.0) for _ in range(100)] == [0.0] * 100


@pytest.mark.parametrize(("stolen_s", "late_s"), [(LONG_SLICE_S, 0.0), (0.0, LONG_SLICE_S), (0.003, 0.05)])
def test_where_others_want_it_too_ten_times_as_long_as_was_worked(stolen_s: float, late_s: float) -> None:
    rests = Rests()
    wall_s = LONG_SLICE_S + stolen_s
    rested = [rests.after(wall_s, LONG_SLICE_S, late_s, 0.0) for _ in range(50)]
    assert rested == sorted(rested)
    assert rested[-1] == pytest.approx(REST_MOST * min(wall_s, 2 * LONG_SLICE_S))
    # What is seen once is forgotten again.
    for _ in range(100):
        last = rests.after(LONG_SLICE_S, LONG_SLICE_S, 0.0, 0.0)
    assert last < LONG_SLICE_S / 100


def test_while_the_loop_serves_others_it_rests_after_every_slice() -> None:
    rests = Rests()
    slice_s = (LONG_SLICE_S, LONG_SLICE_S, 0.0)
    assert rests.after(*slice_s, 0.00002) == 0.0, "that is the loop itself"
    assert rests.after(*slice_s, 0.0002) == REST_WITH_OTHERS_S
    # Who comes every few milliseconds counts as there in between.
    assert {rests.after(*slice_s, 0.0) for _ in range(10)} == {REST_WITH_OTHERS_S}
    assert [rests.after(*slice_s, 0.0) for _ in range(50)][-1] == 0.0


def work(slices: int, clock_s: Callable[[], float]) -> Generator[None, None, int]:
    for _ in range(slices):
        until_s = clock_s() + LONG_SLICE_S
        while clock_s() < until_s:
            pass
        yield
    return slices


def test_work_of_one_goes_on_while_the_loop_turns_and_rests_as_others_want(run: Run) -> None:
    """The processor is wanted by others as this test says."""
    stolen_s = 0.0

    async def main() -> tuple[float, int]:
        turns = LoopTurns(perf_counter, lambda: thread_time() * (1.0 - stolen_s))
        turned = 0

        async def others() -> None:
            nonlocal turned
            while True:
                turned += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        began_s = perf_counter()
        assert await turns.run(work(100, perf_counter)) == 100
        took_s = perf_counter() - began_s
        other.cancel()
        return took_s, turned

    _, turned = run(main())
    assert turned >= 99
    stolen_s = 0.9
    slow_s, turned = run(main())
    assert turned >= 99
    # It rested most of the time: that is no less where the machine is slower.
    assert slow_s > 100 * LONG_SLICE_S * 5


@pytest.mark.parametrize("others_s", [0.0, 0.0002])
def test_others_of_the_loop_are_seen_by_what_they_use_between_two_slices(run: Run, others_s: float) -> None:
    """Both clocks are the test's: nobody else's work counts."""
    now_s = used_s = 0.0

    def steps() -> Generator[None, None, None]:
        nonlocal now_s, used_s
        for _ in range(30):
            now_s += 2 * LONG_SLICE_S
            used_s += 2 * LONG_SLICE_S
            yield

    async def main() -> float:
        turns = LoopTurns(lambda: now_s, lambda: used_s)

        async def others() -> None:
            nonlocal used_s
            while True:
                used_s += others_s
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        rested: list[float] = []
        loop = asyncio.get_running_loop()
        call_later = loop.call_later

        def note(rest_s: float, *call: Any) -> asyncio.TimerHandle:
            rested.append(rest_s)
            return call_later(rest_s, *call)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "call_later", note)
            await turns.run(steps())
        other.cancel()
        return sum(rested)

    rested_s = run(main())
    assert rested_s == (0.0 if not others_s else pytest.approx(29 * REST_WITH_OTHERS_S, rel=0.1))


async def test_a_turn_that_is_given_up_holds_up_nobody() -> None:
    turns = LoopTurns()
    waiting = [asyncio.create_task(turns.next_slice()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    await waiting[2]
    await turns.next_slice()
