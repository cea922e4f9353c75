"""Starts several roles out of one interpreter: `python -m penstock.local.launch`, jobs as JSON on stdin.

Theory: most of what a role does until it listens is importing the same libraries. Seven
roles on two cores spend over two seconds on that, when one interpreter imports them once
and is forked per role, each is up at once. Nothing of a role is imported before the fork,
no thread runs, no gRPC object exists and no event loop; where that does not hold (or the
system is not Linux) the roles are started in the ordinary way instead.

Each child gets a session, a log, a working directory and a command line of its own: `ps`
shows what an ordinary start would show. Prints the pids as a JSON list.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from penstock.local.processes import child_environment, spawn

PRELOADED = (
    *("grpc.aio", "uvloop", "pydantic_settings", "structlog", "prometheus_client"),
    *("google.protobuf.message", "penstock_kafka.wire.codec", "penstock_core.metadata.image"),
    *("penstock_runtime.roles", "penstock_runtime.http", "penstock_runtime.grpc_tools"),
    *("penstock_runtime.controller_client", "penstock_runtime.metadata_client"),
)
"""Libraries and our own lib packages; never a role."""

COMMAND_BYTES = 512
"""Room in the command line for the one that `ps` shall show (`padding`)."""


class Job(NamedTuple):
    """One process: `module` run with `arguments` in `directory`, its output appended to `log`."""

    module: str
    arguments: list[str]
    directory: str
    log: str


def start_all(jobs: Sequence[Job], environment: Mapping[str, str] | None = None) -> list[int]:
    """Start the jobs, several of them through a launcher process; their pids, in order.

    They have this process's environment but for its PENSTOCK_* variables, and `environment`.

    Ctrl-C waits until the pids are known, so that none of them is left behind unknown.
    """
    if len(jobs) <= 1:
        return [_spawn(job, environment) for job in jobs]
    padding = "-" * COMMAND_BYTES
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        done = subprocess.run(  # noqa: S603 (our own interpreter and module)
            [sys.executable, "-P", "-m", "penstock.local.launch", padding],
            input=json.dumps({"preloaded": PRELOADED, "jobs": jobs}),
            stdout=subprocess.PIPE,
            env=child_environment(environment),
            text=True,
            check=True,
            start_new_session=True,
        )
        pids: list[int] = json.loads(done.stdout)
        return pids
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def main() -> int:
    """Read the jobs, start them, print their pids."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    asked = json.load(sys.stdin)
    jobs = [Job(*fields) for fields in asked["jobs"]]
    may_fork = sys.platform == "linux"
    if may_fork:
        for name in asked["preloaded"]:
            # What is missing is missed by the role, which says so in its log.
            with suppress(ImportError):
                import_module(name)
        may_fork = len(list(Path("/proc/self/task").iterdir())) == 1
        gc.collect()
        gc.freeze()
    pids = [_fork(job) if may_fork else _spawn(job, os.environ) for job in jobs]
    sys.stdout.write(json.dumps(pids))
    return 0


def _spawn(job: Job, environment: Mapping[str, str] | None) -> int:
    command = [sys.executable, "-P", "-m", job.module, *job.arguments]
    return spawn(command, Path(job.directory), Path(job.log), environment)


def _fork(job: Job) -> int:
    pid = os.fork()
    if pid:
        return pid
    # From here on in the child; it never returns to the caller.
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(job.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(nothing)
        os.close(log)
        os.chdir(job.directory)
        gc.unfreeze()
        command = [sys.executable, "-P", "-m", job.module, *job.arguments]
        sys.orig_argv = command
        sys.argv = [job.module, *job.arguments]
        with suppress(OSError, ValueError, IndexError):
            _show_command(command)
        runpy.run_module(job.module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        raise end
    except BaseException as error:
        sys.stderr.write(f"{job.module} could not be started: {type(error).__name__}: {error}\n")
        raise SystemExit(70) from None
    raise SystemExit(0)


def _show_command(command: Sequence[str]) -> None:
    """Write `command` over this process's own arguments in memory, from where `ps` reads them."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    room = end - start
    text = b"\0".join(word.encode() for word in command)[: room - 1]
    ctypes.memmove(start, text.ljust(room, b"\0"), room)


if __name__ == "__main__":
    sys.exit(main())
