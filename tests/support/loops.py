"""A fixture: coroutines run to their end on each kind of event loop."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

Run = Callable[[Coroutine[Any, Any, Any]], Any]

HANG_S = 120
"""A test that takes so long hangs; no test is about how long it takes."""

_FACTORIES: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.SelectorEventLoop,
}


@pytest.fixture(params=sorted(_FACTORIES))
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine to its end, once on each kind of event loop."""

    def run_one(coro: Coroutine[Any, Any, Any]) -> Any:
        with warnings.catch_warnings(), asyncio.Runner(loop_factory=_FACTORIES[request.param]) as runner:
            return runner.run(asyncio.wait_for(coro, HANG_S))

    return run_one
