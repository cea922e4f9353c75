"""What happens when a log is opened: find its end, cut what is broken, rebuild what is missing.

After a clean shutdown the files are trusted: only the batches behind the active
segment's last index entry are walked (headers), to find the end. Otherwise everything
from the recovery point on is read: each batch must have the right CRC, follow the one
before without a gap and carry no older epoch; at the first that doesn't, all later
segments are deleted and the file is cut. (The walk begins a little below the recovery point.
What is wrong there, with others behind it, stays and is told: see the end.) Then indexes, epochs and producer state
are brought in line, and everything scanned is flushed, so that the log's end counts as
flushed. (Kafka: LogLoader, LogSegment.recover; the check for gaps is ours.)

Deleting goes from the newest segment backwards, and before the cut, so that a crash
in the middle leaves the same work to do again and never a hole.

Base offset and epoch of a batch lie outside its CRC: a torn write there shows as a gap
or as a step back of the epoch.

Below the recovery point nobody looks, unless damage was found there and somebody said so
(`mark_damaged`): then everything from that segment on is read, whatever kind of stop it
was. A log that ends below its recovery point afterwards lacks what it had promised. What
producers are replayed from is looked at all the same, and so is what a scan has to walk
through on its way to the recovery point. Damage there is told (`Recovered.damage`); nothing
is cut for it, as this may be the only copy.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import PenstockError
from penstock_core.failpoints import hit
from penstock_kafka.records.batch import HEADER_BYTES, NO_TIMESTAMP, BatchInfo, is_crc_valid, read_header
from penstock_storage_node.log.aborted_index import ENTRY_BYTES, AbortedIndex
from penstock_storage_node.log.checkpoints import LEADER_EPOCH_FILE, decode_epochs, encode_epochs
from penstock_storage_node.log.compaction.swap import complete_swaps
from penstock_storage_node.log.damage import DamagedData
from penstock_storage_node.log.epochs import LeaderEpochs
from penstock_storage_node.log.fs import FileSystem, read_file, unlink_if_exists, write_file_atomically
from penstock_storage_node.log.index import (
    OFFSET_ENTRY_BYTES,
    RELATIVE_OFFSET_MAX,
    SEGMENT_START,
    TIME_ENTRY_BYTES,
    IndexEntry,
    TimeIndex,
)
from penstock_storage_node.log.jobs import (
    FULL_ERRORS,
    UNFLUSHED_MARKER,
    create_segment_files,
    cut_file,
    save_indexes,
    segment_paths,
    sync_file,
    sync_segment,
)
from penstock_storage_node.log.ports import Checkpointed
from penstock_storage_node.log.producer_replay import (
    NOWHERE,
    ProducerReplay,
    batches_from,
    find_position,
    first_damaged,
    save_aborted,
)
from penstock_storage_node.log.producer_state import ProducerState
from penstock_storage_node.log.segment import (
    TIMESTAMP_UNKNOWN,
    Segment,
    forget_indexes,
    load_aborted,
    load_head,
    load_times,
    walk_file,
)
from penstock_storage_node.log.state import Recovered

LEFTOVERS = (".deleted", ".cleaned", ".tmp")
"""Files of work that was not finished; nothing of the log is in them."""

DAMAGED_MARKER = "damaged"
"""Beside the segments: base offset of the first one that gave back what was not written."""


def recover(
    fs: FileSystem,
    directory: str,
    settings: TopicConfig,
    checkpointed: Checkpointed,
    now_ms: int,
    idle_now_ms: int,
) -> Recovered:
    """Bring the files of one partition in order (disk pool). Raises OSError, PenstockError.

    `now_ms` by the wall clock, `idle_now_ms` by that by which producers go idle.
    """
    log_start_offset = checkpointed.log_start_offset or 0
    segments, made_anew = _find_segments(fs, directory, settings, now_ms)
    epochs = _load_epochs(fs, directory)
    flush_point = checkpointed.recovery_point or 0
    scan_from = min(flush_point, _damaged_from(fs, directory))
    if not segments:
        # Nothing was ever flushed to it: should its files be lost, the next start makes them anew (decision 0164).
        segments = [
            first_segment(fs, directory, log_start_offset, now_ms, sync=log_start_offset + flush_point > 0)
        ]
    must_scan = not checkpointed.is_clean or scan_from < flush_point
    end_offset, damage = -1, None
    if not must_scan:
        end_offset = _trust_last(fs, segments[-1], settings)
        must_scan = end_offset < 0
    if must_scan:
        hit("log.recovery.before_scan")
        may_have_gaps = checkpointed.may_have_gaps
        scan = _Scan(fs, directory, settings, epochs, flush_point, scan_from, may_have_gaps=may_have_gaps)
        segments, end_offset = scan.run(segments)
        made_anew, damage = min(made_anew, scan.first_base), scan.damage
        unlink_if_exists(fs, f"{directory}/{DAMAGED_MARKER}")
        hit("log.recovery.after_scan")
    if epochs is None:
        epochs = LeaderEpochs()
        for info, _ in batches_from(fs, segments, segments[0].base_offset):
            if info.leader_epoch > epochs.latest:
                epochs.assign(info.leader_epoch, info.base_offset)
    start_offset = max(segments[0].base_offset, min(log_start_offset, end_offset))
    epochs.truncate_from_end(max(end_offset, 0))
    epochs.truncate_from_start(start_offset)
    save_epochs(fs, directory, epochs)
    for segment in segments:
        segment.found_bytes = segment.written
    producers = ProducerState()
    made_anew = min(made_anew, first_damaged(fs, segments, end_offset))
    replay = ProducerReplay(fs, directory, segments, end_offset, idle_now_ms)
    replay.run(producers, high_watermark=checkpointed.high_watermark, from_segment=made_anew)
    anew = [segment for segment in segments if segment.base_offset >= made_anew]
    if save_aborted(fs, anew, replay.all_aborted(anew)):
        fs.sync_directory(directory)
    segments[-1].aborted.adopt(load_aborted(fs, segments[-1], end_offset))
    is_marked = fs.exists(f"{directory}/{UNFLUSHED_MARKER}")
    return Recovered(
        tuple(segments),
        epochs,
        producers,
        start_offset,
        end_offset,
        was_scanned=must_scan,
        flush_point=flush_point,
        is_marked=is_marked,
        may_lack_acked=is_marked and not checkpointed.is_clean,
        damage=min(filter(None, (damage, replay.damage)), key=lambda found: found.base_offset, default=None),
    )


def mark_damaged(fs: FileSystem, directory: str, base_offset: int) -> None:
    """Have the next start read everything from the segment at `base_offset` on (disk pool). Raises OSError."""
    first = min(base_offset, _damaged_from(fs, directory))
    write_file_atomically(fs, f"{directory}/{DAMAGED_MARKER}", b"%d\n" % first)


def save_epochs(fs: FileSystem, directory: str, epochs: LeaderEpochs) -> None:
    """Write leader epochs that changed (disk pool); on a full disk they stay dirty. Raises OSError."""
    if not epochs.is_dirty:
        return
    try:
        write_file_atomically(fs, f"{directory}/{LEADER_EPOCH_FILE}", encode_epochs(epochs.entries))
    except OSError as error:
        if error.errno not in FULL_ERRORS:
            raise
        return  # still dirty: the next write job writes them before its data
    epochs.is_dirty = False


def _damaged_from(fs: FileSystem, directory: str) -> int:
    try:
        text = read_file(fs, f"{directory}/{DAMAGED_MARKER}").strip()
    except FileNotFoundError:
        return NOWHERE
    return int(text) if text.isdigit() else 0


def _find_segments(
    fs: FileSystem, directory: str, settings: TopicConfig, now_ms: int
) -> tuple[list[Segment], int]:
    """All segments, and the base offset of the first whose indexes had to be made anew."""
    complete_swaps(fs, directory)
    names = fs.list_directory(directory)
    stems = {name[:-4] for name in names if name.endswith(".log") and len(name) == 24 and name[:-4].isdigit()}
    for name in names:
        stem, _, suffix = name.partition(".")
        is_orphan = suffix in ("index", "timeindex", "txnindex") and stem not in stems
        if name.endswith(LEFTOVERS) or is_orphan:
            unlink_if_exists(fs, f"{directory}/{name}")
    present = set(names)
    last_stem = max(stems, default="")
    segments: list[Segment] = []
    made_anew = NOWHERE
    for stem in sorted(stems):
        segment = Segment(directory, int(stem), fs.index_heads, now_ms)
        segment.size = segment.written = fs.path_size(segment.path)
        segment.is_on_disk = segment.is_directory_synced = True
        segment.is_closed_on_disk = segment.is_sealed = stem != last_stem
        segment.offset_index.head_count = -1
        segment.time_index.state = (-1, segment.time_index.state[1])
        segment.max_timestamp = TIMESTAMP_UNKNOWN
        if f"{stem}.index" not in present or f"{stem}.timeindex" not in present:
            for path in (segment.offset_index.path, segment.time_index.path):
                fs.close(fs.create(path))
            rebuild_indexes(fs, segment, settings)
            made_anew = min(made_anew, segment.base_offset)
        if f"{stem}.txnindex" in present:
            _find_aborted(fs, segment)
        segments.append(segment)
    return segments, made_anew


def _find_aborted(fs: FileSystem, segment: Segment) -> None:
    path = segment.aborted.path
    size_bytes = fs.path_size(path)
    if size_bytes:
        segment.aborted = AbortedIndex(path, max(size_bytes // ENTRY_BYTES, 1))
    else:
        unlink_if_exists(fs, path)  # of a crash before its first entry was in it, or of compaction


def rebuild_indexes(fs: FileSystem, segment: Segment, settings: TopicConfig) -> None:
    """Make both index files of a closed segment anew from its batches; not flushed."""
    size = segment.size
    adopt_entries(fs, segment, SEGMENT_START, 0)
    segment.size = segment.bytes_since_index = 0
    for info, _ in walk_file(fs, segment.path, 0, size):
        if not 0 <= info.last_offset - segment.base_offset <= RELATIVE_OFFSET_MAX:
            break  # damaged: whoever reads it will see
        segment.note(info.last_offset, info.size_bytes, info.max_timestamp, settings.index_interval_bytes)
    segment.size = size
    close_indexes(fs, segment)


def close_indexes(fs: FileSystem, segment: Segment) -> None:
    """Write what the index files of a closed segment lack."""
    segment.close_time_index()
    save_indexes(fs, segment, segment.offset_index.count, segment.time_index.count)
    segment.offset_index.mark_saved(segment.offset_index.count)
    segment.time_index.mark_saved(segment.time_index.count)
    segment.offset_index.release()


def first_segment(
    fs: FileSystem, directory: str, base_offset: int, now_ms: int, *, sync: bool = True
) -> Segment:
    """An empty segment (disk pool). Its files are durable on return, else with what is first flushed to it."""
    segment = Segment(directory, base_offset, fs.index_heads, now_ms)
    create_segment_files(fs, segment)
    if sync:
        sync_segment(fs, segment, indexes=True)
        fs.sync_directory(directory)
    segment.is_on_disk = True
    segment.is_directory_synced = sync
    return segment


def _load_epochs(fs: FileSystem, directory: str) -> LeaderEpochs | None:
    """None when the file is missing or damaged: the batches will tell."""
    try:
        return LeaderEpochs(decode_epochs(read_file(fs, f"{directory}/{LEADER_EPOCH_FILE}")))
    except (FileNotFoundError, PenstockError):
        return None


# ---------------------------------------------------------------------- one segment


def usable_entry(fs: FileSystem, segment: Segment, before_offset: int) -> tuple[IndexEntry, int]:
    """Last entry of the .index file that ends before an offset and is right, and how many entries that makes.

    SEGMENT_START and 0 when there is none or the file can't be trusted.
    """
    fs.index_heads.forget(segment.offset_index.path)
    head = load_head(fs, segment)
    count = 0
    low, high = 0, len(head.offsets)
    while low < high:  # entries whose batch ends before `before_offset`
        middle = (low + high) // 2
        if head.offsets[middle] + segment.base_offset < before_offset:
            low = middle + 1
        else:
            high = middle
    count = low
    if not count:
        return SEGMENT_START, 0
    entry = IndexEntry(segment.base_offset + head.offsets[count - 1], head.positions[count - 1])
    for info, _ in walk_file(fs, segment.path, entry.position, segment.size):
        if info.last_offset == entry.last_offset:
            return entry, count
        break
    return SEGMENT_START, 0


def adopt_entries(fs: FileSystem, segment: Segment, entry: IndexEntry, count: int) -> None:
    """Keep `count` entries of the .index file (the last is `entry`) and the time entries up to there.

    The offset index is shortened durably before the time index: an entry of it always
    vouches for the time index up to there, whatever a crash leaves.
    """
    segment.time_index = TimeIndex(segment.time_index.path, segment.base_offset, -1)
    rows = load_times(fs, segment) if count else []
    kept = [row for row in rows if segment.base_offset + row[1] <= entry.last_offset]
    if cut_file(fs, segment.offset_index.path, count * OFFSET_ENTRY_BYTES):
        sync_file(fs, segment.offset_index.path)
    cut_file(fs, segment.time_index.path, len(kept) * TIME_ENTRY_BYTES)
    segment.adopt_index(count, kept)


def cut_segment(fs: FileSystem, segment: Segment, offset: int, settings: TopicConfig) -> int:
    """Cut off a segment's batches that have `offset` in them or lie behind it; durable on return, aborted index aside.

    Returns where it ends now: after its last batch, which is below `offset` where compaction left a
    gap. Brings indexes in line, and what is in memory of the segment.
    """
    size = segment.written
    segment.size = size
    segment.is_closed_on_disk = segment.is_sealed = False
    save_indexes(fs, segment, segment.offset_index.count, segment.time_index.count)
    entry, count = usable_entry(fs, segment, offset)
    adopt_entries(fs, segment, entry, count)
    segment.size = entry.position
    segment.bytes_since_index = 0
    end_offset = segment.base_offset
    for info, _ in walk_file(fs, segment.path, entry.position, size):
        if info.last_offset >= offset:
            break
        if count and info.position == entry.position:
            segment.size += info.size_bytes
            segment.bytes_since_index = info.size_bytes
        else:
            segment.note(info.last_offset, info.size_bytes, info.max_timestamp, settings.index_interval_bytes)
        end_offset = info.next_offset
    cut_file(fs, segment.path, segment.size)
    segment.written = segment.size
    load_first_timestamp(fs, segment)
    sync_segment(fs, segment, indexes=True)
    return end_offset


def end_if_cut(fs: FileSystem, segment: Segment, offset: int) -> int:
    """Where `cut_segment` would let a segment end (disk pool)."""
    end_offset = segment.base_offset
    position = find_position(fs, segment, offset - 1)
    for info, _ in walk_file(fs, segment.path, position, segment.written):
        if info.last_offset >= offset:
            break
        end_offset = info.next_offset
    return end_offset


def _trust_last(fs: FileSystem, segment: Segment, settings: TopicConfig) -> int:
    """End offset of the active segment after a clean shutdown, -1 when its files don't fit together."""
    entry, count = usable_entry(fs, segment, 1 << 62)
    size, end_offset = segment.size, segment.base_offset
    adopted = load_times(fs, segment)
    segment.adopt_index(count, adopted if count or not size else [])
    segment.size = entry.position
    if not count:
        cut_file(fs, segment.offset_index.path, 0)
        if size:
            cut_file(fs, segment.time_index.path, 0)
    for info, _ in walk_file(fs, segment.path, entry.position, size):
        if count and info.position == entry.position:  # its index entry stands already
            segment.size += info.size_bytes
            segment.bytes_since_index = info.size_bytes
        else:
            segment.note(info.last_offset, info.size_bytes, info.max_timestamp, settings.index_interval_bytes)
        end_offset = info.next_offset
    if segment.size != size:
        segment.size = size
        return -1
    load_first_timestamp(fs, segment)
    return end_offset


