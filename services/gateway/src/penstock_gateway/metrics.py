"""What the gateway counts beside its listeners' own counters (`penstock_kafka_*`).

Plain integers that the hot path adds to; Prometheus samples are made when somebody
scrapes. Labels are names of ours, never anything that a client sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock_frontend.listener.metrics import KafkaMetrics, api_name
from penstock_kafka.wire.apis import ApiKey
from penstock_runtime.plain_histogram import PlainHistogram, histogram_family
from penstock_runtime.tracing import Span

HOPS: Final = ("queue", "node", "answer")
OTHER_API: Final = "other"
_API_NAMES: Final = {
    int(key): api_name(key)
    for key in (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.OFFSET_COMMIT, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT)
}
_NAMED: Final = tuple(_API_NAMES.values())
"""As storage nodes name them in penstock_node_request_phase_seconds."""


class HopTimes(Protocol):
    """When a relayed request came from one part of its way to the next (see `relay.request`)."""

    arrived_s: float
    handed_s: float
    back_s: float
    trace: Span | None


class GatewayMetrics(Collector):
    """Counters of one gateway; `kafka` are those of its listeners."""

    def __init__(
        self, kafka: KafkaMetrics, contact_age_ms: Callable[[], int], clock_s: Callable[[], float]
    ) -> None:
        self.kafka = kafka
        self.clock_s = clock_s
        self._contact_age_ms = contact_age_ms
        self.in_flight: Callable[[], int] = lambda: 0
        self.client_relays = 0
        self.streams = 0
        self.streams_lost = 0
        self.reroutes = 0
        self.to_nodes_bytes = 0
        self.to_clients_bytes = 0
        self.moved: Counter[int] = Counter()
        """By API: request parts answered here in their leader's place."""
        self.native_calls: Counter[tuple[str, str]] = Counter()
        """By method and status of the native API."""
        self._hops = {api: {hop: PlainHistogram() for hop in HOPS} for api in (*_NAMED, OTHER_API)}
        self._native_s: dict[str, PlainHistogram] = {}

    def observe_hops(self, api_key: int, times: HopTimes) -> None:
        """A relayed request was answered, and its answer written just now."""
        if times.handed_s and times.back_s:
            hops = self._hops[_API_NAMES.get(api_key, OTHER_API)]
            hops["queue"].observe(times.handed_s - times.arrived_s)
            hops["node"].observe(times.back_s - times.handed_s)
            hops["answer"].observe(self.clock_s() - times.back_s)
        if times.trace is not None:
            times.trace.end(self.clock_s())

    def observe_native(self, method: str, seconds: float) -> None:
        """A call of the native API with one answer is over."""
        histogram = self._native_s.get(method)
        if histogram is None:
            histogram = self._native_s[method] = PlainHistogram()
        histogram.observe(seconds)

    def collect(self) -> Iterable[Metric]:
        """Samples for Prometheus."""
        for name, text, value in (
            ("in_flight_requests", "Relayed requests not answered yet.", self.in_flight()),
            ("relay_sessions", "Clients with a relay to storage nodes.", self.client_relays),
            ("forward_streams", "Open streams to storage nodes.", self.streams),
            (
                "metadata_age_seconds",
                "How old the gateway's news of the cluster may be.",
                self._contact_age_ms() / 1000,
            ),
        ):
            yield GaugeMetricFamily(f"penstock_gateway_{name}", text, value=value)
        for name, text, value in (
            ("streams_lost", "Streams to storage nodes that broke.", self.streams_lost),
            ("reroutes", "Partitions that a node refused and that were routed again.", self.reroutes),
        ):
            yield CounterMetricFamily(f"penstock_gateway_{name}", text, value=value)
        relayed = CounterMetricFamily(
            "penstock_gateway_relayed_bytes", "Bytes of Kafka frames relayed.", labels=["direction"]
        )
        relayed.add_metric(["to_nodes"], self.to_nodes_bytes)
        relayed.add_metric(["to_clients"], self.to_clients_bytes)
        yield relayed
        moved = CounterMetricFamily(
            "penstock_gateway_leader_moved_answers",
            "Parts of requests answered here because their leader moved, was lost or stayed away.",
            labels=["api"],
        )
        for api_key, count in self.moved.items():
            moved.add_metric([api_name(api_key)], count)
        yield moved
        calls = CounterMetricFamily(
            "penstock_gateway_native_calls", "Calls of the native API.", labels=["method", "status"]
        )
        for (method, status), count in self.native_calls.items():
            calls.add_metric([method, status], count)
        yield calls
        yield histogram_family(
            "penstock_gateway_hop_seconds",
            "The parts of a relayed request's time: queue (read whole to handed to the node's stream), node (to the"
            " last byte back), answer (to written to the client).",
            ("api", "hop"),
            [
                ((api, hop), each)
                for api, hops in self._hops.items()
                for hop, each in hops.items()
                if each.count
            ],
        )
        yield histogram_family(
            "penstock_gateway_native_seconds",
            "Time of a call of the native API, of those with one answer.",
            ("method",),
            [((method,), histogram) for method, histogram in self._native_s.items()],
        )
