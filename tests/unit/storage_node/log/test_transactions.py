"""Open, committed and aborted transactions in a log: last stable offset, aborted index, through cuts and crashes."""

from __future__ import annotations

import os
import random
import struct
from dataclasses import replace

import pytest

from penstock_core.errors import ErrorCode, PenstockError
from penstock_kafka.records.batch import read_header
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.markers import Marker, build_marker, read_marker
from penstock_storage_node.log.aborted_index import (
    AbortedRows,
    DamagedIndex,
    decode_entries,
    encode_entries,
)
from penstock_storage_node.log.producer_state import Origin
from penstock_storage_node.log.transactions import AbortedTransaction, TransactionOffsets
from support.simulated_fs import (
    SimulatedCrash,
    SimulatedFileSystem,
    keep_all,
    keep_random,
    keep_synced,
)
from unit.storage_node.log.log_model import NOW_MS, new_disk, new_log, reopen, run_job
from unit.storage_node.log.transaction_model import (
    SMALL,
    Producer,
    TransactionalLog,
    aborted_between,
    committed,
    read_committed,
    stored,
    told_by,
)

ROUNDS = int(os.environ.get("PENSTOCK_LOG_ROUNDS", "12"))
SEED = int(os.environ.get("PENSTOCK_LOG_SEED", "20261125"))


def transactional(seed: int) -> tuple[SimulatedFileSystem, TransactionalLog]:
    fs = new_disk(seed)
    _, log = new_log(fs, SMALL)
    return fs, TransactionalLog(random.Random(seed), log)


def stopped(fs: SimulatedFileSystem) -> SimulatedFileSystem:
    """The disk after the process has ended without a word."""
    return fs.crash(keep_all)


# ---------------------------------------------------------------------- markers


def test_a_marker_has_kafkas_bytes() -> None:
    batch = build_marker(7, 2, Marker(commits=True, coordinator_epoch=9), NOW_MS)
    info = read_header(batch)
    assert (info.attributes, info.base_sequence, info.record_count) == (0x30, -1, 1)
    assert batch[61:] == bytes.fromhex("20 00 00 00 08 0000 0001 0c 0000 00000009 00")
    assert read_marker(batch, info) == Marker(commits=True, coordinator_epoch=9)
    abort = build_marker(7, 2, Marker(commits=False, coordinator_epoch=-1), NOW_MS)
    assert read_marker(b"xyz" + abort, replace(read_header(abort), position=3), 3) == Marker(False, -1)


def test_what_is_no_marker_ends_nothing() -> None:
    def control(key: bytes, value: bytes | None) -> bytes:
        return build_batch([NewRecord(key, value, NOW_MS)], producer_id=1, transactional=True, control=True)

    leader_change = control(struct.pack(">hh", 0, 2), b"\0" * 20)
    assert read_marker(leader_change, read_header(leader_change)) is None
    data = build_batch([NewRecord(b"\0\0\0\1", b"\0" * 6, NOW_MS)], producer_id=1, transactional=True)
    assert read_marker(data, read_header(data)) is None
    longer = control(struct.pack(">hhi", 1, 1, 5), struct.pack(">hiq", 1, 4, 5))  # of a later version
    assert read_marker(longer, read_header(longer)) == Marker(True, 4)
    for key, value in ((b"", b"\0" * 6), (b"\0\0\0\1", b"\0"), (struct.pack(">hh", -1, 1), b"\0" * 6)):
        broken = control(key, value)
        with pytest.raises(PenstockError) as caught:
            read_marker(broken, read_header(broken))
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


# ---------------------------------------------------------------------- last stable offset


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_the_last_stable_offset_against_all_transactions(seed: int) -> None:
    """Against a list of all; watermarks rise but for cuts, which may take markers back."""
    rng = random.Random(seed)
    offsets, open_now, ended = TransactionOffsets(), dict[int, int](), list[tuple[int, int]]()
    end = mark = 0
    for _ in range(300):
        producer, choice = rng.randrange(5), rng.random()
        if choice < 0.45:
            offsets.begin(producer, end)
            open_now.setdefault(producer, end)
        elif choice < 0.85:
            first = open_now.pop(producer, None)
            assert offsets.end(producer, end) == first
            if first is not None:
                ended.append((first, end))
        elif choice < 0.95:
            mark = rng.randint(mark, end)
        else:
            cut = rng.randint(mark, end)
            # As after a replay from some point below the cut: what ended before it is put back.
            kept = offsets.ended_below(cut)
            open_now = {key: first for key, first in open_now.items() if first < cut}
            ended = [row for row in ended if row[1] < cut]
            offsets.replace_open(open_now.items())
            offsets.put_back(kept)
            end = cut
        end += 1
        firsts = [*open_now.values(), *(first for first, marker in ended if marker >= mark)]
        assert offsets.last_stable_offset(mark, 0) == min([mark, *firsts])
        assert offsets.first_open == min(open_now.values(), default=None)
        assert offsets.last_stable_offset(mark, mark) == mark


