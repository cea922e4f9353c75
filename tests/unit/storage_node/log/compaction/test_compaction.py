"""Compaction against a dict, and against crashes at every change of the disk."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from penstock_core.config.topic import LONG_MAX, TopicConfig
from penstock_kafka.records.batch import DELETE_HORIZON_BIT, is_crc_valid, iter_batches, read_header
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.read import read_records
from penstock_kafka.records.recompress import recompress
from penstock_storage_node.log import Appended, Duplicate, reading, segment
from penstock_storage_node.log.compaction import record_filter
from penstock_storage_node.log.compaction.offset_map import NOT_FOUND, OffsetMap
from penstock_storage_node.log.compaction.record_filter import BatchTooLarge, filter_batch
from penstock_storage_node.log.compaction.rewrite import Cleaner, DamagedSource
from support.simulated_fs import SimulatedCrash, SimulatedFileSystem, keep_all, keep_random, keep_synced
from unit.storage_node.log.compaction.compaction_model import (
    COMPACT,
    Expected,
    batch_of,
    compact,
    compact_all,
    fill,
    latest,
    records,
    roll,
)
from unit.storage_node.log.log_model import (
    NOW_MS,
    append,
    new_disk,
    new_log,
    read,
    read_all_batches,
    reopen,
    run_job,
)

ROUNDS = int(os.environ.get("PENSTOCK_LOG_ROUNDS", "25"))
SEED = int(os.environ.get("PENSTOCK_LOG_SEED", "20261121"))
BATCH_BYTES_MAX = 8 * 1024 * 1024


# ---------------------------------------------------------------------- the parts


def test_offset_map_is_a_dict_of_bounded_size() -> None:
    rng = random.Random(SEED)
    table, model = OffsetMap(24 * 100), dict[bytes, int]()
    for offset in range(2_000):
        key = b"key-%d" % rng.randrange(150)
        fits = key in model or len(model) < table.capacity
        assert table.put(key, offset) == fits
        if fits:
            model[key] = offset
    assert table.count == len(model) == table.capacity == 90
    for number in range(150):
        key = b"key-%d" % number
        assert table.get(key) == model.get(key, NOT_FOUND)


def test_last_values_stay_and_offsets_do_not_move() -> None:
    fs = new_disk()
    _, log = new_log(fs, COMPACT)
    expected, rng = Expected(), random.Random(7)
    fill(log, rng, expected, 120)
    before, segments = log.size_bytes, log.segment_count
    stats = compact(fs, log)
    assert stats is not None and stats.records_out < stats.records_in
    assert log.size_bytes < before / 2
    expected.check(log)
    # The next run puts what is left of them together.
    fill(log, rng, expected, 20)
    compact_all(fs, log, cleaned_until=stats.cleaned_until)
    assert log.segment_count < segments / 2
    expected.check(log)
    # Reads at every offset answer with the batch that holds it, or the next one, and go on to one with a record.
    for offset in range(expected.end):
        batches = list(iter_batches(b"".join(read(log, offset, 1, expected.end).buffers)))
        assert batches[0].last_offset >= offset
        assert [batch.record_count > 0 for batch in batches] == [False] * (len(batches) - 1) + [True]
    again = reopen(fs.crash(keep_synced, keep_names=lambda count: 0), COMPACT)[1]
    assert read_all_batches(again) == read_all_batches(log)


def test_a_run_that_finds_nothing_to_remove_changes_no_file() -> None:
    fs = new_disk()
    _, log = new_log(fs, COMPACT)
    for number in range(60):
        append(log, batch_of((b"unique-%d" % number, bytes(100))))
    run_job(log)
    wide = replace(COMPACT, segment_bytes=200)  # nothing can be put together
    log.update_settings(wide)
    before = log.segment_count
    fs.calls.clear()
    stats = compact(fs, log)
    assert stats is not None and stats.records_in == stats.records_out
    assert log.segment_count == before
    assert not [call for call in fs.calls if call[0] == "rename"]


def test_tombstones_go_after_their_time_and_not_before() -> None:
    fs = new_disk()
    _, log = new_log(fs, COMPACT)
    append(log, batch_of((b"a", b"1"), (b"b", b"1")))
    append(log, batch_of((b"a", None), (b"c", b"1")))
    roll(log)
    roll(log)
    compact(fs, log)
    found = latest(log)
    assert found[b"a"] == (2, None) and found[b"b"] == (1, b"1")
    (info,) = {i.base_offset: i for i, r in records(log) if r.key == b"a"}.values()
    assert info.attributes & DELETE_HORIZON_BIT and info.base_timestamp == NOW_MS + 1000
    assert {r.key: r.timestamp_ms for _, r in records(log) if r.key in (b"a", b"c")} == {
        b"a": NOW_MS, b"c": NOW_MS + 1,
    }  # fmt: skip
    compact(fs, log, now_ms=NOW_MS + 999)
    assert latest(log)[b"a"] == (2, None)
    compact(fs, log, now_ms=NOW_MS + 1000)
    found = latest(log)
    assert b"a" not in found and found[b"c"] == (3, b"1") and found[b"b"] == (1, b"1")


def test_a_batch_without_room_for_a_delete_horizon_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the largest batch nobody reads it, and recovery would cut the log there."""
    for module in (record_filter, reading, segment):
        monkeypatch.setattr(module, "BATCH_BYTES_MAX", BATCH_BYTES_MAX)
    settings = replace(COMPACT, max_message_bytes=BATCH_BYTES_MAX, segment_bytes=BATCH_BYTES_MAX + 5000)
    tombstones: list[tuple[bytes, bytes | None]] = [(b"t%d" % number, None) for number in range(100)]
    spare = BATCH_BYTES_MAX - len(batch_of(*tombstones, (b"large", bytes(5_000_000)))) + 5_000_000
    full = batch_of(*tombstones, (b"large", bytes(spare)))
    assert len(full) == BATCH_BYTES_MAX
    fs = new_disk()
    directory, log = new_log(fs, settings)
    append(log, batch_of((b"t0", b"old")))
    append(log, full)
    append(log, batch_of((b"roll", bytes(100_000))))
    run_job(log)
    append(log, batch_of((b"last", b"acked")))
    run_job(log)
    before = read_all_batches(log, 1 << 20)
    for _ in range(2):
        stats = compact(fs, log)
        assert stats is not None and stats.records_out == stats.records_in - (1 if _ == 0 else 0)
        assert [b for b in read_all_batches(log, 1 << 20) if read_header(b).record_count] == before[1:]
    directory.offsets.write([])
    again = reopen(fs.crash(keep_synced, keep_names=lambda count: 0), settings)[1]
    assert again.log_end_offset == log.log_end_offset
    assert read_all_batches(again, 1 << 20) == read_all_batches(log, 1 << 20)
    # The same records with room for it get their horizon, and go.
    append(log, batch_of((b"large", b"small now")))
    append(log, batch_of((b"roll", bytes(BATCH_BYTES_MAX - 200))))
    run_job(log)
    append(log, batch_of((b"roll", bytes(10_000))))
    run_job(log)
    compact(fs, log)
    horizons = [read_header(b).attributes & DELETE_HORIZON_BIT for b in read_all_batches(log, 1 << 20)]
    assert any(horizons)
    compact(fs, log, now_ms=NOW_MS + 1001)
    assert not [key for key in latest(log) if key.startswith(b"t")]


