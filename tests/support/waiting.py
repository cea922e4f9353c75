"""Waiting for a condition with a deadline: the only way in which tests wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_INTERVAL_S = 0.05


def wait_for(condition: Callable[[], T], what: str, timeout_s: float = 120.0) -> T:
    """The first true value of `condition`; after the deadline the test fails and names `what`.

    It is asked once more after the deadline: this process may have had no processor meanwhile.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        over = time.monotonic() > deadline
        value = condition()
        if value:
            return value
        if over:
            raise AssertionError(f"{what}: not within {timeout_s:.0f} s (last: {value!r})")
        time.sleep(POLL_INTERVAL_S)


async def eventually(condition: Callable[[], T], what: str, timeout_s: float = 60.0) -> T:
    """As `wait_for`, on the event loop: what is waited for has no event of its own."""
    deadline = time.monotonic() + timeout_s
    while True:
        over = time.monotonic() > deadline
        value = condition()
        if value:
            return value
        if over:
            raise AssertionError(f"{what}: not within {timeout_s:.0f} s (last: {value!r})")
        await asyncio.sleep(0.005)
