"""What was set aside is removed after its time, by a clock that may be wrong, and nothing else is."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator

import pytest

from penstock_runtime.lifecycle import Lifecycle
from penstock_storage_node.disk.health import DiskHealth
from penstock_storage_node.disk.pool import DiskPool
from penstock_storage_node.log import LogDirectory
from penstock_storage_node.log.strays import away_name
from penstock_storage_node.replica.strays import REMOVALS_MAX, StrayJanitor
from support.simulated_fs import SimulatedFileSystem
from unit.storage_node.log.log_model import NOW_MS, ROOT, new_disk, open_directory

DAY_MS = 24 * 60 * 60 * 1000
WEEK_MS = 7 * DAY_MS


class Rig:
    """A data directory, its clocks, and a process that comes and goes."""

    def __init__(self) -> None:
        self.fs: SimulatedFileSystem = new_disk()
        self.directory: LogDirectory = open_directory(self.fs)
        self.pool = DiskPool(1)
        self.wall_ms = NOW_MS
        self.up_ms = 0
        self.lifecycle = Lifecycle("test")

    def pass_time(self, ms: int) -> None:
        self.wall_ms += ms
        self.up_ms += ms

    def start(self, retention_ms: int = WEEK_MS) -> StrayJanitor:
        self.health = DiskHealth(self.lifecycle, lambda: self.up_ms)
        return StrayJanitor(
            self.directory,
            self.pool,
            self.lifecycle,
            self.health,
            retention_ms=retention_ms,
            wall_ms=lambda: self.wall_ms,
            monotonic_ms=lambda: self.up_ms,
        )

    def add(self, topic: str, set_aside_ms: int) -> str:
        path = f"{ROOT}/{away_name(f'{topic}-0', 'stray', stamp_ms=set_aside_ms)}"
        self.fs.make_directory(path)
        self.fs.close(self.fs.create(f"{path}/00000000000000000000.log"))
        return path


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    made.pool.stop()


async def test_it_goes_when_its_time_is_over_and_a_restart_does_not_begin_it_anew(rig: Rig) -> None:
    path = rig.add("t", NOW_MS)
    first = rig.start()
    rig.pass_time(WEEK_MS // 2)
    await first.look()
    assert first.count == 1
    second = rig.start()
    rig.pass_time(WEEK_MS // 2 - 1)
    await second.look()
    assert rig.fs.exists(path)
    rig.pass_time(1)
    await second.look()
    assert not rig.fs.exists(path)
    assert second.count == 0


async def test_a_clock_that_steps_ahead_removes_nothing_early(rig: Rig) -> None:
    path = rig.add("t", NOW_MS)
    janitor = rig.start()
    rig.wall_ms += 365 * DAY_MS
    await janitor.look()
    assert rig.fs.exists(path)
    rig.wall_ms -= 2 * 365 * DAY_MS
    rig.pass_time(WEEK_MS)
    await janitor.look()
    assert rig.fs.exists(path), "set aside in the future, as this clock has it"
    rig.wall_ms = NOW_MS + WEEK_MS
    await janitor.look()
    assert not rig.fs.exists(path)


async def test_minus_one_keeps_all_and_counts_them(rig: Rig) -> None:
    paths = [rig.add(f"t{i}", NOW_MS - 100 * WEEK_MS) for i in range(3)]
    janitor = rig.start(retention_ms=-1)
    await janitor.look()
    assert janitor.count == 3
    assert all(rig.fs.exists(path) for path in paths)


async def test_what_strays_take_is_known_until_they_go(rig: Rig) -> None:
    for name, set_aside_ms, size in (("old", NOW_MS - 2 * WEEK_MS, 1_000), ("new", NOW_MS, 300)):
        fd = rig.fs.open(f"{rig.add(name, set_aside_ms)}/00000000000000000000.log")
        rig.fs.pwritev(fd, [bytes(size)], 0)
        rig.fs.close(fd)
    keeping, removing = rig.start(retention_ms=-1), rig.start()
    await keeping.look()
    assert (keeping.count, keeping.size_bytes) == (2, 1_300)
    await removing.look()
    assert (removing.count, removing.size_bytes) == (1, 300)


async def test_only_strays_go_and_not_too_many_in_one_look(rig: Rig) -> None:
    for number in range(REMOVALS_MAX + 3):
        rig.add(f"t{number}", NOW_MS - 2 * WEEK_MS)
    others = [f"{ROOT}/{name}" for name in ("t-0", "backup-stray", "lost+found", f"t-0.{'a' * 32}-delete")]
    for path in others:
        rig.fs.make_directory(path)
    janitor = rig.start()
    await janitor.look()
    assert janitor.count == 3
    await janitor.look()
    assert janitor.count == 0
    assert all(rig.fs.exists(path) for path in others)


async def test_a_removal_that_fails_is_tried_again_and_a_dying_disk_ends_the_node(rig: Rig) -> None:
    path = rig.add("t", NOW_MS - 2 * WEEK_MS)
    janitor = rig.start()
    error = errno.EACCES
    rig.fs.fail_on = lambda call, _path: OSError(error, "no") if call == "unlink" else None
    await janitor.look()
    assert (janitor.count, rig.health.failed) == (1, False)
    error = errno.EIO
    await janitor.look()
    assert rig.health.failed
    rig.fs.fail_on = lambda call, _path: None
    await janitor.look()
    assert rig.fs.exists(path), "nothing is changed on a failed disk"
    await rig.start().look()
    assert not rig.fs.exists(path)
