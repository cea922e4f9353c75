"""How long copying takes."""

from __future__ import annotations

import pytest

from penstock_controller.state.operations.plans.eta import RATE_BYTES_PER_S_MAX, Work, rate_of
from penstock_core.ids import NO_NODE, NodeId
from penstock_proto.v1 import metadata_pb2 as meta


def test_the_busiest_node_and_direction_count() -> None:
    work = Work()
    work.add(NodeId(1), [NodeId(2)], 100)
    work.add(NodeId(1), [NodeId(3), NodeId(4)], 100)
    # Node 1 sends 300 bytes, each other one gets 100.
    assert work.seconds(10) == pytest.approx(30 + 1)
    work.add(NodeId(5), [NodeId(2)], 400)
    assert work.seconds(10) == pytest.approx(50 + 1)


def test_moves_beyond_the_window_of_a_node_wait_for_others() -> None:
    work = Work()
    for n in range(9):
        work.add(NodeId(1), [NodeId(2 + n)], 0)
    assert work.seconds(1) == pytest.approx(3)


def test_nothing_takes_no_time_and_nobody_is_no_node() -> None:
    work = Work()
    assert work.seconds(1) == 0
    work.add(NO_NODE, [NodeId(2)], 10)
    work.add(NO_NODE, [NodeId(3)], 10)
    assert work.seconds(10) == pytest.approx(1 + 1)


def test_auto_is_reckoned_at_the_most_it_may_become() -> None:
    assert (
        rate_of(meta.OperationThrottle(auto=True))
        == rate_of(meta.OperationThrottle())
        == RATE_BYTES_PER_S_MAX
    )
    assert rate_of(meta.OperationThrottle(bytes_per_s=5)) == 5
