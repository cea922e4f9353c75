"""The order of Produce flights, partition by partition.

A flight that is queued at a node or sent to it is *out*; one that waits for a leader, a stream or its turn is
*held*. Per partition, flights are out at one node at a time, and none goes out before an earlier one that is held.
Flights whose order does not count stand in no line.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from penstock_core.ids import NO_NODE, NodeId, TopicPartition
from penstock_gateway.routing.flight import InFlight, P


@dataclass(slots=True)
class _Line(Generic[P]):
    """Flights of one partition: how many are out at which node, and who waits."""

    node_id: NodeId = NO_NODE
    out: int = 0
    held: list[InFlight[P]] = field(default_factory=list)
    """By `seq`."""


class PartitionLines(Generic[P]):
    """The lines of one client connection; a partition without flights has none."""

    def __init__(self) -> None:
        self._lines: dict[TopicPartition, _Line[P]] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def node_of(self, key: TopicPartition) -> NodeId:
        """Where the partition's flights are out, or were last; NO_NODE without a line."""
        line = self._lines.get(key)
        return NO_NODE if line is None else line.node_id

    def may_go(self, flight: InFlight[P], node_id: NodeId) -> bool:
        """Whether a flight overtakes none when it goes out to that node."""
        if not flight.is_ordered:
            return True
        for key in flight.partitions:
            line = self._lines.get(key)
            if line is not None and (
                (line.held and line.held[0].seq < flight.seq) or (line.out and line.node_id != node_id)
            ):
                return False
        return True

    def go_out(self, flight: InFlight[P], node_id: NodeId) -> None:
        """A flight that stands in no line is queued for that node."""
        if flight.is_ordered:
            for key in flight.partitions:
                line = self._lines.get(key)
                if line is None:
                    line = self._lines[key] = _Line()
                line.node_id = node_id
                line.out += 1

    def come_back(self, flight: InFlight[P]) -> None:
        """A flight is out no more."""
        if flight.is_ordered:
            for key in flight.partitions:
                line = self._lines[key]
                line.out -= 1
                self._tidy(key, line)

    def hold(self, flight: InFlight[P]) -> None:
        """A flight waits, behind the earlier ones."""
        if flight.is_ordered:
            for key in flight.partitions:
                insort(self._lines.setdefault(key, _Line()).held, flight, key=_seq)

    def release(self, flight: InFlight[P]) -> None:
        """A flight waits no more."""
        if flight.is_ordered:
            for key in flight.partitions:
                line = self._lines[key]
                line.held.remove(flight)
                self._tidy(key, line)

    def held(self, key: TopicPartition) -> Sequence[InFlight[P]]:
        """Those that wait there, by their order; a list that later changes leave alone."""
        line = self._lines.get(key)
        return list(line.held) if line is not None and line.held else ()

    def _tidy(self, key: TopicPartition, line: _Line[P]) -> None:
        if not line.out and not line.held:
            self._lines.pop(key, None)


def _seq(flight: InFlight[Any]) -> int:
    return flight.seq
