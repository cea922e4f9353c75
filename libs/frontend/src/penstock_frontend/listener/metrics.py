"""Counters of the Kafka side of a process.

Plain integers that the hot path adds to, turned into Prometheus samples only when
somebody scrapes; a labelled prometheus_client counter costs several times as much.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock_core.errors import ErrorCode
from penstock_kafka.wire.apis import SPECS
from penstock_runtime.lifecycle import Lifecycle

LATENCY_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

_REGISTERED = "penstock_kafka_metrics"


def api_name(api_key: int) -> str:
    """`Produce` for 0; `unknown` for what no client should send."""
    spec = SPECS.get(api_key)
    return "unknown" if spec is None else spec.name


def error_name(code: int) -> str:
    """Kafka's name of an error code."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


class ApiStats:
    """Requests of one API."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_BUCKETS_S) + 1)
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count one request that took so long from frame to response."""
        self.buckets[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        self.seconds += seconds


class KafkaMetrics(Collector):
    """One per process role; `of(lifecycle)` finds or makes it."""

    def __init__(self) -> None:
        self.apis: dict[int, ApiStats] = {}
        self.errors: Counter[tuple[int, int]] = Counter()
        self.bad_frames: Counter[tuple[str, str]] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()
        self.connections: Counter[str] = Counter()
        self.received_bytes: Counter[str] = Counter()
        self.sent_bytes: Counter[str] = Counter()
        self.sign_ins: Counter[tuple[str, str, str]] = Counter()
        """By listener, mechanism and outcome."""
        self.throttled: Counter[str] = Counter()
        """Answers that told a client to wait, or requests that were not taken, by the quota's key."""
        self.throttled_ms: Counter[str] = Counter()
        self.quota_buckets: Callable[[], int] = lambda: 0
        """How many uses of quotas are followed."""
        self.certificate_ends_s: dict[str, Callable[[], float]] = {}
        """When the certificate of a listener ends, in s since 1970."""

    @classmethod
    def of(cls, lifecycle: Lifecycle) -> KafkaMetrics:
        """The counters of that role, registered on first use."""
        found = lifecycle.shared.get(_REGISTERED)
        if not isinstance(found, KafkaMetrics):
            found = lifecycle.shared[_REGISTERED] = cls()
            lifecycle.registry.register(found)
        return found

    def api(self, api_key: int) -> ApiStats:
        """Counters of one API; keys that no client should send share one."""
        stats = self.apis.get(api_key)
        if stats is None:
            known = api_key if api_key in SPECS else -1
            stats = self.apis.get(known)
            if stats is None:
                stats = self.apis[known] = ApiStats()
        return stats

    def count_error(self, api_key: int, code: int) -> None:
        """A response, or an item of one, carried `code`; 0 is not counted."""
        if code:
            self.errors[api_key, code] += 1

    def count_throttle(self, key: str, throttle_ms: int) -> None:
        """A client is made to wait for its quota of that key."""
        self.throttled[key] += 1
        self.throttled_ms[key] += throttle_ms

    def collect(self) -> Iterable[Metric]:
        """Samples for Prometheus."""
        yield from self._requests()
        yield _by_reason(
            "penstock_kafka_bad_frames", "Connections closed for what they sent.", self.bad_frames
        )
        yield _by_reason("penstock_kafka_connections_refused", "Connections not taken.", self.refused)
        yield self._sign_ins()
        yield from self._throttles()
        yield self._certificate_ends()
        yield from self._traffic()

    def _requests(self) -> Iterable[Metric]:
        seconds = HistogramMetricFamily(
            "penstock_kafka_request_seconds",
            "Time from a whole request to its response, by API.",
            labels=["api"],
        )
        for key, stats in self.apis.items():
            total = 0
            buckets = []
            for bound, count in zip((*map(str, LATENCY_BUCKETS_S), "+Inf"), stats.buckets, strict=True):
                total += count
                buckets.append((bound, float(total)))
            seconds.add_metric([api_name(key)], buckets, stats.seconds)
        yield seconds
        errors = CounterMetricFamily(
            "penstock_kafka_errors", "Errors in responses, by API and code.", labels=["api", "code"]
        )
        for (key, code), count in self.errors.items():
            errors.add_metric([api_name(key), error_name(code)], count)
        yield errors

    def _sign_ins(self) -> Metric:
        sign_ins = CounterMetricFamily(
            "penstock_kafka_sign_ins",
            "Clients that signed in, or did not.",
            labels=["listener", "mechanism", "outcome"],
        )
        for labels, count in self.sign_ins.items():
            sign_ins.add_metric(labels, count)
        return sign_ins

    def _throttles(self) -> Iterable[Metric]:
        throttled = CounterMetricFamily(
            "penstock_kafka_throttled", "Times that a client was throttled for a quota.", labels=["quota"]
        )
        throttle_seconds = CounterMetricFamily(
            "penstock_kafka_throttle_seconds", "For how long clients were throttled.", labels=["quota"]
        )
        for quota, count in self.throttled.items():
            throttled.add_metric([quota], count)
            throttle_seconds.add_metric([quota], self.throttled_ms[quota] / 1000)
        yield throttled
        yield throttle_seconds
        buckets_followed = GaugeMetricFamily(
            "penstock_kafka_quota_buckets",
            "Users, client ids and addresses whose use of a quota is followed.",
        )
        buckets_followed.add_metric([], self.quota_buckets())
        yield buckets_followed

    def _certificate_ends(self) -> Metric:
        ends = GaugeMetricFamily(
            "penstock_kafka_certificate_expires_timestamp_seconds",
            "When the certificate of a listener ends, since 1970.",
            labels=["listener"],
        )
        for listener, end_s in self.certificate_ends_s.items():
            ends.add_metric([listener], end_s())
        return ends

    def _traffic(self) -> Iterable[Metric]:
        connections = GaugeMetricFamily(
            "penstock_kafka_connections", "Open connections.", labels=["listener"]
        )
        for listener, count in self.connections.items():
            connections.add_metric([listener], count)
        yield connections
        for name, text, counts in (
            ("penstock_kafka_received_bytes", "Bytes of requests.", self.received_bytes),
            ("penstock_kafka_sent_bytes", "Bytes of responses.", self.sent_bytes),
        ):
            family = CounterMetricFamily(name, text, labels=["listener"])
            for listener, count in counts.items():
                family.add_metric([listener], count)
            yield family


def _by_reason(name: str, text: str, counts: Counter[tuple[str, str]]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=["listener", "reason"])
    for (listener, reason), count in counts.items():
        family.add_metric([listener, reason], count)
    return family
