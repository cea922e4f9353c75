"""The five files of a data directory that have an offset a partition, and what is in them.

All methods but the two that say so block: they belong in the disk pool, where they may run beside one another in
several threads.

A recovery point on disk must never lie above data that a crash could lose. So it is lowered (durably) before a
truncation cuts below it, and dropped before a directory is made anew under an old name.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.failpoints import hit
from penstock_storage_node.log import checkpoints
from penstock_storage_node.log.fs import FileSystem, read_file, unlink_if_exists, write_file_atomically
from penstock_storage_node.log.jobs import FULL_ERRORS
from penstock_storage_node.log.log import PartitionLog
from penstock_storage_node.log.ports import Checkpointed, CheckpointPort
from penstock_storage_node.log.state import LogState

PartitionKey = tuple[str, int]


class _LogCheckpoints:
    """The `CheckpointPort` of one log of a directory."""

    __slots__ = ("_key", "_offsets")

    def __init__(self, offsets: OffsetFiles, key: PartitionKey) -> None:
        self._offsets = offsets
        self._key = key

    def lower(self, offset: int) -> None:
        self._offsets.lower(self._key, offset)

    def mark_gaps(self) -> None:
        self._offsets.mark_compacted(*self._key)

    @property
    def cleaned_until(self) -> int:
        return self._offsets._cleaned.get(self._key, 0)

    @property
    def tombstones_gone_below(self) -> int:
        return self._offsets._tombstones_gone.get(self._key, 0)


class OffsetFiles:
    """See the module."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root
        self._mutex = threading.Lock()
        self._recovery_points: dict[PartitionKey, int] = {}
        self._high_watermarks: dict[PartitionKey, int] = {}
        self._log_starts: dict[PartitionKey, int] = {}
        self._cleaned: dict[PartitionKey, int] = {}
        self._tombstones_gone: dict[PartitionKey, int] = {}
        self._is_cleaned_unsaved = False
        """These two files have rows that are too high: the disk was full."""

    def load(self) -> None:
        """What the last process has left."""
        self._recovery_points = self._read(checkpoints.RECOVERY_POINT_FILE)
        self._high_watermarks = self._read(checkpoints.HIGH_WATERMARK_FILE)
        self._log_starts = self._read(checkpoints.LOG_START_FILE)
        self._cleaned = self._read(checkpoints.CLEANER_FILE)
        self._tombstones_gone = self._read(checkpoints.TOMBSTONE_FILE)

    def _read(self, name: str) -> dict[PartitionKey, int]:
        """A checkpoint file; a damaged one counts as missing (recovery then scans more)."""
        try:
            return checkpoints.decode_offsets(read_file(self._fs, f"{self._root}/{name}"), name)
        except (FileNotFoundError, PenstockError):
            return {}

    def remove(self) -> None:
        """No partition has a row any more. Raises OSError."""
        for name in checkpoints.OFFSET_FILES:
            unlink_if_exists(self._fs, f"{self._root}/{name}")
        for rows in (
            self._recovery_points,
            self._high_watermarks,
            self._log_starts,
            self._cleaned,
            self._tombstones_gone,
        ):
            rows.clear()

    def of(self, key: PartitionKey, *, is_clean: bool) -> Checkpointed:
        """What is known of a partition's log (never blocks)."""
        return Checkpointed(
            recovery_point=self._recovery_points.get(key),
            log_start_offset=self._log_starts.get(key),
            high_watermark=self._high_watermarks.get(key, 0),
            may_have_gaps=key in self._cleaned,
            is_clean=is_clean,
        )

    def flushed(self) -> list[PartitionKey]:
        """Partitions of which something was flushed, as far as is noted (never blocks)."""
        return [key for key, offset in list(self._recovery_points.items()) if offset > 0]

    def port(self, key: PartitionKey) -> CheckpointPort:
        """A partition's rows, as its log sees them (never blocks)."""
        return _LogCheckpoints(self, key)

    def let_go(self, log: PartitionLog) -> None:
        """What is still under way for this log says nothing of the next one of its name."""
        with self._mutex:
            log.is_deleted = True

    def cap_cleaned(self, key: PartitionKey, end_offset: int) -> None:
        """What recovery has cut off a log is not clean any more when it has grown again."""
        with self._mutex:
            self._cap_row(checkpoints.CLEANER_FILE, self._cleaned, key, end_offset)
            self._cap_row(checkpoints.TOMBSTONE_FILE, self._tombstones_gone, key, end_offset)

    def cap_tombstones_gone(self, log: PartitionLog) -> None:
        """A log was cut: of what comes in place of that no tombstone is gone (pool)."""
        with self._mutex:
            key = (log.topic, log.partition)
            self._cap_row(checkpoints.TOMBSTONE_FILE, self._tombstones_gone, key, log.log_end_offset)

    def _cap_row(self, name: str, offsets: dict[PartitionKey, int], key: PartitionKey, most: int) -> None:
        """Lower a row; later on a full disk, for the log can't grow before there is space. The mutex is held."""
        if offsets.get(key, 0) <= most:
            return
        offsets[key] = most
        try:
            self._save(name, offsets)
        except OSError as error:
            if error.errno not in FULL_ERRORS:
                raise PenstockError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"{self._root}/{name} can't be written: {error}"
                ) from error
            self._is_cleaned_unsaved = True

    def cleaned_until(self, log: PartitionLog) -> int:
        """Where the compacted part of a log ends, 0 when it never was (never blocks)."""
        return self._cleaned.get((log.topic, log.partition), 0)

    def is_marked_compacted(self, log: PartitionLog) -> bool:
        """Whether recovery will know that a log may have gaps (never blocks)."""
        return (log.topic, log.partition) in self._cleaned

    def mark_compacted(self, topic: str, partition: int) -> None:
        """Note, durably, that a log may have gaps from now on: at its next start nobody else can tell.

        A row of the cleaner's checkpoint says it, be its offset 0. Raises OSError; then it is as it was.
        """
        with self._mutex:
            if (topic, partition) not in self._cleaned:
                rows = {**self._cleaned, (topic, partition): 0}
                self._save(checkpoints.CLEANER_FILE, rows)
                self._cleaned = rows  # nobody may rely on it before it is on disk

    def set_cleaned(self, log: PartitionLog, offset: int, cut_count: int | None = None) -> bool:
        """Note, durably, that a log is compacted up to `offset`.

        False: it was closed, or cut since its `cut_count` was this, so that nothing is known of it.
        """
        with self._mutex:
            # A cut raises the count before it lowers the row, a deletion closes the log before it drops it.
            if log.state is LogState.CLOSED or cut_count not in (None, log.cut_count):
                return False
            self._cleaned[log.topic, log.partition] = offset
            self._save(checkpoints.CLEANER_FILE, self._cleaned)
        return True

    def note_tombstones_gone(self, log: PartitionLog, offset: int, cut_count: int | None = None) -> bool:
        """Note, durably, that tombstones below `offset` may be missing in a log; what they were for is.

        It never falls by this. False: as with `set_cleaned`. Raises OSError; then it is as it was.
        """
        key = (log.topic, log.partition)
        with self._mutex:
            if log.state is LogState.CLOSED or log.is_deleted or cut_count not in (None, log.cut_count):
                return False
            if self._tombstones_gone.get(key, 0) < offset:
                rows = {**self._tombstones_gone, key: offset}
                self._save(checkpoints.TOMBSTONE_FILE, rows)
                self._tombstones_gone = rows  # nobody may rely on it before it is on disk
        return True

    def write_log_start(self, log: PartitionLog) -> None:
        """Note a log's start durably now, not with the next round: deleted records stay deleted."""
        with self._mutex:
            if log.is_deleted:
                return
            self._log_starts[log.topic, log.partition] = log.log_start_offset
            self._save(checkpoints.LOG_START_FILE, self._log_starts)

    def lower(self, key: PartitionKey, offset: int) -> None:
        """Note, durably, that nothing of a log counts as flushed or compacted from `offset` on.

        Raises OSError; then the rows are as they were.
        """
        with self._mutex:
            self._lower_row(checkpoints.RECOVERY_POINT_FILE, self._recovery_points, key, offset)
            # What comes in place of the cut part was never compacted: were it counted as clean, deleted
            # records before it could come back once their tombstones are gone.
            self._lower_row(checkpoints.CLEANER_FILE, self._cleaned, key, offset)
            # A log that begins anew below its start: a crash must not hide what comes now.
            self._lower_row(checkpoints.LOG_START_FILE, self._log_starts, key, offset)

    def _lower_row(self, name: str, offsets: dict[PartitionKey, int], key: PartitionKey, offset: int) -> None:
        """Durably. The mutex is held."""
        old = offsets.get(key, 0)
        if old > offset:
            offsets[key] = offset
            try:
                self._save(name, offsets)
            except OSError:
                offsets[key] = old  # as on disk: the next try must not skip it
                raise

    def forget(self, key: PartitionKey) -> None:
        """Drop a partition's offsets, durably where a new log of that name could be harmed."""
        with self._mutex:
            self._lower_row(checkpoints.RECOVERY_POINT_FILE, self._recovery_points, key, 0)
            for name, offsets in (
                (checkpoints.HIGH_WATERMARK_FILE, self._high_watermarks),
                (checkpoints.LOG_START_FILE, self._log_starts),
                (checkpoints.CLEANER_FILE, self._cleaned),
                (checkpoints.TOMBSTONE_FILE, self._tombstones_gone),
            ):
                old = offsets.pop(key, None)
                if old or (old is not None and offsets is self._cleaned):  # there, 0 says something too
                    try:
                        self._save(name, offsets)
                    except OSError:
                        offsets[key] = old
                        raise
            self._recovery_points.pop(key, None)

    def _save(self, name: str, offsets: dict[PartitionKey, int]) -> None:
        write_file_atomically(self._fs, f"{self._root}/{name}", checkpoints.encode_offsets(offsets))

    def write(self, logs: Iterable[tuple[PartitionLog, int]]) -> None:
        """Write recovery points, high watermarks and log starts of (log, high watermark) (each minute or so).

        Partitions that aren't named keep what they had.
        """
        hit("log.checkpoint.before_write")
        with self._mutex:
            for log, high_watermark in logs:
                if log.is_deleted:
                    continue  # since the rows were put together: they may be another log's by now
                key = (log.topic, log.partition)
                self._recovery_points[key] = log.checkpoint()
                self._high_watermarks[key] = min(high_watermark, log.log_end_offset)
                if log.log_start_offset > 0:
                    # Wherever the first segment begins: files that were let go may be there yet.
                    self._log_starts[key] = log.log_start_offset
                else:
                    self._log_starts.pop(key, None)
            if self._is_cleaned_unsaved:
                self._save(checkpoints.CLEANER_FILE, self._cleaned)
                self._save(checkpoints.TOMBSTONE_FILE, self._tombstones_gone)
                self._is_cleaned_unsaved = False
            self._save(checkpoints.RECOVERY_POINT_FILE, self._recovery_points)
            hit("log.checkpoint.between_files")
            self._save(checkpoints.HIGH_WATERMARK_FILE, self._high_watermarks)
            self._save(checkpoints.LOG_START_FILE, self._log_starts)
