"""A machine of its own for the lines: a network that ends there, every port free, an empty folder for the checkout.

Linux's namespaces (`unshare`, `nsenter`, root). All that a line leaves behind ends with it.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

_NAMESPACES: Final = ("--net", "--mount", "--pid", "--uts")
_FIRST: Final = """
set -e
ip link set lo up
ip link add eth0 type bridge
ip addr add 192.0.2.1/24 dev eth0
ip link set eth0 up
hostname localhost
mount -t tmpfs -o ro tmpfs "$1"
exec "$2" -c 'import signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print(flush=True); sys.stdin.read()'
"""
"""The first process there. As SIGCHLD is ignored, the kernel clears away whoever has lost his parent and ends.
It ends with who made it, killed or not: its input does.
The second address leads nowhere: without one the C library resolves `localhost` for nobody who asks as librdkafka does
(AI_ADDRCONFIG), which says nothing of a machine with a network."""
_LOOK_S: Final = 0.2
"""How often a command that says nothing is looked after."""
_READ_BYTES: Final = 65_536


class Ended(NamedTuple):
    """What became of a command: `problem` is empty where it ended well."""

    output: str
    problem: str


def plain(output: bytes) -> str:
    """Without what a terminal obeys."""
    text = output.decode(errors="replace").replace("\r\n", "\n")
    return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", text)


def missing() -> str:
    """Why this cannot be had here; empty when it can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    absent = [tool for tool in ("unshare", "nsenter", "ip", "hostname") if shutil.which(tool) is None]
    return (
        f"no {', '.join(absent)} here (Debian: apt-get install util-linux iproute2 hostname)"
        if absent
        else ""
    )


class Apart:
    """The namespaces, while the `with` lasts. `hidden` is a folder that nobody sees there."""

    def __init__(self, hidden: Path, base: str = sys.executable) -> None:
        words = ["unshare", *_NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
        # The interpreter itself, since the environment that this runs in may lie in what is hidden.
        self._command = [*words, "sh", "-c", _FIRST, "first", str(hidden), str(Path(base).resolve())]

    def __enter__(self) -> Self:
        self._holder = subprocess.Popen(
            self._command,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None and self._holder.stderr is not None
        if not self._holder.stdout.readline():
            self._holder.wait()
            raise OSError(f"namespaces are refused here: {self._holder.stderr.read().strip()}")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        (self._first,) = children
        return self

    def run(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str], timeout_s: float
    ) -> Ended:
        """Runs a command there, at a terminal as people do, and waits for it, but not for what it leaves running."""
        entering = ["nsenter", f"--target={self._first}", *_NAMESPACES, f"--wdns={folder}"]
        terminal, its_end = pty.openpty()
        with open(terminal, "rb", buffering=0) as reading:
            process = subprocess.Popen(
                [*entering, *command],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=its_end,
                stderr=its_end,
                start_new_session=True,
            )
            os.close(its_end)
            deadline = time.monotonic() + timeout_s
            output = b""
            has_ended = False
            while True:
                if select.select([reading], [], [], 0 if has_ended else _LOOK_S)[0]:
                    try:
                        output += reading.read(_READ_BYTES)
                    except OSError:  # EIO: nobody has the other end any more
                        break
                elif has_ended:
                    break
                has_ended = process.poll() is not None
                if not has_ended and time.monotonic() > deadline:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    return Ended(plain(output), f"not within {timeout_s:.0f} s")
            code = process.wait()
        return Ended(plain(output), f"exit code {code}" if code else "")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The first process dies with `unshare`, and with it all others there.
        self._holder.kill()
        self._holder.communicate()
