"""Offsets in transactions on nodes: real logs and leaders, markers as the leaders' side writes them, hand-over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from node.harness import TOPIC, MiniCluster, MiniNode, eventually
from node.test_cluster import hosted
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import TopicId
from penstock_kafka.records.batch import BatchInfo, iter_batches
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_storage_node.groups.host import GroupHost
from penstock_storage_node.groups.offsets import CommitRequest, Found, NewOffset
from penstock_storage_node.groups.shard import Shard
from penstock_storage_node.groups.store import InTransaction
from penstock_storage_node.log import ReadData
from penstock_storage_node.settings import GroupSettings
from penstock_storage_node.transactions.admission import Admission, MarkerOrder
from penstock_storage_node.transactions.effects import TopicPartitionName
from penstock_storage_node.transactions.leading import LeadingSide
from penstock_storage_node.transactions.verifier import Guard

E = ErrorCode
T_ID = TopicId(b"t" * 16)
TOPIC_T = pb.MetadataRecord(topic=pb.TopicRecord(topic_id=T_ID, name="t"))
PRODUCER = (7, 0)
"""Id and epoch."""


@pytest.fixture(autouse=True)
def _offsets_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupHost, "topic", TOPIC)


class Verified:
    """`Admitted` by an admission and what was verified with."""

    def __init__(self, admission: Admission, guard: Guard | None) -> None:
        self.admission = admission
        self.guard = guard

    def check(self, info: BatchInfo) -> None:
        if self.guard is not None:
            self.admission.check(info, self.guard, by_version=0)

    def appended(self, info: BatchInfo) -> None:
        self.admission.appended(info, self.guard, 0)


class Coordinator:
    """A node's groups, and its leaders' side."""

    def __init__(self, node: MiniNode) -> None:
        self.node = node
        self.leading = LeadingSide(node.manager)
        self.host = GroupHost(node.manager, node.lifecycle, GroupSettings(), expiry_interval_ms=600_000)
        self.leading.on_marker.append(
            lambda partition, marker: self.host.on_marker(
                partition, marker.producer_id, marker.offset, commits=marker.commit
            )
        )
        node.manager.roles.watchers.append(self.host)
        node.manager.roles.watchers.append(self.leading)

    @property
    def shard(self) -> Shard:
        return self.host.find("g")

    async def served(self) -> None:
        def serves() -> bool:
            try:
                return self.shard is not None
            except PenstockError:
                return False

        await eventually(serves)

    async def commit(self, offsets: dict[int, int], producer: tuple[int, int] | None = PRODUCER) -> ErrorCode:
        """An OffsetCommit, or a TxnOffsetCommit of a producer whose transaction is verified."""
        transaction = None
        if producer is not None:
            admission = self.leading.admission(self.node.partition)
            guard = admission.guard_without_sequence(*producer, 0)
            transaction = InTransaction(*producer, Verified(admission, guard))
        items = [NewOffset("t", partition, offset, -1, "") for partition, offset in offsets.items()]
        answers: list[list[ErrorCode]] = []
        request = CommitRequest("g", "", None, -1, items, transaction=transaction)
        self.shard.commit(request, lambda codes: answers.append(list(codes)))
        await eventually(lambda: bool(answers))
        return answers[0][0]

    async def mark(self, *, commit: bool) -> ErrorCode:
        """The marker of the producer's transaction."""
        codes: list[ErrorCode] = []
        order = MarkerOrder(*PRODUCER, commit, 0, 0)
        self.leading.write(order, TopicPartitionName(TOPIC, 0), codes.append, lambda: False)
        await eventually(lambda: bool(codes))
        return codes[0]

    def offsets(self) -> dict[int, int]:
        """What is committed."""
        _, found = self.shard.fetch("g", None, -1, None)
        return {key[1]: value.offset for key, value in found if value is not None}

    def unstable(self, *partitions: int) -> set[int]:
        """Which of these are, for who requires stable offsets."""
        told: list[frozenset[tuple[str, int]]] = []

        def reply(_error: ErrorCode, _found: Found, unstable: frozenset[tuple[str, int]]) -> None:
            told.append(unstable)

        self.shard.fetch_stable("g", None, -1, [("t", each) for each in partitions], reply)
        return {partition for _, partition in told[0]}


