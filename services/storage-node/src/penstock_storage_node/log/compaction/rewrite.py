"""Compaction of one log's closed segments: what the worker process does.

Rules (Kafka: Cleaner, LogCleaner; KIP-58, KIP-534)
  * First the keys of the dirty part, in order, into a map of fixed size (`OffsetMap`): what
    doesn't fit is left for the next run. Aborted data are left out: which they are says the aborted
    index, for a marker may stand far behind the last segment that is compacted.
  * Then every segment from the log's first on up to where the map ends: a record stays when no
    later one has its key. A tombstone that stays gives its batch a delete horizon, and goes
    once that time has come. Records without a key go.
  * A transaction's marker stays while any batch of it does, an empty one too: whoever replays the log would find
    a transaction open for ever. Then it goes by a delete horizon as well. Aborted data go. An entry of the aborted
    index goes with its marker's record.
  * The batch with a producer's last sequence stays, empty if need be: idempotence survives.
  * Segments are put together while they fit segment.bytes, the index sizes and an offset range
    of 2^31. A record is never moved to another offset.

Ours: the last batch of each new segment stays too, empty if need be. So a new segment says by
itself which offsets it covers, and recovery that finds it half swapped in knows which old
segments it replaces (see `swap`), and never lets one of them come back.

Every batch's CRC is checked before its records are touched: damage must not get a new CRC.
Files are written as `.cleaned` and flushed; nothing of the log itself is changed here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock_core.config.topic import LONG_MAX
from penstock_kafka.records.batch import DELETE_HORIZON_BIT, BatchInfo, is_crc_valid
from penstock_kafka.records.markers import read_marker
from penstock_storage_node.log.aborted_index import encode_entries
from penstock_storage_node.log.compaction.offset_map import OffsetMap
from penstock_storage_node.log.compaction.record_filter import (
    Filtered,
    drop_records,
    filter_batch,
    keep_marker,
    open_batch,
    records_of,
)
from penstock_storage_node.log.fs import FileSystem, unlink_if_exists, write_fully
from penstock_storage_node.log.index import RELATIVE_OFFSET_MAX, TIME_ENTRY_BYTES, IndexHeads
from penstock_storage_node.log.jobs import create_with
from penstock_storage_node.log.segment import Segment, file_stem, walk_file
from penstock_storage_node.log.transactions import AbortedTransaction

CLEANED: Final = ".cleaned"
WRITE_BYTES: Final = 1024 * 1024


class DamagedSource(Exception):
    """A segment isn't whole batches with right CRCs from its start to its end."""

    def __init__(self, base_offset: int, message: str) -> None:
        super().__init__(message)
        self.base_offset = base_offset
        """Of the segment."""


@dataclass(frozen=True, slots=True)
class CleanRequest:
    """What to compact, as plain values."""

    directory: str
    sources: tuple[tuple[int, int], ...]
    """(base offset, bytes) of the segments that may be rewritten, from the log's first on."""
    first_dirty: int
    end: int
    """Where the last of the sources ends: the next segment's base offset."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    index_entries_max: int
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Active producers: (offset of the last data record, -1 if none; epoch)."""
    map_bytes: int = 32 * 1024 * 1024
    aborted: tuple[AbortedTransaction, ...] = ()
    """Those with records among the sources, by rising markers; these may lie behind the sources."""


@dataclass(frozen=True, slots=True)
class CleanedGroup:
    """A new segment, written and flushed under `.cleaned` names."""

    base_offset: int
    sources: tuple[int, ...]
    """Base offsets of the segments that it replaces."""
    size: int
    offset_entries: int
    time_entries: int
    first_timestamp: int
    max_timestamp: int
    max_timestamp_offset: int
    aborted_entries: int = 0
    tombstones_gone_below: int = 0
    """Past the last tombstone (or marker) whose time was over; 0 when there was none."""


@dataclass(slots=True)
class CleanStats:
    """What a run has done."""

    cleaned_until: int = -1
    """All below is compacted once every group is swapped in."""
    bytes_in: int = 0
    bytes_out: int = 0
    records_in: int = 0
    records_out: int = 0
    map_keys: int = 0


Pause = Callable[[int], None]
"""Called with the bytes read or written since the last call; may sleep."""


def _no_pause(size: int) -> None:
    del size


