"""Crashes: whatever a power cut leaves, an open log is an exact prefix with all that was flushed."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from dataclasses import replace

import pytest

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import PenstockError
from penstock_storage_node.log import Duplicate, PartitionLog
from penstock_storage_node.log.directory import LogDirectory
from support.simulated_fs import (
    SimulatedCrash,
    SimulatedFile,
    SimulatedFileSystem,
    keep_all,
    keep_random,
    keep_synced,
)
from unit.storage_node.log.log_model import (
    NOW_MS,
    SMALL,
    TOPIC_ID,
    Model,
    add,
    append,
    check_prefix,
    make_batch,
    new_disk,
    new_log,
    open_directory,
    read_all_batches,
    reopen,
    run_job,
)

ROUNDS = int(os.environ.get("PENSTOCK_LOG_ROUNDS", "60"))
SEED = int(os.environ.get("PENSTOCK_LOG_SEED", "20251121"))


def two_part_disk(flushed: int, unflushed: int, settings: TopicConfig) -> tuple[SimulatedFileSystem, Model]:
    """A disk with `flushed` batches on it and `unflushed` that were written but not synced."""
    fs = new_disk()
    _, log = new_log(fs, settings)
    model = Model()
    for number in range(flushed):
        add(log, model, make_batch(1 + number % 3, producer=None), epoch=3)
    run_job(log)
    for number in range(unflushed):
        add(log, model, make_batch(1 + number % 3), epoch=5)
    job = log.next_job()
    assert job is not None
    fs.fail_on = lambda call, path: (
        OSError(5, "cut") if call == "fdatasync" and path.endswith(".log") else None
    )
    with pytest.raises(OSError, match="cut"):
        job.run()
    return fs, model


@pytest.mark.parametrize("fate", ["cut", "zeros"])
def test_every_byte_of_the_unsynced_tail(fate: str) -> None:
    settings = TopicConfig(index_interval_bytes=200)
    fs, model = two_part_disk(5, 6, settings)
    flushed = model.batches[5][0].base_offset
    path = "/data/t-0/00000000000000000000.log"
    total = fs.path_size(path)
    start = sum(len(data) for _, data in model.batches[:5])
    ends = [0]
    for info, data in model.batches:
        del info
        ends.append(ends[-1] + len(data))
    assert ends[-1] == total
    for cut in range(start, total + 1):

        def content(name: str, file: SimulatedFile, cut: int = cut) -> bytes:
            if name != path:
                return file.synced
            data = bytes(file.data)
            return data[:cut] if fate == "cut" else data[:cut] + bytes(len(data) - cut)

        _, log = reopen(fs.crash(content), settings)
        check_prefix(log, model, flushed)
        whole = sum(1 for end in ends[1:] if end <= cut)
        expected = model.batches[whole][0].base_offset if whole < len(model.batches) else model.end
        if fate == "cut":
            assert log.log_end_offset == expected
        else:  # zeros may be what the bytes were anyway
            assert log.log_end_offset >= expected
        check_prefix(log, model, flushed)
        # And the log takes appends right there.
        again = replace(model)
        again.batches = list(model.batches)
        again.cut(log.log_end_offset)
        add(log, again, make_batch(2), epoch=7)
        run_job(log)
        again.check(log)


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_any_fate_of_unsynced_writes(seed: int) -> None:
    rng = random.Random(seed)
    fs, model = two_part_disk(rng.randrange(30), rng.randrange(1, 30), SMALL)
    unsynced = [info.base_offset for info, _ in model.batches if info.leader_epoch == 5]
    flushed = unsynced[0]
    disk = fs.crash(keep_random(rng), keep_names=lambda count: rng.randint(0, count))
    _, log = reopen(disk, SMALL)
    check_prefix(log, model, flushed)
    end = log.log_end_offset
    # What was repaired is durable: another crash right away changes nothing.
    _, again = reopen(disk.crash(keep_synced, keep_names=lambda count: 0), SMALL)
    assert again.log_end_offset == end
    check_prefix(again, model, flushed)


def test_one_flipped_bit_cuts_the_log_there() -> None:
    fs = new_disk()
    _, log = new_log(fs, SMALL)
    model = Model()
    for _ in range(40):
        add(log, model, make_batch(2))
    run_job(log)
    rng = random.Random(SEED)
    for _ in range(60):
        victim = rng.randrange(40)
        info, data = model.batches[victim]
        base = max(s for s in (0, *[i.base_offset for i, _ in model.batches]) if s <= info.base_offset)
        del base
        disk = fs.crash()
        for name in disk.list_directory("/data/t-0"):
            fd = disk.open(f"/data/t-0/{name}")
            at = disk.pread(fd, 1 << 20, 0).find(data)
            if name.endswith(".log") and at >= 0:
                position = at + rng.choice([*range(12), *range(16, len(data))])
                (byte,) = disk.pread(fd, 1, position)
                disk.pwritev(fd, [bytes([byte ^ (1 << rng.randrange(8))])], position)
        _, again = reopen(disk, SMALL)
        check_prefix(again, model, 0)
        assert again.log_end_offset == info.base_offset


def test_clean_stop_and_start_scan_nothing() -> None:
    fs = new_disk()
    directory, log = new_log(fs, SMALL)
    model = Model()
    for number in range(50):
        add(
            log,
            model,
            make_batch(1, producer=(9, 0, number), timestamp_ms=NOW_MS + number),
            epoch=number // 9,
        )
    epochs = log.epoch_entries()
    log.close(clean=True)
    directory.offsets.write([(log, 48)])
    directory.close(clean=True)
    assert fs.exists("/data/.kafka_cleanshutdown")
    disk = fs.crash(keep_synced, keep_names=lambda count: 0)
    again, opened = reopen(disk, SMALL)
    assert again.was_clean
    assert not disk.exists("/data/.kafka_cleanshutdown")
    assert not opened.recovered_from_unclean
    assert opened.epoch_entries() == epochs
    assert append(opened, make_batch(1, producer=(9, 0, 49))) == Duplicate(49, 49)
    assert append(opened, make_batch(1, producer=(9, 0, 45))) == Duplicate(45, 45)
    model.check(opened)
    add(opened, model, make_batch(1, producer=(9, 0, 50)), epoch=9)
    run_job(opened)
    model.check(opened)
    assert opened.offset_for_timestamp(NOW_MS + 49, 100) == (49, NOW_MS + 49)


def test_clean_stop_without_new_data_is_idempotent() -> None:
    disk = new_disk()
    directory, log = new_log(disk, SMALL)
    model = Model()
    for _ in range(30):
        add(log, model, make_batch())
    sizes: list[dict[str, int]] = []
    for _ in range(3):
        log.close(clean=True)
        directory.close(clean=True)
        names = disk.list_directory("/data/t-0")
        sizes.append({name: disk.path_size(f"/data/t-0/{name}") for name in names})
        directory, log = reopen(disk, SMALL)
        model.check(log)
    assert sizes[0] == sizes[1] == sizes[2]


@pytest.mark.parametrize("victim", ["index", "timeindex", "snapshot", "leader-epoch-checkpoint"])
@pytest.mark.parametrize("how", ["missing", "garbage", "empty"])
@pytest.mark.parametrize("clean", [True, False])
def test_lost_or_damaged_helper_files_are_rebuilt(victim: str, how: str, clean: bool) -> None:
    fs = new_disk()
    directory, log = new_log(fs, SMALL)
    model = Model()
    for number in range(50):
        add(
            log,
            model,
            make_batch(1, producer=(9, 0, number), timestamp_ms=NOW_MS + number),
            epoch=number // 9,
        )
    run_job(log)
    log.close(clean=clean)
    directory.close(clean=clean)
    for name in fs.list_directory("/data/t-0"):
        path = f"/data/t-0/{name}"
        if name.rpartition(".")[2] != victim:
            continue
        fs.unlink(path)
        if how != "missing":
            fd = fs.create(path)
            if how == "garbage":
                fs.pwritev(fd, [random.Random(SEED).randbytes(37)], 0)
            fs.close(fd)
    _, again = reopen(fs, SMALL)
    model.check(again)
    assert append(again, make_batch(1, producer=(9, 0, 48))) == Duplicate(48, 48)
    assert again.epoch_entries() == model.epoch_starts()
    for wanted in (0, 17, 49):
        assert again.offset_for_timestamp(NOW_MS + wanted, 100) == (wanted, NOW_MS + wanted)


def test_recovery_starts_at_the_recovery_point() -> None:
    fs = new_disk()
    settings = TopicConfig(index_interval_bytes=100)
    directory, log = new_log(fs, settings)
    model = Model()
    for number in range(4000):
        add(log, model, make_batch(1, timestamp_ms=NOW_MS + number))
        if number % 100 == 99:
            run_job(log)
    directory.offsets.write([(log, 4000)])
    assert fs.path_size("/data/t-0/00000000000000000000.index") > 0
    # Damage far below the recovery point is not looked at (readers find it by CRC).
    disk = fs.crash()
    fd = disk.open("/data/t-0/00000000000000000000.log")
    disk.pwritev(fd, [b"\xff"], 70)
    _, again = reopen(disk, settings)
    assert again.recovered_from_unclean
    assert again.log_end_offset == 4000
    assert again.offset_for_timestamp(NOW_MS + 3999, 4000) == (3999, NOW_MS + 3999)
    add(again, model, make_batch(1, timestamp_ms=NOW_MS + 4000))
    run_job(again)
    assert again.log_end_offset == 4001


def test_flushed_data_that_are_gone_show_in_the_flush_point() -> None:
    fs = new_disk()
    directory, log = new_log(fs, SMALL)
    model = Model()
    for _ in range(40):
        add(log, model, make_batch())
    run_job(log)
    directory.offsets.write([(log, 40)])
    name = max(name for name in fs.list_directory("/data/t-0") if name.endswith(".log"))
    fs.ftruncate(fs.open(f"/data/t-0/{name}"), 10)
    disk = fs.crash()
    again_directory, again = reopen(disk, SMALL)
    assert again.flush_point == 40 > again.log_end_offset
    again_directory.reported()
    (found,) = LogDirectory.scan(again_directory)
    assert found.checkpointed.recovery_point == again.log_end_offset  # new, unflushed data must be scanned


def test_truncation_below_the_recovery_point_lowers_it_first() -> None:
    fs = new_disk()
    directory, log = new_log(fs, SMALL)
    model = Model()
    for _ in range(40):
        add(log, model, make_batch(), epoch=1)
    run_job(log)
    directory.offsets.write([(log, 40)])
    log.truncate_to(20)
    model.cut(20)
    for _ in range(20):
        add(log, model, make_batch(value_bytes=21), epoch=2)
    job = log.next_job()
    assert job is not None
    fs.fail_on = lambda call, path: (
        OSError(5, "cut") if call == "fdatasync" and path.endswith(".log") else None
    )
    with pytest.raises(OSError, match="cut"):
        job.run()
    for seed in range(SEED, SEED + 40):
        rng = random.Random(seed)
        _, again = reopen(fs.crash(keep_random(rng), keep_names=lambda count: count), SMALL)
        check_prefix(again, model, 20)


def test_what_a_killed_process_left_unsynced_is_flushed_before_it_counts() -> None:
    fs, model = two_part_disk(4, 20, SMALL)
    disk = fs.restart()
    _, log = reopen(disk, SMALL)
    assert log.flushed_offset == log.log_end_offset == model.end
    _, again = reopen(disk.crash(keep_synced, keep_names=lambda count: 0), SMALL)
    check_prefix(again, model, model.end)


def test_a_torn_epoch_cuts_the_log() -> None:
    fs = new_disk()
    _, log = new_log(fs)
    model = Model()
    for epoch in (300, 300, 301):
        add(log, model, make_batch(2), epoch=epoch)
    run_job(log)
    path = "/data/t-0/00000000000000000000.log"
    position = sum(len(data) for _, data in model.batches[:2])
    for start in (12, 13, 14):
        disk = fs.crash()
        disk.pwritev(disk.open(path), [bytes(16 - start)], position + start)
        _, again = reopen(disk)
        assert again.log_end_offset == 4


def test_the_recovery_point_waits_for_a_closed_segments_indexes() -> None:
    fs = new_disk()
    settings = TopicConfig(segment_bytes=2000, index_interval_bytes=100)
    directory, log = new_log(fs, settings)
    model = Model()
    add(log, model, make_batch(timestamp_ms=NOW_MS))
    log.close(clean=True)
    directory.close(clean=True)
    directory, log = reopen(fs, settings)
    while log.segment_count == 1:
        run_job(log)
        add(log, model, make_batch(timestamp_ms=NOW_MS + 100 - model.end))
    assert log.flushed_offset == log.log_end_offset - 1
    assert log.checkpoint() < log.flushed_offset
    directory.offsets.write([(log, 0)])
    _, again = reopen(fs.crash(keep_synced), settings)
    assert again.offset_of_max_timestamp(100) == (1, NOW_MS + 99)
    run_job(log)
    assert log.checkpoint() == log.flushed_offset == log.log_end_offset


def test_an_offset_index_on_disk_vouches_for_the_time_index() -> None:
    fs = new_disk()
    settings = TopicConfig(index_interval_bytes=0)
    directory, log = new_log(fs, settings)
    model = Model()
    for number in range(1200):
        add(log, model, make_batch(timestamp_ms=NOW_MS + (5000 if number == 300 else number)))
    run_job(log)
    directory.offsets.write([(log, 0)])

    def content(path: str, file: SimulatedFile) -> bytes:
        return file.synced if path.endswith(".timeindex") else bytes(file.data)

    _, again = reopen(fs.crash(content), settings)
    assert again.offset_of_max_timestamp(2000) == (300, NOW_MS + 5000)
    assert again.offset_for_timestamp(NOW_MS + 200, 2000) == (200, NOW_MS + 200)


def scripted(fs: SimulatedFileSystem, progress: dict[str, int], model: Model, settings: TopicConfig) -> None:
    """Appends, rolls, a truncation, checkpoints, a clean stop and a start, in a fixed order."""

    def write(log: PartitionLog) -> None:
        run_job(log)
        progress["floor"] = log.flushed_offset

    directory, log = new_log(fs, settings)
    for number in range(24):
        add(log, model, make_batch(2, timestamp_ms=NOW_MS + number), epoch=number // 10)
        if number % 3 == 2:
            write(log)
        if number == 11:
            directory.offsets.write([(log, log.flushed_offset)])
    cut = 21
    progress["floor"] = 20
    end = log.truncate_to(cut)
    model.cut(end)
    for number in range(12):
        add(log, model, make_batch(1, value_bytes=70, timestamp_ms=NOW_MS + 90 - number), epoch=7)
        if number % 2:
            write(log)
    log.close(clean=True)
    progress["floor"] = model.end
    directory.offsets.write([(log, model.end)])
    directory.close(clean=True)
    _, again = reopen(fs, settings)
    add(again, model, make_batch(3), epoch=8)
    write(again)


def test_a_crash_at_every_system_call() -> None:
    whole = new_disk()
    scripted(whole, {"floor": 0}, Model(), SMALL)
    calls = len(whole.calls)
    assert calls > 150
    for countdown in range(calls):
        fs, model, progress = new_disk(countdown), Model(), {"floor": 0}
        fs.crash_countdown = countdown
        with pytest.raises(SimulatedCrash):
            scripted(fs, progress, model, SMALL)
        rng = random.Random(countdown)
        for content in (keep_all, keep_synced, keep_random(rng)):
            disk = fs.crash(content, keep_names=lambda count: rng.randint(0, count))  # noqa: B023
            directory = open_directory(disk)
            found = directory.scan()
            if not found:
                assert progress["floor"] == 0
                continue
            log = directory.open_log(found[0], SMALL)
            end = log.log_end_offset
            assert end >= progress["floor"]
            stored = read_all_batches(log)
            if end <= model.end:  # before the truncation there may be more than the model has now
                assert stored == [data for info, data in model.batches if info.next_offset <= end]


@pytest.mark.parametrize("seed", range(SEED, SEED + 30))
def test_a_crash_while_old_segments_are_removed(seed: int) -> None:
    rng = random.Random(seed)
    fs = SimulatedFileSystem(rng)
    settings = TopicConfig(segment_bytes=400, retention_bytes=rng.randrange(3000), retention_ms=-1)
    directory, log = new_log(fs, settings)
    model = Model()
    for number in range(80):
        add(log, model, make_batch(1, producer=(4, 0, number)), epoch=number // 10)
    run_job(log)
    directory.offsets.write([(log, 80)])
    work = log.delete_old_segments(80, NOW_MS)
    assert work is not None
    fs.crash_countdown = rng.randrange(200)
    with suppress(SimulatedCrash):
        work()
    disk = fs.crash(keep_random(rng), keep_names=lambda count: rng.randint(0, count))
    _, again = reopen(disk, settings)
    assert again.log_start_offset <= log.log_start_offset
    check_prefix(again, model, 80)
    assert again.epoch_entries()[0][1] == again.log_start_offset
    assert append(again, make_batch(1, producer=(4, 0, 78))) == Duplicate(78, 78)
    assert not [name for name in disk.list_directory("/data/t-0") if name.endswith(".deleted")]


def test_a_partition_that_cannot_be_opened_says_so() -> None:
    fs = new_disk()
    _, log = new_log(fs)
    append(log, make_batch())
    run_job(log)
    disk = fs.crash()
    disk.fail_on = lambda call, path: OSError(5, "broken") if call == "fdatasync" else None
    with pytest.raises(PenstockError, match="can't be opened"):
        reopen(disk)


@pytest.mark.parametrize("is_killed", [False, True])
def test_names_of_a_new_logs_files_are_durable_with_what_is_first_flushed(is_killed: bool) -> None:
    """They are not before: nobody misses an empty log. The next process does not take them for durable either."""
    fs = new_disk()
    _, log = new_log(fs)
    if is_killed:
        fs = fs.restart()
        _, log = reopen(fs)
    append(log, make_batch(2))
    fs.calls.clear()
    run_job(log)
    # By itself, and not because the file of its first epoch happens to be made durable beside it.
    assert [call for call, _ in fs.calls if "sync" in call][-2:] == ["fdatasync", "sync_directory"]
    _, found = reopen(fs.crash(keep_synced, keep_names=lambda _count: 0))
    assert found.log_end_offset == 2
    fs.calls.clear()
    append(log, make_batch(1))
    run_job(log)
    assert [call for call, _ in fs.calls if "sync" in call] == ["fdatasync"]


def test_an_empty_log_whose_files_are_lost_is_made_once_more() -> None:
    fs = new_disk()
    new_log(fs)
    fs = fs.crash(keep_synced, keep_names=lambda _count: 0)
    _, log = reopen(fs)
    assert log.log_end_offset == 0
    append(log, make_batch(3))
    run_job(log)
    _, found = reopen(fs.crash(keep_synced, keep_names=lambda _count: 0))
    assert found.log_end_offset == 3


def test_an_empty_log_costs_three_flushes_and_no_look_at_the_others() -> None:
    """Its topic id and its two names. There may be thousands, all made at once."""
    fs = new_disk()
    directory, _ = new_log(fs)
    directory.take_back("t", 1, TOPIC_ID)
    listed: list[str] = []
    real = fs.list_directory
    fs.list_directory = lambda path: listed.append(path) or real(path)  # type: ignore[method-assign,func-returns-value]
    fs.calls.clear()
    assert not directory.take_back("t", 2, TOPIC_ID)
    directory.create_log("t", 2, TOPIC_ID, TopicConfig())
    assert [call for call, _ in fs.calls if "sync" in call] == [
        "fdatasync",
        "sync_directory",
        "sync_directory",
    ]
    assert str(directory.path) not in listed
    fs.calls.clear()
    reopened = open_directory(fs.restart())
    for found in reopened.scan():
        reopened.open_log(found, TopicConfig())
    assert not [call for call, path in reopened.fs.calls if "sync" in call and "/t-" in path]  # type: ignore[attr-defined]
