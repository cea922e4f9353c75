"""Nodes replicate over real streams with real logs: produce, fetch, failover, truncation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node.harness import KEY, TOPIC, TOPIC_ID, MiniCluster, MiniNode, eventually, make_batch, wall_ms
from penstock_core.errors import ErrorCode
from penstock_gateway.relay.queries import NATIVE_VERSION, encode_list_offsets
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import parse_request_header, request_header
from penstock_kafka.wire.produce import Receipt
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_storage_node.disk.pool import CHANGE_THREADS
from penstock_storage_node.kafka import list_offsets
from penstock_storage_node.log.checkpoints import encode_partition_metadata

LONG_MS = 60_000
"""The longest that a fetch may wait; one that is answered in half of it was woken."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    # Nobody answers proposals here: none is made because the disk holds a follower up.
    made = await MiniCluster(tmp_path).start(lag_max_ms=3_600_000)
    yield made
    await made.stop()


async def hosted(cluster: MiniCluster) -> None:
    await eventually(lambda: all(KEY in n.manager.registry.partitions for n in cluster.nodes.values()))
    leader = cluster.nodes[int(cluster.state.leader)]
    await eventually(lambda: leader.partition.replica.leadership is not None)


def stored(node: MiniNode) -> bytes:
    """Everything in the node's log file."""
    return b"".join(p.read_bytes() for p in sorted(node.partition.log.directory.glob("*.log")))


async def test_acks_all_is_on_every_disk(cluster: MiniCluster) -> None:
    cluster.make_topic()
    await hosted(cluster)
    leader = cluster.nodes[1]
    results = await asyncio.gather(*(leader.produce(b"v%d" % i) for i in range(50)))
    assert [r.error for r in results] == [0] * 50
    assert [r.base_offset for r in results] == list(range(50))
    files = [stored(n) for n in cluster.nodes.values()]
    assert files[0] == files[1] == files[2] != b""
    assert all(n.partition.log.flushed_offset == 50 for n in cluster.nodes.values())
    found = await leader.fetch(0)
    assert found.high_watermark == 50
    assert b"".join(found.records) == files[0]
    await eventually(lambda: all(n.partition.replica.high_watermark == 50 for n in cluster.nodes.values()))


async def test_followers_refuse_clients(cluster: MiniCluster) -> None:
    cluster.make_topic()
    await hosted(cluster)
    assert (await cluster.nodes[2].produce(b"x")).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await cluster.nodes[2].fetch(0)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await cluster.nodes[1].fetch(0, epoch=5)).error == ErrorCode.UNKNOWN_LEADER_EPOCH
    past = await cluster.nodes[1].fetch(7)
    assert (past.error, past.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert (await cluster.nodes[1].fetch(0, replica_id=2)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await cluster.nodes[1].fetch(0, isolation_level=7)).error == ErrorCode.UNKNOWN_SERVER_ERROR
    refused = await cluster.nodes[1].produce_batch(make_batch(b"x"), topic="nowhere")
    assert refused.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await cluster.nodes[1].produce(b"x", acks=2)).error == ErrorCode.INVALID_REQUIRED_ACKS
    damaged = bytearray(make_batch(b"x"))
    damaged[-1] ^= 1
    assert (await cluster.nodes[1].produce_batch(bytes(damaged))).error == ErrorCode.CORRUPT_MESSAGE


