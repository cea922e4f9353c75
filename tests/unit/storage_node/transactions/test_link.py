"""What a node's link makes of the metadata: where a marker goes, and which partition needs none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from penstock_core.ids import LeaderEpoch, NodeId, TopicId
from penstock_core.metadata.image import MetadataImage, PartitionImage
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_storage_node.transactions.effects import MarkersDue, TopicPartitionName
from penstock_storage_node.transactions.link import TransactionLink
from penstock_storage_node.transactions.outbox import Key, Marker

CLUSTER = b"c" * 16
HERE, THERE = TopicPartitionName("here", 0), TopicPartitionName("there", 0)


def topic(name: str) -> list[pb.MetadataRecord]:
    """Of one partition, which node 2 leads."""
    topic_id = TopicId(name.encode().ljust(16))
    state = PartitionImage(
        topic_id, 0, replicas=(NodeId(2),), isr=(NodeId(2),), leader=NodeId(2),
        leader_epoch=LeaderEpoch(0), partition_epoch=0,
    )  # fmt: skip
    return [
        pb.MetadataRecord(topic=pb.TopicRecord(topic_id=topic_id, name=name)),
        pb.MetadataRecord(partition=state.to_pb()),
    ]


def removed(name: str) -> pb.MetadataRecord:
    return pb.MetadataRecord(topic_removed=pb.TopicRemovedRecord(topic_id=name.encode().ljust(16)))


class Rig:
    """Node 1, whose coordinator has decided; markers for node 2 are written there at once."""

    def __init__(self, restored_version: int) -> None:
        cluster = pb.ClusterRecord(cluster_id=CLUSTER, restored_version=restored_version)
        image = MetadataImage().apply([pb.MetadataRecord(cluster=cluster)], 1)
        self.registry = SimpleNamespace(image=replace(image, version=9), node_id=NodeId(1))
        self.turns: list[Callable[[], None]] = []
        self.done: list[TopicPartitionName] = []
        self.sent: list[TopicPartitionName] = []
        manager: Any = SimpleNamespace(
            registry=self.registry,
            clock_ms=lambda: 0,
            lifecycle=SimpleNamespace(log=SimpleNamespace(warning=lambda *_, **__: None)),
        )
        loop: Any = SimpleNamespace(
            call_soon=self.turns.append, call_later=lambda *_: SimpleNamespace(cancel=lambda: None)
        )
        leading: Any = SimpleNamespace(metadata_changed=lambda: None)
        self.link = TransactionLink(manager, self, leading, loop)
        self.link.connect(self)

    def change(self, *records: pb.MetadataRecord) -> None:
        old = self.registry.image
        self.registry.image = new = old.apply(records, old.version + 1)
        self.link.on_metadata(old, new)
        self.turn()

    def decide(self, *partitions: TopicPartitionName) -> None:
        self.link.carry_out(MarkersDue(0, 1, 7, 0, True, partitions, 0))
        self.turn()

    def turn(self) -> None:
        while self.turns:
            self.turns.pop(0)()

    # -- as coordinators and streams

    def coordinator_of(self, transactional_id: str) -> NodeId | None:
        raise NotImplementedError(transactional_id)

    def find(self, transactional_id: str) -> Any:
        raise NotImplementedError(transactional_id)

    def send_asks(self, node: NodeId, asks: Sequence[Any]) -> bool:
        raise NotImplementedError(node, asks)

    def markers_written(self, key: Key, partitions: Sequence[TopicPartitionName]) -> None:
        assert key == Key(0, 1, 7, 0)
        self.done += partitions

    def send_markers(self, node: NodeId, markers: Sequence[Marker]) -> None:
        assert node == 2
        self.sent += [partition for marker in markers for partition in marker.partitions]


def test_a_partition_that_nobody_knows_needs_no_marker() -> None:
    rig = Rig(restored_version=0)
    rig.change(*topic("here"))
    rig.decide(HERE, THERE)
    assert (rig.sent, rig.done) == ([HERE], [THERE])


def test_restored_metadata_may_not_know_yet_what_is_there() -> None:
    """The topic was made after the backup, and nodes offer it. Its transaction would be open there for good."""
    rig = Rig(restored_version=5)
    rig.change(*topic("here"))
    rig.decide(HERE, THERE)
    assert (rig.sent, rig.done) == ([HERE], [])
    rig.change(*topic("there"))
    assert (rig.sent, rig.done) == ([HERE, THERE], [])


@pytest.mark.parametrize("again", [False, True])
def test_what_was_deleted_since_they_were_restored_needs_none(again: bool) -> None:
    rig = Rig(restored_version=5)
    rig.change(*topic("there"))
    rig.change(removed("there"))
    if again:
        # Made anew with fewer partitions.
        rig.change(*topic("there"))
        rig.decide(TopicPartitionName("there", 1))
        assert rig.done == [TopicPartitionName("there", 1)]
    else:
        rig.decide(THERE)
        assert rig.done == [THERE]


def test_what_a_restore_has_forgotten_was_not_deleted() -> None:
    rig = Rig(restored_version=0)
    rig.change(*topic("there"))
    mark = pb.ClusterRecord(cluster_id=CLUSTER, restored_version=11)
    rig.change(pb.MetadataRecord(cluster=mark), removed("there"))
    rig.decide(THERE)
    assert rig.done == []
