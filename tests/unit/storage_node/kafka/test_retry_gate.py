"""A producer's batch that was sent before the refusal of an earlier one was read must not overtake it.

librdkafka takes an earlier batch for written once a later one is acknowledged: were the later
one written first, an acknowledged record would be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node.harness import KEY, TOPIC, MiniCluster, MiniNode, eventually, make_batch
from penstock_core.errors import ErrorCode, PenstockError
from penstock_kafka.producer_retries import EXPIRY_MS
from penstock_kafka.records.batch import read_header
from penstock_kafka.wire.produce import ProducePartition
from penstock_storage_node.kafka import retry_gate
from penstock_storage_node.kafka.retry_gate import RetryGate

PRODUCER = 1000


async def send(node: MiniNode, sequence: int, epoch: int = 0) -> int:
    batch = make_batch(b"v%d" % sequence, producer_id=PRODUCER, producer_epoch=epoch, base_sequence=sequence)
    return (await node.produce_batch(batch)).error


@pytest.fixture
def no_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was refused is remembered for as long as a slow disk may take."""
    monkeypatch.setattr(retry_gate, "EXPIRY_MS", 3_600_000)


@pytest.fixture
async def leading(tmp_path: Path, no_expiry: None) -> AsyncIterator[MiniNode]:
    """A node that refused sequence 0 before it heard that it leads."""
    cluster = await MiniCluster(tmp_path).start(1)
    node = cluster.nodes[1]
    assert await send(node, 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cluster.make_topic(isr=(1,))
    await eventually(
        lambda: bool(node.manager.registry.partitions) and node.partition.replica.leadership is not None
    )
    yield node
    await cluster.stop()


async def test_a_later_batch_waits_for_the_one_that_was_refused(leading: MiniNode) -> None:
    assert await send(leading, 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await send(leading, 2) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [await send(leading, sequence) for sequence in (0, 1, 2)] == [0, 0, 0]
    assert await send(leading, 5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "R1 came again: now it is a gap"
    assert leading.partition.log.log_end_offset == 3


async def test_a_leader_that_may_be_deposed_calls_nothing_out_of_order(leading: MiniNode) -> None:
    """Its successor may have written what is missing here, and acknowledged it to this client, who was sent
    back by a gateway with metadata as old: a bumped epoch would double what else is on its way."""
    assert [await send(leading, sequence) for sequence in (0, 1)] == [0, 0]
    leading.is_in_touch = False
    assert await send(leading, 5) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await send(leading, 1, epoch=1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await send(leading, 2) == 0, "what is next is for the ISR to judge"
    leading.is_in_touch = True
    assert await send(leading, 5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_each_one_that_was_refused_must_come_again(leading: MiniNode) -> None:
    """A gateway brings R1 again by itself; R2's refusal is on its way to the client, who has sent R3 (seed 1364)."""
    assert await send(leading, 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await send(leading, 0) == 0
    assert await send(leading, 2) == ErrorCode.NOT_LEADER_OR_FOLLOWER, "no gap: R2 comes again"
    assert [await send(leading, sequence) for sequence in (1, 2)] == [0, 0]


def test_what_fails_out_of_order_comes_again_in_order() -> None:
    kept = RetryGate()
    for sequence in (6, 3, 9):
        kept.note(item_of(sequence), ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    assert [held_back(kept, sequence, 1) for sequence in (6, 3, 9, 6, 12, 9, 12)] == [
        True, False, True, False, True, False, False,
    ]  # fmt: skip


async def test_what_is_written_already_is_acknowledged(leading: MiniNode) -> None:
    """Another leader took R1 and R2 meanwhile, and R2's answer got lost (found by the simulator)."""
    kept = RetryGate()
    assert [await send(leading, sequence) for sequence in (0, 1)] == [0, 0]
    kept.note(item_of(0), ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    info = read_header(item_of(1).records)
    assert leading.partition.log.is_next_of_producer(info)
    kept.check(item_of(1), info, True, 1)


async def test_a_batch_that_was_cut_off_again_must_come_before_later_ones(
    tmp_path: Path, no_expiry: None
) -> None:
    """R1 is written, its node deposed, R1 answered 7 and cut off; then the node leads again and R2 comes."""
    cluster = await MiniCluster(tmp_path).start(2)
    node = cluster.nodes[1]
    cluster.make_topic(isr=(1, 2))
    await eventually(
        lambda: bool(node.manager.registry.partitions) and node.partition.replica.leadership is not None
    )
    assert await send(node, 0) == 0
    await cluster.nodes.pop(2).stop()
    unacknowledged = asyncio.ensure_future(send(node, 1))
    await eventually(lambda: node.partition.log.log_end_offset == 2)
    cluster.elect(2, (2,))
    assert await unacknowledged == ErrorCode.REQUEST_TIMED_OUT
    await node.partition.exclusive(lambda: node.partition.log.truncate_to(1))
    cluster.elect(1, (1,))
    await eventually(lambda: node.partition.replica.leadership is not None)
    assert await send(node, 2) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [await send(node, sequence) for sequence in (1, 2)] == [0, 0]
    await cluster.stop()


@pytest.fixture
async def taken_over(tmp_path: Path, no_expiry: None) -> AsyncIterator[MiniNode]:
    """A node that leads since another one has; that one wrote sequence 0, which is here, and was sent 1."""
    cluster = await MiniCluster(tmp_path).start(2)
    cluster.make_topic(isr=(1, 2))
    await eventually(lambda: all(KEY in node.manager.registry.partitions for node in cluster.nodes.values()))
    await eventually(lambda: cluster.nodes[1].partition.replica.leadership is not None)
    assert await send(cluster.nodes[1], 0) == 0
    cluster.elect(2, (2,))
    await eventually(lambda: cluster.nodes[2].partition.replica.leadership is not None)
    yield cluster.nodes[2]
    await cluster.stop()


async def test_a_gap_that_an_earlier_leader_may_explain_is_no_gap_at_once(taken_over: MiniNode) -> None:
    """R1 is out to the earlier leader when R2 goes to the new one: librdkafka waits for no answer when a
    leader changes, but sends nothing again before all that is out was answered (found by chaos, librdkafka's
    epoch raised and a record doubled)."""
    assert await send(taken_over, 2) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await send(taken_over, 3) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [await send(taken_over, sequence) for sequence in (1, 2, 3)] == [0, 0, 0]
    assert await send(taken_over, 5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, (
        "it has written to this leader"
    )
    assert taken_over.partition.log.log_end_offset == 4


async def test_a_gap_that_comes_again_is_one(taken_over: MiniNode) -> None:
    assert await send(taken_over, 5) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await send(taken_over, 6) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await send(taken_over, 5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await send(taken_over, 1, epoch=1) == ErrorCode.NOT_LEADER_OR_FOLLOWER, (
        "nor is its new epoch known"
    )
    assert await send(taken_over, 1, epoch=1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_a_new_leader_takes_no_producer_up_in_the_middle_at_once(taken_over: MiniNode) -> None:
    """The producer's first batch is out to the earlier leader: were the second one written, the first would
    count as written too."""

    async def begin(sequence: int) -> int:
        batch = make_batch(b"x", producer_id=PRODUCER + 1, producer_epoch=0, base_sequence=sequence)
        return (await taken_over.produce_batch(batch)).error

    assert await begin(1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [await begin(sequence) for sequence in (0, 1)] == [0, 0]


async def test_a_new_leader_takes_up_a_producer_whose_state_is_gone(taken_over: MiniNode) -> None:
    batch = make_batch(b"x", producer_id=PRODUCER + 1, producer_epoch=0, base_sequence=7)
    answers = [(await taken_over.produce_batch(batch)).error for _ in range(2)]
    assert answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER, 0], "an unknown producer may begin anywhere"


async def test_an_old_epoch_is_fenced_at_once_by_a_new_leader(taken_over: MiniNode) -> None:
    assert await send(taken_over, 0, epoch=2) == 0
    assert await send(taken_over, 3, epoch=1) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_batches_that_are_held_back_do_not_make_it_last() -> None:
    kept = RetryGate()
    kept.note(item_of(0), ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    for now_ms in range(0, EXPIRY_MS, EXPIRY_MS // 4):
        assert held_back(kept, 5, now_ms)
        kept.note(item_of(5), ErrorCode.NOT_LEADER_OR_FOLLOWER, now_ms)
    assert not held_back(kept, 5, EXPIRY_MS)


async def test_other_producers_are_not_concerned(leading: MiniNode) -> None:
    other = make_batch(b"x", producer_id=PRODUCER + 1, producer_epoch=0, base_sequence=7)
    assert (await leading.produce_batch(other)).error == 0, "an unknown producer may begin anywhere"
    assert (await leading.produce(b"no producer id")).error == 0


def item_of(sequence: int, producer_id: int = PRODUCER) -> ProducePartition:
    batch = make_batch(b"x", producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    return ProducePartition(TOPIC, None, 0, memoryview(batch))


def held_back(kept: RetryGate, sequence: int, now_ms: int, producer_id: int = PRODUCER) -> bool:
    item = item_of(sequence, producer_id)
    try:
        kept.check(item, read_header(item.records), False, now_ms)
    except PenstockError as error:
        assert error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        return True
    return False


def test_a_refusal_holds_back_until_it_comes_again_or_expires() -> None:
    kept = RetryGate()
    assert not kept
    kept.note(item_of(5), ErrorCode.NOT_ENOUGH_REPLICAS, 0)
    assert held_back(kept, 6, 1)
    kept.note(item_of(6), ErrorCode.NOT_LEADER_OR_FOLLOWER, 1)
    assert held_back(kept, 6, 2), "the earlier one is still missing"
    assert not held_back(kept, 5, 3)
    assert not held_back(kept, 6, 4)
    kept.note(item_of(7), ErrorCode.NOT_LEADER_OR_FOLLOWER, 10)
    assert not held_back(kept, 8, 10 + EXPIRY_MS)
    assert not kept


def test_sequences_wrap() -> None:
    kept = RetryGate()
    kept.note(item_of(0x7FFFFFFF), ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    assert held_back(kept, 0, 1)


def test_only_what_comes_again_is_kept_and_not_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_gate, "REFUSED_MAX", 3)
    kept = RetryGate()
    kept.note(item_of(0), ErrorCode.CORRUPT_MESSAGE, 0)
    kept.note(ProducePartition(TOPIC, None, 0, memoryview(b"short")), ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    kept.note(
        ProducePartition(TOPIC, None, 0, memoryview(make_batch(b"x"))), ErrorCode.NOT_LEADER_OR_FOLLOWER, 0
    )
    assert not kept
    for producer_id in range(5):
        kept.note(item_of(0, producer_id), ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    assert [held_back(kept, 1, 1, producer_id) for producer_id in range(5)] == [
        False,
        False,
        True,
        True,
        True,
    ]
