"""Produce flights keep their order in every partition they share."""

from __future__ import annotations

from penstock_core.ids import NO_NODE, NodeId, TopicId, TopicPartition
from penstock_gateway.routing.flight import InFlight
from penstock_gateway.routing.partition_lines import PartitionLines
from penstock_kafka.wire.apis import OnLoss

T = TopicId(b"t" * 16)
N1, N2 = NodeId(1), NodeId(2)


def flight(seq: int, *partitions: int, on_loss: OnLoss = OnLoss.MAYBE_WRITTEN) -> InFlight[str]:
    keys = [TopicPartition(T, p) for p in partitions]
    made = InFlight(on_loss, keys, str(seq), 100, 1_000, 1_000, lambda _: ())
    made.seq = seq
    return made


def test_none_goes_before_an_earlier_one_that_is_held() -> None:
    lines: PartitionLines[str] = PartitionLines()
    first, second, other = flight(1, 0, 1), flight(2, 1), flight(3, 2)
    lines.hold(first)
    assert not lines.may_go(second, N1)
    assert lines.may_go(other, N1)
    assert lines.may_go(first, N1), "it is not behind itself"
    lines.release(first)
    assert lines.may_go(second, N1)


def test_those_that_are_held_stand_in_the_order_of_arrival_whenever_they_came_to_be_held() -> None:
    lines: PartitionLines[str] = PartitionLines()
    early, late = flight(1, 0), flight(2, 0)
    lines.hold(late)
    lines.hold(early)
    assert lines.held(TopicPartition(T, 0)) == [early, late]


def test_a_partition_is_out_at_one_node_at_a_time() -> None:
    lines: PartitionLines[str] = PartitionLines()
    first, second = flight(1, 0), flight(2, 0)
    lines.go_out(first, N1)
    assert lines.node_of(TopicPartition(T, 0)) == N1
    assert lines.may_go(second, N1)
    assert not lines.may_go(second, N2)
    lines.come_back(first)
    assert lines.may_go(second, N2)


def test_a_partition_without_flights_has_no_line() -> None:
    lines: PartitionLines[str] = PartitionLines()
    one = flight(1, 0, 1)
    lines.go_out(one, N1)
    lines.come_back(one)
    lines.hold(one)
    lines.release(one)
    assert not lines
    assert lines.node_of(TopicPartition(T, 0)) == NO_NODE


def test_what_has_no_order_stands_in_no_line() -> None:
    lines: PartitionLines[str] = PartitionLines()
    for on_loss in (OnLoss.ASK_CLIENT, OnLoss.ASK_AGAIN):
        lines.hold(flight(1, 0))
        fetch = flight(2, 0, on_loss=on_loss)
        assert lines.may_go(fetch, N1)
        lines.go_out(fetch, N1)
        assert lines.node_of(TopicPartition(T, 0)) == NO_NODE
