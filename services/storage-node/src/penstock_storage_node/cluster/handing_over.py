"""How a node that wants to stop has its leadership moved away, within a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock_runtime.logs import Log
from penstock_storage_node.cluster.registration import Registration

CONTROLLER_SILENCE_MS_MAX: Final = 2_500
"""When a node wants to stop and no controller has answered for that long, it stops alone."""


async def hand_over(
    registration: Registration, bound_ms: int, clock_s: Callable[[], float], log: Log
) -> None:
    """Return when others lead what this node led, or when there is no use in waiting."""
    registration.leave(bound_ms)
    deadline_s = clock_s() + bound_ms / 1000
    while not registration.may_shutdown.is_set():
        if clock_s() >= deadline_s:
            reason = f"leadership did not move away within {bound_ms} ms"
        elif registration.silence_ms() > CONTROLLER_SILENCE_MS_MAX:
            reason = "no controller answers"
        else:
            await _wait_ms(registration.may_shutdown, 50)
            continue
        log.warning("stopping before others took over", reason=reason)
        return


async def _wait_ms(event: asyncio.Event, most_ms: int) -> None:
    try:
        async with asyncio.timeout(most_ms / 1000):
            await event.wait()
    except TimeoutError:
        pass