@pytest.fixture
async def cluster(tmp_path: Path) -> Any:
    cluster = await MiniCluster(tmp_path).start(3)
    cluster.change(TOPIC_T)
    yield cluster
    await cluster.stop()


async def coordinators(cluster: MiniCluster) -> dict[int, Coordinator]:
    found = {number: Coordinator(node) for number, node in cluster.nodes.items()}
    cluster.make_topic(min_insync_replicas="2")
    await hosted(cluster)
    await found[1].served()
    return found


def batches(node: MiniNode) -> list[tuple[int, int, bool, bool]]:
    """(producer id, sequence, whether it is a transaction's, whether it is a marker) in the order of the log."""
    found = node.partition.read(0, 1 << 20, node.partition.log.log_end_offset)
    assert isinstance(found, ReadData)
    return [
        (each.producer_id, each.base_sequence, each.is_transactional, each.is_control)
        for each in iter_batches(b"".join(found.buffers))
    ]


async def test_a_commit_and_its_marker_in_the_log(cluster: MiniCluster) -> None:
    one = (await coordinators(cluster))[1]
    assert await one.commit({0: 1, 1: 1}, None) is E.NONE
    assert await one.commit({0: 5}) is E.NONE
    assert (one.offsets(), one.unstable(0, 1)) == ({0: 1, 1: 1}, {0})
    # The second one of a transaction needs no verification, and no sequence.
    assert await one.commit({1: 6}) is E.NONE
    assert await one.mark(commit=True) is E.NONE
    assert (one.offsets(), one.unstable(0, 1)) == ({0: 5, 1: 6}, set())
    data, marker = (7, -1, True, False), (7, -1, True, True)
    assert batches(one.node) == [(-1, -1, False, False), data, data, marker]
    assert one.node.partition.log.last_stable_offset(one.node.partition.replica.high_watermark) == 5


async def test_the_next_coordinator_knows_what_is_decided_and_what_is_not(cluster: MiniCluster) -> None:
    found = await coordinators(cluster)
    one, two = found[1], found[2]
    await one.commit({0: 5})
    await one.mark(commit=True)
    await one.commit({0: 6, 1: 6})
    await one.mark(commit=False)
    await one.commit({1: 7})
    cluster.elect(2, (1, 2, 3))
    await two.served()
    assert (two.offsets(), two.unstable(0, 1)) == ({0: 5}, {1})
    # The transaction goes on there: the log says that it is open.
    assert await two.commit({2: 7}) is E.NONE
    assert await two.mark(commit=True) is E.NONE
    assert two.offsets() == {0: 5, 1: 7, 2: 7}
    cluster.elect(3, (1, 2, 3))
    await found[3].served()
    assert found[3].offsets() == {0: 5, 1: 7, 2: 7}


