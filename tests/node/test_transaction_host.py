"""The transaction coordinator on nodes: real logs, leadership given and taken, decisions carried out by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node.harness import TOPIC, MiniCluster, MiniNode, eventually, wall_ms
from node.test_cluster import hosted
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.records.read import read_all
from penstock_storage_node.log import ReadData
from penstock_storage_node.settings import TransactionSettings
from penstock_storage_node.transactions.effects import MarkersDue, MarkersWithdrawn, TopicPartitionName
from penstock_storage_node.transactions.host import TransactionHost
from penstock_storage_node.transactions.outbox import key_of
from penstock_storage_node.transactions.records import put_key, read_key, read_value
from penstock_storage_node.transactions.shard import Shard
from penstock_storage_node.transactions.state import Add, Answer, End

E = ErrorCode
PLACE = TopicPartitionName(TOPIC, 0)


@pytest.fixture(autouse=True)
def _state_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionHost, "topic", TOPIC)


class Coordinator:
    """A node's host; what its shards want done waits for the test."""

    def __init__(self, node: MiniNode, **settings: int) -> None:
        self.node = node
        self.effects: list[MarkersDue | MarkersWithdrawn] = []
        self.ids: list[int] = list(range(node.node_id * 1_000, node.node_id * 1_000 + 900))
        self.host = TransactionHost(
            node.manager,
            node.lifecycle,
            TransactionSettings(**settings),
            carry_out=self.effects.append,
            take_id=lambda: self.ids.pop(0) if self.ids else None,
            version=lambda: 2,
        )
        node.manager.roles.watchers.append(self.host)
        self.host.start()

    @property
    def shard(self) -> Shard:
        return self.host.find("x")

    async def served(self) -> None:
        def serves() -> bool:
            try:
                return not self.shard.is_loading
            except PenstockError:
                return False

        await eventually(serves)

    async def ask(self, question: Callable[[Shard, Callable[[Answer], None]], object]) -> Answer:
        answers: list[Answer] = []
        question(self.shard, answers.append)
        await eventually(lambda: bool(answers))
        return answers[0]

    async def init(self, name: str = "x", timeout_ms: int = 60_000) -> Answer:
        return await self.ask(lambda shard, reply: shard.init_producer(name, timeout_ms, reply))

    async def add(self, answer: Answer, name: str = "x") -> Answer:
        wanted = Add(answer.producer_id, answer.producer_epoch, frozenset({PLACE}), 2)
        return await self.ask(lambda shard, reply: shard.add(name, wanted, reply))

    async def commit(self, answer: Answer, name: str = "x") -> Answer:
        wanted = End(answer.producer_id, answer.producer_epoch, True, 2)
        return await self.ask(lambda shard, reply: shard.end(name, wanted, reply))

    @property
    def due(self) -> list[MarkersDue]:
        return [each for each in self.effects if isinstance(each, MarkersDue)]

    def write_markers(self) -> None:
        for each in self.due:
            self.host.markers_written(key_of(each), each.partitions)

    def states(self) -> dict[str, str]:
        return {name: value.status.label for name, value in self.shard.values()}


def records(node: MiniNode) -> Iterator[tuple[str | None, str | None]]:
    """Ids and states in the order of the log."""
    found = node.partition.read(0, 1 << 20, node.partition.log.log_end_offset)
    assert isinstance(found, ReadData)
    for record in read_all(b"".join(found.buffers)):
        assert record.key is not None
        value = None if record.value is None else read_value(record.value).status.label
        yield read_key(record.key), value


@pytest.fixture
async def cluster(tmp_path: Path) -> Any:
    cluster = await MiniCluster(tmp_path).start(3)
    yield cluster
    await cluster.stop()


async def coordinators(cluster: MiniCluster, **settings: int) -> dict[int, Coordinator]:
    found = {number: Coordinator(node, **settings) for number, node in cluster.nodes.items()}
    cluster.make_topic(min_insync_replicas="2")
    await hosted(cluster)
    await found[1].served()
    return found


async def test_a_transaction_from_the_producers_id_to_the_last_record(cluster: MiniCluster) -> None:
    one = (await coordinators(cluster))[1]
    assert one.host.coordinator_of("x") == NodeId(1)
    pair = await one.init()
    assert (pair.error, pair.producer_epoch) == (E.NONE, 0)
    assert (await one.add(pair)).error is E.NONE
    assert (await one.commit(pair)).producer_epoch == 1
    (due,) = one.due
    assert (due.state_partition, due.coordinator_epoch, due.commit, due.partitions) == (0, 0, True, (PLACE,))
    assert one.states() == {"x": "PrepareCommit"}
    one.write_markers()
    await eventually(lambda: one.states() == {"x": "CompleteCommit"})
    states = ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]
    assert list(records(one.node)) == [("x", state) for state in states]
    with pytest.raises(PenstockError) as refused:
        Coordinator(cluster.nodes[2]).host.find("x")
    assert refused.value.code is E.NOT_COORDINATOR


async def test_it_is_whole_when_all_that_it_leads_is_read(cluster: MiniCluster) -> None:
    """Else a list of ids would lack those of a log that is not open yet, and say nothing."""
    node = cluster.nodes[1]
    one = Coordinator(node)

    def is_whole() -> bool:
        return one.host.is_whole

    assert is_whole(), "there is nothing to read"
    cluster.make_topic()
    assert not is_whole(), "it leads, and has no log yet"
    assert one.host.loading_count == 0
    await one.served()
    await eventually(is_whole)
    cluster.elect(2, [1, 2, 3])
    assert is_whole(), "it leads nothing"
    await eventually(lambda: list(one.host.shards()) == [])


