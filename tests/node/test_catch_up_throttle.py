"""What a node's catch-up streams take together keeps to one rate, told or set; who is in sync is never held up.

The clock of the rates is turned by hand: how far it has gone says how much may have been sent, whatever time it took.
It is turned only while a stream waits for it: what nobody has claimed by then is lost beyond a burst, as it should be.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from node.harness import MiniCluster, MiniNode, eventually, ids, make_batch
from penstock_core.config.catalog import FOLLOWER_RATE
from penstock_core.errors import ErrorCode
from penstock_core.ids import LeaderEpoch, NodeId, TopicId, TopicPartition
from penstock_core.metadata.image import PartitionImage
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_storage_node.rpc.catch_up_throttle import BURST_S
from penstock_storage_node.rpc.replication_lanes import LaneLimits

RATE = 1_000_000
BATCH_BYTES = 20_000
STEPS = 18
"""Of BURST_S each: in a longer one a stream that is just between two messages would miss something."""
LANES = LaneLimits(behind_bytes=64 * 1024, near_bytes=4 * 1024, credit_bytes=256 * 1024, bytes_per_s=0)


class HandClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    made = MiniCluster(tmp_path)
    yield made
    await made.stop()


async def make(
    cluster: MiniCluster, name: str, replicas: Sequence[int], isr: Sequence[int], epoch: int = 0
) -> TopicPartition:
    """A topic led by the first of its replicas, or its next state."""
    key = TopicPartition(TopicId(name.encode() * (16 // len(name))), 0)
    state = PartitionImage(
        *key, replicas=ids(*replicas), isr=ids(*isr), leader=NodeId(replicas[0]),
        leader_epoch=LeaderEpoch(0), partition_epoch=epoch,
    )  # fmt: skip
    records = [pb.MetadataRecord(partition=state.to_pb())]
    if key.topic_id not in cluster.image.topics:
        # With fewer in sync nothing would be committed, and whoever comes first would be waited for.
        least = pb.ConfigRecord(
            resource_type="topic", resource_name=name, key="min.insync.replicas", value="1"
        )
        topic = pb.TopicRecord(topic_id=key.topic_id, name=name)
        records = [pb.MetadataRecord(topic=topic), pb.MetadataRecord(config=least), *records]
    cluster.change(*records)
    registry = cluster.nodes[replicas[0]].manager.registry
    await eventually(lambda: key in registry.partitions)
    await eventually(lambda: registry.partitions[key].replica.leadership is not None)
    return key


async def fill(node: MiniNode, topic: str, count: int, acks: int = 1) -> None:
    for _ in range(count):
        got = await node.produce_batch(make_batch(os.urandom(BATCH_BYTES)), acks=acks, topic=topic)
        assert got.error == ErrorCode.NONE


async def test_a_leader_feeds_all_its_followers_together_at_its_rate(
    cluster: MiniCluster, clock: HandClock
) -> None:
    leader = await cluster.start_node(1, lanes=LANES, rate_clock_s=clock)
    await make(cluster, "bigg", (1, 2, 3, 4), (1,))
    await fill(leader, "bigg", 40)
    leader.throttle.hear(RATE)
    for number in (2, 3, 4):
        await cluster.start_node(number, lanes=LANES)
    await eventually(lambda: leader.throttle.out.throttled_s > 0)
    metrics = leader.metrics
    for step in range(1, STEPS):
        await eventually(lambda: leader.throttle.out.is_held_up)
        clock.now_s = step * BURST_S
        leader.throttle.hear(RATE)
        await eventually(lambda: metrics.catch_up_out_bytes >= 0.98 * RATE * (clock.now_s - 3 * BURST_S))
        assert metrics.catch_up_out_bytes <= RATE * clock.now_s
    leader.throttle.hear(0)
    for number in (2, 3, 4):
        log = cluster.nodes[number].manager.registry.partitions[TopicPartition(TopicId(b"bigg" * 4), 0)].log
        await eventually(lambda log=log: log.flushed_offset == 40)


async def test_a_follower_is_fed_by_all_its_leaders_together_at_its_rate(
    cluster: MiniCluster, clock: HandClock
) -> None:
    keys = []
    for number, name in ((1, "one1"), (2, "two2"), (3, "tri3")):
        node = await cluster.start_node(number, lanes=LANES)
        keys.append(await make(cluster, name, (number, 4), (number,)))
        await fill(node, name, 40)
    follower = await MiniNode(4, cluster.path / "node-4", lanes=LANES, rate_clock_s=clock).start()
    follower.throttle.hear(RATE)  # before it is told of what there is to fetch
    cluster.admit(4, follower)
    await eventually(lambda: follower.throttle.into.throttled_s > 0)
    metrics = follower.metrics
    for step in range(1, STEPS):
        await eventually(lambda: follower.throttle.into.is_held_up)
        clock.now_s = step * BURST_S
        follower.throttle.hear(RATE)
        await eventually(lambda: metrics.catch_up_in_bytes >= 0.98 * RATE * (clock.now_s - 3 * BURST_S))
        assert metrics.catch_up_in_bytes <= RATE * clock.now_s
    clock.now_s += 60
    for key in keys:
        log = follower.manager.registry.partitions[key].log
        await eventually(lambda log=log: log.flushed_offset == 40)


async def test_what_is_in_sync_goes_on_while_a_rebuild_is_held_up(
    cluster: MiniCluster, clock: HandClock
) -> None:
    """The clock of the rates stands still: nothing goes by the catch-up lane at all."""
    leader = await cluster.start_node(1, lanes=LANES, rate_clock_s=clock)
    big = await make(cluster, "bigg", (1, 2), (1,))
    await fill(leader, "bigg", 20)
    leader.throttle.hear(RATE)
    follower = await cluster.start_node(2, lanes=LANES, rate_clock_s=clock)
    await eventually(lambda: follower.links.catching_up_count == 1)
    await make(cluster, "live", (1, 2), (1, 2))
    await fill(leader, "live", 10, acks=-1)
    assert leader.metrics.catch_up_out_bytes == 0
    log = follower.manager.registry.partitions[big].log
    assert log.log_end_offset == 0
    clock.now_s += 10  # what was told is over
    await eventually(lambda: log.flushed_offset == 20)
    await eventually(lambda: follower.links.catching_up_count == 0)
    state = leader.manager.registry.partitions[big].replica.state
    await eventually(lambda: state in leader.proposed)
    await make(cluster, "bigg", (1, 2), (1, 2), epoch=1)
    leader.throttle.hear(1)
    follower.throttle.hear(1)
    await fill(leader, "bigg", 10, acks=-1)


async def test_a_setting_of_the_follower_holds_for_it_alone(cluster: MiniCluster, clock: HandClock) -> None:
    leader = await cluster.start_node(1, lanes=LANES)
    big = await make(cluster, "bigg", (1, 2, 3), (1,))
    await fill(leader, "bigg", 20)
    slow = pb.ConfigRecord(resource_type="node", resource_name="2", key=FOLLOWER_RATE, value=str(RATE))
    cluster.change(pb.MetadataRecord(config=slow))
    held = await cluster.start_node(2, lanes=LANES, rate_clock_s=clock)
    free = await cluster.start_node(3, lanes=LANES, rate_clock_s=clock)
    await eventually(lambda: big in free.manager.registry.partitions)
    log = free.manager.registry.partitions[big].log
    await eventually(lambda: log.flushed_offset == 20)
    assert held.metrics.catch_up_in_bytes == 0
    slow.ClearField("value")
    cluster.change(pb.MetadataRecord(config=slow))
    slow_log = held.manager.registry.partitions[big].log
    await eventually(lambda: slow_log.flushed_offset == 20)