def filtered(batch: bytes, *gone: bytes) -> bytes:
    """What filter_batch leaves of a batch without these keys."""
    left = filter_batch(
        memoryview(batch),
        read_header(batch),
        lambda record: bytes(record.key) not in gone,
        new_horizon_ms=NOW_MS,
        keep_empty=False,
    )
    assert left.data is not None and left.is_changed
    return left.data


def test_what_compresses_too_well_to_be_believed_is_written_otherwise() -> None:
    """Less its one random record a batch of zeros would look like a bomb to every reader of ours."""
    rng = random.Random(SEED)
    for codec in (2, 3, 4):
        rows = [(b"random", rng.randbytes(60_000)), *((b"z%d" % n, bytes(500_000)) for n in range(20))]
        left = filtered(batch_of(*rows, codec=codec), b"random")
        info = read_header(left)
        assert is_crc_valid(left) and info.base_timestamp == NOW_MS
        assert [(r.offset, r.key, r.timestamp_ms) for r in read_records(left)] == [
            (1 + n, b"z%d" % n, NOW_MS + 1 + n) for n in range(20)
        ]
    assert info.compression == 1  # gzip can't do better than readers believe


def test_what_compresses_worse_than_its_producer_did_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(SEED)
    words = [b"%06x" % rng.randrange(1 << 24) for _ in range(500)]
    rows = [(b"k%d" % n, b" ".join(rng.choices(words, k=50))) for n in range(500)]
    batch = recompress(batch_of((b"tiny", b"x"), *rows), 4, 19)
    assert len(filtered(batch, b"tiny")) > len(batch)  # at the level of compaction
    monkeypatch.setattr(record_filter, "BATCH_BYTES_MAX", len(batch))
    left = filtered(batch, b"tiny")
    assert len(left) <= len(batch) and read_header(left).compression == 4
    assert [(r.offset, r.key, r.value) for r in read_records(left)] == [
        (offset, *row) for offset, row in enumerate(rows, 1)
    ]
    monkeypatch.setattr(record_filter, "BATCH_BYTES_MAX", 1000)
    with pytest.raises(BatchTooLarge, match="500 records of the batch at offset 0"):
        filtered(batch, b"tiny")


