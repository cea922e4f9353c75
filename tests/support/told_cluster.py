"""A cluster that is nothing but its metadata and the commands that made them, with what a controller tells of them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable
from typing import Any

from penstock_controller.quorum import Applied, Outcome
from penstock_controller.quorum.machine import Machine
from penstock_controller.state import cluster, isr, nodes, topics
from penstock_controller.state.causes import bounded
from penstock_controller.state.generation import Context, Generated
from penstock_controller.state.history.events import events_of
from penstock_core.ids import NodeId
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as operations

BEGAN_MS = 1_700_000_000_000


class ToldCluster:
    """Commands go through the state machine as bytes, a second apart."""

    def __init__(self, *node_ids: int) -> None:
        self.rng = random.Random(1)
        self.steps: list[tuple[MetadataImage, Applied]] = []
        self.now_ms = BEGAN_MS
        self._machine = Machine(MetadataImage(), self._applied, _fail)
        self._before = self._machine.image
        self.do(cluster.found_cluster(self.ctx, FEATURE_LEVEL))
        for node_id in node_ids:
            self.register(node_id)
            self.do(nodes.unfence_node(self.ctx, NodeId(node_id), self.epoch(node_id)))

    @property
    def image(self) -> MetadataImage:
        return self._machine.image

    @property
    def ctx(self) -> Context:
        return Context(self.image, self.rng)

    def do(self, made: Generated[Any], *, with_causes: bool = True) -> list[operations.ClusterEvent]:
        """Its events."""
        self.now_ms += 1_000
        command = pb.MetadataCommand(
            base_version=self.image.version,
            records=made.all_records(),
            time_ms=self.now_ms,
            causes=bounded(made.causes) if with_causes else (),
        )
        count = len(self.steps)
        assert self._machine.apply(command.SerializeToString()) in (Outcome.APPLIED, Outcome.STALE)
        return [event for step in self.steps[count:] for event in events(*step)]

    def register(self, node_id: int, **fields: Any) -> list[operations.ClusterEvent]:
        process = common.ProcessInfo(version="1.0", feature_level=FEATURE_LEVEL)
        directory_id = fields.pop("directory_id", uuid.UUID(int=node_id).bytes)
        request = api.RegisterNodeRequest(
            node_id=node_id, directory_id=directory_id, process=process, **fields
        )
        return self.do(nodes.register_node(self.ctx, request))

    def create(self, name: str, *assignments: Iterable[int]) -> list[operations.ClusterEvent]:
        topic = api.NewTopic(name=name, partition_count=-1, replication_factor=-1)
        for node_ids in assignments:
            topic.assignments.add(node_ids=node_ids)
        request = api.CreateTopicsRequest(topics=[topic], principal="User:ann")
        return self.do(topics.create_topics(self.ctx, request))

    def fence(self, node_id: int, reason: str = "silent for 2100 ms") -> list[operations.ClusterEvent]:
        return self.do(nodes.fence_node(self.ctx, NodeId(node_id), self.epoch(node_id), reason))

    def unfence(self, node_id: int) -> list[operations.ClusterEvent]:
        return self.do(nodes.unfence_node(self.ctx, NodeId(node_id), self.epoch(node_id)))

    def drain(self, node_id: int, *, disk_failed: bool = False) -> list[operations.ClusterEvent]:
        made = nodes.drain_node(self.ctx, NodeId(node_id), self.epoch(node_id), disk_failed=disk_failed)
        return self.do(made)

    def propose(self, name: str, members: Iterable[int], **said: Any) -> list[operations.ClusterEvent]:
        old = self.partition(name)
        request = api.AlterPartitionsRequest(node_id=old.leader, node_epoch=self.epoch(old.leader))
        request.proposals.add(
            topic_id=old.topic_id,
            partition=old.partition,
            leader_epoch=old.leader_epoch,
            partition_epoch=old.partition_epoch,
            new_isr=[api.IsrMember(node_id=n, node_epoch=-1) for n in members],
            **said,
        )
        return self.do(isr.alter_partitions(self.ctx, request))

    def epoch(self, node_id: int) -> int:
        return self.image.nodes[NodeId(node_id)].node_epoch

    def partition(self, name: str) -> PartitionImage:
        topic, _, number = name.rpartition("-")
        found = self.image.topic(topic)
        assert found is not None
        return found.partitions[int(number)]

    def _applied(self, applied: Applied) -> None:
        self.steps.append((self._before, applied))
        self._before = applied.image


def events(before: MetadataImage, applied: Applied) -> list[operations.ClusterEvent]:
    """What a controller makes of one command."""
    made = events_of(before, applied.image, applied.records, applied.time_ms, applied.causes)
    return [event for event in made if event is not None]


def _fail(error: BaseException) -> None:
    raise error
