"""Compaction beside what else happens to a log: cuts, deletion, retention, producers, and the next start."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from penstock_core.config.topic import TopicConfig
from penstock_core.ids import TopicId
from penstock_kafka.records.batch import read_header
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.read import read_records
from penstock_storage_node.log import LogDirectory, PartitionLog, checkpoints, reading
from penstock_storage_node.log.compaction.plan import CleaningPlan
from penstock_storage_node.log.compaction.rewrite import CleanedGroup, Cleaner
from penstock_storage_node.log.fs import FileSystem, read_file
from penstock_storage_node.log.producer_state import ProducerEntry
from penstock_storage_node.log.recovery import mark_damaged
from penstock_storage_node.log.segment import Segment
from support.simulated_fs import SimulatedFileSystem, keep_all
from unit.storage_node.log.compaction.compaction_model import COMPACT
from unit.storage_node.log.log_model import (
    NOW_MS,
    append,
    new_disk,
    new_log,
    open_directory,
    read_all_batches,
    reopen,
    run_job,
)

OTHER_ID = TopicId(bytes(range(1, 17)))


def put(log: PartitionLog, count: int, tag: bytes, *, epoch: int = 0, timestamp_ms: int = NOW_MS) -> None:
    for number in range(count):
        record = NewRecord(b"k%d" % (number % 3), tag + b"-%d" % number + bytes(100), timestamp_ms)
        append(log, build_batch([record]), epoch)
        run_job(log)


def values(log: PartitionLog) -> list[tuple[int, bytes]]:
    found = []
    for batch in read_all_batches(log, 1 << 16):
        found += [(record.offset, bytes(record.value or b"").rstrip(b"\0")) for record in read_records(batch)]
    return found


def plan_of(log: PartitionLog, *, cleaned_until: int = 0, now_ms: int = NOW_MS) -> CleaningPlan:
    plan = log.plan_cleaning(cleaned_until, log.last_stable_offset(log.log_end_offset), now_ms)
    assert plan is not None
    return plan


def groups_of(fs: FileSystem, log: PartitionLog, plan: CleaningPlan) -> Iterator[CleanedGroup]:
    return Cleaner(fs, log.cleaning_request(plan, NOW_MS, 1 << 16)).run()


def replaced_by(group: CleanedGroup, plan: CleaningPlan) -> list[Segment]:
    return [segment for segment in plan.sources if segment.base_offset in group.sources]


def compact(fs: FileSystem, log: PartitionLog, plan: CleaningPlan) -> None:
    for group in groups_of(fs, log, plan):
        sources = replaced_by(group, plan)
        assert log.swap_files(group, sources, plan)
        log.adopt_swapped(group, sources)()


class _Growing(dict[int, ProducerEntry]):
    """Producers come while somebody looks at all of them: the loop beside a thread of the pool."""

    def values(self) -> Iterator[ProducerEntry]:  # type: ignore[override]
        for entry in super().values():
            yield entry
            self[len(self)] = ProducerEntry(0)


def test_a_plan_reads_no_producers_in_the_pool() -> None:
    fs = new_disk()
    _, log = new_log(fs, COMPACT)
    put(log, 60, b"a")
    log._data.producers._entries = _Growing({0: ProducerEntry(0)})
    with pytest.raises(RuntimeError):
        assert not log._data.producers.has_transactions  # for the loop, where nothing grows meanwhile
    assert log.plan_cleaning(0, 60, NOW_MS) is not None
    plan = log.plan_cleaning(0, log.segments[2].base_offset, NOW_MS)
    assert plan is not None and plan.end == log.segments[2].base_offset


def test_reads_at_once_do_not_trip_over_their_hints() -> None:
    class Hints(dict[int, tuple[Segment, int]]):
        """Another thread comes in whenever somebody begins to look at all of them."""

        def __iter__(self) -> Iterator[int]:
            raise RuntimeError("dictionary changed size during iteration")

    _, log = new_log(new_disk(), COMPACT)
    place = (log.segments[0], 7)
    hints = Hints(dict.fromkeys(range(reading.READ_HINTS_MAX + 3), place))
    reading.remember(hints, 100, *place)
    assert hints[100] == place and len(hints) == reading.READ_HINTS_MAX


# ---------------------------------------------------------------------- cuts


def test_no_swap_after_a_cut_that_the_log_has_grown_over() -> None:
    fs = new_disk()
    _, log = new_log(fs, COMPACT)
    put(log, 60, b"old")
    plan = plan_of(log)
    group = next(groups_of(fs, log, plan))
    sources = replaced_by(group, plan)
    assert log.can_swap(sources, plan)
    log.truncate_to(group.sources[-1] + 2)
    put(log, 60, b"new", epoch=1)
    before = values(log)
    assert not log.swap_files(group, sources, plan)
    assert values(log) == before


def test_no_swap_of_a_plan_that_was_made_during_a_cut() -> None:
    class Slow(SimulatedFileSystem):
        """Runs something when a file goes."""

        meanwhile: Callable[[], None] | None = None

        def unlink(self, path: str) -> None:
            if self.meanwhile is not None:
                self.meanwhile()
            super().unlink(path)

    fs = Slow(random.Random(1))
    directory, log = new_log(fs, COMPACT)
    put(log, 60, b"old")
    plans: list[CleaningPlan] = []
    early = plan_of(log)

    def meanwhile() -> None:
        assert not directory.offsets.set_cleaned(
            log, early.end, early.cut_count
        )  # the cut has lowered it already
        plans.append(plan_of(log))

    fs.meanwhile = meanwhile
    segment = log.segments[1]
    log.truncate_to(segment.base_offset + 2)
    fs.meanwhile = None
    put(log, 60, b"new", epoch=1)
    assert plans and segment in log.segments
    for plan in plans:
        assert segment in plan.sources
        assert not log.can_swap([segment], plan)
        assert not log.can_swap(plan.sources[:1], plan)
        assert not directory.offsets.set_cleaned(log, plan.end, plan.cut_count)
    assert directory.offsets.cleaned_until(log) == 0


def test_a_plan_from_before_the_log_was_emptied_counts_no_more() -> None:
    fs = new_disk()
    directory, log = new_log(fs, COMPACT)
    put(log, 60, b"old")
    plan = plan_of(log)
    log.truncate_fully_and_start_at(0)
    put(log, 60, b"new", epoch=1)
    assert not log.can_swap(plan.sources[:1], plan)
    assert not directory.offsets.set_cleaned(log, plan.end, plan.cut_count)
    assert directory.offsets.cleaned_until(log) == 0


def test_sizes_count_too() -> None:
    fs = new_disk()
    _, log = new_log(fs, COMPACT)
    put(log, 60, b"a")
    plan = plan_of(log)
    assert log.can_swap(plan.sources[:2], plan)
    plan.sources[1].size -= 1
    assert not log.can_swap(plan.sources[:2], plan)
    assert log.can_swap(plan.sources[:1], plan)


# ---------------------------------------------------------------------- the cleaner's checkpoint


def cleaned_rows(fs: FileSystem) -> dict[tuple[str, int], int]:
    name = checkpoints.CLEANER_FILE
    return checkpoints.decode_offsets(read_file(fs, f"/data/{name}"), name)


def cleaned_log() -> tuple[SimulatedFileSystem, LogDirectory, PartitionLog]:
    fs = new_disk()
    directory, log = new_log(fs, COMPACT)
    put(log, 80, b"a")
    plan = plan_of(log)
    compact(fs, log, plan)
    assert directory.offsets.set_cleaned(log, plan.end, plan.cut_count)
    assert cleaned_rows(fs) == {("t", 0): plan.end}
    return fs, directory, log


def test_a_deleted_logs_row_goes_from_the_disk() -> None:
    fs, directory, log = cleaned_log()
    directory.delete_log(log)()
    assert cleaned_rows(fs) == {}
    fresh = directory.create_log("t", 0, OTHER_ID, TopicConfig())
    assert directory.offsets.cleaned_until(fresh) == 0 and not directory.offsets.is_marked_compacted(fresh)


def test_a_row_of_0_goes_too() -> None:
    fs = new_disk()
    directory, log = new_log(fs, COMPACT)
    assert cleaned_rows(fs) == {("t", 0): 0}
    directory.delete_log(log)()
    assert cleaned_rows(fs) == {}


def test_a_row_that_a_cut_has_lowered_is_on_the_disk() -> None:
    fs, directory, log = cleaned_log()
    log.truncate_to(0)
    assert directory.offsets.cleaned_until(log) == 0
    assert cleaned_rows(fs) == {("t", 0): 0}
    directory, log = reopen(fs.restart(), COMPACT)
    assert directory.offsets.cleaned_until(log) == 0


def test_nothing_is_cut_when_the_row_cannot_be_lowered() -> None:
    fs, directory, log = cleaned_log()
    until, end = directory.offsets.cleaned_until(log), log.log_end_offset

    def full(call: str, path: str) -> OSError | None:
        is_it = call == "create" and checkpoints.CLEANER_FILE in path
        return OSError(errno.ENOSPC, "full") if is_it else None

    fs.fail_on = full
    with pytest.raises(OSError, match="full"):
        log.truncate_to(0)
    assert (log.log_end_offset, directory.offsets.cleaned_until(log)) == (end, until)
    fs.fail_on = lambda call, path: None
    assert log.truncate_to(0) == 0
    assert cleaned_rows(fs) == {("t", 0): 0}


# ---------------------------------------------------------------------- tombstones that are gone


def gone_rows(fs: FileSystem) -> dict[tuple[str, int], int]:
    name = checkpoints.TOMBSTONE_FILE
    return checkpoints.decode_offsets(read_file(fs, f"/data/{name}"), name)


def test_how_far_tombstones_are_gone_is_durable_and_never_falls_by_itself() -> None:
    fs, directory, log = cleaned_log()
    assert log.tombstones_gone_below == 0
    assert directory.offsets.note_tombstones_gone(log, 30)
    assert directory.offsets.note_tombstones_gone(log, 20)
    assert gone_rows(fs) == {("t", 0): 30}
    directory.offsets.write([(log, log.log_end_offset)])
    _, log = reopen(fs.restart(), COMPACT)
    assert log.tombstones_gone_below == 30
    assert log.clean_until >= 30


def test_nobody_relies_on_what_could_not_be_written() -> None:
    fs, directory, log = cleaned_log()
    fs.fail_on = lambda call, path: (
        OSError(errno.ENOSPC, "full") if checkpoints.TOMBSTONE_FILE in path else None
    )
    with pytest.raises(OSError, match="full"):
        directory.offsets.note_tombstones_gone(log, 30)
    assert log.tombstones_gone_below == 0


def test_of_what_comes_in_place_of_a_cut_no_tombstone_is_gone() -> None:
    fs, directory, log = cleaned_log()
    directory.offsets.note_tombstones_gone(log, 30)
    log.truncate_to(40)
    directory.offsets.cap_tombstones_gone(log)
    assert log.tombstones_gone_below == 30, "it lies below the cut"
    log.truncate_fully_and_start_at(0)
    directory.offsets.cap_tombstones_gone(log)
    assert log.tombstones_gone_below == 0
    assert gone_rows(fs) == {("t", 0): 0}


def test_a_deleted_log_leaves_nothing_about_tombstones() -> None:
    fs, directory, log = cleaned_log()
    directory.offsets.note_tombstones_gone(log, 30)
    directory.delete_log(log)()
    assert not directory.offsets.note_tombstones_gone(log, 40)
    assert gone_rows(fs) == {}
    assert directory.create_log("t", 0, OTHER_ID, COMPACT).tombstones_gone_below == 0


def test_a_start_caps_what_is_said_of_tombstones_by_what_is_left_of_the_log() -> None:
    fs, directory, log = cleaned_log()
    directory.offsets.note_tombstones_gone(log, 60)
    damaged_at_start(fs, directory, log)
    _, log = reopen(fs.restart(), COMPACT)
    assert log.tombstones_gone_below == log.log_end_offset < 60


def test_a_run_that_ends_after_its_log_was_deleted_says_nothing_of_the_next_one() -> None:
    fs = new_disk()
    directory, log = new_log(fs, COMPACT)
    put(log, 60, b"a")
    plan = plan_of(log)
    directory.delete_log(log)()
    fresh = directory.create_log("t", 0, OTHER_ID, COMPACT)
    assert not directory.offsets.set_cleaned(log, plan.end, plan.cut_count)
    assert directory.offsets.cleaned_until(fresh) == 0
    assert cleaned_rows(fs) == {("t", 0): 0}


def test_a_run_that_ends_after_a_cut_says_nothing() -> None:
    fs = new_disk()
    directory, log = new_log(fs, COMPACT)
    put(log, 60, b"a")
    plan = plan_of(log)
    log.truncate_to(5)
    put(log, 60, b"b", epoch=1)
    assert not directory.offsets.set_cleaned(log, plan.end, plan.cut_count)
    assert directory.offsets.cleaned_until(log) == 0


def damaged_at_start(fs: SimulatedFileSystem, directory: LogDirectory, log: PartitionLog) -> None:
    directory.offsets.write([(log, log.log_end_offset)])
    mark_damaged(fs, str(log.directory), 0)
    fd = fs.open(log.segments[0].path)
    fs.pwritev(fd, [b"\xff"], 200)
    log.close(False)


def test_a_row_is_no_higher_than_what_the_start_leaves_of_a_damaged_log() -> None:
    fs, directory, log = cleaned_log()
    damaged_at_start(fs, directory, log)
    fs = fs.restart()
    directory, log = reopen(fs)  # nobody was told yet
    assert directory.offsets.cleaned_until(log) == log.log_end_offset < 80
    assert cleaned_rows(fs) == {("t", 0): log.log_end_offset}


def test_on_a_full_disk_it_starts_all_the_same_and_writes_the_row_later() -> None:
    fs, directory, log = cleaned_log()
    damaged_at_start(fs, directory, log)
    fs = fs.restart()
    before = cleaned_rows(fs)

    def full(call: str, path: str) -> OSError | None:
        is_it = call == "create" and checkpoints.CLEANER_FILE in path
        return OSError(errno.ENOSPC, "full") if is_it else None

    directory = open_directory(fs)
    (found,) = directory.scan()
    fs.fail_on = full
    log = directory.open_log(found, COMPACT)
    assert directory.offsets.cleaned_until(log) == log.log_end_offset < before["t", 0]
    assert cleaned_rows(fs) == before
    fs.fail_on = lambda call, path: None
    directory.offsets.write([(log, log.log_end_offset)])
    assert cleaned_rows(fs) == {("t", 0): log.log_end_offset}


# ---------------------------------------------------------------------- descriptors


class Racing(SimulatedFileSystem):
    """Runs something between an open or before a rename that tests name."""

    before_rename: Callable[[], object] | None = None
    after_open: Callable[[], object] | None = None

    def rename(self, source: str, target: str) -> None:
        if target.endswith(".log.deleted") and self.before_rename is not None:
            hook, self.before_rename = self.before_rename, None
            hook()
        super().rename(source, target)

    def open(self, path: str) -> int:
        fd = super().open(path)
        if self.after_open is not None:
            hook, self.after_open = self.after_open, None
            hook()
        return fd


def is_live(fs: SimulatedFileSystem, path: str) -> bool:
    """Whether a descriptor that is kept for `path` is the file of that name."""
    kept = fs.files.pin_if_open(path)
    if kept is None:
        return True
    try:
        return fs._descriptors[kept.fd][1] is fs._find(path)
    finally:
        fs.files.unpin(kept)


def test_no_descriptor_of_an_old_file_stays_under_the_new_ones_name() -> None:
    fs = Racing(random.Random(1))
    _, log = new_log(fs, COMPACT)
    put(log, 60, b"a")
    path = log.segments[-3].path
    first = log.segments[0].path
    plan = plan_of(log)

    def look() -> None:
        for each in (path, first):
            fs.files.unpin(fs.files.pin(each))

    fs.before_rename = look
    compact(fs, log, plan)
    assert is_live(fs, first)
    assert fs.files.pin_if_open(path) is None
    assert [value.partition(b"-")[0] for _, value in values(log)]


def test_a_file_that_was_forgotten_while_it_was_opened_is_not_kept() -> None:
    fs = Racing(random.Random(1))
    for name in ("/a", "/b"):
        fs.close(fs.create(name))

    def exchange() -> None:
        fs.files.forget("/a")
        fs.rename("/b", "/a")

    fs.after_open = exchange
    file = fs.files.pin("/a")
    assert fs.files.pin_if_open("/a") is None
    fs.files.unpin(file)
    assert file.fd not in fs._descriptors
    fs.files.unpin(fs.files.pin("/a"))
    assert is_live(fs, "/a") and len(fs.files) == 1


# ---------------------------------------------------------------------- timestamps


def test_the_lag_counts_from_the_closing_of_a_segment_without_timestamps() -> None:
    settings = replace(COMPACT, min_compaction_lag_ms=3_600_000)
    for timestamp_ms in (NOW_MS, -1):
        _, log = new_log(new_disk(), settings)
        put(log, 60, b"a", timestamp_ms=timestamp_ms)
        assert log.plan_cleaning(0, 60, NOW_MS + 3_599_999) is None
        assert log.plan_cleaning(0, 60, NOW_MS + 3_600_001) is not None


@pytest.mark.parametrize("suffix", [".timeindex", ".log"])
def test_a_plan_comes_to_an_end_when_a_file_is_missing(suffix: str) -> None:
    fs = new_disk()
    directory, log = new_log(fs, COMPACT)
    put(log, 60, b"a")
    log.close(True)
    directory.close(clean=True)
    fs = fs.restart()
    directory, log = reopen(fs, COMPACT)
    path = log.segments[0].path[:-4] + suffix
    fs.unlink(path)
    fs.files.forget(path)
    plans: list[CleaningPlan | None] = []
    thread = threading.Thread(target=lambda: plans.append(log.plan_cleaning(0, 60, NOW_MS)), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert (plans[0] is not None) is (suffix == ".timeindex")
    if suffix == ".timeindex":
        assert log.segments[0].max_timestamp == NOW_MS
        assert log.offset_for_timestamp(NOW_MS, 60) == (0, NOW_MS)


class BadSector(SimulatedFileSystem):
    bad = ""

    def pread(self, fd: int, size: int, position: int) -> bytes:
        if self.bad and self._file(fd)[0] == self.bad:
            raise OSError(errno.EIO, "I/O error")
        return super().pread(fd, size, position)


def test_retention_by_size_needs_no_timestamps() -> None:
    settings = TopicConfig(segment_bytes=1500, retention_ms=1000, retention_bytes=4000)
    first = new_disk()
    directory, log = new_log(first, settings)
    put(log, 60, b"a")
    log.close(True)
    directory.offsets.write([(log, 60)])
    directory.close(clean=True)
    fs = BadSector(random.Random(1), root=first.restart()._root)
    _, log = reopen(fs, settings)
    fs.bad = log.segments[3].time_index.path
    before = log.size_bytes
    remove = log.delete_old_segments(60, NOW_MS + 10**9)
    assert remove is not None
    remove()
    assert before > 2 * log.size_bytes and 4000 <= log.size_bytes < 5500


@pytest.mark.parametrize("is_flushed", [True, False])
def test_a_copy_of_a_compacted_log_knows_where_epochs_began(is_flushed: bool) -> None:
    """Where the first batches of an epoch are gone, and all of another, the leader's word counts, also after a crash.

    A follower that comes back with uncommitted records of an epoch before is cut to where the next one begins: were
    that the first batch that is left, it would keep them in the place of a gap.
    """
    fs = new_disk()
    settings = replace(COMPACT, segment_bytes=2000)
    _, leader = new_log(fs, settings)
    for epoch in (0, 2, 3, 5, 6):
        put(leader, 12, b"epoch-%d" % epoch, epoch=epoch)
    compact(fs, leader, plan_of(leader))
    entries = leader.epoch_entries()
    assert [epoch for epoch, _ in entries] == [0, 2, 3, 5, 6]
    stored = read_all_batches(leader)
    starts = {start for _, start in entries}
    assert not starts <= {read_header(batch).base_offset for batch in stored}, (
        "an epoch's first batch is gone"
    )

    for count in (1, 3, len(stored)):
        disk = new_disk(2)
        _, follower = new_log(disk, replace(settings, durability="fsync" if is_flushed else "replicated"))
        for position in range(0, len(stored), count):
            batches = stored[position : position + count]
            base_offset = follower.log_end_offset
            told = leader.epoch_starts_between(base_offset, read_header(batches[-1]).next_offset)
            follower.append_as_follower(b"".join(batches), 9, base_offset=base_offset, epoch_starts=told)
            run_job(follower)
        assert follower.epoch_entries() == entries
        # Killed: what was written is there, and is walked from the recovery point on.
        _, again = reopen(disk.crash(keep_all), settings)
        assert again.epoch_entries() == entries
        for epoch in range(7):
            assert again.end_offset_for_epoch(epoch) == leader.end_offset_for_epoch(epoch)


def test_what_a_leader_says_of_epochs_counts_in_gaps_alone() -> None:
    fs = new_disk()
    _, leader = new_log(fs, COMPACT)
    for epoch in (1, 4):
        put(leader, 3, b"epoch-%d" % epoch, epoch=epoch)
    _, follower = new_log(new_disk(2), COMPACT)
    nonsense = [(0, -1), (0, 2), (1, 1), (3, 4), (4, 0), (4, 2), (7, 3)]
    follower.append_as_follower(b"".join(read_all_batches(leader)), 9, base_offset=0, epoch_starts=nonsense)
    assert follower.epoch_entries() == leader.epoch_entries() == [(1, 0), (4, 3)]
