"""Starting and ending a role: settings, logs, event loop, signals, exit code.

Each role's `__main__` is `run_role_main(ROLE)`. The one-process mode runs several roles
in one loop with `run_roles`; there they end in reverse order, gateways before nodes
before controllers, so that each can still drain against what it needs.

No process is ever forked here: gRPC threads do not survive it.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Generic, NoReturn, TypeVar

from penstock_runtime.addresses import StartupError
from penstock_runtime.audit import open_audit
from penstock_runtime.failpoints import arm_from_environment
from penstock_runtime.lifecycle import EXIT_DRAIN_TOO_LONG, EXIT_FAILED, EXIT_START_AGAIN, Lifecycle
from penstock_runtime.logs import configure_logs, error_fields, get_log, write_folded
from penstock_runtime.memory import bound_allocator, trim_allocator
from penstock_runtime.settings import RoleSettings, load_settings
from penstock_runtime.tracing import open_tracing
from penstock_runtime.version import VERSION

ENTRY_POINT_GROUP = "penstock.roles"
_CANCEL_TIMEOUT_MS = 1_000

S = TypeVar("S", bound=RoleSettings)


@dataclass(frozen=True)
class Role(Generic[S]):
    """One of the services. `run` serves until `lifecycle.stopping`, drains, and returns."""

    name: str
    settings: type[S]
    run: Callable[[S, Lifecycle], Awaitable[None]]
    help: str = ""


def find_role(name: str) -> Role[Any]:
    """The installed role of that name (entry point group `penstock.roles`)."""
    found = {e.name: e for e in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise StartupError(
            f"role {name} is not installed (installed: {known}); install the package penstock-{name}"
        )
    role = found[name].load()
    if not isinstance(role, Role):
        raise StartupError(f"entry point {name} of {ENTRY_POINT_GROUP} is not a Role")
    return role


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where there is one, else asyncio's own."""
    if sys.platform == "win32":
        # Listeners share one read buffer, which a proactor's reads under way would not bear.
        return asyncio.SelectorEventLoop()
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run_role_main(role: Role[Any], argv: Sequence[str] | None = None) -> int:
    """Run one role as this process; the exit code. Never raises, never prints a trace."""
    try:
        settings = load_settings(role.settings, argv, role.name)
    except StartupError as e:
        for line in e.message.splitlines():
            print(f"penstock-{role.name}: {line}", file=sys.stderr)
        return e.exit_code
    configure_logs(settings.log_level, settings.log_format)
    again: list[str] = []
    code = run_in_loop(
        lambda: run_roles([(role, settings)], again), allow_failpoints=settings.allow_failpoints
    )
    if code == EXIT_START_AGAIN and argv is None:
        _start_again(again)
    return code


def _start_again(flags: Sequence[str]) -> NoReturn:
    """The same program with the same words and these flags, as the same process: whoever watches it sees none end."""
    words = [*sys.orig_argv[1:], *(flag for flag in flags if flag not in sys.orig_argv)]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *words])  # noqa: S606 (our own command line)


def run_in_loop(main: Callable[[], Coroutine[Any, Any, int]], *, allow_failpoints: bool = False) -> int:
    """Run `main` on a fresh event loop; 70 when it raises."""
    try:
        arm_from_environment(allowed=allow_failpoints)
    except StartupError as e:
        print(e.message, file=sys.stderr)
        return e.exit_code
    _prepare_process()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(main())
    except KeyboardInterrupt:
        return 130
    except Exception as e:
        get_log().error("failed", **error_fields(e))
        return EXIT_FAILED
    finally:
        write_folded(everything=True)


_GC_THRESHOLDS = (700, 10, 1_000)
_SWITCH_INTERVAL_S = 0.0005
"""How long a thread that wants the interpreter waits for one that has it. Python's 5 ms are longer than an ack takes:
the disk's threads, which need it for microseconds, stood that long behind a loop with work in every turn."""


def _prepare_process() -> None:
    # Only a crash of the interpreter itself prints anything; it has nothing else to say it with.
    with contextlib.suppress(RuntimeError, ValueError, OSError, AttributeError):
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1)
    _raise_open_files_limit()
    _leave_no_core()
    bound_allocator()
    # What start-up made lives for ever: keep it out of every later collection.
    gc.freeze()
    # A full collection looks at every partition of the metadata image, 0.15 s at 100,000 of them,
    # in whichever thread it strikes. What is made here has hardly any cycles: it may wait.
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    trim_allocator()


def _raise_open_files_limit() -> None:
    """Logs and connections need descriptors; the soft limit is often 1,024."""
    try:
        import resource
    except ImportError:  # no such thing on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1_048_576 if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    _grow_descriptor_table(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


_DESCRIPTORS_EXPECTED = 16_384
"""Connections and files of a busy process: 128 KiB of the kernel's memory."""


def _grow_descriptor_table(limit: int) -> None:
    """Have room for them before there are threads.

    The kernel doubles a process's table of descriptors as they come, and once there are threads whoever needed the next
    one, the event loop as a rule, is held for 10 to 20 ms each time, until no processor looks at the old table any more
    (`expand_fdtable` of fs/file.c: synchronize_rcu). A thousand clients that came in brought four such stops.
    """
    import fcntl  # there is none on Windows, where nobody comes here

    # Below 0: no limit.
    highest = (_DESCRIPTORS_EXPECTED if limit < 0 else min(limit, _DESCRIPTORS_EXPECTED)) - 1
    with contextlib.suppress(OSError), open(os.devnull, "rb") as blank:
        os.close(fcntl.fcntl(blank, fcntl.F_DUPFD_CLOEXEC, highest))