def test_an_ended_transaction_bounds_readers_until_its_marker_is_covered() -> None:
    _, t = transactional(1)
    one, two = t.producers[:2]
    t.data(one, transactional=True)
    first_of_two = t.log.log_end_offset
    t.data(two, transactional=True)
    t.end(one, commits=True)
    end = t.log.log_end_offset
    assert t.log.last_stable_offset(end - 1) == 0  # the marker of the first isn't covered
    assert t.log.last_stable_offset(end) == first_of_two
    t.end(two, commits=False)
    assert t.log.last_stable_offset(end) == first_of_two
    assert t.log.last_stable_offset(t.log.log_end_offset) == t.log.log_end_offset


@pytest.mark.parametrize("written", [True, False])
def test_a_marker_counts_for_who_looks_by_time(written: bool) -> None:
    """As in Kafka (FileRecords.searchForTimestamp, LogSegment.append): ListOffsets may answer with its offset."""
    _, log = new_log(new_disk())
    sent = bytearray()
    for number, late_ms in enumerate((100, 50)):
        record = [NewRecord(b"k", b"v", NOW_MS)]
        sent += build_batch(
            record,
            base_offset=2 * number,
            producer_id=7,
            producer_epoch=0,
            base_sequence=number,
            transactional=True,
        )
        marker = Marker(commits=number == 0, coordinator_epoch=1)
        sent += build_marker(7, 0, marker, NOW_MS + late_ms, base_offset=2 * number + 1)
    log.append_as_follower(bytes(sent), 0)
    if written:
        run_job(log)
    times = (NOW_MS, NOW_MS + 1, NOW_MS + 51, NOW_MS + 101)
    assert [log.offset_for_timestamp(at, 4) for at in times] == [
        (0, NOW_MS),
        (1, NOW_MS + 100),
        (1, NOW_MS + 100),
        None,
    ]
    assert log.offset_for_timestamp(NOW_MS + 1, 1) is None  # at the upper offset
    assert log.offset_of_max_timestamp(4) == (1, NOW_MS + 100)
    assert log.offset_of_max_timestamp(1) == (0, NOW_MS)


# ---------------------------------------------------------------------- the aborted index


def row(first: int, marker: int, stable: int | None = None, producer: int = 5) -> AbortedTransaction:
    return AbortedTransaction(producer, first, marker, marker + 1 if stable is None else stable)


def test_entries_have_kafkas_form() -> None:
    data = encode_entries([row(3, 9, 4)])
    assert data == struct.pack(">hqqqq", 0, 5, 3, 9, 4)
    assert decode_entries(data, 0, 10) == (row(3, 9, 4),)
    assert decode_entries(b"", 0, 10) == ()


@pytest.mark.parametrize(
    "data",
    [
        encode_entries([row(3, 9)])[:-1],
        b"\0\1" + encode_entries([row(3, 9)])[2:],
        encode_entries([row(9, 9)]),
        encode_entries([row(-1, 9)]),
        encode_entries([row(3, 9), row(3, 9)]),
        encode_entries([row(3, 9), row(3, 8)]),
        encode_entries([row(3, 10)]),
        encode_entries([row(1, 4)]),
        encode_entries([row(3, 9, 11)]),
        encode_entries([row(3, 9, producer=-1)]),
    ],
)
def test_nothing_that_cannot_be_is_believed(data: bytes) -> None:
    with pytest.raises(DamagedIndex):
        decode_entries(data, 5, 10)


def test_rows_in_memory_are_bounded_by_their_number() -> None:
    rows = AbortedRows(rows_max=5)
    rows.put("a", (row(0, 1), row(2, 3)))
    rows.put("b", (row(0, 1), row(2, 3)))
    assert rows.get("a") is not None
    rows.put("c", (row(0, 1), row(2, 3)))
    assert rows.get("b") is None and rows.get("a") is not None
    rows.forget("a")
    assert rows.get("a") is None
    rows.put("d", tuple(row(n, n + 1) for n in range(9)))
    assert rows.get("c") is None and len(rows.get("d") or ()) == 9


