"""Controllers that do what a test tells them, as real gRPC servers on loopback."""

# ruff: noqa: N802  (gRPC names methods)

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from penstock_core.metadata.image import Endpoint, MetadataImage
from penstock_proto.v1 import controller_pb2 as pb
from penstock_proto.v1 import controller_pb2_grpc, metadata_pb2
from penstock_runtime.controller_client import ACTIVE_CONTROLLER_KEY
from penstock_runtime.grpc_server import GrpcServer, serve

Records = list[metadata_pb2.MetadataRecord]


async def forever() -> None:
    """No answer."""
    await asyncio.get_running_loop().create_future()


class Cluster:
    """What all controllers of a test share: who is active, and the history."""

    def __init__(self) -> None:
        self.active = 1
        self.term = 1
        self.members: dict[int, FakeController] = {}
        self.image = MetadataImage()
        self.history: list[Records] = []
        self.changed = asyncio.Event()

    def commit(self, *records: metadata_pb2.MetadataRecord) -> int:
        """Add one version; the new one."""
        self.image = self.image.apply(records, self.image.version + 1)
        self.history.append(list(records))
        self.changed.set()
        self.changed = asyncio.Event()
        return self.image.version


class FakeController(controller_pb2_grpc.ControllerServicer):
    """One controller."""

    def __init__(self, cluster: Cluster, controller_id: int) -> None:
        self.cluster = cluster
        self.controller_id = controller_id
        self.silent = False
        self.stuck = False
        """Says who is active, and answers nothing else."""
        self.refusal = ""
        """Why it answers nothing, as the active controller."""
        self.keepalives = True
        self.hint = True
        self.behind = 0
        self.history_kept_from = 0
        self.calls: list[str] = []
        self.asked = 0
        """Times that it was asked who is active."""
        self.watch_from: list[int] = []
        self.next_producer_id = 1000
        self.endpoint = Endpoint("", "", 0)
        self.server: GrpcServer | None = None

    async def start(self, bind: str = "127.0.0.1:0") -> None:
        self.server, self.endpoint = await serve(
            bind,
            lambda s: controller_pb2_grpc.add_ControllerServicer_to_server(self, s),
            allow_insecure_bind=False,
        )

    async def kill(self) -> None:
        if self.server is not None:
            await self.server.stop(None)
            self.server = None

    async def _require_active(self, name: str, context: Any) -> None:
        self.calls.append(name)
        if self.silent:
            await forever()
        if self.cluster.active != self.controller_id:
            active = self.cluster.members.get(self.cluster.active)
            address = active.endpoint.address if active and self.hint else ""
            context.set_trailing_metadata(((ACTIVE_CONTROLLER_KEY, address),))
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not the active controller")
        if self.refusal:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self.refusal)
        if self.stuck:
            await forever()

    async def DescribeQuorum(self, request: Any, context: Any) -> pb.DescribeQuorumResponse:
        self.asked += 1
        if self.silent:
            await forever()
        return pb.DescribeQuorumResponse(
            controller_id=self.controller_id, active_controller_id=self.cluster.active, term=self.cluster.term
        )

    async def AllocateProducerIds(self, request: Any, context: Any) -> pb.AllocateProducerIdsResponse:
        await self._require_active("AllocateProducerIds", context)
        first = self.next_producer_id
        self.next_producer_id += 1000
        return pb.AllocateProducerIdsResponse(first_producer_id=first, count=1000)

    async def DeleteTopics(self, request: Any, context: Any) -> pb.DeleteTopicsResponse:
        await self._require_active("DeleteTopics", context)
        response = pb.DeleteTopicsResponse()
        image = self.cluster.image
        for ref in request.topics:
            topic_id = ref.topic_id or image.topic_ids.get(ref.name)
            if topic_id is None or topic_id not in image.topics:
                deleted = response.topics.add(name=ref.name, topic_id=ref.topic_id)
                deleted.error.code = 3 if ref.name else 100
                continue
            response.version = self.cluster.commit(
                metadata_pb2.MetadataRecord(topic_removed=metadata_pb2.TopicRemovedRecord(topic_id=topic_id))
            )
            response.topics.add(name=ref.name, topic_id=topic_id)
        return response

    async def CreateTopics(self, request: Any, context: Any) -> pb.CreateTopicsResponse:
        await self._require_active("CreateTopics", context)
        response = pb.CreateTopicsResponse()
        for topic in request.topics:
            if topic.name in self.cluster.image.topic_ids:
                created = response.topics.add(name=topic.name)
                created.error.code = 36
                created.error.message = "it exists"
                continue
            topic_id = topic.name.encode().rjust(16, b"\0")[-16:]
            count = max(topic.partition_count, len(topic.assignments), 1)
            if not request.validate_only:
                response.version = self.cluster.commit(
                    metadata_pb2.MetadataRecord(
                        topic=metadata_pb2.TopicRecord(topic_id=topic_id, name=topic.name)
                    ),
                    *(
                        metadata_pb2.MetadataRecord(
                            partition=metadata_pb2.PartitionRecord(
                                topic_id=topic_id, partition=i, replicas=[1], isr=[1], leader=1
                            )
                        )
                        for i in range(count)
                    ),
                    *(
                        metadata_pb2.MetadataRecord(
                            config=metadata_pb2.ConfigRecord(
                                resource_type="topic", resource_name=topic.name, key=k, value=v
                            )
                        )
                        for k, v in topic.configs.items()
                    ),
                )
            response.topics.add(
                name=topic.name, topic_id=topic_id, partition_count=count, replication_factor=1
            )
        return response

    async def CreatePartitions(self, request: Any, context: Any) -> pb.CreatePartitionsResponse:
        await self._require_active("CreatePartitions", context)
        response = pb.CreatePartitionsResponse()
        for topic in request.topics:
            created = response.topics.add(name=topic.name)
            created.error.code = 37
            created.error.message = f"{topic.total_count} is too few"
        return response

    async def NodeSession(self, requests: Any, context: Any) -> AsyncIterator[pb.NodeHeartbeatReply]:
        await self._require_active("NodeSession", context)
        async for request in requests:
            yield pb.NodeHeartbeatReply(controller_term=self.cluster.term, fenced=request.node_id != 1)

    async def WatchMetadata(self, request: Any, context: Any) -> AsyncIterator[pb.WatchMetadataResponse]:
        self.watch_from.append(request.from_version)
        cluster = self.cluster
        if self.silent:
            await forever()
        if request.from_version > cluster.image.version - self.behind:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "behind")
        sent = request.from_version
        if sent < self.history_kept_from or sent == 0:
            # Read once: a test may change the image in place as soon as its last piece is out.
            sent = cluster.image.version
            records = list(cluster.image.to_records())
            for i, record in enumerate(records or [None]):
                yield pb.WatchMetadataResponse(
                    snapshot=metadata_pb2.MetadataSnapshotChunk(
                        version=sent,
                        records=[record] if record else [],
                        first=i == 0,
                        last=i >= len(records) - 1,
                    )
                )
        while True:
            changed = cluster.changed
            while sent < cluster.image.version - self.behind:
                sent += 1
                yield pb.WatchMetadataResponse(
                    delta=metadata_pb2.MetadataDelta(version=sent, records=cluster.history[sent - 1])
                )
            try:
                await asyncio.wait_for(changed.wait(), 0.1)
            except TimeoutError:
                if self.keepalives and not self.silent:
                    yield pb.WatchMetadataResponse(
                        keepalive=pb.WatchKeepalive(version=cluster.image.version - self.behind)
                    )


@contextlib.asynccontextmanager
async def controllers(count: int) -> AsyncIterator[tuple[Cluster, list[FakeController]]]:
    """Start that many; the first is active."""
    cluster = Cluster()
    members = [FakeController(cluster, i + 1) for i in range(count)]  # type: ignore[abstract]
    for member in members:
        await member.start()
        cluster.members[member.controller_id] = member
    try:
        yield cluster, members
    finally:
        for member in members:
            await member.kill()
