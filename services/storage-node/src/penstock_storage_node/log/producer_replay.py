"""Producers and transactions of a log as its batches tell them (disk pool).

A snapshot, then the batches after it: at open and after a cut. What the batches say of aborted transactions is what the
aborted indexes of the segments that were gone through must have.

A batch that the disk gives back wrong can't be replayed. It may have ended a transaction, which then counts as open for
good: no reader of decided records would ever come by the damage. So the replay tells it (`ProducerReplay.damage`).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock_core.errors import PenstockError
from penstock_kafka.records.batch import NO_SEQUENCE, BatchInfo, Buffer, is_crc_valid
from penstock_kafka.records.markers import Marker, read_marker
from penstock_storage_node.log import aborted_index
from penstock_storage_node.log.aborted_index import DamagedIndex, Rows
from penstock_storage_node.log.damage import DamagedData
from penstock_storage_node.log.fs import FileSystem, read_file, unlink_if_exists
from penstock_storage_node.log.jobs import create_with, cut_file, sync_file
from penstock_storage_node.log.producer_state import CorruptSnapshot, ProducerState
from penstock_storage_node.log.segment import Segment, file_stem, load_aborted, load_head, walk_file
from penstock_storage_node.log.transactions import AbortedTransaction

NOWHERE = 1 << 63
"""An offset behind every log's end."""

RESTORE_WINDOW_BYTES = 128 * 1024
"""Log before a producer snapshot that is walked for the batches which the snapshot leaves out."""


def find_position(fs: FileSystem, segment: Segment, offset: int) -> int:
    """Where to begin walking for `offset`, by the index if it is right (disk pool)."""
    entry = segment.offset_index.floor_offset(offset)
    if entry is None:
        entry = segment.offset_index.floor_offset(offset, load_head(fs, segment))
    if entry is not None and entry.last_offset >= 0:
        for info, _ in walk_file(fs, segment.path, entry.position, segment.written):
            if info.last_offset == entry.last_offset:
                return entry.position
            break
    return 0


def batches_from(
    fs: FileSystem, segments: list[Segment] | tuple[Segment, ...], offset: int
) -> Iterator[tuple[BatchInfo, memoryview]]:
    """Batches in the files from the one that holds `offset` on (disk pool)."""
    for index, segment in enumerate(segments):
        if index + 1 < len(segments) and segments[index + 1].base_offset <= offset:
            continue
        start = find_position(fs, segment, offset) if offset > segment.base_offset else 0
        for info, view in walk_file(fs, segment.path, start, segment.written):
            if info.last_offset >= offset:
                yield info, view


class ProducerReplay:
    """Producers and transactions as of a log's end: a snapshot, then the batches after it (disk pool)."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        segments: list[Segment] | tuple[Segment, ...],
        end_offset: int,
        now_ms: int,
    ) -> None:
        self.aborted: list[AbortedTransaction] = []
        """Of every abort marker that was met, in order."""
        self.damage: DamagedData | None = None
        """The first batch that is wrong: what it did to producers and transactions is missing."""
        self._fs = fs
        self._directory = directory
        self._segments = segments
        self._end_offset = end_offset
        self._now_ms = now_ms

    def run(self, producers: ProducerState, *, high_watermark: int, from_segment: int = NOWHERE) -> None:
        """Replace the state of `producers`.

        The newest usable snapshot does, but one at or below `from_segment`, so that the aborted indexes of the
        segments from there on can be told, and, where there were transactions, at or below the high watermark: those
        that ended above it are not in a snapshot. Snapshots past the end, damaged ones, and those of segments that are
        gone are deleted.
        """
        producers.clear()
        fs, segments = self._fs, self._segments
        bases = {segment.base_offset for segment in segments}
        from_offset = segments[0].base_offset
        is_loaded = False
        for offset in _snapshots(fs, self._directory):
            path = f"{self._directory}/{file_stem(offset)}.snapshot"
            usable = segments[0].base_offset < offset <= self._end_offset
            if usable and not is_loaded and offset <= from_segment:
                try:
                    producers.load_snapshot(read_file(fs, path), self._now_ms)
                except CorruptSnapshot:
                    usable = False
                else:
                    if offset <= high_watermark or not producers.has_transactions:
                        is_loaded, from_offset = True, offset
                        continue
            if not usable or offset not in bases:
                unlink_if_exists(fs, path)
        if not is_loaded:
            producers.clear()
        elif len(producers):
            _restore_window(fs, segments, producers, from_offset)
        self._replay(producers, from_offset, NOWHERE)

    def run_through(self, producers: ProducerState, segment: Segment) -> None:
        """As `run`, but only to learn the aborted transactions of one segment; deletes nothing."""
        fs, from_offset = self._fs, self._segments[0].base_offset
        producers.clear()
        for offset in _snapshots(fs, self._directory):
            if self._segments[0].base_offset < offset <= segment.base_offset:
                try:
                    producers.load_snapshot(
                        read_file(fs, f"{self._directory}/{file_stem(offset)}.snapshot"), self._now_ms
                    )
                except (CorruptSnapshot, FileNotFoundError):
                    continue
                from_offset = offset
                break
        self._replay(producers, from_offset, segment.base_offset + 1)

    def _replay(self, producers: ProducerState, from_offset: int, before_base: int) -> None:
        segments = [segment for segment in self._segments if segment.base_offset < before_base]
        ends = [segment.base_offset for segment in segments[1:]] + [self._end_offset]
        for segment, end in zip(segments, ends, strict=True):
            if end <= from_offset and segment is not segments[-1]:
                continue
            for info, view in self._right_batches(segment, from_offset, end):
                aborted = producers.replay(info, self._now_ms, _marker_of(view, info))
                if aborted is not None:
                    self.aborted.append(aborted)

    def _right_batches(
        self, segment: Segment, from_offset: int, end_offset: int
    ) -> Iterator[tuple[BatchInfo, memoryview]]:
        """Batches of producers from an offset on that are right; takes down where one isn't."""
        fs = self._fs
        position = find_position(fs, segment, from_offset) if from_offset > segment.base_offset else 0
        expected = segment.base_offset
        for info, view in walk_file(fs, segment.path, position, segment.written):
            position = info.position + info.size_bytes
            if not expected <= info.base_offset < info.next_offset <= end_offset:
                self._note_damage(segment, info.position)
                continue
            if info.last_offset >= from_offset and _is_of_producer(info):
                if not is_crc_valid(view):
                    self._note_damage(segment, info.position)
                    continue
                yield info, view
            expected = info.next_offset
        if position < segment.written:
            self._note_damage(segment, position)

    def all_aborted(self, segments: list[Segment]) -> list[AbortedTransaction]:
        """Of these segments, the log's last ones: where markers are damaged, what the aborted indexes have of them too.

        An aborted transaction must not pass for a committed one.
        """
        if self.damage is None:
            return self.aborted
        rows = {row.last_offset: row for row in self.aborted}
        for segment in segments:
            if segment.aborted.count:
                try:
                    saved = load_aborted(self._fs, segment, NOWHERE)
                except DamagedIndex:
                    continue
                rows.update((row.last_offset, row) for row in saved if row.last_offset < self._end_offset)
        return [row for _, row in sorted(rows.items())]

    def _note_damage(self, segment: Segment, position: int) -> None:
        if self.damage is None:
            self.damage = DamagedData(segment, position)


