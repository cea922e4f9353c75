"""PartitionLog: appending, jobs, reads, truncation, retention on a simulated disk."""

from __future__ import annotations

import errno

import pytest

from penstock_core.config.topic import TopicConfig
from penstock_core.errors import ErrorCode, InvariantBroken, PenstockError
from penstock_kafka.records.batch import is_crc_valid, iter_batches, read_header
from penstock_storage_node.log import (
    Appended,
    DirectoryPorts,
    Duplicate,
    LogDirectory,
    LogState,
    PartitionLog,
)
from penstock_storage_node.log.producer_state import PRODUCER_IDLE_MAX_MS
from support.simulated_fs import SimulatedFileSystem, keep_synced
from unit.storage_node.log.log_model import (
    NOW_MS,
    ROOT,
    SMALL,
    TOPIC_ID,
    Model,
    add,
    append,
    filled,
    make_batch,
    new_disk,
    new_log,
    open_directory,
    read,
    read_all_batches,
    reopen,
    run_job,
)

REPLICATED = TopicConfig(segment_bytes=1000, index_interval_bytes=200, durability="replicated")


def state_of(log: PartitionLog) -> LogState:
    """By a call, so that a type checker does not take an earlier state for today's."""
    return log.state


def test_append_gives_offsets_and_stamps_the_batch() -> None:
    _, log = new_log(new_disk())
    first = append(log, make_batch(3), epoch=4)
    second = append(log, make_batch(2), epoch=4)
    assert isinstance(first, Appended)
    assert isinstance(second, Appended)
    assert (first.base_offset, first.last_offset) == (0, 2)
    assert (second.base_offset, second.last_offset) == (3, 4)
    stored = b"".join(second.data)
    info = read_header(stored)
    assert (info.base_offset, info.leader_epoch) == (3, 4)
    assert is_crc_valid(stored)
    assert (log.log_end_offset, log.written_offset, log.flushed_offset) == (5, 0, 0)
    assert log.staged_bytes == first.size_bytes + second.size_bytes


def test_one_job_at_a_time_takes_all_that_is_staged() -> None:
    _, log = new_log(new_disk())
    append(log, make_batch())
    append(log, make_batch())
    job = log.next_job()
    assert job is not None
    assert (job.base_offset, job.end_offset) == (0, 2)
    append(log, make_batch())
    assert log.next_job() is None
    job.run()
    assert log.written_offset == 0  # nothing moves before complete()
    log.complete(job)
    assert (log.written_offset, log.flushed_offset, log.log_end_offset) == (2, 2, 3)
    assert run_job(log)
    assert log.flushed_offset == 3
    assert log.staged_bytes == 0
    assert log.next_job() is None


def test_flush_comes_after_the_write_and_new_files_are_made_durable() -> None:
    fs = new_disk()
    _, log = new_log(fs, SMALL)
    fs.calls.clear()
    for _ in range(20):
        append(log, make_batch(2, value_bytes=50))
    run_job(log)
    names = [(call, path.rpartition("/")[2]) for call, path in fs.calls]
    bases = sorted({name for call, name in names if call == "pwritev" and name.endswith(".log")})
    assert len(bases) > 2
    for base in bases:
        assert names.index(("pwritev", base)) < names.index(("fdatasync", base))
    last_sync = max(i for i, (call, _) in enumerate(names) if call == "sync_directory")
    assert last_sync > max(i for i, (call, name) in enumerate(names) if call == "create")


