"""The end of a test process whose test hangs for good.

pytest-timeout raises in the main thread, once, when that runs Python again. That does not reach what holds on to it: a
teardown after the test has failed by it, a callback that catches everything, a C library that waits. One hung test then
costs a whole run, and says nothing of where. Here a thread of C, which needs no interpreter, writes where every
thread stands and ends the process: pytest-xdist tells of the test as failed and goes on with another worker.
"""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Generator

import pytest

GRACE_S = 240.0
"""Beyond a test's own timeout: a teardown stops whole clusters."""


class Watchdog:
    """A plugin of pytest, to be made in pytest_configure."""

    def __init__(self, timeout_s: float, grace_s: float = GRACE_S) -> None:
        self._timeout_s = timeout_s
        self._grace_s = grace_s
        self._deadline_s = 0.0
        """By the monotonic clock; 0 between tests."""
        # While a test runs the process's own goes where pytest collects what it prints.
        self._stderr = os.dup(2)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._deadline_s = time.monotonic() + self._timeout_of(item) + self._grace_s
        self._arm()
        try:
            return (yield)
        finally:
            self._deadline_s = 0.0
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self) -> None:
        # pytest disarms it, for a debugger's sake. Outside of a test, as in collection, there is nothing to arm.
        if self._deadline_s:
            self._arm()

    def _arm(self) -> None:
        left_s = max(1.0, self._deadline_s - time.monotonic())
        faulthandler.dump_traceback_later(left_s, file=self._stderr, exit=True)

    def _timeout_of(self, item: pytest.Item) -> float:
        marker = item.get_closest_marker("timeout")
        if marker is None:
            return self._timeout_s
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
