"""Reading a log: by offset, by time, through its index files."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import ErrorCode, PenstockError
from penstock_kafka.records.batch import iter_batches
from penstock_storage_node.log import Appended, ReadData, ReadJob, timestamps
from penstock_storage_node.log.fs import FileSystem
from penstock_storage_node.log.index import IndexHeads
from penstock_storage_node.log.segment import Segment
from unit.storage_node.log.log_model import (
    NOW_MS,
    SMALL,
    Model,
    append,
    filled,
    make_batch,
    new_disk,
    new_log,
    read,
    reopen,
    run_job,
)


def test_what_is_written_is_read_by_any_size() -> None:
    log, model = filled()
    for max_bytes in (1, 100, 333, 1000, 100_000):
        model.check(log, max_bytes)
    run_job(log)
    for max_bytes in (1, 100, 333, 1000, 100_000):
        model.check(log, max_bytes)


def test_read_begins_with_the_batch_that_holds_the_offset() -> None:
    log, model = filled()
    for offset in range(log.log_end_offset):
        data = read(log, offset, 1)
        (wanted,) = [row for row in model.batches if row[0].base_offset <= offset <= row[0].last_offset]
        assert b"".join(data.buffers) == wanted[1]
        assert data.base_offset == wanted[0].base_offset
        assert data.next_offset == wanted[0].next_offset


def test_read_stops_before_the_upper_offset() -> None:
    log, _ = filled()
    for upper in range(1, log.log_end_offset + 1):
        for start in (0, upper // 2, upper - 1):
            offset, got = start, b""
            while offset < upper:
                data = read(log, offset, 100_000, upper)
                got += b"".join(data.buffers)
                offset = data.next_offset
            infos = list(iter_batches(got))
            assert infos[-1].base_offset < upper <= infos[-1].next_offset


def test_read_at_or_past_the_upper_offset_is_empty() -> None:
    log, _ = filled()
    for offset in (5, log.log_end_offset):
        data = log.read(offset, 1000, 5)
        assert isinstance(data, ReadData)
        assert (data.size_bytes, data.buffers, data.next_offset) == (0, [], offset)


def test_read_without_min_one_gives_nothing_that_is_too_large() -> None:
    log, model = filled()
    size = len(model.batches[0][1])
    for _ in range(2):
        small = log.read(0, size - 1, log.log_end_offset, min_one=False)
        small = small.run() if isinstance(small, ReadJob) else small
        assert small.size_bytes == 0
        exact = log.read(0, size, log.log_end_offset, min_one=False)
        exact = exact.run() if isinstance(exact, ReadJob) else exact
        assert exact.size_bytes == size
        run_job(log)


def test_read_outside_the_log_is_refused() -> None:
    log, _ = filled()
    for offset in (-1, log.log_end_offset + 1):
        with pytest.raises(PenstockError) as caught:
            log.read(offset, 100, 1000)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_read_of_what_is_not_in_the_page_cache_goes_to_the_pool() -> None:
    fs = new_disk()
    _, log = new_log(fs)
    append(log, make_batch())
    run_job(log)
    read(log, 0)
    assert isinstance(log.read(0, 100, 1), ReadData)
    fs.cold_chance = 1.0
    job = log.read(0, 100, 1)
    assert isinstance(job, ReadJob)
    assert job.run().next_offset == 1


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("codec", [0, 4])
def test_offsets_by_timestamp(written: bool, codec: int) -> None:
    settings = TopicConfig(segment_bytes=2000, index_interval_bytes=100)
    _, log = new_log(new_disk(), settings)
    times: list[int] = []
    for number in range(80):
        start = NOW_MS + (number * 37 % 50) * 100
        append(log, make_batch(3, timestamp_ms=start, codec=codec))
        times.extend(range(start, start + 3))
    if written:
        run_job(log)
    for wanted in range(NOW_MS - 50, NOW_MS + 5100, 37):
        expected = next(((o, t) for o, t in enumerate(times) if t >= wanted), None)
        assert log.offset_for_timestamp(wanted, len(times)) == expected
    best = max(times)
    assert log.offset_of_max_timestamp(len(times)) == (times.index(best), best)
    assert log.offset_for_timestamp(best, times.index(best)) is None


def test_index_files_have_kafkas_entries() -> None:
    fs = new_disk()
    _, log = new_log(fs, TopicConfig(segment_bytes=100_000, index_interval_bytes=300))
    expected_index, expected_time = b"", b""
    since = position = 0
    for number in range(30):
        batch = make_batch(2, timestamp_ms=NOW_MS + number * 10)
        append(log, batch)
        if since > 300:
            expected_index += struct.pack(">ii", number * 2 + 1, position)
            expected_time += struct.pack(">qi", NOW_MS + number * 10 + 1, number * 2 + 1)
            since = 0
        since += len(batch)
        position += len(batch)
    log.close(clean=True)
    last = struct.pack(">qi", NOW_MS + 29 * 10 + 1, 59)
    if not expected_time.endswith(last):
        expected_time += last
    stem = "/data/t-0/00000000000000000000"
    assert fs.pread(fs.open(stem + ".index"), 1 << 20, 0) == expected_index
    assert fs.pread(fs.open(stem + ".timeindex"), 1 << 20, 0) == expected_time


def test_a_damaged_index_costs_time_but_no_data() -> None:
    fs = new_disk()
    directory, log = new_log(fs, SMALL)
    model = Model()
    for number in range(60):
        appended = append(log, make_batch(1, timestamp_ms=NOW_MS + number))
        assert isinstance(appended, Appended)
        model.add(appended.data)
    log.close(clean=True)
    directory.close(clean=True)
    for name in fs.list_directory("/data/t-0"):
        if name.endswith(".index"):
            fd = fs.open(f"/data/t-0/{name}")
            size = fs.size(fd)
            entries = b"".join(struct.pack(">ii", i + 1, 7 * i + 3) for i in range(size // 8))
            if entries:
                fs.pwritev(fd, [entries], 0)
    _, again = reopen(fs, SMALL)
    for offset in range(59, -1, -1):
        data = read(again, offset, 1)
        assert b"".join(data.buffers) == model.batches[offset][1]
    assert again.index_fault_count > 0
    assert again.offset_for_timestamp(NOW_MS + 33, 60) == (33, NOW_MS + 33)


def test_few_descriptors_serve_many_segments() -> None:
    fs = new_disk()
    fs.files._max = 4
    _, log = new_log(fs, SMALL)
    model = Model()
    for _ in range(100):
        appended = append(log, make_batch())
        assert isinstance(appended, Appended)
        model.add(appended.data)
        run_job(log)
    assert log.segment_count > 8
    model.check(log)
    assert fs.open_count <= 4 + 1  # and the directory's lock
    log.close(clean=False)
    assert fs.open_count == 1


def test_a_read_that_retention_overtakes_is_out_of_range_and_passes_over_nothing() -> None:
    """Given what comes after the records that are gone, a consumer would go on there without a word."""
    settings = TopicConfig(segment_bytes=1000, retention_bytes=2000)
    fs = new_disk()
    _, log = new_log(fs, settings)
    for number in range(80):
        append(log, make_batch(timestamp_ms=NOW_MS + number))
    run_job(log)
    fs.cold_chance = 1.0
    gone, kept = log.read(3, 100, 80), log.read(70, 100, 80)
    assert isinstance(gone, ReadJob) and isinstance(kept, ReadJob)
    remove = log.delete_old_segments(80, NOW_MS)
    assert remove is not None and 3 < log.log_start_offset < 70
    for is_removed in (False, True):
        if is_removed:
            remove()
        with pytest.raises(PenstockError) as caught:
            gone.run()
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert kept.run().base_offset == 70


@pytest.mark.parametrize("is_largest", [True, False])
def test_a_look_up_by_time_that_retention_overtakes(
    is_largest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = TopicConfig(segment_bytes=1000, index_interval_bytes=100, retention_bytes=2000)
    fs = new_disk()
    _, log = new_log(fs, settings)
    for number in range(80):
        append(log, make_batch(timestamp_ms=NOW_MS + number))
    run_job(log)
    name = "find_largest" if is_largest else "find_in_files"
    real, calls = getattr(timestamps, name), []

    def overtaken(fs: FileSystem, segments: Sequence[Segment], *more: Any) -> Any:
        calls.append(segments)
        remove = log.delete_old_segments(80, NOW_MS)
        if remove is not None:
            remove()
        return real(fs, segments, *more)

    monkeypatch.setattr(timestamps, name, overtaken)

    def look() -> tuple[int, int] | None:
        return log.offset_of_max_timestamp(80) if is_largest else log.offset_for_timestamp(NOW_MS, 80)

    first = log.log_start_offset
    found = look()
    assert len(calls) == 2 and log.log_start_offset > first
    last = 79 if is_largest else log.log_start_offset
    assert found == (last, NOW_MS + last)
    # A file that is missing for another reason is no matter of trying again.
    for segment in calls[-1]:
        fs.files.forget(segment.path)
        fs.unlink(segment.path)
    calls.clear()
    with pytest.raises(PenstockError, match="check the disk") as caught:
        look()
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR and len(calls) == 1


def test_a_look_up_finds_its_record_though_its_index_leaves_the_cache_at_once() -> None:
    """As when many partitions are looked through side by side."""
    fs = new_disk()
    directory, log = new_log(fs, SMALL)
    for number in range(60):
        append(log, make_batch(timestamp_ms=NOW_MS + number))
        run_job(log)
    log.close(clean=True)
    directory.close(clean=True)
    fs = fs.restart()
    fs.index_heads = IndexHeads(0)
    _, again = reopen(fs, SMALL)
    assert [again.offset_for_timestamp(NOW_MS + number, 60) for number in range(60)] == [
        (number, NOW_MS + number) for number in range(60)
    ]