def test_duplicates_are_answered_and_gaps_refused() -> None:
    _, log = new_log(new_disk())
    for number in range(6):
        append(log, make_batch(2, producer=(7, 0, number * 2)))
    again = append(log, make_batch(2, producer=(7, 0, 4)))
    assert again == Duplicate(4, 5)
    for sequence, code in ((0, 45), (14, 45), (11, 45)):
        with pytest.raises(PenstockError) as caught:
            append(log, make_batch(2, producer=(7, 0, sequence)))
        assert caught.value.code == code
    assert log.log_end_offset == 12
    append(log, make_batch(1, producer=(7, 1, 0)))
    with pytest.raises(PenstockError) as caught:
        append(log, make_batch(2, producer=(7, 0, 12)))
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_follower_keeps_the_bytes_and_the_producers() -> None:
    log, model = filled()
    fs = new_disk(2)
    _, follower = new_log(fs, TopicConfig(segment_bytes=700, index_interval_bytes=100))
    joined = b"".join(data for _, data in model.batches)
    sizes = [info.size_bytes for info in iter_batches(joined)]
    position = 0
    while sizes:
        take, sizes = sizes[:9], sizes[9:]
        last = follower.append_as_follower(joined[position : position + sum(take)], leader_epoch=9)
        assert last == follower.log_end_offset - 1
        position += sum(take)
        model_so_far = Model()
        model_so_far.add([joined[:position]])
        model_so_far.check(follower)
        run_job(follower)
    model.check(follower)
    assert follower.segment_count > log.segment_count
    assert follower.epoch_entries() == log.epoch_entries()


def test_a_follower_files_each_batch_under_its_own_epoch() -> None:
    """Whatever it led without a record: as Kafka's LeaderEpochFileCache.assign."""
    _, leader = new_log(new_disk())
    model = Model()
    for epoch in (3, 3, 5):
        add(leader, model, make_batch(2), epoch)
    first, second, third = [data for _, data in model.batches]
    _, follower = new_log(new_disk(2))
    follower.start_epoch(2)
    follower.start_epoch(4)
    follower.append_as_follower(first, leader_epoch=9)
    assert follower.epoch_entries() == [(3, 0)]
    follower.start_epoch(4)
    follower.append_as_follower(second, leader_epoch=9)
    assert follower.epoch_entries() == [(3, 0)]
    follower.start_epoch(4)
    follower.append_as_follower(third, leader_epoch=9)
    assert follower.epoch_entries() == leader.epoch_entries() == [(3, 0), (5, 4)]


def test_a_follower_refuses_gaps_overlaps_damage_and_later_epochs() -> None:
    source, model = filled()
    del source
    stored = [data for _, data in model.batches]
    _, log = new_log(new_disk())
    log.append_as_follower(stored[0] + stored[1], 0)
    damaged = bytearray(stored[2])
    damaged[-1] ^= 1
    for records, code in (
        (stored[1], ErrorCode.OFFSET_OUT_OF_RANGE),
        (stored[3], ErrorCode.OFFSET_OUT_OF_RANGE),
        (stored[2] + stored[4], ErrorCode.OFFSET_OUT_OF_RANGE),
        (bytes(damaged), ErrorCode.CORRUPT_MESSAGE),
        (stored[2] + stored[3][:-1], ErrorCode.CORRUPT_MESSAGE),
    ):
        end = log.log_end_offset
        with pytest.raises(PenstockError) as caught:
            log.append_as_follower(records, 0)
        assert caught.value.code is code
        assert log.log_end_offset == end
    # Batches of a later epoch than the session's are left out (KAFKA-18723).
    late = next(i for i, (info, _) in enumerate(model.batches) if info.leader_epoch == 1)
    rest = b"".join(stored[2 : late + 2])
    assert log.append_as_follower(rest, leader_epoch=0) == model.batches[late][0].base_offset - 1