async def test_fetch_waits_for_records_and_no_longer(cluster: MiniCluster) -> None:
    cluster.make_topic()
    await hosted(cluster)
    leader = cluster.nodes[1]
    waiting = asyncio.ensure_future(leader.fetch(0, max_wait_ms=LONG_MS))
    await eventually(lambda: leader.partition.readers)
    assert not waiting.done()
    await leader.produce(b"x")
    found = await asyncio.wait_for(waiting, LONG_MS / 2000)
    assert found.records
    empty = await leader.fetch(1, max_wait_ms=30)
    assert not empty.records
    assert not leader.partition.readers
    waiting = asyncio.ensure_future(leader.fetch(1, max_wait_ms=LONG_MS))
    await eventually(lambda: leader.partition.readers)
    cluster.elect(2, [1, 2, 3])
    assert (await asyncio.wait_for(waiting, LONG_MS / 2000)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_fetch_does_not_wait_for_more_than_its_limits_let_it_have(cluster: MiniCluster) -> None:
    """Whole batches seldom fill a limit: a consumer with min_bytes of a partition's limit waited out each time."""
    cluster.make_topic()
    await hosted(cluster)
    leader = cluster.nodes[1]
    for _ in range(4):
        await leader.produce(bytes(600))
    whole = len(stored(leader))
    one = whole // 4
    for limits in ({"max_bytes": 2 * one - 1}, {"request_bytes": one + 1}, {"request_bytes": 0}):
        found = await asyncio.wait_for(
            leader.fetch(0, max_wait_ms=LONG_MS, min_bytes=2 * one - 1, **limits), LONG_MS / 2000
        )
        assert sum(map(len, found.records)) == one, limits
    waiting = asyncio.ensure_future(leader.fetch(0, max_wait_ms=LONG_MS, min_bytes=whole + 1))
    await eventually(lambda: leader.partition.readers)
    assert not waiting.done(), "more is let, and not there"
    await leader.produce(b"x")
    await asyncio.wait_for(waiting, LONG_MS / 2000)


async def test_failover_keeps_what_was_acknowledged(cluster: MiniCluster) -> None:
    cluster.make_topic()
    await hosted(cluster)
    await asyncio.gather(*(cluster.nodes[1].produce(b"a%d" % i) for i in range(10)))
    # Node 1 does not hear that it was deposed and goes on alone.
    cluster.elect(2, [1, 2, 3], only=[2, 3])
    await eventually(lambda: cluster.nodes[2].partition.replica.leadership is not None)
    zombie = asyncio.ensure_future(cluster.nodes[1].produce(b"lost", timeout_ms=600))
    kept = asyncio.ensure_future(cluster.nodes[2].produce(b"kept"))
    assert (await zombie).error == ErrorCode.REQUEST_TIMED_OUT
    # The next version tells node 1 too; its tail is cut and replaced.
    cluster.set_isr(1, 2, 3)
    assert (await kept).error == ErrorCode.NONE
    await eventually(lambda: cluster.nodes[1].partition.log.flushed_offset == 11)
    assert b"kept" in stored(cluster.nodes[1])
    assert b"lost" not in stored(cluster.nodes[1])
    assert stored(cluster.nodes[1]) == stored(cluster.nodes[2]) == stored(cluster.nodes[3])
    assert cluster.nodes[1].metrics.truncations_below_high_watermark == 0


async def test_a_node_that_was_away_catches_up_from_the_disk(cluster: MiniCluster) -> None:
    cluster.make_topic(isr=[1, 2, 3])
    await hosted(cluster)
    await cluster.nodes.pop(3).stop(clean=False)
    cluster.set_isr(1, 2)
    leader = cluster.nodes[1]
    big = bytes(200_000)
    await asyncio.gather(*(leader.produce(big) for _ in range(100)))
    back = await cluster.start_node(3)
    await eventually(lambda: KEY in back.manager.registry.partitions)
    for _ in range(20):
        await leader.produce(b"while it catches up")
    await eventually(lambda: back.partition.log.flushed_offset == 120)
    assert stored(back) == stored(leader)
    leadership = leader.partition.replica.leadership
    assert leadership is not None
    await eventually(lambda: leadership.pending is not None)
    assert leadership.pending is not None
    assert leadership.pending.isr == (1, 2, 3)
    assert leader.proposed


async def test_a_follower_goes_on_when_its_channel_is_closed(cluster: MiniCluster) -> None:
    """As a day after new certificates came: gRPC says of its stream that it was cancelled."""
    cluster.make_topic()
    await hosted(cluster)
    leader, follower = cluster.nodes[1], cluster.nodes[2]
    assert (await leader.produce(b"a")).error == 0
    await follower.channels.drop(leader.endpoint.address)
    assert (await leader.produce(b"b", timeout_ms=5_000)).error == 0


async def test_too_few_in_sync_is_refused_before_the_append(cluster: MiniCluster) -> None:
    cluster.make_topic(isr=[1], min_insync_replicas="2")
    await hosted(cluster)
    leader = cluster.nodes[1]
    assert (await leader.produce(b"x")).error == ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader.partition.log.log_end_offset == 0
    # acks=1 is not the ISR's business.
    assert (await leader.produce(b"x", acks=1)).error == ErrorCode.NONE


async def test_idempotence_goes_with_the_log(cluster: MiniCluster) -> None:
    cluster.make_topic()
    await hosted(cluster)

    def batch(sequence: int) -> bytes:
        return make_batch(b"x", producer_id=9, producer_epoch=0, base_sequence=sequence)

    first = await cluster.nodes[1].produce_batch(batch(0))
    assert (first.error, first.base_offset) == (0, 0)
    again = await cluster.nodes[1].produce_batch(batch(0))
    assert (again.error, again.base_offset) == (0, 0)
    cluster.elect(2, [1, 2, 3])
    await eventually(lambda: cluster.nodes[2].partition.replica.leadership is not None)
    again = await cluster.nodes[2].produce_batch(batch(0))
    assert (again.error, again.base_offset) == (0, 0)
    # One before it might be out to node 1 (decision 0076), the first time.
    assert (await cluster.nodes[2].produce_batch(batch(2))).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await cluster.nodes[2].produce_batch(batch(2))).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await cluster.nodes[2].produce_batch(batch(1))).base_offset == 1


