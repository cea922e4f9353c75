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
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

READY_MAX = 200_000
"""Callbacks that one turn of a loop may run before it counts as spinning."""

US_PER_S = 1_000_000


class Timer:
    """One entry of the scheduler; `cancel` takes it out."""

    __slots__ = ("args", "call", "number", "when_us")

    def __init__(self, when_us: int, number: int, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.when_us = when_us
        self.number = number
        self.call: Callable[..., object] | None = call
        self.args = args

    def cancel(self) -> None:
        self.call = None
        self.args = ()


class Scheduler:
    """Simulated time in microseconds, and what happens when."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_us = 0
        self.events = 0
        """Scheduler events and callbacks of loops that have run."""
        self.objects = 0
        """Tasks and futures made."""
        self.digest = seed
        self._heap: list[tuple[int, int, Timer]] = []
        self._number = 0

    def at(self, when_us: int, call: Callable[..., object], *args: Any) -> Timer:
        """Run `call(*args)` at that time, at once if it is past."""
        self._number = number = self._number + 1
        timer = Timer(max(when_us, self.now_us), number, call, args)
        heapq.heappush(self._heap, (timer.when_us, number, timer))
        return timer

    def after(self, delay_us: int, call: Callable[..., object], *args: Any) -> Timer:
        """Run `call(*args)` that much later."""
        return self.at(self.now_us + delay_us, call, *args)

    def note(self, *what: int) -> None:
        """Make something that happened part of the trace's digest."""
        self.digest = hash((self.digest, self.now_us, what))

    def run(self, until_us: int, stop: Callable[[], bool] | None = None) -> None:
        """Run events up to that time, or until `stop` says so."""
        heap = self._heap
        pop = heapq.heappop
        while heap and heap[0][0] <= until_us:
            when_us, number, timer = pop(heap)
            call = timer.call
            if call is None:
                continue
            self.now_us = when_us
            self.events += 1
            self.digest = hash((self.digest, when_us, number))
            call(*timer.args)
            if stop is not None and stop():
                return
        self.now_us = max(self.now_us, until_us)


class _Handle:
    """A callback of a loop (the part of asyncio.Handle that anybody uses)."""

    __slots__ = ("_args", "_call", "_cancelled", "_timer", "_when")

    def __init__(self, call: Callable[..., object], args: tuple[Any, ...], when: float = 0.0) -> None:
        self._call = call
        self._args = args
        self._when = when
        self._cancelled = False
        self._timer: Timer | None = None

    def cancel(self) -> None:
        self._cancelled = True
        self._call, self._args = _nothing, ()
        if self._timer is not None:
            self._timer.cancel()

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when


def _nothing() -> None:
    return None


class SimFuture(asyncio.Future):  # type: ignore[type-arg]
    """A future that hashes the same in every run."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class SimTask(asyncio.Task):  # type: ignore[type-arg]
    """A task that hashes the same in every run."""

    number = 0

    def __hash__(self) -> int:
        return self.number


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
        self._base_us = base_us
        """Each process's monotonic clock begins somewhere else."""
        self._on_error = on_error
        self._ready: deque[_Handle] = deque()
        self._turn: Timer | None = None

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
        if self._ready:
            self._schedule()

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
        handle = _Handle(callback, args)
        if not self.is_dead:
            self._ready.append(handle)
            if self._turn is None and not self.is_paused:
                self._schedule()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        return self.call_at(self.time() + delay, callback, *args)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        handle = _Handle(callback, args, when)
        if not self.is_dead:
            when_us = int(when * US_PER_S) + 1 - self._base_us
            handle._timer = self.scheduler.at(when_us, self._due, handle)
        return handle

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Of asyncio's TimerHandle, which is not used here."""

    def _due(self, handle: _Handle) -> None:
        if self.is_dead:
            return
        self._ready.append(handle)
        if self.is_paused:
            return
        if self._turn is None:
            self._run_ready()

    def _schedule(self) -> None:
        if self._turn is None:
            self._turn = self.scheduler.at(self.scheduler.now_us, self._run_turn)

    def _run_turn(self) -> None:
        self._turn = None
        if not self.is_paused:
            self._run_ready()

    def _run_ready(self) -> None:
        ready = self._ready
        self.before_run()
        previous = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        # A turn is under way: what is added now runs in it.
        self._turn = _IN_TURN
        count = 0
        try:
            while ready and not self.is_dead and not self.is_paused:
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                count += 1
                if count > READY_MAX:
                    raise RuntimeError(f"the loop spins: {handle._call}")
                handle._call(*handle._args)
        finally:
            asyncio._set_running_loop(previous)
            self._turn = None
            self.scheduler.events += count

    # --- futures and tasks

    def create_future(self) -> Any:
        future = SimFuture(loop=self)
        self.scheduler.objects += 1
        future.number = self.scheduler.objects
        return future

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> Any:
        task = SimTask(coro, loop=self, name=name)
        self.scheduler.objects += 1
        task.number = self.scheduler.objects
        self.tasks.append(task)
        if self.is_dead:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        if len(self.tasks) > 2000:
            self.tasks = [t for t in self.tasks if not t.done()]
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


_IN_TURN: Any = Timer(0, 0, _nothing, ())


def start(loop: SimLoop, coro: Coroutine[Any, Any, Any]) -> SimTask:
    """Make a task from outside of the loop."""
    task: SimTask = loop.create_task(coro)
    return task
