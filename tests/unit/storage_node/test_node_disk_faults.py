"""A failing or full disk: nothing is acknowledged that is not safe, and others take over."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock_core.errors import ErrorCode
from penstock_storage_node.log import FileSystem, LogState
from unit.storage_node.node_harness import MiniCluster, eventually
from unit.storage_node.test_node_cluster import hosted, stored


class FaultyFileSystem(FileSystem):
    """Fails what it is told to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.fsync_error = 0
        self.write_error = 0

    def fdatasync(self, fd: int) -> None:
        if self.fsync_error:
            raise OSError(self.fsync_error, "injected")
        super().fdatasync(fd)

    def pwritev(self, fd: int, buffers: object, position: int) -> int:
        if self.write_error:
            raise OSError(self.write_error, "injected")
        return super().pwritev(fd, buffers, position)  # type: ignore[arg-type]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    made = MiniCluster(tmp_path)
    for number in (1, 2, 3):
        await made.start_node(number, fs=FaultyFileSystem())
    made.make_topic()
    await hosted(made)
    yield made
    for node in made.nodes.values():
        await node.stop(clean=False)


def disk_of(cluster: MiniCluster, number: int) -> FaultyFileSystem:
    fs = cluster.nodes[number].fs
    assert isinstance(fs, FaultyFileSystem)
    return fs


async def test_a_failed_flush_is_final_and_others_take_over(cluster: MiniCluster) -> None:
    leader = cluster.nodes[1]
    await leader.produce(b"safe")
    disk_of(cluster, 1).fsync_error = errno.EIO
    assert (await leader.produce(b"unsafe")).error == ErrorCode.REQUEST_TIMED_OUT
    assert leader.manager.disk_failed
    assert leader.partition.log.state is LogState.FAILED
    # Mended or not: never taken for clean until it has been opened anew.
    disk_of(cluster, 1).fsync_error = 0
    assert (await leader.produce(b"more")).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert (await leader.fetch(0)).error == ErrorCode.KAFKA_STORAGE_ERROR
    cluster.elect(2, [2, 3])
    await eventually(lambda: cluster.nodes[2].partition.replica.leadership is not None)
    assert (await cluster.nodes[2].produce(b"next")).error == ErrorCode.NONE
    assert b"safe" in stored(cluster.nodes[2])


async def test_a_follower_that_cannot_flush_acknowledges_nothing(cluster: MiniCluster) -> None:
    disk_of(cluster, 3).fsync_error = errno.EIO
    waiting = asyncio.ensure_future(cluster.nodes[1].produce(b"x", timeout_ms=20_000))
    await eventually(lambda: cluster.nodes[3].manager.disk_failed)
    await asyncio.sleep(0.1)
    assert not waiting.done()
    assert cluster.nodes[1].partition.replica.high_watermark == 0
    cluster.set_isr(1, 2)
    assert (await waiting).error == ErrorCode.NONE


async def test_a_full_disk_refuses_loses_nothing_and_goes_on_by_itself(cluster: MiniCluster) -> None:
    leader = cluster.nodes[1]
    await leader.produce(b"before")
    disk_of(cluster, 1).write_error = errno.ENOSPC
    waiting = asyncio.ensure_future(leader.produce(b"staged", timeout_ms=20_000))
    await eventually(lambda: leader.partition.log.state is LogState.FULL)
    assert (await leader.produce(b"refused")).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert (await leader.fetch(0)).error == ErrorCode.NONE
    assert not waiting.done()
    assert not leader.manager.disk_failed
    disk_of(cluster, 1).write_error = 0
    assert (await waiting).error == ErrorCode.NONE
    assert (await leader.produce(b"after")).error == ErrorCode.NONE
    await eventually(lambda: stored(cluster.nodes[3]) == stored(leader))
    assert b"refused" not in stored(leader)


async def test_a_full_follower_catches_up_once_there_is_space(cluster: MiniCluster) -> None:
    disk_of(cluster, 3).write_error = errno.ENOSPC
    waiting = [
        asyncio.ensure_future(cluster.nodes[1].produce(b"%d" % i, timeout_ms=30_000)) for i in range(5)
    ]
    await eventually(lambda: cluster.nodes[3].partition.log.state is LogState.FULL)
    await asyncio.sleep(0.1)
    disk_of(cluster, 3).write_error = 0
    assert [r.error for r in await asyncio.gather(*waiting)] == [0] * 5
    await eventually(lambda: stored(cluster.nodes[3]) == stored(cluster.nodes[1]))
