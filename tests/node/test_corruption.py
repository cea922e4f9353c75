"""A disk that gives back what was not written: others serve, and the next start fetches anew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node.harness import KEY, MiniCluster, MiniNode, eventually, make_batch
from node.test_cluster import hosted
from penstock_core.errors import ErrorCode
from penstock_kafka.records.batch import iter_batches, read_header
from penstock_kafka.records.markers import Marker
from penstock_storage_node.log.producer_state import Origin
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


async def rotten_marker(cluster: MiniCluster) -> None:
    """Node 1 leads again after a clean stop, and its disk has forgotten a bit of a marker meanwhile."""
    leader = cluster.nodes[1]
    batch = make_batch(b"first", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    leader.partition.append(batch, read_header(batch), 0, Origin.COORDINATOR)
    leader.partition.append_marker(7, 0, Marker(True, 1), 0)
    leader.manager.drain.schedule()
    assert (await leader.produce(b"behind it")).error == ErrorCode.NONE
    end = leader.partition.log.log_end_offset
    assert leader.partition.log.last_stable_offset(end) == end
    directory = leader.partition.log.directory
    await cluster.nodes.pop(1).stop()
    flip_a_marker(directory)


def flip_a_marker(directory: Path) -> None:
    """In the newest segment; and take the snapshots, so that the batches have to tell."""
    path = max(directory.glob("*.log"))
    data = bytearray(path.read_bytes())
    (marker,) = [info for info in iter_batches(bytes(data)) if info.is_control]
    data[marker.position + marker.size_bytes - 1] ^= 1
    path.write_bytes(data)
    for snapshot in directory.glob("*.snapshot"):
        snapshot.unlink()


async def test_a_damaged_marker_that_nobody_reads_is_found_at_the_start(cluster: MiniCluster) -> None:
    """Its transaction counts as open: no reader of decided records would ever come by (simulated seed 2092)."""
    await rotten_marker(cluster)
    cluster.elect(2, [2, 3])
    again = await cluster.start_node(1)
    await eventually(lambda: again.manager.health.failed)
    marker = Path(str(again.partition.log.directory)) / DAMAGED_MARKER
    await again.stop(clean=False)
    cluster.nodes.pop(1)
    assert marker.exists()
    assert again.partition.replica.leadership is None
    mended = await cluster.start_node(1)
    end = cluster.nodes[2].partition.log.log_end_offset
    await eventually(lambda: mended.partition.log.flushed_offset == end)
    assert not mended.manager.health.failed
    assert mended.partition.log.last_stable_offset(end) == end


async def test_the_only_copy_with_a_damaged_marker_serves_until_others_have_it(cluster: MiniCluster) -> None:
    await rotten_marker(cluster)
    cluster.elect(2, [2, 3], only=[2, 3])
    cluster.elect(1, [1])
    again = await cluster.start_node(1)
    await eventually(lambda: again.partition.replica.leadership is not None)
    assert again.metrics.damaged_segments == 1
    assert not again.manager.health.failed
    assert (await again.produce(b"more", acks=1)).error == ErrorCode.NONE
    cluster.set_isr(1, 2)
    await eventually(lambda: again.manager.health.failed)
