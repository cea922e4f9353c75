"""A failing or full disk: nothing is acknowledged that is not safe, and others take over."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from node.harness import KEY, TOPIC_ID, MiniCluster, eventually, make_batch
from node.test_cluster import hosted, stored
from penstock_core.config.topic import TopicConfig
from penstock_core.errors import ErrorCode
from penstock_core.ids import NodeId, TopicId, TopicPartition
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_storage_node.disk import space
from penstock_storage_node.log import FileSystem, LogState
from penstock_storage_node.log.checkpoints import TOMBSTONE_FILE
from penstock_storage_node.replica.partition import Partition


class FaultyFileSystem(FileSystem):
    """Fails what it is told to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.fsync_error = 0
        self.write_error = 0
        self.create_error = 0
        self.read_error = 0
        self.refused_creates = 0

    def fdatasync(self, fd: int) -> None:
        if self.fsync_error:
            raise OSError(self.fsync_error, "injected")
        super().fdatasync(fd)

    def create(self, path: str) -> int:
        if self.create_error:
            self.refused_creates += 1
            raise OSError(self.create_error, "injected")
        return super().create(path)

    def make_directory(self, path: str) -> None:
        if self.create_error:
            self.refused_creates += 1
            raise OSError(self.create_error, "injected")
        super().make_directory(path)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        if self.read_error:
            raise OSError(self.read_error, "injected")
        return super().pread(fd, size, position)

    def preadv_nowait(self, fd: int, buffer: bytearray, position: int) -> int:
        if self.read_error:
            raise BlockingIOError(errno.EAGAIN, "not in the page cache")
        return super().preadv_nowait(fd, buffer, position)

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
    assert leader.manager.health.failed
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
    waiting = asyncio.ensure_future(cluster.nodes[1].produce(b"x", timeout_ms=60_000))
    await eventually(lambda: cluster.nodes[3].manager.health.failed)
    leadership = cluster.nodes[1].partition.replica.leadership
    assert leadership is not None
    # The leader has heard all that the follower said before it gave up, and that the other one is done.
    await eventually(lambda: not leadership.followers[NodeId(3)].heard)
    await eventually(lambda: leadership.followers[NodeId(2)].flushed_offset == 1)
    await eventually(lambda: cluster.nodes[1].partition.log.flushed_offset == 1)
    assert not waiting.done()
    assert cluster.nodes[1].partition.replica.high_watermark == 0
    cluster.set_isr(1, 2)
    assert (await waiting).error == ErrorCode.NONE


async def test_a_full_disk_refuses_loses_nothing_and_goes_on_by_itself(cluster: MiniCluster) -> None:
    leader = cluster.nodes[1]
    await leader.produce(b"before")
    disk_of(cluster, 1).write_error = errno.ENOSPC
    waiting = asyncio.ensure_future(leader.produce(b"staged", timeout_ms=60_000))
    await eventually(lambda: leader.partition.log.state is LogState.FULL)
    assert (await leader.produce(b"refused")).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert (await leader.fetch(0)).error == ErrorCode.NONE
    assert not waiting.done()
    assert not leader.manager.health.failed
    disk_of(cluster, 1).write_error = 0
    assert (await waiting).error == ErrorCode.NONE
    assert (await leader.produce(b"after")).error == ErrorCode.NONE
    await eventually(lambda: stored(cluster.nodes[3]) == stored(leader))
    assert b"refused" not in stored(leader)


async def test_a_full_disk_is_told_at_once_and_room_when_it_has_been_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "HOLD_MS", 300)
    cluster = MiniCluster(tmp_path)
    node = await cluster.start_node(1, fs=FaultyFileSystem())
    cluster.make_topic(isr=(1,))
    await hosted(cluster)
    told: list[bool] = []
    node.manager.health.space_listeners.append(lambda: told.append(node.manager.health.space.full))
    disk_of(cluster, 1).write_error = errno.EDQUOT
    # Timed out or refused: it is the disk's state that counts here.
    await node.produce(b"staged", timeout_ms=100)
    await eventually(lambda: told == [True])
    # With nothing to write, whether there is room is found out by trying.
    probes = node.pool.jobs_done
    await eventually(lambda: node.pool.jobs_done > probes + 5)
    assert told == [True]
    disk_of(cluster, 1).write_error = 0
    await eventually(lambda: told == [True, False])
    assert not node.manager.health.failed
    assert not (node.path / space.PROBE_FILE).exists()
    await eventually(lambda: node.partition.log.state is LogState.OK)  # what it holds in memory goes first
    assert (await node.produce(b"after")).error == ErrorCode.NONE
    await cluster.stop()


