"""The shipped session of a node, with controllers on loopback that say what a test wants."""

# ruff: noqa: N802  (gRPC names methods)

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from penstock_core.ids import TopicId, TopicPartition
from penstock_core.metadata.image import Endpoint
from penstock_proto.v1 import controller_pb2 as pb
from penstock_proto.v1 import metadata_pb2 as pb_records
from penstock_proto.v1.operations_pb2 import NodeReport
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.lifecycle import Lifecycle, monotonic_ms
from penstock_runtime.metadata_client import MetadataClient
from penstock_storage_node.cluster.registration import Announcement, Registration
from penstock_storage_node.disk.pool import DiskPool
from unit.runtime.fake_controllers import Cluster, FakeController
from unit.storage_node.log.log_model import new_disk, open_directory

PATIENCE_S = 120


class Speaker(FakeController):
    """The active controller; what it says next is `order`."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, 1)
        cluster.members[1] = self
        self.order = pb.NodeHeartbeatReply(controller_term=5, metadata_version=7)
        self.said: list[int] = []
        """Terms of the replies so far."""
        self.beats: list[pb.NodeHeartbeat] = []
        self.begun = self.ended = 0

    async def NodeSession(self, requests: Any, context: Any) -> AsyncIterator[pb.NodeHeartbeatReply]:
        self.begun += 1
        try:
            async for beat in requests:
                self.beats.append(beat)
                self.said.append(self.order.controller_term)
                yield self.order
        finally:
            self.ended += 1


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.timeout(300)
async def test_a_node_does_not_obey_a_controller_of_an_older_term() -> None:
    cluster = Cluster()
    cluster.term = 5
    controller = Speaker(cluster)  # type: ignore[abstract]
    await controller.start()
    channels, pool = ChannelPool(), DiskPool(1)
    client = ControllerClient([controller.endpoint.address], "node-1", channels)
    nowhere = Endpoint("", "127.0.0.1", 1)
    membership = Registration(
        Lifecycle("test"),
        client,
        MetadataClient(client, "node-1", monotonic_ms),
        open_directory(new_disk()),
        pool,
        Announcement(1, "", nowhere, nowhere, [], []),
        lambda _node_id, _epoch: None,
        lambda: False,
        lambda: False,
    )
    session = asyncio.create_task(membership.run())
    try:
        await until(lambda: not membership.fenced)
        # It was stopped while another was elected, and has not heard of that. (Its own connection is
        # open still, so nobody is asked who is active.)
        controller.order = pb.NodeHeartbeatReply(
            controller_term=4, metadata_version=99, fenced=True, may_shutdown=True
        )
        await until(lambda: 4 in controller.said and (controller.ended > 0 or membership.fenced))
        assert not membership.fenced and not membership.may_shutdown.is_set()
        assert client.heard_term == 5
        # Of a term as high as the last one it is obeyed again.
        cluster.term = 6
        controller.order = pb.NodeHeartbeatReply(controller_term=6, metadata_version=99, fenced=True)
        await until(lambda: membership.fenced)
        assert client.heard_term == 6 and not membership.may_shutdown.is_set()
        assert controller.begun > 1
    finally:
        session.cancel()
        with suppress(asyncio.CancelledError):
            await session
        pool.stop()
        await channels.close()
        await controller.kill()


class Reports:
    """Stands where the reporter stands."""

    def __init__(self) -> None:
        self.begun = 0
        self.answers: list[int] = []

    def begin(self) -> None:
        self.begun += 1

    def next_report(self) -> NodeReport | None:
        return NodeReport(log_bytes=17) if self.answers else None

    def answered(self, reply: pb.NodeHeartbeatReply) -> None:
        self.answers.append(reply.catch_up_bytes_per_s)


@pytest.mark.timeout(300)
async def test_heartbeats_carry_reports_and_answers_go_to_who_makes_them() -> None:
    cluster = Cluster()
    cluster.term = 5
    controller = Speaker(cluster)  # type: ignore[abstract]
    controller.order = pb.NodeHeartbeatReply(controller_term=5, catch_up_bytes_per_s=1_000)
    await controller.start()
    channels, pool = ChannelPool(), DiskPool(1)
    client = ControllerClient([controller.endpoint.address], "node-1", channels)
    nowhere = Endpoint("", "127.0.0.1", 1)
    reports: Any = Reports()
    membership = Registration(
        Lifecycle("test"),
        client,
        MetadataClient(client, "node-1", monotonic_ms),
        open_directory(new_disk()),
        pool,
        Announcement(1, "", nowhere, nowhere, [], []),
        lambda _node_id, _epoch: None,
        lambda: False,
        lambda: False,
        None,
        reports,
    )
    session = asyncio.create_task(membership.run())
    try:
        await until(lambda: len(controller.beats) > 2)
        assert not controller.beats[0].HasField("report")
        assert controller.beats[-1].report.log_bytes == 17
        assert set(reports.answers) == {1_000} and reports.begun == 1
        # What a deposed controller allows counts for nothing.
        controller.order = pb.NodeHeartbeatReply(controller_term=4, catch_up_bytes_per_s=5)
        await until(lambda: reports.begun > 1)
        assert set(reports.answers) == {1_000}
    finally:
        session.cancel()
        with suppress(asyncio.CancelledError):
            await session
        pool.stop()
        await channels.close()
        await controller.kill()


@pytest.mark.timeout(300)
async def test_a_node_is_ready_while_it_is_not_fenced_and_its_disk_works_even_full() -> None:
    cluster = Cluster()
    cluster.term = 5
    controller = Speaker(cluster)  # type: ignore[abstract]
    controller.order = pb.NodeHeartbeatReply(controller_term=5, fenced=True)
    await controller.start()
    channels, pool = ChannelPool(), DiskPool(1)
    client = ControllerClient([controller.endpoint.address], "node-1", channels)
    nowhere = Endpoint("", "127.0.0.1", 1)
    lifecycle = Lifecycle("test")
    disk_failed = False
    membership = Registration(
        lifecycle,
        client,
        MetadataClient(client, "node-1", monotonic_ms),
        open_directory(new_disk()),
        pool,
        Announcement(1, "", nowhere, nowhere, [], []),
        lambda _node_id, _epoch: None,
        lambda: disk_failed,
        lambda: True,  # a full disk is no reason: it serves
    )
    assert lifecycle.ready_reason() == "starting"
    session = asyncio.create_task(membership.run())
    try:
        await until(lambda: lifecycle.ready_reason() == "the controller has fenced this node")
        controller.order = pb.NodeHeartbeatReply(controller_term=5)
        await until(lambda: lifecycle.ready_reason() is None)
        # Without controllers it serves what it has.
        await controller.kill()
        assert lifecycle.ready_reason() is None
        # A failed disk says so itself, and no controller takes that back.
        disk_failed = True
        lifecycle.set_not_ready("the disk failed")
        membership._take(pb.NodeHeartbeatReply(controller_term=5))
        assert lifecycle.ready_reason() == "the disk failed"
    finally:
        session.cancel()
        with suppress(asyncio.CancelledError):
            await session
        pool.stop()
        await channels.close()


class Registrar(FakeController):
    """Takes every registration."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, 1)
        cluster.members[1] = self
        self.requests: list[pb.RegisterNodeRequest] = []

    async def RegisterNode(self, request: pb.RegisterNodeRequest, context: Any) -> pb.RegisterNodeResponse:
        self.requests.append(request)
        return pb.RegisterNodeResponse(
            node_id=1, node_epoch=9, cluster_id=bytes(16), version=self.cluster.image.version
        )


