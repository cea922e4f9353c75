"""Reading a log: from staged memory or the page cache on the loop, from the disk in the pool.

`read` is for the loop and never waits: where it would have to, it gives a ReadJob for the pool.
The look-ups by timestamp are for the pool. Both go on while the loop appends: they take the
segments as one tuple, and whatever retention takes away meanwhile shows as a file that is gone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from penstock_core.errors import ErrorCode, PenstockError
from penstock_storage_node.log import reading, timestamps
from penstock_storage_node.log.aborted_index import DamagedIndex, Rows
from penstock_storage_node.log.fs import FileSystem
from penstock_storage_node.log.jobs import ReadData, ReadJob
from penstock_storage_node.log.producer_replay import aborted_in
from penstock_storage_node.log.reading import BlockingFiles, CachedFiles, Files, Found, Need, Stuck, Wanted
from penstock_storage_node.log.segment import Segment, load_aborted, load_head
from penstock_storage_node.log.sizes import SegmentSizes, SizedRange, size_range
from penstock_storage_node.log.state import Appended, LogData, LogState
from penstock_storage_node.log.transactions import AbortedTransaction

READ_TRIES_MAX = 6
"""Of a read in the pool: index head to load, damaged, a gap, and all again for the next segment."""

READ_SEGMENTS_MAX = 1000
"""Empty segments that one read passes over before it gives up."""


class AbortedJob:
    """A look-up of aborted transactions that would have blocked the loop. Raises PenstockError."""

    __slots__ = ("_find",)

    def __init__(self, find: Callable[[], Rows]) -> None:
        self._find = find

    def run(self) -> Rows:
        return self._find()


class LogReader:
    """Reads of one log."""

    __slots__ = ("_cached", "_data", "_files", "_fs", "index_fault_count")

    def __init__(self, data: LogData, fs: FileSystem) -> None:
        self.index_fault_count = 0
        """Reads that met a wrong index entry (they are answered all the same)."""
        self._data = data
        self._fs = fs
        self._cached = CachedFiles(fs)
        self._files = BlockingFiles(fs)

    # ------------------------------------------------------------------ by offset

    def read(self, offset: int, max_bytes: int, upper_offset: int, min_one: bool) -> ReadData | ReadJob:
        """See `PartitionLog.read` (loop)."""
        data = self._data
        if offset < data.start or offset > data.end:
            raise self._out_of_range(offset)
        upper_offset = min(upper_offset, data.end)
        if offset >= upper_offset:
            return reading.empty(offset)
        wanted = Wanted(offset, max_bytes, upper_offset, min_one)
        if offset >= data.written:
            return self._read_staged(wanted)
        if data.state is LogState.FAILED and offset >= data.flushed:
            raise data.refusal()
        if not data.is_swapping:
            try:
                found = self._read_files(self._cached, wanted)
            except OSError as error:
                raise self._unreadable(error) from error
            if isinstance(found, ReadData):
                return found
        return ReadJob(lambda: self._read_in_pool(wanted))

    # ------------------------------------------------------------------ aborted transactions

    def aborted_between(self, offset: int, end_offset: int) -> Rows | AbortedJob:
        """See `PartitionLog.aborted_between` (loop)."""
        data, get = self._data, self._fs.aborted_rows.get

        def at_hand(segment: Segment) -> Iterable[AbortedTransaction] | None:
            index = segment.aborted
            return index.rows if index.rows is not None else get(index.path)

        if not data.is_swapping:
            found = self._find_aborted(offset, end_offset, at_hand)
            if found is not None:
                return found
        return AbortedJob(lambda: self.aborted_between_in_pool(offset, end_offset))

    def aborted_between_in_pool(self, offset: int, end_offset: int) -> Rows:
        """As `aborted_between`, from the disk where need be (pool). Raises PenstockError."""
        for _ in range(READ_TRIES_MAX):
            segments = self._data.segments
            try:
                return self._find_aborted(offset, end_offset, self._load_aborted) or ()
            except OSError as error:
                if not isinstance(error, FileNotFoundError) or self._data.segments is segments:
                    raise self._unreadable(error) from error
        raise self._out_of_range(offset)

    def _find_aborted(
        self,
        offset: int,
        end_offset: int,
        rows_of: Callable[[Segment], Iterable[AbortedTransaction] | None],
    ) -> Rows | None:
        """None when `rows_of` has None for a segment. (Kafka: LogSegment.collectAbortedTxns.)"""
        segments = self._data.segments
        first = max(bisect_right(segments, offset, key=_segment_base) - 1, 0)
        found: list[AbortedTransaction] = []
        for index in range(first, len(segments)):
            segment = segments[index]
            if not segment.aborted.count:
                continue
            rows = rows_of(segment)
            if rows is None:
                return None
            for row in rows:
                if row.last_offset >= offset and row.first_offset < end_offset:
                    found.append(row)
                if row.last_stable_offset >= end_offset:  # whatever began before it has ended by then
                    return tuple(found)
        return tuple(found)

    def _load_aborted(self, segment: Segment) -> Rows:
        data, fs = self._data, self._fs
        end_offset = data.end_of(segment)
        try:
            return load_aborted(fs, segment, end_offset)
        except DamagedIndex:
            # Damage costs time: the batches know. The next start makes the file anew.
            now_ms = data.clock_ms()
            rows = aborted_in(fs, data.directory, data.segments, segment, end_offset, now_ms)
            fs.aborted_rows.put(segment.aborted.path, rows)
            self.index_fault_count += 1
            return rows

    def _out_of_range(self, offset: int) -> PenstockError:
        data = self._data
        return PenstockError(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} of {data} is outside {data.start}..{data.end}"
        )

    def _unreadable(self, error: OSError) -> PenstockError:
        return PenstockError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"{self._data} can't be read ({error.strerror}): check the disk"
        )

    def _read_staged(self, wanted: Wanted) -> ReadData:
        data, offset = self._data, wanted.offset
        in_flight = data.in_flight
        chunks = in_flight if in_flight and offset <= in_flight[-1].last_offset else data.staged
        first = max(bisect_right(chunks, offset, key=_base_offset) - 1, 0)
        return reading.read_buffers(chunks, first, wanted)

    def _read_files(self, files: Files, wanted: Wanted) -> ReadData | Stuck:
        data, offset = self._data, wanted.offset
        segments, hints = data.segments, data.hints
        if offset >= segments[-1].base_offset:  # most reads
            index = len(segments) - 1
        else:
            index = max(bisect_right(segments, offset, key=_segment_base) - 1, 0)
        hint = hints.get(offset)
        parts: list[ReadData] = []
        last = min(index + READ_SEGMENTS_MAX, len(segments))
        while index < last:
            segment = segments[index]
            if files.may_block:  # what the cache does not have the disk gives, and then reads on ahead
                segment.found_bytes = segment.written
            found = reading.read_segment(segment, files, wanted, hint)
            if found is None:
                index += 1
                continue
            if not isinstance(found, Found):
                return Stuck(segment, found)
            if found.size_bytes:
                parts.append(found)
                if len(parts) <= reading.HOLLOW_PARTS_MAX and reading.is_hollow(found):
                    # Whoever reads wants records: on behind it, in this segment or the next.
                    wanted, hint = wanted.after(found), (segment, found.end_position)
                    if found.end_position >= segment.written:
                        index += 1
                    continue
                reading.remember(hints, found.next_offset, segment, found.end_position)
            break
        return reading.joined(parts) if parts else reading.empty(offset)

    def _read_in_pool(self, wanted: Wanted) -> ReadData:
        stuck: Stuck | None = None
        tries, furthest = 0, -1
        while tries < READ_TRIES_MAX:
            tries += 1
            try:
                if stuck is not None:
                    self._unstick(stuck)
                found = self._read_files(self._files, wanted)
            except FileNotFoundError:  # retention was faster
                raise self._out_of_range(self._data.start - 1) from None
            except OSError as error:
                raise self._unreadable(error) from error
            if isinstance(found, ReadData):
                if found.base_offset > wanted.offset and wanted.offset < self._data.start:
                    # Retention was faster: where the read began there is nothing any more, and what comes
                    # after it would be taken for all there is.
                    raise self._out_of_range(wanted.offset)
                return found
            if found.segment.base_offset > furthest:
                # It came further, through segments without a record: each may want something. It never goes back.
                tries, furthest = 0, found.segment.base_offset
            stuck = found
        raise PenstockError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"indexes of {self._data} at {wanted.offset} are in work: try again",
        )

    def _unstick(self, stuck: Stuck) -> None:
        """Do what a read needs before it can go on (pool)."""
        segment = stuck.segment
        if stuck.need is Need.INDEX:
            load_head(self._fs, segment)
            return
        size = segment.written  # first: the log may grow meanwhile
        reading.trust(self._fs, segment, size, self._data.end_of(segment))
        if stuck.need is Need.MENDED_INDEX:
            self.index_fault_count += 1
            timestamps.mend_head(self._fs, segment, self._data.settings.index_interval_bytes)

    # ------------------------------------------------------------------ sizes (pool)

    def size_range(self, start: int, end: int, cut_bytes: int, cuts_max: int) -> SizedRange:
        """See `PartitionLog.size_range`."""
        data, fs, nothing = self._data, self._fs, array("I")
        known = []
        for segment in data.segments:
            base, behind = segment.base_offset, data.end_of(segment)
            wanted = base < end and behind > start
            # One that lies inside as a whole is its size, if nobody wants cuts.
            if not wanted or (not cut_bytes and start <= base and behind <= end):
                known.append(SegmentSizes(base, behind, segment.size, nothing, nothing))
                continue
            index = segment.offset_index
            entries = index.entries() or index.entries(load_head(fs, segment))
            assert entries is not None
            known.append(SegmentSizes(base, behind, segment.size, *entries))
        return size_range(known, start, end, cut_bytes, cuts_max)

    # ------------------------------------------------------------------ by timestamp (pool)

    def offset_for_timestamp(self, timestamp_ms: int, upper_offset: int) -> tuple[int, int] | None:
        """See `PartitionLog.offset_for_timestamp`."""
        data, find, fs = self._data, timestamps.find_in_files, self._fs
        staged = [chunk.data for chunk in (*data.in_flight, *data.staged)]
        found = self._look_up(lambda segments: find(fs, segments, timestamp_ms, data.start, upper_offset))
        return found or timestamps.find_in_memory(staged, timestamp_ms, upper_offset)

    def offset_of_max_timestamp(self, upper_offset: int) -> tuple[int, int] | None:
        """See `PartitionLog.offset_of_max_timestamp`."""
        data, find, fs = self._data, timestamps.find_largest, self._fs
        staged = [chunk.data for chunk in (*data.in_flight, *data.staged)]
        return self._look_up(lambda segments: find(fs, segments, staged, data.start, upper_offset))

    def _look_up(self, find: Callable[[Sequence[Segment]], tuple[int, int] | None]) -> tuple[int, int] | None:
        """`find` among the segments, anew when retention has taken some of them away meanwhile."""
        data = self._data
        for _ in range(READ_TRIES_MAX):
            segments = data.segments
            try:
                return find(segments)
            except OSError as error:
                if not isinstance(error, FileNotFoundError) or data.segments is segments:
                    raise self._unreadable(error) from error
        raise PenstockError(
            ErrorCode.OFFSET_NOT_AVAILABLE, f"retention outran the look-up in {data}: ask again"
        )


def _base_offset(chunk: Appended) -> int:
    return chunk.base_offset


def _segment_base(segment: Segment) -> int:
    return segment.base_offset
