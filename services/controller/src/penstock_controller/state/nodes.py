"""Registration, fencing, unfencing, draining and removal of storage nodes.

Fencing takes the node out of every ISR and moves its leadership in the same command.
A partition's last ISR member goes to the ELR and may lead again when it is back, so a
cluster whose nodes were all killed at once comes back whole (rule "Coming back").

Source: ClusterControlManager and ReplicationControlManager of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from penstock_controller.state import causes, directories
from penstock_controller.state.features import refusal
from penstock_controller.state.generation import (
    Context,
    Generated,
    NextCommand,
    error_pb,
    make_error,
    partition_record,
    topic_settings,
)
from penstock_controller.state.partitions import Rules, change_partition, without_last_leader
from penstock_core.config.catalog import topic_config
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NO_NODE, NodeId, TopicId, TopicPartition
from penstock_core.metadata import MetadataImage, NodeImage, PartitionImage, TopicImage
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb

ANY_NODE_ID = -1


def is_active(image: MetadataImage, node_id: NodeId) -> bool:
    node = image.nodes.get(node_id)
    return node is not None and node.active


def is_full(image: MetadataImage, node_id: NodeId) -> bool:
    """Whether the node's disk has no space left, as it said last."""
    node = image.nodes.get(node_id)
    return node is not None and node.disk_full


def is_last_choice(image: MetadataImage, node_id: NodeId) -> bool:
    """Whether the node is to lead only what nobody else can: its disk is full, or an operator cordoned or drains it."""
    return is_full(image, node_id) or image.operations.is_cordoned(node_id)


def wanted_min_isr(image: MetadataImage, topic: str) -> int:
    """min.insync.replicas as it is set; 0 where it is not, and the replication factor decides."""
    wanted = topic_config(image, topic).get("min.insync.replicas", "").strip()
    return int(wanted) if wanted.isdecimal() else 0


def rules_for(
    image: MetadataImage, topic: TopicImage, active: Callable[[NodeId], bool] | None = None
) -> Rules:
    return Rules(
        active=active or (lambda node_id: is_active(image, node_id)),
        min_isr=wanted_min_isr(image, topic.name),
        unclean=topic_settings(image, topic).unclean_leader_election_enable,
        last_choice=lambda node_id: is_last_choice(image, node_id),
    )


Records = Iterator[pb.MetadataRecord | None]
"""Records one at a time, None where there is nothing but a while has passed; see Generated."""

SCAN_COUNT = 256
"""Partitions looked at between two chances for others to run (about 0.1 ms)."""


def partitions_of(image: MetadataImage, node_id: NodeId) -> Iterator[tuple[TopicImage, PartitionImage]]:
    """Every partition that is assigned to the node."""
    for found in scan_partitions_of(image, node_id):
        if found is not None:
            yield found


def scan_partitions_of(
    image: MetadataImage, node_id: NodeId
) -> Iterator[tuple[TopicImage, PartitionImage] | None]:
    """The same, with a None after every SCAN_COUNT partitions."""
    seen = 0
    for topic in image.topics.values():
        for partition in topic.partitions.values():
            if node_id in partition.replicas:
                yield topic, partition
            seen += 1
            if seen % SCAN_COUNT == 0:
                yield None


def _changes(
    image: MetadataImage,
    node_id: NodeId,
    active: Callable[[NodeId], bool],
    change: Callable[[TopicImage, PartitionImage, Rules], PartitionImage | None],
) -> Records:
    """Records of `change` over the node's partitions; None of it leaves one as it is."""
    rules: tuple[TopicImage | None, Rules | None] = (None, None)
    for found in scan_partitions_of(image, node_id):
        if found is None:
            yield None
            continue
        topic, partition = found
        if rules[0] is not topic or rules[1] is None:
            # Once a topic: its settings are parsed for it.
            rules = (topic, rules_for(image, topic, active))
        new = change(topic, partition, rules[1])  # type: ignore[arg-type]
        if new is not None:
            yield partition_record(new)


# --- registration ------------------------------------------------------------------


