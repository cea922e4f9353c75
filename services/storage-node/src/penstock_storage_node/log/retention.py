"""Which old segments retention lets go, and the removal of their files.

Source: UnifiedLog.deleteOldSegments. Oldest first, stopping at the first that stays; only
whole segments below the high watermark. Time goes by the segment's largest record
timestamp (the file's modification time when no record has one); size lets a segment
go while what is beyond retention.bytes is at least its size.

When all data are past their time the active segment is closed first and goes next time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from penstock_core.config.topic import TopicConfig
from penstock_core.failpoints import hit
from penstock_storage_node.log.fs import FileSystem, unlink_if_exists
from penstock_storage_node.log.jobs import segment_paths
from penstock_storage_node.log.segment import TIMESTAMP_UNKNOWN, Segment, forget_indexes


@dataclass(slots=True)
class Verdict:
    count: int = 0
    """Oldest segments that may go."""
    roll_active: bool = False
    """The active segment is past its time too: close it."""
    unknown: list[Segment] = field(default_factory=list)
    """Nothing decided: these segments' timestamps have to be read first."""


def decide(
    segments: Sequence[Segment],
    settings: TopicConfig,
    high_watermark: int,
    log_start_offset: int,
    now_ms: int,
) -> Verdict:
    """Pure: what may go now."""
    by_policy = settings.is_deleted_by_retention
    closed = segments[:-1]
    if by_policy and settings.retention_ms >= 0:
        unknown = [segment for segment in closed if segment.max_timestamp == TIMESTAMP_UNKNOWN]
        if unknown:
            # Deleted records and what is beyond retention.bytes need no timestamps: they go now.
            by_size = replace(settings, retention_ms=-1)
            early = decide(segments, by_size, high_watermark, log_start_offset, now_ms)
            return early if early.count else Verdict(unknown=unknown)
    excess = sum(segment.size for segment in segments) - settings.retention_bytes
    count = 0
    for segment, after in zip(closed, segments[1:], strict=False):
        is_early = after.base_offset <= log_start_offset
        is_old = by_policy and is_expired(segment, settings, now_ms)
        is_beyond = by_policy and settings.retention_bytes >= 0 and excess >= segment.size
        is_whole = segment.written == segment.size and after.is_on_disk
        if after.base_offset > high_watermark or not is_whole or not (is_early or is_old or is_beyond):
            return Verdict(count)
        excess -= segment.size
        count += 1
    active = segments[-1]
    is_over = by_policy and active.size > 0 and active.is_on_disk and active.size == active.written
    roll = is_over and is_expired(active, settings, now_ms)
    return Verdict(count, roll_active=roll)


def is_expired(segment: Segment, settings: TopicConfig, now_ms: int) -> bool:
    if settings.retention_ms < 0:
        return False
    latest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.closed_ms
    return now_ms - latest > settings.retention_ms


def remove(fs: FileSystem, directory: str, segments: Sequence[Segment]) -> None:
    """Delete files of segments, oldest first, so that what is left never has a hole (disk pool).

    First renamed to `.deleted`, which recovery removes should the process end half-way.
    """
    hit("log.retention.before_rename")
    for segment in segments:
        forget_indexes(fs, segment)
        for path in segment_paths(segment):
            fs.files.forget(path)
            with suppress(FileNotFoundError):
                fs.rename(path, path + ".deleted")
            fs.files.forget(path)  # a reader may have opened it meanwhile
    with suppress(FileNotFoundError):  # the whole log was deleted meanwhile
        fs.sync_directory(directory)
    hit("log.retention.after_rename")

    for segment in segments:
        for path in segment_paths(segment):
            unlink_if_exists(fs, path + ".deleted")
