"""Removes clusters of a process that is gone: `python -m penstock.local.janitor`, orders on stdin.

`+DIRECTORY` takes a cluster in care, `-DIRECTORY` lets it go. When stdin ends, because the
process at its other end has died in whatever way, all that are left are destroyed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from penstock.errors import CommandError
from penstock.local.cluster import LocalCluster


class Janitor:
    """A janitor process for clusters that this process starts."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "penstock.local.janitor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def watch(self, directory: Path) -> None:
        """Destroy that cluster when this process dies."""
        self._say(f"+{directory}")

    def forget(self, directory: Path) -> None:
        """It is gone already."""
        self._say(f"-{directory}")

    def _say(self, words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(words + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End the janitor, which destroys what it still has in care."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> int:
    """Follow orders until stdin ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched: dict[str, None] = {}
    for line in sys.stdin:
        order, directory = line[:1], line[1:].rstrip("\n")
        if order == "+":
            watched[directory] = None
        else:
            watched.pop(directory, None)
    for directory in watched:
        # One that was being made, or is gone: the others still have to go.
        with suppress(CommandError, OSError):
            LocalCluster(Path(directory)).destroy()
    return 0


if __name__ == "__main__":
    sys.exit(main())