def test_tombstones_that_are_kept_for_ever() -> None:
    """delete.retention.ms may be the largest there is, and a timestamp the smallest."""
    settings = replace(COMPACT, delete_retention_ms=LONG_MAX)
    fs = new_disk()
    _, log = new_log(fs, settings)
    append(log, batch_of((b"a", None), (b"b", None)))
    append(log, build_batch([NewRecord(b"c", None, -5)]))
    roll(log)
    roll(log)
    stats = compact(fs, log)
    assert stats is not None
    found = {record.key: (info, record) for info, record in records(log)}
    assert found[b"b"][0].base_timestamp == LONG_MAX and found[b"b"][1].timestamp_ms == NOW_MS + 1
    assert found[b"c"][0].base_timestamp == found[b"c"][1].timestamp_ms == -5  # 64 bits hold no horizon
    compact(fs, log, now_ms=LONG_MAX // 2)
    assert found.keys() <= {record.key for _, record in records(log)}


def test_nothing_past_the_high_watermark_nor_the_lag_nor_in_the_active_segment() -> None:
    fs = new_disk()
    _, log = new_log(fs, COMPACT)
    for _ in range(30):
        append(log, batch_of((b"k", bytes(300))))
    run_job(log)
    stats = compact(fs, log, high_watermark=10)
    assert stats is not None and stats.cleaned_until <= 10
    offsets = [record.offset for _, record in records(log)]
    assert offsets[-(30 - stats.cleaned_until) :] == list(range(stats.cleaned_until, 30))
    assert offsets[0] == stats.cleaned_until - 1 or len(offsets) == 30 - stats.cleaned_until + 1
    log.update_settings(replace(COMPACT, min_compaction_lag_ms=1000))
    assert log.plan_cleaning(stats.cleaned_until, 30, NOW_MS + 500) is None
    log.update_settings(replace(COMPACT, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000))
    plan = log.plan_cleaning(stats.cleaned_until, 30, NOW_MS + 500)
    assert plan is not None and plan.is_due is False
    plan = log.plan_cleaning(stats.cleaned_until, 30, NOW_MS + 1500)
    assert plan is not None and plan.is_due and plan.must


def test_sequences_survive_the_loss_of_all_records() -> None:
    fs = new_disk()
    _, log = new_log(fs, COMPACT)
    mine = batch_of((b"k", b"1"), (b"k", b"2"), producer=(7, 0, 0))
    append(log, mine)
    for _ in range(12):
        append(log, batch_of((b"k", bytes(300))))
    run_job(log)
    compact_all(fs, log)
    kept = [read_header(batch) for batch in read_all_batches(log)]
    assert [(i.base_offset, i.last_offset, i.record_count) for i in kept if i.producer_id == 7] == [(0, 1, 0)]
    directory, again = reopen(fs.crash(keep_synced, keep_names=lambda count: 0), COMPACT)
    del directory
    assert isinstance(append(again, mine), Duplicate)
    assert isinstance(append(again, batch_of((b"k", b"3"), producer=(7, 0, 2))), Appended)


def test_a_small_map_takes_several_runs() -> None:
    fs = new_disk()
    _, log = new_log(fs, COMPACT)
    expected, rng = Expected(), random.Random(3)
    fill(log, rng, expected, 150, keys=60)
    runs, done = 0, 0
    while (stats := compact(fs, log, cleaned_until=done, map_bytes=24 * 12)) is not None:
        assert stats.cleaned_until > done and stats.map_keys <= 10
        done, runs = stats.cleaned_until, runs + 1
        expected.check(log)
    assert runs > 3
    expected.check(log)


def test_damage_is_left_alone() -> None:
    fs = new_disk()
    _, log = new_log(fs, COMPACT)
    for _ in range(20):
        append(log, batch_of((b"k", bytes(300))))
    run_job(log)
    fd = fs.open("/data/t-0/00000000000000000000.log")
    fs.pwritev(fd, [b"\xff"], 200)
    with pytest.raises(DamagedSource, match="CRC"):
        compact(fs, log)
    assert not [name for name in fs.list_directory("/data/t-0") if "cleaned" in name]


def test_a_log_that_changed_meanwhile_keeps_its_segments() -> None:
    fs = new_disk()
    _, log = new_log(fs, replace(COMPACT, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=10))
    for _ in range(20):
        append(log, batch_of((b"k", bytes(300))))
    run_job(log)
    plan = log.plan_cleaning(0, 20, NOW_MS)
    assert plan is not None
    groups = Cleaner(fs, log.cleaning_request(plan, NOW_MS, 4096)).run()
    group = next(groups)
    remove = log.delete_old_segments(20, NOW_MS + 1000)
    assert remove is not None
    remove()
    assert not log.swap_files(group, list(plan.sources)[: len(group.sources)], plan)


# ---------------------------------------------------------------------- models and crashes


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_any_history_against_a_dict(seed: int) -> None:
    """Appends, runs with any map size and clock, clean and unclean restarts."""
    rng = random.Random(seed)
    fs = new_disk(seed)
    settings = replace(COMPACT, segment_bytes=rng.choice((600, 1500, 5000)))
    directory, log = new_log(fs, settings)
    expected, now_ms, done = Expected(), NOW_MS, 0
    for _ in range(rng.randint(3, 9)):
        fill(log, rng, expected, rng.randint(1, 40), keys=rng.choice((2, 12, 80)))
        now_ms += rng.choice((0, 10, 5000))
        stats = compact(
            fs,
            log,
            now_ms=now_ms,
            cleaned_until=done,
            high_watermark=rng.randint(0, log.log_end_offset),
            map_bytes=rng.choice((24 * 4, 24 * 40, 1 << 14)),
        )
        if stats is not None:
            done = stats.cleaned_until
        expected.check(log, tombstones_may_go=True)
        if rng.random() < 0.3:
            if rng.random() < 0.5:
                log.close(clean=True)
                directory.offsets.write([(log, log.log_end_offset)])
                directory.close(clean=True)
                fs = fs.crash(keep_synced)
            else:
                fs = fs.crash(keep_random(rng), keep_names=lambda count: rng.randint(0, count))
            directory, log = reopen(fs, settings)
            log.update_settings(settings)
            expected.check(log, tombstones_may_go=True)


SMALL = replace(COMPACT, segment_bytes=500)


def crash_at_every_step(seed: int, prepare: str) -> Iterator[tuple[SimulatedFileSystem, Expected]]:
    """Disks at each change of the disk during a run, as the process left them."""
    rng = random.Random(seed)
    disk = new_disk(seed)
    directory, log = new_log(disk, SMALL)
    expected = Expected()
    fill(log, rng, expected, 16, keys=4, codecs=(0,))
    if prepare == "compacted":
        compact_all(disk, log)
        fill(log, rng, expected, 10, keys=4, codecs=(0,))
    if prepare == "checkpointed":
        directory.offsets.write([(log, log.log_end_offset)])
    step = 0
    while True:
        fs = disk.crash(keep_all)
        log = reopen(fs, SMALL)[1]
        fs.crash_countdown = step
        try:
            compact(fs, log, now_ms=NOW_MS + 5000)
        except SimulatedCrash:
            fs.crash_countdown = None
            yield fs, expected
        else:
            return
        step += 1


@pytest.mark.parametrize("prepare", ["fresh", "compacted", "checkpointed"])
def test_a_crash_at_every_change_of_the_disk(prepare: str) -> None:
    points = 0
    for fs, expected in crash_at_every_step(SEED, prepare):
        rng = random.Random(points)
        for fate in range(2 if points % 3 == 0 else 1):
            content = keep_synced if fate == 0 else keep_random(rng)
            names = (lambda count: 0) if fate == 0 else partial(rng.randint, 0)
            disk = fs.crash(content, keep_names=names)
            _, log = reopen(disk, TopicConfig() if fate else SMALL)
            expected.check(log, tombstones_may_go=True)
            left = [name for name in disk.list_directory("/data/t-0") if name.count(".") > 1]
            assert not left
            if points % 5 == 0:
                log.update_settings(SMALL)
                compact_all(disk, log, now_ms=NOW_MS + 20_000)
                expected.check(log, tombstones_may_go=True)
            # And the repair itself is durable.
            _, again = reopen(disk.crash(keep_synced, keep_names=lambda count: 0), COMPACT)
            expected.check(again, tombstones_may_go=True)
        points += 1
    assert points > 20
    print(f"{points} crash points, seed {SEED}")


def test_a_crash_during_recovery_of_a_swap() -> None:
    rng = random.Random(SEED)
    crashes = 0
    for fs, expected in crash_at_every_step(SEED, "fresh"):
        if not any(".swap" in name for name in fs.list_directory("/data/t-0")):
            continue
        for step in range(0, 200, 11):
            disk = fs.crash(keep_random(rng), keep_names=lambda count: rng.randint(0, count))
            disk.crash_countdown = step
            try:
                reopen(disk, COMPACT)
            except SimulatedCrash:
                pass
            else:
                break
            disk.crash_countdown = None
            second = disk.crash(keep_random(rng), keep_names=lambda count: rng.randint(0, count))
            _, log = reopen(second, COMPACT)
            expected.check(log, tombstones_may_go=True)
            crashes += 1
    print(f"{crashes} crashes, seed {SEED}")
    assert crashes > 5


@pytest.mark.parametrize("still_compacted", [True, False])
def test_a_follower_takes_gaps_over_and_keeps_them_through_a_crash(still_compacted: bool) -> None:
    fs = new_disk()
    _, leader = new_log(fs, COMPACT)
    expected = Expected()
    fill(leader, random.Random(5), expected, 120, keys=5)
    compact_all(fs, leader)
    stored = read_all_batches(leader)
    disk = new_disk(2)
    # A topic that is not compacted any more keeps its gaps, also on nodes that come new to it.
    _, follower = new_log(disk, COMPACT if still_compacted else TopicConfig())
    rng = random.Random(6)
    position = 0
    while position < len(stored):
        count = rng.randint(1, 4)
        base_offset = follower.log_end_offset
        follower.append_as_follower(b"".join(stored[position : position + count]), 9, base_offset=base_offset)
        position += count
        with suppress(IndexError):
            run_job(follower)
    assert read_all_batches(follower) == stored
    # Its settings are not known yet when it is opened after a crash, and nothing was checkpointed.
    _, again = reopen(disk.crash(keep_synced, keep_names=lambda count: 0), TopicConfig())
    assert read_all_batches(again) == stored
    expected.check(again)
    middle = read_header(stored[len(stored) // 2]).base_offset
    again.truncate_to(middle)
    assert again.log_end_offset <= middle
    assert read_all_batches(again) == [b for b in stored if read_header(b).last_offset < middle]


def test_delete_records_and_a_crash_at_every_change_of_the_disk() -> None:
    """What was deleted stays deleted once that was said, and nothing else is."""
    settings = TopicConfig(segment_bytes=600, index_interval_bytes=150)
    base = new_disk()
    directory, log = new_log(base, settings)
    for _ in range(30):
        append(log, batch_of((b"k", bytes(100)), (b"l", bytes(100))))
    run_job(log)
    directory.offsets.write([(log, 60)])
    stored = read_all_batches(log)
    rng = random.Random(SEED)
    step = 0
    while True:
        fs = base.crash(keep_all)
        directory, log = reopen(fs, settings)
        said = crashed = False
        fs.crash_countdown = step
        try:
            log.raise_log_start(37)
            directory.offsets.write_log_start(log)
            said = True
            remove = log.delete_old_segments(60, NOW_MS)
            assert remove is not None
            remove()
        except SimulatedCrash:
            crashed = True
        fs.crash_countdown = None
        for strict in (True, False):
            disk = fs.crash(
                keep_synced if strict else keep_random(rng),
                keep_names=(lambda count: 0) if strict else partial(rng.randint, 0),
            )
            _, again = reopen(disk, settings)
            assert again.log_end_offset == 60
            assert again.log_start_offset in ((37,) if said else (0, 37))
            first = again.log_start_offset
            assert read_all_batches(again) == [b for b in stored if read_header(b).last_offset >= first]
        if not crashed:
            break
        step += 1
    assert step > 10


def test_truncation_of_a_compacted_log_and_a_crash_at_every_change_of_the_disk() -> None:
    """A prefix of whole batches is left, never less than what was to be kept; no old value comes back."""
    base = new_disk()
    _, log = new_log(base, SMALL)
    fill(log, random.Random(9), Expected(), 30, keys=4, codecs=(0,))
    compact_all(base, log)
    for _ in range(12):
        append(log, batch_of((b"new", bytes(90))), epoch=1)
    run_job(log)
    stored = read_all_batches(log)
    rng = random.Random(SEED)
    for target in (log.log_end_offset - 7, read_header(stored[len(stored) // 3]).base_offset):
        kept = [b for b in stored if read_header(b).last_offset < target]
        step, crashed = 0, True
        while crashed:
            fs = base.crash(keep_all)
            _, log = reopen(fs, SMALL)
            fs.crash_countdown = step
            crashed = False
            try:
                log.truncate_to(target)
            except SimulatedCrash:
                crashed = True
            fs.crash_countdown = None
            disk = fs.crash(keep_random(rng), keep_names=partial(rng.randint, 0))
            _, again = reopen(disk, TopicConfig())
            left = read_all_batches(again)
            assert left == stored[: len(left)] and len(left) >= len(kept)
            assert crashed or left == kept
            step += 1
