"""Storage nodes without controllers: real logs, disk pool, state machines and gRPC streams.

The metadata are pushed by the test, so that it decides who leads and when anybody hears of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio

from penstock_core.config.topic import TopicConfig
from penstock_core.ids import LeaderEpoch, NodeId, TopicId, TopicPartition
from penstock_core.metadata.image import Endpoint, MetadataImage, NodeImage, PartitionImage
from penstock_frontend.authorizer import AllowAll
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResult,
    decode_fetch_response,
    encode_fetch_request,
)
from penstock_kafka.wire.frames import parse_request_header
from penstock_kafka.wire.produce import (
    ProducePartition,
    ProduceResult,
    ProduceSkim,
    decode_produce_response,
    encode_produce_request,
)
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.grpc_server import serve
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.ports import REAL_CLOCKS
from penstock_runtime.settings import load_settings
from penstock_storage_node.disk.group_flush import GroupFlush
from penstock_storage_node.disk.pool import DiskPool
from penstock_storage_node.kafka.dispatch import DataApis
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.log import DirectoryPorts, FileSystem, LogDirectory
from penstock_storage_node.metrics import NodeMetrics
from penstock_storage_node.replica.background import BackgroundJobs
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replication.state import ReplicaState
from penstock_storage_node.rpc.catch_up_throttle import CatchUpThrottle
from penstock_storage_node.rpc.fetch_range import FetchRangeService
from penstock_storage_node.rpc.forward import ForwardService
from penstock_storage_node.rpc.replicate_follower import FollowerStreams
from penstock_storage_node.rpc.replicate_leader import LeaderStreams
from penstock_storage_node.rpc.replication_lanes import LaneLimits
from penstock_storage_node.rpc.service import add_storage_service
from penstock_storage_node.rpc.transaction_service import TransactionService
from penstock_storage_node.rpc.transaction_streams import TransactionStreams
from penstock_storage_node.settings import StorageNodeSettings
from penstock_storage_node.transactions.leading import LeadingSide
from penstock_storage_node.transactions.link import Coordinators, TransactionLink

TOPIC = "events"
TOPIC_ID = TopicId(b"T" * 16)
KEY = TopicPartition(TOPIC_ID, 0)
CLUSTER_ID = b"C" * 16


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def ids(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(n) for n in numbers)


class Metadata:
    """Stands where MetadataClient stands: one image, pushed by the test."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.waits: list[int] = []

    async def wait_for_version(self, version: int, timeout_ms: int) -> bool:
        self.waits.append(version)
        try:
            await eventually(lambda: self.image.version >= version, timeout_ms / 1000)
        except AssertionError:
            return False
        return True


