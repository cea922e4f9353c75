"""What a scrape says of partitions, of followers and of the parts of a request, on real nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest

from node.harness import KEY, TOPIC, TOPIC_ID, MiniCluster, MiniNode, eventually, make_batch
from penstock_core.ids import TopicPartition
from penstock_kafka.records.batch import read_header
from penstock_kafka.records.markers import Marker
from penstock_storage_node.reporting.partition_counts import AT_ONCE, PartitionLook


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    made = await MiniCluster(tmp_path).start(lag_max_ms=3_600_000)
    made.make_topic(min_insync_replicas="2")
    await eventually(lambda: all(KEY in n.manager.registry.partitions for n in made.nodes.values()))
    await eventually(lambda: made.nodes[1].partition.replica.leadership is not None)
    yield made
    await made.stop()


def told(look: PartitionLook) -> dict[str, float]:
    return {
        sample.name.removeprefix("penstock_node_") + "".join(sample.labels.values()): sample.value
        for family in look.families()
        for sample in family.samples
    }


def at_once(steps: Generator[None, None, None]) -> None:
    raise AssertionError("few partitions are looked at in the scrape")


async def test_partitions_are_counted_by_what_is_wrong_with_them(cluster: MiniCluster) -> None:
    leader = cluster.nodes[1]
    look = PartitionLook(leader.manager.registry, leader.manager.clock_ms, at_once)
    await leader.produce(b"one")
    await eventually(lambda: told(look)["replica_lag_seconds2"] == 0 == told(look)["replica_lag_seconds3"])
    well = told(look)
    assert (well["under_replicated_partitions"], well["at_min_isr_partitions"]) == (0, 0)
    assert well["waiting_produce_partitions"] == well["dirty_logs"] == 0
    cluster.set_isr(1, 2)
    assert told(look)["at_min_isr_partitions"] == told(look)["under_replicated_partitions"] == 1
    cluster.set_isr(1)
    assert told(look)["under_min_isr_partitions"] == 1
    assert told(look)["at_min_isr_partitions"] == 0
    follower = PartitionLook(cluster.nodes[2].manager.registry, cluster.nodes[2].manager.clock_ms, at_once)
    assert told(follower)["under_min_isr_partitions"] == 0, "leaders tell"


async def test_a_follower_that_is_away_is_seen_to_be_behind(cluster: MiniCluster) -> None:
    leader = cluster.nodes[1]
    look = PartitionLook(leader.manager.registry, leader.manager.clock_ms, at_once)
    await leader.produce(b"one")
    await eventually(lambda: told(look)["replica_lag_bytes3"] == 0)
    cluster.set_isr(1, 2)
    await cluster.nodes.pop(3).stop()
    await leader.produce(b"x" * 10_000)
    assert told(look)["replica_lag_bytes3"] > 1_000, "about: records count as equally big"
    await eventually(lambda: told(look)["replica_lag_seconds3"] > 0)
    await eventually(lambda: told(look)["replica_lag_bytes2"] == 0)


async def test_a_transaction_that_stays_open_is_seen_to_hold_readers_back(cluster: MiniCluster) -> None:
    leader = cluster.nodes[1]
    now_ms = [1_000_000]
    look = PartitionLook(leader.manager.registry, lambda: now_ms[0], at_once)
    await leader.produce(b"one")

    def held() -> tuple[float, ...]:
        found = told(look)
        stable = (found[f"last_stable_offset_{what}"] for what in ("lag_records", "stalled_seconds"))
        return found["undecided_partitions"], *stable

    assert held() == (0, 0, 0)
    producer = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    records = [
        make_batch(b"a", b"b", base_sequence=0, **producer),
        make_batch(b"c", base_sequence=2, **producer),
    ]
    log = leader.partition.log
    for batch in records:
        leader.partition.append(batch, read_header(batch), leader.manager.clock_ms())
    leader.manager.drain.schedule()
    await eventually(lambda: leader.partition.replica.high_watermark == 4)
    assert held() == (1, 3, 0)
    now_ms[0] += 5_000
    assert held() == (1, 3, 5)
    leader.partition.append_marker(7, 0, Marker(True, 0), leader.manager.clock_ms())
    await eventually(lambda: log.last_stable_offset(leader.partition.replica.high_watermark) == 5)
    assert held() == (0, 0, 0)


async def test_many_partitions_are_looked_at_beside_the_scrape(cluster: MiniCluster) -> None:
    leader = cluster.nodes[1]
    registry = leader.manager.registry
    looks: list[Generator[None, None, None]] = []
    look = PartitionLook(registry, leader.manager.clock_ms, looks.append)
    cluster.set_isr(1)
    many = {TopicPartition(TOPIC_ID, number): leader.partition for number in range(1, AT_ONCE + 1)}
    registry.partitions.update(many)
    try:
        assert told(look)["under_min_isr_partitions"] == 0, "nothing was looked at yet"
        told(look)
        (steps,) = looks
        assert sum(1 for _ in steps) > 10, "it is done in steps"
        assert told(look)["under_min_isr_partitions"] == AT_ONCE + 1
        assert len(looks) == 1, "what was found is new enough for the next scrape"
    finally:
        for key in many:
            del registry.partitions[key]


async def test_the_parts_of_a_request_are_timed(cluster: MiniCluster) -> None:
    leader = cluster.nodes[1]
    phases = leader.metrics.phases

    def count(api: str, phase: str) -> int:
        return phases[api][phase].count

    await leader.produce(b"one", b"two")
    assert [count("Produce", phase) for phase in ("queue", "local", "remote", "wait")] == [1, 1, 1, 0]
    whole_s = phases["Produce"]["local"].sum + phases["Produce"]["remote"].sum
    assert 0 < phases["Produce"]["local"].sum < whole_s
    await leader.produce(b"three", acks=1)
    await eventually(lambda: count("Produce", "local") == 2)
    await leader.fetch(0)
    assert [count("Fetch", phase) for phase in ("queue", "local", "wait")] == [1, 1, 0]
    high_watermark = leader.partition.replica.high_watermark
    await leader.fetch(high_watermark, max_wait_ms=20)
    assert [count("Fetch", phase) for phase in ("queue", "local", "wait")] == [2, 1, 1]


async def test_traffic_is_counted_by_topic(cluster: MiniCluster) -> None:
    leader: MiniNode = cluster.nodes[1]
    await leader.produce(b"one", b"two")
    found = await leader.fetch(0)
    traffic = leader.metrics.topics.of(TOPIC)
    size = sum(map(len, found.records))
    assert (traffic.received_records, traffic.received_bytes, traffic.sent_bytes) == (2, size, size)
    cluster.set_isr(1)
    await leader.produce(b"three")
    assert (traffic.received_records, dict(leader.metrics.errors)) == (2, {("Produce", 19): 1})
