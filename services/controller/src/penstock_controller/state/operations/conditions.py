"""How each storage node is, in one word, with what it holds and how much room it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator

from penstock_controller.state.nodes import SCAN_COUNT
from penstock_controller.state.operations.reports import Reports
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage, NodeImage
from penstock_core.metadata.operations import NodePolicy
from penstock_proto.v1 import operations_pb2 as api


def describe_nodes(
    image: MetadataImage, reports: Reports
) -> Generator[None, None, api.DescribeNodesResponse]:
    """All nodes, by id. In steps of SCAN_COUNT partitions."""
    replicas: Counter[NodeId] = Counter()
    leaders: Counter[NodeId] = Counter()
    seen = 0
    for topic in image.topics.values():
        for partition in topic.partitions.values():
            replicas.update(partition.replicas)
            leaders[partition.leader] += 1
            seen += 1
            if seen % SCAN_COUNT == 0:
                yield
    response = api.DescribeNodesResponse()
    for node_id, node in sorted(image.nodes.items()):
        policy = image.operations.policies.get(node_id, NodePolicy())
        told = response.nodes.add(
            node_id=node_id,
            condition=condition_of(node, policy, replicas[node_id]),
            rack=node.rack,
            version=node.version,
            feature_level=node.feature_level,
            replicas=replicas[node_id],
            leaders=leaders[node_id],
            operation_id=policy.operation_id,
        )
        state = reports.node(node_id)
        if state is not None:
            told.log_bytes = state.log_bytes
            told.disk_total_bytes = state.disk_total_bytes
            told.disk_free_bytes = state.disk_free_bytes
    return response


def condition_of(node: NodeImage, policy: NodePolicy, replica_count: int) -> str:
    """The gravest of what is so: fenced, disk-failed, disk-full, draining, drained, cordoned, ok."""
    if node.fenced:
        return "fenced"
    if node.disk_failed:
        return "disk-failed"
    if node.disk_full:
        return "disk-full"
    if policy.draining:
        return "draining"
    if policy.cordoned:
        return "cordoned" if replica_count else "drained"
    return "ok"
