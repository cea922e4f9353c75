"""Replicate streams of a process that is gone: the network may bring what it said when the next one is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc.aio
import pytest

from node.harness import CLUSTER_ID, KEY, MiniCluster, eventually, ids
from penstock_core.ids import NodeId
from penstock_core.metadata.image import Endpoint, NodeImage
from penstock_proto.fast.replicate import decode_replica_data
from penstock_proto.v1 import metadata_pb2, storage_pb2
from penstock_storage_node.rpc.replicate_leader import LeaderStreams


class Call:
    """One stream of node 2, as the leader's gRPC shows it."""

    def __init__(
        self, streams: LeaderStreams, node_epoch: int, lane: storage_pb2.ReplicaHello.Lane.ValueType
    ) -> None:
        self._incoming: asyncio.Queue[object] = asyncio.Queue()
        self.record_frames = 0
        self.frames = 0
        hello = storage_pb2.ReplicaHello(
            node_id=2, node_epoch=node_epoch, leader_node_id=1, cluster_id=CLUSTER_ID, lane=lane
        )
        self.say(storage_pb2.ReplicateRequest(hello=hello))
        self.handler = asyncio.ensure_future(streams.replicate(None, self))  # type: ignore[arg-type]

    def say(self, request: storage_pb2.ReplicateRequest) -> None:
        self._incoming.put_nowait(request.SerializeToString())

    def open(self, session: int) -> None:
        request = storage_pb2.ReplicateRequest()
        request.opens.add(
            session=session, topic_id=KEY.topic_id, partition=KEY.partition, last_fetched_epoch=-1
        )
        self.say(request)

    def hang_up(self) -> None:
        self._incoming.put_nowait(grpc.aio.EOF)  # type: ignore[attr-defined]

    async def read(self) -> object:
        return await self._incoming.get()

    async def write(self, message: bytes) -> None:
        for frame in decode_replica_data(message):
            self.frames += 1
            self.record_frames += frame.records is not None


@pytest.fixture
async def leader(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    """Node 1 leads; of node 2 there is what it says alone."""
    made = await MiniCluster(tmp_path).start(1)
    nowhere = Endpoint("", "", 0)
    two = NodeImage(NodeId(2), b"2" * 16, 5, "0", 1, b"b" * 16, "", nowhere, nowhere, {}, {}, False, False)
    made.change(metadata_pb2.MetadataRecord(node=two.to_pb()))
    made.make_topic(isr=(1,), min_insync_replicas="1")
    state = replace(made.state, replicas=ids(1, 2), partition_epoch=1)
    made.change(metadata_pb2.MetadataRecord(partition=state.to_pb()))
    await eventually(lambda: KEY in made.nodes[1].manager.registry.partitions)
    await eventually(lambda: made.nodes[1].partition.replica.leadership is not None)
    yield made
    await made.stop()


async def test_what_a_process_of_before_asked_for_takes_no_session_from_the_next_one(
    leader: MiniCluster,
) -> None:
    one = leader.nodes[1]
    streams = LeaderStreams(one.manager, one.lanes, one.throttle)
    one.manager.connect(streams, one.links, lambda _: None)
    old = Call(streams, 5, storage_pb2.ReplicaHello.CATCH_UP)
    await asyncio.sleep(0)
    new = Call(streams, 6, storage_pb2.ReplicaHello.LIVE)
    new.open(1)
    await eventually(lambda: new.frames)
    # Sent before its process was killed, and lost: sent again by its machine once the network is back.
    old.open(9)
    old.hang_up()
    await eventually(old.handler.done)
    assert (await one.produce(b"for both", acks=1)).error == 0
    try:
        await eventually(lambda: new.record_frames)
    finally:
        new.hang_up()
        await asyncio.gather(old.handler, new.handler)
