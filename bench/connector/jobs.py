"""What is measured: each job as work that one system does once, in a session that is there."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bench.connector.documents import CONNECTOR
from bench.connector.goals import (
    AT_LEAST_ONCE,
    COUNT,
    DIRECT,
    EXACTLY_ONCE,
    FROM_JSON,
    GATEWAY,
    KIB,
    MICRO_BATCH,
    SMALL,
    VALUE_ONLY,
)
from bench.connector.sessions import cpu_s
from bench.connector.systems import Addresses, Sizes, a_topic, ticking, topic_of

SCHEMA: Final = "id LONG, city STRING, pad STRING"
WARM_BATCHES: Final = 10
"""The first ones of a query compile."""
MEASURED_BATCHES: Final = 20
_LOOK_S: Final = 0.2
_BATCHES_WITHIN_S: Final = 600.0


@dataclass(frozen=True)
class Took:
    """What one run cost: s, or ms of a micro-batch."""

    value: float
    cpu_s: float


@dataclass(frozen=True)
class Contender:
    """Of one round: a mode by the job that it counts for. Of the connector there is one for all."""

    jobs: tuple[str, ...]
    mode: str


class Bench:
    """One session with both systems."""

    def __init__(self, spark: Any, at: Addresses, sizes: Sizes) -> None:
        self.spark = spark
        self.at = at
        self.sizes = sizes
        self._written = 0

    def reader(self, mode: str, topic: str, *, stream: bool = False) -> Any:
        """`mode` is "kafka", or a fetch mode of Penstock's."""
        reader = self.spark.readStream if stream else self.spark.read
        if mode == CONNECTOR:
            return reader.format("kafka").options(
                **{"kafka.bootstrap.servers": self.at.kafka, "subscribe": topic}
            )
        return reader.format("penstock").options(gateway=self.at.gateway, subscribe=topic, fetchMode=mode)

    def _timed(self, work: Callable[[], Any]) -> Took:
        cpu, begun_s = cpu_s(self.spark), time.perf_counter()
        work()
        return Took(time.perf_counter() - begun_s, cpu_s(self.spark) - cpu)

    def count(self, one: Contender, size: str) -> Took:
        frame = self.reader(one.mode, topic_of(size)).load()
        return self._timed(lambda: self._check(frame.selectExpr("count(1)", "sum(length(value))"), size))

    def value_only(self, one: Contender, size: str) -> Took:
        reader = self.reader(one.mode, topic_of(size))
        frame = (reader if one.mode == CONNECTOR else reader.schema("value BINARY")).load()
        return self._timed(lambda: self._check(frame.selectExpr("count(1)", "sum(length(value))"), size))

    def from_json(self, one: Contender, size: str) -> Took:
        rows = (
            self.reader(one.mode, topic_of(size))
            .load()
            .selectExpr(f"from_json(string(value), '{SCHEMA}') AS v")
        )
        frame = rows.groupBy("v.city").count().groupBy().sum("count")
        return self._timed(lambda: self._check(frame, size))

    def _check(self, frame: Any, size: str) -> None:
        found, wanted = frame.first()[0], self.sizes[size][1]
        if found != wanted:
            raise SystemExit(f"{found} records were read, {wanted} are there")

    def write(self, one: Contender, size: str) -> Took:
        """Into a topic of its own. The connector writes at least once, and knows nothing else."""
        width, count = self.sizes[size]
        frame = self.spark.range(count).selectExpr(f"lpad(string(id), {width}, 'x') AS value")
        self._written += 1
        topic = f"written-{self._written}"
        writer = frame.write.mode("append")
        if one.mode == CONNECTOR:
            writer = writer.format("kafka").option("kafka.bootstrap.servers", self.at.kafka)
        else:
            delivery = "exactly-once" if EXACTLY_ONCE in one.jobs else "at-least-once"
            writer = writer.format("penstock").options(gateway=self.at.gateway, delivery=delivery)
        with a_topic(self.at, topic):
            return self._timed(writer.option("topic", topic).save)

    def micro_batch(self, one: Contender) -> Took:
        """p50 in ms of micro-batches that have rows, at trigger 0, of a query of its own."""
        bootstrap = self.at.kafka if one.mode == CONNECTOR else self.at.penstock
        with (
            tempfile.TemporaryDirectory() as checkpoint,
            self._query(one.mode, checkpoint) as query,
            ticking(bootstrap),
        ):
            found: dict[int, float] = {}
            begun_s = time.monotonic()
            while len(found) < WARM_BATCHES + MEASURED_BATCHES:
                if time.monotonic() - begun_s > _BATCHES_WITHIN_S:
                    raise SystemExit(f"{one.mode}: {len(found)} micro-batches in {_BATCHES_WITHIN_S:.0f} s")
                time.sleep(_LOOK_S)
                if query.exception() is not None:
                    raise SystemExit(f"the query failed: {query.exception()}")
                for progress in query.recentProgress:
                    if progress["numInputRows"]:
                        found[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
        late = sorted(found)[WARM_BATCHES : WARM_BATCHES + MEASURED_BATCHES]
        return Took(float(statistics.median(found[batch] for batch in late)), 0.0)

    @contextmanager
    def _query(self, mode: str, checkpoint: str) -> Iterator[Any]:
        rows = self.reader(mode, "ticks", stream=True).load()
        writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            yield query
        finally:
            query.stop()


@dataclass(frozen=True)
class Task:
    """Rows that are measured side by side in the same rounds."""

    name: str
    size: str
    contenders: tuple[Contender, ...]
    run: Callable[[Bench, Contender], Took]


def _tasks() -> list[Task]:
    works: tuple[tuple[str, Callable[[Bench, Contender, str], Took]], ...] = (
        (COUNT, Bench.count),
        (VALUE_ONLY, Bench.value_only),
        (FROM_JSON, Bench.from_json),
    )
    found = [
        Task(
            f"{job} {size}",
            size,
            tuple(Contender((job,), mode) for mode in (CONNECTOR, GATEWAY, DIRECT)),
            partial(_of_size, work, size),
        )
        for job, work in works
        for size in (KIB, SMALL)
    ]
    writers = (
        Contender((AT_LEAST_ONCE, EXACTLY_ONCE), CONNECTOR),
        Contender((AT_LEAST_ONCE,), GATEWAY),
        Contender((EXACTLY_ONCE,), GATEWAY),
    )
    found.append(Task(f"write {SMALL}", SMALL, writers, partial(_of_size, Bench.write, SMALL)))
    ticks = tuple(Contender((MICRO_BATCH,), mode) for mode in (CONNECTOR, GATEWAY, DIRECT))
    found.append(Task(MICRO_BATCH, SMALL, ticks, Bench.micro_batch))
    return found


def _of_size(
    work: Callable[[Bench, Contender, str], Took], size: str, bench: Bench, contender: Contender
) -> Took:
    return work(bench, contender, size)


TASKS: Final = tuple(_tasks())
"""In the order of the table."""