def test_full_disk_cuts_back_refuses_and_goes_on() -> None:
    fs = new_disk()
    _, log = new_log(fs, SMALL)
    model = Model()
    for number in range(30):
        appended = append(log, make_batch(1, timestamp_ms=NOW_MS + number))
        assert isinstance(appended, Appended)
        model.add(appended.data)
        if number == 3:
            run_job(log)
    fs.space_bytes = 1500
    with pytest.raises(OSError, match="no space"):
        run_job(log)
    assert log.state is LogState.FULL
    assert (log.written_offset, log.log_end_offset) == (4, 30)
    sizes = {name: fs.path_size(f"/data/t-0/{name}") for name in fs.list_directory("/data/t-0")}
    assert sizes["00000000000000000000.log"] == sum(len(data) for _, data in model.batches[:4])
    assert [name for name in sizes if name.endswith(".log")] == ["00000000000000000000.log"]
    with pytest.raises(PenstockError) as caught:
        append(log, make_batch())
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    model.check(log)
    assert log.next_job() is None
    with pytest.raises(OSError, match="no space"):
        run_job(log, retry=True)
    fs.space_bytes = None
    assert run_job(log, retry=True)
    assert state_of(log) is LogState.OK
    assert log.flushed_offset == 30
    model.check(log)
    _, again = reopen(fs.crash(), SMALL)
    model.check(again)


@pytest.mark.parametrize("call", ["pwritev", "fdatasync", "create", "sync_directory"])
def test_an_io_error_fails_the_log_for_good(call: str) -> None:
    fs = new_disk()
    _, log = new_log(fs, SMALL)
    append(log, make_batch())
    run_job(log)
    for _ in range(20):
        append(log, make_batch())
    fs.fail_on = lambda c, path: OSError(errno.EIO, "broken") if c == call else None
    with pytest.raises(OSError, match="broken"):
        run_job(log)
    fs.fail_on = lambda c, path: None
    assert log.state is LogState.FAILED
    assert log.flushed_offset == 1
    assert log.next_job(retry=True) is None
    with pytest.raises(PenstockError) as caught:
        append(log, make_batch())
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert read(log, 0, upper=1).size_bytes > 0
    with pytest.raises(PenstockError):
        log.close(clean=True)


def test_a_full_disk_that_cannot_be_cut_back_fails_the_log() -> None:
    fs = new_disk()
    _, log = new_log(fs)
    append(log, make_batch())
    append(log, make_batch())
    fs.space_bytes = 100
    fs.fail_on = lambda call, path: OSError(errno.EIO, "broken") if call == "ftruncate" else None
    with pytest.raises(OSError, match=r"broken|space"):
        run_job(log)
    assert log.state is LogState.FAILED


def test_replicated_durability_flushes_in_jobs_of_its_own() -> None:
    fs = new_disk()
    _, log = new_log(fs, REPLICATED)
    fs.calls.clear()
    for _ in range(40):
        append(log, make_batch())
        run_job(log)
    assert log.written_offset == 40
    assert log.flushed_offset == 0
    assert not [path for call, path in fs.calls if call == "fdatasync" and path.endswith(".log")]
    job = log.next_flush_job()
    assert job is not None
    append(log, make_batch())
    run_job(log)  # beside the flush
    job.run()
    log.complete_flush(job)
    assert 0 < log.flushed_offset < 40
    assert log.next_flush_job() is None
    everything = log.next_flush_job(everything=True)
    assert everything is not None
    everything.run()
    log.complete_flush(everything)
    assert log.flushed_offset == 41
    assert log.checkpoint() == 41


def test_switching_to_fsync_flushes_what_was_not() -> None:
    _, log = new_log(new_disk(), REPLICATED)
    for _ in range(40):
        append(log, make_batch())
        run_job(log)
    assert log.flushed_offset == 0
    log.update_settings(SMALL)
    append(log, make_batch())
    run_job(log)
    assert log.flushed_offset == 41


def test_truncation_at_every_offset() -> None:
    for offset in range(102):
        log, model = filled()
        starts = [info.base_offset for info, _ in model.batches] + [model.end]
        end = log.truncate_to(offset)
        assert end == max(start for start in starts if start <= offset)
        model.cut(end)
        model.check(log)
        assert log.flushed_offset <= end
        assert log.epoch_entries() == model.epoch_starts()
        appended = append(log, make_batch(2), epoch=8)
        assert isinstance(appended, Appended)
        model.add(appended.data)
        run_job(log)
        model.check(log)


