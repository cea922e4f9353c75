"""A streaming query that copies a topic exactly once, as a process of its own, with a fault at a chosen point.

The fault is in a data source around the real one, which tasks and driver import by this module's name. It strikes once
in a directory. A task's process is killed at its point; a driver stops there, says so by a file `reached`, and goes on
when there is one `go`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_penstock import DefaultSource

TASK_POINTS = ("task-before", "task-in", "task-after")
DRIVER_POINTS = ("driver-before", "driver-after")
"""Before the decision; between the decision and Spark's commit log."""
LOSER_POINTS = ("loser-killed", "loser-finishes")
"""A first attempt that is slow, so that a speculative copy wins."""


class Faults:
    """What is to go wrong: `point` in micro-batch `batch`; "" for nothing."""

    def __init__(self, text: str) -> None:
        self._text = text
        given = json.loads(text)
        self._directory, self._point, self._batch = Path(given["dir"]), given["point"], given["batch"]

    def __reduce__(self) -> tuple[Any, ...]:
        return Faults, (self._text,)

    def strikes(self, point: str, batch: int) -> bool:
        if (point, batch) != (self._point, self._batch):
            return False
        try:
            (self._directory / "struck").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def in_task(self, point: str) -> None:
        context = TaskContext.get()
        assert context is not None
        if self.strikes(point, int(context.getLocalProperty("streaming.sql.batchId") or -1)):
            os.kill(os.getpid(), signal.SIGKILL)

    def in_driver(self, point: str, batch: int) -> None:
        if self.strikes(point, batch):
            (self._directory / "reached").touch()
            self.wait_for("go")

    def begin_slowly(self) -> None:
        """In the first attempt at the first task: until another one has written, or somebody kills it."""
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        if context.partitionId() != 0 or context.attemptNumber() != 0:
            return
        if self.strikes("loser-finishes", batch):
            self.wait_for("written")
        elif self.strikes("loser-killed", batch):
            self.wait_for("never")

    def written(self) -> None:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0 and context.attemptNumber() > 0:
            (self._directory / "written").touch()

    def wait_for(self, name: str) -> None:
        while not (self._directory / name).exists():
            time.sleep(0.05)


class FaultyWriter(DataSourceStreamArrowWriter):
    """The real writer, and faults around it."""

    def __init__(self, inner: DataSourceStreamArrowWriter, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        self._faults.in_task("task-before")
        message = self._inner.write(self._rows(iterator))
        self._faults.written()
        self._faults.in_task("task-after")
        return message

    def _rows(self, iterator: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(iterator):
            yield batch
            if not number:
                self._faults.begin_slowly()
            self._faults.in_task("task-in")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._faults.in_driver("driver-before", batchId)
        self._inner.commit(messages, batchId)
        self._faults.in_driver("driver-after", batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._inner.abort(messages, batchId)


class FaultySource(DefaultSource):
    """Penstock's sink with the option `faults`."""

    @classmethod
    def name(cls) -> str:
        return "penstock_faulty"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
        faults = Faults(self.options["faults"])
        del self.options["faults"]
        return FaultyWriter(super().streamWriter(schema, overwrite), faults)


def main() -> int:
    from pyspark.sql import SparkSession

    from support.spark_sink_faults import FaultySource as Source  # as workers know it, not as __main__

    parser = argparse.ArgumentParser()
    for name in ("gateway", "source", "sink", "topic", "checkpoint", "master", "faults"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--tasks", type=int, required=True)
    parser.add_argument("--per-trigger", required=True)
    parser.add_argument("--conf", action="append", default=[])
    given = parser.parse_args()
    builder = SparkSession.builder.master(given.master).appName("sink-faults")
    for name, value in (pair.split("=", 1) for pair in given.conf):
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(Source)
    rows = (
        spark.readStream.format("penstock")
        .options(gateway=given.gateway, subscribe=given.source, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", given.per_trigger)
        .load()
        .selectExpr("key", "value")
        .repartition(given.tasks)
    )
    sink = rows.writeStream.format("penstock_faulty").options(
        gateway=given.gateway,
        topic=given.topic,
        sinkId=given.sink,
        stagingTimeoutMs="20000",
        faults=given.faults,
    )
    query = sink.option("checkpointLocation", given.checkpoint).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except Exception as error:
        lines = [line for line in str(error).splitlines() if "Error: " in line] or str(error).splitlines()
        print(lines[-1], file=sys.stderr)
        return 1
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
