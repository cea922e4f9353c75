"""The simulated clock, the one queue of events, and event loops that live on it.

Rules
  * One heap of (time, number); ties go by number, so the order is a matter of the seed alone.
  * No real time, no thread, no socket: a `SimLoop` is asyncio's coroutine machinery with the
    scheduler where the selector was. Each simulated process has one of its own, so a process
    can be stopped (nothing of it runs) and killed (nothing of it ever runs again).
  * Tasks and futures hash by number, not by address: sets of them keep their order from run to run.
"""

from __future__ import annotations

import asyncio
import random
from asyncio import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from heapq import heappop as _pop
from heapq import heappush as _push
from typing import Any

READY_MAX = 200_000
"""Callbacks that one turn of a loop may run before it counts as spinning."""

US_PER_S = 1_000_000


class Timer(list[Any]):
    """One entry of the scheduler, `[when_us, number, call, args]`; `cancel` takes it out.

    A list, because the heap compares entries as often as it moves them, and a class of our own
    with an `__init__` costs as much as many an event.
    """

    __slots__ = ()

    @property
    def when_us(self) -> int:
        return self[0]  # type: ignore[no-any-return]

    @property
    def is_over(self) -> bool:
        """Cancelled, or it has run."""
        return self[2] is None

    def cancel(self) -> None:
        self[2] = None
        self[3] = ()


class Scheduler:
    """Simulated time in microseconds, and what happens when."""

    def __init__(self, seed: int) -> None:
        _Numbers.last = 0
        self.rng = random.Random(seed)
        self.now_us = 0
        self.events = 0
        """Scheduler events and callbacks of loops that have run."""
        self.digest = seed
        self.is_stopped = False
        """`run` ends after this event."""
        self._heap: list[Timer] = []
        self._number = 0

    def at(self, when_us: int, call: Callable[..., object], *args: Any) -> Timer:
        """Run `call(*args)` at that time, at once if it is past."""
        self._number = number = self._number + 1
        if when_us < self.now_us:
            when_us = self.now_us
        timer = Timer((when_us, number, call, args))
        _push(self._heap, timer)
        return timer

    def after(self, delay_us: int, call: Callable[..., object], *args: Any) -> Timer:
        """Run `call(*args)` that much later."""
        self._number = number = self._number + 1
        timer = Timer((self.now_us + (delay_us if delay_us > 0 else 0), number, call, args))
        _push(self._heap, timer)
        return timer

    def note(self, *what: int) -> None:
        """Make something that happened part of the trace's digest."""
        self.digest = hash((self.digest, self.now_us, what))

    def run(self, until_us: int) -> bool:
        """Run events up to that time; False when somebody has set `is_stopped`."""
        heap = self._heap
        while heap and heap[0][0] <= until_us:
            timer = _pop(heap)
            when_us, number, call, args = timer
            if call is None:
                continue
            timer[2] = None
            self.now_us = when_us
            self.events += 1
            self.digest = hash((self.digest, when_us, number))
            call(*args)
            if self.is_stopped:
                return False
        self.now_us = max(self.now_us, until_us)
        return True


class _Handle(list[Any]):
    """A callback of a loop, `[call, args, timer, when]`: the part of asyncio.Handle that anybody uses."""

    __slots__ = ()

    def cancel(self) -> None:
        self[0] = None
        self[1] = ()
        if self[2] is not None:
            self[2].cancel()

    def cancelled(self) -> bool:
        return self[0] is None

    def when(self) -> float:
        return self[3]  # type: ignore[no-any-return]


def _nothing() -> None:
    return None


class _Numbers:
    """Numbers of futures and tasks, given out as they are asked for their hash: few ever are."""

    last = 0

    @classmethod
    def next(cls) -> int:
        cls.last += 1
        return cls.last


class SimFuture(asyncio.Future):  # type: ignore[type-arg]
    """A future that hashes the same in every run."""

    number = 0

    def __hash__(self) -> int:
        number = self.number
        if not number:
            number = self.number = _Numbers.next()
        return number


class SimTask(asyncio.Task):  # type: ignore[type-arg]
    """A task that hashes the same in every run."""

    number = 0

    def __hash__(self) -> int:
        number = self.number
        if not number:
            number = self.number = _Numbers.next()
        return number


class SimLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulated process."""

    def __init__(
        self, scheduler: Scheduler, base_us: int, on_error: Callable[[dict[str, Any]], None]
    ) -> None:
        self.scheduler = scheduler
        self.is_paused = False
        self.is_dead = False
        self.tasks: list[SimTask] = []
        self.before_run: Callable[[], None] = _nothing
        self.after_run: Callable[[], None] = _nothing
        """What must hold whenever the process waits for something to come in."""
        self._base_us = base_us
        """Each process's monotonic clock begins somewhere else."""
        self._on_error = on_error
        self._ready: deque[_Handle] = deque()
        self._turn: Timer | None = None
        self._tasks_most = 200

    # --- time

    def time(self) -> float:
        return (self.scheduler.now_us + self._base_us) / US_PER_S

    def time_ms(self) -> int:
        """Monotonic clock of the process, in ms."""
        return (self.scheduler.now_us + self._base_us) // 1000

    # --- life

    def pause(self) -> None:
        """SIGSTOP: what happens meanwhile waits."""
        self.is_paused = True

    def resume(self) -> None:
        """SIGCONT."""
        self.is_paused = False
        if self._ready and self._turn is None:
            self._turn = self.scheduler.after(0, self._run_turn)

    def kill(self) -> None:
        """SIGKILL: not one more line of this process runs."""
        self.is_dead = True
        self._ready.clear()

    def dispose(self) -> None:
        """After the run: let go of coroutines that never ended."""
        self.is_dead = True
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        for task in self.tasks:
            coro: Any = task.get_coro()
            with suppress(BaseException):
                coro.close()
        self.tasks.clear()
        self._ready.clear()

    # --- callbacks

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        handle = _Handle((callback, args, None, 0.0))
        if not self.is_dead:
            self._ready.append(handle)
            if self._turn is None and not self.is_paused:
                self._turn = self.scheduler.after(0, self._run_turn)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_now(self, callback: Callable[..., object], *args: Any) -> None:
        """As the selector does: something has come in. Only for events of the scheduler."""
        if self.is_dead:
            return
        self._ready.append(_Handle((callback, args, None, 0.0)))
        if self._turn is None and not self.is_paused:
            self._run_ready()

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        return self.call_at((self.scheduler.now_us + self._base_us) / US_PER_S + delay, callback, *args)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        handle = _Handle((callback, args, None, when))
        if not self.is_dead:
            when_us = int(when * US_PER_S) + 1 - self._base_us
            handle[2] = self.scheduler.at(when_us, self._due, handle)
        return handle

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Of asyncio's TimerHandle, which is not used here."""

    def _due(self, handle: _Handle) -> None:
        if self.is_dead:
            return
        self._ready.append(handle)
        if self._turn is None and not self.is_paused:
            self._run_ready()

    def _run_turn(self) -> None:
        self._turn = None
        if not self.is_paused:
            self._run_ready()

    def _run_ready(self) -> None:
        ready = self._ready
        self.before_run()
        previous = _get_running_loop()
        _set_running_loop(self)
        # A turn is under way: what is added now runs in it.
        self._turn = _IN_TURN
        count = 0
        try:
            while ready and not self.is_dead and not self.is_paused:
                call, args, _, _ = ready.popleft()
                if call is None:
                    continue
                count += 1
                call(*args)
                if count > READY_MAX:
                    raise RuntimeError(f"the loop spins: {call}")
        finally:
            _set_running_loop(previous)
            self._turn = None
            self.scheduler.events += count
        if not self.is_dead:
            self.after_run()

    # --- futures and tasks

    def create_future(self) -> Any:
        return SimFuture(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> Any:
        task = SimTask(coro, loop=self, name=name)
        self.tasks.append(task)
        if self.is_dead:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coro.close()
        if len(self.tasks) > self._tasks_most:
            self.tasks = [t for t in self.tasks if not t.done()]
            self._tasks_most = 2 * len(self.tasks) + 200
        return task

    # --- the rest

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self._on_error(context)


_IN_TURN = Timer((0, 0, None, ()))


def start(loop: SimLoop, coro: Coroutine[Any, Any, Any]) -> SimTask:
    """Make a task from outside of the loop."""
    task: SimTask = loop.create_task(coro)
    return task
