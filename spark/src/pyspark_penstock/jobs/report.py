"""`report`: what a topic is like, as one HTML file that needs no network. Its numbers are the audit's.

Rates, codecs and balance come from stored batches, sizes and keys from records.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark_penstock.errors import OptionError
from pyspark_penstock.jobs import stored
from pyspark_penstock.jobs.archive_files import put
from pyspark_penstock.jobs.audit import explain_span
from pyspark_penstock.jobs.frame import DEFAULT_GATEWAY, Cluster, Outcome, Progress, Span, quiet, span_of
from pyspark_penstock.jobs.policy import is_compacted
from pyspark_penstock.jobs.report_page import Facts, page

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLICES: Final = 120
"""Columns of the chart of rates, at most."""
KEYS_SHOWN: Final = 20
_STEPS_MS: Final = (
    1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 21_600_000, 86_400_000, 604_800_000,
)  # fmt: skip
_SCHEMA: Final = "partition INT, key BINARY, value BINARY"


def report(
    spark: SparkSession,
    *,
    topic: str,
    out: str,
    isolation: str = "read_uncommitted",
    compacted: bool | None = None,
    groups: Sequence[dict[str, Any]] | None = None,
    gateway: str = DEFAULT_GATEWAY,
    credentials_file: str = "",
    progress: Progress = quiet,
) -> dict[str, Any]:
    """Writes the report on `topic` to the file `out`; returns its numbers. Raises PenstockError.

    `groups` are rows of `group, partition, committed, end, lag`, from whoever speaks Kafka; the native API has none.
    """
    path = Path(out).absolute()
    if not path.parent.is_dir() or path.is_dir():
        raise OptionError(f"{out} is no place for a file: make its directory, or name a file")
    outcome = Outcome("report")
    cluster = Cluster(gateway, credentials_file, isolation)
    span = span_of(cluster, topic)
    compacted = is_compacted(cluster, topic) if compacted is None else compacted
    outcome.cover(topic, span.first, span.end)
    progress(f"{topic}: {sum(span.end.values()) - sum(span.first.values())} offsets to read")
    frame = stored.explained(spark, span, is_compacted=compacted).persist()
    try:
        stored_bytes = explain_span(frame, span, compacted, outcome)
        codecs = _codecs(frame)
        step_ms, rates = _rates(frame)
    finally:
        frame.unpersist()
    is_damaged = any(item.kind in ("crc", "unreadable") for item in outcome.findings)
    sizes, keys, distinct = ([], [], 0) if is_damaged else _of_records(spark, span)
    facts = Facts(
        topic,
        outcome.more["partitions"],
        stored_bytes,
        [item.as_dict() for item in outcome.findings],
        step_ms,
        rates,
        codecs,
        sizes,
        keys,
        distinct,
        None if groups is None else list(groups),
    )
    put(path, page(facts))
    outcome.more |= {"out": os.fspath(path), "distinct_keys": distinct}
    return outcome.as_dict()


def _codecs(frame: DataFrame) -> list[tuple[str, int, int, int]]:
    rows = (
        frame.where("unreadable IS NULL AND NOT isControl")
        .groupBy("codec")
        .agg(*stored.expressions(["count(*) AS batches", "sum(records) AS records", "sum(bytes) AS bytes"]))
        .collect()
    )
    return sorted(
        ((row["codec"], row["batches"], row["records"], row["bytes"]) for row in rows), key=lambda x: -x[3]
    )


def _rates(frame: DataFrame) -> tuple[int, list[tuple[int, int]]]:
    """Records by slices of time, of the newest record of their batch."""
    timed = frame.where("n_records > 0").selectExpr("n_records", "unix_millis(maxTimestamp) AS at")
    row = timed.selectExpr("min(at) AS low", "max(at) AS high").first()
    if row is None or row["low"] is None:
        return _STEPS_MS[0], []
    step_ms = slice_ms(row["high"] - row["low"])
    rows = timed.groupBy(stored.expressions([f"at - pmod(at, {step_ms}L) AS begin"])[0]).agg(
        *stored.expressions(["sum(n_records) AS records"])
    )
    found = {row["begin"]: int(row["records"]) for row in rows.collect()}
    return step_ms, [(at, found.get(at, 0)) for at in range(min(found), max(found) + 1, step_ms)]


def slice_ms(span_ms: int) -> int:
    """A round length of time of which at most SLICES cover the span."""
    for step in _STEPS_MS:
        if span_ms // step < SLICES:
            return step
    return -(-span_ms // (SLICES * _STEPS_MS[-1])) * _STEPS_MS[-1]


def _of_records(
    spark: SparkSession, span: Span
) -> tuple[list[tuple[int, int]], list[tuple[str | None, int]], int]:
    rows = span.frame(spark, _SCHEMA)
    size = "coalesce(length(key), 0) + coalesce(length(value), 0)"
    power = f"CASE WHEN {size} = 0 THEN 0 ELSE CAST(floor(log2({size})) AS INT) END AS power"
    sizes = rows.groupBy(stored.expressions([power])[0]).count().collect()
    by_key = rows.groupBy("key").count().persist()
    try:
        distinct = by_key.where("key IS NOT NULL").count()
        top = by_key.orderBy("count", "key", ascending=[False, True]).limit(KEYS_SHOWN).collect()
    finally:
        by_key.unpersist()
    keys = [
        (None if row["key"] is None else bytes(row["key"]).decode("utf-8", "replace"), row["count"])
        for row in top
    ]
    return sorted((row["power"], row["count"]) for row in sizes), keys, distinct
