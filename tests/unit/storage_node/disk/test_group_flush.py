"""Commits that share a flush: who is flushed by what, what a failed flush means, what survives."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.harness import make_batch, wall_ms
from penstock_core.config.topic import TopicConfig
from penstock_core.ids import TopicId
from penstock_storage_node.disk import group_flush
from penstock_storage_node.disk.group_flush import FlushCosts, GroupFlush, filesystem_of, open_group_flush
from penstock_storage_node.disk.pool import DiskPool, FlushDone
from penstock_storage_node.log import Checkpointed, FileSystem, LogIdentity, LogPorts, LogState, PartitionLog
from support.simulated_fs import SimulatedFileSystem, keep_synced
from unit.storage_node.log.log_model import append, read_all_batches

SMALL = TopicConfig(segment_bytes=400, index_interval_bytes=200)


class CountingFileSystem(FileSystem):
    """Counts flushes, and fails them on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.file_flushes = 0
        self.group_flushes = 0
        self.group_error = 0
        self.write_errors: dict[str, int] = {}
        self.other_device = ""
        self.gate: threading.Event | None = None

    def fdatasync(self, fd: int) -> None:
        # Not the small files of leader epochs, which are written by themselves.
        self.file_flushes += str(Path(f"/proc/self/fd/{fd}").readlink()).endswith(".log")
        super().fdatasync(fd)

    def sync_filesystem(self, fd: int) -> None:
        self.group_flushes += 1
        if self.gate is not None:
            self.gate.wait()
        if self.group_error:
            raise OSError(self.group_error, "injected")
        os.fsync(fd)  # the real thing would flush this whole machine

    def pwritev(self, fd: int, buffers: object, position: int) -> int:
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        for part, number in self.write_errors.items():
            if part in path:
                raise OSError(number, "injected")
        return super().pwritev(fd, buffers, position)  # type: ignore[arg-type]

    def device(self, fd: int) -> int:
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        return -1 if self.other_device and self.other_device in path else super().device(fd)


class Always(FlushCosts):
    def prefers_group(self, jobs: int) -> bool:
        return True


class Rig:
    """Logs with a pool of one thread, so that whatever is handed in together gathers."""

    def __init__(self, path: Path, count: int, settings: TopicConfig | None = None) -> None:
        self.fs = CountingFileSystem()
        self.pool = DiskPool(1)
        self.flushes: list[FlushDone] = []
        self.pool.on_flush = self.flushes.append
        self.pool.use_group_flush(GroupFlush(self.fs, str(path)))
        self.pool._batcher.costs = Always(1)
        self.logs = [self._log(path / f"t-{n}", n, settings or TopicConfig()) for n in range(count)]
        self.fs.file_flushes = self.fs.group_flushes = 0

    def _log(self, path: Path, number: int, settings: TopicConfig) -> PartitionLog:
        path.mkdir()
        identity = LogIdentity("t", number, TopicId(bytes(16)))
        return PartitionLog.create(LogPorts(self.fs, wall_ms), path, settings, identity)

    def commit(self, log: PartitionLog) -> asyncio.Future[BaseException | None]:
        """Append one batch and hand the job in."""
        append(log, make_batch(b"v" * 100))
        job = log.next_job()
        assert job is not None
        done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

        def finish(_: object, error: BaseException | None) -> None:
            if error is None:
                log.complete(job)
            else:
                log.fail(job, error)
            done.set_result(error)

        self.pool.commit(job, finish)
        return done

    async def commit_all(self) -> list[BaseException | None]:
        return await asyncio.wait_for(asyncio.gather(*map(self.commit, self.logs)), 120)


@pytest.fixture
def rigs(tmp_path: Path) -> Iterator[list[Rig]]:
    made: list[Rig] = []
    yield made
    for rig in made:
        rig.pool.stop()


