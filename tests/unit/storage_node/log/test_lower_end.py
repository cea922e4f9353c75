"""The lower end of a log: what goes, what must wait, and what the disk knows of it."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from penstock_core.errors import ErrorCode
from penstock_core.ids import TopicId
from penstock_kafka.records.batch import PREFIX_BYTES, stamp
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_storage_node.log import LogDirectory, LogState, PartitionLog
from penstock_storage_node.log.damage import DamagedData
from support.simulated_fs import SimulatedFileSystem, keep_all, keep_synced
from unit.storage_node.log.log_model import (
    NOW_MS,
    SMALL,
    append,
    make_batch,
    new_disk,
    new_log,
    open_directory,
    read,
    read_all_batches,
    reopen,
    run_job,
)

REPLICATED = replace(SMALL, durability="replicated", retention_bytes=2000)


def fill(log: PartitionLog, count: int, *, per_epoch: int = 1 << 30) -> None:
    for number in range(count):
        append(log, make_batch(timestamp_ms=NOW_MS + number), epoch=number // per_epoch)
        run_job(log)


def let_go(log: PartitionLog, high_watermark: int, now_ms: int) -> None:
    """A round of retention that has something to do."""
    work = log.delete_old_segments(high_watermark, now_ms)
    assert work is not None
    work()


def second_segment(log: PartitionLog) -> int:
    """Where the second segment of a log begins."""
    names = sorted(path for path in log._fs.list_directory(str(log.directory)) if path.endswith(".log"))
    return int(names[1][:-4])


def log_files(fs: SimulatedFileSystem) -> list[str]:
    return [name for name in fs.list_directory("/data/t-0") if name.endswith((".log", ".deleted"))]


# ---------------------------------------------------------------------- flushes


def test_nothing_goes_while_a_flush_names_it() -> None:
    _, log = new_log(new_disk(), REPLICATED)
    fill(log, 100)
    job = log.next_flush_job()
    assert job is not None
    assert log.delete_old_segments(100, NOW_MS) is None
    log.raise_log_start(100)
    assert log.delete_old_segments(100, NOW_MS) is None
    job.run()
    log.complete_flush(job)
    let_go(log, 100, NOW_MS)
    assert (log.state, log.segment_count, log.log_start_offset) == (LogState.OK, 1, 100)


def test_nothing_goes_while_a_write_flushes_what_earlier_ones_did_not() -> None:
    """The topic went from durability replicated to fsync."""
    _, log = new_log(new_disk(), REPLICATED)
    fill(log, 100)
    log.update_settings(replace(REPLICATED, durability="fsync"))
    append(log, make_batch())
    job = log.next_job()
    assert job is not None
    job.write()
    assert log.delete_old_segments(100, NOW_MS) is None
    job.sync()
    log.complete(job)
    let_go(log, 100, NOW_MS)
    assert log.flushed_offset == 101


def test_what_no_flush_names_goes_beside_one() -> None:
    _, log = new_log(new_disk(), replace(REPLICATED, retention_bytes=-1))
    fill(log, 50)
    first = log.next_flush_job()
    assert first is not None
    first.run()
    log.complete_flush(first)
    fill(log, 50)
    second = log.next_flush_job()
    assert second is not None
    log.raise_log_start(100)
    let_go(log, 100, NOW_MS)
    assert 0 < log.first_segment_offset < 60
    second.run()
    log.complete_flush(second)
    assert log.delete_old_segments(100, NOW_MS) is not None
    assert log.first_segment_offset > 60


# ---------------------------------------------------------------------- log starts


def test_a_log_start_makes_no_recovery_point() -> None:
    """A follower is told its leader's start while what lies before it is still on its way to the disk: a
    crash would leave a log that ends below its recovery point, and the node would call it damaged."""
    fs = new_disk()
    directory, log = new_log(fs, SMALL)
    fill(log, 5)
    append(log, make_batch())
    log.raise_log_start(6)
    assert (log.flushed_offset, log.log_start_offset) == (5, 6)
    assert log.checkpoint() == 5
    directory.offsets.write([(log, 0)])
    _, again = reopen(fs.crash(keep_synced))
    assert (again.log_end_offset, again.flush_point) == (5, 5)


def deleted_before() -> tuple[SimulatedFileSystem, LogDirectory, PartitionLog]:
    """A log whose first two segments are deleted by their records, which the disk knows."""
    fs = new_disk()
    directory, log = new_log(fs, SMALL)
    fill(log, 60)
    log.raise_log_start(2 * second_segment(log))
    directory.offsets.write_log_start(log)
    return fs, directory, log


def test_deleted_records_stay_deleted_though_files_outlast_a_checkpoint() -> None:
    fs, directory, log = deleted_before()
    start = log.log_start_offset
    assert log.delete_old_segments(60, NOW_MS) is not None  # the process ends before it runs
    directory.offsets.write([(log, 60)])
    _, again = reopen(fs.crash(keep_all), SMALL)
    assert again.log_start_offset == start > 0
    # The files go now.
    work = again.delete_old_segments(60, NOW_MS)
    assert work is not None
    work()
    assert again.first_segment_offset == start


def test_a_log_whose_unflushed_records_were_let_go_counts_as_flushed_after_a_flush() -> None:
    """Else it would lag for ever, once offsets count by their flush, in a topic that nobody writes to."""
    settings = replace(SMALL, durability="replicated", retention_ms=1000)
    fs = new_disk()
    _, log = new_log(fs, settings)
    for _ in range(5):
        append(log, make_batch())
        run_job(log)
    assert log.delete_old_segments(5, NOW_MS + 5000) is None
    assert run_job(log), "the active segment is closed"
    let_go(log, 5, NOW_MS + 5000)
    assert (log.log_start_offset, log.log_end_offset, log.flushed_offset) == (5, 5, 0)
    job = log.next_flush_job(everything=True)
    assert job is not None
    job.run()
    log.complete_flush(job)
    assert log.flushed_offset == 5
    assert log.next_flush_job(everything=True) is None
    _, again = reopen(fs.crash(keep_synced, keep_names=lambda count: 0), settings)
    assert (again.log_start_offset, again.log_end_offset) == (5, 5)


def test_a_removal_that_failed_is_tried_again() -> None:
    fs, directory, log = deleted_before()
    start, before = log.log_start_offset, log_files(fs)
    work = log.delete_old_segments(60, NOW_MS)
    assert work is not None
    fs.fail_on = lambda call, path: (
        OSError(errno.ENOSPC, "full") if call == "rename" and path.endswith(".log") else None
    )
    with pytest.raises(OSError, match="full"):
        work()
    fs.fail_on = lambda call, path: None
    assert log_files(fs) == before
    directory.offsets.write([(log, 60)])
    let_go(log, 60, NOW_MS)
    assert len(log_files(fs)) == log.segment_count == len(before) - 2
    assert log.delete_old_segments(60, NOW_MS) is None
    log.close(clean=True)
    directory.close(clean=True)
    _, again = reopen(fs.restart(), SMALL)
    assert again.log_start_offset == start


def test_a_removal_left_over_does_not_meet_a_log_begun_anew() -> None:
    fs, _, log = deleted_before()
    work = log.delete_old_segments(60, NOW_MS)
    assert work is not None
    fs.fail_on = lambda call, path: OSError(errno.ENOSPC, "full") if call == "rename" else None
    with pytest.raises(OSError, match="full"):
        work()
    fs.fail_on = lambda call, path: None
    log.truncate_fully_and_start_at(0)
    assert log.delete_old_segments(0, NOW_MS) is None
    fill(log, 3)
    assert len(log_files(fs)) == 1
    _, again = reopen(fs.crash(keep_synced), SMALL)
    assert (again.log_start_offset, again.log_end_offset) == (0, 3)


def test_a_log_that_begins_anew_below_its_start_hides_nothing_after_a_crash() -> None:
    fs = new_disk()
    directory, log = new_log(fs, SMALL)
    fill(log, 100)
    log.raise_log_start(90)
    directory.offsets.write_log_start(log)
    log.truncate_to(50)
    for offset in range(50, 110):
        batch = make_batch()
        sent = bytes(stamp(offset, 1, batch)) + batch[PREFIX_BYTES:]
        log.append_as_follower(sent, 1, base_offset=offset)
        run_job(log)
    _, again = reopen(fs.crash(keep_synced), SMALL)
    assert (again.log_start_offset, again.log_end_offset) == (50, 110)
    assert len(read_all_batches(again)) == 60


def test_a_log_that_cannot_note_its_lower_start_is_not_cut() -> None:
    fs = new_disk()
    directory, log = new_log(fs, SMALL)
    fill(log, 100)
    log.raise_log_start(90)
    directory.offsets.write_log_start(log)
    fs.fail_on = lambda call, path: OSError(errno.ENOSPC, "full") if "log-start-offset" in path else None
    with pytest.raises(OSError, match="full"):
        log.truncate_to(50)
    assert (log.log_start_offset, log.log_end_offset, log.state) == (90, 100, LogState.OK)
    fs.fail_on = lambda call, path: None
    log.truncate_to(50)
    assert (log.log_start_offset, log.log_end_offset) == (50, 50)


@pytest.mark.parametrize("offset", [10, 12])
def test_a_cut_inside_a_batch_below_the_log_start_leaves_no_end_before_it(offset: int) -> None:
    fs = new_disk()
    directory, log = new_log(fs, SMALL)
    for count in (5, 10, 5):
        append(log, make_batch(count))
    run_job(log)
    log.raise_log_start(9)
    directory.offsets.write_log_start(log)
    assert log.truncate_to(offset) == 9
    assert (log.log_start_offset, log.log_end_offset) == (9, 9)
    append(log, make_batch(2), epoch=1)
    run_job(log)
    assert read(log, 9).next_offset == 11
    _, again = reopen(fs.crash(keep_synced), SMALL)
    assert (again.log_start_offset, again.log_end_offset) == (9, 11)


def test_a_cut_behind_the_batch_of_the_log_start_is_as_ever() -> None:
    _, log = new_log(new_disk(), SMALL)
    for count in (5, 10, 5):
        append(log, make_batch(count))
    run_job(log)
    log.raise_log_start(9)
    assert log.truncate_to(17) == 15
    assert (log.log_start_offset, log.log_end_offset) == (9, 15)


# ---------------------------------------------------------------------- full disks


@pytest.mark.parametrize("by_time", [True, False])
def test_a_full_log_frees_space(by_time: bool) -> None:
    settings = replace(SMALL, retention_ms=1000 if by_time else -1)
    fs = new_disk()
    _, log = new_log(fs, settings)
    fill(log, 100)
    fs.space_bytes = 0
    append(log, make_batch())
    with pytest.raises(OSError, match="space"):
        run_job(log)
    assert log.state is LogState.FULL
    if not by_time:
        log.raise_log_start(100)
    let_go(log, 100, NOW_MS + 1_000_000)
    assert log.segment_count == len(log_files(fs)) == 1  # the active one is not rolled
    fs.space_bytes = None
    assert run_job(log, retry=True)
    assert (log.state, log.log_end_offset, log.flushed_offset) == (LogState.OK, 101, 101)


def test_a_log_opens_on_a_full_disk_though_its_epochs_lag() -> None:
    settings = replace(SMALL, retention_bytes=2000)
    fs = new_disk()
    directory, log = new_log(fs, settings)
    fill(log, 100, per_epoch=10)
    let_go(log, 100, NOW_MS)
    directory.offsets.write([(log, 100)])
    fs = fs.crash(keep_all)
    fs.space_bytes = 0
    _, log = reopen(fs, settings)
    start, epochs = log.log_start_offset, log.epoch_entries()
    assert (start > 0, log.log_end_offset, epochs[0][1]) == (True, 100, start)
    fs.space_bytes = None
    append(log, make_batch(), epoch=9)
    run_job(log)
    _, again = reopen(fs.crash(keep_synced), settings)
    assert again.epoch_entries() == epochs


# ---------------------------------------------------------------------- checkpoints of others


def test_rows_of_a_deleted_log_are_not_written_for_the_one_that_came_after() -> None:
    fs = new_disk()
    directory, log = new_log(fs, SMALL)
    fill(log, 200)
    log.raise_log_start(150)
    rows = [(log, log.log_end_offset)]
    directory.delete_log(log)()
    other = TopicId(bytes(range(1, 17)))
    new = directory.create_log("t", 0, other, SMALL)
    directory.offsets.write(rows)
    directory.offsets.write_log_start(log)
    append(new, make_batch())
    run_job(new)
    fs = fs.crash(keep_synced)
    (found,) = open_directory(fs).scan()
    assert (found.topic_id, found.high_watermark, found.checkpointed.log_start_offset) == (other, 0, None)
    assert found.checkpointed.recovery_point in (0, None)


def test_checkpoints_after_a_clean_close_are_written() -> None:
    fs = new_disk()
    directory, log = new_log(fs, SMALL)
    fill(log, 20)
    log.close(clean=True)
    directory.offsets.write([(log, 20)])
    directory.close(clean=True)
    (found,) = open_directory(fs.restart()).scan()
    assert (found.checkpointed.recovery_point, found.high_watermark) == (20, 20)


# ---------------------------------------------------------------------- offsets by time


def damage(log: PartitionLog, fs: SimulatedFileSystem, base_offset: int) -> None:
    """Make the length of a segment's first batch a wrong one."""
    path = f"{log.directory}/{base_offset:020}.log"
    fd = fs.open(path)
    byte = fs.pread(fd, 1, 8)
    fs.pwritev(fd, [bytes([byte[0] ^ 0x40])], 8)
    fs.close(fd)


