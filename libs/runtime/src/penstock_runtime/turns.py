"""Long work in short turns: no client's request holds the event loop.

Work that would take more than a slice does a slice, then gets in line; the line has a budget in each turn of
the loop, whatever its length, and half of the loop's time in all. So the loop turns again after the slices of
those who just came and one budget, however much there is to do; everybody in line gets on, and those who want
little are served meanwhile (rule "The loop stays free").

Work that goes on for many slices (`run`) has a line of its own and one slice in each turn of the loop. It rests
after each slice as the processor is wanted by others: not at all where nobody else wants it, ten times as long as it
has worked on a machine whose processors are all taken. How much they are wanted is seen by how long a slice took
beside what it used of the processor, and by how late it was woken. While the loop has others to serve (what it used
of the processor between two slices says so) it rests after every slice: an ack takes a dozen turns of three loops and
as many of threads that need the interpreter, and each would wait for a slice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from time import perf_counter, thread_time
from typing import Final, TypeVar

from penstock_runtime.lifecycle import Lifecycle

SLICE_S: Final = 0.001
"""What one piece of work may take at a time."""
BUDGET_S: Final = 0.010
"""What all that is in line may take in one turn of the loop."""
LONG_SLICE_S: Final = 0.0003
"""What one slice of long work may take."""
REST_WITH_OTHERS_S: Final = 0.004
"""The shortest rest while the loop serves others: long work then has a fourteenth of the loop's time."""
REST_MOST: Final = 10.0
"""The longest rest of long work, in terms of what it has worked: 6 ms."""
_REST_BY_WANT: Final = 40.0
_WANT_WEIGHT: Final = 0.1
"""Of the newest slice in the mean of how much the processor is wanted."""
_LOOP_S: Final = 0.00005
"""What a turn of the loop itself uses of the processor, at most."""
_OTHERS_SEEN_SLICES: Final = 16
"""For how many slices the loop counts as one that serves others after it has."""
_TIMER_S: Final = 0.001
"""Timers of the loop are as coarse as that."""

LOOP_TURNS: Final = "loop_turns"
"""Where a role keeps its line (`Lifecycle.shared`)."""

T = TypeVar("T")


class Rests:
    """How long long work rests after each slice. Pure."""

    def __init__(self) -> None:
        self._want = 0.0
        self._with_others = 0

    def after(self, wall_s: float, cpu_s: float, late_s: float, others_cpu_s: float) -> float:
        """Seconds to rest after a slice that took `wall_s`, used the processor for `cpu_s` and began `late_s` after
        its time; since the slice before it the loop had used `others_cpu_s` of the processor for others."""
        self._with_others = _OTHERS_SEEN_SLICES if others_cpu_s > _LOOP_S else max(0, self._with_others - 1)
        others_s = max(0.0, wall_s - cpu_s) + late_s
        self._want += _WANT_WEIGHT * (min(1.0, others_s / max(wall_s, LONG_SLICE_S)) - self._want)
        # A slice that was held up for long itself is no reason to rest for long.
        rest_s = min(wall_s, 2 * LONG_SLICE_S) * min(_REST_BY_WANT * self._want, REST_MOST)
        return max(rest_s, REST_WITH_OTHERS_S) if self._with_others else rest_s


class _LongLine:
    """Long work, one slice in each turn of the loop."""

    def __init__(self, clock_s: Callable[[], float], cpu_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._cpu_s = cpu_s
        self._line: deque[asyncio.Future[None] | Callable[[], None]] = deque()
        self._rests = Rests()
        self._running = False
        self._rest_s = self._late_s = self._due_s = 0.0
        self._others_cpu_s = self._left_cpu_s = 0.0
        """`left`: what the thread had used of the processor when the slice before was done."""

    async def turn(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.add(turn)
        await turn

    def add(self, one: asyncio.Future[None] | Callable[[], None]) -> None:
        self._line.append(one)
        if not self._running:
            self._running = True
            # What went on while there was no long work says nothing of who is there now.
            self._left_cpu_s = self._cpu_s()
            asyncio.get_running_loop().call_soon(self._next)

    def worked(self, wall_s: float, cpu_s: float) -> None:
        """What the slice took that was begun last."""
        self._rest_s = self._rests.after(wall_s, cpu_s, self._late_s, self._others_cpu_s)
        self._left_cpu_s = self._cpu_s()

    def _next(self) -> None:
        self._late_s = max(0.0, self._clock_s() - self._due_s - _TIMER_S) if self._due_s else 0.0
        self._due_s = self._rest_s = 0.0
        self._others_cpu_s = self._cpu_s() - self._left_cpu_s
        while self._line:
            first = self._line.popleft()
            if not isinstance(first, asyncio.Future):
                began_s, cpu_s = self._clock_s(), self._cpu_s()
                first()
                self.worked(self._clock_s() - began_s, self._cpu_s() - cpu_s)
            elif first.done():  # given up
                continue
            else:
                first.set_result(None)
            asyncio.get_running_loop().call_soon(self._rest)
            return
        self._running = False

    def _rest(self) -> None:
        """After the slice: the task goes on before this is called."""
        loop = asyncio.get_running_loop()
        if self._rest_s < _TIMER_S / 2:
            loop.call_soon(self._next)
        else:
            self._due_s = self._clock_s() + self._rest_s
            loop.call_later(self._rest_s, self._next)


class LoopTurns:
    """The lines of one event loop."""

    def __init__(
        self, clock_s: Callable[[], float] = perf_counter, cpu_s: Callable[[], float] = thread_time
    ) -> None:
        """`cpu_s`: what this thread has used of the processor."""
        self.clock_s = clock_s
        self.cpu_s = cpu_s
        self._long = _LongLine(clock_s, cpu_s)
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

    def when_not_wanted(self, work: Callable[[], None]) -> None:
        """Call `work`, which takes a slice at most, in the line of long work: it rests as others want the processor."""
        self._long.add(work)

    async def next(self) -> None:
        """Wait for a turn, then go on for a slice."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        self._go()
        await turn

    async def run(self, steps: Generator[None, None, T], *, at_once: bool = True) -> T:
        """What `steps` returns, slice by slice; a step is far shorter than one. The first slice is done `at_once`
        or gets in line too."""
        if not at_once:
            await self.next_slice()
        while True:
            began_s, cpu_s = self.clock_s(), self.cpu_s()
            try:
                while True:
                    next(steps)
                    if self.clock_s() - began_s >= LONG_SLICE_S:
                        break
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._long.worked(self.clock_s() - began_s, self.cpu_s() - cpu_s)
            await self.next_slice()

    async def next_slice(self) -> None:
        """Wait for a turn in the line of long work."""
        await self._long.turn()

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
