"""What a topic's stored batches say: every offset between the log's start and its end is explained, by Spark SQL.

An offset is a record, a marker of a transaction, a record of an aborted transaction, one that compaction took, one that
a node does not give out, or it is lost. A hole between batches is compaction's work on a compacted topic and else a
loss; a hole inside a batch always is compaction's, as no producer and no broker makes one.

Sequences are followed per producer id and epoch. A batch whose CRC is wrong, or offsets that can't be had, begin them
anew, since nothing in such a header can be relied on; on a compacted topic they are not looked at, as whole
batches are rightly missing there.

Whether a transaction was aborted is read from its marker: the next control batch of the same producer id.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from pyspark_penstock.jobs.frame import Finding, Offsets, Span, fold

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = (
    "partition INT, baseOffset BIGINT, lastOffset BIGINT, records INT, bytes BIGINT, codec STRING, "
    "maxTimestamp TIMESTAMP, producerId BIGINT, producerEpoch SMALLINT, baseSequence INT, isTransactional BOOLEAN, "
    "isControl BOOLEAN, crcOk BOOLEAN, controlType INT, unreadable STRING"
)
COUNTS: Final = (
    "records", "control", "aborted", "compacted", "lost", "duplicated", "crc_errors", "sequence_gaps",
    "sequence_repeats", "unreadable",
)  # fmt: skip
ODD_MAX: Final = 10_000
"""Batches with something about them that are looked at one by one; beyond that only counts are told."""
_SEQUENCES: Final = 1 << 31
"""Sequence numbers go round."""

_BY_OFFSET = "PARTITION BY partition ORDER BY baseOffset, lastOffset"
_BY_PRODUCER = "PARTITION BY partition, producerId ORDER BY baseOffset"
_BY_EPOCH = "PARTITION BY partition, producerId, producerEpoch, is_sequenced ORDER BY baseOffset"


def explained(spark: SparkSession, span: Span, *, is_compacted: bool) -> DataFrame:
    """A row per batch of the span, with what it and the hole before it account for."""
    batches = span.frame(spark, SCHEMA, end=span.high, rows="batches", isolation="read_uncommitted")
    return explain(spark, batches, span.first, span.end, is_compacted=is_compacted)


def explain(
    spark: SparkSession, batches: DataFrame, first: Offsets, end: Offsets, *, is_compacted: bool
) -> DataFrame:
    """The same of any rows about batches with the columns of SCHEMA; those at or above `end` only decide others."""
    rows = ", ".join(f"({part}, {first[part]}L, {end[part]}L)" for part in sorted(first))
    bounds = spark.sql(f"SELECT * FROM VALUES {rows} AS bounds(partition, first, upto)")  # noqa: S608  # nosec B608  # numbers alone
    is_clean = "crcOk AND unreadable IS NULL"
    placed = (
        batches.join(bounds, "partition")
        .selectExpr(
            "*",
            "greatest(baseOffset, first) AS low",
            f"max(lastOffset) OVER ({_BY_OFFSET} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached",
            f"count_if(NOT ({is_clean})) OVER ({_BY_OFFSET} ROWS UNBOUNDED PRECEDING) AS run",
            f"first(CASE WHEN isControl THEN controlType END, true) OVER ({_BY_PRODUCER} "
            "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS decision",
            f"{is_clean} AND NOT isControl AND baseSequence >= 0 AS is_sequenced",
        )
        .where("baseOffset < upto")
    )
    followed = placed.selectExpr(
        "*",
        "coalesce(reached, first - 1) + 1 AS expected",
        "least(lastOffset, upto - 1) - low + 1 AS width",
        "unreadable IS NULL AND isTransactional AND NOT isControl AND decision <=> 0 AS is_aborted",
        f"lag(pmod(baseSequence + lastOffset - baseOffset + 1, {_SEQUENCES}L)) OVER ({_BY_EPOCH}) AS sequence",
        f"lag(run) OVER ({_BY_EPOCH}) AS run_before",
    )
    is_record = "unreadable IS NULL AND NOT isControl AND NOT is_aborted"
    hole, taken = "greatest(low - expected, 0)", "least(records, width)"
    is_followed = (
        "is_sequenced AND sequence IS NOT NULL AND run_before = run" if not is_compacted else "false"
    )
    ahead = f"pmod(baseSequence - sequence, {_SEQUENCES}L)"
    return followed.selectExpr(
        *_KEPT,
        f"CASE WHEN {is_record} THEN {taken} ELSE 0 END AS n_records",
        "CASE WHEN unreadable IS NULL AND isControl THEN width ELSE 0 END AS n_control",
        "CASE WHEN is_aborted THEN width ELSE 0 END AS n_aborted",
        f"CASE WHEN {is_record} THEN width - {taken} ELSE 0 END + {hole if is_compacted else 0} AS n_compacted",
        f"{0 if is_compacted else hole} AS n_lost",
        "greatest(least(expected - 1, lastOffset) - low + 1, 0) AS n_duplicated",
        "CASE WHEN unreadable IS NULL AND NOT crcOk THEN 1 ELSE 0 END AS n_crc_errors",
        f"CASE WHEN {is_followed} AND {ahead} > 0 AND {ahead} < {_SEQUENCES // 2} THEN 1 ELSE 0 END AS n_sequence_gaps",
        f"CASE WHEN {is_followed} AND {ahead} >= {_SEQUENCES // 2} THEN 1 ELSE 0 END AS n_sequence_repeats",
        "CASE WHEN unreadable IS NOT NULL THEN width ELSE 0 END AS n_unreadable",
    )


_KEPT: Final = (
    "partition", "baseOffset", "lastOffset", "low", "expected", "records", "bytes", "codec", "maxTimestamp",
    "producerId", "producerEpoch", "baseSequence", "sequence", "isControl", "is_aborted", "unreadable",
)  # fmt: skip


def counted(frame: DataFrame) -> list[dict[str, Any]]:
    """Per partition what `explained` comes to, with `bytes` stored and `reached`, the last offset seen."""
    sums = [f"sum(n_{name}) AS {name}" for name in COUNTS]
    frame = frame.selectExpr("*", "CASE WHEN unreadable IS NULL THEN bytes ELSE 0 END AS stored")
    columns = [*sums, "sum(stored) AS bytes", "max(lastOffset) AS reached"]
    found = frame.groupBy("partition").agg(*expressions(columns))
    return [row.asDict() for row in found.collect()]


def expressions(texts: Iterable[str]) -> list[Any]:
    """Columns of Spark, out of SQL."""
    from pyspark.sql.functions import expr

    return [expr(text) for text in texts]


def partition_rows(found: list[dict[str, Any]], span: Span, *, is_compacted: bool) -> list[dict[str, Any]]:
    """The result's `partitions`: every partition of the span, and the hole at its end accounted for."""
    by_number = {row["partition"]: row for row in found}
    rows = []
    for part in sorted(span.first):
        row = by_number.get(part, {})
        counts = {name: int(row.get(name) or 0) for name in COUNTS}
        counts["compacted" if is_compacted else "lost"] += span.end[part] - _reached(row, span, part)
        rows.append({"partition": part, "first": span.first[part], "last": span.end[part] - 1, **counts})
    return rows


