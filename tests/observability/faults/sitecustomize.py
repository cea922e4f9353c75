"""Faults of a process that nothing from outside brings about, by files in its working directory.

`fail`: its event loop meets an error that nothing expected, once for each time the file comes. `compute`: it only
computes, while the file is there.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

_LOOK_S = 0.1
_COMPUTE_S = 0.2
FAIL, COMPUTE = Path("fail"), Path("compute")

_run: Callable[..., Any] = asyncio.Runner.run


def _run_with_faults(runner: asyncio.Runner, main: Coroutine[Any, Any, Any], **more: Any) -> Any:
    threading.Thread(target=_look, args=(runner.get_loop(),), daemon=True).start()
    return _run(runner, main, **more)


def _look(loop: asyncio.AbstractEventLoop) -> None:
    failed = computes = False
    while not loop.is_closed():
        time.sleep(_LOOK_S)
        if FAIL.exists() and not failed:
            loop.call_soon_threadsafe(_fail)
        failed = FAIL.exists()
        if COMPUTE.exists() and not computes:
            loop.call_soon_threadsafe(_compute, loop)
        computes = COMPUTE.exists()


def _fail() -> None:
    raise RuntimeError("a fault that a test has laid over this process")


def _compute(loop: asyncio.AbstractEventLoop) -> None:
    until_s = time.thread_time() + _COMPUTE_S
    while time.thread_time() < until_s:
        pass
    if COMPUTE.exists():
        loop.call_later(0.001, _compute, loop)


asyncio.Runner.run = _run_with_faults  # type: ignore[method-assign, assignment]
