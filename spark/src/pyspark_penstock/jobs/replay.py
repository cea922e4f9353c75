"""`replay`: records of a topic or an archive once more: at a rate, at a multiple of their time, or at once.

The records are cut into slices, of which each is written as one unit, exactly once. Offsets are fixed beforehand; a
partition is one task, in its order. Another run writes all of it again, unless both have the same name
(see replay_runs.py).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
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
from pyspark_penstock.jobs.replay_runs import NamedRun, Plan, Slice
from pyspark_penstock.jobs.slices import Ranges, Stretch, by_count, by_time, covered
from pyspark_penstock.jobs.times import time_ms
from pyspark_penstock.jobs.writing import MEASURES, SCHEMA, TIME, Target, target_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS_PER_SLICE: Final = 1_000_000
SLICE_S: Final = 5.0
"""Of a replay in time. Spark starts a job for each, which takes about a second."""


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
    topic_id: bytes
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
    run: str = "",
    checkpoint: str = "",
    records_per_slice: int = RECORDS_PER_SLICE,
    gateway: str = DEFAULT_GATEWAY,
    credentials_file: str = "",
    progress: Progress = quiet,
) -> dict[str, Any]:
    """Writes the committed records of `topic`, or those of `archive`, to `to`: those from `since` and before `until`.

    Times are those of the records, in ISO 8601 or ms since 1970. `rate`: records a second; `speed`: original time per
    time of the replay; 0 for neither. `keep_partitions`: by the record's partition, not by its key. `run`: a name, by
    which a replay that was killed goes on, with the offsets of its first start; one that is done writes nothing.
    `checkpoint`: a directory for what that takes; "" for one of the user's state. Raises PenstockError.
    """
    if bool(topic) == bool(archive):
        raise OptionError("a replay reads a topic or an archive; give one of them")
    if checkpoint and not run:
        raise OptionError("a checkpoint belongs to a run with a name; give run, or leave the checkpoint out")
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
    named = None
    if run:
        told = {
            "archive": str(Path(archive).absolute()) if archive else "",
            "since_ms": wanted.since_ms,
            "until_ms": wanted.until_ms,
            "rate": rate,
            "speed": speed,
            "keep_partitions": keep_partitions,
        }
        named = NamedRun.at(run, checkpoint, origin, target, told)
    with nullcontext() if named is None else named.alone():
        if named is None:
            plan, done = _cut(origin, wanted, records_per_slice), 0
            application = f"replay-{uuid.uuid4().hex}"
            names = {"txnAppId": application}
        else:
            plan, done = named.plan(lambda: _cut(origin, wanted, records_per_slice))
            names = {"sinkId": named.sink, "txnAppId": named.sink}
            outcome.more = {"run": run, "checkpoint": str(named.place.directory), "sink": named.sink}
        _write(origin, wanted, plan.slices, done, target, names, keep_partitions, outcome, progress)
    outcome.cover(origin.topic, plan.first_from(done) if done else plan.first, plan.end)
    result = outcome.as_dict()
    return result | {"rate": result["rows_per_s"]}


def _of_topic(spark: SparkSession, span: Span) -> Origin:
    def rows(ranges: Ranges) -> DataFrame:
        low = {part: ranges[part][0] if part in ranges else span.end[part] for part in span.first}
        high = {part: ranges[part][1] if part in ranges else span.end[part] for part in span.first}
        return span.frame(spark, SCHEMA, first=low, end=high, includeHeaders="true", failOnDataLoss="true")

    return Origin(span.topic, span.topic_id, span.first, span.end, rows)


def _of_archive(spark: SparkSession, directory: str) -> Origin:
    files = ArchiveFiles.at(directory)
    everything = read_archive(spark, directory)
    items = files.files()
    first: Offsets = {}
    end: Offsets = {}
    for item in items:
        first[item.partition] = min(first.get(item.partition, item.from_offset), item.from_offset)
        end[item.partition] = max(end.get(item.partition, item.to_offset), item.to_offset)
    manifest = files.manifests[0]

    def rows(ranges: Ranges) -> DataFrame:
        chosen = everything.where(
            " OR ".join(
                f"(partition = {part} AND offset >= {low} AND offset < {high})"
                for part, (low, high) in sorted(ranges.items())
            )
        )
        return chosen.repartitionById(max(ranges) + 1, "partition").sortWithinPartitions("offset")

    return Origin(manifest.topic, bytes.fromhex(manifest.topic_id), first, end, rows)


def _cut(origin: Origin, wanted: Wanted, most: int) -> Plan:
    """The slices, and the offsets as far as they are wanted."""
    first, end = origin.first, origin.end
    density = 1.0
    stretches: list[Stretch] = []
    if wanted.filter() or wanted.speed:
        stretches = _stretches(origin, wanted)
        low, high = covered(stretches)
        offsets = sum(high[part] - low[part] for part in low)
        density = sum(item.count for item in stretches) / offsets if offsets else 1.0
        first, end = origin.end | low, origin.end | high
    if wanted.speed:
        return Plan(first, end, _slices_in_time(stretches, wanted))
    if wanted.rate:
        most = min(most, max(round(wanted.rate * SLICE_S / max(density, 1e-9)), 1))
    return Plan(first, end, tuple(Slice(ranges) for ranges in by_count(first, end, most)))


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


def _slices_in_time(stretches: list[Stretch], wanted: Wanted) -> tuple[Slice, ...]:
    begun_ms = min((item.first_ms for item in stretches), default=0)
    found = []
    for step, ranges in by_time(stretches):
        from_ms = max(step * wanted.step_ms, begun_ms)
        found.append(Slice(ranges, (from_ms - begun_ms) / 1000 / wanted.speed, from_ms))
    return tuple(found)


def _write(
    origin: Origin,
    wanted: Wanted,
    slices: Sequence[Slice],
    done: int,
    target: Target,
    names: dict[str, str],
    keep_partitions: bool,
    outcome: Outcome,
    progress: Progress,
) -> None:
    from pyspark.sql import Observation
    from pyspark.sql.functions import expr

    columns = ["key", "value", "headers", TIME, *(["partition"] if keep_partitions else [])]
    beat = Beat()
    begun_s = slices[done].due_s if done < len(slices) else 0.0
    for number, item in enumerate(slices[done:], done):
        due_s = outcome.rows / wanted.rate if wanted.rate else item.due_s - begun_s
        time.sleep(max(beat.left_s(due_s), 0.0))
        rows = origin.rows(item.ranges).where(wanted.filter() or "true")
        if wanted.rate:
            rows = _paced(rows, _share(item.ranges, wanted.rate, beat.at(due_s)))
        elif item.from_ms is not None:
            rows = _paced(rows, Pace(beat.at(due_s), SLICE_S, speed=wanted.speed, from_ms=item.from_ms))
        seen = Observation()
        (
            rows.selectExpr(*columns)
            .observe(seen, *(expr(one) for one in MEASURES))
            .write.format("penstock")
            .mode("append")
            .options(**target.options(**names, txnVersion=str(number)))
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
