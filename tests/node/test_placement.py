"""Topics that come and go while a slow disk still makes or deletes their directories."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from node.harness import KEY, MiniCluster, MiniNode, eventually, ids, make_batch
from penstock_core.ids import LeaderEpoch, NodeId, TopicId, TopicPartition
from penstock_core.metadata.image import PartitionImage
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_storage_node.log import FileSystem
from penstock_storage_node.log.checkpoints import decode_partition_metadata

NAME = "events"


class SlowDisk(FileSystem):
    """Holds up the making of a partition's directory right after it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = False
        self.made = threading.Event()
        self.go_on = threading.Event()

    def make_directory(self, path: str) -> None:
        super().make_directory(path)
        if self.is_slow and path.endswith(f"/{NAME}-0"):
            self.is_slow = False
            self.made.set()
            self.go_on.wait()


@pytest.fixture
async def disk() -> AsyncIterator[SlowDisk]:
    slow = SlowDisk()
    yield slow
    slow.go_on.set()


@pytest.fixture
async def cluster(tmp_path: Path, disk: SlowDisk) -> AsyncIterator[MiniCluster]:
    made = await MiniCluster(tmp_path).start(1, fs=disk)
    yield made
    disk.go_on.set()
    await made.stop()


def create(cluster: MiniCluster, topic_id: TopicId) -> TopicPartition:
    state = PartitionImage(
        topic_id, 0, replicas=ids(1), isr=ids(1), leader=NodeId(1), leader_epoch=LeaderEpoch(0), partition_epoch=0
    )  # fmt: skip
    cluster.change(
        pb.MetadataRecord(topic=pb.TopicRecord(topic_id=topic_id, name=NAME)),
        pb.MetadataRecord(partition=state.to_pb()),
    )
    return state.key


def remove(cluster: MiniCluster, key: TopicPartition) -> None:
    cluster.change(pb.MetadataRecord(topic_removed=pb.TopicRemovedRecord(topic_id=key.topic_id)))


async def until(event: threading.Event) -> None:
    await asyncio.get_running_loop().run_in_executor(None, event.wait, 60)


def leads(node: MiniNode, key: TopicPartition) -> Callable[[], bool]:
    def look() -> bool:
        partition = node.manager.registry.partitions.get(key)
        return partition is not None and partition.replica.leadership is not None

    return look


async def test_a_topic_made_anew_keeps_its_directory_when_the_old_one_is_discarded(
    cluster: MiniCluster, disk: SlowDisk
) -> None:
    node = cluster.nodes[1]
    disk.is_slow = True
    old = create(cluster, TopicId(b"O" * 16))
    await until(disk.made)
    remove(cluster, old)
    new = create(cluster, TopicId(b"N" * 16))
    for _ in range(20):  # whatever the node would begin now
        await asyncio.sleep(0.005)
    disk.go_on.set()
    await eventually(leads(node, new))
    await eventually(lambda: not node.manager.registry.being_created)
    assert (await node.produce_batch(make_batch(b"kept"), topic=NAME)).error == 0
    node.manager.validate()
    folder = node.path / f"{NAME}-0"
    assert decode_partition_metadata((folder / "partition.metadata").read_bytes()) == new.topic_id
    assert [each.name for each in node.path.glob(f"{NAME}-0*")] == [f"{NAME}-0"]


async def test_a_request_waits_while_the_name_is_another_logs(cluster: MiniCluster, disk: SlowDisk) -> None:
    node = cluster.nodes[1]
    disk.is_slow = True
    old = create(cluster, TopicId(b"O" * 16))
    await until(disk.made)
    remove(cluster, old)
    new = create(cluster, TopicId(b"N" * 16))
    produced = asyncio.create_task(node.produce_batch(make_batch(b"waits"), topic=NAME))
    await asyncio.sleep(0)
    assert new in node.manager.registry.being_created
    disk.go_on.set()
    assert (await produced).error == 0


async def test_nothing_is_left_of_topics_that_went_before_their_directories_were_there(
    cluster: MiniCluster, disk: SlowDisk
) -> None:
    node = cluster.nodes[1]
    disk.is_slow = True
    old = create(cluster, TopicId(b"O" * 16))
    await until(disk.made)
    remove(cluster, old)
    remove(cluster, create(cluster, TopicId(b"N" * 16)))
    disk.go_on.set()
    await eventually(lambda: not node.manager.registry.being_created)
    await eventually(lambda: not list(node.path.glob(f"{NAME}-0*")))
    node.manager.validate()


async def test_a_snapshot_of_the_very_next_version_says_by_silence_what_is_gone(cluster: MiniCluster) -> None:
    """A controller that has begun anew, or was given a snapshot itself, has no delta even for one version."""
    node = cluster.nodes[1]
    cluster.make_topic(isr=(1,), min_insync_replicas="1", penstock_durability="replicated")
    await eventually(leads(node, KEY))

    def hear_whole(*records: pb.MetadataRecord) -> None:
        cluster.image = cluster.image.apply(records, cluster.image.version + 1)
        node.hear(cluster.image, list(cluster.image.to_records()))

    for key in ("min.insync.replicas", "penstock.durability"):
        gone = pb.ConfigRecord(resource_type="topic", resource_name=NAME, key=key)
        hear_whole(pb.MetadataRecord(config=gone))
    assert node.partition.replica.wants_fsync
    hear_whole(pb.MetadataRecord(topic_removed=pb.TopicRemovedRecord(topic_id=KEY.topic_id)))
    assert node.manager.registry.partitions == {}
    await eventually(lambda: not node.manager.deleting)
    assert not (node.path / f"{NAME}-0").exists()
