"""Work on old segments beside flushes, cuts and swaps; a group coordinator that meets damage. Real files."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.harness import KEY, TOPIC, MiniCluster, MiniNode, eventually, ids, make_batch
from node.test_cluster import hosted
from node.test_compaction import delete_records
from penstock_core.config.catalog import PRODUCER_EXPIRATION
from penstock_core.errors import ErrorCode
from penstock_kafka.records.batch import iter_batches
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_storage_node import coordinator_host
from penstock_storage_node.groups.host import GroupHost
from penstock_storage_node.log import FileSystem, LogState
from penstock_storage_node.settings import GroupSettings

HOLD_S_MAX = 60.0


class HeldFileSystem(FileSystem):
    """Stops one call, where `holds` says so, until `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.holds: Callable[[str, str], bool] = lambda call, path: False
        self.create_error = 0
        self.held = threading.Event()
        self.go = threading.Event()

    def _meet(self, call: str, path: str) -> None:
        if self.holds(call, path):
            self.holds = lambda call, path: False
            self.held.set()
            assert self.go.wait(HOLD_S_MAX)

    def fdatasync(self, fd: int) -> None:
        self._meet("fdatasync", "")
        super().fdatasync(fd)

    def rename(self, source: str, target: str) -> None:
        self._meet("rename", source)
        super().rename(source, target)

    def modified_ms(self, path: str) -> int:
        self._meet("modified_ms", path)
        return super().modified_ms(path)

    def create(self, path: str) -> int:
        if self.create_error:
            raise OSError(self.create_error, "refused", path)
        return super().create(path)


@pytest.fixture
async def rig(tmp_path: Path) -> Any:
    fs = HeldFileSystem()
    cluster = await MiniCluster(tmp_path).start(1, fs=fs)
    yield cluster, fs
    fs.go.set()
    await cluster.stop()


async def fill(cluster: MiniCluster, count: int = 60, **config: str) -> MiniNode:
    node = cluster.nodes[1]
    settings: dict[str, Any] = {"min_insync_replicas": "1", "segment_bytes": "4096", **config}
    cluster.make_topic(isr=(1,), **settings)
    await eventually(
        lambda: node.manager.registry.partitions and node.partition.replica.leadership is not None
    )
    for _ in range(count):
        assert (await node.produce(bytes(500))).error == ErrorCode.NONE
    return node


def files_of(node: MiniNode) -> int:
    return len(list(node.partition.log.directory.glob("*.log")))


async def test_deleting_records_beside_a_flush_fails_no_disk(rig: Any) -> None:
    cluster, fs = rig
    cluster.change(
        pb.MetadataRecord(
            config=pb.ConfigRecord(
                resource_type="topic", resource_name=TOPIC, key="penstock.durability", value="replicated"
            )
        )
    )
    node = await fill(cluster)
    partition = node.partition
    assert partition.log.flushed_offset < 60
    fs.holds = lambda call, path: call == "fdatasync"
    partition.flush(everything=True)
    await eventually(fs.held.is_set)
    partition.raise_log_start(60)
    node.manager.log_starts.drop_old_segments(partition)
    fs.go.set()
    await eventually(lambda: partition.log.flushed_offset == 60)
    assert (partition.log.state, node.manager.health.failed) == (LogState.OK, False)
    node.manager.log_starts.drop_old_segments(partition)
    await eventually(lambda: files_of(node) == 1)
    assert (await node.produce(b"x")).error == ErrorCode.NONE


async def test_a_cut_waits_for_a_removal(rig: Any) -> None:
    """Else it could make files anew under names that are about to go."""
    cluster, fs = rig
    node = await fill(cluster)
    partition, log = node.partition, node.partition.log
    partition.raise_log_start(60)
    fs.holds = lambda call, path: call == "rename" and path.endswith("0.log")
    gone = node.manager.log_starts.drop_old_segments(partition)
    assert gone is not None
    await eventually(fs.held.is_set)
    cut = partition.exclusive(lambda: log.truncate_fully_and_start_at(0))
    assert partition.access.alone is None
    fs.go.set()
    await gone
    await cut
    assert (await node.produce(b"x")).error == ErrorCode.NONE
    await eventually(lambda: log.flushed_offset == 1)
    assert (log.log_start_offset, files_of(node)) == (0, 1)


async def test_a_look_at_timestamps_holds_up_a_swap(tmp_path: Path) -> None:
    """Else it could open an old file under the name of the new one."""
    cluster = await MiniCluster(tmp_path).start(1)
    await fill(cluster, retention_ms="3600000")
    await cluster.nodes.pop(1).stop()
    fs = HeldFileSystem()
    node = await cluster.start_node(1, fs=fs)
    try:
        await eventually(lambda: node.manager.registry.partitions and not node.partition.busy)
        fs.holds = lambda call, path: call == "modified_ms"
        looked = node.manager.log_starts.drop_old_segments(node.partition)
        assert looked is not None
        await eventually(fs.held.is_set)
        ran: list[bool] = []
        swap = asyncio.ensure_future(node.partition.swap(lambda: ran.append(fs.go.is_set()), lambda _: None))
        await asyncio.sleep(0)
        assert node.partition.access.alone is None
        fs.go.set()
        await swap
        await looked
        assert ran == [True]
    finally:
        fs.go.set()
        await cluster.stop()


async def test_deleting_records_on_a_full_disk_makes_room(rig: Any) -> None:
    cluster, fs = rig
    node = await fill(cluster)
    before = files_of(node)
    fs.create_error = errno.ENOSPC
    assert (await delete_records(node, 60))[0] == ErrorCode.KAFKA_STORAGE_ERROR
    await eventually(lambda: files_of(node) < before)
    assert not node.manager.health.failed
    fs.create_error = 0
    assert await delete_records(node, 60) == (ErrorCode.NONE, 60)


async def test_deleted_records_are_gone_once_every_replica_has_it_on_its_disk(tmp_path: Path) -> None:
    """What only a follower's memory knows it forgets, and may lead."""
    cluster = await MiniCluster(tmp_path).start(1)
    fs = HeldFileSystem()
    await cluster.start_node(2, fs=fs)
    try:
        cluster.make_topic(isr=(1, 2), min_insync_replicas="2")
        await hosted(cluster)
        leader, follower = cluster.nodes[1], cluster.nodes[2]
        for _ in range(10):
            assert (await leader.produce(b"x")).error == ErrorCode.NONE
        fs.holds = lambda call, path: call == "rename" and "log-start-offset" in path
        deleting = asyncio.ensure_future(delete_records(leader, 7))
        await eventually(fs.held.is_set)
        assert follower.partition.log.log_start_offset == 7
        assert (await leader.produce(b"x")).error == ErrorCode.NONE  # which the follower has acknowledged
        assert not deleting.done()
        fs.go.set()
        assert await deleting == (ErrorCode.NONE, 7)
        assert follower.partition.saved_log_start_offset == 7
    finally:
        fs.go.set()
        await cluster.stop()


async def test_a_replica_that_starts_over_says_where_it_begins(tmp_path: Path) -> None:
    """It has it on its disk already; no checkpoint need come by."""
    cluster = await MiniCluster(tmp_path).start(1)
    try:
        cluster.make_topic(isr=(1,), min_insync_replicas="1")
        await hosted(cluster)
        leader = cluster.nodes[1]
        for _ in range(10):
            assert (await leader.produce(b"x")).error == ErrorCode.NONE
        assert await delete_records(leader, 7) == (ErrorCode.NONE, 7)
        await cluster.start_node(2)
        both = replace(cluster.state, replicas=ids(1, 2), partition_epoch=cluster.state.partition_epoch + 1)
        cluster.change(pb.MetadataRecord(partition=both.to_pb()))
        await eventually(lambda: leader.partition.replica.leadership is not None)
        leadership = leader.partition.replica.require_leader()
        await eventually(lambda: leadership.pending is not None)
        assert leadership.low_watermark() == 7
    finally:
        await cluster.stop()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_a_log_that_no_topic_owns_stays_where_it_cannot_be_set_aside(
    rig: Any, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Nobody waits for it; the operator hears of it, and of a disk that failed the controllers do."""
    cluster, fs = rig
    node = await fill(cluster)
    await cluster.nodes.pop(1).stop()
    cluster.change(pb.MetadataRecord(topic_removed=pb.TopicRemovedRecord(topic_id=KEY.topic_id)))
    node = await cluster.start_node(1, fs=fs)
    warned: list[str] = []
    monkeypatch.setattr(
        type(node.lifecycle.log), "warning", lambda _, event, **values: warned.append(event), raising=False
    )
    fs.create_error = error
    await asyncio.wait(node.manager.set_aside_strays())
    fs.create_error = 0
    assert node.manager.health.failed == (error == errno.EIO)
    assert any("stays until the next start" in line for line in warned) == (error == errno.ENOSPC)
    assert (node.path / f"{TOPIC}-0").exists()


async def test_idle_producers_are_forgotten_after_the_time_that_is_set_now(rig: Any) -> None:
    cluster, _ = rig
    node = await fill(cluster, 0)
    result = await node.produce(b"x", producer_id=5, producer_epoch=0, base_sequence=0)
    assert result.error == ErrorCode.NONE
    await asyncio.sleep(0.005)
    node.manager.log_starts.drop_old_segments(node.partition)
    assert node.partition.log.producer(5) is not None
    setting = pb.ConfigRecord(resource_type="node", resource_name="1", key=PRODUCER_EXPIRATION, value="1")
    cluster.change(pb.MetadataRecord(config=setting))
    node.manager.log_starts.drop_old_segments(node.partition)
    assert node.partition.log.producer(5) is None


# ---------------------------------------------------------------------- the group coordinator


def coordinator(node: MiniNode, monkeypatch: pytest.MonkeyPatch) -> GroupHost:
    monkeypatch.setattr(GroupHost, "topic", TOPIC)
    monkeypatch.setattr(coordinator_host, "LOAD_RETRY_S", 0.01)
    return GroupHost(node.manager, node.lifecycle, GroupSettings(), expiry_interval_ms=3_600_000)


@pytest.mark.parametrize("position", [1, 61])
async def test_a_coordinator_with_damaged_records_waits_for_them(
    rig: Any, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    """1: in the first batch's offset, so that nothing follows; 61: in its first record."""
    cluster, _ = rig
    node = await fill(cluster, 0)
    for number in range(30):
        assert (await node.produce_batch(make_batch(b"%d" % number))).error == ErrorCode.NONE
    path = node.partition.log.directory / "00000000000000000000.log"

    def flip() -> None:
        with path.open("r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 0x40]))

    flip()
    warned: list[str] = []
    monkeypatch.setattr(
        type(node.lifecycle.log), "warning", lambda _, event, **values: warned.append(event), raising=False
    )
    groups = coordinator(node, monkeypatch)
    groups.on_lead(node.partition)
    await eventually(lambda: len(warned) > 2)
    assert (groups.loading_count, list(groups.shards())) == (1, [])
    flip()
    await eventually(lambda: groups.loading_count == 0)
    assert groups.loaded_records == 30
    groups.on_stop(node.partition)


async def test_a_coordinator_serves_once_what_it_has_read_is_committed(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of its log may be lost yet: who is told of it would know what never was (a generation's
    assignment, when another one of that number follows)."""
    cluster, fs = rig
    node = await fill(cluster, 3)
    fs.holds = lambda call, path: call == "fdatasync"
    late = asyncio.create_task(node.produce(b"late"))
    await eventually(fs.held.is_set)
    log = node.partition.log
    assert (log.log_end_offset, node.partition.replica.high_watermark) == (4, 3)
    groups = coordinator(node, monkeypatch)
    groups.on_lead(node.partition)
    await eventually(lambda: groups.loaded_records == 4)
    for _ in range(20):
        await asyncio.sleep(0)
    assert groups.loading_count == 1
    fs.go.set()
    assert (await late).error == ErrorCode.NONE
    await eventually(lambda: groups.loading_count == 0)
    groups.on_stop(node.partition)


async def test_a_new_replica_of_a_log_of_which_all_is_deleted_begins_at_its_end(tmp_path: Path) -> None:
    """Its segment is there still, and nothing in it to be read: the leader read that for ever, and did nothing else."""
    cluster = await MiniCluster(tmp_path).start(1)
    try:
        cluster.make_topic(isr=(1,), min_insync_replicas="1")
        await hosted(cluster)
        leader = cluster.nodes[1]
        for _ in range(3):
            assert (await leader.produce(*[b"x" * 80] * 10)).error == ErrorCode.NONE
        leader.partition.raise_log_start(30)
        assert leader.partition.log.first_segment_offset == 0
        await cluster.start_node(2)
        both = replace(cluster.state, replicas=ids(1, 2), partition_epoch=cluster.state.partition_epoch + 1)
        cluster.change(pb.MetadataRecord(partition=both.to_pb()))
        await eventually(lambda: KEY in cluster.nodes[2].manager.registry.partitions)
        follower = cluster.nodes[2].partition.log
        await eventually(lambda: (follower.log_start_offset, follower.log_end_offset) == (30, 30))
        await eventually(lambda: leader.partition.replica.state in leader.proposed)
        cluster.set_isr(1, 2)
        assert (await leader.produce(b"y")).error == ErrorCode.NONE
        assert follower.flushed_offset == 31
    finally:
        await cluster.stop()


@pytest.mark.parametrize("first_segment", ["whole", "gone"])
async def test_a_new_replica_of_a_log_that_starts_inside_a_batch_catches_up(
    tmp_path: Path, first_segment: str
) -> None:
    """DeleteRecords may end anywhere; a log that follows can only begin where a batch does."""
    cluster = await MiniCluster(tmp_path).start(1)
    try:
        cluster.make_topic(isr=(1,), min_insync_replicas="1", segment_bytes="2000")
        await hosted(cluster)
        leader = cluster.nodes[1]
        for _ in range(8):
            assert (await leader.produce(*[b"x" * 80] * 10)).error == ErrorCode.NONE
        log = leader.partition.log
        assert log.segment_count > 3
        leader.partition.raise_log_start(5 if first_segment == "whole" else log.segments[2].base_offset + 5)
        dropped = leader.manager.log_starts.drop_old_segments(leader.partition)
        if dropped is not None:
            await dropped
        assert (log.first_segment_offset > 0) == (first_segment == "gone")
        await cluster.start_node(2)
        both = replace(cluster.state, replicas=ids(1, 2), partition_epoch=cluster.state.partition_epoch + 1)
        cluster.change(pb.MetadataRecord(partition=both.to_pb()))
        await eventually(lambda: KEY in cluster.nodes[2].manager.registry.partitions)
        follower = cluster.nodes[2].partition.log
        await eventually(lambda: follower.flushed_offset == 80)
        await eventually(lambda: follower.log_start_offset == log.log_start_offset)
        # It held nothing yet when it was told to begin lower.
        assert cluster.nodes[2].metrics.truncations_below_high_watermark == 0
        cluster.elect(2, [1, 2])
        await eventually(lambda: cluster.nodes[2].partition.replica.leadership is not None)
        await eventually(lambda: cluster.nodes[2].partition.replica.high_watermark == 80)
        found = await cluster.nodes[2].fetch(log.log_start_offset)
        assert found.error == ErrorCode.NONE
        assert next(iter_batches(b"".join(found.records))).last_offset >= log.log_start_offset
    finally:
        await cluster.stop()
