"""A stream that was refused before it began.

PySpark's runner calls `reader.stop()` on its way out, also when `streamReader()` raised and there is no reader: its
own UnboundLocalError is then the last line that the user sees. So `streamReader()` returns this reader, and the error
comes out of the first call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # PySpark before 4.2, which is then what the error tells
        SupportsTriggerAvailableNow = object


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises `error` at whatever Spark asks of a stream."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _refuse(self) -> NoReturn:
        raise self._error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        self._refuse()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        self._refuse()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        self._refuse()

    def commit(self, end: dict[str, Any]) -> None:
        """Never reached: nothing was read."""

    def stop(self) -> None:
        """Nothing was begun."""