async def test_a_full_leader_that_hands_over_keeps_what_it_staged_and_follows(cluster: MiniCluster) -> None:
    leader, successor = cluster.nodes[1], cluster.nodes[2]
    await leader.produce(b"before")
    disk_of(cluster, 1).write_error = errno.ENOSPC
    waiting = asyncio.ensure_future(leader.produce(b"staged", timeout_ms=60_000))
    await eventually(lambda: all(cluster.nodes[n].partition.log.flushed_offset == 2 for n in (2, 3)))
    assert leader.partition.log.state is LogState.FULL
    # As the controllers do: another leader, the same ISR.
    cluster.elect(2, [1, 2, 3])
    assert (await waiting).error != ErrorCode.NONE, "its own disk hasn't it"
    await eventually(lambda: successor.partition.replica.leadership is not None)
    after = asyncio.ensure_future(successor.produce(b"after", timeout_ms=60_000))
    await eventually(lambda: cluster.nodes[3].partition.log.flushed_offset == 3)
    assert not after.done(), "a member of the ISR hasn't it"
    cluster.set_isr(2, 3)
    assert (await after).error == ErrorCode.NONE
    disk_of(cluster, 1).write_error = 0
    await eventually(lambda: stored(leader) == stored(successor) == stored(cluster.nodes[3]))
    for value in (b"before", b"staged", b"after"):
        assert value in stored(leader)


async def test_a_full_follower_catches_up_once_there_is_space(cluster: MiniCluster) -> None:
    disk_of(cluster, 3).write_error = errno.ENOSPC
    waiting = [
        asyncio.ensure_future(cluster.nodes[1].produce(b"%d" % i, timeout_ms=60_000)) for i in range(5)
    ]
    await eventually(lambda: cluster.nodes[3].partition.log.state is LogState.FULL)
    await eventually(lambda: all(cluster.nodes[n].partition.log.flushed_offset == 5 for n in (1, 2)))
    assert not any(future.done() for future in waiting)
    assert not cluster.nodes[3].manager.health.failed
    disk_of(cluster, 3).write_error = 0
    assert [r.error for r in await asyncio.gather(*waiting)] == [0] * 5
    await eventually(lambda: stored(cluster.nodes[3]) == stored(cluster.nodes[1]))


OTHER_ID = TopicId(b"O" * 16)


def make_other_topic(cluster: MiniCluster) -> Callable[[int], Partition]:
    """A second topic with the same replicas, led by node 1; its partition by node."""
    state = replace(cluster.state, topic_id=OTHER_ID)
    cluster.change(
        pb.MetadataRecord(topic=pb.TopicRecord(topic_id=OTHER_ID, name="other")),
        pb.MetadataRecord(partition=state.to_pb()),
    )
    return lambda number: cluster.nodes[number].manager.registry.partitions[TopicPartition(OTHER_ID, 0)]


async def test_a_failed_disk_takes_the_whole_node_out_and_says_why(cluster: MiniCluster) -> None:
    """Another partition's file is on the same disk: its acks are worth as little."""
    other = make_other_topic(cluster)
    await eventually(lambda: TopicPartition(OTHER_ID, 0) in cluster.nodes[1].manager.registry.partitions)
    await eventually(lambda: other(1).replica.leadership is not None)
    leader = cluster.nodes[1]
    told: list[bool] = []
    leader.manager.health.listeners.append(lambda: told.append(leader.manager.health.failed))
    disk_of(cluster, 1).fsync_error = errno.EIO
    assert (await leader.produce(b"unsafe")).error == ErrorCode.REQUEST_TIMED_OUT
    disk_of(cluster, 1).fsync_error = 0
    assert told == [True]
    assert other(1).log.state is LogState.OK
    assert other(1).replica.leadership is None
    refused = await leader.produce_batch(make_batch(b"x"), topic="other")
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
    reason = leader.lifecycle.ready_reason()
    assert reason is not None
    assert "events-0" in reason
    assert "injected" in reason
    # No role is taken any more, whatever the metadata say.
    cluster.elect(1, [1, 2, 3])
    assert (await leader.produce(b"more")).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert leader.partition.replica.leadership is None
    assert not leader.manager.registry.leading


async def test_no_space_at_a_flush_is_no_full_disk_but_a_failed_one(cluster: MiniCluster) -> None:
    leader = cluster.nodes[1]
    await leader.produce(b"safe")
    disk_of(cluster, 1).fsync_error = errno.ENOSPC
    assert (await leader.produce(b"unsafe")).error == ErrorCode.REQUEST_TIMED_OUT
    assert leader.partition.log.state is LogState.FAILED
    assert leader.manager.health.failed


async def test_an_unreadable_disk_gives_up_its_roles(cluster: MiniCluster) -> None:
    leader = cluster.nodes[1]
    await leader.produce(b"safe")
    disk_of(cluster, 1).read_error = errno.EIO
    assert (await leader.fetch(0)).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert leader.manager.health.failed
    assert leader.partition.replica.leadership is None


async def test_checkpoints_that_cannot_be_flushed_count_as_a_failed_disk(cluster: MiniCluster) -> None:
    await cluster.nodes.pop(2).stop()
    node = await cluster.start_node(2, fs=FaultyFileSystem(), checkpoint_interval_ms=100)
    await eventually(lambda: KEY in node.manager.registry.partitions)
    assert not node.manager.health.failed
    disk_of(cluster, 2).fsync_error = errno.EIO
    await eventually(lambda: node.manager.health.failed)


