"""Lag of the groups that this node coordinates, as metrics: in records, and in seconds.

Seconds are how long the oldest record that is not committed has waited, of the partition where it has waited
longest; 0 where none waits. A group has one coordinator, so each group is told by one node.

Cheap: ends are asked for in bulk of the nodes that lead, at most once an interval, and only
while somebody scrapes. Bounded: a row is a group and a topic, at most SERIES_MAX of them, those
that are furthest behind; how many are left out is a metric of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock_core.ids import NodeId
from penstock_proto.v1 import storage_pb2 as pb
from penstock_storage_node.groups.host import GroupHost
from penstock_storage_node.replica.registry import PartitionRegistry
from penstock_storage_node.rpc.log_ends import POSITIONS_MAX, LogEnds

SERIES_MAX: Final = 500
"""Rows told: (group, topic)."""
PLACES_MAX: Final = 50_000
"""Committed offsets looked at in one round."""
IDLE_ROUNDS: Final = 4
"""Rounds after a scrape before the node stops asking."""

Row = tuple[str, str]
"""Group and topic."""


@dataclass(slots=True)
class Lag:
    """Of one group in one topic."""

    records: int = 0
    waiting_ms: int | None = None
    """Since when the oldest one waits, ms since 1970."""
    known: bool = True
    """Whether that is known where records wait."""

    def add(self, offset: int, answer: pb.PositionAnswer) -> None:
        """Count one partition."""
        waiting = max(0, answer.high_watermark - offset)
        self.records += waiting
        if answer.HasField("waiting_ms"):
            found = answer.waiting_ms
            self.waiting_ms = found if self.waiting_ms is None else min(self.waiting_ms, found)
        elif waiting:
            self.known = False

    def behind_s(self, wall_ms: int) -> float | None:
        """How long the oldest one has waited by now; None where no time is known."""
        if self.waiting_ms is not None:
            return max(0, wall_ms - self.waiting_ms) / 1000
        return 0.0 if self.known else None


class LagExporter(Collector):
    """Asks once an interval while it is scraped."""

    def __init__(
        self,
        registry: PartitionRegistry,
        groups: GroupHost,
        log_ends: LogEnds,
        interval_ms: int,
        clock_ms: Callable[[], int],
        wall_ms: Callable[[], int],
    ) -> None:
        self._wall_ms = wall_ms
        self._registry = registry
        self._groups = groups
        self._log_ends = log_ends
        self._interval_ms = interval_ms
        self._clock_ms = clock_ms
        self._scraped_ms: int | None = None
        self._scraped = asyncio.Event()
        self._rows: dict[Row, Lag] = {}
        self._left_out = 0

    def collect(self) -> Iterator[Metric]:
        """What was found last."""
        self._scraped_ms = self._clock_ms()
        self._scraped.set()
        records = GaugeMetricFamily(
            "penstock_group_lag_records",
            "Records between a group's commits and the ends.",
            labels=("group", "topic"),
        )
        seconds = GaugeMetricFamily(
            "penstock_group_lag_seconds",
            "How long the oldest record that is not committed has waited, of the partition with the longest.",
            labels=("group", "topic"),
        )
        wall_ms = self._wall_ms()
        for row, lag in self._rows.items():
            records.add_metric(row, lag.records)
            behind_s = lag.behind_s(wall_ms)
            if behind_s is not None:
                seconds.add_metric(row, behind_s)
        yield records
        yield seconds
        yield GaugeMetricFamily(
            "penstock_group_lag_left_out",
            "Groups and topics beyond the bound of told rows.",
            value=self._left_out,
        )

    async def run(self) -> None:
        """Go on for ever."""
        while True:
            await self._scraped.wait()
            await self.refresh()
            await asyncio.sleep(self._interval_ms / 1000)
            age_ms = self._clock_ms() - (self._scraped_ms or 0)
            if age_ms > IDLE_ROUNDS * self._interval_ms:
                self._scraped.clear()

    async def refresh(self) -> None:
        """One round."""
        by_leader, places, left_out = self._places()
        rows: dict[Row, Lag] = {}
        for leader, indexes in by_leader.items():
            for first in range(0, len(indexes), POSITIONS_MAX):
                some = indexes[first : first + POSITIONS_MAX]
                request = pb.PositionsRequest(positions=[places[i][2] for i in some])
                answers = await self._log_ends.ask(leader, request)
                for index, answer in zip(some, answers, strict=False):
                    group, topic, position = places[index]
                    if not answer.error.code:
                        rows.setdefault((group, topic), Lag()).add(position.offset, answer)
        chosen = sorted(rows, key=lambda row: (-rows[row].records, row))
        self._rows = {row: rows[row] for row in sorted(chosen[:SERIES_MAX])}
        self._left_out = left_out + len(chosen[SERIES_MAX:])

    def _places(self) -> tuple[dict[NodeId, list[int]], list[tuple[str, str, pb.Position]], int]:
        """Committed offsets by leader of their partition."""
        image = self._registry.image
        places: list[tuple[str, str, pb.Position]] = []
        by_leader: dict[NodeId, list[int]] = {}
        left_out = 0
        for shard in self._groups.shards():
            for group, offsets in shard.offsets.items():
                if len(places) + len(offsets) > PLACES_MAX:
                    left_out += 1
                    continue
                for (name, index), value in offsets.items():
                    topic = image.topic(name)
                    state = None if topic is None else topic.partitions.get(index)
                    if topic is None or state is None or state.leader not in image.nodes:
                        continue
                    by_leader.setdefault(state.leader, []).append(len(places))
                    position = pb.Position(topic_id=topic.topic_id, partition=index, offset=value.offset)
                    places.append((group, name, position))
        return by_leader, places, left_out