def loads_on_a_word(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """A coordinator that reads its log only once the event is set."""
    goes_on = asyncio.Event()
    read = coordinator.host._replay

    async def held(shard: Shard, data: bytes) -> int:
        await goes_on.wait()
        return await read(shard, data)

    monkeypatch.setattr(coordinator.host, "_replay", held)
    return goes_on


async def test_a_marker_that_comes_while_the_log_is_read_is_not_lost(
    cluster: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await coordinators(cluster)
    one, two = found[1], found[2]
    await one.commit({0: 5})
    goes_on = loads_on_a_word(two, monkeypatch)
    cluster.elect(2, (1, 2, 3))
    with pytest.raises(PenstockError) as refused:
        two.host.find("g")
    assert refused.value.code is E.COORDINATOR_LOAD_IN_PROGRESS
    assert await two.mark(commit=True) is E.NONE
    goes_on.set()
    await two.served()
    assert (two.offsets(), two.unstable(0)) == ({0: 5}, set())


async def test_an_epoch_that_is_over_and_a_verification_that_is_used_up(cluster: MiniCluster) -> None:
    one = (await coordinators(cluster))[1]
    admission = one.leading.admission(one.node.partition)
    guard = admission.guard_without_sequence(*PRODUCER, 0)
    await one.commit({0: 5})
    await one.mark(commit=True)
    late = InTransaction(*PRODUCER, Verified(admission, guard))
    answers: list[list[ErrorCode]] = []
    request = CommitRequest("g", "", None, -1, [NewOffset("t", 0, 4, -1, "")], transaction=late)
    one.shard.commit(request, lambda codes: answers.append(list(codes)))
    assert answers == [[E.INVALID_TXN_STATE]]
    assert await one.commit({0: 6}, (7, 1)) is E.NONE
    old = InTransaction(*PRODUCER, Verified(admission, None))
    one.shard.commit(
        CommitRequest("g", "", None, -1, [NewOffset("t", 0, 4, -1, "")], transaction=old),
        lambda codes: answers.append(list(codes)),
    )
    assert answers[1:] == [[E.INVALID_PRODUCER_EPOCH]]
    assert one.offsets() == {0: 5}


GONE_T = pb.MetadataRecord(topic_removed=pb.TopicRemovedRecord(topic_id=T_ID))


@pytest.mark.parametrize("seen", [False, True])
async def test_offsets_of_a_topic_that_is_deleted_while_their_log_is_read_go(
    cluster: MiniCluster, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    """Its name may be given again, and who reads that topic would begin somewhere in the middle. What this process did
    not see deleted may be on the nodes still, and be taken again: adopted after the log of offsets, or an import."""
    found = await coordinators(cluster)
    one, two = found[1], found[2]
    await one.commit({0: 5}, None)
    await one.commit({1: 6})
    goes_on = loads_on_a_word(two, monkeypatch)
    cluster.elect(2, (1, 2, 3))
    before = cluster.image
    cluster.change(GONE_T)
    if seen:
        two.host.on_metadata(before, cluster.image)
    goes_on.set()
    await two.served()
    cluster.change(TOPIC_T)
    if not seen:
        assert (two.offsets(), two.unstable(0, 1)) == ({0: 5}, {1})
        return
    await eventually(lambda: (two.offsets(), two.unstable(0, 1)) == ({}, set()))
    # In the log too.
    cluster.elect(3, (1, 2, 3))
    await found[3].served()
    assert await found[3].mark(commit=True) is E.NONE
    assert found[3].offsets() == {}


async def test_offsets_go_with_their_topic_though_its_name_is_there_again(cluster: MiniCluster) -> None:
    """A node that was held up hears of both at once."""
    one = (await coordinators(cluster))[1]
    await one.commit({0: 5}, None)
    await one.commit({1: 6})
    again = pb.MetadataRecord(topic=pb.TopicRecord(topic_id=TopicId(b"u" * 16), name="t"))
    before = cluster.image
    cluster.change(GONE_T, again)
    one.host.on_metadata(before, cluster.image)
    await eventually(lambda: (one.offsets(), one.unstable(0, 1)) == ({}, set()))


async def test_what_restored_metadata_lack_was_not_deleted(cluster: MiniCluster) -> None:
    one = (await coordinators(cluster))[1]
    await one.commit({0: 5}, None)
    before = cluster.image
    mark = pb.ClusterRecord(cluster_id=before.cluster_id, restored_version=before.version + 1)
    cluster.change(GONE_T, pb.MetadataRecord(cluster=mark))
    one.host.on_metadata(before, cluster.image)
    cluster.change(TOPIC_T)
    assert one.offsets() == {0: 5}
