"""What a scrape is told of a node's partitions as a whole: how many are in trouble, how far followers are behind.

A scrape walks no partitions where there are many. Up to AT_ONCE are looked at when somebody scrapes; more are looked at
in slices beside everything else, while somebody scrapes, and each scrape is told what the last look has found, which
is a second old or so.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from penstock_core.ids import NodeId
from penstock_storage_node.replica.partition import Partition
from penstock_storage_node.replica.registry import PartitionRegistry

AT_ONCE: Final = 200
"""Partitions that are looked at while a scrape waits: about two milliseconds."""
LOOK_AGAIN_MS: Final = 1_000
_STEP: Final = 10
"""Partitions in a step of a look: about 0.1 ms."""

_GAUGES: Final = {
    "under_replicated_partitions": (
        "Led partitions with fewer replicas in sync than they have; those that a move adds do not count yet."
    ),
    "under_min_isr_partitions": "Led partitions that take no acks=all.",
    "at_min_isr_partitions": "Led partitions with just the in-sync replicas that acks=all needs.",
    "reassigning_partitions": "Led partitions whose replicas are being moved.",
    "waiting_produce_partitions": "Appends that wait for their acks.",
    "acked_unflushed_bytes": (
        "Bytes acknowledged and not yet flushed on as many disks as the ack speaks of (min.insync.replicas,"
        " or the leader's for acks=1); about."
    ),
    "dirty_logs": "Logs with data that no flush covers.",
    "undecided_partitions": (
        "Led partitions in which readers of committed records have to wait: their last stable offset is below the high "
        "watermark."
    ),
    "last_stable_offset_lag_records": (
        "How far the last stable offset is below the high watermark, in the led partition where it is furthest."
    ),
    "last_stable_offset_stalled_seconds": (
        "For how long the last stable offset of such a partition has not moved, where that is longest."
    ),
}


@dataclass(slots=True)
class PartitionCounts:
    """Of one look."""

    under_replicated_partitions: int = 0
    under_min_isr_partitions: int = 0
    at_min_isr_partitions: int = 0
    reassigning_partitions: int = 0
    waiting_produce_partitions: int = 0
    acked_unflushed_bytes: int = 0
    dirty_logs: int = 0
    undecided_partitions: int = 0
    last_stable_offset_lag_records: int = 0
    last_stable_offset_stalled_seconds: float = 0.0
    held_back: dict[Partition, tuple[int, int]] = field(default_factory=dict)
    """Last stable offset, and since when it was seen to stand there, where it is below the high watermark."""
    lag_bytes: dict[NodeId, int] = field(default_factory=dict)
    """By follower: the largest of its lags behind partitions led here."""
    lag_ms: dict[NodeId, int] = field(default_factory=dict)

    def add(
        self,
        registry: PartitionRegistry,
        partition: Partition,
        now_ms: int,
        before: Mapping[Partition, tuple[int, int]],
    ) -> None:
        """Count one of the node's partitions; `before`: those that were held back in the look before."""
        log = partition.log
        self.dirty_logs += log.has_unflushed
        led = partition.replica.leadership
        if led is None:
            return
        in_sync, least = len(led.isr), partition.replica.settings.min_insync_replicas
        self.under_min_isr_partitions += in_sync < least
        self.at_min_isr_partitions += in_sync == least
        known = registry.image.partition(*partition.key)
        if known is not None:
            self.under_replicated_partitions += in_sync < known.factor
            self.reassigning_partitions += known.reassigning
        self.waiting_produce_partitions += led.waiting_count
        self._add_transactions(partition, now_ms, before.get(partition))
        low, high = led.acked_unflushed()
        if low < high:
            self.acked_unflushed_bytes += log.bytes_between(low, high)
        log_end = log.log_end_offset
        for node_id, end_offset, lag_ms in led.lags(now_ms):
            behind = 0
            if end_offset < log_end:
                behind = log.bytes_between(max(end_offset, log.log_start_offset), log_end)
            self.lag_bytes[node_id] = max(self.lag_bytes.get(node_id, 0), behind)
            self.lag_ms[node_id] = max(self.lag_ms.get(node_id, 0), lag_ms)

    def _add_transactions(self, partition: Partition, now_ms: int, before: tuple[int, int] | None) -> None:
        high_watermark = partition.replica.high_watermark
        stable = partition.log.last_stable_offset(high_watermark)
        if stable >= high_watermark:
            return
        since_ms = before[1] if before is not None and before[0] == stable else now_ms
        self.held_back[partition] = stable, since_ms
        self.undecided_partitions += 1
        lag, stalled_s = high_watermark - stable, (now_ms - since_ms) / 1000
        self.last_stable_offset_lag_records = max(self.last_stable_offset_lag_records, lag)
        self.last_stable_offset_stalled_seconds = max(self.last_stable_offset_stalled_seconds, stalled_s)


class PartitionLook:
    """Of one node. Lives on the event loop."""

    def __init__(
        self,
        registry: PartitionRegistry,
        clock_ms: Callable[[], int],
        run: Callable[[Generator[None, None, None]], object],
    ) -> None:
        """`run` does a look in slices, beside everything else."""
        self._registry = registry
        self._clock_ms = clock_ms
        self._run = run
        self._found = PartitionCounts()
        self._is_looking = False
        self._looked_ms: int | None = None

    def families(self) -> Iterator[Metric]:
        """For a scrape."""
        partitions = self._registry.partitions
        if len(partitions) <= AT_ONCE:
            for _ in self._look(partitions.values()):
                pass
        elif not self._is_looking and self._is_due():
            self._is_looking = True
            self._run(self._look(list(partitions.values())))
        found = self._found
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"penstock_node_{name}", text, value=getattr(found, name))
        lag_bytes = GaugeMetricFamily(
            "penstock_node_replica_lag_bytes",
            "How many bytes a follower lacks of partitions led here, of that where it lacks most; about.",
            labels=("follower",),
        )
        lag_seconds = GaugeMetricFamily(
            "penstock_node_replica_lag_seconds",
            "Time since a follower last had all of a partition led here, of that where it is longest; 0 when it has.",
            labels=("follower",),
        )
        for node_id, size in found.lag_bytes.items():
            lag_bytes.add_metric((str(node_id),), size)
            lag_seconds.add_metric((str(node_id),), found.lag_ms[node_id] / 1000)
        yield from (lag_bytes, lag_seconds)

    def _is_due(self) -> bool:
        return self._looked_ms is None or self._clock_ms() - self._looked_ms >= LOOK_AGAIN_MS

    def _look(self, partitions: Iterable[Partition]) -> Generator[None, None, None]:
        try:
            counts, now_ms = PartitionCounts(), self._clock_ms()
            for number, partition in enumerate(partitions, 1):
                if not partition.closed:
                    counts.add(self._registry, partition, now_ms, self._found.held_back)
                if not number % _STEP:
                    yield
                    now_ms = self._clock_ms()
            self._found, self._looked_ms = counts, self._clock_ms()
        finally:
            self._is_looking = False


__all__ = ["AT_ONCE", "PartitionCounts", "PartitionLook"]
