"""Long work in short turns: no client's request holds the event loop.

Work that would take more than a slice does a slice, then gets in line; the line has a budget in each turn of
the loop, whatever its length, and half of the loop's time in all. So the loop turns again after the slices of
those who just came and one budget, however much there is to do; everybody in line gets on, and those who want
little are served meanwhile (rule "The loop stays free").
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from time import perf_counter
from typing import Final, TypeVar

from penstock_runtime.lifecycle import Lifecycle

SLICE_S: Final = 0.001
"""What one piece of work may take at a time."""
BUDGET_S: Final = 0.010
"""What all that is in line may take in one turn of the loop."""

LOOP_TURNS: Final = "loop_turns"
"""Where a role keeps its line (`Lifecycle.shared`)."""

T = TypeVar("T")


class LoopTurns:
    """The line of one event loop."""

    def __init__(self, clock_s: Callable[[], float] = perf_counter) -> None:
        self.clock_s = clock_s
        self._line: deque[Callable[[], None] | asyncio.Future[None]] = deque()
        self._running = False
        self._turned_s = 0.0

    @classmethod
    def of(cls, lifecycle: Lifecycle) -> LoopTurns:
        """That of a role, made on first use."""
        found = lifecycle.shared.get(LOOP_TURNS)
        if not isinstance(found, LoopTurns):
            found = lifecycle.shared[LOOP_TURNS] = cls()
        return found

    def later(self, work: Callable[[], None]) -> None:
        """Call `work`, which takes a slice at most, when its turn comes."""
        self._line.append(work)
        self._go()

    async def next(self) -> None:
        """Wait for a turn, then go on for a slice."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        self._go()
        await turn

    async def run(self, steps: Generator[None, None, T]) -> T:
        """What `steps` returns, with a turn for each slice of it; a step is far shorter than a slice."""
        until_s = self.clock_s() + SLICE_S
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if self.clock_s() >= until_s:
                await self.next()
                until_s = self.clock_s() + SLICE_S

    def _go(self) -> None:
        if not self._running:
            self._running = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        line = self._line
        began_s = self._turned_s = self.clock_s()
        until_s = began_s + BUDGET_S
        while line:
            first = line.popleft()
            if isinstance(first, asyncio.Future):
                if first.done():  # given up
                    continue
                # It takes its slice after this: nobody else in this turn.
                first.set_result(None)
                break
            first()
            if self.clock_s() >= until_s:
                break
        if line:
            asyncio.get_running_loop().call_soon(self._rest)
        else:
            self._running = False

    def _rest(self) -> None:
        """After the slice of a task that was let go on too: the line waits for as long as it has worked."""
        worked_s = self.clock_s() - self._turned_s
        asyncio.get_running_loop().call_later(min(worked_s, BUDGET_S), self._turn)


def all_at_once(steps: Generator[None, None, T]) -> T:
    """What `steps` returns, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
