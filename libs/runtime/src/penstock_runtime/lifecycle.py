"""The life of one role in a process: readiness, tasks, metrics, the end.

Rules. The first TERM or INT sets `stopping`: the role drains and its `run` returns. A
second one ends the process at once. A task made with `create_task` that fails ends the
role with one log line; nothing fails unseen. `InvariantBroken` anywhere is fatal.

Exit codes: 0 drained, 1 drain took too long, 2 could not start, 70 failed, 143 (TERM) or
130 (INT) ended by a second signal.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector
from prometheus_client.gc_collector import GCCollector

from penstock_core.errors import InvariantBroken
from penstock_core.limits import FEATURE_LEVEL
from penstock_proto.v1 import common_pb2
from penstock_runtime.addresses import Plaintext, StartupError
from penstock_runtime.logs import CONSTANT, error_fields, get_log, line_counts, write_folded
from penstock_runtime.loop_metrics import LoopMetrics
from penstock_runtime.recent_max import RecentMax
from penstock_runtime.version import VERSION

EXIT_DRAIN_TOO_LONG = 1
EXIT_FAILED = 70
EXIT_START_AGAIN = 75
"""Of a role that asked for `start_again` where the process cannot begin anew by itself."""
LOOP_TICK_MS = 100
REST_TICK_MS = 250
"""The same of a loop at rest: most of what a process without work does are its ticks."""
REST_SHARE_MAX = 0.05
REST_LATE_S_MAX = 0.01
"""A loop that was busy for a greater part of the time since the last tick, or late by more, is not at rest."""
LAG_WINDOW_S = 60.0
LOOP_STUCK_S = 2.0
"""A loop that is later than that counts as stuck: /healthz says so."""
_TASK_END_TIMEOUT_MS = 2_000
_CLOSE_TIMEOUT_MS = 2_000

T = TypeVar("T")


def monotonic_ms() -> int:
    """The clock that every `clock_ms` of a real process is."""
    return time.monotonic_ns() // 1_000_000


_current: ContextVar[Lifecycle | None] = ContextVar("penstock_lifecycle", default=None)


def current_lifecycle() -> Lifecycle | None:
    """The lifecycle of the role that the running task belongs to."""
    return _current.get()


class Lifecycle:
    """What a role has of its process. Make it inside a running event loop's thread."""

    def __init__(self, role: str, identity: str = "", *, allow_insecure_bind: Plaintext = False) -> None:
        self.role = role
        self.stopping = asyncio.Event()
        """Set once: drain and return."""
        self.failed = asyncio.Event()
        """Set by `fatal`; `exit_code` says with what."""
        self.exit_code = 0
        self.has_left = False
        """It ended because there is nothing left for it to do: other roles of the process go on."""
        self.again_with: tuple[str, ...] = ()
        """Flags with which the process is to begin anew, see `start_again`."""
        self.allow_insecure_bind = allow_insecure_bind
        """What listeners and servers take when they are not told otherwise."""
        self.identity = identity
        """Which one of its role it is; "" until that is known."""
        self.loop_ticks = 0
        """Ticks of the event loop: one every 100 ms, or 250 ms at rest, while it is not stuck."""
        self.boot_id = uuid.uuid4().bytes
        self.log = get_log(role=role, **({"id": identity} if identity else {}))
        self.registry = CollectorRegistry()
        self.settings: dict[str, object] = {}
        """Those in effect, without secrets."""
        self.directory: Path | None = None
        """Where its data are; with slots, where the slots are."""
        self.shared: dict[str, object] = {}
        """One-per-role objects of other modules (counters), by name."""
        self._not_ready_reason: str | None = "starting"
        self._tasks: set[asyncio.Task[Any]] = set()
        self._at_end: list[Callable[[], Awaitable[None]]] = []
        self._tick: asyncio.TimerHandle | None = None
        self._next_tick = 0.0
        self._ticked_s = self._ticked_cpu_s = 0.0
        """When the last tick came, and what the loop had worked until then."""
        self.is_at_rest = False
        """Whether the loop had next to nothing to do between the last two ticks."""
        self._loop_time: Callable[[], float] = time.monotonic
        self._add_process_metrics()

    def _add_process_metrics(self) -> None:
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        Gauge(
            "penstock_build_info",
            "Version of this process; always 1.",
            ["role", "version", "feature_level"],
            registry=self.registry,
        ).labels(self.role, VERSION, str(FEATURE_LEVEL)).set(1)
        Gauge(
            "penstock_insecure_bind",
            "1 when allow_insecure_bind permits plaintext on every port that other machines reach.",
            registry=self.registry,
        ).set(float(self.allow_insecure_bind is True))
        Gauge("penstock_ready", "1 when the role is ready to serve.", registry=self.registry).set_function(
            lambda: float(self._not_ready_reason is None)
        )
        self._lag = Gauge(
            "penstock_loop_lag_seconds_max",
            "Longest delay of a timer of the event loop in the last 60 s.",
            registry=self.registry,
        )
        self._lag_max = RecentMax(LAG_WINDOW_S)
        self._loop_metrics = LoopMetrics(line_counts)
        self.registry.register(self._loop_metrics)
        self._lag.set_function(lambda: self._lag_max.value(self._next_tick))
        self.unhandled_errors = Counter(
            "penstock_unhandled_errors",
            "Errors that nothing expected; each is logged once.",
            registry=self.registry,
        )

    def make_current(self) -> None:
        """What this task and the tasks it starts open from here on is closed at the end of the role."""
        _current.set(self)

    # Identity

    def bind_identity(self, identity: str) -> None:
        """Name the process in every later log line, once its id is known."""
        self.identity = identity
        self.log = self.log.bind(id=identity)

    @property
    def name(self) -> str:
        """What this process is called: `gateway/gateway-1`."""
        return f"{self.role}/{self.identity}" if self.identity else self.role

    def process_info(self) -> common_pb2.ProcessInfo:
        """What this process says of itself when it registers."""
        return common_pb2.ProcessInfo(version=VERSION, feature_level=FEATURE_LEVEL, boot_id=self.boot_id)

    # Readiness

    def set_ready(self) -> None:
        """The role serves. Logged when it changes."""
        if self._not_ready_reason is not None:
            self._not_ready_reason = None
            self.log.info("ready")

    def set_not_ready(self, reason: str) -> None:
        """The role does not serve, and why, in one line. Logged when it changes."""
        if self._not_ready_reason != reason:
            self._not_ready_reason = reason
            self.log.info("not ready", reason=reason)

    def ready_reason(self) -> str | None:
        """None when ready, else why not."""
        return "stopping" if self.stopping.is_set() else self._not_ready_reason

    def health_reason(self) -> str | None:
        """None while the event loop turns, else since when it does not: a process to be started anew."""
        if self._tick is None:
            return None
        stuck_s = self._loop_time() - self._next_tick
        return f"the event loop has not turned for {stuck_s:.1f} s" if stuck_s > LOOP_STUCK_S else None

    # Tasks and failure

    def create_task(self, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run `coro` for the life of the role; its failure is the role's failure."""
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self.fail_with(error, task=task.get_name())

    def fail_with(self, error: BaseException, **fields: object) -> None:
        """End the role because of `error`, with one log line."""
        if isinstance(error, StartupError):
            self.fatal(error.message, error.exit_code)
        elif not self.failed.is_set():
            self.unhandled_errors.inc()
            self.log.error("failed", **fields, **error_fields(error))
            self._end(EXIT_FAILED)

    def fatal(self, message: str, code: int = EXIT_FAILED) -> None:
        """End the role with one log line. The first call decides; later ones are ignored."""
        if not self.failed.is_set():
            for line in message.splitlines():
                self.log.error(line, **{CONSTANT: "ended by an error"})
            self._end(code)

    def _end(self, code: int) -> None:
        self.exit_code = code
        self.failed.set()
        self.stopping.set()

    def loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The event loop's handler: what reached nobody is logged once and counted."""
        error = context.get("exception")
        if isinstance(error, InvariantBroken):
            self.fail_with(error)
            return
        self.unhandled_errors.inc()
        fields = error_fields(error) if isinstance(error, BaseException) else {}
        self.log.error("unhandled error", what=context.get("message", ""), **fields)

    def at_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Call `close` when the role is over, if only because it failed before closing itself."""
        self._at_end.append(close)

    async def end_all(self) -> None:
        """Cancel what `create_task` started, then close what `at_end` was told, last first."""
        await self.end_tasks()
        while self._at_end:
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT_MS / 1000):
                    await self._at_end.pop()()
            except Exception as e:
                self.unhandled_errors.inc()
                self.log.error("closing failed", **error_fields(e))

    async def end_tasks(self) -> None:
        """Cancel what `create_task` started and wait for it."""
        tasks = [t for t in self._tasks if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=_TASK_END_TIMEOUT_MS / 1000)
            for task in left:
                self.log.warning("task does not end", task=task.get_name())

    # Stopping

    def request_stop(self, reason: str) -> None:
        """Begin to drain."""
        if not self.stopping.is_set():
            self.log.info("stopping", reason=reason)
            self.stopping.set()

    def leave(self, reason: str) -> None:
        """End this role, with exit code 0, because there is nothing left for it to do."""
        self.has_left = True
        self.request_stop(reason)

    def start_again(self, reason: str, *flags: str) -> None:
        """End this role, and begin the process anew in its place, with the flags of now and these."""
        if not self.failed.is_set():
            self.again_with = flags
            self.exit_code = EXIT_START_AGAIN
        self.request_stop(reason)

    def end_at_once(self, code: int) -> None:
        """End the process with no more ado (second TERM)."""
        self.log.warning("ending at once", code=code)
        write_folded(everything=True)
        os._exit(code)

    # Progress of the event loop

    def start_ticking(self) -> None:
        """Count turns of the event loop and measure how late its timers are."""
        loop = asyncio.get_running_loop()
        self._loop_time = loop.time
        self._ticked_s, self._ticked_cpu_s = loop.time(), self._loop_metrics.cpu_s()
        self._next_tick = self._ticked_s + LOOP_TICK_MS / 1000
        self._tick = loop.call_at(self._next_tick, self._on_tick, loop)

    def stop_ticking(self) -> None:
        """The opposite of `start_ticking`."""
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None

    def _on_tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        self.loop_ticks += 1
        late_s = max(0.0, now - self._next_tick)
        self._lag_max.add(now, late_s)
        self._loop_metrics.lag.observe(late_s)
        write_folded()
        self.is_at_rest = self._had_rest(now, late_s)
        self._next_tick = now + (REST_TICK_MS if self.is_at_rest else LOOP_TICK_MS) / 1000
        self._tick = loop.call_at(self._next_tick, self._on_tick, loop)

    def _had_rest(self, now: float, late_s: float) -> bool:
        cpu_s = self._loop_metrics.cpu_s()
        worked_s, passed_s = cpu_s - self._ticked_cpu_s, now - self._ticked_s
        self._ticked_s, self._ticked_cpu_s = now, cpu_s
        return late_s <= REST_LATE_S_MAX and worked_s <= REST_SHARE_MAX * passed_s


ClockMs = Callable[[], int]
