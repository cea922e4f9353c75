"""Transactions between nodes: real shards without a disk, real leaders, logs and streams.

The metadata are pushed by the test. The coordinators' log is a list, so that a test decides when a write counts.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from penstock_core.errors import ErrorCode, InvariantBroken, PenstockError
from penstock_core.ids import NO_NODE, LeaderEpoch, NodeId, TopicId
from penstock_core.metadata.image import PartitionImage
from penstock_core.topics import TRANSACTIONS_TOPIC
from penstock_kafka.wire.produce import (
    ProducePartition,
    ProduceResult,
    ProduceSkim,
    decode_produce_response,
    encode_produce_request,
)
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import storage_pb2
from penstock_storage_node.rpc.transaction_streams import METHOD
from penstock_storage_node.settings import TransactionSettings
from penstock_storage_node.transactions.admission import MarkerOrder
from penstock_storage_node.transactions.effects import TopicPartitionName
from penstock_storage_node.transactions.outbox import Key
from penstock_storage_node.transactions.records import StateRecord
from penstock_storage_node.transactions.shard import Shard
from penstock_storage_node.transactions.state import Add, Answer, End, Verify
from penstock_storage_node.transactions.writes import Done

from .harness import CLUSTER_ID, KEY, TOPIC, MiniCluster, MiniNode, eventually, ids, make_batch

STATE_ID = TopicId(b"S" * 16)
EVENTS = TopicPartitionName(TOPIC, 0)


class ListLog:
    """The log of a shard: a write counts in the next turn, or when `hold` ends."""

    record_bytes_max = 1 << 20

    def __init__(self) -> None:
        self.records: list[StateRecord] = []
        self.hold: list[Done] | None = None

    def append(self, records: Sequence[StateRecord], done: Done) -> None:
        self.records += records
        if self.hold is None:
            asyncio.get_running_loop().call_soon(done, ErrorCode.NONE)
        else:
            self.hold.append(done)

    def when_start_covered(self, done: Done) -> None:
        done(ErrorCode.NONE)

    def release(self) -> None:
        held, self.hold = self.hold or [], None
        for done in held:
            done(ErrorCode.NONE)


class OneShard:
    """The coordinators of one node: one partition of `__transaction_state`, or none."""

    def __init__(self, node: MiniNode) -> None:
        self.node = node
        self.shard: Shard | None = None
        self.log = ListLog()
        self.producer_ids = itertools.count(7)
        self.version = 2
        """`transaction.version` of the cluster."""

    def lead(self, epoch: int) -> None:
        """Begin to coordinate, with what another one had written."""
        assert self.node.link is not None
        loop = asyncio.get_running_loop()
        clock_ms = self.node.manager.clock_ms

        def schedule() -> None:
            loop.call_soon(shard.end_turn)

        shard = self.shard = Shard(
            self.log,
            TransactionSettings(),
            state_partition=0,
            coordinator_epoch=epoch,
            clock_ms=clock_ms,
            wall_ms=self.node.manager.wall_ms,
            version=lambda: self.version,
            take_id=lambda: next(self.producer_ids),
            exists=lambda _: True,
            has_room=lambda: True,
            send=self.node.link.carry_out,
            schedule=schedule,
        )
        for key, value in self.log.records:
            shard.replay(key, value)
        shard.loaded()

    def find(self, transactional_id: str) -> Shard:
        if self.shard is None:
            raise PenstockError(ErrorCode.NOT_COORDINATOR, f"{transactional_id} is not here")
        return self.shard

    def coordinator_of(self, transactional_id: str) -> NodeId | None:
        del transactional_id
        state = self.node.manager.registry.image.partition(STATE_ID, 0)
        return None if state is None or state.leader == NO_NODE else NodeId(state.leader)

    def markers_written(self, key: Key, partitions: Sequence[TopicPartitionName]) -> None:
        if self.shard is not None and key.coordinator_epoch == self.shard.coordinator_epoch:
            self.shard.markers_written(key.producer_id, key.producer_epoch, partitions)

    # -- clients ---------------------------------------------------------------------------------

    async def init(self, name: str = "x", version: int = 0) -> Answer:
        return await self._ask(
            lambda reply: self.find(name).init_producer(name, 60_000, reply, client_version=version)
        )

    async def add(self, epoch: int = 0, *, name: str = "x", producer_id: int = 7) -> Answer:
        request = Add(producer_id, epoch, frozenset({EVENTS}))
        return await self._ask(lambda reply: self.find(name).add(name, request, reply))

    async def verify(self, epoch: int) -> Answer:
        request = Verify(7, epoch, frozenset({EVENTS}))
        return await self._ask(lambda reply: self.find("x").add("x", request, reply))

    async def end(
        self,
        *,
        commit: bool = True,
        epoch: int = 0,
        version: int = 0,
        name: str = "x",
        producer_id: int = 7,
    ) -> Answer:
        request = End(producer_id, epoch, commit, version)
        return await self._ask(lambda reply: self.find(name).end(name, request, reply))

    async def _ask(self, begin: Any) -> Answer:
        told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def tell(answer: Answer) -> None:
            if not told.done():
                told.set_result(answer)

        begin(tell)
        return await told


class Rig:
    """Partition events-0 is led by node 1, transactional id x is coordinated by node 2."""

    def __init__(self, cluster: MiniCluster) -> None:
        self.cluster = cluster
        self.coordinators: dict[int, OneShard] = {}

    def coordinator(self, node: MiniNode) -> OneShard:
        found = self.coordinators[int(node.node_id)] = OneShard(node)
        return found

    def state(self, leader: int, epoch: int, only: Sequence[int] | None = None) -> None:
        """Who leads the state partition, by the metadata of some nodes."""
        topic = pb.MetadataRecord(topic=pb.TopicRecord(topic_id=STATE_ID, name=TRANSACTIONS_TOPIC))
        state = PartitionImage(
            STATE_ID, 0, replicas=ids(99), isr=ids(99), leader=NodeId(leader),
            leader_epoch=LeaderEpoch(epoch), partition_epoch=epoch,
        )  # fmt: skip
        self.cluster.change(topic, pb.MetadataRecord(partition=state.to_pb()), only=only)

    @property
    def leader(self) -> MiniNode:
        return self.cluster.nodes[int(self.cluster.state.leader)]

    @property
    def x(self) -> OneShard:
        return self.coordinators[2]

    async def produce(
        self,
        *values: bytes,
        version: int = 9,
        producer_id: int = 7,
        epoch: int = 0,
        sequence: int = 0,
        name: str | None = "x",
        acks: int = -1,
        transactional: bool = True,
    ) -> ProduceResult:
        records = make_batch(
            *(values or (b"v",)),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        item = ProducePartition(TOPIC, None, 0, memoryview(records))
        skim = ProduceSkim(name, acks, 60_000, [item])
        frame = bytearray().join(encode_produce_request(version, 7, "test", skim))
        return decode_produce_response(await self.leader.ask(frame), version).results[0]

    def producing(self, *values: bytes, **options: Any) -> asyncio.Task[ProduceResult]:
        return asyncio.create_task(self.produce(*values, **options))

    @property
    def is_open(self) -> bool:
        return self.leader.partition.log.first_open_transaction is not None

    async def eventually_ended(self) -> None:
        """No transaction is open where the events are."""
        await eventually(lambda: not self.is_open)

    async def ended(self) -> None:
        """No transaction is open where the events are, and the coordinator knows it."""
        await eventually(lambda: not self.is_open)
        await eventually(lambda: self.x.shard is not None and not self.x.shard.markers())


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    cluster = MiniCluster(tmp_path)
    found = Rig(cluster)
    await cluster.start(2, coordinators=found.coordinator)
    cluster.make_topic(leader=1, isr=(1, 2))
    found.state(2, 5)
    found.x.lead(5)
    registry = cluster.nodes[1].manager.registry
    await eventually(lambda: KEY in registry.partitions and registry.leading)
    try:
        yield found
    finally:
        for node in cluster.nodes.values():
            assert not node.lifecycle.failed.is_set()
        await cluster.stop()


async def test_a_producer_that_adds_its_partitions_itself(rig: Rig) -> None:
    assert await rig.x.init() == Answer(ErrorCode.NONE, 7, 0)
    assert (await rig.x.add()).error is ErrorCode.NONE
    assert (await rig.produce(b"a", b"b")).error == 0
    assert (await rig.produce(b"c", sequence=2)).error == 0
    assert rig.is_open
    assert (await rig.x.end()).error is ErrorCode.NONE
    await rig.ended()
    # The next one of the same epoch begins where the last one's sequences ended.
    assert (await rig.x.add()).error is ErrorCode.NONE
    assert (await rig.produce(b"d", sequence=3)).error == 0
    assert rig.is_open
    assert (await rig.x.end(commit=False)).error is ErrorCode.NONE
    await rig.ended()
    fetched = await rig.leader.fetch(0, isolation_level=1)
    assert fetched.last_stable_offset == fetched.high_watermark == 6
    assert list(fetched.aborted or ()) == [(7, 4)]


async def test_leaders_add_partitions_and_each_end_raises_the_epoch(rig: Rig) -> None:
    await rig.x.init()
    epoch = 0
    for _ in range(5):
        assert (await rig.produce(b"a", version=12, epoch=epoch)).error == 0
        assert (await rig.produce(b"b", version=12, epoch=epoch, sequence=1)).error == 0
        ended = await rig.x.end(epoch=epoch, version=2)
        assert ended.error is ErrorCode.NONE
        epoch = ended.producer_epoch
    assert epoch == 5
    await rig.ended()
    # All that belongs to an epoch that is over is refused as such (KAFKA-18042, 19690).
    late = await rig.produce(b"late", version=12, epoch=2, sequence=2)
    assert late.error == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_client_that_hears_of_a_lower_version_when_it_commits(rig: Rig, is_first: bool) -> None:
    """What it has not sent yet goes out by Produce 11, without being added; EndTxn is the new one still. From then on
    it is a client of the old protocol, whose epoch more than one transaction has."""
    await rig.x.init(version=2)
    if not is_first:
        assert (await rig.produce(b"a", version=12)).error == 0
        assert (await rig.x.end(version=2)).producer_epoch == 1
    epoch = int(not is_first)
    assert (await rig.produce(b"b", version=11, epoch=epoch)).error == ErrorCode.TRANSACTION_ABORTABLE
    rig.x.version = 1
    assert (await rig.produce(b"b", version=11, epoch=epoch)).error == 0
    assert (await rig.produce(b"c", version=11, epoch=epoch, sequence=1)).error == 0
    last = epoch + 1
    assert await rig.x.end(epoch=epoch, version=2) == Answer(ErrorCode.NONE, 7, last)
    assert (await rig.x.add(last)).error is ErrorCode.NONE
    assert (await rig.produce(b"d", version=11, epoch=last)).error == 0
    assert (await rig.x.end(epoch=last)).error is ErrorCode.NONE
    await rig.ended()
    refused = await rig.produce(b"e", version=11, epoch=last, sequence=1)
    assert refused.error == ErrorCode.TRANSACTION_ABORTABLE
    fetched = await rig.leader.fetch(0, isolation_level=1)
    # b, c, d, maybe a, and a marker behind each transaction
    assert fetched.last_stable_offset == fetched.high_watermark == (5 if is_first else 7)
    assert not list(fetched.aborted or ())


@pytest.mark.parametrize(
    ("version", "code"), [(9, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)]
)
async def test_a_batch_that_its_transaction_does_not_know_is_not_appended(
    rig: Rig, version: int, code: ErrorCode
) -> None:
    await rig.x.init()
    request = Add(7, 0, frozenset({TopicPartitionName("other", 0)}))
    await rig.x._ask(lambda reply: rig.x.find("x").add("x", request, reply))
    assert (await rig.produce(b"a", version=version)).error == code
    assert rig.leader.partition.log.log_end_offset == 0
    assert (await rig.produce(b"a", version=version, epoch=3)).error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert (await rig.produce(b"a", version=version, producer_id=8)).error in (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    )
    assert (await rig.produce(b"a", version=version, name=None)).error == (
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    )


async def test_first_sequences_of_a_producer_that_is_not_known(rig: Rig) -> None:
    # KAFKA-18202: TV2 took any.
    await rig.x.init()
    out_of_order = await rig.produce(b"a", version=12, sequence=3)
    assert out_of_order.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await rig.x.add()).error is ErrorCode.NONE
    assert (await rig.produce(b"a", version=9, epoch=0, sequence=3)).error == 0


async def test_those_of_the_same_producer_wait_behind_it_and_no_others(rig: Rig) -> None:
    await rig.x.init()
    rig.x.log.hold = []
    held = [rig.producing(b"v", version=12, sequence=n) for n in range(4)]
    await eventually(lambda: rig.x.log.hold)
    plain = await rig.produce(b"p", producer_id=-1, epoch=-1, sequence=-1, transactional=False, name=None)
    other = await rig.produce(b"o", producer_id=8, epoch=0, sequence=0, transactional=False, name=None)
    assert (plain.error, other.error) == (0, 0)
    assert not any(task.done() for task in held)
    rig.x.log.release()
    results = [await task for task in held]
    assert [result.error for result in results] == [0, 0, 0, 0]
    assert [result.base_offset for result in results] == [2, 3, 4, 5]


async def test_acks_0_waits_for_the_coordinator_too(rig: Rig) -> None:
    await rig.x.init()
    records = make_batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    skim = ProduceSkim("x", 0, 60_000, [ProducePartition(TOPIC, None, 0, memoryview(records))])
    frame = bytearray().join(encode_produce_request(12, 7, "test", skim))
    with pytest.raises(AssertionError):  # NO_RESPONSE is no response
        await rig.leader.ask(frame)
    assert rig.leader.partition.log.log_end_offset == 1


async def test_who_waits_is_answered_when_leadership_ends(rig: Rig) -> None:
    await rig.x.init()
    rig.x.log.hold = []
    held = [rig.producing(b"v", version=12, sequence=n) for n in range(3)]
    await eventually(lambda: rig.x.log.hold)
    rig.cluster.elect(2, (1, 2))
    assert [(await task).error for task in held] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
    rig.x.log.release()
    # The next leader takes them, and asks its own coordinator.
    await eventually(lambda: rig.leader.partition.replica.leadership is not None)
    assert (await rig.produce(b"v", version=12)).error == 0


async def test_a_coordinator_that_is_not_there_is_no_error_of_the_producer(rig: Rig) -> None:
    await rig.x.init()
    shard, rig.x.shard = rig.x.shard, None
    assert (await rig.produce(b"v", version=12)).error == ErrorCode.NOT_ENOUGH_REPLICAS
    # Sequence 1 must not be written before it comes again.
    assert (await rig.produce(b"w", version=12, sequence=1)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    rig.x.shard = shard
    assert (await rig.produce(b"v", version=12)).error == 0
    assert (await rig.produce(b"w", version=12, sequence=1)).error == 0


async def test_a_stale_marker_of_a_deposed_coordinator_ends_nothing(rig: Rig) -> None:
    await rig.x.init()
    await rig.x.add()
    assert (await rig.produce(b"a")).error == 0
    # The leader knows of a later leader of the state partition; the coordinator has not heard of it.
    rig.state(2, 6, only=[1])
    assert (await rig.x.end()).error is ErrorCode.NONE
    link = rig.cluster.nodes[2].link
    assert link is not None
    await eventually(lambda: link.outbox.fenced_count == 1)
    assert rig.is_open
    # Its partition is lost, and the next coordinator sends the marker again.
    assert rig.x.shard is not None
    rig.x.shard.close()
    rig.x.lead(6)
    await rig.ended()


async def test_a_marker_by_hand_with_too_high_an_epoch_holds_up_no_transaction(rig: Rig) -> None:
    await rig.x.init()
    await rig.x.add()
    assert (await rig.produce(b"a")).error == 0
    link = rig.leader.link
    assert link is not None
    codes: list[ErrorCode] = []
    link.leading.write(MarkerOrder(7, 0, False, 9, 0), EVENTS, codes.append, lambda: False)
    await eventually(lambda: codes == [ErrorCode.NONE])
    assert (await rig.x.end(commit=False)).error is ErrorCode.NONE
    shard, outbox = rig.x.shard, rig.cluster.nodes[2].link
    assert shard is not None
    assert outbox is not None
    # The partition has the marker before its coordinator has heard so.
    await eventually(lambda: not shard.markers())
    assert outbox.outbox.fenced_count == 0
    # What begins after that is ended too.
    assert (await rig.x.add()).error is ErrorCode.NONE
    assert (await rig.produce(b"b", sequence=1)).error == 0
    assert (await rig.x.end()).error is ErrorCode.NONE
    await rig.eventually_ended()


async def test_a_marker_waits_for_the_metadata_that_it_goes_by(rig: Rig) -> None:
    await rig.x.init()
    await rig.x.add()
    assert (await rig.produce(b"a")).error == 0
    rig.x.lead(6)
    assert (await rig.x.end()).error is ErrorCode.NONE
    link = rig.leader.link
    assert link is not None
    await eventually(lambda: link.leading.waiting_count == 1)
    assert rig.is_open
    rig.state(2, 6)
    await rig.ended()
    assert link.leading.waiting_count == 0


async def test_a_marker_of_a_coordinator_older_than_the_one_that_vouched_ends_nothing(rig: Rig) -> None:
    await rig.x.init()
    await rig.x.add()
    rig.state(2, 6, only=[2])
    rig.x.lead(6)
    assert (await rig.produce(b"a")).error == 0
    link = rig.leader.link
    assert link is not None
    # By this leader's metadata 5 is the coordinator still.
    codes: list[ErrorCode] = []
    link.leading.write(MarkerOrder(7, 0, False, 5, 0, 0), EVENTS, codes.append, lambda: False)
    assert codes == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    assert rig.is_open


async def test_markers_are_refused_below_min_isr_and_come_again(rig: Rig) -> None:
    await rig.x.init()
    await rig.x.add()
    assert (await rig.produce(b"a")).error == 0
    change = pb.ConfigRecord(resource_type="topic", resource_name=TOPIC, key="min.insync.replicas", value="2")
    rig.cluster.change(pb.MetadataRecord(config=change))
    rig.cluster.set_isr(1)
    assert (await rig.x.end()).error is ErrorCode.NONE
    link = rig.cluster.nodes[2].link
    assert link is not None
    await eventually(lambda: any(due.tries for due in link.outbox._due.values()))
    assert rig.is_open
    rig.cluster.set_isr(1, 2)
    await rig.ended()


async def test_markers_follow_the_leader(rig: Rig) -> None:
    await rig.x.init()
    await rig.x.add()
    assert (await rig.produce(b"a")).error == 0
    await eventually(lambda: rig.cluster.nodes[2].partition.log.log_end_offset == 1)
    rig.cluster.elect(2, (1, 2), only=[1])
    assert (await rig.x.end()).error is ErrorCode.NONE
    link = rig.cluster.nodes[2].link
    assert link is not None
    await eventually(lambda: any(due.tries for due in link.outbox._due.values()))
    rig.cluster.elect(2, (1, 2))
    await rig.ended()


async def test_hooks_hear_of_markers_once_they_are_covered(rig: Rig) -> None:
    link = rig.leader.link
    assert link is not None
    heard: list[tuple[str, int, bool, int]] = []
    link.leading.on_marker.append(
        lambda partition, marker: heard.append(
            (partition.name, marker.producer_id, marker.commit, marker.offset)
        )
    )
    await rig.x.init()
    await rig.x.add()
    assert (await rig.produce(b"a")).error == 0
    await rig.x.end(commit=False)
    await rig.ended()
    assert heard == [("events-0", 7, False, 1)]


class Caller:
    """A node that opens streams as node 2, whatever their number."""

    def __init__(self, rig: Rig) -> None:
        node = rig.cluster.nodes[1]
        self.channel = grpc.aio.insecure_channel(node.endpoint.address)
        self.epoch = rig.cluster.image.nodes[NodeId(2)].node_epoch

    async def open(self, number: int, **changes: Any) -> Any:
        call: Any = self.channel.stream_stream(METHOD, None, None)()  # type: ignore[call-arg]
        hello = storage_pb2.TransactionsHello(
            node_id=2, node_epoch=self.epoch, target_node_id=1, cluster_id=CLUSTER_ID, number=number
        )
        for name, value in changes.items():
            setattr(hello, name, value)
        await call.write(storage_pb2.TransactionsRequest(hello=hello).SerializeToString())
        return call

    async def marker(self, call: Any, coordinator_epoch: int) -> None:
        request = storage_pb2.TransactionsRequest()
        marker = request.markers.add(
            coordinator_epoch=coordinator_epoch, producer_id=7, commit=True, transaction_version=0
        )
        marker.topics.add(name=TOPIC, partitions=[0])
        await call.write(request.SerializeToString())


async def test_what_an_older_stream_has_sent_is_not_done_after_a_newer_ones_hello(rig: Rig) -> None:
    await rig.x.init()
    await rig.x.add()
    assert (await rig.produce(b"a")).error == 0
    link = rig.leader.link
    assert link is not None
    caller = Caller(rig)
    older = await caller.open(10)
    await caller.marker(older, 6)  # waits for metadata
    await eventually(lambda: link.leading.waiting_count == 1)
    newer = await caller.open(11)
    assert await older.read() is grpc.aio.EOF  # type: ignore[attr-defined]
    rig.state(2, 6, only=[1])
    assert link.leading.waiting_count == 0
    assert rig.is_open
    await caller.marker(newer, 6)
    answer = storage_pb2.TransactionsResponse.FromString(await newer.read())
    assert [result.error_code for result in answer.markers[0].results] == [0]
    await rig.eventually_ended()
    newer.cancel()
    await caller.channel.close(None)


@pytest.mark.parametrize(
    "changes", [{"number": 10}, {"node_epoch": 0}, {"target_node_id": 3}, {"cluster_id": b"other"}]
)
async def test_hellos_that_are_refused(rig: Rig, changes: dict[str, Any]) -> None:
    caller = Caller(rig)
    link = rig.leader.link
    assert link is not None
    first = await caller.open(10)
    await caller.marker(first, 6)
    await eventually(lambda: link.leading.waiting_count == 1)
    second = await caller.open(**{"number": 12, **changes})
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await second.read()
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    first.cancel()
    await caller.channel.close(None)


async def test_a_stream_that_breaks_is_opened_again(rig: Rig) -> None:
    await rig.x.init()
    assert (await rig.produce(b"a", version=12)).error == 0
    service = rig.cluster.nodes[2].transactions
    assert service is not None
    (served,) = service._streams.values()
    served.stop()
    ended = await rig.x.end(version=2)
    await rig.ended()
    for _ in range(200):
        result = await rig.produce(b"a", version=12, epoch=ended.producer_epoch)
        if result.error == 0:
            break
        assert result.error == ErrorCode.NOT_ENOUGH_REPLICAS
    assert result.error == 0


async def test_a_stream_whose_channel_is_closed_is_opened_again(rig: Rig) -> None:
    """gRPC says of it that it was cancelled: transactions of this pair of nodes would never end again."""
    await rig.x.init()
    assert (await rig.produce(b"a", version=12)).error == 0
    await rig.cluster.nodes[2].channels.drop(rig.cluster.nodes[1].endpoint.address)
    await rig.x.end(version=2)
    await rig.ended()


async def test_what_breaks_in_the_link_ends_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MiniCluster(tmp_path)
    node = await cluster.start_node(1, coordinators=OneShard)
    try:
        link = node.link
        assert link is not None

        def broken() -> None:
            raise InvariantBroken("as the test wants it")

        monkeypatch.setattr(link.outbox, "end_turn", broken)
        link._schedule()
        await eventually(node.lifecycle.failed.is_set)
    finally:
        await cluster.stop()