def _is_of_producer(info: BatchInfo) -> bool:
    """Whether any field says that a producer with an id wrote it: no single bit hides that."""
    is_claimed = info.base_sequence != NO_SEQUENCE or info.is_transactional or info.is_control
    return info.producer_id >= 0 or is_claimed


def _marker_of(view: Buffer, info: BatchInfo) -> Marker | None:
    if not info.is_control:
        return None
    try:
        return read_marker(view, info)
    except PenstockError:
        return None  # as it came from a leader, or from Kafka: it ends nothing


def _snapshots(fs: FileSystem, directory: str) -> list[int]:
    """Offsets of the producer snapshots that there are, the newest first."""
    names = [name for name in fs.list_directory(directory) if name.endswith(".snapshot")]
    return sorted((int(name[:-9]) for name in names if name[:-9].isdigit()), reverse=True)


def aborted_in(
    fs: FileSystem,
    directory: str,
    segments: list[Segment] | tuple[Segment, ...],
    segment: Segment,
    end_offset: int,
    now_ms: int,
) -> Rows:
    """The entries that a segment's aborted index must have, from the batches themselves (disk pool).

    Raises DamagedData when these are wrong: an aborted transaction must not pass for a committed one.
    """
    replay = ProducerReplay(fs, directory, segments, end_offset, now_ms)
    replay.run_through(ProducerState(), segment)
    if replay.damage is not None:
        raise replay.damage
    return tuple(row for row in replay.aborted if segment.base_offset <= row.last_offset < end_offset)


def first_damaged(fs: FileSystem, segments: list[Segment], end_offset: int) -> int:
    """Base offset of the first segment whose aborted index can't be right."""
    ends = [segment.base_offset for segment in segments[1:]] + [end_offset]
    for segment, end in zip(segments, ends, strict=True):
        if segment.aborted.count:
            try:
                load_aborted(fs, segment, end)
            except DamagedIndex:
                return segment.base_offset
    return NOWHERE


def save_aborted(fs: FileSystem, segments: list[Segment], aborted: list[AbortedTransaction]) -> bool:
    """Bring the aborted indexes of these segments, the log's last ones, in line; whether names have changed."""
    has_new_names = False
    for index, segment in enumerate(segments):
        end = segments[index + 1].base_offset if index + 1 < len(segments) else NOWHERE
        rows = [row for row in aborted if segment.base_offset <= row.last_offset < end]
        aborted_file, data = segment.aborted, aborted_index.encode_entries(rows)
        fs.aborted_rows.forget(aborted_file.path)
        before = read_file(fs, aborted_file.path) if aborted_file.saved_count else None
        if rows and before is not None and before.startswith(data):  # a cut takes no room on a full disk
            cut_file(fs, aborted_file.path, len(data))
            sync_file(fs, aborted_file.path)
        elif rows:
            has_new_names = has_new_names or before is None
            create_with(fs, aborted_file.path, data, sync=True)
        elif not rows and before is not None:
            has_new_names = True
            fs.files.forget(aborted_file.path)
            unlink_if_exists(fs, aborted_file.path)
        aborted_file.adopt(rows)
        if segment is not segments[-1]:
            aborted_file.release()
    return has_new_names


def remove_snapshots(fs: FileSystem, directory: str) -> None:
    """Delete every producer snapshot."""
    for name in fs.list_directory(directory):
        if name.endswith(".snapshot"):
            unlink_if_exists(fs, f"{directory}/{name}")


def _restore_window(
    fs: FileSystem, segments: list[Segment] | tuple[Segment, ...], producers: ProducerState, offset: int
) -> None:
    """Walk the log right before a snapshot for the batches that it leaves out."""
    window: list[BatchInfo] = []
    left = RESTORE_WINDOW_BYTES
    for segment in reversed([segment for segment in segments if segment.base_offset < offset]):
        end = find_position(fs, segment, offset)
        start = segment.offset_index.below(max(end - left, 0), offset).position if end > left else 0
        part = walk_file(fs, segment.path, start, segment.written)
        window = [info for info, _ in part if info.last_offset < offset] + window
        left -= end - start
        if left <= 0:
            break
    producers.restore_window(window)
