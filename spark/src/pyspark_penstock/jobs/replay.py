"""`replay`: records of a topic or an archive once more: at a rate, at a multiple of their time, or at once.

The records are cut into slices, of which each is written as one unit, exactly once. Offsets are fixed beforehand; a
partition is one task, in its order. Another run writes all of it again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark_penstock.errors import OptionError
from pyspark_penstock.jobs.archive_files import ArchiveFiles
from pyspark_penstock.jobs.frame import (
    DEFAULT_GATEWAY,
    Cluster,
    JobError,
    Offsets,
    Outcome,
    Progress,
    Span,
    quiet,
    span_of,
)
from pyspark_penstock.jobs.pacing import Pace
from pyspark_penstock.jobs.read_archive import read_archive
from pyspark_penstock.jobs.slices import Ranges, Stretch, by_count, by_time, covered
from pyspark_penstock.jobs.times import time_ms
from pyspark_penstock.jobs.writing import MEASURES, SCHEMA, TIME, Target, target_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS_PER_SLICE: Final = 1_000_000
SLICE_S: Final = 5.0
"""Of a replay in time. Spark starts a job for each, which takes about a second."""


@dataclass(frozen=True, slots=True)
class Slice:
    """What is written as one unit. `pace` is None where nothing has to wait."""

    ranges: Ranges
    due_s: float = 0.0
    """Since the replay's begin."""
    pace: Pace | None = None


