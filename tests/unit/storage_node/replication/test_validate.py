"""`validate` of a replica: says nothing of one that is well, and names each thing that may not be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock_core.errors import InvariantBroken
from penstock_core.ids import NO_NODE, LeaderEpoch, NodeId
from penstock_storage_node.replication.leadership import IsrProposal
from penstock_storage_node.replication.replica import Change, PartitionReplica
from unit.storage_node.replication.test_leadership import STATE, Leader, Waiter


def leading() -> PartitionReplica:
    """Two records, of which the first is committed; a producer waits for the second."""
    leader = Leader()
    first = leader.append()
    leader.flush()
    for node in (2, 3):
        leader.term.on_follower_ack(NodeId(node), first, first, 0)
    leader.term.wait_all(leader.append(), 1000, Waiter())
    assert leader.replica.high_watermark == first
    return leader.replica


def following() -> PartitionReplica:
    """The same node, once another leads."""
    replica = leading()
    newer = replace(STATE, leader=NodeId(2), leader_epoch=LeaderEpoch(6), partition_epoch=8)
    assert replica.plan(newer, 0) is Change.FOLLOW
    return replica


def test_a_replica_that_is_well_passes() -> None:
    leading().validate()
    follower = following()
    follower.validate()
    follower.state.cuts_under_way = 1
    follower.state.high_watermark = follower.log.log_end_offset + 1  # until the cut is done
    follower.validate()


def _watermark_beyond_the_log(replica: PartitionReplica) -> None:
    replica.state.high_watermark = replica.log.log_end_offset + 1


def _too_many_cuts_ended(replica: PartitionReplica) -> None:
    replica.state.cuts_under_way = -1


def _flush_that_nobody_asks_for(replica: PartitionReplica) -> None:
    replica.state.wants_fsync = False


def _another_epoch(replica: PartitionReplica) -> None:
    replica.leader_epoch += 1


def _leads_what_another_is_to_lead(replica: PartitionReplica) -> None:
    replica.leader = NodeId(2)


def _follows_nobody(replica: PartitionReplica) -> None:
    assert replica.following is not None
    replica.following.leader = replica.leader = NO_NODE


def _follower_counts_written(replica: PartitionReplica) -> None:
    replica.state.fsync = False


def _own_follower(replica: PartitionReplica) -> None:
    followers = replica.require_leader().followers
    followers[replica.node_id] = followers[NodeId(2)]


def _proposal_of_another_epoch(replica: PartitionReplica) -> None:
    replica.require_leader().pending = IsrProposal((NodeId(1),), (-1,), partition_epoch=6)


def _flushed_beyond_the_end(replica: PartitionReplica) -> None:
    replica.require_leader().followers[NodeId(3)].flushed_offset += 5


def _producer_not_answered(replica: PartitionReplica) -> None:
    replica.state.high_watermark += 1


@pytest.mark.parametrize(
    ("make", "spoil", "says"),
    [
        (leading, _watermark_beyond_the_log, "above the log's end"),
        (following, _watermark_beyond_the_log, "above the log's end"),
        (following, _too_many_cuts_ended, "cuts are under way"),
        (following, _flush_that_nobody_asks_for, "a flush that nobody asks for"),
        (leading, _another_epoch, "is to lead epoch 6"),
        (leading, _leads_what_another_is_to_lead, "node 2 is to lead"),
        (following, _another_epoch, "leads epoch 7"),
        (following, _follows_nobody, "follows node -1"),
        (following, _follower_counts_written, "only a leader may put off"),
        (leading, _own_follower, "its own follower"),
        (leading, _proposal_of_another_epoch, "partition epoch 6 is pending in epoch 7"),
        (leading, _flushed_beyond_the_end, "node 3 has flushed 6, its log ends at 1"),
        (leading, _producer_not_answered, "a producer waits for offset 2, the high watermark is 2"),
    ],
)
def test_what_may_not_be_is_named(
    make: Callable[[], PartitionReplica], spoil: Callable[[PartitionReplica], None], says: str
) -> None:
    replica = make()
    spoil(replica)
    with pytest.raises(InvariantBroken, match=says):
        replica.validate()