def _leave_no_core() -> None:
    """A core holds keys and passwords. One byte, not none: that stops one that goes through a pipe too (core(5), and
    fs/coredump.c of Linux). Who wants one says so of the process that runs: `prlimit --pid PID --core=unlimited`."""
    try:
        import resource
    except ImportError:  # no such thing on Windows
        return
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if hard != 0:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CORE, (1, hard))


async def run_roles(roles: Sequence[tuple[Role[Any], RoleSettings]], again: list[str] | None = None) -> int:
    """Run roles side by side until a signal or the failure of one; the exit code.

    They are told to stop in reverse order, each after the one before it has ended. One that left by itself takes no
    other with it. EXIT_START_AGAIN: one asks for the process to begin anew, with the flags that are in `again` then.
    """
    lives = [Lifecycle(role.name, allow_insecure_bind=s.plaintext) for role, s in roles]
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.set_exception_handler(lives[0].loop_exception)
    _install_signals(loop, lives, stop)
    runs: list[asyncio.Task[None]] = []
    for (role, settings), life in zip(roles, lives, strict=True):
        life.settings = settings.printable()
        life.directory = getattr(settings, "slots_dir", None) or settings.data_dir
        life.log.info("starting", version=VERSION, settings=life.settings)
        if settings.allow_insecure_bind:
            life.log.warning(
                "allow_insecure_bind permits plaintext on every port; name those that need it in allow_plaintext"
            )
        life.start_ticking()
        runs.append(loop.create_task(_run_one(role, settings, life), name=role.name))
    waits = [loop.create_task(w) for w in (stop.wait(), *(life.failed.wait() for life in lives))]
    try:
        await _first_end(runs, lives, waits)
        for (_, settings), life, run in reversed(list(zip(roles, lives, runs, strict=True))):
            await _end_one(settings, life, run)
    finally:
        for task in waits:
            task.cancel()
        _remove_signals(loop)
    code = next((life.exit_code for life in lives if life.exit_code), 0)
    if code == EXIT_START_AGAIN:
        if stop.is_set():
            return 0  # told to end meanwhile
        if again is not None:
            again += [flag for life in lives for flag in life.again_with]
    return code


async def _first_end(
    runs: Sequence[asyncio.Task[None]], lives: Sequence[Lifecycle], waits: Sequence[asyncio.Task[Any]]
) -> None:
    """Until a signal, the failure of a role, or the end of one that did not leave; or until none is left."""
    going_on = list(zip(runs, lives, strict=True))
    while going_on:
        await asyncio.wait(
            [*(run for run, _ in going_on), *waits],
            return_when=asyncio.FIRST_COMPLETED,
        )
        if any(task.done() for task in waits) or any(
            run.done() and not life.has_left for run, life in going_on
        ):
            return
        going_on = [(run, life) for run, life in going_on if not run.done()]


async def _run_one(role: Role[Any], settings: RoleSettings, life: Lifecycle) -> None:
    life.make_current()
    try:
        open_audit(settings, life)
        open_tracing(settings, life)
        await _serve_health(settings, life)
        await role.run(settings, life)
    except asyncio.CancelledError:
        raise
    except Exception as e:
        life.fail_with(e)
        return
    if not life.stopping.is_set():
        life.fatal("the role ended by itself")


async def _serve_health(settings: RoleSettings, life: Lifecycle) -> None:
    """What a balancer asks for tells a stranger nothing: it may be plaintext anywhere."""
    if settings.health_bind:
        from penstock_runtime.http import HttpServer

        health = HttpServer(
            settings.health_bind, life, allow_insecure_bind=True, health_only=True, setting="health_bind"
        )
        endpoint = await health.start()
        life.log.info("health is told", address=endpoint.address)


async def _end_one(settings: RoleSettings, life: Lifecycle, run: asyncio.Task[None]) -> None:
    """Let one role drain, within its bound."""
    life.request_stop("asked to")
    bound_ms = settings.shutdown_timeout_ms
    # A failed role gets no time to drain: what it stands on may be broken.
    failed = asyncio.ensure_future(life.failed.wait())
    await asyncio.wait([run, failed], timeout=bound_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
    failed.cancel()
    if not run.done():
        if not life.failed.is_set():
            life.fatal(
                f"draining took longer than shutdown_timeout_ms = {bound_ms}; ending without it",
                EXIT_DRAIN_TOO_LONG,
            )
        run.cancel()
        await asyncio.wait([run], timeout=_CANCEL_TIMEOUT_MS / 1000)
    await life.end_all()
    life.stop_ticking()
    if run.done() and not run.cancelled() and (error := run.exception()) is not None:
        life.fail_with(error)
    life.log.info("stopped", code=life.exit_code)


def _install_signals(loop: asyncio.AbstractEventLoop, lives: list[Lifecycle], stop: asyncio.Event) -> None:
    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            lives[0].end_at_once(128 + number)
        lives[0].log.info("signal", signal=number.name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        # Where the loop cannot (Windows, another thread) the default stays.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, on_signal, number)


def _remove_signals(loop: asyncio.AbstractEventLoop) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.remove_signal_handler(number)


__all__ = ["Role", "find_role", "new_event_loop", "run_in_loop", "run_role_main", "run_roles"]
