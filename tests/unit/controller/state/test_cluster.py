"""The cluster's own record: it is founded once, and no producer id is given out twice."""

from __future__ import annotations

from penstock_controller.state import cluster as cluster_state
from penstock_proto.v1 import controller_pb2 as api
from unit.controller.state.test_nodes import Cluster


def test_producer_id_blocks_never_overlap() -> None:
    cluster = Cluster()
    blocks = []
    for _ in range(3):
        made = cluster_state.allocate_producer_ids(cluster.context, api.AllocateProducerIdsRequest(owner="x"))
        cluster.do(made)
        blocks.append((made.reply.first_producer_id, made.reply.count))
    assert blocks == [(0, 1000), (1000, 1000), (2000, 1000)]


def test_cluster_is_founded_once() -> None:
    cluster = Cluster()
    assert len(cluster.image.cluster_id) == 16
    assert not cluster_state.found_cluster(cluster.context, 1).records