def test_truncation_at_the_end_drops_an_epoch_without_data() -> None:
    """A deposed leader that wrote nothing must come out equal to its leader, or they part for ever."""
    log, _ = filled(5)
    run_job(log)
    before = log.latest_epoch
    log.start_epoch(before + 7)
    run_job(log)
    assert log.latest_epoch == before + 7
    assert log.truncate_to(log.log_end_offset) == log.log_end_offset
    assert log.latest_epoch == before


def test_truncation_restores_the_producers() -> None:
    fs = new_disk()
    _, log = new_log(fs, SMALL)
    for number in range(40):
        append(log, make_batch(1, producer=(3, 0, number)))
    run_job(log)
    assert log.truncate_to(25) == 25
    assert append(log, make_batch(1, producer=(3, 0, 24))) == Duplicate(24, 24)
    assert append(log, make_batch(1, producer=(3, 0, 20))) == Duplicate(20, 20)
    appended = append(log, make_batch(1, producer=(3, 0, 25)))
    assert isinstance(appended, Appended)


def test_truncation_needs_the_log_for_itself() -> None:
    _, log = new_log(new_disk())
    append(log, make_batch())
    assert log.next_job() is not None
    with pytest.raises(InvariantBroken):
        log.truncate_to(0)


@pytest.mark.parametrize("before", ["appended", "opened", "cut"])
def test_a_step_of_the_wall_clock_makes_no_producer_idle(before: str) -> None:
    """One is forgotten whose retry may be on its way: the retry would be written as if it were new."""
    fs, now = new_disk(), {"wall": NOW_MS, "steady": 5000}

    def open_one() -> LogDirectory:
        return LogDirectory.open(
            DirectoryPorts(fs, lambda: now["wall"], steady_ms=lambda: now["steady"]), ROOT
        )

    directory = open_one()
    log = directory.create_log("t", 0, TOPIC_ID, TopicConfig())
    for number in range(2):
        append(log, make_batch(producer=(3, 0, number)))
        run_job(log)
    if before == "opened":
        log.close(clean=True)
        directory.close(clean=True)
        directory = open_one()
        log = directory.open_log(directory.scan()[0], TopicConfig())
    elif before == "cut":
        log.truncate_to(1)
    now["wall"] += 3 * PRODUCER_IDLE_MAX_MS
    log.delete_old_segments(2, now["wall"])
    assert isinstance(append(log, make_batch(producer=(3, 0, 0))), Duplicate)
    # What did not come with the clock's step comes with time, whatever the clock is set to meanwhile.
    now["wall"] = 0
    now["steady"] += PRODUCER_IDLE_MAX_MS
    log.delete_old_segments(2, now["wall"])
    assert log.producer_count == 0


def test_truncate_fully_and_start_elsewhere() -> None:
    fs = new_disk()
    settings = SMALL
    _, log = new_log(fs, settings)
    for number in range(30):
        append(log, make_batch(1, producer=(3, 0, number)))
    run_job(log)
    log.truncate_fully_and_start_at(1000)
    assert (log.log_start_offset, log.log_end_offset, log.flushed_offset) == (1000, 1000, 1000)
    assert log.producer_count == 0
    assert log.epoch_entries() == []
    appended = append(log, make_batch(2), epoch=3)
    assert isinstance(appended, Appended)
    assert appended.base_offset == 1000
    run_job(log)
    _, again = reopen(fs.crash(), settings)
    assert (again.log_start_offset, again.log_end_offset) == (1000, 1002)
    assert len(read_all_batches(again)) == 1


