"""A log that was set aside is told for what it is, and comes back whole."""

from __future__ import annotations

from dataclasses import replace

from penstock_core.ids import TopicId
from penstock_storage_node.log import LogDirectory, PartitionLog
from penstock_storage_node.log.set_aside_ends import SetAside, find
from support.simulated_fs import SimulatedFileSystem
from unit.storage_node.log.log_model import (
    NOW_MS,
    ROOT,
    SMALL,
    TOPIC_ID,
    append,
    make_batch,
    new_disk,
    open_directory,
    read_all_batches,
    run_job,
)

OTHER_ID = TopicId(b"o" * 16)


def filled(
    directory: LogDirectory, name: str = "t.x-y", batches: int = 30
) -> tuple[PartitionLog, list[bytes]]:
    """A log of several segments, the second half of epoch 3."""
    log = directory.create_log(name, 2, TOPIC_ID, SMALL)
    for number in range(batches):
        append(log, make_batch(3), epoch=3 if number >= batches // 2 else 0)
        run_job(log)
    assert log.segment_count > 1
    return log, read_all_batches(log)


def set_aside(directory: LogDirectory, log: PartitionLog) -> None:
    log.close(clean=True)
    (found,) = [each for each in directory.scan() if each.topic == log.topic]
    directory.set_aside(found, "test")


def look(fs: SimulatedFileSystem) -> list[SetAside]:
    return find(fs, str(ROOT), {})


def test_it_is_told_from_its_files() -> None:
    fs = new_disk()
    directory = open_directory(fs)
    log, _ = filled(directory)
    set_aside(directory, log)
    (told,) = look(fs)
    assert (told.topic, told.partition, told.topic_id) == ("t.x-y", 2, TOPIC_ID)
    assert (told.last_epoch, told.start_offset, told.end_offset) == (3, 0, log.log_end_offset)
    assert told.set_aside_ms == NOW_MS
    assert told.size_bytes == log.size_bytes


def test_an_empty_one_and_one_that_is_damaged_have_less() -> None:
    fs = new_disk()
    directory = open_directory(fs)
    set_aside(directory, directory.create_log("t", 2, TOPIC_ID, SMALL))
    (empty,) = look(fs)
    assert (empty.last_epoch, empty.end_offset) == (-1, 0)
    log, _ = filled(directory, "u")
    set_aside(directory, log)
    whole = next(each for each in look(fs) if each.topic == "u")
    where = f"{ROOT}/{whole.directory}"
    fd = fs.open(f"{where}/{max(name for name in fs.list_directory(where) if name.endswith('.log'))}")
    fs.ftruncate(fd, fs.size(fd) - 1)
    fs.close(fd)
    assert next(each for each in look(fs) if each.topic == "u").end_offset < whole.end_offset


def test_what_is_known_is_not_read_again_and_what_is_gone_is_forgotten() -> None:
    fs = new_disk()
    directory = open_directory(fs)
    log, _ = filled(directory)
    set_aside(directory, log)
    known: dict[str, SetAside | None] = {}
    (told,) = find(fs, str(ROOT), known)
    known[told.directory] = replace(told, last_epoch=99)
    assert [each.last_epoch for each in find(fs, str(ROOT), known)] == [99]
    assert directory.take_back("t.x-y", 2, TOPIC_ID)
    assert find(fs, str(ROOT), known) == [] and known == {}


def test_it_comes_back_whole_after_a_crash_too() -> None:
    fs = new_disk()
    directory = open_directory(fs)
    log, batches = filled(directory)
    set_aside(directory, log)
    assert not directory.take_back("t.x-y", 2, OTHER_ID)
    assert not directory.take_back("t.x-y", 1, TOPIC_ID)
    assert directory.take_back("t.x-y", 2, TOPIC_ID)
    assert not directory.take_back("t.x-y", 2, TOPIC_ID), "it is there"
    back = directory.create_log("t.x-y", 2, TOPIC_ID, SMALL)
    assert read_all_batches(back) == batches
    assert back.last_batch_epoch == 3
    append(back, make_batch(2), epoch=1_003)
    assert directory.offsets.is_marked_compacted(back), "it may have gaps"


def test_it_is_scanned_however_the_last_process_stopped() -> None:
    """That one says nothing of a log that was set aside before it began, by a process that was killed perhaps."""
    fs = new_disk()
    directory = open_directory(fs)
    log, batches = filled(directory)
    set_aside(directory, log)
    directory.close(clean=True)
    directory = open_directory(fs)
    assert directory.was_clean
    (told,) = look(fs)
    where = f"{ROOT}/{told.directory}"
    fd = fs.open(f"{where}/{min(name for name in fs.list_directory(where) if name.endswith('.log'))}")
    at = len(batches[0]) + len(batches[1]) - 1
    fs.pwritev(fd, [bytes([fs.pread(fd, 1, at)[0] ^ 1])], at)
    fs.close(fd)
    assert directory.take_back("t.x-y", 2, TOPIC_ID)
    back = directory.create_log("t.x-y", 2, TOPIC_ID, SMALL)
    assert read_all_batches(back) == batches[:1]


def test_of_several_the_one_that_has_most_comes_back() -> None:
    fs = new_disk()
    directory = open_directory(fs)
    for batches in (20, 30, 24):
        log, _ = filled(directory, batches=batches)
        set_aside(directory, log)
    assert directory.take_back("t.x-y", 2, TOPIC_ID)
    assert directory.create_log("t.x-y", 2, TOPIC_ID, SMALL).log_end_offset == 90


def test_a_parked_log_stays_where_it_is_and_keeps_what_was_noted_of_it() -> None:
    fs = new_disk()
    directory = open_directory(fs)
    log, batches = filled(directory)
    found, again = directory.park(log, log.log_end_offset)
    assert (found.topic, found.partition, found.topic_id) == ("t.x-y", 2, TOPIC_ID)
    assert found.high_watermark == log.log_end_offset
    assert read_all_batches(again) == batches and not again.recovered_from_unclean
    directory.offsets.write([(log, 5)])  # rows that were put together before
    again.close(clean=True)
    directory.close(clean=True)
    restarted = open_directory(fs)
    (scanned,) = restarted.scan()
    assert scanned.high_watermark == log.log_end_offset
    assert read_all_batches(restarted.open_log(scanned, SMALL)) == batches
