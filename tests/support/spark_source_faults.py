"""A read of a topic to Parquet, as a process of its own, that stops in the middle of a task until it may go on.

The stop is in a data source around the real one, which tasks import by this module's name. A directory is armed by a
file `armed`, in which stand a strike's name and a number of Arrow batches: the first task behind that many of its rows,
with more to come, takes the file, tells its process and its partition in `reached-NAME` and waits for `go-NAME`. The
directory may be armed again.

By `--kind` it reads one batch; or streams until `produced` is there; or streams so, and meanwhile reads a batch for
each file `order`.
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
from support.spark import started

DIRECTORY = "faults"
"""Option: the directory of `Stop`."""
RANGE_MIN = 1_500
"""Records: a task stops in a range of at least so many, which are megabytes. Less may be on its way as a whole."""
POLL_S = 0.02


def put(path: Path, text: str) -> None:
    """Whoever sees the file sees all of it."""
    told = path.with_name(f"{path.name}.part")
    told.write_text(text)
    told.rename(path)


class Stop:
    """Where tasks stop."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def around(self, batches: Iterator[Any], partition: InputPartition) -> Iterator[Any]:
        directory = Path(self._directory)
        held: list[Any] = []
        for number, batch in enumerate(batches):
            # One is kept back, so that a task which stops is known to have more.
            if held:
                yield held.pop()
            held.append(batch)
            strike = self._strike(directory, number, partition)
            if strike:
                while not (directory / f"go-{strike}").exists():
                    time.sleep(POLL_S)
        yield from held

    def _strike(self, directory: Path, number: int, partition: InputPartition) -> str:
        """The name of the one that is this task's, or ""."""
        if not isinstance(partition, RangePartition):
            return ""
        wanted = partition.wanted
        if wanted.end - wanted.start < RANGE_MIN:
            return ""
        try:
            name, after = (directory / "armed").read_text().split()
            if number != int(after):
                return ""
            (directory / "armed").rename(directory / f"struck-{name}")  # of several tasks one can
        except FileNotFoundError:
            return ""
        put(directory / f"reached-{name}", f"{os.getpid()} {wanted.partition}")
        return name


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
    """Penstock's source with the option `faults`."""

    @classmethod
    def name(cls) -> str:
        return "penstock_stopping"

    def schema(self) -> Any:
        kept = self.options[DIRECTORY]
        self._take_stop()
        form = super().schema()
        self.options[DIRECTORY] = kept
        return form

    def reader(self, schema: Any) -> DataSourceReader:
        stop = self._take_stop()
        return StoppingReader(super().reader(schema), stop)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        stop = self._take_stop()
        return StoppingStream(super().streamReader(schema), stop)

    def _take_stop(self) -> Stop:
        """The real source refuses options that it doesn't know."""
        stop = Stop(self.options[DIRECTORY])
        del self.options[DIRECTORY]
        return stop


class Reads:
    """What one session reads of a topic, all of it written to Parquet."""

    def __init__(self, spark: Any, source: str, directory: Path, options: dict[str, str]) -> None:
        self._spark = spark
        self._source = source
        self._directory = directory
        self._options = options

    def batch(self, directory: Path, starting: str = "earliest") -> None:
        """To `directory`/out, by whose `armed` its tasks stop."""
        options = self._options | {"startingOffsets": starting, DIRECTORY: str(directory)}
        _write(self._spark.read.format(self._source).options(**options).load(), directory / "out" / "batch=0")

    def stream(self, per_trigger: str, *, orders: bool) -> None:
        """Until all is produced; what is left then is read by a run that ends by itself."""
        directory = self._directory
        options = self._options | {
            "startingOffsets": "earliest", "maxOffsetsPerTrigger": per_trigger, DIRECTORY: str(directory)
        }  # fmt: skip
        frame = self._spark.readStream.format(self._source).options(**options).load()

        def write(rows: Any, batch_id: int) -> None:
            _write(rows, directory / "out" / f"batch={batch_id}")
            while (directory / "hold").exists():
                (directory / "holding").touch()
                time.sleep(POLL_S)

        writer = frame.writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
        query = started(writer.start)
        while query.isActive and not (directory / "produced").exists():
            if orders and (directory / "order").exists():
                name, starting = (directory / "order").read_text().split(maxsplit=1)
                (directory / "order").unlink()
                self.batch(directory / name, starting)
                (directory / name / "done").touch()
            time.sleep(POLL_S)
        if query.isActive:
            query.stop()
        else:
            query.awaitTermination()  # raises
        started(writer.trigger(availableNow=True).start).awaitTermination()


def _write(rows: Any, to: Path) -> None:
    rows.select("partition", "offset", "value").write.mode("overwrite").parquet(str(to))


def main() -> int:
    from pyspark.sql import SparkSession

    from support.spark_source_faults import StoppingSource as Source  # as workers know it, not as __main__

    parser = argparse.ArgumentParser()
    for name in ("gateway", "topic", "mode", "master", "per-trigger"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--kind", choices=("batch", "stream", "rounds"), required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--conf", action="append", default=[])
    given = parser.parse_args()
    builder = SparkSession.builder.master(given.master).appName("source-faults")
    for name, value in (pair.split("=", 1) for pair in given.conf):
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(Source)
    put(given.directory / "application", spark.sparkContext.applicationId)
    options = {
        "gateway": given.gateway, "subscribe": given.topic, "fetchMode": given.mode, "fetch.chunkBytes": "65536"
    }  # fmt: skip
    reads = Reads(spark, Source.name(), given.directory, options)
    try:
        if given.kind == "batch":
            reads.batch(given.directory)
        else:
            reads.stream(given.per_trigger, orders=given.kind == "rounds")
    except Exception as error:
        lines = [line for line in str(error).splitlines() if "Error: " in line] or str(error).splitlines()
        print(lines[-1], file=sys.stderr)
        return 1
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
