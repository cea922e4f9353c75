"""Two streams per pair of nodes: a replica that is rebuilt holds up no live partition."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from node.harness import MiniCluster, eventually, ids, make_batch
from penstock_core.errors import ErrorCode
from penstock_core.ids import LeaderEpoch, NodeId, TopicId, TopicPartition
from penstock_core.limits import REPLICA_CREDIT_BYTES
from penstock_core.metadata.image import PartitionImage
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_storage_node.log import FileSystem
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.rpc.replication_lanes import CATCH_UP, LIVE, AppendRate, LaneLimits, Pace

BIG_ID = TopicId(b"B" * 16)
BIG = TopicPartition(BIG_ID, 0)
LANES = LaneLimits(behind_bytes=128 * 1024, near_bytes=8 * 1024, credit_bytes=64 * 1024, bytes_per_s=0)
SLOW = replace(LANES, bytes_per_s=1)
"""Whoever is fed by the catch-up lane gets a second batch tomorrow."""


class GatedFileSystem(FileSystem):
    """Writes to one partition's log wait while the gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = 0

    def pwritev(self, fd: int, buffers: object, position: int) -> int:
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        if not self.gate.is_set() and "/big-0/" in path and path.endswith(".log"):
            self.waiting += 1
            self.gate.wait()
        return super().pwritev(fd, buffers, position)  # type: ignore[arg-type]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    """Node 3 comes late: it is in nobody's ISR and has 4 MB of `big` to fetch."""
    made = MiniCluster(tmp_path)
    for number in (1, 2):
        await made.start_node(number, lanes=LANES)
    made.make_topic(isr=(1, 2))
    state = replace(made.state, topic_id=BIG_ID, replicas=ids(1, 2, 3), isr=ids(1, 2), partition_epoch=1)
    made.change(
        pb.MetadataRecord(topic=pb.TopicRecord(topic_id=BIG_ID, name="big")),
        pb.MetadataRecord(partition=state.to_pb()),
    )
    events = replace(made.state, replicas=ids(1, 2, 3), partition_epoch=1)
    made.change(pb.MetadataRecord(partition=events.to_pb()))
    leader = made.nodes[1]
    await eventually(lambda: BIG in leader.manager.registry.partitions)
    await eventually(lambda: leader.manager.registry.partitions[BIG].replica.leadership is not None)
    for _ in range(64):
        got = await leader.produce_batch(make_batch(os.urandom(60_000)), topic="big", timeout_ms=60_000)
        assert got.error == ErrorCode.NONE
    yield made
    await stop(made)


