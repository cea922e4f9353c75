"""What runs in the disk pool on behalf of one partition: write, flush and read jobs.

A job holds everything it needs, so that the loop may go on appending and reading while
a pool thread runs it; what it found out is applied on the loop by `PartitionLog.complete`.

Order inside a write job: leader epochs, then segment by segment the bytes, with them the aborted index's entries
(closing one: its other indexes; opening one: producer snapshot and empty files), then, when durable, every
flush: data, indexes of closed segments, the directory. `run` returns only after the last
of them, so what it promises is on disk.

`run` is `write`, then `sync`. A pool may do the second half in its own way, one flush for
many jobs; then it calls `release` in place of `sync` (see `penstock_storage_node.disk.group_flush`).

Full disk: a `write` that gets ENOSPC cuts back all that it wrote (`ftruncate`, unlink of new
files) before it raises, so that the file ends where the log's known data end. Should the
cutting fail too, `WriteOutcome.is_cut_back` stays false and the log counts as failed. An ENOSPC of the
flush itself is no such thing: pages may be gone from the cache, so it is as final as EIO.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock_core.failpoints import hit, torn
from penstock_kafka.records.batch import Buffer
from penstock_storage_node.log.aborted_index import ENTRY_BYTES
from penstock_storage_node.log.checkpoints import LEADER_EPOCH_FILE
from penstock_storage_node.log.fs import (
    FileSystem,
    OpenFile,
    unlink_if_exists,
    write_file_atomically,
    write_fully,
)
from penstock_storage_node.log.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from penstock_storage_node.log.ports import CheckpointPort
from penstock_storage_node.log.segment import Segment

INDEX_SAVE_ENTRIES = 1024
"""Offset index entries of an open segment that are worth a write of their own (4 MiB of log)."""

UNFLUSHED_MARKER = "unflushed"
"""Empty file beside the segments: the log may hold acknowledged data that no flush covers. Made
before the first write of durability "replicated", removed after a flush of everything, so that an
unclean start knows what was promised whatever the topic's setting says by then (rule "Coming back")."""

FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(slots=True)
class ReadData:
    """Whole batches in order. Empty when nothing lies between the offset and the upper offset."""

    base_offset: int
    """Of the first batch, which may lie below the offset asked for; that offset when empty."""
    next_offset: int
    """After the last batch; the offset asked for when empty."""
    buffers: list[Buffer]
    size_bytes: int


class ReadJob:
    """A read that would have blocked the loop. Raises PenstockError or OSError."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], ReadData]) -> None:
        self._read = read

    def run(self) -> ReadData:
        return self._read()


class WriteStep:
    """What a write job does to one segment."""

    __slots__ = (
        "aborted",
        "aborted_position",
        "buffers",
        "closes",
        "is_new",
        "offset_entries",
        "position",
        "segment",
        "size",
        "snapshot",
        "time_entries",
    )

    def __init__(self, segment: Segment, position: int) -> None:
        self.segment = segment
        self.position = position
        self.size = 0
        self.buffers: list[Buffer] = []
        self.is_new = not segment.is_on_disk
        self.aborted = segment.aborted.unsaved()
        """What the .txnindex lacks: markers that are staged, or were when an earlier job failed."""
        self.aborted_position = segment.aborted.saved_count * ENTRY_BYTES
        self.snapshot: bytes | None = None
        self.closes = False
        self.offset_entries = 0
        """Entries that the .index shall hold afterwards (0: leave it)."""
        self.time_entries = 0

    def plan_indexes(self, *, closes: bool) -> None:
        """Decide which index entries go to the files; on the loop, when the job is made."""
        self.closes = closes
        index, times = self.segment.offset_index, self.segment.time_index
        if closes or index.count - index.saved_count >= INDEX_SAVE_ENTRIES:
            self.offset_entries = index.count
            self.time_entries = times.count


@dataclass(slots=True)
class WritePlan:
    """What a write job is to do, as decided on the loop when it is made. Not changed afterwards."""

    directory: str
    steps: Sequence[WriteStep]
    base_offset: int
    end_offset: int
    fsync: bool
    """Flush before `run` returns."""
    unflushed: Sequence[Segment]
    """Segments with bytes of earlier jobs that no flush covers, oldest first."""
    epochs: bytes | None = None
    """New content of the leader epoch file, None: it stays."""
    is_marked: bool = False
    """Whether UNFLUSHED_MARKER is there."""
    marks_gaps: bool = False
    """Note, durably and before anything else, that the log may have gaps."""


@dataclass(slots=True)
class WriteOutcome:
    """What a write job found out. Belongs to the pool until the job is over, then to the loop."""

    is_marked: bool
    """Whether UNFLUSHED_MARKER is there now; `run` makes it so, or not, as durability wants."""
    is_written: bool = False
    """Only the flush is missing."""
    is_cut_back: bool = True
    """The files end where the log's known data end, though the write failed."""


