"""What a storage node counts: plain numbers on the hot path, read out at a scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

FLUSH_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

_COUNTERS = {
    "produce_requests": "Produce requests received.",
    "fetch_requests": "Fetch requests received.",
    "produced_bytes": "Bytes of record batches appended as leader.",
    "fetched_bytes": "Bytes of record batches sent to consumers.",
    "replicated_in_bytes": "Bytes of record batches taken over as follower.",
    "replicated_out_bytes": "Bytes of record batches sent to followers.",
    "rejected_batches": "Produced batches that were refused.",
    "duplicate_batches": "Batches that an idempotent producer sent again.",
    "write_jobs": "Write jobs done.",
    "write_failures": "Writes or flushes that failed.",
    "truncations": "Logs cut to follow their leader.",
    "truncations_below_high_watermark": "Logs cut below their high watermark (unclean election).",
    "isr_proposals": "ISR proposals sent to the controller.",
    "forward_streams": "Forward streams opened by gateways.",
    "forward_requests": "Kafka requests that came over Forward.",
    "range_bytes": "Bytes of record batches sent by FetchRange.",
}


class NodeMetrics:
    """Counters by attribute; gauges by function, set by whoever knows."""

    def __init__(self) -> None:
        self.produce_requests = 0
        self.fetch_requests = 0
        self.produced_bytes = 0
        self.fetched_bytes = 0
        self.replicated_in_bytes = 0
        self.replicated_out_bytes = 0
        self.rejected_batches = 0
        self.duplicate_batches = 0
        self.write_jobs = 0
        self.write_failures = 0
        self.truncations = 0
        self.truncations_below_high_watermark = 0
        self.isr_proposals = 0
        self.forward_streams = 0
        self.forward_requests = 0
        self.range_bytes = 0
        self._flush_counts = [0] * (len(FLUSH_BOUNDS_S) + 1)
        self._flush_sum_s = 0.0
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        """name -> (help, value)."""
        self.counters: dict[str, tuple[str, Callable[[], float]]] = {}

    def observe_write_job(self, seconds: float) -> None:
        """A write job (write and, where asked for, flush) took that long."""
        self.write_jobs += 1
        self._flush_counts[bisect_left(FLUSH_BOUNDS_S, seconds)] += 1
        self._flush_sum_s += seconds

    def register(self, registry: CollectorRegistry) -> None:
        """Show up in /metrics."""
        registry.register(_Collector(self))

    def families(self) -> Iterator[Metric]:
        """Everything, as Prometheus wants it."""
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"penstock_node_{name}", text, value=float(getattr(self, name)))
        for name, (text, value) in self.counters.items():
            yield CounterMetricFamily(f"penstock_node_{name}", text, value=value())
        for name, (text, value) in self.gauges.items():
            yield GaugeMetricFamily(f"penstock_node_{name}", text, value=value())
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*FLUSH_BOUNDS_S, float("inf")), self._flush_counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        yield HistogramMetricFamily(
            "penstock_node_write_job_seconds",
            "Time of a write job in the disk pool, from hand-in to result.",
            buckets=buckets,
            sum_value=self._flush_sum_s,
        )


class _Collector(Collector):
    def __init__(self, metrics: NodeMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.families()
