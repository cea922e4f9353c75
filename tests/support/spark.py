"""Streaming queries of tests, on a machine that may be busy."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from support.waiting import wait_for

WAIT_S = 500.0
only_in_long_form = pytest.mark.skipif(
    "PENSTOCK_SPARK_READING" not in os.environ, reason="of the long form: make spark-reading-test"
)
"""Mark of a test of the source of which `make test` has another one."""
_TRIES_MAX = 20
LATE_WORKER = "Python worker failed to connect back"
"""Spark gives the Python process of a streaming source 10 s to come up: on a machine that is busier the query is
started anew, as its user would; nothing has been read by then."""


def started(start: Callable[[], Any]) -> Any:
    """A query of `start` whose source is up, or that has ended.

    Spark gives the Python process of a streaming source 10 s to come up and takes no other word for it: where it
    had no processor for so long the query is started anew, as its user would.
    """
    for _ in range(_TRIES_MAX):
        query = start()
        wait_for(lambda: _is_past_its_start(query), "the source of a query is up", WAIT_S)  # noqa: B023
        if query.isActive or LATE_WORKER not in str(query.exception()):
            break
    return query


class LiveQuery:
    """A query that runs until it is stopped. It is started again from its checkpoint where Spark has given up a Python
    process that came up late; `start` starts it."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._query = started(start)

    def check(self) -> None:
        """Raises what it has ended with."""
        error = self._query.exception()
        if error is None:
            return
        if LATE_WORKER not in str(error):
            raise error
        self._query = started(self._start)

    def stop(self) -> None:
        self._query.stop()


def run_to_end(start: Callable[[], Any]) -> None:
    """A query of `start` until it ends by itself. Raises what Spark raises, but for a Python process that came up
    late: then the query is started again, from its checkpoint."""
    for _ in range(_TRIES_MAX):
        query = start()
        try:
            assert query.awaitTermination(int(WAIT_S)), "the query did not end"
            return
        except Exception as error:
            if LATE_WORKER not in str(error):
                raise
    raise AssertionError(f"Spark had no processor for the Python process of a source {_TRIES_MAX} times")


def _is_past_its_start(query: Any) -> bool:
    return not query.isActive or not query.status["message"].startswith("Initializing")


def last_error_line(error: BaseException | None) -> str:
    """What a user reads at the end of Spark's exception: its last line with an error, as Spark's own traces of Java
    may follow."""
    lines = [line for line in str(error).splitlines() if "Error" in line]
    return lines[-1] if lines else str(error)
