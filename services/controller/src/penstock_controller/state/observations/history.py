"""What storage nodes told of their load and their disks over the last hour: soft state of the active controller."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final, NamedTuple

from penstock_controller.state.operations.reports import Reports
from penstock_core.ids import NodeId

GRAIN_MS: Final = 60_000
"""One sample of a minute is kept for growth."""
HOUR_MS: Final = 3_600_000
RECENT_MS: Final = 60_000
"""Rates are over the last minute."""
SPAN_MIN_MS: Final = 3_000
"""Over less nothing is extrapolated."""


class Rates(NamedTuple):
    """Of clients, and of the event loop, over the last minute."""

    in_bytes_per_s: float
    out_bytes_per_s: float
    loop_busy_ratio: float


class _Sample(NamedTuple):
    time_ms: int
    node_epoch: int
    log_bytes: int
    received_bytes: int
    sent_bytes: int
    loop_cpu_ms: int


class NodeHistory:
    """Of one node. At most an hour of minutes, and a minute of reports."""

    def __init__(self) -> None:
        self._minutes: deque[_Sample] = deque()
        self._recent: deque[_Sample] = deque()

    @property
    def last_ms(self) -> int:
        """When the newest report came; -1 while there is none."""
        return self._recent[-1].time_ms if self._recent else -1

    def take(self, sample: _Sample) -> None:
        """The newest report."""
        if self._recent and self._recent[-1].node_epoch != sample.node_epoch:
            # What it counts began anew; its logs did not.
            self._recent.clear()
        self._recent.append(sample)
        # The last one that is older than the span stays: rates are over the whole of it.
        while len(self._recent) > 2 and self._recent[1].time_ms <= sample.time_ms - RECENT_MS:
            self._recent.popleft()
        if not self._minutes or sample.time_ms - self._minutes[-1].time_ms >= GRAIN_MS:
            self._minutes.append(sample)
        while self._minutes[0].time_ms < sample.time_ms - HOUR_MS:
            self._minutes.popleft()

    def growth_bytes_per_s(self) -> float | None:
        """How fast its logs grow: the line through the samples of the hour, which a segment that goes does not throw
        off as it would the difference of two. None while they are too near."""
        if not self._recent:
            return None
        newest = self._recent[-1]
        samples = [s for s in self._minutes if s.time_ms < newest.time_ms] + [newest]
        if newest.time_ms - samples[0].time_ms < SPAN_MIN_MS:
            return None
        count = len(samples)
        mean_s = sum((s.time_ms - newest.time_ms) / 1000 for s in samples) / count
        mean_bytes = sum(s.log_bytes for s in samples) / count
        square = product = 0.0
        for each in samples:
            off_s = (each.time_ms - newest.time_ms) / 1000 - mean_s
            square += off_s * off_s
            product += off_s * (each.log_bytes - mean_bytes)
        return product / square

    def rates(self) -> Rates | None:
        """None while there are no two reports of the same process far enough apart."""
        if len(self._recent) < 2:
            return None
        first, last = self._recent[0], self._recent[-1]
        span_ms = last.time_ms - first.time_ms
        if span_ms < SPAN_MIN_MS:
            return None
        span_s = span_ms / 1000
        return Rates(
            max(0, last.received_bytes - first.received_bytes) / span_s,
            max(0, last.sent_bytes - first.sent_bytes) / span_s,
            min(1.0, max(0, last.loop_cpu_ms - first.loop_cpu_ms) / span_ms),
        )


class Histories:
    """Of all nodes."""

    def __init__(self) -> None:
        self._nodes: dict[NodeId, NodeHistory] = {}

    def observe(self, reports: Reports, node_ids: Collection[NodeId]) -> None:
        """Take what is new. At least every few seconds; nodes that are gone are forgotten."""
        for gone in self._nodes.keys() - node_ids:
            del self._nodes[gone]
        for node_id, state in reports.nodes():
            if node_id not in node_ids:
                continue
            history = self._nodes.setdefault(node_id, NodeHistory())
            if state.reported_ms > history.last_ms:
                history.take(
                    _Sample(
                        state.reported_ms,
                        state.node_epoch,
                        state.log_bytes,
                        state.received_bytes,
                        state.sent_bytes,
                        state.loop_cpu_ms,
                    )
                )

    def node(self, node_id: NodeId) -> NodeHistory | None:
        """None while it told nothing."""
        return self._nodes.get(node_id)


__all__ = ["GRAIN_MS", "HOUR_MS", "RECENT_MS", "Histories", "NodeHistory", "Rates"]