async def test_fifty_busy_logs_share_one_flush(tmp_path: Path, rigs: list[Rig]) -> None:
    rigs.append(rig := Rig(tmp_path, 50))
    # A job that blocks the only thread, so that all fifty are handed in before any is written.
    held = threading.Event()
    first = rig.logs[0]
    rig.fs.gate = held
    one = rig.commit(first)
    rest = [rig.commit(log) for log in rig.logs[1:]]
    held.set()
    assert await asyncio.wait_for(asyncio.gather(one, *rest), 120) == [None] * 50
    # The first may have gone alone, before the others were handed in.
    assert rig.fs.group_flushes in (1, 2)
    assert rig.fs.file_flushes == 0
    assert [log.flushed_offset for log in rig.logs] == [1] * 50
    assert sum(flush.jobs for flush in rig.flushes) == 50
    assert all(flush.grouped and not flush.failed for flush in rig.flushes)
    assert rig.pool.unflushed_jobs == 0


async def test_a_failed_group_flush_fails_all_that_it_was_for_and_is_not_repeated(
    tmp_path: Path, rigs: list[Rig]
) -> None:
    rigs.append(rig := Rig(tmp_path, 10))
    rig.fs.group_error = errno.EIO
    errors = await rig.commit_all()
    assert all(isinstance(error, OSError) and error.errno == errno.EIO for error in errors)
    assert {log.state for log in rig.logs} == {LogState.FAILED}
    assert [log.flushed_offset for log in rig.logs] == [0] * 10
    rig.fs.group_error = 0
    assert all(log.next_job(retry=True) is None for log in rig.logs)


async def test_no_space_at_the_flush_is_final_too(tmp_path: Path, rigs: list[Rig]) -> None:
    """The pages may be gone from the cache: writing on would leave a hole that reads well."""
    rigs.append(rig := Rig(tmp_path, 3))
    rig.fs.group_error = errno.ENOSPC
    await rig.commit_all()
    assert {log.state for log in rig.logs} == {LogState.FAILED}


async def test_a_failed_write_leaves_the_others_of_its_group_alone(tmp_path: Path, rigs: list[Rig]) -> None:
    rigs.append(rig := Rig(tmp_path, 6))
    rig.fs.write_errors = {"/t-2/": errno.ENOSPC, "/t-4/": errno.EIO}
    errors = await rig.commit_all()
    assert [number for number, error in enumerate(errors) if error is not None] == [2, 4]
    states = [log.state for log in rig.logs]
    assert states[2] is LogState.FULL
    assert states[4] is LogState.FAILED
    assert [log.flushed_offset for log in rig.logs] == [1, 1, 0, 1, 0, 1]


async def test_a_log_on_another_filesystem_is_flushed_by_itself(tmp_path: Path, rigs: list[Rig]) -> None:
    rigs.append(rig := Rig(tmp_path, 4))
    rig.fs.other_device = "/t-3/"
    assert await rig.commit_all() == [None] * 4
    assert rig.fs.file_flushes == 1
    assert rig.logs[3].flushed_offset == 1


async def test_replicated_logs_wait_for_no_flush(tmp_path: Path, rigs: list[Rig]) -> None:
    rigs.append(rig := Rig(tmp_path, 4, TopicConfig(durability="replicated")))
    assert await rig.commit_all() == [None] * 4
    assert rig.fs.group_flushes == rig.fs.file_flushes == 0
    assert not rig.flushes
    assert all(log.has_unflushed for log in rig.logs)


async def test_what_was_gathered_is_flushed_when_the_pool_stops(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 20)
    waiting = [rig.commit(log) for log in rig.logs]
    await asyncio.get_running_loop().run_in_executor(None, rig.pool.stop)
    assert await asyncio.wait_for(asyncio.gather(*waiting), 120) == [None] * 20


async def test_without_a_group_flush_each_log_has_its_own(tmp_path: Path, rigs: list[Rig]) -> None:
    rigs.append(rig := Rig(tmp_path, 5))
    rig.pool.use_group_flush(None)
    assert await rig.commit_all() == [None] * 5
    assert (rig.fs.group_flushes, rig.fs.file_flushes) == (0, 5)


