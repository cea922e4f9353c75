"""Fetch from the nearest replica (KIP-392): which one a consumer had better read from.

A consumer that says its rack (`client.rack`) and came by a direct listener is sent to an in-sync
replica of that rack, if the leader stands in another one; there it reads up to what that
replica knows to be committed. Of a rack that is a path (`zone-a/host-3`) clients know the first level
alone. Never behind a gateway: a proxy's client cannot choose a node
(rule "A connection names no node"), and a relayed request has no listener.

A replica is named only where the client can reach it (it has a listener of the same name and security), it is
live, and it holds the offset asked for. Of several the one that is furthest along.

Source: ReplicaManager.findPreferredReadReplica and RackAwareReplicaSelector of Apache Kafka 4.3.
"""

from __future__ import annotations

from typing import Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId
from penstock_core.metadata.image import NodeImage
from penstock_core.racks import client_rack
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replica.registry import PartitionRegistry
from penstock_storage_node.replication.leadership import Leadership

NOBODY: Final = -1


def preferred_replica(
    registry: PartitionRegistry,
    partition: Partition,
    leadership: Leadership,
    rack: str,
    listener: str,
    offset: int,
) -> int:
    """Node id of the replica to read from instead of this leader; NOBODY to read here."""
    nodes = registry.image.nodes
    me = nodes.get(registry.node_id)
    near = client_rack(rack)
    if me is None or client_rack(me.rack) == near:
        return NOBODY
    best, best_end = NOBODY, -1
    for follower in leadership.followers.values():
        node = nodes.get(follower.node_id)
        if (
            node is not None
            and client_rack(node.rack) == near
            and node.active
            and _is_named(node, listener, me)
            and follower.node_id in leadership.isr
            and follower.log_start_offset <= offset <= follower.end_offset
            and (follower.end_offset, -follower.node_id) > (best_end, -best)
        ):
            best, best_end = NodeId(follower.node_id), follower.end_offset
    return best


def _is_named(node: NodeImage, listener: str, me: NodeImage) -> bool:
    """Whether this node's Metadata names that one to its clients (`DirectAddresses`): sent to one that they do not
    know, they come back here, again and again."""
    there, here = node.listeners.get(listener), me.listeners.get(listener)
    return there is not None and here is not None and there.security == here.security


def check_follower(partition: Partition, current_leader_epoch: int) -> None:
    """Raise unless this replica follows a leader, in the epoch that the consumer knows."""
    replica = partition.replica
    if replica.following is None:
        raise PenstockError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{replica.name} has no leader here just now: ask again"
        )
    if current_leader_epoch >= 0 and current_leader_epoch != replica.leader_epoch:
        fenced = current_leader_epoch < replica.leader_epoch
        raise PenstockError(
            ErrorCode.FENCED_LEADER_EPOCH if fenced else ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{replica.name}: leader epoch {current_leader_epoch} is not {replica.leader_epoch}, the one here",
        )
