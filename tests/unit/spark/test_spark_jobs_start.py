"""A query whose source's process came up too late is started anew, and no other. No Spark."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_penstock.jobs.streams import STARTS_MAX, to_its_end


class Query:
    """Ends as it is told to."""

    def __init__(self, error: str) -> None:
        self.error = error
        self.stops = 0

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 (Spark's name)
        assert timeout > 0
        if self.error:
            raise RuntimeError(self.error)
        return True

    def stop(self) -> None:
        self.stops += 1


class Writer:
    """Starts queries, one after another."""

    def __init__(self, *errors: str) -> None:
        self.queries = [Query(error) for error in errors]
        self.starts = 0

    def start(self) -> Any:
        self.starts += 1
        return self.queries[self.starts - 1]


LATE = "[STREAM_FAILED] ... Python worker failed to connect back. SQLSTATE: XXKST"


def test_a_late_worker_is_waited_for() -> None:
    writer = Writer(LATE, LATE, "")
    to_its_end(writer)  # type: ignore[arg-type]
    assert [query.stops for query in writer.queries] == [1, 1, 1]


def test_other_errors_and_late_ones_without_end() -> None:
    writer = Writer("disk full", "")
    with pytest.raises(RuntimeError, match="disk full"):
        to_its_end(writer)  # type: ignore[arg-type]
    assert writer.starts == 1
    writer = Writer(*[LATE] * STARTS_MAX)
    with pytest.raises(RuntimeError, match="connect back"):
        to_its_end(writer)  # type: ignore[arg-type]
    assert writer.starts == STARTS_MAX
