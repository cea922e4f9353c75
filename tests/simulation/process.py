"""A simulated process: an event loop of its own, and a life that a fault may end or hold up."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from penstock_proto.v1 import common_pb2
from penstock_runtime.ports import Clocks
from penstock_runtime.turns import LOOP_TURNS, LoopTurns
from simulation.scheduler import SimLoop, Timer, start
from support.simulated_fs import SimulatedCrash

if TYPE_CHECKING:
    from simulation.world import World


class SimLog:
    """Logs nowhere, or to the trace when somebody reads one."""

    def __init__(self, say: Callable[[str], None] | None) -> None:
        self._say = say

    def bind(self, **_fields: object) -> SimLog:
        return self

    def _line(self, event: str, **fields: object) -> None:
        if self._say is not None:
            self._say(f"{event} {' '.join(f'{k}={v}' for k, v in fields.items())}")

    debug = info = warning = error = _line


class _Counter:
    def inc(self, _: float = 1) -> None:
        return None


class _Registry:
    def register(self, _collector: object) -> None:
        return None


class SimLifecycle:
    """What roles ask of `penstock_runtime.lifecycle.Lifecycle`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.log: Any = process.log
        self.loop_ticks = 0
        self.is_at_rest = False
        self.unhandled_errors = _Counter()
        # Slices of work are of real time, which a simulation has none of: nothing is long here.
        self.shared: dict[str, object] = {LOOP_TURNS: LoopTurns(lambda: 0.0, lambda: 0.0)}
        self.registry: Any = _Registry()
        self.stopping = asyncio.Event()
        self.failed = asyncio.Event()
        self.is_ready = False
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def create_task(self, coro: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = self._process.loop.create_task(coro, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._task_done)
        return task

    async def end_tasks(self) -> None:
        tasks = [t for t in self._tasks if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail_with(error)

    def fail_with(self, error: BaseException, **_fields: object) -> None:
        self._process.failed(error)

    def fatal(self, message: str, code: int = 70) -> None:
        del code
        self._process.failed(RuntimeError(message))

    def process_info(self) -> common_pb2.ProcessInfo:
        return common_pb2.ProcessInfo(
            version="sim",
            feature_level=self._process.world.host_of[self._process.name].feature_level,
            boot_id=self._process.boot_id,
        )

    def bind_identity(self, _: str) -> None:
        return None

    def set_ready(self) -> None:
        self.is_ready = True

    def set_not_ready(self, _: str) -> None:
        self.is_ready = False

    def request_stop(self, _: str) -> None:
        self.stopping.set()

    def leave(self, _: str) -> None:
        self.stopping.set()

    def start_again(self, _: str, option: str) -> None:
        """Whoever starts it next does so with this option."""
        self._process.world.host_of[self._process.name].is_spare = option == "--spare"
        self.stopping.set()


class Process:
    """One run of one program on the host of that name."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.boots = world.next_boot()
        self.boot_id = self.boots.to_bytes(16, "big")
        self.is_up = True
        self.log: Any = SimLog(world.say_for(name))
        base_us = world.rng.randrange(10**9, 10**12)
        self.loop = SimLoop(world.scheduler, base_us, self._on_loop_error)  # type: ignore[abstract]
        self.loop.process = self  # type: ignore[attr-defined]
        self.loop.before_run = self._enter
        self.deferred: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.connections: dict[Any, None] = {}
        """Clients' connections."""
        self.lifecycle: Any = SimLifecycle(self)
        world.processes.append(self)
        self.clocks = Clocks(self.clock_ms, self.loop.time, self.wall_ms)

    def _enter(self) -> None:
        self.world.current = self

    @property
    def is_paused(self) -> bool:
        return self.loop.is_paused

    @property
    def is_running(self) -> bool:
        """Alive and not stopped."""
        return self.is_up and not self.loop.is_paused

    def clock_ms(self) -> int:
        """Monotonic clock."""
        return self.loop.time_ms()

    def wall_ms(self) -> int:
        """Wall clock; steps."""
        return self.world.wall_ms(self.name)

    def new_rng(self) -> random.Random:
        """Seeded by the run's."""
        return random.Random(self.world.rng.getrandbits(64))

    def new_uuid(self) -> uuid.UUID:
        """As `uuid.uuid4`."""
        return uuid.UUID(int=self.world.rng.getrandbits(128), version=4)

    def spawn(self, coro: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine for the life of the process; its failure is the process's."""
        task = start(self.loop, coro)
        task.add_done_callback(self.lifecycle._task_done)

    def after(self, delay_us: int, call: Callable[..., object], *args: Any) -> Timer:
        """Run something on a thread of this process later; waits while it is stopped."""
        return self.world.scheduler.after(delay_us, self._due, call, args)

    def _due(self, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self.is_up:
            return
        if self.loop.is_paused:
            self.deferred.append((call, args))
            return
        self.world.current = self
        try:
            call(*args)
        except SimulatedCrash as crash:
            self.failed(crash)

    def pause(self) -> None:
        """SIGSTOP."""
        self.world.network.disturb(self.name)
        self.loop.pause()
        for pipe in list(self.world.network.pipes):
            for end in (0, 1):
                if pipe.ends[end] == self.name:
                    pipe.stall(1 - end)

    def resume(self) -> None:
        """SIGCONT."""
        self.world.network.disturb(self.name)
        self.loop.resume()
        deferred, self.deferred = self.deferred, []
        for call, args in deferred:
            self.world.scheduler.after(0, self._due, call, args)
        for pipe in list(self.world.network.pipes):
            for end in (0, 1):
                if pipe.ends[end] == self.name:
                    pipe.unstall(1 - end)

    def kill(self) -> None:
        """SIGKILL, as far as the program goes."""
        self.is_up = False
        self.world.network.disturb(self.name)
        self.loop.kill()

    def drop_connections(self) -> None:
        """Clients see their connections break."""
        for connection in list(self.connections):
            connection.closed = True
            self.world.scheduler.after(self.world.network.delay_us(), connection.lost)

    def failed(self, error: BaseException) -> None:
        """The program ended itself because of `error`."""
        if self.is_up:
            self.world.on_process_failed(self, error)

    def _on_loop_error(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            self.failed(error)
        else:
            self.failed(RuntimeError(str(context.get("message", "unknown error of the loop"))))
