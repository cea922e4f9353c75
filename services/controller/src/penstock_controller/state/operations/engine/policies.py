"""What an operation says of the nodes that it is about, and takes back."""

from __future__ import annotations

from dataclasses import replace

from penstock_controller.state.operations.engine.kinds import drained_by, uncordoned_by
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.operations import NodePolicy
from penstock_proto.v1 import metadata_pb2 as pb


def begun(image: MetadataImage, record: pb.OperationRecord) -> list[pb.MetadataRecord]:
    """At its start: nodes that are to be emptied take nothing more, those that are taken back may."""
    records = []
    for node_id in drained_by(record):
        old = image.operations.policies.get(node_id, NodePolicy())
        # Whoever cordoned it before had a reason of his own, which outlives this operation.
        owner = old.operation_id if old.cordoned else record.operation_id
        records += _changed(image, node_id, NodePolicy(cordoned=True, draining=True, operation_id=owner))
    for node_id in uncordoned_by(record):
        records += _changed(image, node_id, NodePolicy())
    return records


def lifted(image: MetadataImage, record: pb.OperationRecord) -> list[pb.MetadataRecord]:
    """When it is cancelled: what it said is said no more; a cordon of before stays."""
    records = []
    for node_id in drained_by(record):
        old = image.operations.policies.get(node_id)
        if old is not None:
            own = old.operation_id == record.operation_id
            records += _changed(image, node_id, NodePolicy() if own else replace(old, draining=False))
    return records


def drained(image: MetadataImage, record: pb.OperationRecord) -> list[pb.MetadataRecord]:
    """At its end: an emptied node stays cordoned."""
    records = []
    for node_id in drained_by(record):
        old = image.operations.policies.get(node_id)
        if old is not None and node_id in image.nodes:
            records += _changed(image, node_id, replace(old, cordoned=True, draining=False))
    return records


def _changed(image: MetadataImage, node_id: NodeId, policy: NodePolicy) -> list[pb.MetadataRecord]:
    old = image.operations.policies.get(node_id, NodePolicy())
    if old == policy or not (policy.cordoned or policy.draining or old.cordoned or old.draining):
        return []
    if not (policy.cordoned or policy.draining):
        return [pb.MetadataRecord(node_policy=pb.NodePolicyRecord(node_id=node_id))]
    return [pb.MetadataRecord(node_policy=policy.to_pb(node_id))]