def register_node(ctx: Context, request: api.RegisterNodeRequest) -> Generated[api.RegisterNodeResponse]:
    """Grant a node id and an epoch. The node starts fenced, out of every ISR but where it is the last."""
    image = ctx.image
    try:
        _check_cluster(image, request.cluster_id)
        node_id = _grant_id(ctx, request)
    except PenstockError as error:
        refused = api.RegisterNodeResponse(error=make_error(error.code, error.message))
        retired = directories.retired(image, request.directory_id)
        # One whose node goes on with another directory is not told to empty itself: who found it may want a look.
        if retired is not None and not retired.replaced_by:
            refused.retired_by_operation, refused.version = retired.operation_id, image.version
        return Generated(refused)
    if (old_build := refusal(image, request.process)) is not None:
        return Generated(api.RegisterNodeResponse(error=old_build))
    old = image.nodes.get(node_id)
    if old is not None and old.node_epoch == ctx.version:
        raise NextCommand
    node = pb.NodeRecord(
        node_id=node_id,
        directory_id=request.directory_id,
        node_epoch=ctx.version,
        process=request.process,
        rack=request.rack,
        grpc=request.grpc,
        listeners=request.listeners,
        apis=request.apis,
        fenced=True,
        http=request.http,
        settings=request.settings,
    )
    reply = api.RegisterNodeResponse(
        node_id=node_id, node_epoch=ctx.version, cluster_id=image.cluster_id, version=ctx.version
    )
    new_directory = old is not None and old.directory_id != request.directory_id
    lost = None if old is None else _lost_by(image, old, request)
    gone = {TopicPartition(TopicId(d.topic_id), d.partition) for d in request.gone}
    further = None
    if lost is not None:
        further = _after_return(
            image, node_id, lost, lambda partition: new_directory or partition.key in gone
        )
    why = causes.of_registration(node_id, old is not None, new_directory, request)
    records = [pb.MetadataRecord(node=node), *directories.came_with(ctx, node_id, request.directory_id)]
    return Generated(reply, records, further, why)


def _check_cluster(image: MetadataImage, cluster_id: bytes) -> None:
    if cluster_id and cluster_id != image.cluster_id:
        raise PenstockError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"the data directory belongs to cluster {cluster_id.hex()}, this is {image.cluster_id.hex()}; "
            "use a directory of this cluster or an empty one",
        )


def _grant_id(ctx: Context, request: api.RegisterNodeRequest) -> NodeId:
    nodes = ctx.image.nodes
    if len(request.directory_id) != 16:
        raise PenstockError(ErrorCode.INVALID_REQUEST, "directory_id is not 16 bytes")
    directories.check_not_retired(ctx.image, request.directory_id)
    owner = next((n for n in nodes.values() if n.directory_id == request.directory_id), None)
    if request.node_id == ANY_NODE_ID:
        if owner is not None:
            return owner.node_id
        # What a retired directory had is not given again: whoever remembers node 2 means that one.
        used = {r.node_id for r in directories.all_retired(ctx.image)} | nodes.keys()
        wanted = 1
        while wanted in used:
            wanted += 1
        return NodeId(wanted)
    node_id = NodeId(request.node_id)
    if node_id < 1:
        raise PenstockError(
            ErrorCode.INVALID_REQUEST, f"node_id is {node_id}; use 1 or more, or -1 for a free one"
        )
    if owner is not None and owner.node_id != node_id:
        raise PenstockError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"the data directory is that of node {owner.node_id}, not {node_id}; set node_id to {owner.node_id}",
        )
    old = nodes.get(node_id)
    if (
        old is not None
        and old.directory_id != request.directory_id
        and (not old.fenced or ctx.alive(node_id))
    ):
        raise PenstockError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"node id {node_id} is in use by a live node with another data directory; choose another node_id",
        )
    return node_id


def _lost_by(
    image: MetadataImage, old: NodeImage, request: api.RegisterNodeRequest
) -> Callable[[TopicImage, PartitionImage], bool]:
    """Which of its replicas lost acknowledged data."""
    new_directory = old.directory_id != request.directory_id
    damaged = {TopicPartition(TopicId(d.topic_id), d.partition) for d in request.damaged}
    durable: dict[TopicId, bool] = {}

    def lost(topic: TopicImage, partition: PartitionImage) -> bool:
        if new_directory or partition.key in damaged:
            return True
        if request.clean_shutdown:
            return False
        if topic.topic_id not in durable:
            durable[topic.topic_id] = topic_settings(image, topic).is_fsync
        return not durable[topic.topic_id]

    return lost