class MiniNode:
    """Everything of a node but its membership."""

    def __init__(
        self,
        node: int,
        path: Path,
        *,
        lag_max_ms: int = 10_000,
        fs: FileSystem | None = None,
        lanes: LaneLimits | None = None,
        group_flush: bool = False,
        checkpoint_interval_ms: int = 3_600_000,
        flags: Sequence[str] = (),
        rate_clock_s: Callable[[], float] = REAL_CLOCKS.s,
        coordinators: Callable[[MiniNode], Coordinators] | None = None,
    ) -> None:
        """`coordinators`: of transactions, made once the manager is there; without them the node takes none."""
        self._coordinators = coordinators
        self.rate_clock_s = rate_clock_s
        """The clock of what catching up may take."""
        self.flags = flags
        self.checkpoint_interval_ms = checkpoint_interval_ms
        """No test comes upon checkpoints by being slow; those that want some say so."""
        self.lanes = lanes
        self.group_flush = group_flush
        self.node_id = NodeId(node)
        self.path = path
        self.fs = fs or FileSystem()
        self.lag_max_ms = lag_max_ms
        self.proposed: list[ReplicaState] = []
        self.metadata = Metadata()
        self.lost_leaders: list[NodeId] = []
        self.is_in_touch = True
        """Whether the controllers count as heard of lately."""

    async def start(self) -> MiniNode:
        self.lifecycle = Lifecycle("storage-node", str(self.node_id))
        self.pool = DiskPool(2)
        ports = DirectoryPorts(self.fs, wall_ms)
        self.directory = await self.pool.run(lambda: LogDirectory.open(ports, self.path))
        self.metrics = NodeMetrics()
        self.pool.on_flush = self.metrics.observe_flush
        if self.group_flush:
            self.pool.use_group_flush(GroupFlush(self.fs, str(self.path)))
        found = await self.pool.run(self.directory.scan)
        logs = [await self.pool.run(lambda f=f: self.directory.open_log(f, TopicConfig())) for f in found]  # type: ignore[misc]
        self.manager = ReplicaManager(
            directory=self.directory,
            pool=self.pool,
            lifecycle=self.lifecycle,
            metrics=self.metrics,
            clocks=REAL_CLOCKS,
            lag_max_ms=self.lag_max_ms,
        )
        self.manager.adopt(zip(found, logs, strict=True))
        self.channels = ChannelPool()
        self.throttle = CatchUpThrottle(self.manager.registry, self.rate_clock_s)
        self.links = FollowerStreams(
            self.manager, self.channels, self.lost_leaders.append, self.lanes, self.throttle
        )
        streams = LeaderStreams(self.manager, self.lanes, self.throttle)
        self.manager.connect(streams, self.links, self._propose)
        self.link: TransactionLink | None = None
        self.transactions: TransactionService | None = None
        if self._coordinators is not None:
            leading = LeadingSide(self.manager)
            self.manager.roles.watchers.append(leading)
            self.link = link = TransactionLink(self.manager, self._coordinators(self), leading)
            self.streams = TransactionStreams(self.manager, link, self.channels)
            link.connect(self.streams)
            self.transactions = TransactionService(self.manager, link)
        self.data = DataApis(self.manager, AllowAll(), lambda: self.is_in_touch, link=self.link)
        self.forward = forward = ForwardService(self.data, self.manager, self.metadata)  # type: ignore[arg-type]
        self.server, self.endpoint = await serve(
            "127.0.0.1:0",
            lambda s: add_storage_service(
                s,
                streams,
                forward,
                FetchRangeService(self.manager, AllowAll()),
                transactions=self.transactions,
            ),
            allow_insecure_bind=False,
        )
        flags = ["--data-dir", str(self.path), "--checkpoint-interval-ms", str(self.checkpoint_interval_ms)]
        flags += self.flags
        settings = load_settings(StorageNodeSettings, flags, "storage-node")
        self.background = BackgroundJobs(self.manager, self.directory, settings)
        self.background.start()
        return self

    def _propose(self, replicas: Iterable[ReplicaState]) -> None:
        self.proposed.extend(replicas)

    def hear(self, image: MetadataImage, records: Sequence[pb.MetadataRecord]) -> None:
        old, self.metadata.image = self.metadata.image, image
        self.manager.on_metadata(old, image, records)
        if self.link is not None:
            self.link.on_metadata(old, image)

    @property
    def partition(self) -> Partition:
        return self.manager.registry.partitions[KEY]

    async def stop(self, *, clean: bool = True) -> None:
        """Stop; without `clean` as if the process had been killed, less the page cache."""
        self.links.close()
        if self.link is not None:
            self.streams.close()
            self.link.close()
        await self.lifecycle.end_tasks()
        await self.server.stop(None)
        await self.channels.close()
        partitions = list(self.manager.registry.partitions.values())
        for partition in partitions:
            partition.replica.step_down()
            await partition.exclusive(lambda p=partition: p.log.close(clean))  # type: ignore[misc]
        if clean:
            rows = [(p.log, p.replica.high_watermark) for p in partitions]
            await self.pool.run(lambda: self.directory.offsets.write(rows))
        await self.pool.run(lambda: self.directory.close(clean=clean))
        self.pool.stop()

    # -- clients ------------------------------------------------------------------

    async def produce(
        self, *values: bytes, acks: int = -1, timeout_ms: int = 60_000, **batch: Any
    ) -> ProduceResult:
        return await self.produce_batch(make_batch(*values, **batch), acks=acks, timeout_ms=timeout_ms)

    async def produce_batch(
        self,
        records: bytes,
        *,
        acks: int = -1,
        timeout_ms: int = 60_000,
        topic: str = TOPIC,
        receipt: bool = False,
    ) -> ProduceResult:
        item = ProducePartition(topic, None, 0, memoryview(records))
        skim = ProduceSkim(None, acks, timeout_ms, [item], want_receipt=receipt)
        frame = bytearray().join(encode_produce_request(9, 7, "test", skim))
        response = await self.ask(frame)
        return decode_produce_response(response, 9).results[0]

    async def fetch(
        self, offset: int, *, max_wait_ms: int = 0, min_bytes: int = 1, **more: int
    ) -> FetchResult:
        item = FetchPartition(
            TOPIC, None, 0, more.get("epoch", -1), offset, -1, -1, more.get("max_bytes", 1 << 20)
        )
        request = FetchRequest(max_wait_ms, min_bytes, more.get("request_bytes", 50 << 20), partitions=[item])
        request.isolation_level = more.get("isolation_level", 0)
        request.replica_id = more.get("replica_id", -1)
        response = await self.ask(bytearray(encode_fetch_request(11, 8, "test", request)))
        return decode_fetch_response(response, 11).results[0]

    async def ask(self, frame: bytearray) -> bytes:
        """A request through the handlers, as a listener would hand it over."""
        header = parse_request_header(frame)
        assert header.api_key in (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS)
        answer = self.data.handle(RequestContext(), header, frame)
        if isinstance(answer, Awaitable):
            answer = await answer
        assert isinstance(answer, list), answer
        return b"".join(answer)