def test_damage_is_no_reason_to_answer_with_a_later_segment() -> None:
    fs = new_disk()
    _, log = new_log(fs, SMALL)
    fill(log, 60)
    base = second_segment(log)
    damage(log, fs, base)
    with pytest.raises(DamagedData) as caught:
        log.offset_for_timestamp(NOW_MS + base + 2, 60)
    assert (caught.value.code, caught.value.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, base)
    with pytest.raises(DamagedData):
        log.offset_of_max_timestamp(60)
    # What lies before and behind is found as ever.
    assert log.offset_for_timestamp(NOW_MS + 1, 60) == (1, NOW_MS + 1)
    assert log.offset_for_timestamp(NOW_MS + 59, 60) == (59, NOW_MS + 59)


def test_damage_behind_the_last_index_entry_is_met_after_a_restart_too() -> None:
    """The time index cannot be trusted then, and what can be walked knows only of earlier records."""
    fs = new_disk()
    directory, log = new_log(fs, SMALL)
    fill(log, 60)
    base = second_segment(log)
    log.close(clean=True)
    directory.offsets.write([(log, 60)])
    directory.close(clean=True)
    fs = fs.restart()
    path = f"{log.directory}/{base:020}.log"
    fd = fs.open(path)
    sizes = fs.size(fd) // base  # batches are of one size
    position = fs.size(fd) - 2 * sizes + 8
    fs.pwritev(fd, [bytes([fs.pread(fd, 1, position)[0] ^ 0x40])], position)
    fs.close(fd)
    _, log = reopen(fs, SMALL)
    with pytest.raises(DamagedData):
        log.offset_for_timestamp(NOW_MS + 2 * base - 1, 60)
    assert log.offset_for_timestamp(NOW_MS + base, 60) == (base, NOW_MS + base)


@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize("codec", [0, 4])
def test_deleted_records_have_no_largest_timestamp(is_written: bool, codec: int) -> None:
    _, log = new_log(new_disk(), SMALL)
    times = (9, 1, 2, 7, 3)
    append(log, build_batch([NewRecord(b"k", b"v", NOW_MS + t) for t in times], codec=codec))
    append(log, build_batch([NewRecord(b"k", b"v", NOW_MS + 5)]))
    if is_written:
        run_job(log)
    assert log.offset_of_max_timestamp(6) == (0, NOW_MS + 9)
    for start, expected in ((1, (3, 7)), (3, (3, 7)), (4, (5, 5)), (5, (5, 5))):
        log.raise_log_start(start)
        assert log.offset_of_max_timestamp(6) == (expected[0], NOW_MS + expected[1])
    log.raise_log_start(6)
    assert log.offset_of_max_timestamp(6) is None