def _after_return(
    image: MetadataImage,
    node_id: NodeId,
    lost: Callable[[TopicImage, PartitionImage], bool],
    has_nothing: Callable[[PartitionImage], bool],
) -> Records:
    """Changes when a new process of a known node registers: fenced, less what it lost."""

    def active(other: NodeId) -> bool:
        return other != node_id and is_active(image, other)

    def change(topic: TopicImage, partition: PartitionImage, rules: Rules) -> PartitionImage | None:
        new = None
        if node_id in partition.isr or node_id in partition.elr:
            new = change_partition(
                partition,
                rules,
                isr=[n for n in partition.isr if n != node_id],
                lost=(node_id,) if lost(topic, partition) else (),
            )
        if not has_nothing(partition):
            return new
        emptied = without_last_leader(new or partition, node_id)
        if emptied is None or new is not None:
            return emptied or new
        return replace(emptied, partition_epoch=partition.partition_epoch + 1)

    return _changes(image, node_id, active, change)


def retired_by(image: MetadataImage, node_id: NodeId) -> int:
    """The last operation that retired a directory of a node that there is no more; 0 for none."""
    if node_id in image.nodes:
        return 0
    return max((r.operation_id for r in image.operations.retired.values() if r.node_id == node_id), default=0)


# --- sessions ------------------------------------------------------------------------


def fence_node(ctx: Context, node_id: NodeId, node_epoch: int, reason: str = "") -> Generated[bool]:
    """End a node's session: fenced, in no ISR, leads nothing. The reply says whether it was up; `reason` is history."""
    node = ctx.image.nodes.get(node_id)
    if node is None or node.node_epoch != node_epoch or node.fenced:
        return Generated(False)
    fenced = replace(node, fenced=True, in_controlled_shutdown=False)
    records = [pb.MetadataRecord(node=fenced.to_pb())]
    why = causes.cause("fence", f"node {node_id}", reason)
    return Generated(True, records, _without(ctx.image, node_id, keep_last=False), why)


def unfence_node(ctx: Context, node_id: NodeId, node_epoch: int) -> Generated[bool]:
    """Let a caught-up node serve, and elect it where nobody leads or the leader's disk is full."""
    node = ctx.image.nodes.get(node_id)
    if node is None or node.node_epoch != node_epoch or (not node.fenced and not node.in_controlled_shutdown):
        return Generated(False)
    up = replace(node, fenced=False, in_controlled_shutdown=False)

    def active(other: NodeId) -> bool:
        return other == node_id or is_active(ctx.image, other)

    def change(_topic: TopicImage, partition: PartitionImage, rules: Rules) -> PartitionImage | None:
        if ctx.image.restored_version and partition.unconfirmed:
            return None  # not by who comes first: see `recovery`
        wanting = partition.leader == NO_NODE or rules.last_choice(partition.leader)
        return change_partition(partition, rules) if wanting else None

    records = [pb.MetadataRecord(node=up.to_pb())]
    why = causes.cause("unfence", f"node {node_id}", "its stop was called off" if not node.fenced else "")
    return Generated(True, records, _changes(ctx.image, node_id, active, change), why)


def drain_node(
    ctx: Context, node_id: NodeId, node_epoch: int, *, disk_failed: bool = False
) -> Generated[bool]:
    """Begin a controlled shutdown: leadership and ISR membership go where others can take them."""
    node = ctx.image.nodes.get(node_id)
    if node is None or node.node_epoch != node_epoch or node.fenced or node.in_controlled_shutdown:
        return Generated(False)
    draining = replace(node, in_controlled_shutdown=True, disk_failed=disk_failed)
    records = [pb.MetadataRecord(node=draining.to_pb())]
    why = causes.of_drain(ctx.image, node_id, disk_failed)
    return Generated(True, records, _without(ctx.image, node_id, keep_last=True), why)


def note_space(ctx: Context, node_id: NodeId, node_epoch: int, *, disk_full: bool) -> Generated[bool]:
    """The node's disk is full, or has room again: full leaders give way to in-sync replicas with room.

    Only leaders change: the ISR, and with it what is acknowledged, is as it was.
    """
    node = ctx.image.nodes.get(node_id)
    if node is None or node.node_epoch != node_epoch or node.fenced or node.disk_full == disk_full:
        return Generated(False)
    record = pb.MetadataRecord(node=replace(node, disk_full=disk_full).to_pb())
    why = causes.cause("disk", f"node {node_id}", "full" if disk_full else "has room again")
    return Generated(True, [record], _full_leaders_give_way(ctx.after([record]).image, node_id), why)


