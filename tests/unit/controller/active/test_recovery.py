"""Recovery on the active controller: whom it waits for before it does what an operator says."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from penstock_controller.active.recovery import Recovery
from penstock_core.errors import ErrorCode
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import controller_pb2
from penstock_proto.v1 import operations_pb2 as api
from unit.controller.state.test_recovery import RESTORED, T, replica
from unit.core.metadata.test_image import cluster, node


def test_a_node_that_is_there_is_waited_for_though_it_may_not_serve_yet() -> None:
    """After an import nodes come one after another. Who is heard may be the one that is ahead."""
    restored = cluster()
    restored.cluster.restored_version = RESTORED
    known = [node(1, fenced=False), node(2, fenced=True), node(3, fenced=True)]
    image = MetadataImage.from_records([restored, *known], RESTORED + 10)
    alive = {1, 2}
    recovery = Recovery(SimpleNamespace(log=None), lambda n: n in alive)  # type: ignore[arg-type]
    worker: Any = SimpleNamespace(active=True, image=image)
    recovery.connect(worker)

    def tells(node_id: int, *replicas: api.UnknownReplica) -> None:
        report = api.NodeReport(
            unknown_replicas=replicas, first_of_unknown=True, last_of_unknown=True, unknown_version=RESTORED
        )
        beat = controller_pb2.NodeHeartbeat(node_id=node_id, node_epoch=1, report=report)
        recovery.heartbeat(beat)

    def offered() -> api.RecoverTopicsResponse:
        return asyncio.run(recovery.recover(api.RecoverTopicsRequest(dry_run=True)))

    tells(1, replica(T, 0, 4, 100))
    waiting = offered()
    assert waiting.error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert "storage node 2 " in waiting.error.message
    tells(2, replica(T, 0, 9, 500))
    found = offered()
    assert not found.error.code
    assert list(found.topics[0].partitions[0].replicas) == [2, 1], "node 2 is ahead"
    # One that is away is left out by the operator's word.
    assert NodeId(3) in image.nodes
