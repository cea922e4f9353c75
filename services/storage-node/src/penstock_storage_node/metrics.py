"""What a storage node counts: plain numbers on the hot path, read out at a scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from penstock_core.limits import PRODUCE_LATENCY_BOUNDS_S
from penstock_frontend.listener.metrics import error_name
from penstock_runtime.plain_histogram import PlainHistogram, histogram_family
from penstock_storage_node.disk.pool import FlushDone
from penstock_storage_node.topic_traffic import TopicTraffics

FLUSH_BYTES_BOUNDS = tuple(1024 * 4**power for power in range(9))
"""1 KiB to 64 MiB."""
FLUSH_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

_COUNTERS = {
    "produce_requests": "Produce requests received.",
    "fetch_requests": "Fetch requests received.",
    "produced_bytes": "Bytes of record batches appended as leader.",
    "fetched_bytes": "Bytes of record batches sent to consumers.",
    "replicated_in_bytes": "Bytes of record batches taken over as follower.",
    "replicated_out_bytes": "Bytes of record batches sent to followers.",
    "catch_up_out_bytes": "Those of them that went to replicas being rebuilt, by the catch-up lane.",
    "catch_up_in_bytes": "Bytes of record batches that came to replicas being rebuilt, by the catch-up lane.",
    "rejected_batches": "Produced batches that were refused.",
    "duplicate_batches": "Batches that an idempotent producer sent again.",
    "write_jobs": "Write jobs done.",
    "write_failures": "Writes or flushes that failed.",
    "damaged_segments": "Segments in which a read found what was not written.",
    "truncations": "Logs cut to follow their leader.",
    "truncations_below_high_watermark": "Logs cut below their high watermark (unclean election).",
    "isr_proposals": "ISR proposals sent to the controller.",
    "forward_streams": "Forward streams opened by gateways.",
    "forward_requests": "Kafka requests that came over Forward.",
    "range_bytes": "Bytes of record batches sent by FetchRange.",
}


FLUSH_KINDS = ("file", "filesystem")
REQUEST_APIS = ("Produce", "Fetch", "OffsetCommit", "JoinGroup", "Heartbeat", "other")


PHASES = ("queue", "local", "remote", "wait", "send")
"""Of a request: frame whole -> handler; -> written and flushed here, or read; -> acks of others; long polls, groups;
relayed answer ready -> taken by the transport."""


class NodeMetrics:
    """Counters by attribute; gauges by function, set by whoever knows."""

    def __init__(self) -> None:
        self.produce_requests = 0
        self.fetch_requests = 0
        self.produced_bytes = 0
        self.fetched_bytes = 0
        self.replicated_in_bytes = 0
        self.replicated_out_bytes = 0
        self.catch_up_out_bytes = 0
        self.catch_up_in_bytes = 0
        self.rejected_batches = 0
        self.duplicate_batches = 0
        self.write_jobs = 0
        self.write_failures = 0
        self.damaged_segments = 0
        self.truncations = 0
        self.truncations_below_high_watermark = 0
        self.isr_proposals = 0
        self.forward_streams = 0
        self.forward_requests = 0
        self.range_bytes = 0
        self._write_job_s = PlainHistogram(FLUSH_BOUNDS_S)
        self._flush_s = {kind: PlainHistogram(FLUSH_BOUNDS_S) for kind in FLUSH_KINDS}
        self._flush_bytes = {kind: PlainHistogram(FLUSH_BYTES_BOUNDS) for kind in FLUSH_KINDS}
        self._request_s = {
            (api, via): PlainHistogram(PRODUCE_LATENCY_BOUNDS_S)
            for api in REQUEST_APIS
            for via in ("direct", "forward")
        }
        self.phases = {
            api: {phase: PlainHistogram(PRODUCE_LATENCY_BOUNDS_S) for phase in PHASES} for api in REQUEST_APIS
        }
        """By API of REQUEST_APIS and PHASES: the parts of what `observe_request` is told."""
        self.errors: Counter[tuple[str, int]] = Counter()
        """By API of REQUEST_APIS and Kafka's code: items of requests that were answered with an error."""
        self.topics = TopicTraffics()
        self.produce_counts = [0] * (len(PRODUCE_LATENCY_BOUNDS_S) + 1)
        """acks=all Produce appended here, by how long its answer took (PRODUCE_LATENCY_BOUNDS_S, and beyond)."""
        self._flushes = {(kind, result): 0 for kind in FLUSH_KINDS for result in ("ok", "failed")}
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        """name -> (help, value)."""
        self.counters: dict[str, tuple[str, Callable[[], float]]] = {}
        self.families_by_part: list[Callable[[], Iterator[Metric]]] = []
        """Metrics with labels, of whoever knows them."""

    def observe_write_job(self, seconds: float) -> None:
        """A write job (write and, where asked for, flush) took that long."""
        self.write_jobs += 1
        self._write_job_s.observe(seconds)

    def observe_flush(self, flush: FlushDone) -> None:
        """A flush of one job's file or, grouped, of many jobs at once has ended."""
        kind = FLUSH_KINDS[flush.grouped]
        self._flushes[kind, "failed" if flush.failed else "ok"] += 1
        self._flush_s[kind].observe(flush.seconds)
        self._flush_bytes[kind].observe(flush.size_bytes)

    def observe_request(self, api: str, via: str, seconds: float, *, acks_all: bool) -> None:
        """A request of REQUEST_APIS was answered; `acks_all`: it was a Produce that waited for all acks."""
        self._request_s[api, via].observe(seconds)
        if acks_all:
            self.produce_counts[bisect_left(PRODUCE_LATENCY_BOUNDS_S, seconds)] += 1

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
        yield HistogramMetricFamily(
            "penstock_node_write_job_seconds",
            "Time of a write job in the disk pool, from hand-in to result.",
            buckets=self._write_job_s.buckets(),
            sum_value=self._write_job_s.sum,
        )
        flushes = CounterMetricFamily(
            "penstock_node_flushes",
            "Flushes of appended data: of one job's file, or of all that waited on the filesystem.",
            labels=("kind", "result"),
        )
        for labels, number in self._flushes.items():
            flushes.add_metric(labels, float(number))
        yield flushes
        for name, help_text, by_kind in (
            ("penstock_node_flush_seconds", "Time of a flush.", self._flush_s),
            ("penstock_node_flush_bytes", "Appended bytes that a flush was for.", self._flush_bytes),
        ):
            yield histogram_family(name, help_text, ("kind",), [((kind,), h) for kind, h in by_kind.items()])
        yield histogram_family(
            "penstock_node_request_seconds",
            "Time from a request's arrival to its answer, of requests to leaders, coordinators and nodes:"
            " from direct listeners, or forwarded by gateways.",
            ("api", "via"),
            self._request_s.items(),
        )
        yield histogram_family(
            "penstock_node_request_phase_seconds",
            "The parts of it: queue (frame whole to handler), local (to written and flushed, or read), remote (to the"
            " acks), wait (long polls, groups), send (a relayed answer, to taken by the transport).",
            ("api", "phase"),
            [
                ((api, phase), histogram)
                for api, by_phase in self.phases.items()
                for phase, histogram in by_phase.items()
                if histogram.count
            ],
        )
        errors = CounterMetricFamily(
            "penstock_node_request_errors",
            "Batches and partitions of requests that this node answered with an error, by API and code.",
            labels=("api", "code"),
        )
        for (api, code), count in self.errors.items():
            errors.add_metric((api, error_name(code)), count)
        yield errors
        yield from self.topics.families()
        for part in self.families_by_part:
            yield from part()


class _Collector(Collector):
    def __init__(self, metrics: NodeMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.families()