def make_batch(*values: bytes, **options: Any) -> bytes:
    return build_batch([NewRecord(key=None, value=v, timestamp_ms=wall_ms()) for v in values], **options)


class MiniCluster:
    """Several nodes and the image that they are told of."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.image = MetadataImage()
        self.nodes: dict[int, MiniNode] = {}
        self.server: grpc.aio.Server | None = None

    async def start(self, count: int = 3, **options: Any) -> MiniCluster:
        for number in range(1, count + 1):
            await self.start_node(number, **options)
        return self

    async def start_node(self, number: int, **options: Any) -> MiniNode:
        node = await MiniNode(number, self.path / f"node-{number}", **options).start()
        self.admit(number, node)
        return node

    def admit(self, number: int, node: MiniNode) -> None:
        """A node that was started is registered."""
        self.nodes[number] = node
        epoch = self.image.version + 1
        known = NodeImage(
            *(NodeId(number), bytes([number]) * 16, epoch, "0", 1, b"b" * 16, ""),
            *(node.endpoint, Endpoint("", "", 0), {}, {}, False, False),
        )
        records = [pb.MetadataRecord(node=known.to_pb())]
        if not self.image.cluster_id:
            records.append(pb.MetadataRecord(cluster=pb.ClusterRecord(cluster_id=CLUSTER_ID)))
        self.change(*records)
        node.manager.start(NodeId(number), epoch)

    def change(self, *records: pb.MetadataRecord, only: Sequence[int] | None = None) -> None:
        """The next version; `only` those nodes hear of it (the others with the next one)."""
        self.image = self.image.apply(records, self.image.version + 1)
        for number, node in self.nodes.items():
            if only is None or number in only:
                node.hear(self.image, records)

    def make_topic(self, leader: int = 1, isr: Sequence[int] = (1, 2, 3), **config: str) -> None:
        records = [pb.MetadataRecord(topic=pb.TopicRecord(topic_id=TOPIC_ID, name=TOPIC))]
        records += [
            pb.MetadataRecord(
                config=pb.ConfigRecord(
                    resource_type="topic", resource_name=TOPIC, key=k.replace("_", "."), value=v
                )
            )
            for k, v in config.items()
        ]
        state = PartitionImage(
            TOPIC_ID, 0, replicas=ids(*sorted(self.nodes)), isr=ids(*isr), leader=NodeId(leader),
            leader_epoch=LeaderEpoch(0), partition_epoch=0,
        )  # fmt: skip
        self.change(*records, pb.MetadataRecord(partition=state.to_pb()))

    @property
    def state(self) -> PartitionImage:
        state = self.image.partition(TOPIC_ID, 0)
        assert state is not None
        return state

    def elect(self, leader: int, isr: Sequence[int], only: Sequence[int] | None = None) -> None:
        """A new leader epoch."""
        old = self.state
        new = replace(
            old,
            leader=NodeId(leader),
            isr=ids(*isr),
            leader_epoch=LeaderEpoch(old.leader_epoch + 1),
            partition_epoch=old.partition_epoch + 1,
        )
        self.change(pb.MetadataRecord(partition=new.to_pb()), only=only)

    def set_isr(self, *isr: int) -> None:
        new = replace(self.state, isr=ids(*isr), partition_epoch=self.state.partition_epoch + 1)
        self.change(pb.MetadataRecord(partition=new.to_pb()))

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.stop()


@contextlib.asynccontextmanager
async def lone_leader(path: Path) -> AsyncIterator[MiniNode]:
    """A cluster of one node, which leads the partition."""
    cluster = await MiniCluster(path).start(1)
    try:
        cluster.make_topic(isr=(1,))
        node = cluster.nodes[1]
        await eventually(lambda: node.manager.registry.partitions)
        await eventually(lambda: node.partition.replica.leadership is not None)
        yield node
    finally:
        await cluster.stop()


async def eventually(check: Any, timeout_s: float = 60.0) -> None:
    """Wait until `check()` is true."""
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "did not come about in time"
        await asyncio.sleep(0.005)
