"""Whether two sets of rows are the same, by Spark SQL: count and sum of a 64-bit hash, rows only where those differ.

Topics are compared by key, value and headers: a copy has offsets of its own. An archive keeps those, so its rows are
compared one by one with the topic's, times included.

Kinds of findings: `missing` (the topic audited has it, the other has not), `extra` (the other way round), `duplicated`
(both have it, and the one that is named more often), `different` (under the same key, or offset, one has something
else). A record that both hold as often as each other is no finding, wherever in the partition it lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark_penstock.jobs.frame import SAMPLES_MAX, Finding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = (
    "key BINARY, value BINARY, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
_SHOWN_BYTES: Final = 80

_HEADERS = "transform(headers, h -> struct(h.key AS k, h.value IS NULL AS n, h.value AS v))"
_CONTENT = f"key IS NULL, key, value IS NULL, value, headers IS NULL, {_HEADERS}"
CONTENT_HASH: Final = f"xxhash64({_CONTENT})"
"""Of what a copy keeps. Nulls count, since xxhash64 alone passes over them."""
ROW_HASH: Final = f"xxhash64({_CONTENT}, unix_micros(timestamp), timestampType)"
"""Of what an archive keeps beside partition and offset."""

_SUMS = (
    "count(*) AS n",
    # In pieces that can't overflow, as a sum of whole 64-bit numbers would.
    "sum(hash & 4194303) AS low",
    "sum(shiftright(hash, 22) & 4194303) AS middle",
    "sum(shiftrightunsigned(hash, 44)) AS high",
)
Sums = dict[int, tuple[int, ...]]


def hashed(frame: DataFrame, *, by_row: bool, keys_moved: bool = False) -> DataFrame:
    """Rows with their hash and the group in which they are counted: the partition, or all as one."""
    return frame.selectExpr(
        f"{'0' if keys_moved else 'partition'} AS part",
        "partition",
        "offset",
        f"{ROW_HASH if by_row else CONTENT_HASH} AS hash",
        "CASE WHEN key IS NOT NULL THEN xxhash64(key) END AS key_hash",
        f"substring(key, 1, {_SHOWN_BYTES}) AS key",
        f"substring(value, 1, {_SHOWN_BYTES}) AS value",
    )


def sums(frame: DataFrame) -> Sums:
    """Per group: count and sums."""
    from pyspark.sql.functions import expr

    rows = frame.groupBy("part").agg(*[expr(text) for text in _SUMS]).collect()
    return {row["part"]: (row["n"], row["low"], row["middle"], row["high"]) for row in rows}


def differing(one: Sums, other: Sums) -> list[int]:
    """Groups that are not the same on both sides."""
    return sorted(part for part in one.keys() | other.keys() if one.get(part) != other.get(part))


def of_topics(
    spark: SparkSession, ours: DataFrame, theirs: DataFrame, names: tuple[str, str]
) -> list[Finding]:
    """What differs between two topics' hashed rows."""
    left = _side(_ranked(ours), 0).unionByName(_side(_ranked(theirs), 1))
    # The n-th equal record of one side goes with the n-th of the other; who has no counterpart is left over.
    alone = left.selectExpr(
        "*",
        "count(*) OVER (PARTITION BY part, hash, turn) AS pair",
        "count_if(side = 0) OVER (PARTITION BY part, hash) AS here",
        "count_if(side = 1) OVER (PARTITION BY part, hash) AS there",
    ).where("pair = 1")
    leftover = alone.selectExpr(
        "*",
        "here > 0 AND there > 0 AS is_more",
        "row_number() OVER (PARTITION BY part, key_hash, side, here > 0 AND there > 0 ORDER BY partition, offset)"
        " AS nth",
    )
    judged = leftover.selectExpr(
        "*",
        "count(*) OVER (PARTITION BY part, key_hash, nth, is_more) AS with_key",
    ).selectExpr(
        "side", "partition", "offset", "key", "value", "here", "there",
        "CASE WHEN is_more THEN 'duplicated' WHEN key_hash IS NOT NULL AND with_key = 2 THEN 'different' "
        "WHEN side = 0 THEN 'missing' ELSE 'extra' END AS kind",
    ).where("NOT (kind = 'different' AND side = 1)")  # fmt: skip
    return _collected(judged, names)


def of_archive(
    spark: SparkSession, ours: DataFrame, archived: DataFrame, names: tuple[str, str]
) -> list[Finding]:
    """What differs between a topic's rows and an archive's, offset by offset."""
    both = _side(ours, 0).unionByName(_side(archived, 1)).selectExpr(
        "*",
        "count_if(side = 0) OVER (PARTITION BY partition, offset) AS here",
        "count_if(side = 1) OVER (PARTITION BY partition, offset) AS there",
        "min(hash) OVER (PARTITION BY partition, offset) <> max(hash) OVER (PARTITION BY partition, offset) AS differs",
        "row_number() OVER (PARTITION BY partition, offset, side ORDER BY hash) AS turn",
    )  # fmt: skip
    judged = both.selectExpr(
        "side", "partition", "offset", "key", "value", "here", "there",
        "CASE WHEN there = 0 THEN 'missing' WHEN here = 0 THEN 'extra' "
        "WHEN side = 1 AND turn > 1 THEN 'duplicated' WHEN differs AND side = 0 THEN 'different' END AS kind",
    ).where("kind IS NOT NULL")  # fmt: skip
    return _collected(judged, names)


def _ranked(frame: DataFrame) -> DataFrame:
    return frame.selectExpr(
        "*", "row_number() OVER (PARTITION BY part, hash ORDER BY partition, offset) AS turn"
    )


def _side(frame: DataFrame, side: int) -> DataFrame:
    return frame.selectExpr("*", f"{side} AS side")


def _collected(judged: DataFrame, names: tuple[str, str]) -> list[Finding]:
    """A finding per kind, side and partition, with its first rows as sample."""
    numbered = judged.selectExpr(
        "*",
        "row_number() OVER (PARTITION BY kind, side, partition ORDER BY offset) AS nth",
        "count(*) OVER (PARTITION BY kind, side, partition) AS total",
        "min(offset) OVER (PARTITION BY kind, side, partition) AS low",
        "max(offset) OVER (PARTITION BY kind, side, partition) AS high",
    ).where(f"nth <= {SAMPLES_MAX}")
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for row in numbered.orderBy("kind", "side", "partition", "offset").collect():
        groups.setdefault((row["kind"], row["side"], row["partition"]), []).append(row.asDict())
    return [
        Finding(
            kind,
            names[side],
            partition,
            rows[0]["low"],
            rows[0]["high"] + 1,
            rows[0]["total"],
            [_shown(row) for row in rows],
        )
        for (kind, side, partition), rows in groups.items()
    ]


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "offset": row["offset"],
        "key": _text(row["key"]),
        "value": _text(row["value"]),
        "here": row["here"],
        "there": row["there"],
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).decode("utf-8", "replace")
