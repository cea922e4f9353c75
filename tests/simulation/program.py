"""What a client's program is made of: coroutines that wait for answers and for time.

They live on the scheduler, not on a loop. A program may hang (nothing of it runs, answers wait, then it goes on with
what it believes: a zombie) and die.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.world import World


class Pause:
    """What a program awaits."""

    __slots__ = ("_start",)

    def __init__(self, start: Callable[[Callable[[Any], None]], None]) -> None:
        """`start` is given what to call with the result."""
        self._start = start

    def __await__(self) -> Generator[Pause, Any, Any]:
        return (yield self)

    def begin(self, resume: Callable[[Any], None]) -> None:
        """Have it happen."""
        self._start(resume)


class Program:
    """One run of a client."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_dead = False
        self.is_hung = False
        self._held: list[tuple[Coroutine[Any, Any, None], Any]] = []
        self._running: dict[Coroutine[Any, Any, None], None] = {}

    def run(self, coro: Coroutine[Any, Any, None]) -> None:
        """A part of the program."""
        self._running[coro] = None
        self._step(coro, None)

    def _step(self, coro: Coroutine[Any, Any, None], value: Any) -> None:
        if self.is_dead:
            return
        if self.is_hung:
            self._held.append((coro, value))
            return
        try:
            pause: Pause = coro.send(value)
        except StopIteration:
            self._running.pop(coro, None)
            return
        pause.begin(lambda result: self._step(coro, result))

    def hang(self) -> None:
        """Nothing of it runs from now on."""
        self.is_hung = True

    def go_on(self) -> None:
        """What waited while it hung runs."""
        held, self._held = self._held, []
        for coro, value in held:
            self._step(coro, value)

    def dispose(self) -> None:
        """After the run."""
        self.is_dead = True
        for coro in self._running:
            coro.close()
        self._running.clear()

    def sleep(self, us: int) -> Pause:
        """Let time pass."""
        return Pause(lambda resume: self._later(us, resume))

    def _later(self, us: int, resume: Callable[[Any], None]) -> None:
        self.world.scheduler.after(us, resume, None)