def test_epoch_end_offsets() -> None:
    log, model = filled()
    starts = model.epoch_starts()
    assert log.end_offset_for_epoch(2) == (2, log.log_end_offset)
    assert log.end_offset_for_epoch(1) == (1, starts[2][1])
    assert log.end_offset_for_epoch(5) == (-1, -1)
    log.start_epoch(5)
    assert log.latest_epoch == 5
    assert log.last_batch_epoch == 2
    assert log.end_offset_for_epoch(4) == (2, log.log_end_offset)
    assert log.end_offset_for_epoch(5) == (5, log.log_end_offset)
    with pytest.raises(PenstockError) as caught:
        log.start_epoch(4)
    assert caught.value.code is ErrorCode.FENCED_LEADER_EPOCH


def test_retention_by_time_and_size() -> None:
    fs = new_disk()
    settings = TopicConfig(segment_bytes=1000, retention_ms=1000, retention_bytes=-1)
    _, log = new_log(fs, settings)
    for number in range(60):
        append(log, make_batch(1, timestamp_ms=NOW_MS + number * 100))
    run_job(log)
    count = log.segment_count
    assert log.delete_old_segments(0, NOW_MS + 6000) is None
    assert log.delete_old_segments(60, NOW_MS) is None
    work = log.delete_old_segments(60, NOW_MS + 4000)
    assert work is not None
    assert 0 < log.log_start_offset < 60
    assert log.segment_count < count
    work()
    names = [name for name in fs.list_directory("/data/t-0") if name.endswith(".log")]
    assert len(names) == log.segment_count
    with pytest.raises(PenstockError) as caught:
        log.read(0, 10, 60)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    log.update_settings(TopicConfig(segment_bytes=1000, retention_ms=-1, retention_bytes=1500))
    before = log.size_bytes
    assert before > 1500
    work = log.delete_old_segments(60, NOW_MS)
    assert work is not None
    work()
    assert 1500 <= log.size_bytes < before
    start = log.log_start_offset
    _, again = reopen(fs.crash(), settings)
    assert again.log_start_offset == start
    assert len(read_all_batches(again)) == 60 - start


def test_retention_of_everything_closes_the_active_segment_first() -> None:
    fs = new_disk()
    settings = TopicConfig(retention_ms=1000)
    _, log = new_log(fs, settings)
    append(log, make_batch(3, timestamp_ms=NOW_MS))
    run_job(log)
    assert log.delete_old_segments(3, NOW_MS + 5000) is None
    run_job(log)
    work = log.delete_old_segments(3, NOW_MS + 5000)
    assert work is not None
    work()
    assert (log.log_start_offset, log.log_end_offset, log.segment_count) == (3, 3, 1)
    assert fs.exists("/data/t-0/00000000000000000003.log")
    assert not fs.exists("/data/t-0/00000000000000000000.log")
    assert log.delete_old_segments(3, NOW_MS + 9_999_999) is None
    append(log, make_batch())
    run_job(log)
    _, again = reopen(fs.crash(), settings)
    assert (again.log_start_offset, again.log_end_offset) == (3, 4)


def test_after_a_restart_retention_first_reads_timestamps() -> None:
    fs = new_disk()
    settings = TopicConfig(segment_bytes=1000, retention_ms=1000)
    directory, log = new_log(fs, settings)
    for number in range(60):
        append(log, make_batch(1, timestamp_ms=NOW_MS + number * 100))
    log.close(clean=True)
    directory.close(clean=True)
    _, again = reopen(fs, settings)
    look = again.delete_old_segments(60, NOW_MS + 4000)
    assert look is not None
    assert again.log_start_offset == 0
    look()
    work = again.delete_old_segments(60, NOW_MS + 4000)
    assert work is not None
    assert again.log_start_offset > 0


def test_roll_by_age_of_records() -> None:
    _, log = new_log(new_disk(), TopicConfig(segment_ms=1000))
    append(log, make_batch(timestamp_ms=NOW_MS))
    append(log, make_batch(timestamp_ms=NOW_MS + 1000))
    assert log.segment_count == 1
    append(log, make_batch(timestamp_ms=NOW_MS + 1001))
    assert log.segment_count == 2


