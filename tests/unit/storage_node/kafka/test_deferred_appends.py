"""Produce requests that wait: for a codec (compression.type), for a partition; in the order in which they came."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from node.harness import TOPIC, MiniCluster, MiniNode, eventually, ids, wall_ms
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import LeaderEpoch, NodeId, TopicId
from penstock_core.metadata.image import PartitionImage
from penstock_kafka.records import compression
from penstock_kafka.records.batch import is_crc_valid, iter_batches, read_header
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.read import read_records
from penstock_kafka.records.recompress import recompress
from penstock_kafka.wire.frames import parse_request_header
from penstock_kafka.wire.produce import (
    ProducePartition,
    ProduceResult,
    ProduceSkim,
    decode_produce_response,
    encode_produce_request,
)
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.turns import LoopTurns
from penstock_storage_node.kafka import produce
from penstock_storage_node.kafka.request_context import RequestContext

CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def batch(number: int, codec: int, **options: Any) -> bytes:
    records = [NewRecord(b"k", b"%d:%d:" % (number, i) + bytes(50), wall_ms()) for i in range(5)]
    return build_batch(records, codec=codec, **options)


@pytest.mark.parametrize("source", range(5))
@pytest.mark.parametrize("target", range(5))
def test_recompress_keeps_all_but_the_codec(source: int, target: int) -> None:
    before = batch(1, source, producer_id=4, producer_epoch=1, base_sequence=9)
    after = recompress(before, target)
    assert is_crc_valid(after)
    one, two = read_header(before), read_header(after)
    assert two.compression == target and two.size_bytes == len(after)
    for name in ("base_offset", "last_offset_delta", "base_timestamp", "max_timestamp", "producer_id",
                 "producer_epoch", "base_sequence", "record_count"):  # fmt: skip
        assert getattr(one, name) == getattr(two, name)
    assert list(read_records(before)) == list(read_records(after))


def test_damage_is_not_given_a_new_crc() -> None:
    broken = bytearray(batch(1, 0))
    broken[70] ^= 1
    with pytest.raises(PenstockError) as caught:
        recompress(bytes(broken), 4)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("wanted", CODECS)
async def test_stored_in_the_topics_codec_and_in_order(tmp_path: Path, wanted: str) -> None:
    cluster = await MiniCluster(tmp_path).start(1)
    try:
        cluster.make_topic(isr=(1,), compression_type=wanted)
        node = cluster.nodes[1]
        await eventually(lambda: node.manager.registry.partitions)
        await eventually(lambda: node.partition.replica.leadership is not None)
        sent = [batch(n, n % 5, producer_id=7, producer_epoch=0, base_sequence=5 * n) for n in range(25)]
        # All at once: only their order of arrival keeps the sequences right.
        results = await asyncio.gather(*(node.produce_batch(each) for each in sent))
        assert [r.error for r in results] == [ErrorCode.NONE] * 25
        assert [r.base_offset for r in results] == list(range(0, 125, 5))
        damaged = bytearray(sent[0])
        damaged[70] ^= 1
        assert (await node.produce_batch(bytes(damaged))).error == ErrorCode.CORRUPT_MESSAGE
        data = node.partition.read(0, 1 << 20, 125)
        joined = b"".join(data.buffers)  # type: ignore[union-attr]
        infos = list(iter_batches(joined))
        assert {info.compression for info in infos} == {CODECS[wanted]}
        values = [r.value for info in infos for r in read_records(joined, info)]
        assert values == [r.value for each in sent for r in read_records(each)]
    finally:
        await cluster.stop()


@pytest.mark.parametrize("wanted", ["producer", "lz4"])
async def test_what_comes_while_the_partition_is_made_waits_for_it(tmp_path: Path, wanted: str) -> None:
    cluster = await MiniCluster(tmp_path).start(1)
    try:
        cluster.make_topic(isr=(1,), compression_type=wanted)
        node = cluster.nodes[1]
        assert not node.manager.registry.partitions
        sent = [batch(n, n % 5, producer_id=7, producer_epoch=0, base_sequence=5 * n) for n in range(8)]
        results = await asyncio.gather(*(node.produce_batch(each) for each in sent))
        assert [(r.error, r.base_offset) for r in results] == [(ErrorCode.NONE, 5 * n) for n in range(8)]
        again = await node.produce_batch(sent[7])
        assert again.base_offset == 35, "a duplicate is known: the line has gone on"
    finally:
        await cluster.stop()


def make_second_topic(cluster: MiniCluster, **config: str) -> None:
    topic_id = TopicId(b"U" * 16)
    state = PartitionImage(
        topic_id, 0, replicas=ids(1), isr=ids(1), leader=NodeId(1), leader_epoch=LeaderEpoch(0),
        partition_epoch=0,
    )  # fmt: skip
    cluster.change(
        pb.MetadataRecord(topic=pb.TopicRecord(topic_id=topic_id, name="second")),
        *(
            pb.MetadataRecord(
                config=pb.ConfigRecord(resource_type="topic", resource_name="second", key=k, value=v)
            )
            for k, v in config.items()
        ),
        pb.MetadataRecord(partition=state.to_pb()),
    )


def handle(node: MiniNode, *items: tuple[str, int]) -> asyncio.Future[Any]:
    """One request with a batch (topic, number) each; it has come in when this returns."""
    batches = [
        ProducePartition(
            topic, None, 0, memoryview(batch(n, 1, producer_id=7, producer_epoch=0, base_sequence=5 * n))
        )
        for topic, n in items
    ]
    frame = bytearray().join(encode_produce_request(9, 7, "test", ProduceSkim(None, -1, 60_000, batches)))
    answer = node.data.handle(RequestContext(), parse_request_header(frame), frame)
    return asyncio.ensure_future(answer)  # type: ignore[arg-type]


async def results(answer: asyncio.Future[Any]) -> list[ProduceResult]:
    return decode_produce_response(b"".join(await answer), 9).results


async def with_one_topic(tmp_path: Path) -> tuple[MiniCluster, MiniNode]:
    cluster = await MiniCluster(tmp_path).start(1)
    cluster.make_topic(isr=(1,))
    node = cluster.nodes[1]
    await eventually(lambda: node.manager.registry.partitions)
    await eventually(lambda: node.partition.replica.leadership is not None)
    return cluster, node


@pytest.mark.parametrize("is_made", [False, True], ids=["being-made", "compressed"])
async def test_what_waits_for_another_partition_is_not_overtaken(tmp_path: Path, is_made: bool) -> None:
    # Seed 481 of the simulator: batch 0 waited for the other topic's directory, batch 1 did not.
    cluster, node = await with_one_topic(tmp_path)
    try:
        make_second_topic(cluster, **{"compression.type": "zstd"} if is_made else {})
        if is_made:
            await eventually(lambda: len(node.manager.registry.partitions) == 2)
        first = handle(node, ("second", 0), (TOPIC, 0))
        later = [handle(node, (TOPIC, n)) for n in range(1, 5)]
        assert [(r.error, r.base_offset) for r in await results(first)] == [(ErrorCode.NONE, 0)] * 2
        for n, answer in enumerate(later, 1):
            (result,) = await results(answer)
            assert (result.error, result.base_offset) == (ErrorCode.NONE, 5 * n), result.error_message
    finally:
        await cluster.stop()


@pytest.mark.parametrize("is_begun", [False, True])
async def test_one_that_is_given_up_lets_nobody_past_those_before_it(tmp_path: Path, is_begun: bool) -> None:
    cluster, node = await with_one_topic(tmp_path)
    try:
        make_second_topic(cluster)
        first = handle(node, ("second", 0), (TOPIC, 0))
        given_up = handle(node, (TOPIC, 1))
        if is_begun:
            await asyncio.sleep(0)
        given_up.cancel()
        again = handle(node, (TOPIC, 1))
        assert [r.error for r in await results(first)] == [ErrorCode.NONE] * 2
        assert [(r.error, r.base_offset) for r in await results(again)] == [(ErrorCode.NONE, 5)]
        assert given_up.cancelled()
    finally:
        await cluster.stop()


def test_levels_reach_the_codec() -> None:
    data = b"".join(b"%d," % (n * n) for n in range(20_000))
    for codec, levels in ((1, (1, 9)), (3, (1, 9, 17)), (4, (-131072, -1, 1, 22))):
        assert len({compression.compress(codec, data, level) for level in levels}) > 1


async def test_a_batch_that_is_walked_in_turns_is_not_overtaken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "RECORDS_AT_ONCE_MAX", 100)
    cluster, node = await with_one_topic(tmp_path)
    try:
        sizes = [2_000, 1, 3_000, 5, 1]
        starts = [sum(sizes[:n]) for n in range(5)]
        sent = [
            build_batch(
                [NewRecord(b"k", b"v" * 20) for _ in range(count)],
                codec=CODECS["zstd"] if n else 0,
                producer_id=7,
                producer_epoch=0,
                base_sequence=starts[n],
            )
            for n, count in enumerate(sizes)
        ]
        results = await asyncio.gather(*(node.produce_batch(each) for each in sent))
        assert [(r.error, r.base_offset) for r in results] == [(ErrorCode.NONE, start) for start in starts]
        damaged = bytearray(sent[2])
        damaged[-1] ^= 1
        assert (await node.produce_batch(bytes(damaged))).error == ErrorCode.CORRUPT_MESSAGE
    finally:
        await cluster.stop()


async def test_a_request_that_takes_long_goes_on_in_later_turns_and_is_answered_once(tmp_path: Path) -> None:
    cluster, node = await with_one_topic(tmp_path)
    try:
        make_second_topic(cluster)
        await eventually(lambda: len(node.manager.registry.partitions) == 2)
        turns = LoopTurns.of(node.manager.lifecycle)
        ticks = iter(range(1_000_000))
        turns.clock_s = turns.cpu_s = lambda: float(
            next(ticks)
        )  # every look at the clock finds the slice spent
        first = handle(node, ("second", 0), (TOPIC, 0))
        later = [handle(node, (TOPIC, n), ("second", n)) for n in range(1, 5)]
        assert [(r.error, r.base_offset) for r in await results(first)] == [(ErrorCode.NONE, 0)] * 2
        for n, answer in enumerate(later, 1):
            assert [(r.error, r.base_offset) for r in await results(answer)] == [(ErrorCode.NONE, 5 * n)] * 2
        assert not turns._long._line
    finally:
        await cluster.stop()
