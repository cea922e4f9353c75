"""Streaming queries of tests, on a machine that may be busy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.waiting import wait_for

WAIT_S = 500.0
_TRIES_MAX = 20
_LATE_WORKER = "Python worker failed to connect back"


def started(start: Callable[[], Any]) -> Any:
    """A query of `start` whose source is up, or that has ended.

    Spark gives the Python process of a streaming source 10 s to come up and takes no other word for it: where it
    had no processor for so long the query is started anew, as its user would.
    """
    for _ in range(_TRIES_MAX):
        query = start()
        wait_for(lambda: _is_past_its_start(query), "the source of a query is up", WAIT_S)  # noqa: B023
        if query.isActive or _LATE_WORKER not in str(query.exception()):
            break
    return query


def _is_past_its_start(query: Any) -> bool:
    return not query.isActive or not query.status["message"].startswith("Initializing")