class Cleaner:
    """One run over one log."""

    def __init__(self, fs: FileSystem, request: CleanRequest, pause: Pause = _no_pause) -> None:
        self.stats = CleanStats()
        self._fs = fs
        self._request = request
        self._pause = pause
        self._map = OffsetMap(request.map_bytes)
        self._map_end = request.first_dirty
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        """By producer, rising."""
        for row in request.aborted:
            self._aborted.setdefault(row.producer_id, []).append(row)
        self._has_records: set[int] = set()
        """Producers with records of a transaction among what was read, since their last marker."""
        self._has_batches: set[int] = set()
        """Producers with a transactional batch that stays, since their last marker."""
        self._tombstones_gone_below = 0
        """In the group that is being cleaned."""

    def run(self) -> Iterator[CleanedGroup]:
        """New segments, one at a time, oldest first; swap each in before asking for the next.

        Raises DamagedSource, BatchTooLarge, OSError, PenstockError.
        """
        self._fill_map()
        self._has_records.clear()
        for group in self._groups():
            cleaned = self._clean(group)
            if cleaned is not None:
                yield cleaned
        self.stats.cleaned_until = self._map_end
        self.stats.map_keys = self._map.count

    # ------------------------------------------------------------------ reading

    def _batches(self, base_offset: int, size: int) -> Iterator[tuple[BatchInfo, memoryview]]:
        path = f"{self._request.directory}/{file_stem(base_offset)}.log"
        position = 0
        for info, view in walk_file(self._fs, path, 0, size):
            if not is_crc_valid(view):
                raise DamagedSource(base_offset, f"{path}: wrong CRC at byte {info.position}")
            position = info.position + info.size_bytes
            self._pause(info.size_bytes)
            yield info, view
        if position != size:
            raise DamagedSource(base_offset, f"{path}: no batch at byte {position} of {size}")

    def _aborted_with(self, info: BatchInfo) -> AbortedTransaction | None:
        """The aborted transaction that a batch of data or a marker is of."""
        rows = self._aborted.get(info.producer_id)
        if not rows or not info.is_transactional:
            return None
        at = bisect_left(rows, info.last_offset, key=_marker_offset)
        if at < len(rows) and rows[at].first_offset <= info.base_offset:
            return rows[at]
        return None

    def _fill_map(self) -> None:
        request, put = self._request, self._map.put
        starts = [base for base, _ in request.sources]
        for (base_offset, size), end in zip(request.sources, [*starts[1:], request.end], strict=True):
            if end <= request.first_dirty:
                continue
            for info, view in self._batches(base_offset, size):
                if info.last_offset < request.first_dirty:
                    continue
                self._check_marker(base_offset, info, view)
                if info.record_count and not info.is_control and self._aborted_with(info) is None:
                    for record in records_of(open_batch(view, info), info):
                        if record.offset < request.first_dirty or record.key is None:
                            continue
                        if not put(bytes(record.key), record.offset):
                            self._map_end = record.offset
                            return
                self._map_end = info.next_offset
        self._map_end = request.end

    def _check_marker(self, base_offset: int, info: BatchInfo, view: memoryview) -> None:
        """An abort marker behind records must stand in the aborted index, or these would be taken for committed."""
        if not info.is_transactional or not info.record_count:
            return
        if not info.is_control:
            self._has_records.add(info.producer_id)
            return
        marker = read_marker(view, info)
        if marker is None:
            return
        has_records = info.producer_id in self._has_records
        self._has_records.discard(info.producer_id)
        if has_records and not marker.commits and self._aborted_with(info) is None:
            raise DamagedSource(base_offset, f"no aborted index has the marker at offset {info.base_offset}")

    # ------------------------------------------------------------------ grouping

    def _groups(self) -> Iterator[list[tuple[int, int]]]:
        """Neighbouring segments that may become one."""
        request = self._request
        group: list[tuple[int, int]] = []
        ends = [base for base, _ in request.sources[1:]] + [request.end]
        size = entries = 0
        for (base_offset, source_bytes), end in zip(request.sources, ends, strict=True):
            if base_offset >= self._map_end:
                break
            source_entries = source_bytes // max(request.index_interval_bytes, 1) + 1
            if group and (
                size + source_bytes > request.segment_bytes
                or entries + source_entries > request.index_entries_max
                or end - 1 - group[0][0] > RELATIVE_OFFSET_MAX
            ):
                yield group
                group, size, entries = [], 0, 0
            group.append((base_offset, source_bytes))
            size += source_bytes
            entries += source_entries
        if group:
            yield group

    # ------------------------------------------------------------------ writing

    def _clean(self, group: Sequence[tuple[int, int]]) -> CleanedGroup | None:
        """Write one new segment; None when the old one needn't be replaced."""
        stats = self.stats
        total = sum(size for _, size in group)
        if not total:
            return None
        last_source = max(base for base, size in group if size)
        out = _Writer(self._fs, self._request, group[0][0], self._pause)
        is_changed = len(group) > 1
        self._tombstones_gone_below = 0
        try:
            for base_offset, size in group:
                for info, view in self._batches(base_offset, size):
                    stats.bytes_in += info.size_bytes
                    stats.records_in += info.record_count
                    self._check_marker(base_offset, info, view)
                    is_last = base_offset == last_source and info.position + info.size_bytes == size
                    left = self._filter(info, view, is_last=is_last)
                    is_changed = is_changed or left.is_changed
                    stats.records_out += left.kept_count
                    if left.data is not None:
                        out.add(info, left)
                    if info.is_control and left.kept_count and (row := self._aborted_with(info)) is not None:
                        out.aborted.append(row)
            stats.bytes_out += out.segment.size
            if is_changed:
                return out.finish(tuple(base for base, _ in group), self._tombstones_gone_below)
        except BaseException:
            out.discard()
            raise
        out.discard()
        return None

    def _filter(self, info: BatchInfo, view: memoryview, *, is_last: bool) -> Filtered:
        request = self._request
        horizon_ms = min(request.now_ms + request.delete_retention_ms, LONG_MAX)
        keep_empty = is_last or self._ends_producer(info)
        is_due = bool(info.attributes & DELETE_HORIZON_BIT) and info.base_timestamp <= request.now_ms
        if info.is_control:
            has_batches = info.producer_id in self._has_batches
            self._has_batches.discard(info.producer_id)
            if has_batches or info.base_offset >= self._map_end:
                return keep_marker(view, info, new_horizon_ms=None)
            if is_due:
                if info.record_count:
                    self._tombstones_gone_below = info.next_offset
                return drop_records(view, info, keep_empty=keep_empty)
            return keep_marker(view, info, new_horizon_ms=horizon_ms)
        if info.last_offset < self._map_end and self._aborted_with(info) is not None:
            left = drop_records(view, info, keep_empty=keep_empty)
        elif info.base_offset >= self._map_end:
            left = Filtered(bytes(view), info.record_count, False, info.max_timestamp)
        elif not info.record_count:
            left = drop_records(view, info, keep_empty=keep_empty)
        else:
            keep = self._keeper(keeps_tombstones=not is_due)
            left = filter_batch(view, info, keep, new_horizon_ms=horizon_ms, keep_empty=keep_empty)
        if info.is_transactional and left.data is not None:
            self._has_batches.add(info.producer_id)
        return left

    def _keeper(self, *, keeps_tombstones: bool) -> Callable[[Any], bool]:
        get, map_end = self._map.get, self._map_end

        def keep(record: Any) -> bool:
            offset: int = record.offset
            if offset >= map_end:
                return True
            if record.key is None:
                return False
            if offset < get(bytes(record.key)):
                return False
            if keeps_tombstones or record.value is not None:
                return True
            self._tombstones_gone_below = offset + 1
            return False

        return keep

    def _ends_producer(self, info: BatchInfo) -> bool:
        known = self._request.producers.get(info.producer_id)
        if known is None:
            return False
        last_data_offset, epoch = known
        if last_data_offset >= 0:
            return info.last_offset == last_data_offset
        return info.is_control and info.producer_epoch == epoch