async def test_what_one_turn_asks_for_is_one_batch(cluster: MiniCluster) -> None:
    one = (await coordinators(cluster))[1]
    answers: list[Answer] = []
    for number in range(20):
        one.shard.init_producer(f"id-{number}", 60_000, answers.append)
    await eventually(lambda: len(answers) == 20)
    log = one.node.partition.log
    assert log.log_end_offset == 20
    found = one.node.partition.read(0, 1 << 20, 20)
    assert isinstance(found, ReadData)
    assert int.from_bytes(b"".join(found.buffers)[23:27], "big") == 19  # last offset delta of the first batch


async def test_the_next_leader_has_the_decisions_carried_out(cluster: MiniCluster) -> None:
    found = await coordinators(cluster)
    one, two = found[1], found[2]
    pair = await one.init()
    await one.add(pair)
    await one.commit(pair)
    cluster.elect(2, (1, 2, 3))
    assert one.effects[-1] == MarkersWithdrawn(0, 0)
    with pytest.raises(PenstockError) as refused:
        one.host.find("x")
    assert refused.value.code is E.NOT_COORDINATOR
    await two.served()
    (due,) = two.due
    assert (due.coordinator_epoch, due.producer_id, due.producer_epoch) == (1, pair.producer_id, 1)
    one.write_markers()  # late news of the deposed one
    assert two.states() == {"x": "PrepareCommit"}
    two.write_markers()
    await eventually(lambda: two.states() == {"x": "CompleteCommit"})
    # The repeated EndTxn of a client that heard nothing.
    again = await two.commit(pair)
    assert (again.error, again.producer_epoch) == (E.NONE, 1)


async def test_a_producer_id_that_is_not_at_hand_is_waited_for(cluster: MiniCluster) -> None:
    one = (await coordinators(cluster))[1]
    one.ids.clear()
    answers: list[Answer] = []
    one.shard.init_producer("x", 60_000, answers.append)
    await asyncio.sleep(0)
    assert (answers, one.shard.held_count) == ([], 1)
    one.ids.append(77)
    one.host.ids_arrived()
    await eventually(lambda: bool(answers))
    assert answers[0].producer_id == 77


async def test_ids_have_room_for_so_many(cluster: MiniCluster) -> None:
    one = (await coordinators(cluster, ids_max=2))[1]
    assert [(await one.init(name)).error for name in ("x", "y", "z", "x")] == [
        E.NONE,
        E.NONE,
        E.THROTTLING_QUOTA_EXCEEDED,
        E.NONE,
    ]


async def test_a_transaction_that_takes_too_long_is_aborted(cluster: MiniCluster) -> None:
    one = (await coordinators(cluster, timeout_interval_ms=20))[1]
    pair = await one.init(timeout_ms=30)
    assert (await one.add(pair)).error is E.NONE
    await eventually(lambda: bool(one.due))
    assert (one.due[0].commit, one.due[0].producer_epoch) == (False, 1)
    assert aborts(one.host) == {"timed_out": 1.0, "fenced": 0.0}
    one.node.manager.roles.stop(one.node.partition, "test")
    assert aborts(one.host) == {"timed_out": 1.0, "fenced": 0.0}


async def test_ids_that_nobody_uses_expire(cluster: MiniCluster) -> None:
    one = (await coordinators(cluster, id_expiration_ms=1, expiry_interval_ms=5))[1]
    await one.init()
    await eventually(lambda: one.states() == {})
    assert list(records(one.node))[-1] == ("x", None)


async def test_below_min_isr_nothing_is_decided(cluster: MiniCluster) -> None:
    one = (await coordinators(cluster))[1]
    pair = await one.init()
    cluster.set_isr(1)
    assert (await one.add(pair)).error is E.COORDINATOR_NOT_AVAILABLE
    cluster.set_isr(1, 2)
    assert (await one.add(pair)).error is E.NONE


async def test_records_that_cannot_be_read_are_counted_and_passed_over(cluster: MiniCluster) -> None:
    found = await coordinators(cluster)
    one, two = found[1], found[2]
    await one.init()
    bad = build_batch([NewRecord(put_key("y"), b"no transaction", wall_ms())])
    assert (await one.node.produce_batch(bad)).error == E.NONE
    await one.init("z")
    cluster.elect(2, (1, 2, 3))
    await two.served()
    assert (two.states(), two.host.bad_records) == ({"x": "Empty", "z": "Empty"}, 1)


async def test_metrics_tell_of_transactions(cluster: MiniCluster) -> None:
    one = (await coordinators(cluster))[1]
    pair = await one.init()
    await one.init("y")
    await one.add(pair)
    told = {
        (sample.name, *sample.labels.values()): sample.value
        for family in one.host.families()
        for sample in family.samples
    }
    assert told["penstock_node_transactional_ids", "Ongoing"] == 1
    assert told["penstock_node_transactional_ids", "Empty"] == 1
    assert told["penstock_node_transaction_requests_held",] == 0
    assert told["penstock_node_transaction_markers_due",] == 0
    assert told["penstock_node_transaction_oldest_seconds",] >= 0
    await one.commit(pair)
    (count,) = (f.samples[0].value for f in one.host.families() if f.name.endswith("markers_due"))
    assert count == 1


def aborts(host: TransactionHost) -> dict[str, float]:
    """By why."""
    return {
        sample.labels["why"]: sample.value
        for family in host.families()
        for sample in family.samples
        if sample.name.endswith("aborts_total")
    }
