"""ISR proposals of leaders (KIP-497), checked against stale ones (KIP-841, KIP-903).

Source: ReplicationControlManager.validateAlterPartitionData of Apache Kafka 4.3.
"""

from __future__ import annotations

from penstock_controller.state import causes
from penstock_controller.state.generation import (
    Context,
    Generated,
    error_pb,
    make_error,
    partition_record,
)
from penstock_controller.state.nodes import rules_for
from penstock_controller.state.partitions import change_partition
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId, TopicId
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_proto.v1 import controller_pb2 as api

UNCHECKED_EPOCH = -1


def alter_partitions(
    ctx: Context, request: api.AlterPartitionsRequest
) -> Generated[api.AlterPartitionsResponse]:
    """Take each proposal that still fits; the reply holds the state of the partition after it."""
    node = ctx.image.nodes.get(NodeId(request.node_id))
    if node is None or node.node_epoch != request.node_epoch:
        message = (
            f"node {request.node_id} has no registration with epoch {request.node_epoch}; register again"
        )
        error = make_error(ErrorCode.STALE_BROKER_EPOCH, message)
        return Generated(api.AlterPartitionsResponse(error=error))
    reply = api.AlterPartitionsResponse()
    records = []
    # A partition may be named twice; the second proposal must see the first.
    changed: dict[tuple[bytes, int], PartitionImage] = {}
    names: list[str] = []
    taken: list[api.IsrProposal] = []
    for proposal in request.proposals:
        result = reply.results.add(topic_id=proposal.topic_id, partition=proposal.partition)
        try:
            new = _take(ctx.image, changed, node.node_id, proposal)
        except PenstockError as error:
            result.error.CopyFrom(error_pb(error))
            continue
        key = (proposal.topic_id, proposal.partition)
        old = changed.get(key) or ctx.image.partition(TopicId(proposal.topic_id), proposal.partition)
        if new is not None:
            changed[key] = new
            records.append(partition_record(new))
            names.append(f"{ctx.image.topics[new.topic_id].name}-{new.partition}")
            taken.append(proposal)
        state = new or old
        if state is not None and state.leader != node.node_id:
            result.error.CopyFrom(
                make_error(ErrorCode.NEW_LEADER_ELECTED, f"node {state.leader} leads the partition now")
            )
        elif state is not None:
            result.state.CopyFrom(state.to_pb())
    return Generated(reply, records, causes=causes.of_isr(names, taken, node.node_id))


def _take(
    image: MetadataImage,
    changed: dict[tuple[bytes, int], PartitionImage],
    node_id: NodeId,
    proposal: api.IsrProposal,
) -> PartitionImage | None:
    topic = image.topics.get(TopicId(proposal.topic_id))
    if topic is None:
        raise PenstockError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has id {proposal.topic_id.hex()}")
    old = changed.get((proposal.topic_id, proposal.partition)) or topic.partitions.get(proposal.partition)
    if old is None:
        raise PenstockError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name} has no partition {proposal.partition}"
        )
    name = f"{topic.name}-{proposal.partition}"
    _check_epochs(old, node_id, proposal, name)
    isr = _check_members(image, old, proposal, name)
    return change_partition(old, rules_for(image, topic), isr=isr, recovered=proposal.recovered)


def _check_epochs(old: PartitionImage, node_id: NodeId, proposal: api.IsrProposal, name: str) -> None:
    if proposal.leader_epoch > old.leader_epoch or proposal.partition_epoch > old.partition_epoch:
        raise PenstockError(
            ErrorCode.NOT_CONTROLLER, f"{name}: the proposal is newer than this controller's state"
        )
    if proposal.leader_epoch < old.leader_epoch:
        raise PenstockError(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"{name}: leader epoch {proposal.leader_epoch} is over, it is {old.leader_epoch} now",
        )
    if old.leader != node_id:
        raise PenstockError(ErrorCode.INVALID_REQUEST, f"{name}: node {node_id} is not its leader")
    if proposal.partition_epoch < old.partition_epoch:
        raise PenstockError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{name}: partition epoch {proposal.partition_epoch} is over, it is {old.partition_epoch} now",
        )


def _check_members(
    image: MetadataImage, old: PartitionImage, proposal: api.IsrProposal, name: str
) -> list[NodeId]:
    isr = [NodeId(m.node_id) for m in proposal.new_isr]
    if len(set(isr)) != len(isr) or not set(isr) <= set(old.replicas) or old.leader not in isr:
        raise PenstockError(
            ErrorCode.INVALID_REQUEST,
            f"{name}: ISR {isr} must name replicas of {list(old.replicas)}, each once, the leader among them",
        )
    if old.recovering and not proposal.recovered and len(isr) > 1:
        raise PenstockError(ErrorCode.INVALID_REQUEST, f"{name}: its leader has not recovered yet")
    for member in proposal.new_isr:
        node = image.nodes.get(NodeId(member.node_id))
        stale = (
            node is not None and member.node_epoch != UNCHECKED_EPOCH and member.node_epoch != node.node_epoch
        )
        # The leader itself may be draining: it shrinks its ISR until it is relieved.
        unfit = node is None or not (node.active or (node.node_id == old.leader and not node.fenced))
        if stale or unfit:
            raise PenstockError(
                ErrorCode.INELIGIBLE_REPLICA,
                f"{name}: node {member.node_id} is fenced, draining, or has registered again",
            )
    # Kept in the assignment's order, so that equal sets compare equal.
    return [n for n in old.replicas if n in isr]
