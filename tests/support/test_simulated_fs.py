"""The simulated disk itself: it loses what a disk may lose, and nothing that no disk does."""

from __future__ import annotations

import random

import pytest

from support.simulated_fs import SECTOR_BYTES, SimulatedCrash, SimulatedFileSystem, keep_random

SEED = 20251121


def after_power_cut(seed: int, writes: list[tuple[int, bytes]], synced: bytes) -> bytes:
    fs = SimulatedFileSystem(random.Random(seed))
    fd = fs.create("/x")
    fs.sync_directory("/")
    fs.pwritev(fd, [synced], 0)
    fs.fdatasync(fd)
    for position, data in writes:
        fs.pwritev(fd, [data], position)
    disk = fs.crash(keep_random(fs.random))
    return disk.pread(disk.open("/x"), 1 << 20, 0)


def test_a_sector_has_no_later_write_without_an_earlier_one() -> None:
    """One write after the other into a page of the cache: what is written back has both, or the first."""
    seen: set[bytes] = set()
    for seed in range(SEED, SEED + 400):
        left = after_power_cut(seed, [(10, b"b" * 42), (52, b"c" * 8)], b"a" * 10)
        seen.add(left)
        assert left[:10] == b"a" * 10
        first, second = left[10:52], left[52:]
        assert not second.strip(b"\0") or first == b"b" * 42, left
    assert b"a" * 10 in seen
    assert b"a" * 10 + b"b" * 42 in seen
    assert b"a" * 10 + b"b" * 42 + b"c" * 8 in seen


def test_sectors_are_lost_on_their_own_and_holes_are_zeros() -> None:
    whole = bytes(range(1, 256)) * 8
    holes = 0
    for seed in range(SEED, SEED + 400):
        left = after_power_cut(seed, [(100, whole[100:])], whole[:100])
        assert left[:100] == whole[:100]
        sectors = [left[at : at + SECTOR_BYTES] for at in range(SECTOR_BYTES, len(left), SECTOR_BYTES)]
        is_there = [any(sector) for sector in sectors]
        holes += is_there != sorted(is_there, reverse=True)
        assert all(a == b or not a for a, b in zip(left, whole, strict=False))
    assert holes > 10


def test_a_short_write_ends_with_a_sector() -> None:
    fs = SimulatedFileSystem(random.Random(SEED))
    fs.short_write_chance = 1.0
    fd = fs.create("/x")
    ends = {100 + fs.pwritev(fd, [bytes(3000)], 100) for _ in range(200)}
    assert len(ends) > 5
    assert all(end % SECTOR_BYTES == 0 for end in ends - {3100})
    assert fs.pwritev(fd, [bytes(8)], 52) == 8


def test_two_processes_share_files_space_and_faults_and_no_descriptors() -> None:
    disk = SimulatedFileSystem(random.Random(SEED))
    other = SimulatedFileSystem(disk.random, first=disk)
    fd = other.create("/x")
    disk.space_bytes = 6
    assert other.pwritev(fd, [b"12345678"], 0) == 6
    assert disk.space_bytes == 0
    assert disk.pread(disk.open("/x"), 10, 0) == b"123456"
    assert (disk.open_count, other.open_count) == (1, 1)
    disk.crash_countdown = 0
    with pytest.raises(SimulatedCrash):
        other.rename("/x", "/y")
    assert disk.exists("/x")