def _full_leaders_give_way(image: MetadataImage, node_id: NodeId) -> Records:
    """Partitions of the node that are led from a full disk though another replica could take over."""

    def change(_topic: TopicImage, partition: PartitionImage, rules: Rules) -> PartitionImage | None:
        leader = partition.leader
        return change_partition(partition, rules) if leader != NO_NODE and rules.last_choice(leader) else None

    return _changes(image, node_id, lambda other: is_active(image, other), change)


def _without(image: MetadataImage, node_id: NodeId, *, keep_last: bool) -> Records:
    """Partition changes that take the node out; `keep_last` leaves those that nobody else can lead."""

    def active(other: NodeId) -> bool:
        return other != node_id and is_active(image, other)

    def change(_topic: TopicImage, partition: PartitionImage, rules: Rules) -> PartitionImage | None:
        if node_id not in partition.isr:
            return None
        others = [n for n in partition.isr if n != node_id]
        if keep_last and not any(active(n) for n in others):
            return None
        return change_partition(partition, rules, isr=others)

    return _changes(image, node_id, active, change)


def still_leads(image: MetadataImage, node_id: NodeId) -> bool:
    """Whether a draining node leads a partition that another ISR member could lead."""
    return any(
        partition.leader == node_id and any(n != node_id and is_active(image, n) for n in partition.isr)
        for _, partition in partitions_of(image, node_id)
    )


def harmed_by_leaving(image: MetadataImage, node_id: NodeId, leaving: Collection[NodeId]) -> list[str]:
    """Partitions, by name, that would fall below min ISR without the node, and might not a little later: a replica of
    theirs is away, and may come back.

    None where every other replica in sync belongs to a node that leaves too: then the whole cluster stops, and nobody
    would be served by a wait. None that is below min ISR already.
    """
    found = []
    rules: tuple[TopicImage | None, Rules | None] = (None, None)
    for topic, partition in partitions_of(image, node_id):
        others = [n for n in partition.isr if n != node_id and is_active(image, n)]
        settled = len(partition.replicas) - len(partition.adding_replicas)
        if node_id not in partition.isr or len(others) + 1 >= settled:
            continue
        if rules[0] is not topic or rules[1] is None:
            rules = (topic, rules_for(image, topic))
        needed = rules[1].effective_min_isr(partition)  # type: ignore[union-attr]
        if len(others) + 1 == needed and any(n not in leaving for n in others):
            found.append(f"{topic.name}-{partition.partition}")
    return found


# --- nodes that are gone -------------------------------------------------------------------


def unregister_node(
    ctx: Context, request: api.UnregisterNodeRequest
) -> Generated[api.UnregisterNodeResponse]:
    """Forget a node. Refused while it lives or holds replicas: what it has may be the only copy."""
    reply = api.UnregisterNodeResponse()
    try:
        _check_gone(ctx, NodeId(request.node_id))
    except PenstockError as error:
        reply.error.CopyFrom(error_pb(error))
        return Generated(reply)
    removed = pb.NodeRemovedRecord(node_id=request.node_id)
    why = causes.cause("remove", f"node {request.node_id}", principal=request.principal)
    return Generated(reply, [pb.MetadataRecord(node_removed=removed)], causes=why)


def _check_gone(ctx: Context, node_id: NodeId) -> None:
    node = ctx.image.nodes.get(node_id)
    if node is None:
        raise PenstockError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"no storage node has the id {node_id}")
    if not node.fenced or ctx.alive(node_id):
        raise PenstockError(
            ErrorCode.POLICY_VIOLATION, f"storage node {node_id} is running; stop it before it is forgotten"
        )
    held = [
        f"{topic.name}-{p.partition}"
        for topic in ctx.image.topics.values()
        for p in topic.partitions.values()
        if node_id in p.replicas
    ]
    if held:
        more = f" and {len(held) - 1} more" if len(held) > 1 else ""
        raise PenstockError(
            ErrorCode.POLICY_VIOLATION,
            f"storage node {node_id} holds {held[0]}{more}; `penstock node remove {node_id}` moves them first",
        )