# ---------------------------------------------------------------------- whole logs


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_any_history_through_stops_and_cuts(seed: int) -> None:
    rng = random.Random(seed)
    fs = new_disk(seed)
    directory, log = new_log(fs, SMALL)
    t = TransactionalLog(rng, log)
    mark = 0
    for _ in range(60):
        for _ in range(rng.randrange(6)):
            t.any_step()
        choice = rng.random()
        if choice < 0.6:
            run_job(t.log)
        elif choice < 0.75:
            # A crash, with any fate of what was not flushed. The checkpoint of the high watermark may lag.
            floor = t.log.flushed_offset
            fs = fs.crash(keep_random(rng), keep_names=lambda count: rng.randint(0, count))
            directory, t.log = reopen(fs, SMALL)
            assert t.log.log_end_offset >= floor
            t.cut(t.log.log_end_offset)
            mark = min(mark, t.log.log_end_offset)
        elif choice < 0.8:
            directory.offsets.write([(t.log, mark)])
        elif choice < 0.9:
            while run_job(t.log):
                pass
            end = t.log.truncate_to(rng.randint(mark, t.log.log_end_offset))
            t.cut(end)
        else:
            t.log.close(clean=True)
            directory.offsets.write([(t.log, mark)])
            directory.close(clean=True)
            directory, t.log = reopen(fs, SMALL)
            t.follow_log()
        t.check(fs, mark := rng.randint(min(mark, t.log.log_end_offset), t.log.log_end_offset))


