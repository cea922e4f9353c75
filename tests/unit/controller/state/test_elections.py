"""Elections while the leader lives: preferred leaders, elections by hand."""

from __future__ import annotations

import pytest

from penstock_controller.state import elections
from penstock_core.errors import ErrorCode
from penstock_core.ids import NO_NODE, NodeId, TopicPartition
from penstock_proto.v1 import controller_pb2 as api
from unit.controller.state.test_nodes import Cluster
from unit.controller.state.test_reassignments import TOPIC_ID, context, ids, image, partition


def test_preferred_leaders_come_back() -> None:
    cluster = Cluster()
    cluster.up(1, 2, 3)
    cluster.create(assignments=[[1, 2, 3], [1, 3, 2], [2, 1, 3]])
    cluster.fence(1)
    cluster.up(1)
    assert elections.elect_preferred(cluster.context, None, lambda _: True, 100).reply == 0
    cluster.propose([1, 2, 3])
    only = {TopicPartition(cluster.partition().topic_id, 1)}
    assert elections.elect_preferred(cluster.context, only, lambda _: True, 100).reply == 0
    assert elections.elect_preferred(cluster.context, None, lambda _: False, 100).reply == 0
    assert cluster.do(elections.elect_preferred(cluster.context, None, lambda _: True, 100)) == 1
    assert cluster.partition().leader == 1


@pytest.mark.parametrize("unclean", [False, True])
def test_elections_say_why_not(unclean: bool) -> None:
    of = image(
        partition(1, 2, leader=NodeId(2)),
        partition(1, 2),
        partition(4, 2, isr=ids(2), leader=NodeId(2)),
        partition(4, 5, isr=(), elr=ids(4), leader=NO_NODE),
        partition(4, isr=(), elr=ids(4), leader=NO_NODE),
        fenced=(4,),
    )
    wanted = [api.TopicPartitionId(topic_id=TOPIC_ID, partition=i) for i in (0, 1, 2, 3, 4, 9)]
    made = elections.elect_leaders(context(of), api.ElectLeadersRequest(partitions=wanted, unclean=unclean))
    codes = [r.error.code for r in made.reply.results]
    not_needed, not_there = ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if unclean:
        none = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        assert codes == [not_needed, not_needed, not_needed, 0, none, not_there]
    else:
        none = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        assert codes == [0, not_needed, none, none, none, not_there]
    assert made.reply.changed == 1
    everything = elections.elect_leaders(context(of), api.ElectLeadersRequest(unclean=unclean))
    assert [r.partition for r in everything.reply.results] == ([3, 4] if unclean else [0])
