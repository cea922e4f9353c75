"""What is done to a cluster of a size: CPU seconds, bytes of the records that say it, the longest slice."""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from dataclasses import dataclass

from bench.planner import request_of, timed
from bench.scale.model import PARTITIONS_PER_TOPIC, Cluster

from penstock_controller.state.generation import Context
from penstock_controller.state.nodes import fence_node
from penstock_controller.state.operations.plans.plan import PlanView, plan_steps
from penstock_core.ids import NodeId, TopicId
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import metadata_pb2 as meta

Records = list[meta.MetadataRecord]


@dataclass(frozen=True)
class Row:
    """One figure of one size. `longest_ms` is 0 for what is measured only as a whole."""

    what: str
    nodes: int
    partitions: int
    cpu_s: float
    sent_bytes: int = 0
    longest_ms: float = 0.0


def size_of(records: Records) -> int:
    return sum(record.ByteSize() for record in records)


def one_topic(cluster: Cluster) -> Row:
    """A new topic of 100 partitions becomes part of the image."""
    topic_id = TopicId(b"new".ljust(16, b"-"))
    records = [meta.MetadataRecord(topic=meta.TopicRecord(topic_id=topic_id, name="new"))]
    for index in range(PARTITIONS_PER_TOPIC):
        row = meta.PartitionRecord(
            topic_id=topic_id, partition=index, replicas=[1, 2, 3], isr=[1, 2, 3], leader=1, leader_epoch=1
        )
        records.append(meta.MetadataRecord(partition=row))
    gc.collect()
    begun = time.process_time()
    cluster.image.apply(records, cluster.image.version + 1)
    spent = time.process_time() - begun
    return Row("one topic, applied", cluster.nodes, cluster.partitions, spent, size_of(records))


def node_loss(cluster: Cluster) -> list[Row]:
    """Node 2 is fenced: what the controller decides, and what each subscriber applies."""
    ctx = Context(cluster.image, random.Random(1), alive=lambda _: True)
    node_id = NodeId(2)
    gc.collect()
    begun = time.process_time()
    made = fence_node(ctx, node_id, cluster.image.nodes[node_id].node_epoch)
    records = made.all_records()
    decided = time.process_time()
    cluster.image.apply(records, cluster.image.version + 1)
    applied = time.process_time()
    size = cluster.nodes, cluster.partitions
    sent = size_of(records)
    return [
        Row("node lost, decided", *size, decided - begun, sent),
        Row("node lost, applied by one subscriber", *size, applied - decided, sent),
    ]


def first_image(cluster: Cluster) -> tuple[Row, float]:
    """All records read from their bytes into a new image; and the bytes of memory that it takes for a partition."""
    written = [record.SerializeToString() for record in cluster.image.to_records()]
    gc.collect()
    begun = time.process_time()
    MetadataImage.from_records((meta.MetadataRecord.FromString(w) for w in written), 1)
    spent = time.process_time() - begun
    gc.collect()
    tracemalloc.start()
    try:
        image = MetadataImage.from_records((meta.MetadataRecord.FromString(w) for w in written), 1)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(image.nodes) == cluster.nodes
    row = Row("first image", cluster.nodes, cluster.partitions, spent, sum(map(len, written)))
    return row, held / cluster.partitions


def drain_plan(cluster: Cluster) -> Row:
    """The plan of emptying node 2."""
    view = PlanView(reports=cluster.reports, alive=lambda _: True)
    steps = plan_steps(cluster.image, request_of("node-drain", node_ids=[2]), view)
    found = timed("drain, planned", steps)
    return Row(
        found.what, cluster.nodes, cluster.partitions, found.seconds, longest_ms=found.largest_slice_ms
    )


def everything(cluster: Cluster) -> tuple[list[Row], float]:
    """All rows, and an image's bytes of memory for each partition."""
    first, held = first_image(cluster)
    return [one_topic(cluster), *node_loss(cluster), first, drain_plan(cluster)], held