def load_first_timestamp(fs: FileSystem, segment: Segment) -> None:
    """What rolling by time counts from."""
    if segment.size < HEADER_BYTES:
        segment.first_timestamp = -1
        return
    file = fs.files.pin(segment.path)
    try:
        segment.first_timestamp = read_header(fs.pread(file.fd, HEADER_BYTES, 0)).max_timestamp
    finally:
        fs.files.unpin(file)


class _Scan:
    """The full check from the recovery point on."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        settings: TopicConfig,
        epochs: LeaderEpochs | None,
        recovery_point: int,
        scan_from: int,
        *,
        may_have_gaps: bool,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._settings = settings
        self._epochs = epochs
        self._known_epochs = epochs.entries if epochs is not None else []
        self._recovery_point = recovery_point
        self._scan_from = scan_from
        self._may_have_gaps = may_have_gaps or settings.is_compacted
        self.first_base = NOWHERE
        """Of the first segment that was read."""
        self.damage: DamagedData | None = None
        """The first batch that was flushed, is wrong now, and has others behind it, which a cut would take too."""
        self._kept_below = min(recovery_point, scan_from)
        self._next_base: int | None = None
        self._expected = 0
        self._epoch = -1
        self._has_batches = False

    def run(self, segments: list[Segment]) -> tuple[list[Segment], int]:
        """The segments that stay and the log's end."""
        first = 0
        for index, segment in enumerate(segments):
            if segment.base_offset <= self._scan_from:
                first = index
        self._expected = self.first_base = segments[first].base_offset
        keep = len(segments)
        for index in range(first, len(segments)):
            segment = segments[index]
            if index > first and not self._may_follow(segment.base_offset):
                keep = index
                break
            size = segment.size
            self._next_base = segments[index + 1].base_offset if index + 1 < len(segments) else None
            self._scan_segment(segment, is_first=index == first)
            if segment.size != size:
                keep = index + 1
                break
        hit("log.recovery.before_cut")
        if len(segments) == 1 and not (self._expected or self._recovery_point or segments[0].size or size):
            # As it was made (`first_segment`): there is nothing that could be lost.
            segments[0].is_directory_synced = False
            load_first_timestamp(self._fs, segments[0])
            return segments, 0
        self._drop(segments[keep:])
        last = segments[keep - 1]
        last.is_closed_on_disk = last.is_sealed = False
        for segment in segments[first:keep]:
            cut_file(self._fs, segment.path, segment.size)
            segment.written = segment.size
            if segment is not last:
                close_indexes(self._fs, segment)
            sync_segment(self._fs, segment, indexes=True)
        self._fs.sync_directory(self._directory)
        load_first_timestamp(self._fs, last)
        return segments[:keep], self._expected

    def _may_follow(self, base_offset: int) -> bool:
        """Gaps between segments: only where Kafka compacted, ours leaves none (see `compaction.rewrite`)."""
        if base_offset == self._expected:
            return True
        may_gap = self._settings.is_compacted or self._expected < self._recovery_point
        return base_offset > self._expected and may_gap

    def _scan_segment(self, segment: Segment, *, is_first: bool) -> None:
        """Walk one segment; afterwards its `size` is what is good of it."""
        fs, size = self._fs, segment.size
        entry, count = usable_entry(fs, segment, self._scan_from) if is_first else (SEGMENT_START, 0)
        adopt_entries(fs, segment, entry, count)
        segment.size = entry.position
        segment.bytes_since_index = 0
        self._expected = max(self._expected, segment.base_offset)
        for (info, view), after in _with_next(walk_file(fs, segment.path, entry.position, size)):
            starts_at_entry = count > 0 and info.position == entry.position
            if starts_at_entry:
                self._expected = info.base_offset
            is_good = self._is_good(info, view, self._next_base if after is None else after.base_offset)
            if not is_good and not self._is_kept(segment, info, after):
                return
            if info.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
                return
            if starts_at_entry:
                segment.size += info.size_bytes
                segment.bytes_since_index = info.size_bytes
            else:
                timestamp = info.max_timestamp if is_good else NO_TIMESTAMP
                segment.note(
                    info.last_offset, info.size_bytes, timestamp, self._settings.index_interval_bytes
                )
            self._note_epoch(info)
            self._expected, self._epoch = info.next_offset, info.leader_epoch

    def _is_kept(self, segment: Segment, info: BatchInfo, after: BatchInfo | None) -> bool:
        """Whether a batch that isn't good stays: no crash tears what was flushed, so the disk forgot a bit of it."""
        is_whole = info.base_offset == self._expected and info.leader_epoch >= self._epoch
        is_followed = after is not None and after.base_offset == info.next_offset
        if not (is_whole and is_followed and info.next_offset <= self._kept_below):
            return False
        if self.damage is None:
            segment.found_bytes = segment.written
            self.damage = DamagedData(segment, info.position)
        return True

    def _is_good(self, info: BatchInfo, view: memoryview, next_base: int | None) -> bool:
        if info.base_offset != self._expected and not (
            # Compaction leaves gaps inside of segments, a leader's on its followers too. A lost write
            # leaves zeros, no gap; a damaged offset doesn't fit what comes after it.
            info.base_offset > self._expected
            and (self._may_have_gaps or self._expected < self._recovery_point)
            and (next_base is None or next_base >= info.next_offset)
        ):
            return False
        return info.leader_epoch >= self._epoch and is_crc_valid(view)

    def _note_epoch(self, info: BatchInfo) -> None:
        if self._epochs is None:
            return
        if (
            not self._has_batches
        ):  # from here on the batches know better than the file, but for the gaps between them
            self._has_batches = True
            self._epochs.truncate_from_end(min(self._expected, info.base_offset))
        if info.leader_epoch > self._epochs.latest:
            self._epochs.assign_batch(info.leader_epoch, info.base_offset, self._expected, self._known_epochs)

    def _drop(self, segments: list[Segment]) -> None:
        if not segments:
            return
        remove_segments(self._fs, segments)
        self._fs.sync_directory(self._directory)


def _with_next(
    batches: Iterator[tuple[BatchInfo, memoryview]],
) -> Iterator[tuple[tuple[BatchInfo, memoryview], BatchInfo | None]]:
    """Each batch with the header of the one after it."""
    held = next(batches, None)
    while held is not None:
        following = next(batches, None)
        yield held, None if following is None else following[0]
        held = following


def remove_segments(fs: FileSystem, segments: list[Segment]) -> None:
    """Delete files of segments, the newest first; the directory is not synced."""
    for segment in reversed(segments):
        forget_indexes(fs, segment)
        for path in segment_paths(segment):
            fs.files.forget(path)
            unlink_if_exists(fs, path)
