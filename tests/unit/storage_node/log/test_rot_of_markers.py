"""Bits of a transaction's marker that a disk forgot: the log says so when it is opened or cut, with no reader there."""

from __future__ import annotations

import random

import pytest

from penstock_kafka.records.batch import BatchInfo, iter_batches
from penstock_storage_node.log import LogDirectory, PartitionLog
from penstock_storage_node.log.damage import DamagedData
from support.simulated_fs import SimulatedFile, SimulatedFileSystem, keep_all
from unit.storage_node.log.log_model import new_disk, new_log, reopen, run_job
from unit.storage_node.log.transaction_model import (
    SMALL,
    TransactionalLog,
    aborted_between,
    content_of,
)

SEED = 2092
"""Of the simulated run that found it."""
LEADER_EPOCH = range(12, 16)
"""Bytes of a batch that its checksum does not cover, and nothing else tells."""


def ended_once(*, commits: bool) -> tuple[SimulatedFileSystem, TransactionalLog]:
    """A log of one segment, cleanly stopped: a transaction of the first producer, its marker, and a record behind it.

    No high watermark is known to cover the marker, so the next start replays all from the batches.
    """
    fs = new_disk(SEED)
    directory, log = new_log(fs, SMALL)
    t = TransactionalLog(random.Random(SEED), log)
    first, other = t.producers[:2]
    t.data(first, transactional=True)
    t.end(first, commits=commits)
    t.data(other, transactional=False)
    run_job(log)
    return stopped(directory, log), t


def stopped(directory: LogDirectory, log: PartitionLog) -> SimulatedFileSystem:
    fs = log._fs
    assert isinstance(fs, SimulatedFileSystem)
    log.close(clean=True)
    directory.offsets.write([(log, 0)])
    directory.close(clean=True)
    return fs.crash(keep_all)


def is_told(log: PartitionLog) -> bool:
    return isinstance(log.damage, DamagedData)


def marker_of(t: TransactionalLog) -> BatchInfo:
    position = 0
    for info, data in t.model.batches:
        if info.is_control:
            info.position = position
            return info
        position += len(data)
    raise AssertionError("no marker")


def flipped(fs: SimulatedFileSystem, path: str, position: int, bit: int) -> SimulatedFileSystem:
    def flip(name: str, file: SimulatedFile) -> bytes:
        data = bytearray(file.data)
        if name == path:
            data[position] ^= 1 << bit
        return bytes(data)

    return fs.crash(flip)


@pytest.mark.parametrize("commits", [True, False])
def test_no_flipped_bit_of_a_marker_is_passed_over(commits: bool) -> None:
    fs, t = ended_once(commits=commits)
    marker, path = marker_of(t), t.log.segments[0].path
    _, sound = reopen(fs.crash(keep_all), SMALL)
    assert sound.damage is None
    assert sound.last_stable_offset(sound.log_end_offset) == sound.log_end_offset
    for at in range(marker.size_bytes):
        for bit in range(8):
            _, log = reopen(flipped(fs, path, marker.position + at, bit), SMALL)
            if at in LEADER_EPOCH:
                continue
            if log.recovered_from_unclean:
                continue  # no batch follows where it says that it ends: all was read, and cut there
            assert isinstance(log.damage, DamagedData), f"byte {at}, bit {bit}"
            assert log.damage.base_offset == log.segments[0].base_offset
            assert log.damage.is_from_disk
            assert log.log_end_offset == t.model.end, "nothing is cut: it may be the only copy"


def test_every_start_sees_it_until_somebody_mends_it() -> None:
    """The transaction counts as open, and a snapshot that said so would hide the damage from the next start."""
    fs, t = ended_once(commits=True)
    marker, path = marker_of(t), t.log.segments[0].path
    fs = flipped(fs, path, marker.position + marker.size_bytes - 1, 0)
    for _ in range(2):
        directory, t.log = reopen(fs, SMALL)
        assert t.log.damage is not None
        assert t.log.last_stable_offset(t.log.log_end_offset) == 0
        segments = t.log.segment_count
        while t.log.segment_count < segments + 2:
            t.data(None, transactional=False)
            run_job(t.log)
        fs = stopped(directory, t.log)


def test_an_aborted_transaction_stays_aborted_though_its_marker_is_damaged() -> None:
    fs, t = ended_once(commits=False)
    marker, path = marker_of(t), t.log.segments[0].path
    (row,) = t.told.aborted
    _, log = reopen(flipped(fs, path, marker.position + marker.size_bytes - 1, 0), SMALL)
    assert is_told(log)
    assert aborted_between(log, 0, log.log_end_offset) == (row,)
    log.truncate_to(marker.next_offset)
    assert is_told(log)
    assert aborted_between(log, 0, log.log_end_offset) == (row,)
    log.truncate_to(marker.base_offset)
    assert not is_told(log)
    assert aborted_between(log, 0, log.log_end_offset) == ()


def test_an_index_that_is_damaged_too_has_the_read_refused() -> None:
    """Nobody knows any more what was aborted, and it must not pass for committed."""
    fs = new_disk(SEED)
    _, log = new_log(fs, SMALL)
    t = TransactionalLog(random.Random(SEED), log)
    while not (log.segment_count >= 3 and any(s.aborted.saved_count for s in log.segments[1:-1])):
        t.any_step()
        run_job(log)
    victim = next(s for s in log.segments[1:-1] if s.aborted.saved_count)
    row = aborted_between(log, victim.base_offset, log.end_of(victim))[-1]
    for info in iter_batches(content_of(fs, victim.path)):
        if info.base_offset == row.last_offset:
            fd = fs.open(victim.path)
            last = info.position + info.size_bytes - 1
            fs.pwritev(fd, [bytes([fs.pread(fd, 1, last)[0] ^ 1])], last)
    fd = fs.open(victim.aborted.path)
    fs.pwritev(fd, [b"\xff"], 1)
    fs.aborted_rows.forget(victim.aborted.path)
    with pytest.raises(DamagedData):
        aborted_between(log, victim.base_offset, log.end_of(victim))


def test_a_cut_tells_it_too_and_forgets_it_with_the_batch() -> None:
    fs, t = ended_once(commits=True)
    marker, path = marker_of(t), t.log.segments[0].path
    _, log = reopen(fs, SMALL)
    t.log = log
    t.follow_log()
    assert not is_told(log)
    disk = log._fs
    assert isinstance(disk, SimulatedFileSystem)
    fd = disk.open(path)
    last = marker.position + marker.size_bytes - 1
    disk.pwritev(fd, [bytes([disk.pread(fd, 1, last)[0] ^ 1])], last)
    t.data(t.producers[1], transactional=False)
    run_job(log)
    log.truncate_to(t.model.end - 1)
    assert is_told(log)
    log.truncate_to(marker.base_offset)
    assert not is_told(log)
    log.truncate_fully_and_start_at(100)
    assert not is_told(log)