async def test_deleting_a_topic_answers_who_waits_and_frees_the_name(cluster: MiniCluster) -> None:
    cluster.make_topic()
    await hosted(cluster)
    await cluster.nodes[1].produce(b"x")
    directories = [n.partition.log.directory for n in cluster.nodes.values()]
    waiting = asyncio.ensure_future(cluster.nodes[1].fetch(1, max_wait_ms=LONG_MS))
    await eventually(lambda: cluster.nodes[1].partition.readers)
    cluster.change(pb.MetadataRecord(topic_removed=pb.TopicRemovedRecord(topic_id=TOPIC_ID)))
    assert (await asyncio.wait_for(waiting, LONG_MS / 2000)).error in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
    await eventually(lambda: not any(d.exists() for d in directories))
    cluster.make_topic()
    await hosted(cluster)
    assert (await cluster.nodes[1].produce(b"y")).base_offset == 0


async def test_restart_finds_its_logs_and_the_watermark(cluster: MiniCluster) -> None:
    cluster.make_topic()
    await hosted(cluster)
    await asyncio.gather(*(cluster.nodes[1].produce(b"v%d" % i) for i in range(10)))
    for number in (1, 2, 3):
        await cluster.nodes.pop(number).stop()
        await cluster.start_node(number)
    cluster.elect(3, [1, 2, 3])
    await hosted(cluster)
    await eventually(lambda: cluster.nodes[3].partition.replica.high_watermark == 10)
    assert (await cluster.nodes[3].produce(b"more")).base_offset == 10