@pytest.fixture
async def bare_cluster(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    """No node and no topic yet."""
    made = MiniCluster(tmp_path)
    yield made
    await stop(made)


async def stop(cluster: MiniCluster) -> None:
    for node in cluster.nodes.values():
        if isinstance(node.fs, GatedFileSystem):
            node.fs.gate.set()
    await cluster.stop()


async def make_big(
    cluster: MiniCluster, replicas: Sequence[int], isr: Sequence[int], partition_epoch: int = 1
) -> None:
    """Create `big`, led by node 1, or change who is in sync."""
    state = PartitionImage(
        BIG_ID, 0, replicas=ids(*replicas), isr=ids(*isr), leader=NodeId(1),
        leader_epoch=LeaderEpoch(0), partition_epoch=partition_epoch,
    )  # fmt: skip
    cluster.change(
        pb.MetadataRecord(topic=pb.TopicRecord(topic_id=BIG_ID, name="big")),
        pb.MetadataRecord(partition=state.to_pb()),
    )
    leader = cluster.nodes[1].manager
    await eventually(lambda: BIG in leader.registry.partitions)
    await eventually(lambda: leader.registry.partitions[BIG].replica.leadership is not None)


def big(cluster: MiniCluster, number: int) -> Partition:
    return cluster.nodes[number].manager.registry.partitions[BIG]


async def test_live_partitions_go_on_while_a_rebuild_is_stuck(cluster: MiniCluster) -> None:
    fs = GatedFileSystem()
    fs.gate.clear()
    node = await cluster.start_node(3, lanes=LANES, fs=fs)
    leader = cluster.nodes[1]
    await eventually(lambda: fs.waiting > 0)
    stuck = [s for s in big(cluster, 1).sessions if s.sender.node == NodeId(3)]
    assert len(stuck) == 1
    # The rebuild has used up its credit and gets no further.
    await eventually(lambda: stuck[0].sender.outstanding_bytes > LANES.credit_bytes - 60_000)
    assert node.links.catching_up_count == 1
    end = big(cluster, 3).log.log_end_offset
    assert end < 64
    # Node 3 joins the live partition's ISR: every ack of it needs node 3 as well.
    await eventually(lambda: leader.partition.replica.state in leader.proposed)
    cluster.set_isr(1, 2, 3)
    for index in range(30):
        assert (await leader.produce(b"%d" % index, timeout_ms=60_000)).error == ErrorCode.NONE
        assert node.partition.log.flushed_offset == index + 1
    live = next(s for s in leader.partition.sessions if s.sender.node == NodeId(3))
    assert live.sender is not stuck[0].sender
    assert big(cluster, 3).log.log_end_offset - end <= LANES.credit_bytes // 60_000 + 1
    # Once its disk goes on, the rebuild ends, and the partition is live as any other.
    fs.gate.set()
    await eventually(lambda: big(cluster, 3).log.flushed_offset == 64)
    await eventually(lambda: node.links.catching_up_count == 0)
    assert leader.metrics.catch_up_out_bytes > 3_000_000
    await eventually(lambda: any(s.sender is live.sender for s in big(cluster, 1).sessions))
    assert (await leader.produce_batch(make_batch(b"x"), topic="big")).error == ErrorCode.NONE
    await eventually(lambda: big(cluster, 3).log.flushed_offset == 65)


async def test_a_rebuild_under_writing_catches_up(cluster: MiniCluster) -> None:
    leader = cluster.nodes[1]
    node = await cluster.start_node(3, lanes=LANES)

    async def write() -> None:
        for _ in range(40):
            batch = make_batch(os.urandom(2_000))
            assert (await leader.produce_batch(batch, topic="big", timeout_ms=60_000)).error == ErrorCode.NONE

    await asyncio.gather(*(write() for _ in range(3)))
    await eventually(lambda: BIG in node.manager.registry.partitions)
    await eventually(lambda: big(cluster, 3).log.flushed_offset == 64 + 120)
    files = [
        b"".join(p.read_bytes() for p in sorted(big(cluster, n).log.directory.glob("*.log"))) for n in (1, 3)
    ]
    assert files[0] == files[1]
    await eventually(lambda: node.links.catching_up_count == 0)


async def test_a_replica_that_acks_wait_for_is_never_paced(bare_cluster: MiniCluster) -> None:
    """The catch-up lane's pace would be the producers' pace: they wait for its acks, and keep it behind."""
    fs = GatedFileSystem()
    leader = await bare_cluster.start_node(1, lanes=SLOW)
    await bare_cluster.start_node(2, lanes=SLOW, fs=fs)
    await make_big(bare_cluster, replicas=(1, 2), isr=(1, 2))
    await eventually(lambda: len(big(bare_cluster, 1).sessions) == 1)
    (session,) = big(bare_cluster, 1).sessions
    fs.gate.clear()
    count = REPLICA_CREDIT_BYTES // 60_000 + 20  # more than the live lane lets be under way
    writes = [
        asyncio.ensure_future(leader.produce_batch(make_batch(os.urandom(60_000)), topic="big"))
        for _ in range(count)
    ]
    await eventually(lambda: big(bare_cluster, 1).log.log_end_offset == count)
    assert not session.live
    fs.gate.set()
    for got in await asyncio.wait_for(asyncio.gather(*writes), 30):
        assert got.error == ErrorCode.NONE
    assert leader.metrics.catch_up_out_bytes == 0
    await eventually(lambda: session.live)


async def test_one_log_that_does_not_write_keeps_no_other_partition_from_its_node(
    bare_cluster: MiniCluster,
) -> None:
    """What it was sent is the whole credit of the stream, in which every other partition's batches go too."""
    fs = GatedFileSystem()
    leader = await bare_cluster.start_node(1)
    await bare_cluster.start_node(2, fs=fs)
    bare_cluster.make_topic(isr=(1, 2))
    await make_big(bare_cluster, replicas=(1, 2), isr=(1, 2))
    await eventually(lambda: len(big(bare_cluster, 1).sessions) == 1)
    (stuck,) = big(bare_cluster, 1).sessions
    fs.gate.clear()
    count = REPLICA_CREDIT_BYTES // 60_000 + 20
    writes = [
        asyncio.ensure_future(leader.produce_batch(make_batch(os.urandom(60_000)), topic="big"))
        for _ in range(count)
    ]
    await eventually(lambda: big(bare_cluster, 1).log.log_end_offset == count)
    assert not stuck.live
    for _ in range(10):
        # More than what the last of `big` left of the credit.
        got = await leader.produce_batch(make_batch(os.urandom(100_000)), timeout_ms=10_000)
        assert got.error == ErrorCode.NONE
    events = next(s for s in leader.partition.sessions if s.sender.node == NodeId(2))
    assert events.sender is stuck.sender
    # As little as ever is on the way to it.
    assert stuck.held_bytes <= REPLICA_CREDIT_BYTES
    fs.gate.set()
    for got in await asyncio.wait_for(asyncio.gather(*writes), 30):
        assert got.error == ErrorCode.NONE


async def test_a_replica_leaves_the_paced_lane_as_soon_as_acks_wait_for_it(bare_cluster: MiniCluster) -> None:
    """What was sent to it fast enough for the ISR is not rested for, or the next ack would rest as well."""
    leader = await bare_cluster.start_node(1, lanes=SLOW)
    await make_big(bare_cluster, replicas=(1, 3), isr=(1,))
    assert (await leader.produce_batch(make_batch(os.urandom(200_000)), topic="big")).error == ErrorCode.NONE
    node = await bare_cluster.start_node(3, lanes=SLOW)
    replica = big(bare_cluster, 1).replica
    await eventually(lambda: replica.state in leader.proposed, 30)
    assert leader.metrics.catch_up_out_bytes > 200_000  # it came by the lane that now rests for two days
    await make_big(bare_cluster, replicas=(1, 3), isr=(1, 3), partition_epoch=2)
    got = await leader.produce_batch(make_batch(b"x"), topic="big", timeout_ms=30_000)
    assert got.error == ErrorCode.NONE
    assert big(bare_cluster, 3).log.flushed_offset == 2
    await eventually(lambda: node.links.catching_up_count == 0)


def test_who_goes_where() -> None:
    limits = LaneLimits(behind_bytes=1000, near_bytes=100, bytes_per_s=1000)
    assert limits.lane_after(LIVE, 1000, is_waited_for=False) == LIVE
    assert limits.lane_after(LIVE, 1001, is_waited_for=False) == CATCH_UP
    assert limits.lane_after(CATCH_UP, 101, is_waited_for=False) == CATCH_UP
    assert limits.lane_after(CATCH_UP, 100, is_waited_for=False) == LIVE
    assert limits.lane_after(LIVE, 1001, is_waited_for=True) == LIVE
    assert limits.lane_after(CATCH_UP, 101, is_waited_for=True) == LIVE
    # Where a rate is set, a small replica that is rebuilt keeps to it too.
    assert limits.lane_after(LIVE, 200, is_waited_for=False, is_throttled=True) == LIVE
    assert limits.lane_after(LIVE, 201, is_waited_for=False, is_throttled=True) == CATCH_UP
    assert limits.lane_after(LIVE, 201, is_waited_for=True, is_throttled=True) == LIVE
    assert limits.lane_after(CATCH_UP, 101, is_waited_for=False, is_throttled=True) == CATCH_UP
    assert limits.lane_after(CATCH_UP, 100, is_waited_for=False, is_throttled=True) == LIVE


def test_a_rebuild_is_paced_by_the_setting_its_producers_and_the_operators_bound() -> None:
    limits = LaneLimits(bytes_per_s=1000)
    assert limits.pace(0) == 1000
    assert limits.pace(800) == 1000
    assert limits.pace(2000) == 2500
    assert limits.pace(2000, throttle=700) == 700
    assert limits.pace(0, throttle=0) == 1
    assert LaneLimits(bytes_per_s=0).pace(5000) == math.inf
    assert LaneLimits(bytes_per_s=0).pace(5000, throttle=700) == 700


def test_a_rate_is_of_the_last_two_seconds_and_a_burst_is_none() -> None:
    rate = AppendRate()
    assert rate.per_s(10.0, 5_000) == 0
    assert rate.per_s(10.001, 6_000) == 500
    for step in range(1, 400):
        seen = rate.per_s(10 + step / 100, 6_000 + 30 * step)
    assert seen == pytest.approx(3_000, rel=0.15)
    assert rate.per_s(14.5, 6_000 + 30 * 399) < 3_000
    assert rate.per_s(17.5, 6_000 + 30 * 399) < 1_500
    for step in range(20):
        seen = rate.per_s(18 + step / 2, 6_000 + 30 * 399)
    assert seen == 0


def test_a_pace_holds_on_average_and_what_sending_takes_counts() -> None:
    pace = Pace(0.0, spare_bytes=1_000)
    now_s = sent = 0.0
    while now_s < 10:
        pace.sent(500)
        sent += 500
        now_s += 0.02  # the message is on its way
        now_s += pace.rest_s(now_s, 10_000)
    assert sent == pytest.approx(100_000, rel=0.02)
    # An hour without anything to send is worth no more than the spare bytes.
    now_s += 3_600
    assert pace.rest_s(now_s, 10_000) == 0
    pace.sent(1_500)
    assert pace.rest_s(now_s, 10_000) == pytest.approx(0.05)
    # A rate that changes while it rests counts from then on.
    assert pace.rest_s(now_s + 0.02, 100_000) == 0
    assert pace.rest_s(now_s, math.inf) == 0


@pytest.mark.parametrize("written_mb_per_s", [0, 10, 60, 100, 300])
def test_a_rebuild_catches_up_whatever_is_written_meanwhile(written_mb_per_s: int) -> None:
    """In the time of a clock that jumps: 1 MB messages of which each takes 1 ms to go."""
    limits, rate, pace = LaneLimits(), AppendRate(), Pace(0.0, spare_bytes=1 << 20)
    behind_mb = 500
    got = now_s = 0.0
    while (lag := (behind_mb + written_mb_per_s * now_s) * 1e6 - got) > 1e6:
        assert now_s < 120, f"{lag / 1e6:.0f} MB behind"
        pace.sent(1_000_000)
        got += 1e6
        now_s += 0.001
        total = int(written_mb_per_s * 1e6 * now_s)
        now_s += pace.rest_s(now_s, limits.pace(rate.per_s(now_s, total)))
    gain_mb_per_s = max(limits.bytes_per_s / 1e6, 1.25 * written_mb_per_s) - written_mb_per_s
    # Until the rate is known, two seconds, it falls back.
    assert 0.9 < now_s / (behind_mb / gain_mb_per_s) < 1.8


async def test_a_rebuild_catches_up_with_producers_that_are_faster_than_its_pace(
    bare_cluster: MiniCluster,
) -> None:
    leader = await bare_cluster.start_node(1, lanes=replace(LANES, bytes_per_s=100_000))
    await make_big(bare_cluster, replicas=(1, 3), isr=(1,))

    async def write() -> None:
        got = await leader.produce_batch(make_batch(os.urandom(20_000)), topic="big", timeout_ms=60_000)
        assert got.error == ErrorCode.NONE

    for _ in range(100):
        await write()
    joins = asyncio.Event()

    async def go_on() -> None:
        while not joins.is_set():
            await write()

    writers = [asyncio.ensure_future(go_on()) for _ in range(3)]
    try:
        await bare_cluster.start_node(3, lanes=LANES)
        replica = big(bare_cluster, 1).replica
        await eventually(lambda: replica.state in leader.proposed, 60)
        written = big(bare_cluster, 1).log.size_bytes
    finally:
        joins.set()
        await asyncio.gather(*writers)
    assert leader.metrics.catch_up_out_bytes > 2_000_000
    assert written > 3_000_000, "they wrote on while it came"