async def test_a_new_partition_waits_for_space(cluster: MiniCluster) -> None:
    for number in (1, 2, 3):
        disk_of(cluster, number).create_error = errno.ENOSPC
    other = make_other_topic(cluster)
    # Whoever tries a second time has seen the first fail.
    await eventually(lambda: all(disk_of(cluster, number).refused_creates >= 2 for number in (1, 2, 3)))
    assert not any(node.manager.health.failed for node in cluster.nodes.values())
    for number in (1, 2, 3):
        disk_of(cluster, number).create_error = 0
    key = TopicPartition(OTHER_ID, 0)
    await eventually(lambda: all(key in n.manager.registry.partitions for n in cluster.nodes.values()))
    await eventually(lambda: other(1).replica.leadership is not None)
    result = await cluster.nodes[1].produce_batch(make_batch(b"x"), topic="other", timeout_ms=60_000)
    assert result.error == ErrorCode.NONE


async def test_a_topic_can_be_deleted_on_a_full_disk(cluster: MiniCluster) -> None:
    leader = cluster.nodes[1]
    await leader.produce(b"x")
    await leader.pool.run(lambda: leader.directory.offsets.write([(leader.partition.log, 1)]))
    directory = leader.partition.log.directory
    disk_of(cluster, 1).write_error = disk_of(cluster, 1).create_error = errno.ENOSPC
    cluster.change(pb.MetadataRecord(topic_removed=pb.TopicRemovedRecord(topic_id=TOPIC_ID)))
    await eventually(lambda: not list(directory.parent.glob("events-0*")))
    assert not leader.manager.health.failed
    # A new topic of that name begins at 0, for the old one's offsets are forgotten by then.
    disk_of(cluster, 1).write_error = disk_of(cluster, 1).create_error = 0
    rows = (directory.parent / "recovery-point-offset-checkpoint").read_text()
    assert "events 0 1" in rows
    made = await leader.pool.run(lambda: leader.directory.create_log("events", 0, OTHER_ID, TopicConfig()))
    assert made.log_end_offset == 0
    rows = (directory.parent / "recovery-point-offset-checkpoint").read_text()
    assert "events 0 1" not in rows
    await leader.pool.run(lambda: made.close(clean=False))


async def test_a_truncation_waits_for_space(cluster: MiniCluster) -> None:
    """Nothing is cut before what needs space is done; then the leader asks again."""
    for index in range(3):
        assert (await cluster.nodes[1].produce(b"%d" % index)).error == 0
    follower = cluster.nodes[3]
    # Node 3 leads for a moment, alone, and writes what nobody else gets.
    cluster.elect(3, [3], only=[3])
    await eventually(lambda: follower.partition.replica.leadership is not None)
    asyncio.ensure_future(follower.produce(b"lost", acks=1))  # noqa: RUF006
    log = follower.partition.log
    await eventually(lambda: log.flushed_offset == 4)
    # The recovery point is on disk, so that it has to be lowered first.
    await follower.pool.run(lambda: follower.directory.offsets.write([(log, 3)]))
    disk_of(cluster, 3).write_error = disk_of(cluster, 3).create_error = errno.ENOSPC
    cluster.elect(1, [1, 2])
    assert (await cluster.nodes[1].produce(b"kept", acks=1)).error == 0
    failures = follower.metrics.write_failures
    await eventually(lambda: follower.metrics.write_failures > failures + 1)
    assert not follower.manager.health.failed
    assert (log.log_end_offset, log.flushed_offset, log.state) == (4, 4, LogState.OK)
    disk_of(cluster, 3).write_error = disk_of(cluster, 3).create_error = 0
    await eventually(lambda: stored(follower) == stored(cluster.nodes[1]))
    assert b"lost" not in stored(follower)


async def test_a_truncation_whose_end_cannot_be_noted_is_a_failed_disk(
    cluster: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the replica would follow nobody from then on, of a node that seems well."""
    assert (await cluster.nodes[1].produce(b"0")).error == 0
    follower, disk = cluster.nodes[3], disk_of(cluster, 3)
    cluster.elect(3, [3], only=[3])
    await eventually(lambda: follower.partition.replica.leadership is not None)
    asyncio.ensure_future(follower.produce(b"lost", acks=1))  # noqa: RUF006
    log = follower.partition.log
    await eventually(lambda: log.flushed_offset == 2)
    await follower.pool.run(lambda: follower.directory.offsets.note_tombstones_gone(log, 2))
    create = disk.create

    def refuse(path: str) -> int:
        if TOMBSTONE_FILE in path:
            raise OSError(errno.EIO, "injected")
        return create(path)

    monkeypatch.setattr(disk, "create", refuse)
    cluster.elect(1, [1, 2])
    await eventually(lambda: follower.manager.health.failed)