def age_of_roll(log: PartitionLog) -> int:
    """Age at which the log closes its first segment, in ms."""
    append(log, make_batch(timestamp_ms=NOW_MS))
    age = 0
    while log.segment_count == 1:
        age += 10
        append(log, make_batch(timestamp_ms=NOW_MS + age))
    return age


def test_segment_jitter_closes_earlier_each_log_at_a_time_of_its_own() -> None:
    directory = open_directory(new_disk())

    def ages(jitter_ms: int, topic: str) -> list[int]:
        settings = TopicConfig(segment_ms=1000, segment_jitter_ms=jitter_ms)
        return [age_of_roll(directory.create_log(topic, n, TOPIC_ID, settings)) for n in range(12)]

    assert set(ages(0, "even")) == {1010}
    spread = ages(400, "spread")
    assert all(600 < age <= 1010 for age in spread) and len(set(spread)) > 6
    # More than segment.ms is no more than that.
    assert all(0 < age <= 1010 for age in ages(10_000, "wide"))


def test_segment_jitter_of_a_segment_outlives_a_restart() -> None:
    settings = TopicConfig(segment_ms=1000, segment_jitter_ms=900)
    expected = age_of_roll(new_log(new_disk(), settings)[1])
    fs = new_disk()
    _, log = new_log(fs, settings)
    append(log, make_batch(timestamp_ms=NOW_MS))
    append(log, make_batch(timestamp_ms=NOW_MS + expected - 10))
    run_job(log)
    _, again = reopen(fs.restart(), settings)
    assert again.segment_count == 1
    append(again, make_batch(timestamp_ms=NOW_MS + expected))
    assert again.segment_count == 2


def test_roll_by_size_of_the_index() -> None:
    """A segment whose time index (12 bytes an entry) has reached segment.index.bytes takes no more."""
    entries_max = 3
    settings = TopicConfig(index_interval_bytes=1, segment_index_bytes=entries_max * 12 + 11)
    fs = new_disk()
    _, log = new_log(fs, settings)
    for number in range(20):
        append(log, make_batch(timestamp_ms=NOW_MS + number))
    run_job(log)
    # The first batch of a segment makes no entry.
    assert log.segment_count == 20 // (entries_max + 1)
    for name in fs.list_directory("/data/t-0"):
        if name.endswith(".timeindex"):
            assert fs.path_size(f"/data/t-0/{name}") <= settings.segment_index_bytes
    _, again = reopen(fs.crash(), settings)
    assert again.segment_count == log.segment_count
    append(again, make_batch())
    assert again.segment_count == log.segment_count + 1
    log.update_settings(TopicConfig(index_interval_bytes=1))
    append(log, make_batch())
    assert log.segment_count == 20 // (entries_max + 1)


def test_a_log_knows_whether_acks_may_lack_a_flush() -> None:
    """Whatever the topic's setting says when it is opened again (rule "Coming back")."""

    def may_lack(disk: SimulatedFileSystem) -> bool:
        return reopen(disk)[1].may_lack_acked

    fs = new_disk()
    directory, log = new_log(fs, REPLICATED)
    assert not may_lack(fs.crash())
    append(log, make_batch(2))
    run_job(log)
    # From the first written byte on; the switch alone changes nothing.
    log.update_settings(SMALL)
    assert may_lack(fs.crash(keep_synced, keep_names=lambda _: 0))
    # A flush of everything does.
    append(log, make_batch(2))
    run_job(log)
    assert log.flushed_offset == log.log_end_offset
    assert not may_lack(fs.crash(keep_synced, keep_names=lambda _: 0))
    log.update_settings(REPLICATED)
    append(log, make_batch(2))
    run_job(log)
    assert may_lack(fs.crash())
    log.close(clean=True)
    directory.close(clean=True)
    assert not may_lack(fs.crash(keep_synced, keep_names=lambda _: 0))