def _reached(row: dict[str, Any], span: Span, part: int) -> int:
    """The offset behind the last that was seen."""
    return span.first[part] if row.get("reached") is None else max(row["reached"] + 1, span.first[part])


def findings_of(
    frame: DataFrame, found: list[dict[str, Any]], span: Span, *, is_compacted: bool
) -> list[Finding]:
    """What should not be, batch by batch, and at the ends of partitions."""
    odd = " OR ".join(f"n_{name} > 0" for name in COUNTS[4:])
    rows = [row.asDict() for row in frame.where(odd).limit(ODD_MAX).collect()]
    items = [item for row in rows for item in _of_batch(row, span.topic)]
    by_number = {row["partition"]: row for row in found}
    if not is_compacted:
        for part, end in span.end.items():
            reached = _reached(by_number.get(part, {}), span, part)
            if reached < end:
                items.append(Finding("lost", span.topic, part, reached, end, end - reached))
    return fold(items)


def _of_batch(row: dict[str, Any], topic: str) -> Iterable[Finding]:
    part, low, last, expected = row["partition"], row["low"], row["lastOffset"], row["expected"]
    batch = {name: row[name] for name in ("baseOffset", "lastOffset", "records")}
    producer = batch | {name: row[name] for name in ("producerId", "producerEpoch", "baseSequence")}
    if row["n_lost"]:
        yield Finding("lost", topic, part, expected, low, row["n_lost"])
    if row["n_duplicated"]:
        upto = min(expected - 1, last) + 1
        yield Finding("duplicated", topic, part, low, upto, row["n_duplicated"], [batch])
    if row["n_crc_errors"]:
        yield Finding("crc", topic, part, low, last + 1, row["records"], [batch])
    if row["n_unreadable"]:
        why = {"reason": row["unreadable"]}
        yield Finding("unreadable", topic, part, low, last + 1, row["n_unreadable"], [why])
    if row["n_sequence_gaps"]:
        sample = producer | {"expectedSequence": row["sequence"]}
        yield Finding("sequence_gap", topic, part, min(expected, low), last + 1, 1, [sample])
    if row["n_sequence_repeats"]:
        sample = producer | {"expectedSequence": row["sequence"]}
        yield Finding("sequence_repeat", topic, part, low, last + 1, 1, [sample])
