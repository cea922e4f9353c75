"""Compaction of a log with transactions: who reads decided records gets every key's last decided value."""

from __future__ import annotations

import json
import os
import random
from dataclasses import asdict, replace

import pytest

from penstock_core.config.topic import TopicConfig
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.markers import read_marker
from penstock_storage_node.log import PartitionLog
from penstock_storage_node.log.aborted_index import encode_entries
from penstock_storage_node.log.compaction.rewrite import Cleaner, DamagedSource
from penstock_storage_node.log.compaction.worker import request_from
from penstock_storage_node.log.transactions import AbortedTransaction
from support.simulated_fs import SimulatedCrash, SimulatedFileSystem, keep_all, keep_random
from unit.storage_node.log.compaction.compaction_model import COMPACT, compact, compact_all
from unit.storage_node.log.log_model import NOW_MS, new_disk, new_log, reopen, run_job
from unit.storage_node.log.transaction_model import (
    TransactionalLog,
    aborted_between,
    committed,
    read_committed,
    stored,
    told_by,
)

ROUNDS = int(os.environ.get("PENSTOCK_LOG_ROUNDS", "12"))
SEED = int(os.environ.get("PENSTOCK_LOG_SEED", "20261125"))
SMALL = replace(COMPACT, segment_bytes=700)
LATER_MS = 10_000
"""Past every delete horizon."""


def new(seed: int, settings: TopicConfig = SMALL) -> tuple[SimulatedFileSystem, TransactionalLog]:
    fs = new_disk(seed)
    _, log = new_log(fs, settings)
    return fs, TransactionalLog(random.Random(seed), log)


def close_segment(t: TransactionalLog) -> None:
    """So that all before it may be compacted, once it is decided."""
    count = t.log.segment_count
    while t.log.segment_count == count:
        t.data(None, transactional=False, keys=1000)
        run_job(t.log)


def put(t: TransactionalLog, key: bytes, value: bytes, producer: int) -> None:
    """One record in the producer's transaction."""
    writer = t.producers[producer]
    t.add(
        build_batch(
            [NewRecord(key, value, NOW_MS)],
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            base_sequence=writer.sequence,
            transactional=True,
        )
    )
    writer.sequence += 1


def last_values(log: PartitionLog) -> dict[bytes, bytes]:
    """By key, what a reader of decided records has at the end; deleted keys are not there."""
    found: dict[bytes, bytes] = {}
    for _, key, value in read_committed(log, log.log_end_offset, 1 << 14):
        assert key is not None
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found


def expected_values(t: TransactionalLog) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for _, key, value in committed(t.model.batches, t.log.last_stable_offset(t.log.log_end_offset)):
        assert key is not None
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found


def check(t: TransactionalLog, fs: SimulatedFileSystem) -> None:
    """Values, what is open, and that entries of aborted indexes and markers go together."""
    log, told = t.log, t.told
    log.validate()
    assert last_values(log) == expected_values(t)
    assert log.first_open_transaction == min(told.open.values(), default=None)
    left = stored(log)
    # What is there says the same: nothing is open for ever, in Kafka neither.
    assert told_by(left).open.keys() == told.open.keys()
    markers = {
        info.base_offset
        for info, data in left
        if info.is_control and (marker := read_marker(data, info)) is not None and not marker.commits
    }
    entries = {row.last_offset: row for row in aborted_between(log, 0, log.log_end_offset + 1)}
    assert entries.keys() <= markers
    for row in told_by(left).aborted:  # of whose records some are left
        entry = entries[row.last_offset]
        assert entry.producer_id == row.producer_id and entry.first_offset <= row.first_offset
    batches_of = {(info.producer_id, info.base_offset) for info, _ in left if not info.is_control}
    for row in told.aborted:
        if row.last_offset not in markers:
            # Its marker is gone, so every batch of it is, those without a record too.
            assert not [
                base
                for producer, base in batches_of
                if producer == row.producer_id and row.first_offset <= base < row.last_offset
            ]
    assert not [name for name in fs.list_directory(str(log.directory)) if name.endswith(".cleaned")]