@pytest.mark.timeout(300)
async def test_logs_that_are_gone_are_told_by_the_ids_that_the_metadata_know() -> None:
    cluster = Cluster()
    for topic_id, name in ((b"A" * 16, "kept"), (b"B" * 16, "lost")):
        cluster.commit(pb_records.MetadataRecord(topic=pb_records.TopicRecord(topic_id=topic_id, name=name)))
    controller = Registrar(cluster)  # type: ignore[abstract]
    await controller.start()
    channels, pool = ChannelPool(), DiskPool(1)
    client = ControllerClient([controller.endpoint.address], "node-1", channels)
    nowhere = Endpoint("", "127.0.0.1", 1)
    metadata = MetadataClient(client, "node-1", monotonic_ms)
    epochs: list[int] = []
    membership = Registration(
        Lifecycle("test"),
        client,
        metadata,
        open_directory(new_disk()),
        pool,
        Announcement(
            *(1, "", nowhere, nowhere, [], [TopicPartition(TopicId(b"A" * 16), 0)]),
            missing=[("lost", 3), ("deleted long ago", 0)],
        ),
        lambda _node_id, epoch: epochs.append(epoch),
        lambda: False,
        lambda: False,
    )
    watching = asyncio.create_task(metadata.run())
    try:
        await membership.register()
        assert epochs == [9]
        # When it asked first it had no metadata yet, which say what the topic's id is.
        told = [[(each.topic_id, each.partition) for each in r.damaged] for r in controller.requests]
        assert told == [[(b"A" * 16, 0)], [(b"A" * 16, 0), (b"B" * 16, 3)]]
        assert [(each.topic_id, each.partition) for each in controller.requests[-1].gone] == [(b"B" * 16, 3)]
        await membership.register()  # anew, by the same process: nothing was lost since
        assert not controller.requests[-1].damaged and not controller.requests[-1].gone
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        pool.stop()
        await channels.close()
        await controller.kill()
