"""Images of small clusters, what their nodes report, and plans of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from penstock_controller.state.operations.plans.plan import PlanView, plan_steps
from penstock_controller.state.operations.reports import Reports
from penstock_core.ids import NO_NODE, LeaderEpoch, NodeId, TopicId, TopicPartition
from penstock_core.metadata import MetadataImage, NodeImage, PartitionImage, TopicImage
from penstock_core.metadata.image import Endpoint
from penstock_core.metadata.operations import NodePolicy, OperationMove, OperationsImage
from penstock_proto.v1 import metadata_pb2 as meta
from penstock_proto.v1 import operations_pb2 as pb
from penstock_runtime.turns import all_at_once

NOWHERE = Endpoint("", "host", 1)
DISK_BYTES = 10**9


def ids(numbers: Iterable[int]) -> tuple[NodeId, ...]:
    return tuple(NodeId(n) for n in numbers)


def node(node_id: int, rack: str = "", *, fenced: bool = False, disk_full: bool = False) -> NodeImage:
    return NodeImage(
        node_id=NodeId(node_id),
        directory_id=bytes([node_id]) * 16,
        node_epoch=1,
        version="",
        feature_level=3,
        boot_id=b"",
        rack=rack,
        grpc=NOWHERE,
        http=NOWHERE,
        listeners={},
        apis={},
        fenced=fenced,
        in_controlled_shutdown=False,
        disk_full=disk_full,
    )


def topic_id(name: str) -> TopicId:
    return TopicId(name.encode().ljust(16, b"-"))


def partition(
    topic: str,
    number: int,
    replicas: Sequence[int],
    *,
    isr: Sequence[int] | None = None,
    leader: int | None = None,
) -> PartitionImage:
    in_sync = ids(replicas if isr is None else isr)
    leads = NodeId(leader) if leader is not None else next(iter(in_sync), NO_NODE)
    return PartitionImage(
        topic_id=topic_id(topic),
        partition=number,
        replicas=ids(replicas),
        isr=in_sync,
        leader=leads,
        leader_epoch=LeaderEpoch(1),
        partition_epoch=1,
        last_known_leader=leads if leads != NO_NODE else NodeId(replicas[0]),
    )


def cluster(
    nodes: Iterable[NodeImage | int],
    topics: Mapping[str, Sequence[Sequence[int] | PartitionImage]],
    *,
    cordoned: Iterable[int] = (),
    configs: Mapping[str, Mapping[str, str]] | None = None,
    level: int = 3,
) -> MetadataImage:
    """Topics by name: replicas of each partition, or the partition itself."""
    made = [n if isinstance(n, NodeImage) else node(n) for n in nodes]
    images = {}
    for name, partitions in topics.items():
        by_number = {}
        for number, each in enumerate(partitions):
            by_number[number] = each if isinstance(each, PartitionImage) else partition(name, number, each)
        images[topic_id(name)] = TopicImage(topic_id(name), name, by_number)
    return MetadataImage(
        version=100,
        nodes={n.node_id: n for n in made},
        topics=images,
        topic_ids={name: topic_id(name) for name in topics},
        configs={("topic", name): settings for name, settings in (configs or {}).items()},
        features={"metadata.level": level},
        operations=OperationsImage(policies={NodeId(n): NodePolicy(cordoned=True) for n in cordoned}),
    )


def under_way(
    image: MetadataImage,
    operation_id: int,
    kind: str,
    moves: Sequence[OperationMove] = (),
    node_ids: Iterable[int] = (),
    state: meta.OperationState.ValueType = meta.OPERATION_STATE_RUNNING,
) -> MetadataImage:
    """With an operation that goes on."""
    record = meta.OperationRecord(
        operation_id=operation_id,
        kind=kind,
        state=state,
        parameters=meta.OperationParameters(node_ids=list(node_ids)),
    )
    old = image.operations
    changed = replace(
        old,
        operations={**old.operations, operation_id: record},
        moves={**old.moves, operation_id: {move.key: move for move in moves}},
    )
    return replace(image, operations=changed)


def reported(
    image: MetadataImage,
    size_bytes: int | Mapping[TopicPartition, int] = 10,
    *,
    total_bytes: int | Mapping[int, int] = DISK_BYTES,
    silent: Iterable[int] = (),
) -> Reports:
    """All nodes but the silent ones told what they have: one size of all partitions, or each its own."""
    reports = Reports()
    for node_id in image.nodes:
        if node_id in silent:
            continue
        sizes = []
        for topic in image.topics.values():
            for each in topic.partitions.values():
                if node_id in each.replicas:
                    size = size_bytes if isinstance(size_bytes, int) else size_bytes.get(each.key, 10)
                    sizes.append(
                        pb.ReplicaSize(topic_id=each.topic_id, partition=each.partition, size_bytes=size)
                    )
        used = sum(each.size_bytes for each in sizes)
        total = total_bytes if isinstance(total_bytes, int) else total_bytes.get(node_id, DISK_BYTES)
        report = pb.NodeReport(
            disk_total_bytes=total,
            disk_free_bytes=max(0, total - used),
            log_bytes=used,
            first_of_all=True,
            last_of_all=True,
            sizes=sizes,
        )
        reports.take(node_id, 1, report, 0)
    return reports


def view(image: MetadataImage, reports: Reports | None = None, *, away: Iterable[int] = ()) -> PlanView:
    gone = set(away)
    return PlanView(
        reports=reported(image) if reports is None else reports, alive=lambda node_id: node_id not in gone
    )


def ask(
    kind: str,
    *,
    allowed: Sequence[str] = (),
    throttle: meta.OperationThrottle | None = None,
    **parameters: object,
) -> pb.PlanRequest:
    return pb.PlanRequest(
        kind=kind,
        parameters=meta.OperationParameters(**parameters),  # type: ignore[arg-type]
        throttle=throttle,
        allowed_gates=allowed,
    )


def planned(image: MetadataImage, request: pb.PlanRequest, seen: PlanView | None = None) -> pb.Plan:
    return all_at_once(plan_steps(image, request, seen or view(image)))


def moves_of(plan: pb.Plan) -> dict[tuple[str, int], tuple[list[int], list[int]]]:
    """(replicas before, after) by topic and partition."""
    return {(m.topic, m.partition): (list(getattr(m, "from")), list(m.to)) for m in plan.moves}


def gate(plan: pb.Plan, name: str) -> pb.Gate:
    (found,) = [each for each in plan.gates if each.name == name]
    return found


def carried_out(image: MetadataImage, plan: pb.Plan) -> MetadataImage:
    """With the replicas that were planned, all of live nodes in sync."""
    topics = dict(image.topics)
    for move in plan.moves:
        key = TopicId(move.topic_id)
        topic = topics[key]
        replicas = ids(move.to)
        isr = tuple(n for n in replicas if image.nodes[n].active)
        new = replace(
            topic.partitions[move.partition],
            replicas=replicas,
            isr=isr,
            leader=isr[0] if isr else NO_NODE,
            last_known_leader=(isr or replicas)[0],
        )
        topics[key] = replace(topic, partitions={**topic.partitions, move.partition: new})
    return replace(image, topics=topics, version=image.version + 1)


def replicas_of(image: MetadataImage) -> dict[TopicPartition, tuple[NodeId, ...]]:
    return {p.key: p.replicas for t in image.topics.values() for p in t.partitions.values()}


def random_cluster(
    rng: random.Random, *, nodes_max: int = 8, racks: bool = True, unwell: bool = True
) -> MetadataImage:
    """Some nodes, a few of them cordoned or down, and partitions anywhere on them; node 1 is well."""
    count = rng.randint(2, nodes_max)
    depth = rng.randint(0, 2) if racks else 0
    nodes, cordoned = [], []
    for n in range(1, count + 1):
        rack = "/".join([f"z{rng.randrange(3)}", f"h{rng.randrange(3)}"][:depth])
        down = unwell and n > 1 and rng.random() < 0.15
        if unwell and n > 1 and rng.random() < 0.15:
            cordoned.append(n)
        nodes.append(node(n, rack, fenced=down))
    live = {n.node_id for n in nodes if not n.fenced}
    topics: dict[str, list[Sequence[int] | PartitionImage]] = {}
    for name in rng.sample(["a", "b", "c"], rng.randint(1, 3)):
        factor = rng.randint(1, min(3, count))
        topics[name] = []
        for number in range(rng.randint(1, 8)):
            has = rng.sample(range(1, count + 1), factor)
            topics[name].append(partition(name, number, has, isr=[n for n in has if n in live]))
    return cluster(nodes, topics, cordoned=cordoned)
