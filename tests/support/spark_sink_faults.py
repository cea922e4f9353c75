"""A streaming query that copies a topic exactly once, as a process of its own, which is held at chosen points.

The holds are in a data source around the real one, which tasks and driver import by this module's name. Who comes to
a point first waits there, tells who it is in a file `reached-POINT-BATCH`, and goes on when there is one
`go-POINT-BATCH`: what is done to it or to the cluster meanwhile is the test's. A point holds once in a directory, so
that neither a second attempt nor a second driver stops there again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_penstock import DefaultSource
from pyspark_penstock.sink import writer

TASK_POINTS = ("task-before", "task-in", "task-after")
"""Before its stage begins; in the middle of its rows, of which some are acknowledged; behind the last one."""
DRIVER_POINTS = ("driver-before", "driver-after")
"""Before it asks for the decision; between the decision and Spark's commit log."""
COPY_WROTE, FIRST_WROTE = "copy-wrote", "first-wrote"
"""A speculative copy of the first task, and its first attempt, which have written all their rows."""

HANDED_ON_BEFORE = 2
"""Arrow batches of a task that are in its stage when it is held in the middle."""
GATHERED_BYTES = 16 * 1024
"""So that each Arrow batch of a test, of 200 rows, is sent on its own: see `write`."""
HELD_MAX_S = 900.0
LATE_WORKER = "Python worker failed to connect back"
"""Spark gives the Python process of a streaming source 10 s to come up: a query without it is started anew, as its user
would."""
STARTS_MAX = 20
_POLL_S = 0.02


class Faults:
    """Where it is held: `holds` are pairs of a point and a micro-batch."""

    def __init__(self, text: str) -> None:
        self._text = text
        given = json.loads(text)
        self._directory = Path(given["dir"])
        self._holds = {(point, batch) for point, batch in given["holds"]}
        self._is_gated = bool(given["gated"])
        self._run = given["run"]

    def __reduce__(self) -> tuple[Any, ...]:
        return Faults, (self._text,)

    def gate(self) -> None:
        """No task of a micro-batch begins before the test says so, by a file `gate-BATCH`; `waits-BATCH-RUN` says that
        one would."""
        if self._is_gated:
            (self._directory / f"waits-{batch_of_task()}-{self._run}").touch()
            self._wait_for(f"gate-{batch_of_task()}")

    def in_task(self, point: str) -> None:
        self.hold(point, batch_of_task(), os.getpid(), *attempt_of_task())

    def wants(self, point: str) -> bool:
        return (point, batch_of_task()) in self._holds

    def hold(self, point: str, batch: int, pid: int, partition: int = -1, attempt: int = -1) -> None:
        name = f"{point}-{batch}"
        if (point, batch) not in self._holds or not self._is_first(f"struck-{name}"):
            return
        self.tell(f"reached-{name}", {"pid": pid, "partition": partition, "attempt": attempt})
        self._wait_for(f"go-{name}")

    def tell(self, name: str, said: dict[str, int]) -> None:
        told = self._directory / f"telling-{name}-{os.getpid()}"
        told.write_text(json.dumps(said))
        told.rename(self._directory / name)  # whoever sees it can read it

    def _is_first(self, name: str) -> bool:
        try:
            (self._directory / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _wait_for(self, name: str) -> None:
        deadline_s = time.monotonic() + HELD_MAX_S
        while not (self._directory / name).exists():
            # A worker of an executor is in no session of the test: it must not outlive those who would kill it.
            if os.getppid() == 1 or time.monotonic() > deadline_s:
                os._exit(1)
            time.sleep(_POLL_S)


def batch_of_task() -> int:
    context = TaskContext.get()
    assert context is not None
    return int(context.getLocalProperty("streaming.sql.batchId") or -1)


def attempt_of_task() -> tuple[int, int]:
    context = TaskContext.get()
    assert context is not None
    return context.partitionId(), context.attemptNumber()


class FaultyWriter(DataSourceStreamArrowWriter):
    """The real writer, and holds around it."""

    def __init__(self, inner: DataSourceStreamArrowWriter, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        # Nothing that users may set has a task send before it has 4 MB of rows, which would be most of what it has.
        writer.GATHERED_BYTES = GATHERED_BYTES
        self._faults.gate()
        self._faults.in_task("task-before")
        message = self._inner.write(self._rows(iterator))
        self._faults.in_task("task-after")
        self._as_loser_or_winner()
        return message

    def _as_loser_or_winner(self) -> None:
        """Of the first task: both attempts have written everything before either of them returns."""
        partition, attempt = attempt_of_task()
        if partition == 0 and attempt == 0:
            self._faults.in_task(FIRST_WROTE)
        elif partition == 0:
            self._faults.in_task(COPY_WROTE)

    def _rows(self, iterator: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(iterator):
            # Those before are in the stage, and this one is still to come.
            if number == HANDED_ON_BEFORE and self._may_be_held():
                self._faults.in_task("task-in")
            yield batch

    def _may_be_held(self) -> bool:
        """With a loser wanted it is the first attempt at the first task, and else any."""
        return not self._faults.wants(COPY_WROTE) or attempt_of_task() == (0, 0)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._faults.hold("driver-before", batchId, os.getpid())
        self._inner.commit(messages, batchId)
        self._faults.hold("driver-after", batchId, os.getpid())

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


def sentence_of(error: Exception) -> str:
    """What Python raised last, or of an error of Spark's own the line that says how the query has ended."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    of_python = [line for line in lines if "Error: " in line]
    of_spark = [line for line in lines if line.startswith("[")]
    return (of_python[-1:] or of_spark[-1:] or lines[-1:] or [repr(error)])[0]


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
    sink = sink.option("checkpointLocation", given.checkpoint).trigger(availableNow=True)
    said = LATE_WORKER
    for _ in range(STARTS_MAX):
        try:
            sink.start().awaitTermination()
            said = ""
        except Exception as error:
            print(error, file=sys.stderr)
            said = sentence_of(error)
        if LATE_WORKER not in said:
            break
    spark.stop()
    if said:
        print(said, file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
