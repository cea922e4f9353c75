"""Which nodes may be forgotten."""

from __future__ import annotations

from penstock_controller.state import nodes
from penstock_core.errors import ErrorCode
from penstock_core.ids import NodeId
from penstock_proto.v1 import controller_pb2 as api
from unit.controller.state.test_reassignments import context, image, partition


def test_a_node_is_forgotten_when_it_is_gone_and_holds_nothing() -> None:
    of = image(partition(1, 4), fenced=(4, 5))
    for node, code in (
        (9, ErrorCode.BROKER_ID_NOT_REGISTERED),
        (2, ErrorCode.POLICY_VIOLATION),
        (4, ErrorCode.POLICY_VIOLATION),
        (5, 0),
    ):
        made = nodes.unregister_node(context(of), api.UnregisterNodeRequest(node_id=node))
        assert made.reply.error.code == code
        if not code:
            assert NodeId(node) not in of.apply(made.records, of.version + 1).nodes
