"""`audit`: every offset of a topic explained, and the topic compared with a copy or with its archive."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark_penstock.errors import OptionError
from pyspark_penstock.jobs import compare, stored
from pyspark_penstock.jobs.archive_files import ArchiveFiles
from pyspark_penstock.jobs.frame import (
    DEFAULT_GATEWAY,
    Cluster,
    Finding,
    Offsets,
    Outcome,
    Progress,
    Span,
    quiet,
    span_of,
)
from pyspark_penstock.jobs.policy import is_compacted
from pyspark_penstock.jobs.read_archive import read_archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DAMAGE = ("crc", "unreadable")
_LOOKS_MAX = 5
"""How often a topic is compared with its archive anew, where retention may have taken a part of what it lacks."""


def audit(
    spark: SparkSession,
    *,
    topic: str,
    against: str = "",
    archive: str = "",
    isolation: str = "read_uncommitted",
    keys_moved: bool = False,
    compacted: bool | None = None,
    gateway: str = DEFAULT_GATEWAY,
    credentials_file: str = "",
    progress: Progress = quiet,
) -> dict[str, Any]:
    """Explains every offset of `topic` between its log's start and its end; nothing is written.

    `against` names a topic that has the same records (over all partitions with `keys_moved`), `archive` a directory
    that the job archive has written. `compacted` says what the topic is; else it is asked, which takes ALTER on the
    cluster. Raises PenstockError.
    """
    if against and archive:
        raise OptionError(
            "a topic is compared with another or with an archive, not with both; give one of them"
        )
    if keys_moved and not against:
        raise OptionError("keys_moved goes with against: it says how the two topics are compared")
    outcome = Outcome("audit")
    cluster = Cluster(gateway, credentials_file, isolation)
    span = span_of(cluster, topic)
    files = ArchiveFiles.open(archive, topic) if archive else None
    other = span_of(cluster, against) if against else None
    compacted = is_compacted(cluster, topic) if compacted is None else compacted
    outcome.cover(topic, span.first, span.end)
    progress(f"{topic}: {sum(span.end.values()) - sum(span.first.values())} offsets to explain")
    _explain(spark, span, compacted, outcome)
    if any(item.kind in _DAMAGE for item in outcome.findings) and (other is not None or files is not None):
        outcome.more["compared"] = False
        progress(f"{topic} is not compared: rows of damaged batches can't be read")
        return outcome.as_dict()
    if other is not None:
        outcome.cover(against, other.first, other.end)
        progress(f"comparing {topic} with {against}")
        _against(spark, span, other, keys_moved, outcome)
    if files is not None:
        progress(f"comparing {topic} with {archive}")
        _with_archive(spark, span, files, compacted, outcome)
    return outcome.as_dict()


def _explain(spark: SparkSession, span: Span, compacted: bool, outcome: Outcome) -> None:
    frame = stored.explained(spark, span, is_compacted=compacted).persist()
    try:
        explain_span(frame, span, compacted, outcome)
    finally:
        frame.unpersist()


def explain_span(frame: DataFrame, span: Span, compacted: bool, outcome: Outcome) -> dict[int, int]:
    """Puts into `outcome` what the explained batches come to; returns stored bytes per partition."""
    found = stored.counted(frame)
    findings = stored.findings_of(frame, found, span, is_compacted=compacted)
    rows = stored.partition_rows(found, span, is_compacted=compacted)
    # What retention took while this ran is below the log's start now, and no loss.
    start = span.first_now()
    behind = [item for item in findings if item.kind == "lost" and item.end <= start[item.partition]]
    for item in behind:
        rows_of = next(row for row in rows if row["partition"] == item.partition)
        rows_of["lost"] -= item.count
    outcome.more["partitions"] = rows
    outcome.rows = sum(row["records"] for row in rows)
    outcome.bytes = sum(row["bytes"] for row in found)
    outcome.findings += [item for item in findings if item not in behind]
    return {row["partition"]: int(row["bytes"]) for row in found}


def _against(spark: SparkSession, span: Span, other: Span, keys_moved: bool, outcome: Outcome) -> None:
    frames = [
        compare.hashed(
            one.frame(spark, compare.SCHEMA, includeHeaders="true"), by_row=False, keys_moved=keys_moved
        )
        for one in (span, other)
    ]
    parts = compare.differing(compare.sums(frames[0]), compare.sums(frames[1]))
    if parts:
        chosen = f"part IN ({', '.join(map(str, parts))})"
        ours, theirs = (frame.where(chosen) for frame in frames)
        outcome.findings += compare.of_topics(spark, ours, theirs, (span.topic, other.topic))


def _with_archive(
    spark: SparkSession, span: Span, files: ArchiveFiles, compacted: bool, outcome: Outcome
) -> None:
    """As far as the archive goes, and from where the log starts by now: what retention took since is rightly there."""
    files.check_topic_id(span.topic_id)
    span = replace(span, cluster=replace(span.cluster, isolation=files.isolation(span.cluster.isolation)))
    found: list[Finding] = []
    for _ in range(_LOOKS_MAX):
        found, behind = _differing(spark, span, files, span.first_now(), compacted)
        # Not once more for each move of the start: a topic may lose records for as long as it is looked at.
        start = span.first_now()
        found = [item for item in found if item.kind != "extra" or item.end > start[item.partition]]
        if not any(item.kind == "extra" and item.start < start[item.partition] for item in found):
            break
    outcome.more["archive"] = {"files": len(files.files()), "rows": files.rows(), "behind": behind}
    outcome.findings += found


def _differing(
    spark: SparkSession, span: Span, files: ArchiveFiles, log_start: Offsets, compacted: bool
) -> tuple[list[Finding], int]:
    """From where the log starts; and how many offsets the archive is behind."""
    upto = files.upto()
    start = {part: min(max(first, log_start[part]), span.end[part]) for part, first in span.first.items()}
    end = {part: max(min(upto.get(part, first), span.end[part]), first) for part, first in start.items()}
    ours = compare.hashed(
        span.frame(spark, compare.SCHEMA, first=start, end=end, includeHeaders="true"), by_row=True
    )
    clauses = [
        f"(partition = {part} AND offset >= {start[part]} AND offset < {end[part]})" for part in sorted(end)
    ]
    archived = read_archive(spark, str(files.directory), present_only=True).where(" OR ".join(clauses))
    theirs = compare.hashed(archived, by_row=True)
    parts = compare.differing(compare.sums(ours), compare.sums(theirs))
    behind = sum(span.end[part] - end[part] for part in end)
    if not parts:
        return [], behind
    chosen = f"part IN ({', '.join(map(str, parts))})"
    names = (span.topic, span.topic)
    findings = compare.of_archive(spark, ours.where(chosen), theirs.where(chosen), names)
    # What compaction took since is rightly in the archive.
    return [item for item in findings if not (compacted and item.kind == "extra")], behind
