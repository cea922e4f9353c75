"""Batches above what one gRPC message carries: replicated and read in pieces, between real nodes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from node.harness import TOPIC, MiniCluster, MiniNode, eventually, make_batch
from node.test_cluster import hosted, stored
from penstock_core.errors import ErrorCode
from penstock_core.limits import WHOLE_BATCH_BYTES_MAX
from penstock_kafka.records.batch import iter_batches
from penstock_kafka.records.read import read_all
from penstock_proto.fast.pieces import Assembly, Piece
from penstock_proto.v1 import data_pb2, storage_pb2_grpc
from penstock_storage_node.replication.sender import LeaderSender, PieceSizes
from penstock_storage_node.rpc import fetch_range
from penstock_storage_node.rpc.replication_lanes import LaneLimits

MIB = 1 << 20


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    # Nobody answers proposals here: none is made because the disk holds a follower up.
    made = await MiniCluster(tmp_path).start(lag_max_ms=3_600_000)
    yield made
    await made.stop()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large begins at 2,000 bytes, a piece has 300."""
    monkeypatch.setattr(fetch_range, "WHOLE_BATCH_BYTES_MAX", 2_000)
    monkeypatch.setattr(fetch_range, "PIECE_BYTES", 300)
    monkeypatch.setattr(
        LaneLimits, "__init__", partialmethod(LaneLimits.__init__, pieces=PieceSizes(2_000, 300))
    )


def same_everywhere(cluster: MiniCluster) -> bool:
    return len({stored(node) for node in cluster.nodes.values()}) == 1


async def test_large_batches_are_on_every_disk_when_they_are_acknowledged(cluster: MiniCluster) -> None:
    cluster.make_topic(max_message_bytes=str(32 * MIB))
    await hosted(cluster)
    leader = cluster.nodes[1]
    rng = random.Random(1)
    values = [
        rng.randbytes(size) for size in (10, WHOLE_BATCH_BYTES_MAX - 1000, 8 * MIB + MIB // 2, 20 * MIB, 10)
    ]
    for offset, value in enumerate(values):
        result = await leader.produce(value)
        assert (result.error, result.base_offset) == (0, offset)
    assert same_everywhere(cluster)
    assert all(node.partition.log.flushed_offset == 5 for node in cluster.nodes.values())
    for offset, value in enumerate(values):  # at least one batch always comes, whatever the limits
        found = await leader.fetch(offset, max_bytes=1000)
        assert next(r.value for r in read_all(b"".join(found.records))) == value


async def test_a_batch_above_the_topics_setting_is_refused_as_ever(cluster: MiniCluster) -> None:
    cluster.make_topic(max_message_bytes=str(9 * MIB))
    await hosted(cluster)
    refused = await cluster.nodes[1].produce(bytes(9 * MIB))
    assert refused.error == ErrorCode.MESSAGE_TOO_LARGE
    assert "max.message.bytes=9437184" in (refused.error_message or "")


async def test_a_follower_that_was_away_catches_up_over_large_batches(
    cluster: MiniCluster, small_pieces: None
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    cluster.make_topic(max_message_bytes=str(32 * MIB))
    await hosted(cluster)
    leader, away = cluster.nodes[1], cluster.nodes[3]
    for number in range(40):
        if number == 10:
            await away.stop(clean=rng.random() < 0.5)
            del cluster.nodes[3]
            cluster.set_isr(1, 2)
        size = rng.choice((10, 500, 1_990, 2_100, 9_000, 70_000, 700_000))
        assert (await leader.produce(rng.randbytes(size))).error == 0
    away = await cluster.start_node(3, lag_max_ms=3_600_000)
    await eventually(lambda: away.partition.log.flushed_offset == 40)
    assert same_everywhere(cluster)


async def test_an_older_follower_is_told_and_catches_up_once_it_is_upgraded(
    cluster: MiniCluster, small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rolling upgrade: node 3 comes back with a build that can't put pieces together."""
    older, refused = [3], []

    def takes(self: LeaderSender, size: int) -> bool:
        if size <= 2_000 or self.node not in older:
            return True
        refused.append(size)
        return False

    monkeypatch.setattr(LeaderSender, "takes", takes)
    cluster.make_topic()
    await hosted(cluster)
    await cluster.nodes.pop(3).stop()
    cluster.set_isr(1, 2)
    leader = cluster.nodes[1]
    for value in (bytes(50_000), b"small"):
        assert (await leader.produce(value)).error == 0
    away = await cluster.start_node(3, lag_max_ms=3_600_000)
    await eventually(lambda: len(refused) >= 2)
    assert (await leader.produce(bytes(60_000))).error == 0  # the others go on
    assert away.partition.log.log_end_offset == 0
    assert not leader.proposed
    older.clear()
    await eventually(lambda: away.partition.log.flushed_offset == 3)
    assert same_everywhere(cluster)


async def responses(node: MiniNode, **asked: Any) -> list[data_pb2.FetchRangeResponse]:
    request = data_pb2.FetchRangeRequest(topic=TOPIC, partition=0, to_offset=-1, **asked)
    async with grpc.aio.insecure_channel(node.endpoint.address) as channel:
        return [r async for r in storage_pb2_grpc.StorageStub(channel).FetchRange(request)]


async def test_a_range_gives_large_batches_in_pieces(cluster: MiniCluster, small_pieces: None) -> None:
    cluster.make_topic()
    await hosted(cluster)
    leader = cluster.nodes[1]
    for values in ([b"a"], [bytes(9_000), b"b"], [b"c"], [bytes(30_000)]):
        assert (await leader.produce(*values)).error == 0
    got = await responses(leader, from_offset=0, takes_pieces=True, max_chunk_bytes=1)
    assembly, whole = Assembly(MIB), bytearray()
    for response in got:
        whole += response.records
        assert not response.error.code
        if response.HasField("piece"):
            piece = response.piece
            assert len(piece.data) <= 300
            batch = assembly.add(Piece(piece.base_offset, piece.total_bytes, piece.position, piece.data))
            # A reader that is cut off asks for the batch from its beginning.
            after = {1: 3, 4: 5}[piece.base_offset]
            assert response.next_offset == (piece.base_offset if batch is None else after)
            whole += batch or b""
    assert got[-1].done
    assert bytes(whole) == stored(leader)
    assert [info.record_count for info in iter_batches(whole)] == [1, 2, 1, 1]


async def test_a_reader_of_an_older_build_is_told(cluster: MiniCluster, small_pieces: None) -> None:
    cluster.make_topic()
    await hosted(cluster)
    leader = cluster.nodes[1]
    await leader.produce_batch(make_batch(b"a"))
    await leader.produce_batch(make_batch(bytes(9_000)))
    got = await responses(leader, from_offset=0, max_chunk_bytes=1)
    assert [(bool(r.records), r.next_offset, r.error.code) for r in got] == [
        (True, 1, 0),
        (False, 1, ErrorCode.MESSAGE_TOO_LARGE),
    ]
    assert "upgrade" in got[-1].error.message