# ---------------------------------------------------------------------- three faults that were


def test_an_aborted_value_replaces_no_committed_one_though_its_marker_stands_in_the_active_segment() -> None:
    fs, t = new(1)
    put(t, b"key", b"committed", 0)
    t.end(t.producers[0], commits=True)
    put(t, b"key", b"aborted", 1)
    close_segment(t)
    t.end(t.producers[1], commits=False)
    run_job(t.log)
    assert t.log.segments[-1].base_offset <= t.told.aborted[0].last_offset
    assert compact(fs, t.log) is not None
    assert last_values(t.log)[b"key"] == b"committed"
    check(t, fs)


def test_what_a_killed_worker_left_of_an_aborted_index_is_not_taken_for_the_new_segments() -> None:
    """Its entry would outlive its marker: readers would leave out what the producer has committed since."""
    fs = new_disk()
    directory, log = new_log(fs, SMALL)
    t = TransactionalLog(random.Random(1), log)
    for number in range(4):
        put(t, b"key", b"%d" % number, 0)
    t.end(t.producers[0], commits=True)
    close_segment(t)
    row = AbortedTransaction(t.producers[0].producer_id, 0, 4, 5)
    left = fs.create(f"{log.segments[0].path[:-4]}.txnindex.cleaned")
    fs.pwritev(left, [encode_entries([row])], 0)
    assert compact(fs, log) is not None
    check(t, fs)
    log.close(clean=True)
    directory.offsets.write([(log, log.log_end_offset)])
    directory.close(clean=True)
    _, again = reopen(fs.restart(), SMALL)
    assert last_values(again)[b"key"] == b"3"
    assert not aborted_between(again, 0, again.log_end_offset)


def test_a_marker_stays_while_a_batch_without_records_does() -> None:
    """The batch with a producer's last sequence stays, empty: without its marker it would be open for ever."""
    fs, t = new(2)
    put(t, b"key", b"one", 0)
    t.end(t.producers[0], commits=False)
    put(t, b"key", b"two", 1)
    t.end(t.producers[1], commits=True)
    close_segment(t)
    run_job(t.log)
    now_ms = NOW_MS
    for _ in range(4):
        done = compact(fs, t.log, now_ms=now_ms)
        now_ms += LATER_MS
        if done is None:
            break
        close_segment(t)
    emptied = [info for info, _ in stored(t.log) if not info.is_control and not info.record_count]
    assert t.producers[0].producer_id in {info.producer_id for info in emptied}
    check(t, fs)
    _, t.log = reopen(fs.crash(keep_all), SMALL)
    assert t.log.first_open_transaction is None


def test_a_producers_many_markers_are_not_walked_for_each_batch() -> None:
    """By what is looked at, not by time: rows compared per batch grow with the logarithm."""
    fs, t = new(3, replace(COMPACT, segment_bytes=200_000))
    for _ in range(400):
        put(t, b"key", b"v", 0)
        t.end(t.producers[0], commits=False)
    run_job(t.log)
    t.log._data.close_active_segment(NOW_MS)
    run_job(t.log)
    plan = t.log.plan_cleaning(0, t.log.last_stable_offset(t.log.log_end_offset), NOW_MS)
    assert plan is not None
    cleaner = Cleaner(fs, t.log.cleaning_request(plan, NOW_MS, 1 << 16))
    looked_at = 0

    class Counted(list):  # type: ignore[type-arg]
        def __getitem__(self, index):  # type: ignore[no-untyped-def]
            nonlocal looked_at
            looked_at += 1
            return super().__getitem__(index)

        def __iter__(self):  # type: ignore[no-untyped-def]
            nonlocal looked_at
            looked_at += len(self)
            return super().__iter__()

    cleaner._aborted = {producer: Counted(rows) for producer, rows in cleaner._aborted.items()}
    list(cleaner.run())
    batches = 800
    assert looked_at <= 40 * batches


