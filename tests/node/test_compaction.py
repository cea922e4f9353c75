"""Compaction and DeleteRecords on real nodes in this process: real files, worker process, streams."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest

from node.harness import TOPIC, MiniCluster, MiniNode, eventually, wall_ms
from penstock_core.errors import ErrorCode
from penstock_core.ids import LeaderEpoch, NodeId, TopicId, TopicPartition
from penstock_core.metadata import PartitionImage
from penstock_kafka.records.batch import HEADER_BYTES
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.read import read_all
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.frames import parse_request_header, request_header
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.settings import load_settings
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.log import ReadJob
from penstock_storage_node.log.compaction import worker
from penstock_storage_node.replica import compactor as compaction_module
from penstock_storage_node.replica.compactor import Compactor
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.settings import StorageNodeSettings


def delete_records_frame(offset: int, timeout_ms: int) -> bytearray:
    """DeleteRecords version 1 for partition 0."""
    name = TOPIC.encode()
    body = (1).to_bytes(4, "big") + len(name).to_bytes(2, "big") + name + (1).to_bytes(4, "big")
    body += (0).to_bytes(4, "big") + offset.to_bytes(8, "big", signed=True) + timeout_ms.to_bytes(4, "big")
    return bytearray(request_header(ApiKey.DELETE_RECORDS, 1, 5, "test") + body)


async def delete_records(node: MiniNode, offset: int, timeout_ms: int = 60_000) -> tuple[int, int]:
    """(error, low watermark)."""
    frame = delete_records_frame(offset, timeout_ms)
    header = parse_request_header(frame)
    answer: Any = await node.data.handle(RequestContext(), header, frame)  # type: ignore[misc]
    data = b"".join(answer)
    low = int.from_bytes(data[-10:-2], "big", signed=True)
    return int.from_bytes(data[-2:], "big", signed=True), low


def keyed(*rows: tuple[bytes, bytes | None], codec_id: int = 0) -> bytes:
    return build_batch([NewRecord(key, value, wall_ms()) for key, value in rows], codec=codec_id)


async def stored(node: MiniNode) -> dict[bytes | None, bytes | None]:
    log = node.partition.log
    found: dict[bytes | None, bytes | None] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found_or_job = node.partition.read(offset, 1 << 20, log.log_end_offset)
        if isinstance(found_or_job, ReadJob):
            found_or_job = await node.partition.run_read(found_or_job)
        data = found_or_job
        for record in read_all(b"".join(data.buffers)):
            found[record.key] = record.value
        offset = data.next_offset
    return found


def compaction_of(node: MiniNode, **options: int) -> Compactor:
    arguments = ["--data-dir", str(node.path), "--compaction-bytes-per-second", "0"]
    for name, value in options.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    settings = load_settings(StorageNodeSettings, arguments, "storage-node")
    return Compactor(node.manager, node.directory, settings)


SMALL: dict[str, Any] = {
    "cleanup_policy": "compact",
    "segment_bytes": "4096",
    "min_cleanable_dirty_ratio": "0.01",
    "index_interval_bytes": "256",
}


@pytest.fixture
async def cluster(tmp_path: Path) -> Any:
    found = await MiniCluster(tmp_path).start(3)
    yield found
    await found.stop()


async def write(cluster: MiniCluster, first: int, count: int) -> None:
    for node in cluster.nodes.values():
        await eventually(lambda n=node: n.manager.registry.partitions)
    await write_alone(cluster.nodes[1], first, count)


async def write_alone(leader: MiniNode, first: int, count: int) -> None:
    await eventually(lambda: leader.partition.replica.leadership is not None)
    for number in range(first, first + count):
        key = b"key-%d" % (number % 7)
        result = await leader.produce_batch(keyed((key, b"%d:" % number + bytes(200)), codec_id=number % 5))
        assert result.error == ErrorCode.NONE, result.error_message


async def test_a_read_goes_through_segments_of_which_nothing_is_left(tmp_path: Path) -> None:
    """One fetch after the other without a record: librdkafka tells its user that a batch is too large."""
    cluster = await MiniCluster(tmp_path).start(1)
    try:
        cluster.make_topic(isr=(1,), min_insync_replicas="1", **SMALL)
        leader = cluster.nodes[1]
        await eventually(lambda: leader.manager.registry.partitions)
        await write_alone(leader, 0, 700)
        log = leader.partition.log
        count = log.segment_count
        compactor = compaction_of(leader)
        assert await compactor.run_once()
        await compactor.end_worker()
        hollow = [s for s in log.segments[:-1] if s.written == HEADER_BYTES]
        assert len(hollow) > 20, (count, [s.written for s in log.segments])
        offset = 0
        while offset < log.log_end_offset:
            for max_bytes in (1, 100, 1 << 20):
                found_or_job = leader.partition.read(offset, max_bytes, log.log_end_offset)
                if isinstance(found_or_job, ReadJob):
                    found_or_job = await leader.partition.run_read(found_or_job)
                found = found_or_job
                assert any(read_all(b"".join(found.buffers))), (offset, max_bytes)
            offset = found.next_offset
    finally:
        await cluster.stop()


async def test_replicas_compact_by_themselves_and_rebuild_from_one_another(cluster: MiniCluster) -> None:
    cluster.make_topic(**SMALL)
    await write(cluster, 0, 120)
    end = cluster.nodes[1].partition.log.log_end_offset
    for number in (1, 2):  # the third one doesn't
        compaction = compaction_of(cluster.nodes[number])
        before = cluster.nodes[number].partition.log.size_bytes
        await eventually(lambda n=number: cluster.nodes[n].partition.replica.high_watermark == end)
        while await compaction.run_once():
            pass
        await compaction.end_worker()
        assert compaction.run_count >= 1 and compaction.failure_count == 0
        assert cluster.nodes[number].partition.log.size_bytes < before
    latest = {b"key-%d" % key: number for number in range(120) for key in (number % 7,)}
    for node in cluster.nodes.values():
        found = await stored(node)
        assert {key: int(value.partition(b":")[0]) for key, value in found.items() if value} == latest
    # A new replica is built from a compacted leader, gaps and all.
    await cluster.nodes[3].stop()
    path = cluster.nodes[3].path
    path.rename(path.with_name("old"))
    await cluster.start_node(3)
    await eventually(lambda: cluster.nodes[3].manager.registry.partitions)
    await eventually(lambda: cluster.nodes[3].partition.log.log_end_offset == end)
    assert await stored(cluster.nodes[3]) == await stored(cluster.nodes[1])
    await write(cluster, 120, 5)
    # And what it has survives an unclean stop, though its checkpoints are old.
    kept = await stored(cluster.nodes[3])
    await cluster.nodes[3].stop(clean=False)
    await cluster.start_node(3)
    await eventually(lambda: cluster.nodes[3].manager.registry.partitions)
    log = cluster.nodes[3].partition.log
    await eventually(lambda: log.log_end_offset == cluster.nodes[1].partition.log.log_end_offset)
    assert await stored(cluster.nodes[3]) == kept


async def compact_all(node: MiniNode) -> None:
    compaction = compaction_of(node)
    while await compaction.run_once():
        pass
    await compaction.end_worker()
    assert compaction.failure_count == 0


async def test_a_deleted_key_does_not_come_back_with_a_replica_that_was_away_for_too_long(
    cluster: MiniCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.make_topic(delete_retention_ms="0", min_insync_replicas="1", **SMALL)
    await write(cluster, 0, 30)
    nodes = cluster.nodes
    assert (await nodes[1].produce_batch(keyed((b"secret", b"deleted later")))).error == ErrorCode.NONE
    end = nodes[1].partition.log.log_end_offset
    await eventually(lambda: all(n.partition.log.flushed_offset == end for n in nodes.values()))
    for number in (2, 3):
        await nodes[number].stop()
    cluster.set_isr(1)
    assert (await nodes[1].produce_batch(keyed((b"secret", None)))).error == ErrorCode.NONE
    for first in (30, 90):  # a first run cleans up to the tombstone, a later one takes it
        await write_alone(nodes[1], first, 60)
        await compact_all(nodes[1])
    assert b"secret" not in await stored(nodes[1])
    # It is emptied, and copies what the leader has.
    await cluster.start_node(3)
    await eventually(lambda: nodes[3].manager.registry.partitions)
    end = nodes[1].partition.log.log_end_offset
    await eventually(lambda: nodes[3].partition.log.flushed_offset == end)
    assert await stored(nodes[3]) == await stored(nodes[1])
    assert capsys.readouterr().out.count("log emptied to be copied anew") == 1
    assert nodes[3].metrics.truncations_below_high_watermark == 0
    # Though it never had the tombstone, it knows as a leader what others may have missed; after a restart, too.
    cluster.set_isr(1, 3)
    await nodes[3].stop(clean=False)
    await cluster.start_node(3)
    await eventually(lambda: nodes[3].manager.registry.partitions)
    cluster.elect(3, [1, 3])
    await eventually(lambda: nodes[3].partition.replica.leadership is not None)
    await cluster.start_node(2)
    await eventually(lambda: nodes[2].manager.registry.partitions)
    await eventually(lambda: nodes[2].partition.log.flushed_offset == end)
    assert await stored(nodes[2]) == await stored(nodes[3])
    # Away for a moment: nothing is copied that it has.
    for number in (2, 3):
        assert capsys.readouterr().out.count("log emptied to be copied anew") == (number == 2)
        await nodes[2].stop()
        await cluster.start_node(2)
        await eventually(lambda: nodes[2].manager.registry.partitions)
        await eventually(lambda: NodeId(2) in fed_by(nodes[3]))


def fed_by(leader: MiniNode) -> set[NodeId]:
    return {session.sender.node for session in leader.partition.sessions}


async def test_clients_read_and_write_while_segments_are_exchanged(cluster: MiniCluster) -> None:
    cluster.make_topic(isr=(1,), min_insync_replicas="1", **SMALL)
    await write(cluster, 0, 60)
    compaction = compaction_of(cluster.nodes[1])
    over = False
    reads = 0

    async def read() -> None:
        nonlocal reads
        while not over:
            found = await cluster.nodes[1].fetch(0, max_bytes=1 << 20)
            assert found.error == ErrorCode.NONE
            reads += 1
            await asyncio.sleep(0)

    readers = [asyncio.ensure_future(read()) for _ in range(2)]
    try:
        for turn in range(3):
            await write(cluster, 60 + 20 * turn, 20)
            await compaction.run_once()
    finally:
        over = True
        await asyncio.gather(*readers)
        await compaction.end_worker()
    assert reads > 0 and compaction.run_count >= 1 and compaction.failure_count == 0


OTHER, OTHER_ID = "other", TopicId(b"O" * 16)


async def two_compacted_topics(cluster: MiniCluster) -> tuple[Partition, Partition]:
    """On node 1; the first one is the dirtier one."""
    cluster.make_topic(isr=(1,), min_insync_replicas="1", **SMALL)
    settings = {name.replace("_", "."): value for name, value in SMALL.items()}
    made = PartitionImage(
        OTHER_ID, 0, replicas=(NodeId(1),), isr=(NodeId(1),), leader=NodeId(1),
        leader_epoch=LeaderEpoch(0), partition_epoch=0,
    )  # fmt: skip
    cluster.change(
        pb.MetadataRecord(topic=pb.TopicRecord(topic_id=OTHER_ID, name=OTHER)),
        *(
            pb.MetadataRecord(
                config=pb.ConfigRecord(resource_type="topic", resource_name=OTHER, key=key, value=value)
            )
            for key, value in settings.items()
        ),
        pb.MetadataRecord(partition=made.to_pb()),
    )
    node = cluster.nodes[1]
    key = TopicPartition(OTHER_ID, 0)
    await eventually(lambda: key in node.manager.registry.partitions)
    other = node.manager.registry.partitions[key]
    await eventually(lambda: other.replica.leadership is not None)
    for number in range(60):
        result = await node.produce_batch(keyed((b"k%d" % (number % 7), bytes(300))), topic=OTHER)
        assert result.error == ErrorCode.NONE, result.error_message
    compaction = compaction_of(node)
    while await compaction.run_once():
        pass
    await compaction.end_worker()
    for number in range(20):  # a clean part makes it the less dirty one
        await node.produce_batch(keyed((b"k%d" % (number % 7), bytes(300))), topic=OTHER)
    await write(cluster, 0, 60)
    return node.partition, other


async def test_a_log_that_cannot_be_compacted_does_not_hold_up_the_others(
    cluster: MiniCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = await two_compacted_topics(cluster)
    blocked = bad.log.directory / f"{0:020d}.log.cleaned"
    blocked.mkdir()  # a file of that name can't be made
    compaction = compaction_of(cluster.nodes[1])
    before = good.log.size_bytes
    tries = []
    for _ in range(8):
        failures = compaction.failure_count
        while await compaction.run_once():
            pass
        tries.append(compaction.failure_count - failures)
        compaction.begin_interval()
    assert tries == [1, 1, 0, 1, 0, 0, 0, 1]
    assert compaction.run_count >= 1 and good.log.size_bytes < before
    said = [line for line in capsys.readouterr().out.splitlines() if "log not compacted" in line]
    assert len(said) == 1 and ".log.cleaned" in said[0] and "mend" in said[0]
    # Mended, it is compacted when its time has come.
    blocked.rmdir()
    before = bad.log.size_bytes
    while compaction.failure_count and bad.log.size_bytes == before:
        compaction.begin_interval()
        await compaction.run_once()
    assert bad.log.size_bytes < before
    await compaction.end_worker()


async def test_a_worker_that_dies_says_how(
    cluster: MiniCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.make_topic(isr=(1,), min_insync_replicas="1", **SMALL)
    await write(cluster, 0, 60)
    monkeypatch.setattr(compaction_module, "WORKER", "penstock_storage_node.no_such_module")
    compaction = compaction_of(cluster.nodes[1])
    await compaction.run_once()
    assert compaction.failure_count == 1
    assert "the compaction worker ended: exit code 1" in capsys.readouterr().out


def test_the_worker_says_whatever_it_trips_over_and_goes_on() -> None:
    said: list[dict[str, Any]] = []
    lines = json.dumps({"clean": {"producers": {}}, "bytes_per_s": 0}) + "\n"
    worker.serve(io.StringIO(lines * 2), said.append)
    assert said == [{"error": "KeyError: 'sources'", "kind": "other"}] * 2


async def test_delete_records_moves_every_replica_and_frees_whole_segments(cluster: MiniCluster) -> None:
    cluster.make_topic(segment_bytes="4096")
    await write(cluster, 0, 60)
    leader = cluster.nodes[1]
    segments = leader.partition.log.segment_count
    assert await delete_records(leader, 41) == (ErrorCode.NONE, 41)
    for node in cluster.nodes.values():
        assert node.partition.log.log_start_offset == 41
    assert (await leader.fetch(40)).error == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await leader.fetch(41)).error == ErrorCode.NONE
    await eventually(lambda: leader.partition.log.segment_count < segments)
    assert await delete_records(leader, 10) == (ErrorCode.NONE, 41)
    assert (await delete_records(leader, 61))[0] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await delete_records(leader, -2))[0] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await delete_records(cluster.nodes[2], 41))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    # -1 is the high watermark; it is on disk before the answer.
    assert await delete_records(leader, -1) == (ErrorCode.NONE, 60)
    text = (leader.path / "log-start-offset-checkpoint").read_text()
    assert f"{TOPIC} 0 60" in text


async def test_delete_records_waits_for_live_replicas_only_so_long(cluster: MiniCluster) -> None:
    cluster.make_topic()
    await write(cluster, 0, 10)
    cluster.nodes[3].links.close()  # it lives, and follows no more
    error, low = await delete_records(cluster.nodes[1], 5, timeout_ms=300)
    assert error == ErrorCode.REQUEST_TIMED_OUT and low < 5


async def test_a_compacted_topic_refuses_delete_records(cluster: MiniCluster) -> None:
    cluster.make_topic(**SMALL)
    await write(cluster, 0, 3)
    assert (await delete_records(cluster.nodes[1], 1))[0] == ErrorCode.POLICY_VIOLATION


def test_the_answer_is_what_kio_makes_of_it() -> None:
    frame = delete_records_frame(7, 100)
    request: Any = codec.decode_request(parse_request_header(frame), frame)
    assert request.topics[0].partitions[0].offset == 7


async def test_time_retention_empties_a_partition_that_nobody_writes_to(cluster: MiniCluster) -> None:
    cluster.make_topic(retention_ms="1", segment_bytes="4096")
    await write(cluster, 0, 40)
    for node in cluster.nodes.values():
        await eventually(lambda n=node: n.partition.replica.high_watermark == 40)

        def emptied(node: MiniNode = node) -> bool:
            node.manager.log_starts.drop_old_segments(node.partition)
            return node.partition.log.size_bytes == 0

        await eventually(emptied)
        assert node.partition.log.log_start_offset == node.partition.log.log_end_offset == 40
