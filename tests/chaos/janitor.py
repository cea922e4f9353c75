"""Removes what a chaos run made on this machine, also when the run itself is killed.

A child process holds the read end of a pipe. It is told of each process, mount and network
namespace before use, and when the pipe closes, in whatever way its writer ended, it ends
those processes (by pid and start time), unmounts and removes the namespaces. All of that
may have been done before: each step is harmless when there is nothing left.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.local.processes import send_signal

TESTS_DIRECTORY = Path(__file__).resolve().parents[1]
CLOSE_TIMEOUT_S = 120.0


class Janitor:
    """The run's end of the pipe. Use as a context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.janitor"],
            stdin=subprocess.PIPE,
            cwd=TESTS_DIRECTORY,
            start_new_session=True,  # Ctrl-C is for the run; this one ends after it
            text=True,
        )

    def __enter__(self) -> Janitor:
        return self

    def __exit__(self, *_: object) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        with suppress(OSError):
            pipe.close()
        self._process.wait(CLOSE_TIMEOUT_S)

    def process(self, pid: int, identity: str | None) -> None:
        self._tell("process", pid, identity)

    def mount(self, path: Path) -> None:
        self._tell("mount", str(path))

    def namespace(self, name: str) -> None:
        self._tell("namespace", name)

    def _tell(self, *words: Any) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        pipe.write(json.dumps(words) + "\n")
        pipe.flush()


def remove_namespace(name: str) -> None:
    subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def unmount(path: str) -> None:
    subprocess.run(["umount", "-l", path], check=False, capture_output=True)


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    things = [json.loads(line) for line in sys.stdin]
    for kind, *words in things:
        if kind == "process":
            send_signal(words[0], words[1], signal.SIGKILL)
    for kind, *words in things:
        if kind == "mount":
            unmount(words[0])
        elif kind == "namespace":
            remove_namespace(words[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