@pytest.mark.parametrize("seed", range(SEED, SEED + max(ROUNDS // 3, 1)))
def test_a_follower_says_the_same_as_its_leader(seed: int) -> None:
    rng = random.Random(seed)
    _, t = transactional(seed)
    fs = new_disk(seed + 1)
    _, copy = new_log(fs, SMALL)
    while t.log.log_end_offset < 150:
        t.any_step()
        if rng.random() < 0.3:
            behind = [data for info, data in t.model.batches if info.base_offset >= copy.log_end_offset]
            copy.append_as_follower(b"".join(behind[: rng.randint(1, 9)]), 0)
            if rng.random() < 0.5:
                run_job(copy)
    copy.append_as_follower(
        b"".join(data for info, data in t.model.batches if info.base_offset >= copy.log_end_offset), 0
    )
    run_job(copy)
    mine = dict(t.log.producers())
    for producer_id, entry in copy.producers():
        other = mine[producer_id]
        assert (entry.epoch, entry.last_sequence, entry.transaction_first_offset, entry.coordinator_epoch) == (
            other.epoch, other.last_sequence, other.transaction_first_offset, other.coordinator_epoch,
        )  # fmt: skip
        assert entry.batches == other.batches
    t.log = copy
    t.check(fs, rng.randint(0, copy.log_end_offset))


def test_a_batch_without_sequence_opens_a_transaction_and_is_no_gap() -> None:
    _, t = transactional(3)
    producer = t.producers[0]
    t.by_coordinator(producer)
    t.by_coordinator(producer)
    assert t.log.first_open_transaction == 0
    producer.epoch += 1
    t.end(producer, commits=True)
    stale = build_batch([NewRecord(b"k", b"v", NOW_MS)], producer_id=producer.producer_id, producer_epoch=0)
    with pytest.raises(PenstockError) as caught:
        t.log.append_as_leader(stale, read_header(stale), 0, Origin.COORDINATOR)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    t.check(new_disk())


def test_a_marker_with_a_new_epoch_begins_with_sequence_zero() -> None:
    _, t = transactional(4)
    producer = t.producers[0]
    t.data(producer, transactional=True)
    t.end(producer, commits=True, raises_epoch=True)
    old = Producer(producer.producer_id, 0, 99)
    with pytest.raises(PenstockError) as caught:
        t.data(old, transactional=True)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    t.data(producer, transactional=True)
    assert producer.sequence > 0


def test_a_plain_batch_inside_of_a_transaction_is_refused() -> None:
    _, t = transactional(5)
    producer = t.producers[0]
    t.data(producer, transactional=True)
    with pytest.raises(PenstockError) as caught:
        t.data(producer, transactional=False)
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    t.end(producer, commits=True)
    t.data(producer, transactional=False)


@pytest.mark.parametrize(
    ("damage", "is_clean"),
    [
        *(
            (damage, is_clean)
            for damage in ("short", "long", "stale", "flipped")
            for is_clean in (True, False)
        ),
        # After a clean stop nothing says so but the batches: whoever compacts the segment, or scans it, sees it.
        ("gone", False),
    ],
)
def test_an_index_that_cannot_be_right_is_made_anew(damage: str, is_clean: bool) -> None:
    fs = new_disk(SEED)
    directory, log = new_log(fs, SMALL)
    t = TransactionalLog(random.Random(SEED), log)
    while len(t.told.aborted) < 12 or t.log.segment_count < 4:
        t.any_step()
        run_job(t.log)
    t.log.close(clean=is_clean)
    if is_clean:
        directory.offsets.write([(t.log, t.log.log_end_offset)])
        directory.close(clean=True)
    else:
        fs = stopped(fs)
    victim = next(segment for segment in t.log.segments if fs.exists(segment.aborted.path))
    path = victim.aborted.path
    fd = fs.open(path)
    size = fs.size(fd)
    if damage == "gone":
        fs.unlink(path)
    elif damage == "short":
        fs.ftruncate(fd, size - 1)
    elif damage == "long":
        fs.pwritev(fd, [b"\0" * 10], size)
    elif damage == "stale":
        fs.pwritev(fd, [encode_entries([row(0, t.log.log_end_offset + 5)])], size)
    else:
        fs.pwritev(fd, [b"\xff"], 1)
    fs.close(fd)
    _, t.log = reopen(fs, SMALL)
    t.check(fs)


def test_a_file_that_is_damaged_while_the_log_is_open_costs_no_answer() -> None:
    fs, t = transactional(SEED + 1)
    while len(t.told.aborted) < 12 or t.log.segment_count < 4:
        t.any_step()
        run_job(t.log)
    victim = next(segment for segment in t.log.segments if fs.exists(segment.aborted.path))
    assert victim is not t.log.segments[-1]
    fd = fs.open(victim.aborted.path)
    fs.pwritev(fd, [b"\xff"], 1)
    fs.close(fd)
    assert list(aborted_between(t.log, 0, t.log.log_end_offset)) == t.told.aborted
    assert t.log.index_fault_count == 1


def scripted(fs: SimulatedFileSystem, t: TransactionalLog, progress: dict[str, int]) -> None:
    for number in range(60):
        t.any_step()
        if number % 4 == 3 and run_job(t.log):
            progress["floor"] = t.log.flushed_offset
    progress["floor"] = min(progress["floor"], 40)
    t.cut(t.log.truncate_to(max(40, t.log.log_end_offset - 20)))
    for number in range(20):
        t.any_step()
        if number % 4 == 3 and run_job(t.log):
            progress["floor"] = t.log.flushed_offset


def test_a_crash_at_every_change_of_the_disk() -> None:
    """Cuts included: what is there after it says of transactions what its batches say. (Every third change.)"""
    whole, t = transactional(77)
    made = len(whole.calls)
    scripted(whole, t, {"floor": 0})
    assert len(whole.calls) - made > 100
    for countdown in range(0, len(whole.calls) - made, 3):
        fs, t = transactional(77)
        progress = {"floor": 0}
        fs.crash_countdown = countdown
        with pytest.raises(SimulatedCrash):
            scripted(fs, t, progress)
        rng = random.Random(countdown)
        for content in (keep_all, keep_synced, keep_random(rng)):
            disk = fs.crash(content, keep_names=lambda count: rng.randint(0, count))  # noqa: B023
            _, log = reopen(disk, SMALL)
            assert log.log_end_offset >= min(progress["floor"], 40)
            t.log = log
            t.model.batches = stored(log)
            t.model.end = log.log_end_offset
            t.check(disk)


def test_a_full_disk_takes_the_entries_back() -> None:
    fs, t = transactional(9)
    producer = t.producers[0]
    t.data(producer, transactional=True)
    t.end(producer, commits=False)
    run_job(t.log)
    t.data(producer, transactional=True)
    t.end(producer, commits=False)
    fs.space_bytes = 100  # of what is left
    with pytest.raises(OSError, match="space"):
        run_job(t.log)
    assert len(decode_entries(bytes_of(fs, t), 0, 100)) == 1
    fs.space_bytes = None
    assert run_job(t.log, retry=True)
    t.check(fs)


def bytes_of(fs: SimulatedFileSystem, t: TransactionalLog) -> bytes:
    fd = fs.open(t.log.segments[0].aborted.path)
    data = fs.pread(fd, fs.size(fd), 0)
    fs.close(fd)
    return data


def test_retention_takes_the_index_with_its_segment() -> None:
    fs, t = transactional(11)
    while len(t.told.aborted) < 12 or t.log.segment_count < 6:
        t.any_step()
        run_job(t.log)
    t.log.raise_log_start(t.log.segments[4].base_offset)
    work = t.log.delete_old_segments(t.log.log_end_offset, NOW_MS)
    assert work is not None
    work()
    left = {name[:20] for name in fs.list_directory(str(t.log.directory)) if name.endswith(".txnindex")}
    assert left <= {f"{segment.base_offset:020d}" for segment in t.log.segments}
    start, end = t.log.log_start_offset, t.log.log_end_offset
    wanted = [one for one in committed(t.model.batches, t.log.last_stable_offset(end)) if one[0] >= start]
    assert read_committed(t.log, end) == wanted
    _, again = reopen(stopped(fs), SMALL)
    assert read_committed(again, end) == wanted
    assert told_by(stored(again)).last_stable_offset(end) == again.last_stable_offset(end)