class WriteJob:
    """Everything staged up to now. `run` in a pool thread, then `complete` or `fail` on the loop."""

    __slots__ = (
        "_checkpoints",
        "_fs",
        "_pinned",
        "_sync_segments",
        "flush_took_s",
        "outcome",
        "plan",
        "size_bytes",
    )

    def __init__(self, fs: FileSystem, plan: WritePlan, checkpoints: CheckpointPort) -> None:
        self.plan = plan
        self.outcome = WriteOutcome(plan.is_marked)
        self.size_bytes = sum([step.size for step in plan.steps])
        self.flush_took_s = 0.0
        """The flush that made it durable; set by whoever carries it out."""
        self._fs = fs
        self._checkpoints = checkpoints
        self._pinned: list[OpenFile] = []
        self._sync_segments: list[Segment] = []
        if plan.fsync:
            written = [step.segment for step in plan.steps]
            self._sync_segments = [s for s in plan.unflushed if s not in written] if plan.unflushed else []
            self._sync_segments += written

    @property
    def base_offset(self) -> int:
        """Of the first batch."""
        return self.plan.base_offset

    @property
    def end_offset(self) -> int:
        """After the last batch."""
        return self.plan.end_offset

    @property
    def fsync(self) -> bool:
        """Whether the data are flushed when `run` has returned."""
        return self.plan.fsync

    def run(self) -> None:
        """Write, and flush when durable. Raises OSError; then nothing of the job is promised."""
        self.write()
        self.sync()

    def write(self) -> None:
        """The first half of `run`; files stay held for the flush. Raises OSError, holding none."""
        plan, outcome = self.plan, self.outcome
        try:
            if plan.marks_gaps:
                self._checkpoints.mark_gaps()
            if plan.epochs is not None:
                write_file_atomically(self._fs, f"{plan.directory}/{LEADER_EPOCH_FILE}", plan.epochs)
                hit("log.epochs.after_write")
            if not plan.fsync and not outcome.is_marked:
                create_with(self._fs, f"{plan.directory}/{UNFLUSHED_MARKER}", b"", sync=False)
                self._fs.sync_directory(plan.directory)
                outcome.is_marked = True
            for step in plan.steps:
                self._pinned.append(self._write(step))
            hit("log.append.after_write")
        except OSError as error:
            if error.errno in FULL_ERRORS:
                outcome.is_cut_back = False
                self._cut_back()
                outcome.is_cut_back = True
            raise
        else:
            outcome.is_written = True
        finally:
            if not outcome.is_written:
                self.release()

    def sync(self) -> None:
        """The second half of `run`: each file by itself, when durable. Raises OSError."""
        try:
            self._sync()
            if self.plan.fsync and self.outcome.is_marked:
                remove_marker(self._fs, self.plan.directory)
                self.outcome.is_marked = False
        finally:
            self.release()

    def release(self) -> None:
        """Hold the files no longer: they are flushed, or never will be."""
        pinned, self._pinned = self._pinned, []
        for file in pinned:
            self._fs.files.unpin(file)

    @property
    def sync_segments(self) -> Sequence[Segment]:
        """What `sync` opens by name: these files have to stay until it has returned."""
        return self._sync_segments

    @property
    def sync_file_count(self) -> int:
        """Logs that `sync` flushes; 0 when the job isn't durable."""
        return len(self._sync_segments)

    @property
    def must_sync_alone(self) -> bool:
        """Whether `sync` does more than flush, so that a shared flush can't stand for it."""
        return self.outcome.is_marked

    def is_all_on(self, device: int) -> bool:
        """Whether every file to flush is on the filesystem with that device number (pool, when written)."""
        # Segments of earlier jobs are in the same folder, and a folder is on one filesystem.
        return all(self._fs.device(file.fd) == device for file in self._pinned)

    def _write(self, step: WriteStep) -> OpenFile:
        fs, segment = self._fs, step.segment
        if step.is_new:
            hit("log.roll.before_create")
            if step.snapshot is not None:
                create_with(fs, segment.snapshot_path, step.snapshot, sync=self.plan.fsync)
                hit("log.roll.after_snapshot")
            create_segment_files(fs, segment)
            hit("log.roll.after_create")
        file = fs.files.pin(segment.path)
        try:
            hit("log.append.before_write")
            # A step that only closes a segment writes nothing.
            if step.size and torn("log.append.torn_write"):
                write_fully(fs, file.fd, [b"".join(step.buffers)[: step.size // 2]], step.position)
                hit("log.append.torn_write")
            write_fully(fs, file.fd, step.buffers, step.position)
            if step.aborted:
                self._write_aborted(step)
            if step.offset_entries or step.closes:
                save_indexes(fs, segment, step.offset_entries, step.time_entries)
        except BaseException:
            fs.files.unpin(file)
            raise
        return file

    def _write_aborted(self, step: WriteStep) -> None:
        """With the data of their markers; the first entries make the file."""
        path = step.segment.aborted.path
        if step.aborted_position:
            _write_at(self._fs, path, step.aborted, step.aborted_position, sync=False)
        else:
            create_with(self._fs, path, step.aborted, sync=False)

    def _sync(self) -> None:
        steps = self.plan.steps
        if not self.plan.fsync:
            return
        hit("log.flush.before_sync")
        closed = {id(step.segment) for step in steps if step.closes}
        last = steps[-1].segment if steps else None
        is_name_new = False
        for segment in self._sync_segments:
            sync_segment(self._fs, segment, indexes=id(segment) in closed or segment is not last)
            is_name_new = is_name_new or not segment.is_directory_synced
        for step in steps:
            if step.aborted:
                sync_file(self._fs, step.segment.aborted.path)
                is_name_new = is_name_new or not step.aborted_position
        if is_name_new:
            self._fs.sync_directory(self.plan.directory)
        hit("log.flush.after_sync")

    def _cut_back(self) -> None:
        fs = self._fs
        for step in reversed(self.plan.steps):
            segment = step.segment
            if step.is_new:
                for path in segment_paths(segment):
                    fs.files.forget(path)
                    unlink_if_exists(fs, path)
                continue
            cut_file(fs, segment.path, step.position)
            if step.aborted and step.aborted_position:
                cut_file(fs, segment.aborted.path, step.aborted_position)
            elif step.aborted:
                fs.files.forget(segment.aborted.path)
                unlink_if_exists(fs, segment.aborted.path)


class FlushJob:
    """Flush of data that are written already; may run beside a write job."""

    __slots__ = ("_directory", "_fs", "end_offset", "segments")

    def __init__(
        self, fs: FileSystem, directory: str, segments: list[tuple[Segment, int, bool]], end_offset: int
    ) -> None:
        self._fs = fs
        self._directory = directory
        self.segments = segments
        """(segment, bytes written when the job was made, whether it is closed)."""
        self.end_offset = end_offset
        """All below is on disk when run() has returned."""

    def run(self) -> None:
        """Raises OSError."""
        for segment, _, is_closed in self.segments:
            if is_closed and self._fs.exists(segment.snapshot_path):
                sync_file(self._fs, segment.snapshot_path)
            sync_segment(self._fs, segment, indexes=is_closed)
        self._fs.sync_directory(self._directory)


def remove_marker(fs: FileSystem, directory: str) -> None:
    """Everything of the log is flushed; durable on return."""
    unlink_if_exists(fs, f"{directory}/{UNFLUSHED_MARKER}")
    fs.sync_directory(directory)


def segment_paths(segment: Segment) -> list[str]:
    """Every file that a segment may have, the log first."""
    return [
        segment.path,
        segment.offset_index.path,
        segment.time_index.path,
        segment.aborted.path,
        segment.snapshot_path,
    ]


def create_with(fs: FileSystem, path: str, data: bytes, *, sync: bool) -> None:
    """A new file with this content; what stood there is replaced."""
    fs.files.forget(path)
    fd = fs.create(path)
    try:
        if data:
            write_fully(fs, fd, [data], 0)
        if sync:
            fs.fdatasync(fd)
    finally:
        fs.close(fd)


def create_segment_files(fs: FileSystem, segment: Segment) -> None:
    """Empty log and indexes; names are durable only after a directory sync."""
    for path in (segment.path, segment.offset_index.path, segment.time_index.path):
        create_with(fs, path, b"", sync=False)


def save_indexes(fs: FileSystem, segment: Segment, offset_entries: int, time_entries: int) -> None:
    """Append what the index files lack up to these numbers of entries.

    The time index is flushed first: recovery starts at an entry of the offset index and
    relies on it that the time index knows everything before.
    """
    hit("log.index.before_save")
    index, times = segment.offset_index, segment.time_index
    first, data = times.unsaved(time_entries)
    if data:
        _write_at(fs, times.path, data, first * TIME_ENTRY_BYTES, sync=True)
    hit("log.index.between_files")
    first, data = index.unsaved(offset_entries)
    if data:
        _write_at(fs, index.path, data, first * OFFSET_ENTRY_BYTES, sync=False)


def cut_file(fs: FileSystem, path: str, size: int) -> bool:
    """Shorten a file, if it is longer; not flushed."""
    file = fs.files.pin(path)
    try:
        if fs.size(file.fd) <= size:
            return False
        fs.ftruncate(file.fd, size)
        return True
    finally:
        fs.files.unpin(file)


def _write_at(fs: FileSystem, path: str, data: bytes, position: int, *, sync: bool) -> None:
    file = fs.files.pin(path)
    try:
        write_fully(fs, file.fd, [data], position)
        if sync:
            fs.fdatasync(file.fd)
    finally:
        fs.files.unpin(file)


def sync_file(fs: FileSystem, path: str) -> None:
    file = fs.files.pin(path)
    try:
        fs.fdatasync(file.fd)
    finally:
        fs.files.unpin(file)


def sync_segment(fs: FileSystem, segment: Segment, *, indexes: bool) -> None:
    """Flush a segment's log and what it has of an aborted index, and the other indexes when it is closed."""
    sync_file(fs, segment.path)
    if segment.aborted.saved_count:
        sync_file(fs, segment.aborted.path)
    if indexes:
        sync_file(fs, segment.offset_index.path)
        sync_file(fs, segment.time_index.path)