class Beat:
    """When slices are due, since the replay began: by the clock that nobody sets.

    Tasks run on other machines, so they are told by the time of day, as it is when their slice begins: a clock that was
    set back would let the replay wait for as long as it was set back.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, time_of_day: Callable[[], float] = time.time
    ) -> None:
        self._clock, self._time_of_day = clock, time_of_day
        self._begun_s = clock()

    def left_s(self, due_s: float) -> float:
        """Until then; below 0 when that is past."""
        return self._begun_s + due_s - self._clock()

    def at(self, due_s: float) -> float:
        """That as time of day, s since 1970."""
        return self._time_of_day() + self.left_s(due_s)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of the records, and how fast."""

    since_ms: int | None
    until_ms: int | None
    rate: float
    speed: float

    @classmethod
    def of(cls, since: str, until: str, rate: float, speed: float) -> Wanted:
        """Raises OptionError."""
        if rate and speed:
            raise OptionError(
                "a replay has a rate or a speed, not both; give one of them, or none to be as fast as can be"
            )
        for name, number in (("rate", rate), ("speed", speed)):
            if number < 0 or number != number or number == float("inf"):
                raise OptionError(f"{name} must be a number above 0, not {number}")
        since_ms = time_ms("since", since) if since else None
        until_ms = time_ms("until", until) if until else None
        if since_ms is not None and until_ms is not None and since_ms >= until_ms:
            raise OptionError(f"since ({since}) must lie before until ({until})")
        return cls(since_ms, until_ms, rate, speed)

    def filter(self) -> str:
        """SQL that a record has to satisfy; "" for any."""
        parts = [] if self.since_ms is None else [f"unix_millis(timestamp) >= {self.since_ms}"]
        if self.until_ms is not None:
            parts.append(f"unix_millis(timestamp) < {self.until_ms}")
        return " AND ".join(parts)

    @property
    def step_ms(self) -> int:
        """The record time that a slice covers, if slices go by time."""
        return max(int(SLICE_S * 1000 * self.speed), 1)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where records come from: `rows` of ranges of offsets, each partition as one task in its order."""

    topic: str
    first: Offsets
    end: Offsets
    rows: Callable[[Ranges], DataFrame]


def replay(
    spark: SparkSession,
    *,
    to: str,
    topic: str = "",
    archive: str = "",
    since: str = "",
    until: str = "",
    rate: float = 0.0,
    speed: float = 0.0,
    keep_partitions: bool = False,
    records_per_slice: int = RECORDS_PER_SLICE,
    gateway: str = DEFAULT_GATEWAY,
    credentials_file: str = "",
    progress: Progress = quiet,
) -> dict[str, Any]:
    """Writes the committed records of `topic`, or those of `archive`, to `to`: those from `since` and before `until`.

    Times are those of the records, in ISO 8601 or ms since 1970. `rate`: records a second; `speed`: original time per
    time of the replay; 0 for neither. `keep_partitions`: by the record's partition, not by its key. Raises
    PenstockError.
    """
    if bool(topic) == bool(archive):
        raise OptionError("a replay reads a topic or an archive; give one of them")
    wanted = Wanted.of(since, until, rate, speed)
    outcome = Outcome("replay")
    cluster = Cluster(gateway, credentials_file, "read_committed")
    origin = _of_topic(spark, span_of(cluster, topic)) if topic else _of_archive(spark, archive)
    target = target_of(cluster, to, topic)
    if keep_partitions and max(origin.first, default=-1) >= target.partitions:
        raise JobError(
            f"topic {to!r} has {target.partitions} partitions, and {origin.topic} {max(origin.first) + 1}: make it "
            "with as many, or let the keys decide"
        )
    origin, slices = _cut(origin, wanted, records_per_slice)
    _write(origin, wanted, slices, target, keep_partitions, outcome, progress)
    outcome.cover(origin.topic, origin.first, origin.end)
    result = outcome.as_dict()
    return result | {"rate": result["rows_per_s"]}


def _of_topic(spark: SparkSession, span: Span) -> Origin:
    def rows(ranges: Ranges) -> DataFrame:
        low = {part: ranges[part][0] if part in ranges else span.end[part] for part in span.first}
        high = {part: ranges[part][1] if part in ranges else span.end[part] for part in span.first}
        return span.frame(spark, SCHEMA, first=low, end=high, includeHeaders="true", failOnDataLoss="true")

    return Origin(span.topic, span.first, span.end, rows)


def _of_archive(spark: SparkSession, directory: str) -> Origin:
    files = ArchiveFiles.at(directory)
    everything = read_archive(spark, directory)
    items = files.files()
    first: Offsets = {}
    end: Offsets = {}
    for item in items:
        first[item.partition] = min(first.get(item.partition, item.from_offset), item.from_offset)
        end[item.partition] = max(end.get(item.partition, item.to_offset), item.to_offset)
    topic = files.manifests[0].topic

    def rows(ranges: Ranges) -> DataFrame:
        chosen = everything.where(
            " OR ".join(
                f"(partition = {part} AND offset >= {low} AND offset < {high})"
                for part, (low, high) in sorted(ranges.items())
            )
        )
        return chosen.repartitionById(max(ranges) + 1, "partition").sortWithinPartitions("offset")

    return Origin(topic, first, end, rows)


def _cut(origin: Origin, wanted: Wanted, most: int) -> tuple[Origin, Iterator[Slice]]:
    """The slices, and the origin as far as it is wanted."""
    density = 1.0
    stretches: list[Stretch] = []
    if wanted.filter() or wanted.speed:
        stretches = _stretches(origin, wanted)
        first, end = covered(stretches)
        offsets = sum(end[part] - first[part] for part in first)
        density = sum(item.count for item in stretches) / offsets if offsets else 1.0
        begun = {part: origin.end[part] for part in origin.first} | first
        origin = replace(origin, first=begun, end={part: origin.end[part] for part in begun} | end)
    if wanted.speed:
        return origin, _slices_in_time(stretches, wanted)
    if wanted.rate:
        most = min(most, max(round(wanted.rate * SLICE_S / max(density, 1e-9)), 1))
    return origin, (Slice(ranges) for ranges in by_count(origin.first, origin.end, most))


def _stretches(origin: Origin, wanted: Wanted) -> list[Stretch]:
    """One look at all the times."""
    ranges = {
        part: (origin.first[part], origin.end[part])
        for part in origin.first
        if origin.first[part] < origin.end[part]
    }
    if not ranges:
        return []
    from pyspark.sql.functions import expr

    step = f"unix_millis(timestamp) div {wanted.step_ms}" if wanted.speed else "0L"
    found = (
        origin.rows(ranges)
        .where(wanted.filter() or "true")
        .selectExpr("partition", "offset", f"{step} AS step", "unix_millis(timestamp) AS ms")
        .groupBy("partition", "step")
        .agg(
            expr("min(offset) AS first"),
            expr("max(offset) + 1 AS end"),
            expr("count(*) AS count"),
            expr("min(ms) AS first_ms"),
        )
    )
    return [Stretch(**row.asDict()) for row in found.collect()]


def _slices_in_time(stretches: list[Stretch], wanted: Wanted) -> Iterator[Slice]:
    begun_ms = min((item.first_ms for item in stretches), default=0)
    for step, ranges in by_time(stretches):
        from_ms = max(step * wanted.step_ms, begun_ms)
        due_s = (from_ms - begun_ms) / 1000 / wanted.speed
        yield Slice(ranges, due_s, Pace(0.0, SLICE_S, speed=wanted.speed, from_ms=from_ms))


def _write(
    origin: Origin,
    wanted: Wanted,
    slices: Iterator[Slice],
    target: Target,
    keep_partitions: bool,
    outcome: Outcome,
    progress: Progress,
) -> None:
    from pyspark.sql import Observation
    from pyspark.sql.functions import expr

    run = f"replay-{uuid.uuid4().hex}"
    columns = ["key", "value", "headers", TIME, *(["partition"] if keep_partitions else [])]
    beat = Beat()
    for number, item in enumerate(slices):
        due_s = outcome.rows / wanted.rate if wanted.rate else item.due_s
        time.sleep(max(beat.left_s(due_s), 0.0))
        rows = origin.rows(item.ranges).where(wanted.filter() or "true")
        if wanted.rate:
            rows = _paced(rows, _share(item.ranges, wanted.rate, beat.at(due_s)))
        elif item.pace is not None:
            rows = _paced(rows, replace(item.pace, begun_s=beat.at(due_s)))
        seen = Observation()
        (
            rows.selectExpr(*columns)
            .observe(seen, *(expr(one) for one in MEASURES))
            .write.format("penstock")
            .mode("append")
            .options(**target.options(txnAppId=run, txnVersion=str(number)))
            .save()
        )
        counted = seen.get
        outcome.rows += counted["rows"]
        outcome.bytes += counted["bytes"]
        progress(f"{origin.topic}: slice {number}, {counted['rows']} rows")


def _share(ranges: Ranges, rate: float, begun_s: float) -> Pace:
    """Each partition's records over the whole of the slice."""
    total = sum(high - low for low, high in ranges.values())
    per_s = {part: rate * (high - low) / total for part, (low, high) in ranges.items()}
    return Pace(begun_s, total / rate, per_s)


def _paced(rows: DataFrame, pace: Pace) -> DataFrame:
    return rows.mapInArrow(pace.__call__, rows.schema)