async def test_the_end_is_told_once_it_is_known_after_an_election(
    cluster: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.make_topic()
    await hosted(cluster)
    await asyncio.gather(*(cluster.nodes[1].produce(b"v%d" % i) for i in range(10)))
    node = await alone_after_an_election(cluster)
    monkeypatch.setattr(list_offsets, "ELECTION_WAIT_S", 0.02)
    assert await end_of(node) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    assert await end_of(node, 5) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    assert await end_of(node, 4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1), "who speaks that knows no other"
    monkeypatch.setattr(list_offsets, "ELECTION_WAIT_S", LONG_MS / 1000)
    waiting = asyncio.ensure_future(end_of(node))
    await eventually(lambda: node.partition.readers)
    for number in (1, 3):
        await cluster.start_node(number)
    assert await asyncio.wait_for(waiting, LONG_MS / 2000) == (ErrorCode.NONE, 10)
    assert not node.partition.readers


async def test_whoever_waits_for_the_end_hears_of_lost_leadership(
    cluster: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.make_topic()
    await hosted(cluster)
    await cluster.nodes[1].produce(b"x")
    node = await alone_after_an_election(cluster)
    monkeypatch.setattr(list_offsets, "ELECTION_WAIT_S", LONG_MS / 1000)
    waiting = asyncio.ensure_future(end_of(node))
    await eventually(lambda: node.partition.readers)
    cluster.elect(3, [1, 2, 3])
    assert (await asyncio.wait_for(waiting, LONG_MS / 2000))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def alone_after_an_election(cluster: MiniCluster) -> MiniNode:
    """Node 2 leads after all were killed: it no longer knows the high watermark, and there is nobody to tell it."""
    for number in (1, 2, 3):
        await cluster.nodes.pop(number).stop(clean=False)
    node = await cluster.start_node(2)
    await eventually(lambda: KEY in node.manager.registry.partitions)
    cluster.elect(2, [1, 2, 3])
    await hosted(cluster)
    return node


async def end_of(node: MiniNode, version: int = NATIVE_VERSION) -> tuple[int, int]:
    """Error and offset of a ListOffsets question for the end."""
    frame = encode_list_offsets([(TOPIC, 0, list_offsets.LATEST)])
    if version != NATIVE_VERSION:
        key = ApiKey.LIST_OFFSETS, version
        partition = codec.build(
            codec.entity_type(*key, "ListOffsetsPartition", request=True),
            partition_index=0,
            current_leader_epoch=-1,
            timestamp=list_offsets.LATEST,
        )
        topic_type = codec.entity_type(*key, "ListOffsetsTopic", request=True)
        topic = codec.build(topic_type, name=TOPIC, partitions=(partition,))
        body = codec.build(codec.request_type(*key), replica_id=-1, isolation_level=0, topics=(topic,))
        frame = request_header(*key, 0, None) + codec.encode_body(body)
    header = parse_request_header(frame)
    answer = await node.ask(bytearray(frame))
    _, response = codec.decode_response(header.api_key, header.api_version, answer)
    ((found,),) = (topic.partitions for topic in response.topics)
    return found.error_code, found.offset


async def test_an_older_topic_of_the_same_name_is_set_aside(cluster: MiniCluster) -> None:
    cluster.make_topic()
    await hosted(cluster)
    await cluster.nodes[1].produce(b"old")
    away = cluster.nodes.pop(3)
    await away.stop()
    cluster.change(pb.MetadataRecord(topic_removed=pb.TopicRemovedRecord(topic_id=TOPIC_ID)))
    other = b"U" * 16
    state = cluster_state(other)
    cluster.change(
        pb.MetadataRecord(topic=pb.TopicRecord(topic_id=other, name="events")),
        pb.MetadataRecord(partition=state),
    )
    back = await cluster.start_node(3)
    await eventually(lambda: len(back.manager.registry.partitions) == 1)
    (partition,) = back.manager.registry.partitions.values()
    assert partition.key.topic_id == other
    assert partition.log.log_end_offset == 0
    assert [p.name for p in away.path.iterdir() if p.name.endswith("-stray")]


async def test_a_superfluous_log_that_was_set_aside_is_removed_after_its_time_and_a_partition_never(
    tmp_path: Path,
) -> None:
    cluster = await MiniCluster(tmp_path).start(1)
    cluster.make_topic(isr=(1,))
    await hosted(cluster)
    node = cluster.nodes[1]
    await node.produce(b"kept")
    (log,) = [p.log for p in node.manager.registry.partitions.values()]
    elsewhere, gone = bytes(range(1, 17)), bytes(range(2, 18))
    state = pb.PartitionRecord(
        topic_id=elsewhere, partition=0, replicas=[2, 3], isr=[2, 3], leader=2, leader_epoch=0
    )
    cluster.change(
        pb.MetadataRecord(topic=pb.TopicRecord(topic_id=elsewhere, name="elsewhere")),
        pb.MetadataRecord(partition=state),
    )
    await node.stop()
    stray, unknown = (
        node.path / f"{name}-0.{wall_ms() - 1_000}.{'a' * 32}-stray" for name in ("elsewhere", "gone")
    )
    for path, topic_id in ((stray, elsewhere), (unknown, gone)):
        path.mkdir()
        (path / "00000000000000000000.log").write_bytes(b"x")
        (path / "partition.metadata").write_bytes(encode_partition_metadata(topic_id))
    keeping = await cluster.start_node(1, flags=("--retention-check-interval-ms", "100"))
    await eventually(lambda: keeping.background.strays.count == 2)
    assert stray.exists()
    await keeping.stop()
    flags = ("--retention-check-interval-ms", "100", "--stray-retention-ms", "1000")
    removing = await cluster.start_node(1, flags=flags)
    await eventually(lambda: not stray.exists())
    assert unknown.exists(), "nobody knows what is lost with it"
    assert log.directory.exists()
    assert (await removing.fetch(0)).error == ErrorCode.NONE
    await cluster.stop()


def cluster_state(topic_id: bytes) -> pb.PartitionRecord:
    return pb.PartitionRecord(
        topic_id=topic_id, partition=0, replicas=[1, 2, 3], isr=[1, 2, 3], leader=1, leader_epoch=0
    )


async def test_receipts_tell_who_holds_and_who_has_flushed(cluster: MiniCluster) -> None:
    cluster.make_topic()
    await hosted(cluster)
    leader = cluster.nodes[1]
    got = await leader.produce_batch(make_batch(b"all"), receipt=True)
    assert got.receipt == Receipt(0, (1, 2, 3), (1, 2, 3))
    assert (await leader.produce(b"plain")).receipt is None
    one = await leader.produce_batch(make_batch(b"one"), acks=1, receipt=True)
    assert one.receipt is not None
    assert 1 in one.receipt.flushed_by
    # Not acknowledged, no receipt.
    cluster.set_isr(1)
    refused = await leader.produce_batch(make_batch(b"refused"), receipt=True)
    assert refused.error
    assert refused.receipt is None


async def test_receipts_of_a_replicated_topic_promise_no_flush(cluster: MiniCluster) -> None:
    cluster.make_topic(penstock_durability="replicated")
    await hosted(cluster)
    leader = cluster.nodes[1]
    got = await leader.produce_batch(make_batch(b"all"), receipt=True)
    assert got.receipt == Receipt(0, (1, 2, 3), ())
    assert leader.partition.replica.leadership is not None
    assert leader.partition.replica.leadership.acked_unflushed() == (0, 1)
    assert leader.partition.log.bytes_between(0, 1) == len(stored(leader))
    # A switch flushes what there is, everywhere, then acks mean the flush.
    cluster.change(
        pb.MetadataRecord(
            config=pb.ConfigRecord(
                resource_type="topic", resource_name="events", key="penstock.durability", value="fsync"
            )
        )
    )
    await eventually(lambda: leader.partition.replica.fsync)
    assert all(n.partition.log.flushed_offset == 1 for n in cluster.nodes.values())
    got = await leader.produce_batch(make_batch(b"safe"), receipt=True)
    assert got.receipt == Receipt(0, (1, 2, 3), (1, 2, 3))
    low, high = leader.partition.replica.leadership.acked_unflushed()
    assert low == high


async def test_flush_messages_holds_while_a_flush_is_out(cluster: MiniCluster) -> None:
    cluster.make_topic(penstock_durability="replicated", flush_messages="10")
    await hosted(cluster)
    leader = cluster.nodes[1]
    log = leader.partition.log
    for index in range(9):
        assert (await leader.produce(b"%d" % index)).error == ErrorCode.NONE
    assert log.flushed_offset == 0  # nothing else flushes
    may_flush, held = threading.Event(), []
    try:
        for _ in range(CHANGE_THREADS):  # the lane of flushes is taken
            held.append(asyncio.ensure_future(leader.pool.run(may_flush.wait)))
        for index in range(20):
            assert (await leader.produce(b"%d" % index)).error == ErrorCode.NONE
        assert log.flushed_offset == 0
    finally:
        may_flush.set()
        await asyncio.gather(*held)
    await eventually(lambda: log.written_offset - log.flushed_offset < 10)
    assert log.written_offset == 29


async def test_flush_ms_flushes_what_nobody_adds_to(cluster: MiniCluster) -> None:
    cluster.make_topic(penstock_durability="replicated", flush_ms="1")
    await hosted(cluster)
    assert (await cluster.nodes[1].produce(b"v")).error == ErrorCode.NONE
    for node in cluster.nodes.values():
        await eventually(lambda n=node: n.partition.log.flushed_offset == 1)


async def test_flush_metrics(cluster: MiniCluster) -> None:
    cluster.make_topic()
    await hosted(cluster)
    leader = cluster.nodes[1]
    for index in range(3):
        assert (await leader.produce(b"%d" % index)).error == ErrorCode.NONE
    families = {family.name: family for family in leader.metrics.families()}
    flushes = {
        (s.labels["kind"], s.labels["result"]): s.value for s in families["penstock_node_flushes"].samples
    }
    assert flushes["file", "ok"] >= 3
    assert flushes["file", "failed"] == flushes["filesystem", "ok"] == 0
    counts = {
        s.labels["kind"]: s.value
        for s in families["penstock_node_flush_bytes"].samples
        if s.name.endswith("_count")
    }
    assert counts["file"] == flushes["file", "ok"]
    total = next(
        s.value
        for s in families["penstock_node_flush_bytes"].samples
        if s.name.endswith("_sum") and s.labels["kind"] == "file"
    )
    assert total == len(stored(leader))
