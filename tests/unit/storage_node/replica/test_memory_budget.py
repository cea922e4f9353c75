"""What is appended and not yet written is counted once, and no longer than it is in memory.

Above the bound acks=0 requests wait for the disk. Whatever is counted and never let go would make
them wait for ever: their connections stall until the node is started anew.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from node.harness import KEY, TOPIC_ID, MiniCluster, MiniNode, eventually, make_batch
from penstock_core.errors import InvariantBroken
from penstock_kafka.wire.frames import parse_request_header
from penstock_kafka.wire.produce import ProducePartition, ProduceSkim, encode_produce_request
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_storage_node.kafka.produce import STAGED_BYTES_SOFT_MAX
from penstock_storage_node.kafka.request_context import RequestContext
from penstock_storage_node.replica.memory_budget import STAGED_BYTES_LOW, MemoryBudget
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replication.following import Truncation


class Held:
    """A log whose disk hangs: appends are staged and stay so."""

    def __init__(self, partition: Partition, stack: ExitStack) -> None:
        self._over = threading.Event()
        partition.exclusive(self._over.wait)
        stack.callback(self._over.set)

    def end(self) -> None:
        self._over.set()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[MiniNode]:
    cluster = await MiniCluster(tmp_path).start(1)
    cluster.make_topic(isr=(1,), min_insync_replicas="1", max_message_bytes="8000000")
    made = cluster.nodes[1]
    await eventually(lambda: KEY in made.manager.registry.partitions)
    await eventually(lambda: made.partition.replica.leadership is not None)
    yield made
    await cluster.stop()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    made = await MiniCluster(tmp_path).start(2)
    made.make_topic(isr=(1, 2), min_insync_replicas="1")
    await eventually(lambda: all(KEY in n.manager.registry.partitions for n in made.nodes.values()))
    await eventually(lambda: made.nodes[1].partition.replica.leadership is not None)
    yield made
    await made.stop()


def delete_topic(node: MiniNode) -> None:
    old = node.metadata.image
    records = [pb.MetadataRecord(topic_removed=pb.TopicRemovedRecord(topic_id=TOPIC_ID))]
    node.hear(old.apply(records, old.version + 1), records)


async def produce_unanswered(node: MiniNode, size_bytes: int) -> asyncio.Task[object]:
    """An acks=0 request; what it becomes once the node goes on reading from that connection."""
    item = ProducePartition("events", None, 0, memoryview(make_batch(bytes(size_bytes))))
    skim = ProduceSkim(None, 0, 60_000, [item])
    frame = bytearray().join(encode_produce_request(9, 7, "test", skim))
    answer = node.data.handle(RequestContext(), parse_request_header(frame), frame)

    async def wait() -> object:
        return await answer if isinstance(answer, asyncio.Future) else answer

    return asyncio.create_task(wait())


async def test_what_was_staged_when_its_topic_is_deleted_is_let_go(node: MiniNode) -> None:
    budget = node.manager.budget
    with ExitStack() as stack:
        held = Held(node.partition, stack)
        await produce_unanswered(node, 100_000)
        assert budget.staged_bytes > 100_000
        node.manager.validate()
        delete_topic(node)
        held.end()
        await eventually(lambda: not node.manager.deleting)
    assert budget.staged_bytes == 0
    node.manager.validate()


async def test_a_request_that_waits_for_the_disk_goes_on_when_the_topic_is_deleted(node: MiniNode) -> None:
    with ExitStack() as stack:
        held = Held(node.partition, stack)
        while node.manager.budget.staged_bytes <= STAGED_BYTES_SOFT_MAX:
            waiting = await produce_unanswered(node, 6_000_000)
        await asyncio.sleep(0)
        assert not waiting.done()
        delete_topic(node)
        held.end()
        await asyncio.wait_for(waiting, 60)


async def test_a_cut_lets_go_of_what_it_drops(pair: MiniCluster) -> None:
    two = pair.nodes[2]
    assert (await pair.nodes[1].produce(b"both have it")).error == 0
    await eventually(lambda: two.partition.log.written_offset == 1)
    with ExitStack() as stack:
        held = Held(two.partition, stack)
        pair.elect(2, (2,), only=[2])
        two.partition.log.append_as_follower(
            pair_batch(two.partition.log.log_end_offset), two.partition.replica.leader_epoch
        )
        two.partition.count_staged()
        assert two.manager.budget.staged_bytes > 0
        two.manager.roles.truncate(two.partition, Truncation(1))
        held.end()
        await eventually(lambda: not two.partition.busy)
    assert two.manager.budget.staged_bytes == 0
    two.manager.validate()


def pair_batch(offset: int) -> bytes:
    batch = bytearray(make_batch(b"never committed"))
    batch[0:8] = offset.to_bytes(8, "big")
    batch[12:16] = (0).to_bytes(4, "big")
    return bytes(batch)


async def test_nobody_waits_for_a_disk_that_has_failed() -> None:
    budget = MemoryBudget()
    share = budget.share(lambda: STAGED_BYTES_LOW + 1)
    share.update()
    waiting = budget.when_written("go on")
    assert not waiting.done()
    budget.give_up()
    assert waiting.result() == "go on"
    assert budget.when_written("at once").result() == "at once"


async def test_shares_of_logs_add_up() -> None:
    budget, staged = MemoryBudget(), {"a": 10, "b": 20}
    a, b = budget.share(lambda: staged["a"]), budget.share(lambda: staged["b"])
    a.update()
    b.update()
    assert budget.staged_bytes == 30
    staged["a"] = 5
    a.update()
    budget.validate()
    assert budget.staged_bytes == 25
    b.close()
    b.close()
    b.update()
    assert budget.staged_bytes == 5
    budget.validate()


async def test_a_share_that_was_not_told_of_a_change_is_found() -> None:
    budget, staged = MemoryBudget(), [0]
    share = budget.share(lambda: staged[0])
    share.update()
    staged[0] = 7
    with pytest.raises(InvariantBroken, match="7"):
        budget.validate()


async def test_a_log_that_a_thread_changes_just_now_may_differ_until_that_is_done() -> None:
    budget, staged, is_out = MemoryBudget(), [3], [False]
    share = budget.share(lambda: staged[0], lambda: is_out[0])
    share.update()
    is_out[0], staged[0] = True, 0
    budget.validate()
    is_out[0] = False
    with pytest.raises(InvariantBroken, match="0 staged"):
        budget.validate()
    share.update()
    assert budget.staged_bytes == 0
