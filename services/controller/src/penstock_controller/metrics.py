"""Metrics of a controller."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.registry import Collector

from penstock_controller.quorum import Applied, QuorumMeters
from penstock_core.metadata import MetadataImage

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5)


class ControllerMetrics:
    """All of them, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"penstock_controller_{name}", text, registry=registry)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"penstock_controller_{name}", text, registry=registry)

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(f"penstock_controller_{name}_seconds", text, registry=registry, buckets=_SECONDS)

        self.families_by_part: list[Callable[[], Iterator[Metric]]] = []
        """Metrics with labels, or that are not always there, of whoever knows them."""
        registry.register(_Parts(self.families_by_part))
        self.version = gauge("metadata_version", "Metadata version applied here.")
        self.is_active = gauge("is_active", "1 on the active controller.")
        self.nodes_fenced = gauge("nodes_fenced", "Registered storage nodes that are fenced.")
        self.nodes = gauge("nodes", "Registered storage nodes.")
        self.gateways = gauge("gateways", "Live gateways.")
        self.watchers = gauge("watchers", "Metadata streams open here.")
        self.commands = counter("commands_applied", "Metadata commands applied here.")
        self.records = counter("records_applied", "Metadata records applied here.")
        self.elections = counter("leader_elections", "Partition leader changes applied here.")
        self.bad_frames = counter(
            "raft_bad_frames", "Raft connections closed for bytes that were no message."
        )
        self.command_queue = gauge("command_queue", "Requests that wait to become part of a command.")
        self.sessions_lost = Counter(
            "penstock_controller_sessions_lost",
            "Nodes and gateways whose session this controller ended while it was the active one, and why.",
            ["kind", "reason"],
            registry=registry,
        )
        for kind in ("node", "gateway"):
            for reason in ("silent", "refused", "disk", "left"):
                self.sessions_lost.labels(kind, reason)
        self.snapshot_s = seconds("snapshot", "Time to write a snapshot.")
        self.journal_sync_s = seconds(
            "journal_sync", "Time to write and flush one block of the Raft journal."
        )
        self.commit_s = seconds("commit", "Time from a command's proposal to its application here.")

    def meters(self, on_bad_frame: Callable[[str], None] = lambda _: None) -> QuorumMeters:
        """For the quorum's threads; prometheus metrics are thread-safe, and `on_bad_frame` has to be."""

        def bad_frame(reason: str) -> None:
            self.bad_frames.inc()
            on_bad_frame(reason)

        return QuorumMeters(self.journal_sync_s.observe, self.snapshot_s.observe, bad_frame)

    def applied(self, _old: MetadataImage, event: Applied) -> None:
        """A command was applied to `_old`."""
        self.commands.inc()
        self.records.inc(len(event.records))
        self.elections.inc(event.leader_changes)

    def session_lost(self, kind: str, reason: str, *, left: bool) -> None:
        """A session is over. `reason`: as it is logged; `left`: it was leaving anyway."""
        if left or reason == "it is stopping":
            word = "left"
        elif reason == "connection refused":
            word = "refused"
        else:
            word = "disk" if reason.startswith("disk") else "silent"
        self.sessions_lost.labels(kind, word).inc()

    def follow(
        self,
        image: Callable[[], MetadataImage],
        watchers_count: Callable[[], int],
        waiting_count: Callable[[], int],
    ) -> None:
        """What a scrape is told of them is as they are then."""
        self.version.set_function(lambda: image().version)
        self.nodes.set_function(lambda: len(image().nodes))
        self.nodes_fenced.set_function(lambda: sum(n.fenced for n in image().nodes.values()))
        self.gateways.set_function(lambda: len(image().gateways))
        self.watchers.set_function(watchers_count)
        self.command_queue.set_function(waiting_count)


class _Parts(Collector):
    def __init__(self, parts: list[Callable[[], Iterator[Metric]]]) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Metric]:
        for part in self._parts:
            yield from part()
