"""What a run of tests is at: a line every few minutes, so that a log which was cut off says what it waited for."""

from __future__ import annotations

import os
import threading
import time

import pytest

INTERVAL_S = 300.0


class Progress:
    """A plugin of pytest for the process that tells of tests: with pytest-xdist, the one that has no worker's work."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._begun_s = time.monotonic()
        self._running: dict[str, float] = {}
        """Since when each test runs, by the monotonic clock."""
        self._done = 0
        self._over = threading.Event()
        self._stderr = os.dup(2)

    def pytest_sessionstart(self) -> None:
        threading.Thread(target=self._tell, name="progress", daemon=True).start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._done += 1
        self._running.pop(nodeid, None)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self._over.set()

    def _tell(self) -> None:
        while not self._over.wait(self._interval_s):
            os.write(self._stderr, f"\n[{self.line()}]\n".encode())

    def line(self) -> str:
        now_s = time.monotonic()
        running = ", ".join(
            f"{name} ({now_s - since_s:.0f} s)" for name, since_s in list(self._running.items())
        )
        return f"{now_s - self._begun_s:.0f} s, {self._done} tests done, at {running or 'none'}"
