"""A read of a topic to Parquet, as a process of its own, that stops in the middle of a task until it may go on.

The stop is in a data source around the real one, which tasks import by this module's name: a task that has received
some of its rows, and not all, tells its process and its partition in `reached` and waits for a file `go`. It strikes
once in a directory.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from pyspark_penstock import DefaultSource
from pyspark_penstock.reader import RangePartition

STOP_AFTER = "stopafter"
"""Option: after how many Arrow batches a task stops."""
DIRECTORY = "faults"
_KEPT_BY_US = (STOP_AFTER, DIRECTORY)


class Stop:
    """Where, and behind how many batches of a task."""

    def __init__(self, directory: str, after: int) -> None:
        self._directory = directory
        self._after = after

    def around(self, batches: Iterator[Any], partition: InputPartition) -> Iterator[Any]:
        directory = Path(self._directory)
        held: list[Any] = []
        for number, batch in enumerate(batches):
            # One is kept back, so that a task which stops is known to have more.
            if held:
                yield held.pop()
            held.append(batch)
            if number == self._after and self._strikes(directory, partition):
                while not (directory / "go").exists():
                    time.sleep(0.02)
        yield from held

    def _strikes(self, directory: Path, partition: InputPartition) -> bool:
        if not isinstance(partition, RangePartition):
            return False
        try:
            (directory / "struck").touch(exist_ok=False)
        except FileExistsError:
            return False
        told = directory / "telling"
        told.write_text(f"{os.getpid()} {partition.wanted.partition}")
        told.rename(directory / "reached")  # whoever sees it can read it
        return True


class StoppingReader(DataSourceReader):
    """The real batch reader, with a stop."""

    def __init__(self, inner: DataSourceReader, stop: Stop) -> None:
        self._inner = inner
        self._stop = stop

    def partitions(self) -> Sequence[InputPartition]:
        return self._inner.partitions()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._stop.around(iter(self._inner.read(partition)), partition)


class StoppingStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The real streaming reader, with a stop."""

    def __init__(self, inner: Any, stop: Stop) -> None:
        self._inner = inner
        self._stop = stop

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        found: dict[str, Any] = self._inner.initialOffset()
        return found

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        found: ReadLimit = self._inner.getDefaultReadLimit()
        return found

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        found: dict[str, Any] = self._inner.latestOffset(start, limit)
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        found: dict[str, Any] | None = self._inner.reportLatestOffset()
        return found

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._inner.prepareForTriggerAvailableNow()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        found: Sequence[InputPartition] = self._inner.partitions(start, end)
        return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._stop.around(iter(self._inner.read(partition)), partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._inner.commit(end)

    def stop(self) -> None:
        self._inner.stop()


class StoppingSource(DefaultSource):
    """Penstock's source with the options `faults` and `stopAfter`."""

    @classmethod
    def name(cls) -> str:
        return "penstock_stopping"

    def _take_stop(self) -> Stop:
        """The real source refuses options that it doesn't know."""
        stop = Stop(self.options[DIRECTORY], int(self.options[STOP_AFTER]))
        for name in _KEPT_BY_US:
            del self.options[name]
        return stop

    def schema(self) -> Any:
        kept = {name: self.options[name] for name in _KEPT_BY_US}
        self._take_stop()
        form = super().schema()
        self.options.update(kept)
        return form

    def reader(self, schema: Any) -> DataSourceReader:
        stop = self._take_stop()
        return StoppingReader(super().reader(schema), stop)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        stop = self._take_stop()
        return StoppingStream(super().streamReader(schema), stop)


def main() -> int:
    from pyspark.sql import SparkSession

    from support.spark import started
    from support.spark_source_faults import StoppingSource as Source  # as workers know it, not as __main__
    from support.waiting import wait_for

    parser = argparse.ArgumentParser()
    for name in ("kind", "gateway", "topic", "mode", "master", "per-trigger", "stop-after"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--conf", action="append", default=[])
    given = parser.parse_args()
    builder = SparkSession.builder.master(given.master).appName("source-faults")
    for name, value in (pair.split("=", 1) for pair in given.conf):
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(Source)
    directory: Path = given.directory
    options = {
        "gateway": given.gateway, "subscribe": given.topic, "startingOffsets": "earliest", "fetchMode": given.mode,
        "fetch.chunkBytes": "65536", DIRECTORY: str(directory), "stopAfter": given.stop_after,
    }  # fmt: skip
    columns = ("partition", "offset", "value")

    def write(rows: Any, batch_id: int) -> None:
        rows.select(*columns).write.mode("overwrite").parquet(str(directory / "out" / f"batch={batch_id}"))

    try:
        if given.kind == "batch":
            write(spark.read.format(Source.name()).options(**options).load(), 0)
            return 0
        options["maxOffsetsPerTrigger"] = given.per_trigger
        frame = spark.readStream.format(Source.name()).options(**options).load()
        writer = frame.writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
        query = started(writer.start)
        # Until all is produced; what is left then is read by a run that ends by itself.
        wait_for(lambda: (directory / "produced").exists() or not query.isActive, "the end of the load", 3600)
        if query.isActive:
            query.stop()
        else:
            query.awaitTermination()
        started(writer.trigger(availableNow=True).start).awaitTermination()
    except Exception as error:
        lines = [line for line in str(error).splitlines() if "Error: " in line] or str(error).splitlines()
        print(lines[-1], file=sys.stderr)
        return 1
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