@pytest.mark.parametrize("seed", range(20))
def test_a_group_flush_keeps_rolls_through_a_power_cut(seed: int) -> None:
    """Segments, indexes, snapshots and names: one syncfs covers what the file's own flushes would."""
    rng = random.Random(seed)
    fs = SimulatedFileSystem(rng)
    fs.make_directory("/data")
    fs.sync_directory("/")
    logs: list[PartitionLog] = []
    for number in range(3):
        fs.make_directory(f"/data/t-{number}")
        identity = LogIdentity("t", number, TopicId(bytes(16)))
        ports = LogPorts(fs, lambda: 0)
        logs.append(PartitionLog.create(ports, Path(f"/data/t-{number}"), SMALL, identity))
    fd = fs.open_directory("/data")
    for _ in range(rng.randint(1, 8)):
        jobs = []
        for log in logs:
            for _ in range(rng.randint(0, 4)):
                append(log, make_batch(rng.randbytes(rng.randint(1, 150))))
            job = log.next_job()
            if job is not None:
                job.write()
                jobs.append((log, job))
        fs.sync_filesystem(fd)
        for log, job in jobs:
            job.release()
            log.complete(job)
    kept = [(log.log_end_offset, read_all_batches(log)) for log in logs]
    after = fs.crash(keep_synced, keep_names=lambda _: 0)
    for number, (end, batches) in enumerate(kept):
        identity, ports = LogIdentity("t", number, TopicId(bytes(16))), LogPorts(after, lambda: 0)
        log = PartitionLog.open(
            ports, Path(f"/data/t-{number}"), SMALL, identity, Checkpointed(recovery_point=0)
        )
        assert (log.log_end_offset, read_all_batches(log)) == (end, batches), f"seed {seed}"


def test_the_cheaper_kind_is_used_and_a_dear_one_asked_again() -> None:
    costs = FlushCosts(4, file_s=0.001, group_s=0.002)
    assert not costs.prefers_group(1)
    assert not costs.prefers_group(4)
    assert costs.prefers_group(100)
    costs.note_group(3.0)  # somebody copies a disk image
    assert not costs.prefers_group(100)
    asked = 1
    while not costs.prefers_group(100):
        asked += 1
    assert 100 < asked < 10_000
    costs.note_group(0.002)
    assert costs.prefers_group(100)


def test_syncfs_is_used_only_where_it_reports_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "23 22 0:40 / /merged rw - overlay overlay rw\n"
        "24 22 8:17 /sub /data\\040x rw shared:2 master:1 - xfs /dev/sdb1 rw\n"
    )
    assert filesystem_of(os.makedev(8, 1), str(mounts)) == "ext4"
    assert filesystem_of(os.makedev(0, 40), str(mounts)) == "overlay"
    assert filesystem_of(os.makedev(8, 17), str(mounts)) == "xfs"
    assert filesystem_of(os.makedev(9, 9), str(mounts)) == ""
    assert filesystem_of(0, str(tmp_path / "none")) == ""
    monkeypatch.setattr("platform.release", lambda: "5.10.0-generic")
    assert open_group_flush(FileSystem(), str(tmp_path))[1].startswith("Linux 5.10")
    monkeypatch.setattr("platform.release", lambda: "6.1.0")
    monkeypatch.setattr(group_flush, "filesystem_of", lambda *_: "overlay")
    group, why_not = open_group_flush(FileSystem(), str(tmp_path))
    assert group is None
    assert "overlay" in why_not


def test_an_error_of_before_the_start_is_told_and_not_taken_for_ours(tmp_path: Path) -> None:
    fs = CountingFileSystem()
    fs.group_error = errno.EIO
    group = GroupFlush(fs, str(tmp_path))
    assert "injected" in group.earlier_error
    fs.group_error = 0
    group.sync()
    group.close()


def test_syncfs_is_there(tmp_path: Path) -> None:
    """The real call, once: it flushes this machine's disk."""
    fs = FileSystem()
    fd = fs.open_directory(str(tmp_path))
    fs.sync_filesystem(fd)
    fs.close(fd)
    with pytest.raises(OSError, match="syncfs") as caught:
        fs.sync_filesystem(fd)
    assert caught.value.errno == errno.EBADF
