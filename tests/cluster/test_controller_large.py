"""Very many partitions: snapshots, a lagging controller, new subscribers, a fenced node.

`make large` has a hundred thousand of them. Nobody may notice: no election, no session lost. How long each process
held up its own loop and its own tick is printed (processor time, see `support.stalls`), not asserted.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pysyncobj.syncobj import _COMMAND_TYPE

from penstock_controller.quorum.journal import DurableJournal
from penstock_controller.quorum.snapshot import SNAPSHOT_FILE
from penstock_controller.quorum.snapshot_format import Snapshot, encode
from penstock_core.errors import PenstockError
from penstock_core.ids import NO_NODE, NodeId
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.lifecycle import monotonic_ms
from penstock_runtime.metadata_client import MetadataClient
from support.controllers import Controllers

pytestmark = pytest.mark.alone

PARTITIONS = int(os.environ.get("PENSTOCK_LARGE_PARTITIONS", "30000"))
PER_TOPIC = 1_000
NODES = (1, 2, 3)
PATIENCE_S = 400
SNAPSHOT_EVERY = 300
VERSION = 50


@pytest.fixture
def controllers(tmp_path: Path) -> Iterator[Controllers]:
    # Timeouts for a machine on which everything else runs as well; nothing here depends on them.
    quorum = Controllers(
        tmp_path,
        3,
        raft_snapshot_every=SNAPSHOT_EVERY,
        raft_silence_ms=15_000,
        node_session_timeout_ms=60_000,
        leader_rebalance_interval_ms=1_000,
    )
    quorum.measure_stalls = True
    yield quorum
    quorum.kill_all()


class Node:
    """Registers and keeps a session, as a storage node does; counts how often it lost it."""

    def __init__(self, node_id: int, controllers: Controllers, channels: ChannelPool) -> None:
        self.node_id = node_id
        self.client = controllers.client(channels)
        # So that a controller which looks whether it is there finds it.
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.lost = 0
        self.active = asyncio.Event()
        self.node_epoch = node_id

    async def live(self) -> None:
        while True:
            try:
                stream = await self.client.session("NodeSession", PATIENCE_S * 1000)
                await asyncio.gather(self._beat(stream), self._listen(stream))
            except PenstockError:
                self.lost += 1

    async def _beat(self, stream: object) -> None:
        while True:
            await stream.write(  # type: ignore[attr-defined]
                api.NodeHeartbeat(node_id=self.node_id, node_epoch=self.node_epoch, metadata_version=VERSION)
            )
            await asyncio.sleep(0.25)

    async def _listen(self, stream: object) -> None:
        while True:
            reply = await stream.read()  # type: ignore[attr-defined]
            assert not reply.error.code, reply
            if reply.fenced:
                assert not self.active.is_set(), f"node {self.node_id} was fenced"
            else:
                self.active.set()


def large_image(nodes: Iterable[Node]) -> MetadataImage:
    """Every partition on every node, all in sync."""
    records = [pb.MetadataRecord(cluster=pb.ClusterRecord(cluster_id=b"c" * 16))]
    for node in nodes:
        grpc = common.Endpoint(host="127.0.0.1", port=node.listener.getsockname()[1])
        record = pb.NodeRecord(node_id=node.node_id, node_epoch=node.node_epoch, grpc=grpc)
        records.append(pb.MetadataRecord(node=record))
    for number in range(PARTITIONS):
        topic, index = divmod(number, PER_TOPIC)
        topic_id = uuid.UUID(int=topic + 1).bytes
        if index == 0:
            records.append(pb.MetadataRecord(topic=pb.TopicRecord(topic_id=topic_id, name=f"t{topic}")))
        replicas = [NODES[(number + n) % 3] for n in range(3)]
        partition = pb.PartitionRecord(
            topic_id=topic_id, partition=index, replicas=replicas, isr=replicas, leader=replicas[0]
        )
        records.append(pb.MetadataRecord(partition=partition))
    return MetadataImage.from_records(records, VERSION)


def prepare(controllers: Controllers, nodes: Iterable[Node]) -> None:
    """Give each controller the log and the snapshot of a cluster that is large already."""
    previous, last = ((bytes([_COMMAND_TYPE.NO_OP]), index, 1) for index in (VERSION, VERSION + 1))
    snapshot = b"".join(encode(Snapshot(previous, last, large_image(nodes))))
    for controller_id in range(1, controllers.count + 1):
        directory = controllers.directory / f"controller-{controller_id}"
        directory.mkdir()
        (directory / SNAPSHOT_FILE).write_bytes(snapshot)
        journal = DurableJournal(directory)
        journal.setCurrentTerm(1, None)
        journal.replace([previous, last])
        journal._destroy()


class Cluster:
    """Three controllers, three nodes with sessions, and somebody who follows the metadata."""

    def __init__(self, controllers: Controllers) -> None:
        self.controllers = controllers
        self.channels = ChannelPool()
        self.client = controllers.client(self.channels)
        self.nodes = {i: Node(i, controllers, self.channels) for i in NODES}
        self.metadata = MetadataClient(controllers.client(self.channels), "test", monotonic_ms)
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self) -> None:
        prepare(self.controllers, self.nodes.values())
        self.controllers.start_all()
        await self.quorum()
        self.tasks["metadata"] = asyncio.create_task(self.metadata.run())
        for node in self.nodes.values():
            self.tasks[f"node {node.node_id}"] = asyncio.create_task(node.live())
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(n.active.wait() for n in self.nodes.values()))

    async def end(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.wait(self.tasks.values())
        await self.channels.close()
        for node in self.nodes.values():
            node.listener.close()

    async def commands(self, count: int) -> int:
        """Small commands, enough of them make a snapshot; the version after them."""
        for _ in range(count):
            await self.client.call("AllocateProducerIds", api.AllocateProducerIdsRequest(), PATIENCE_S * 1000)
        return (await self.quorum()).version

    async def quorum(self) -> api.DescribeQuorumResponse:
        """As the active controller has it."""
        async with asyncio.timeout(PATIENCE_S):
            while (active := await self.controllers.active_id(self.channels)) < 0:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return await self.controllers.describe(self.channels, active)

    async def at_version(self, controller_id: int, version: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (await self.controllers.describe(self.channels, controller_id)).version < version:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def report(self, phase: str) -> None:
        for controller_id in sorted(self.controllers.processes):
            found = await self.controllers.stalls(controller_id)
            print(f"{phase}: controller {controller_id}: {found}")


@asynccontextmanager
async def running(controllers: Controllers) -> AsyncIterator[Cluster]:
    cluster = Cluster(controllers)
    try:
        await cluster.begin()
        yield cluster
    finally:
        await cluster.end()


def partition_count(image: MetadataImage) -> int:
    return sum(len(topic.partitions) for topic in image.topics.values())


async def image_of(cluster: Cluster, controller_id: int, version: int) -> MetadataImage:
    """What a new subscriber of this controller gets."""
    address = cluster.controllers.addresses[controller_id - 1]
    client = MetadataClient(ControllerClient([address], "new", cluster.channels), "new", monotonic_ms)
    task = asyncio.create_task(client.run())
    try:
        assert await client.wait_for_version(version, PATIENCE_S * 1000)
        return client.image
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.timeout(1800)
async def test_nobody_notices_what_is_done_with_very_many_partitions(controllers: Controllers) -> None:
    async with running(controllers) as cluster:
        before = await cluster.quorum()
        assert await cluster.metadata.wait_for_version(before.version, PATIENCE_S * 1000)
        assert partition_count(cluster.metadata.image) == PARTITIONS
        await cluster.report("started")
        active = before.controller_id
        lagging = active % 3 + 1

        # Snapshots while sessions run.
        files = {i: controllers.directory / f"controller-{i}" / SNAPSHOT_FILE for i in controllers.processes}
        seen = {i: f.stat().st_ino if f.exists() else 0 for i, f in files.items()}
        async with asyncio.timeout(PATIENCE_S):
            while any(not f.exists() or f.stat().st_ino == seen[i] for i, f in files.items()):
                await cluster.commands(20)
        await cluster.report("snapshots")

        # One controller comes back with its own snapshot, far behind.
        controllers.kill(lagging)
        version = await cluster.commands(SNAPSHOT_EVERY + 10)
        controllers.start(lagging)
        await cluster.at_version(lagging, version)
        # And once more with nothing, so that the leader has to send it all.
        controllers.kill(lagging)
        shutil.rmtree(controllers.directory / f"controller-{lagging}")
        controllers.start(lagging)
        await cluster.at_version(lagging, version)
        await cluster.report("lagging peer loads")

        # Subscribers that come new.
        images = await asyncio.gather(
            *(image_of(cluster, i, version) for i in (*controllers.processes, active))
        )
        assert [partition_count(image) for image in images] == [PARTITIONS] * 4
        await cluster.report("subscribers")

        # A node that is in the ISR of every partition dies.
        dead = NodeId(3)
        epoch_before = cluster.metadata.image.version
        cluster.nodes[3].listener.close()
        cluster.tasks.pop("node 3").cancel()
        async with asyncio.timeout(PATIENCE_S):
            while not cluster.metadata.image.nodes[dead].fenced:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        # Fenced and out of every ISR in the very same version.
        image = cluster.metadata.image
        partitions = [p for t in image.topics.values() for p in t.partitions.values()]
        assert len(partitions) == PARTITIONS
        assert not any(dead in p.isr or p.leader in (dead, NO_NODE) for p in partitions)
        assert image.version > epoch_before
        await cluster.report("node fenced")
        for controller_id in controllers.processes:
            await cluster.at_version(controller_id, image.version)
            held = await image_of(cluster, controller_id, image.version)
            assert partition_count(held) == PARTITIONS
            assert not any(dead in p.isr for t in held.topics.values() for p in t.partitions.values())

        after = await cluster.quorum()
        elections = after.term - before.term
        lost = {i: cluster.nodes[i].lost for i in (1, 2)}
        print(f"elections {elections}, sessions lost {lost}")
        assert (elections, after.controller_id) == (0, before.controller_id)
        assert lost == {1: 0, 2: 0}
        fenced = [n.node_id for n in cluster.metadata.image.nodes.values() if n.fenced]
        assert fenced == [dead]
