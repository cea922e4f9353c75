"""Runs a streaming query to its end, and adds up what its micro-batches say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark_penstock.jobs.frame import Progress, quiet

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

STARTS_MAX: Final = 10
_LATE_WORKER: Final = "Python worker failed to connect back"
_LOOK_S: Final = 1
"""Spark keeps the last hundred reports of a query."""


def to_its_end(writer: DataStreamWriter, look: Callable[[Any], None] | None = None) -> None:
    """Runs the query; again where Spark gave up the source's Python process, to which it gives 10 s to come up.

    `look` is called with the query now and then, and when it has ended well.
    """
    for left in reversed(range(STARTS_MAX)):
        query = writer.start()
        try:
            while not query.awaitTermination(_LOOK_S):
                if look is not None:
                    look(query)
            if look is not None:
                look(query)
            return
        except Exception as error:
            if not left or _LATE_WORKER not in str(error):
                raise
        finally:
            query.stop()


class Tally:
    """Sums of what `observe` has measured in each micro-batch."""

    def __init__(self, topic: str, progress: Progress = quiet) -> None:
        self._topic = topic
        self._progress = progress
        self._batches: dict[int, dict[str, int]] = {}

    def look(self, query: Any) -> None:
        """Takes in what the query has reported since."""
        for report in query.recentProgress:
            self.take(report.batchId, report.observedMetrics, report.stateOperators)

    def take(self, batch: int, measured: Mapping[str, Any], operators: Any = ()) -> None:
        """One report. A query that waits reports the next micro-batch, too: what comes later counts."""
        found = {name: int(number or 0) for row in measured.values() for name, number in row.asDict().items()}
        found["late"] = sum(int(item.numRowsDroppedByWatermark) for item in operators)
        if any(found.values()) and self._batches.get(batch) != found:
            self._progress(
                f"{self._topic}: batch {batch}, "
                + ", ".join(
                    f"{number} {name}" for name, number in found.items() if name != "bytes" and number
                )
            )
        self._batches[batch] = found

    def total(self, name: str) -> int:
        return sum(item.get(name, 0) for item in self._batches.values())
