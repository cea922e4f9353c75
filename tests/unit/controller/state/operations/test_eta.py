"""How long copying takes."""

from __future__ import annotations

import math

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


def test_what_is_written_meanwhile_has_to_be_copied_too() -> None:
    work = Work()
    work.add(NodeId(1), [NodeId(2)], 100, written_bytes_per_s=2)
    # bytes / (rate - w)
    assert work.seconds(10) == pytest.approx(100 / 8 + 1)
    work.add(NodeId(1), [NodeId(3)], 100, written_bytes_per_s=2)
    # Node 1 sends both side by side: they share its rate, and both are written.
    assert work.seconds(10) == pytest.approx(200 / 6 + 1)


def test_copies_that_can_only_go_one_by_one_take_their_time_and_some_never_end() -> None:
    work = Work()
    for n in range(4):
        work.add(NodeId(1), [NodeId(2 + n)], 10, written_bytes_per_s=3)
    assert work.seconds(10) == pytest.approx(4 * 10 / (7 / 4) + 1)
    work.add(NodeId(1), [NodeId(6)], 10, written_bytes_per_s=10)
    assert work.seconds(10) == math.inf
    nothing = Work()
    nothing.add(NodeId(1), [NodeId(2)], 0, written_bytes_per_s=100)
    assert nothing.seconds(10) == pytest.approx(1)


def test_auto_is_reckoned_at_what_is_known_of_producers() -> None:
    auto = meta.OperationThrottle(auto=True)
    assert rate_of(auto, 7) == 7
    assert rate_of(meta.OperationThrottle(), 7) == RATE_BYTES_PER_S_MAX
    assert rate_of(meta.OperationThrottle(bytes_per_s=5), 7) == 5


def test_auto_is_reckoned_at_the_most_it_may_become_where_nobody_produces() -> None:
    assert (
        rate_of(meta.OperationThrottle(auto=True))
        == rate_of(meta.OperationThrottle())
        == RATE_BYTES_PER_S_MAX
    )
    assert rate_of(meta.OperationThrottle(bytes_per_s=5)) == 5
