"""A disk that gives back what was not written: others serve, and the next start fetches anew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node.harness import KEY, MiniCluster, MiniNode, eventually
from node.test_cluster import hosted
from penstock_core.errors import ErrorCode
from penstock_kafka.records.batch import iter_batches
from penstock_storage_node.log.recovery import DAMAGED_MARKER

RECORDS = 40


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    """Node 1 leads, and was started anew: what it has comes from its disk."""
    made = await MiniCluster(tmp_path).start()
    made.make_topic(segment_bytes="2000")
    await hosted(made)
    for number in range(RECORDS):
        assert (await made.nodes[1].produce(b"%d " % number * 50)).error == ErrorCode.NONE
    await made.nodes.pop(1).stop()
    made.elect(2, [2, 3])
    await made.start_node(1)
    await eventually(lambda: KEY in made.nodes[1].manager.registry.partitions)
    await eventually(lambda: made.nodes[1].partition.log.log_end_offset == RECORDS)
    made.elect(1, [1, 2, 3])
    await eventually(lambda: made.nodes[1].partition.replica.leadership is not None)
    await eventually(lambda: made.nodes[1].partition.replica.high_watermark == RECORDS)
    yield made
    for node in made.nodes.values():
        await node.stop(clean=False)


def damage(node: MiniNode, segment: int = 1) -> tuple[int, int]:
    """Flip a bit in the second batch of a closed segment; returns its base offset and the next one's."""
    path = Path(node.partition.log.segments[segment].path)
    data = bytearray(path.read_bytes())
    bad = list(iter_batches(bytes(data)))[1]
    data[bad.position + bad.size_bytes - 5] ^= 16
    with path.open("r+b") as file:  # in place: the node has it open
        file.write(data)
    return bad.base_offset, bad.next_offset


async def read_all(node: MiniNode, offset: int = 0) -> list[bytes]:
    batches: list[bytes] = []
    while offset < RECORDS:
        found = await node.fetch(offset)
        assert found.error == ErrorCode.NONE
        data = b"".join(found.records)
        for info in iter_batches(data):
            batches.append(data[info.position : info.position + info.size_bytes])
            offset = info.next_offset
    return batches


async def test_the_node_gives_up_its_roles_and_fetches_anew_after_a_start(cluster: MiniCluster) -> None:
    leader = cluster.nodes[1]
    bad, _ = damage(leader)
    assert (await leader.fetch(bad)).error == ErrorCode.KAFKA_STORAGE_ERROR
    await eventually(lambda: leader.manager.health.failed)
    assert leader.partition.replica.leadership is None
    assert "is damaged" in leader.manager.health.reason
    marker = Path(str(leader.partition.log.directory)) / DAMAGED_MARKER
    assert int(marker.read_text()) == leader.partition.log.segments[1].base_offset
    assert leader.metrics.damaged_segments == 1

    cluster.elect(2, [2, 3])
    await eventually(lambda: cluster.nodes[2].partition.replica.leadership is not None)
    await eventually(lambda: cluster.nodes[2].partition.replica.high_watermark == RECORDS)
    right = await read_all(cluster.nodes[2])
    await cluster.nodes.pop(1).stop(clean=False)
    # Nobody feeds it yet: it has cut itself at the damaged batch, and knows that it lacks something.
    alone = MiniNode(1, leader.path)
    await alone.start()
    assert alone.directory.has_unreported
    assert [log.log_end_offset for _, log in alone.manager._found.values()] == [bad]
    await alone.stop(clean=False)
    again = await cluster.start_node(1)
    await eventually(lambda: KEY in again.manager.registry.partitions)
    await eventually(lambda: again.partition.log.flushed_offset == RECORDS)
    assert not marker.exists()
    cluster.elect(1, [1, 2, 3])
    await eventually(lambda: again.partition.replica.leadership is not None)
    await eventually(lambda: again.partition.replica.high_watermark == RECORDS)
    assert await read_all(again) == right
    assert not again.manager.health.failed


async def test_the_only_copy_is_kept_and_can_be_read_around_the_damage(cluster: MiniCluster) -> None:
    leader = cluster.nodes[1]
    cluster.set_isr(1)
    bad, behind = damage(leader)
    assert (await leader.fetch(bad)).error == ErrorCode.CORRUPT_MESSAGE
    assert (await leader.fetch(bad)).error == ErrorCode.CORRUPT_MESSAGE
    assert not leader.manager.health.failed
    assert not (Path(str(leader.partition.log.directory)) / DAMAGED_MARKER).exists()
    assert leader.metrics.damaged_segments == 1
    before = await leader.fetch(bad - 1)
    assert [info.base_offset for info in iter_batches(b"".join(before.records))] == [bad - 1]
    rest = await read_all(leader, behind)
    assert len(rest) == RECORDS - behind
    assert (await leader.produce(b"more", acks=1)).error == ErrorCode.NONE
    # Once others have it, it is theirs to serve.
    cluster.set_isr(1, 2)
    assert (await leader.fetch(bad)).error == ErrorCode.KAFKA_STORAGE_ERROR
    await eventually(lambda: leader.manager.health.failed)


async def test_a_damaged_follower_that_is_rebuilt_from_hears_it_too(cluster: MiniCluster) -> None:
    """The leader meets the damage when it feeds a replica that has lost its disk."""
    leader = cluster.nodes[1]
    damage(leader, 0)
    cluster.set_isr(1, 2)
    lost = cluster.nodes.pop(3)
    await lost.stop(clean=False)
    for path in lost.path.rglob("*.log"):
        path.unlink()
    for path in lost.path.glob("*checkpoint"):
        path.unlink()
    await cluster.start_node(3)
    await eventually(lambda: leader.manager.health.failed)
    cluster.elect(2, [2])
    await eventually(lambda: cluster.nodes[3].partition.log.flushed_offset == RECORDS)
