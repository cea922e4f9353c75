"""A disk that forgets bits below the recovery point: nobody gets wrong bytes, and the next start cuts there."""

from __future__ import annotations

import random

import pytest

from penstock_core.config.topic import TopicConfig
from penstock_kafka.records.batch import iter_batches
from penstock_storage_node.log import PartitionLog
from penstock_storage_node.log.damage import DamagedData
from penstock_storage_node.log.reading import Need, Stuck
from penstock_storage_node.log.recovery import DAMAGED_MARKER, mark_damaged
from support.simulated_fs import SimulatedFile, SimulatedFileSystem
from unit.storage_node.log.log_model import (
    SMALL,
    Model,
    add,
    append,
    check_prefix,
    make_batch,
    new_disk,
    new_log,
    read,
    reopen,
    run_job,
)

FIRST = "/data/t-0/00000000000000000000.log"


def checkpointed(seed: int, settings: TopicConfig = SMALL) -> tuple[SimulatedFileSystem, Model]:
    """A disk with a few small segments, all below the recovery point."""
    fs = new_disk(seed)
    directory, log = new_log(fs, settings)
    model = Model()
    for number in range(24):
        add(log, model, make_batch(1 + number % 3), epoch=number // 10)
        run_job(log)
    assert log.segment_count >= 3
    directory.offsets.write([(log, log.log_end_offset)])
    return fs, model


def flipped(fs: SimulatedFileSystem, position: int, bit: int, path: str = FIRST) -> SimulatedFileSystem:
    def flip(name: str, file: SimulatedFile) -> bytes:
        data = bytearray(file.synced)
        if name == path:
            data[position] ^= 1 << bit
        return bytes(data)

    return fs.crash(flip, keep_names=lambda count: count)


def without_epoch(batch: bytes) -> bytes:
    """A batch's leader epoch is covered by no checksum."""
    return batch[:12] + batch[16:]


def read_all_that_is_right(log: PartitionLog, model: Model, max_bytes: int) -> int:
    """Read from each batch on; what comes must be what was written. Returns how many reads met damage."""
    truth = {info.base_offset: without_epoch(data) for info, data in model.batches}
    refused = 0
    for info, _ in model.batches:
        try:
            data = read(log, info.last_offset, max_bytes)
        except DamagedData:
            refused += 1
            continue
        joined = b"".join(data.buffers)
        expected = info.base_offset
        for got in iter_batches(joined):
            assert got.base_offset == expected
            batch = joined[got.position : got.position + got.size_bytes]
            assert without_epoch(batch) == truth[got.base_offset]
            expected = got.next_offset
        assert data.next_offset == expected > info.last_offset
    return refused


@pytest.mark.parametrize("max_bytes", [1, 700, 1 << 20])
def test_no_flipped_bit_reaches_a_reader(max_bytes: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    fs, model = checkpointed(seed)
    size = fs.path_size(FIRST)
    for position in range(size):
        bad = flipped(fs, position, rng.randrange(8))
        bad.cold_chance = rng.choice((0.0, 0.5))
        _, log = reopen(bad, SMALL)
        assert log.log_end_offset == model.end, "nobody looks below the recovery point at a start"
        refused = read_all_that_is_right(log, model, max_bytes)
        batch = max(info.position for info in iter_batches(bytes(fs_bytes(fs))) if info.position <= position)
        assert refused or 12 <= position - batch < 16, f"byte {position}"


def fs_bytes(fs: SimulatedFileSystem) -> bytes:
    file = fs.files.pin(FIRST)
    try:
        return fs.pread(file.fd, fs.path_size(FIRST), 0)
    finally:
        fs.files.unpin(file)


def test_the_start_after_damage_was_seen_cuts_there_and_says_what_is_lacking() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    fs, model = checkpointed(seed)
    for was_clean in (False, True):
        for _ in range(50):
            position = rng.randrange(fs.path_size(FIRST))
            directory, log = reopen(flipped(fs, position, rng.randrange(8)), SMALL)
            if was_clean:
                log.close(clean=True)
                directory.offsets.write([(log, log.log_end_offset)])
                directory.close(clean=True)
                directory, log = reopen(log._fs.crash(keep_names=lambda count: count), SMALL)  # type: ignore[attr-defined]
            if not read_all_that_is_right(log, model, 700):
                continue  # a leader epoch
            disk = log._fs
            assert isinstance(disk, SimulatedFileSystem)
            mark_damaged(disk, str(log.directory), 0)
            disk = disk.crash(lambda _, file: file.synced, keep_names=lambda _: 0)
            directory, again = reopen(disk, SMALL)
            check_prefix(again, model, 0)
            assert again.log_end_offset < model.end
            assert again.log_end_offset < again.flush_point, "what it lacks is reported"
            assert directory.has_unreported
            assert not disk.exists(f"{again.directory}/{DAMAGED_MARKER}")


def test_a_mark_without_damage_costs_only_a_scan() -> None:
    fs, model = checkpointed(5)
    _, log = reopen(fs.crash(keep_names=lambda count: count), SMALL)
    mark_damaged(log._fs, str(log.directory), 0)
    disk = log._fs
    assert isinstance(disk, SimulatedFileSystem)
    _, again = reopen(disk.crash(keep_names=lambda count: count), SMALL)
    model.check(again)
    assert again.log_end_offset == again.flush_point == model.end


def test_the_mark_keeps_the_lowest_segment_and_a_mark_that_says_nothing_counts_as_all() -> None:
    fs, model = checkpointed(6)
    _, log = reopen(fs.crash(keep_names=lambda count: count), SMALL)
    disk, directory = log._fs, str(log.directory)
    assert isinstance(disk, SimulatedFileSystem)
    second = log.segments[1].base_offset
    mark_damaged(disk, directory, second)
    mark_damaged(disk, directory, log.segments[2].base_offset)
    file = disk.files.pin(f"{directory}/{DAMAGED_MARKER}")
    assert disk.pread(file.fd, 100, 0) == b"%d\n" % second
    disk.files.unpin(file)
    bad = flipped(disk, 200, 3)
    _, unmarked_part = reopen(bad, SMALL)
    assert unmarked_part.log_end_offset == model.end, "only from the marked segment on"


def test_a_crash_is_no_reason_to_cut_what_was_flushed() -> None:
    """A start after one reads from the last index entry below the recovery point on. Whatever is wrong there, a crash
    did not tear, and a cut would take what stands behind it from the only copy."""
    fs = new_disk(9)
    directory, log = new_log(fs)  # one segment, no index entry
    model = Model()
    for _ in range(6):
        add(log, model, make_batch(2))
        run_job(log)
    directory.offsets.write([(log, log.log_end_offset)])
    starts = [info.position for info in iter_batches(fs_bytes(fs))]
    for number, start in enumerate(starts):
        _, again = reopen(flipped(fs, start + 70, 2), TopicConfig())
        assert again.recovered_from_unclean
        if number == len(starts) - 1:  # nothing stands behind it
            assert again.log_end_offset == model.batches[number][0].base_offset < again.flush_point
            continue
        assert again.log_end_offset == model.end
        assert isinstance(again.damage, DamagedData)
        assert again.damage.is_from_disk
        assert read_all_that_is_right(again, model, 1) == 1
    # Above the recovery point nobody can tell it from a write that the crash tore.
    add(log, model, make_batch(2))
    add(log, model, make_batch(2))
    run_job(log)
    _, again = reopen(flipped(fs, sum(len(data) for _, data in model.batches[:-2]) + 70, 2), TopicConfig())
    assert again.log_end_offset == model.batches[-2][0].base_offset
    assert again.damage is None
    # Once it was marked, it goes, wherever it is.
    bad = flipped(fs, starts[2] + 70, 2)
    mark_damaged(bad, "/data/t-0", 0)
    _, again = reopen(bad, TopicConfig())
    assert again.log_end_offset == model.batches[2][0].base_offset < again.flush_point
    assert again.damage is None


def test_gaps_of_a_compacted_log_are_no_damage() -> None:
    """A log with gaps is walked once, and then read as any other."""
    fs = new_disk(7)
    directory, log = new_log(fs, SMALL)
    model = Model()
    for number in range(30):
        batch = make_batch(2)
        if number % 3 == 1:  # as compaction would leave it, or a leader's compacted log on its follower
            log._data.end += 5
        add(log, model, batch)
        run_job(log)
    directory.offsets.write([(log, log.log_end_offset)])
    directory.offsets.mark_compacted("t", 0)
    disk = fs.crash(keep_names=lambda count: count)
    _, again = reopen(disk, SMALL)
    model.check(again)
    assert any(segment.is_walked for segment in again.segments)
    bad = flipped(disk, 200, 3)
    _, log = reopen(bad, SMALL)
    with pytest.raises(DamagedData):
        model.check(log)


def test_what_this_process_wrote_is_not_checked_again() -> None:
    fs = new_disk(8)
    _, log = new_log(fs, SMALL)
    for _ in range(20):
        add(log, Model(), make_batch(2))
        run_job(log)
    read(log, 0)
    assert not any(segment.found_bytes for segment in log.segments)
    fs.cold_chance = 1.0  # it left the page cache: the disk is asked
    read(log, 0)
    assert log.segments[0].found_bytes == log.segments[0].written > 0


def test_a_log_that_grows_while_it_is_looked_through_is_not_called_damaged() -> None:
    class Growing(SimulatedFileSystem):
        """The loop appends, and the pool writes, whenever the log is read."""

        log: PartitionLog | None = None

        def pread(self, fd: int, size: int, position: int) -> bytes:
            log, self.log = self.log, None
            if log is not None:
                append(log, make_batch(2))
                run_job(log)
                self.log = log
            return super().pread(fd, size, position)

    fs = Growing(random.Random(9))
    _, log = new_log(fs, TopicConfig())
    for _ in range(20):
        append(log, make_batch(2))
        run_job(log)
    segment = log.segments[-1]
    segment.found_bytes = segment.written
    fs.log = log
    log._reader._unstick(Stuck(segment, Need.WALK))
    assert segment.is_walked
    assert log.log_end_offset > 40