# ---------------------------------------------------------------------- any history


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_any_history_against_all_batches(seed: int) -> None:
    rng = random.Random(seed)
    fs, t = new(seed)
    cleaned_until = high_watermark = 0
    now_ms = NOW_MS
    for _ in range(25):
        for _ in range(rng.randrange(12)):
            t.any_step()
        while run_job(t.log):
            pass
        choice = rng.random()
        if choice < 0.6:
            if rng.random() < 0.5:
                close_segment(t)
            cleaned_until = compact_all(fs, t.log, cleaned_until, now_ms=now_ms)
            high_watermark = t.log.log_end_offset  # nothing below it is ever cut
            now_ms += rng.choice((0, 500, LATER_MS))
        elif choice < 0.75:
            fs = fs.crash(keep_random(rng), keep_names=lambda count: rng.randint(0, count))
            _, t.log = reopen(fs, SMALL)
            t.cut(t.log.log_end_offset)
        elif choice < 0.85:
            t.cut(t.log.truncate_to(rng.randint(high_watermark, t.log.log_end_offset)))
        check(t, fs)
    assert read_committed(t.log, t.log.log_end_offset) == read_committed(t.log, t.log.log_end_offset, 1)


@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_a_crash_at_every_change_of_the_disk(seed: int) -> None:
    def filled() -> tuple[SimulatedFileSystem, TransactionalLog]:
        fs, t = new(seed)
        for _ in range(40):
            t.any_step()
            run_job(t.log)
        for producer in t.producers:
            t.end(producer, commits=t.rng.random() < 0.5)
        close_segment(t)
        return fs, t

    fs, t = filled()
    made = len(fs.calls)
    compact_all(fs, t.log, now_ms=NOW_MS)
    changes = len(fs.calls) - made
    assert changes > 20
    rng = random.Random(seed)
    for countdown in range(rng.randrange(5), changes, 5):
        fs, t = filled()
        fs.crash_countdown = countdown
        with pytest.raises(SimulatedCrash):
            compact_all(fs, t.log, now_ms=NOW_MS)
        disk = fs.crash(keep_random(rng), keep_names=lambda count: rng.randint(0, count))
        _, t.log = reopen(disk, SMALL)
        assert t.log.log_end_offset == t.model.end
        check_no_leftovers(t, disk)


def check_no_leftovers(t: TransactionalLog, fs: SimulatedFileSystem) -> None:
    check(t, fs)
    names = fs.list_directory(str(t.log.directory))
    assert not [name for name in names if name.endswith((".swap", ".cleaned"))]


# ---------------------------------------------------------------------- what the worker hears


def test_a_request_survives_json() -> None:
    _, t = new(5)
    put(t, b"key", b"aborted", 1)
    close_segment(t)
    t.end(t.producers[1], commits=False)
    close_segment(t)
    plan = t.log.plan_cleaning(0, t.log.log_end_offset, NOW_MS)
    assert plan is not None
    request = t.log.cleaning_request(plan, NOW_MS, 1 << 16)
    assert request.aborted
    assert request_from(json.loads(json.dumps(asdict(request)))) == request


def test_records_whose_abort_no_index_has_are_not_taken_for_committed() -> None:
    fs, t = new(6)
    put(t, b"key", b"aborted", 1)
    t.end(t.producers[1], commits=False)
    close_segment(t)
    plan = t.log.plan_cleaning(0, t.log.log_end_offset, NOW_MS)
    assert plan is not None
    request = t.log.cleaning_request(plan, NOW_MS, 1 << 16)
    with pytest.raises(DamagedSource, match="no aborted index has the marker at offset 1"):
        list(Cleaner(fs, replace(request, aborted=())).run())
