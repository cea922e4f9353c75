"""Putting a compacted segment in the place of those that it was made from.

The names say how far it came, so that a crash at any point is finished or undone at open:

  `.cleaned`  not complete, or complete and unknown: removed
  `.swap`     decided. The log's file is renamed last, so where `<base>.log.swap` is, its indexes
              are, or were swapped in already. Old segments from its base up to its last offset
              count no more and are removed; then it takes its own name
  `.deleted`  old segments on their way out: removed

A new segment keeps the last batch of what it replaces (see `rewrite`), so its last offset tells
which old segments are meant. Kafka does the same, with weaker ends (LogLoader, UnifiedLog
.replaceSegments): there a segment whose end was compacted away can leave an old one behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from penstock_core.failpoints import hit
from penstock_storage_node.log import aborted_index
from penstock_storage_node.log.aborted_index import AbortedIndex
from penstock_storage_node.log.compaction.rewrite import CLEANED, CleanedGroup, discard_cleaned
from penstock_storage_node.log.fs import FileSystem, unlink_if_exists
from penstock_storage_node.log.index import OffsetIndex, TimeIndex
from penstock_storage_node.log.jobs import segment_paths
from penstock_storage_node.log.segment import Segment, forget_indexes, walk_file

SWAP = ".swap"
DELETED = ".deleted"
_SUFFIXES = (".index", ".timeindex", aborted_index.SUFFIX, ".log")
"""The log last: its name decides. The aborted index is there when the new segment or one of the old ones has entries:
without any it is empty, for the first old one's must not stay under its name."""


def new_segment(directory: str, group: CleanedGroup, fs: FileSystem, newest: Segment) -> Segment:
    """What the log knows of the new segment; `newest` is the last one that it replaces."""
    segment = Segment(directory, group.base_offset, fs.index_heads, newest.created_ms)
    segment.size = segment.written = group.size
    segment.max_timestamp = group.max_timestamp
    segment.max_timestamp_offset = group.max_timestamp_offset
    segment.first_timestamp = group.first_timestamp
    segment.closed_ms = newest.closed_ms
    index, times = segment.offset_index, segment.time_index
    segment.offset_index = OffsetIndex(index.path, group.base_offset, fs.index_heads, group.offset_entries)
    segment.time_index = TimeIndex(times.path, group.base_offset, group.time_entries, group.max_timestamp)
    segment.aborted = AbortedIndex(segment.aborted.path, group.aborted_entries)
    segment.is_on_disk = segment.is_directory_synced = True
    segment.is_closed_on_disk = segment.is_sealed = True
    return segment


def swap_in(fs: FileSystem, directory: str, group: CleanedGroup, sources: Sequence[Segment]) -> None:
    """Exchange the files (disk pool); nobody may read or change the log meanwhile. Raises OSError.

    On return the new files have their names, durably, and the old ones are called `.deleted`, to be
    removed by `sweep`.
    """
    stem = sources[0].path[:-4]
    hit("log.compact.before_swap")
    suffixes = [suffix for suffix in _SUFFIXES if fs.exists(stem + suffix + CLEANED)]
    for suffix in suffixes:
        fs.rename(stem + suffix + CLEANED, stem + suffix + SWAP)
    fs.sync_directory(directory)
    hit("log.compact.after_decision")
    for source in reversed(sources):
        forget_indexes(fs, source)
        # State of producers before the first segment is still true.
        for path in segment_paths(source):
            if source is sources[0] and path == source.snapshot_path:
                continue
            fs.files.forget(path)
            with suppress(FileNotFoundError):
                fs.rename(path, path + DELETED)
            # A reader may have opened it meanwhile, or read its index: it is another file now.
            fs.files.forget(path)
        forget_indexes(fs, source)
    for suffix in suffixes:
        fs.rename(stem + suffix + SWAP, stem + suffix)
    hit("log.compact.after_swap")
    # Now, not in `sweep`: a later cut of the new file must not meet the old names after a crash.
    fs.sync_directory(directory)


def sweep(fs: FileSystem, sources: Sequence[Segment]) -> None:
    """Remove the old files (disk pool)."""
    for source in sources:
        for path in segment_paths(source):
            unlink_if_exists(fs, path + DELETED)


def discard(fs: FileSystem, directory: str, group: CleanedGroup) -> None:
    """The log has changed meanwhile: drop a new segment (disk pool)."""
    discard_cleaned(fs, Segment(directory, group.base_offset, fs.index_heads, 0))


def complete_swaps(fs: FileSystem, directory: str) -> None:
    """At open: finish what was decided, forget what was not (disk pool)."""
    names = fs.list_directory(directory)
    decided = sorted(name for name in names if name.endswith(".log" + SWAP))
    for name in decided:
        _complete(fs, directory, name[: -len(".log" + SWAP)])
    for name in names:
        if name.endswith(SWAP) and not name.endswith(".log" + SWAP):
            unlink_if_exists(fs, f"{directory}/{name}")
    if decided:
        fs.sync_directory(directory)


def _complete(fs: FileSystem, directory: str, stem: str) -> None:
    path = f"{directory}/{stem}.log{SWAP}"
    base_offset = end_offset = int(stem)
    for info, _ in walk_file(fs, path, 0, fs.path_size(path)):
        end_offset = info.next_offset
    fs.files.forget(path)
    for name in reversed(fs.list_directory(directory)):
        other, _, suffix = name.partition(".")
        if not other.isdigit() or suffix not in ("log", "index", "timeindex", "txnindex", "snapshot"):
            continue
        if base_offset < int(other) < end_offset:
            unlink_if_exists(fs, f"{directory}/{name}")
    for suffix in _SUFFIXES:
        with suppress(FileNotFoundError):
            fs.rename(f"{directory}/{stem}{suffix}{SWAP}", f"{directory}/{stem}{suffix}")