class _Writer:
    """The files of a new segment."""

    def __init__(self, fs: FileSystem, request: CleanRequest, base_offset: int, pause: Pause) -> None:
        self.segment = Segment(request.directory, base_offset, IndexHeads(), request.now_ms)
        self.aborted: list[AbortedTransaction] = []
        """Those whose markers stay, with their records."""
        self._fs = fs
        self._interval_bytes = request.index_interval_bytes
        self._pause = pause
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._written = 0
        self._path = self.segment.path + CLEANED
        self._fd = fs.create(self._path)

    def add(self, info: BatchInfo, left: Filtered) -> None:
        data = left.data or b""
        self.segment.note(info.last_offset, len(data), left.max_timestamp, self._interval_bytes)
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        if pending:
            before, self._written = self._written, write_fully(self._fs, self._fd, pending, self._written)
            self._pause(self._written - before)

    def finish(self, sources: tuple[int, ...], tombstones_gone_below: int) -> CleanedGroup:
        """Write what is left, and the indexes; durable on return but for the names."""
        self._write()
        segment, fs = self.segment, self._fs
        segment.close_time_index()
        fs.fdatasync(self._fd)
        self._close()
        _, offsets = segment.offset_index.unsaved(segment.offset_index.count)
        create_with(fs, segment.offset_index.path + CLEANED, offsets, sync=True)
        _, times = segment.time_index.unsaved(segment.time_index.count)
        create_with(fs, segment.time_index.path + CLEANED, times, sync=True)
        if self.aborted or fs.exists(segment.aborted.path):
            create_with(fs, segment.aborted.path + CLEANED, encode_entries(self.aborted), sync=True)
        else:
            # Of a run that was killed, with entries of then.
            unlink_if_exists(fs, segment.aborted.path + CLEANED)
        return CleanedGroup(
            segment.base_offset,
            sources,
            segment.size,
            segment.offset_index.count,
            len(times) // TIME_ENTRY_BYTES,
            segment.first_timestamp,
            segment.max_timestamp,
            segment.max_timestamp_offset,
            len(self.aborted),
            tombstones_gone_below,
        )

    def discard(self) -> None:
        """Take the files away again."""
        self._close()
        discard_cleaned(self._fs, self.segment)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._fs.close(fd)


def discard_cleaned(fs: FileSystem, segment: Segment) -> None:
    """Remove a new segment's files that nobody will swap in."""
    for path in (
        segment.path,
        segment.offset_index.path,
        segment.time_index.path,
        segment.aborted.path,
    ):
        unlink_if_exists(fs, path + CLEANED)


def _marker_offset(row: AbortedTransaction) -> int:
    return row.last_offset
