"""Whether and how far a log may be compacted now. Pure.

Rules (Kafka: LogCleanerManager.cleanableOffsets, grabFilthiestCompactedLog; KIP-58, KIP-354)
  * The clean part ends at the cleaner's checkpoint; it begins anew where that one lies
    outside the log.
  * What may be compacted ends before the active segment, before the first segment that isn't
    wholly below the last stable offset, and before the first segment with a record younger than
    min.compaction.lag.ms. (Kafka compacts parts of segments; whole ones are simpler and lose nothing
    for long.)
  * A log is worth a run when dirty / (clean + dirty) is above min.cleanable.dirty.ratio, or when
    a dirty record is older than max.compaction.lag.ms.
  * Segments that a flush has not covered yet wait.
  * Where no record has a timestamp, the time when the segment was closed counts, as in retention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from penstock_core.config.topic import LONG_MAX, TopicConfig
from penstock_storage_node.log.compaction.rewrite import CleanRequest
from penstock_storage_node.log.index import TIME_ENTRY_BYTES
from penstock_storage_node.log.segment import TIMESTAMP_UNKNOWN, Segment
from penstock_storage_node.log.transactions import AbortedTransaction


@dataclass(slots=True)
class CleaningPlan:
    """A run that could be made."""

    sources: tuple[Segment, ...]
    first_dirty: int
    end: int
    dirty_bytes: int
    total_bytes: int
    must: bool
    """max.compaction.lag.ms has run out."""
    is_due: bool
    """Worth it now."""
    cut_count: int
    """The log's when the plan was begun: after a cut it counts no more."""
    sizes: tuple[int, ...]
    """Bytes of the sources."""
    aborted: tuple[AbortedTransaction, ...] = ()
    """Those with records among the sources, by rising markers."""

    @property
    def ratio(self) -> float:
        """Dirty part of what may be compacted, 0..1."""
        return self.dirty_bytes / self.total_bytes if self.total_bytes else 0.0


@dataclass(frozen=True, slots=True)
class CleaningBounds:
    """Where a log stands, as far as compaction asks."""

    cleaned_until: int
    """The cleaner's checkpoint."""
    log_start_offset: int
    last_stable_offset: int
    """Below it all is committed and, where it is of a transaction, decided."""


@dataclass(slots=True)
class Unknown:
    """Nothing decided: these segments' timestamps have to be read first."""

    segments: list[Segment] = field(default_factory=list)


def plan(
    segments: Sequence[Segment],
    settings: TopicConfig,
    bounds: CleaningBounds,
    *,
    now_ms: int,
    cut_count: int,
) -> CleaningPlan | Unknown | None:
    """What to compact; None when there is nothing dirty. `cut_count`: the log's, read before anything else."""
    if not settings.is_compacted:
        return None
    active = segments[-1]
    start = max(bounds.log_start_offset, segments[0].base_offset)
    first_dirty = bounds.cleaned_until if start <= bounds.cleaned_until <= active.base_offset else start
    sources: list[Segment] = []
    lag_from_ms = now_ms - settings.min_compaction_lag_ms
    unknown: list[Segment] = []
    for segment, after in pairwise(segments):
        newest_ms = segment.max_timestamp if segment.max_timestamp >= 0 else segment.closed_ms
        if after.base_offset > bounds.last_stable_offset or not segment.is_sealed:
            break
        is_dirty = after.base_offset > first_dirty
        if is_dirty and segment.max_timestamp == TIMESTAMP_UNKNOWN:
            unknown.append(segment)
        elif is_dirty and settings.min_compaction_lag_ms and newest_ms > lag_from_ms:
            break
        sources.append(segment)
    if unknown:
        return Unknown(unknown)
    end = segments[len(sources)].base_offset
    dirty = [s for s, after in zip(sources, segments[1:], strict=False) if after.base_offset > first_dirty]
    dirty_bytes = sum(segment.size for segment in dirty)
    if not dirty_bytes:
        return None
    oldest_ms = min((s.first_timestamp for s in dirty if s.first_timestamp >= 0), default=now_ms)
    must = settings.max_compaction_lag_ms < LONG_MAX and now_ms - oldest_ms > settings.max_compaction_lag_ms
    sizes = tuple(segment.size for segment in sources)
    result = CleaningPlan(
        sources=tuple(sources),
        first_dirty=first_dirty,
        end=end,
        dirty_bytes=dirty_bytes,
        total_bytes=sum(sizes),
        must=must,
        is_due=must,
        cut_count=cut_count,
        sizes=sizes,
    )
    result.is_due = must or result.ratio > settings.min_cleanable_dirty_ratio
    return result


def request(
    plan: CleaningPlan,
    settings: TopicConfig,
    directory: str,
    producers: dict[int, tuple[int, int]],
    now_ms: int,
    map_bytes: int,
) -> CleanRequest:
    """A plan in the cleaner's words; `producers` as in `CleanRequest`."""
    sources = zip(plan.sources, plan.sizes, strict=True)
    return CleanRequest(
        directory=directory,
        sources=tuple((segment.base_offset, size) for segment, size in sources),
        first_dirty=plan.first_dirty,
        end=plan.end,
        now_ms=now_ms,
        delete_retention_ms=settings.delete_retention_ms,
        segment_bytes=settings.segment_bytes,
        index_interval_bytes=settings.index_interval_bytes,
        index_entries_max=settings.segment_index_bytes // TIME_ENTRY_BYTES,
        producers=producers,
        map_bytes=map_bytes,
        aborted=plan.aborted,
    )


def still_stand(plan: CleaningPlan, replaced: Sequence[Segment], segments: Sequence[Segment]) -> bool:
    """Whether some sources of a plan are closed segments of a log side by side, as big as they were then."""
    if not replaced or replaced[0] not in segments:
        return False
    first = segments.index(replaced[0])
    last = first + len(replaced)
    planned = dict(zip(plan.sources, plan.sizes, strict=True))
    return (
        last < len(segments)
        and tuple(segments[first:last]) == tuple(replaced)
        and all(planned.get(segment) == segment.size == segment.written for segment in replaced)
    )
