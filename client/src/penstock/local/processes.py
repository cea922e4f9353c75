"""Start, watch and signal child processes that outlive the command that started them.

Rules: a process is known by its pid *and* by when it started, so that a pid which the
system gave to another program is never signalled. Children run in a session of their
own: neither Ctrl-C at the terminal nor its closing reaches them.

A dead child of this very process is a zombie until it is waited for; `is_alive` counts
zombies as dead, and `reap` collects them.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import cache
from pathlib import Path

FAILPOINTS = ("PENSTOCK_FAILPOINTS", "PENSTOCK_ALLOW_FAILPOINTS")

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ProcessState(StrEnum):
    """States that `penstock local status` shows."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    DEAD = "dead"


def child_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment without variables named PENSTOCK_*, and with `more`.

    They would win over the settings file that the local cluster wrote for a process. Those
    that arm failpoints stand in no such file; crash tests pass them on.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PENSTOCK_") or name in FAILPOINTS
    }
    environment["PYTHONUNBUFFERED"] = "1"
    return {**environment, **(more or {})}


def spawn(
    command: Sequence[str], directory: Path, log: Path, environment: Mapping[str, str] | None = None
) -> int:
    """Start a process in the background, its output appended to `log`; returns its pid."""
    with log.open("ab") as output:
        child = subprocess.Popen(  # noqa: S603 (our own interpreter, arguments that we made)
            command,
            cwd=directory,
            env=child_environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # Its end is seen and collected by pid (`reap`); the object would warn of a child still running.
    child.returncode = 0
    return child.pid


def identity(pid: int) -> str | None:
    """What tells this process from any other that ever has the same pid; None when there is none."""
    fields = _proc_stat(pid)
    if fields is not None:
        return f"{_boot_id()}:{fields[19]}"
    if _BOOT_ID.exists():
        return None
    import psutil

    try:
        return f"created:{psutil.Process(pid).create_time():.2f}"
    except psutil.Error:
        return None


def process_state(pid: int | None, known_identity: str | None) -> ProcessState:
    """RUNNING, STOPPED or DEAD, by the operating system alone."""
    if pid is None or known_identity is None:
        return ProcessState.DEAD
    if identity(pid) != known_identity:
        return ProcessState.DEAD
    letter = _state_letter(pid)
    if letter in ("Z", "X"):
        reap(pid)
        return ProcessState.RUNNING if _has_threads(pid) else ProcessState.DEAD
    return ProcessState.STOPPED if letter in ("T", "t") else ProcessState.RUNNING


def send_signal(pid: int | None, known_identity: str | None, signal_number: signal.Signals) -> bool:
    """Signal the process if it is still the one we started; False when it is gone."""
    if pid is None or process_state(pid, known_identity) is ProcessState.DEAD:
        return False
    try:
        os.kill(pid, signal_number)
    except ProcessLookupError:
        return False
    return True


def reap(pid: int) -> None:
    """Collect a dead child of this process; anything else is left alone."""
    with suppress(ChildProcessError, OSError):
        os.waitpid(pid, os.WNOHANG)


def last_lines(log: Path, count: int) -> list[str]:
    """The last non-empty lines of a log file, at most `count`; [] when there is none."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 16_384))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]


@cache
def _boot_id() -> str:
    return _BOOT_ID.read_text().strip()


def _proc_stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on (index 0); index 19 is the start time in ticks."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _has_threads(pid: int) -> bool:
    """Whether threads of a process whose first thread has ended still run.

    A killed process of several threads shows as a zombie while the others are on their
    way out, and until the last of them is gone its ports and locks are still held.
    """
    try:
        return len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except OSError:
        return False


def _state_letter(pid: int) -> str:
    fields = _proc_stat(pid)
    if fields is not None:
        return fields[0]
    import psutil

    try:
        status = psutil.Process(pid).status()
    except psutil.Error:
        return "X"
    return {psutil.STATUS_ZOMBIE: "Z", psutil.STATUS_STOPPED: "T"}.get(status, "R")
