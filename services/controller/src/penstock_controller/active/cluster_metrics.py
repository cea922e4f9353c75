"""Metrics of the cluster and of its operations: the active controller's, and of nobody else.

A scrape walks no partitions. Twice a second, where topics or settings changed, what changed is counted; more than a
moment's work goes in slices beside everything else, and a scrape meanwhile is told what the look before found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from penstock_controller.active.operations import Measured, Operations
from penstock_controller.state.operations.cluster_counts import (
    ClusterCounts,
    Counts,
    imbalance_ratio,
    node_states,
    sharing_nodes,
)
from penstock_controller.state.operations.reports import Reports
from penstock_core.ids import TopicId
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.operations import ENDED
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.turns import LoopTurns

LOOK_MS: Final = 500
_STEPS_AT_ONCE: Final = 5
"""Steps of a look that are done in the tick, which end most looks: below half a millisecond."""

_GAUGES: Final = {
    "cluster_topics": ("topics", "Topics."),
    "cluster_partitions": ("partitions", "Partitions."),
    "cluster_offline_partitions": ("offline", "Partitions without a leader."),
    "cluster_under_replicated_partitions": (
        "under_replicated",
        "Partitions with fewer replicas in sync than they have; those that a move adds do not count yet.",
    ),
    "cluster_under_min_isr_partitions": ("under_min_isr", "Partitions that take no acks=all."),
    "cluster_at_min_isr_partitions": (
        "at_min_isr",
        "Partitions with just the in-sync replicas that acks=all needs.",
    ),
    "cluster_not_preferred_partitions": (
        "not_preferred",
        "Partitions that their first replica does not lead.",
    ),
    "cluster_reassigning_partitions": ("reassigning", "Partitions whose replicas are being moved."),
    "cluster_domain_unsafe_partitions": (
        "domain_unsafe",
        "Partitions that the loss of one failure domain leaves without enough replicas.",
    ),
}
"""Name -> field of Counts, help."""
_STATES: Final = {
    number: name.removeprefix("OPERATION_STATE_").lower() for name, number in pb.OperationState.items()
}


class ClusterMetrics:
    """Of one controller; there is something to tell from the first look in a term to the term's end."""

    def __init__(self, lifecycle: Lifecycle, operations: Operations) -> None:
        self._lifecycle = lifecycle
        self._operations = operations
        self._counts: ClusterCounts | None = None
        """None while this controller is not the active one."""
        self._image = MetadataImage()
        self._next_look_ms = 0
        self._unclean_count = 0

    def applied(self, old: MetadataImage, records: Iterable[pb.MetadataRecord]) -> None:
        """Records were applied to `old`; counted while this controller is the active one."""
        if self._counts is None:
            return
        for record in records:
            if record.WhichOneof("record") == "partition" and record.partition.recovering:
                before = old.partition(TopicId(record.partition.topic_id), record.partition.partition)
                if before is not None and not before.recovering:
                    self._unclean_count += 1

    def begin(self, image: MetadataImage) -> None:
        """A term as the active controller begins."""
        self._counts = ClusterCounts()
        self._image = image
        self._next_look_ms = 0

    def end(self) -> None:
        """Another controller tells from now on."""
        self._counts = None
        self._image = MetadataImage()

    def tick(self, image: MetadataImage, now_ms: int) -> None:
        """While active: look at what changed when it is time."""
        self._image = image
        counts = self._counts
        if counts is None or counts.is_looking or now_ms < self._next_look_ms or not counts.is_behind(image):
            return
        self._next_look_ms = now_ms + LOOK_MS
        look = counts.update_steps(image)
        for _ in range(_STEPS_AT_ONCE):
            if next(look, self) is self:
                return
        rest = LoopTurns.of(self._lifecycle).run(look, at_once=False)
        self._lifecycle.create_task(rest, "counts of the cluster")

    # --- a scrape ---------------------------------------------------------------------------

    def families(self) -> Iterator[Metric]:
        """Everything, as Prometheus wants it; nothing on a controller that is not active."""
        if self._counts is None or self._counts.counts is None:
            return
        counts, image = self._counts.counts, self._image
        for name, (field, text) in _GAUGES.items():
            yield GaugeMetricFamily(f"penstock_{name}", text, value=getattr(counts, field))
        nodes = GaugeMetricFamily(
            "penstock_cluster_nodes", "Storage nodes by the gravest that is so.", labels=("state",)
        )
        for state, number in node_states(image).items():
            nodes.add_metric((state,), number)
        yield nodes
        yield CounterMetricFamily(
            "penstock_cluster_unclean_elections",
            "Partitions that got a leader that may lack acknowledged records, while this controller was active.",
            value=self._unclean_count,
        )
        yield from _imbalance(image, counts, self._operations.reports)
        operations = GaugeMetricFamily(
            "penstock_operations",
            "Operations that the metadata knows, also of those that have ended.",
            labels=("state",),
        )
        by_state = Counter(record.state for record in image.operations.operations.values())
        for number, state in _STATES.items():
            operations.add_metric((state,), by_state[number])
        yield operations
        yield from _progress([each for each in self._operations.measured if _goes_on(image, each.record)])


def _goes_on(image: MetadataImage, record: pb.OperationRecord) -> bool:
    now = image.operations.operations.get(record.operation_id)
    return now is not None and now.state not in ENDED


def _imbalance(image: MetadataImage, counts: Counts, reports: Reports) -> Iterator[Metric]:
    node_ids = sharing_nodes(image)
    said = "of the node with most over the mean, less 1; of nodes that are up and not cordoned or drained."
    for name, what, held in (
        ("penstock_cluster_replica_imbalance_ratio", "Replicas", [counts.replicas[n] for n in node_ids]),
        ("penstock_cluster_leader_imbalance_ratio", "Leaders", [counts.leaders[n] for n in node_ids]),
    ):
        yield GaugeMetricFamily(name, f"{what} {said}", value=imbalance_ratio(held))
    reported = [state.log_bytes for n in node_ids if (state := reports.node(n)) is not None]
    if len(reported) == len(node_ids):
        yield GaugeMetricFamily(
            "penstock_cluster_bytes_imbalance_ratio",
            f"Bytes of logs {said} Absent until all have told.",
            value=imbalance_ratio(reported),
        )


def _progress(measured: list[Measured]) -> Iterator[Metric]:
    labels = ("kind", "operation")
    ratio = GaugeMetricFamily(
        "penstock_operation_progress_ratio",
        "Of the bytes to copy, else of the moves, else of the steps, what is done; of operations that go on.",
        labels=labels,
    )
    eta = GaugeMetricFamily(
        "penstock_operation_eta_seconds",
        "Time that an operation still takes at its rate of now; absent while it is not known.",
        labels=labels,
    )
    moved = CounterMetricFamily(
        "penstock_operation_moved_bytes", "Bytes that an operation has copied.", labels=labels
    )
    limit = GaugeMetricFamily(
        "penstock_operation_limit_bytes_per_second",
        "What each node may copy now in each direction; 0 without bound.",
        labels=labels,
    )
    for each in measured:
        names = each.record.kind, str(each.record.operation_id)
        ratio.add_metric(names, _ratio(each.record, each.progress))
        if each.progress.HasField("eta_s"):
            eta.add_metric(names, each.progress.eta_s)
        moved.add_metric(names, each.moved_bytes)
        limit.add_metric(names, each.progress.limit_bytes_per_s)
    yield from (ratio, eta, moved, limit)


def _ratio(record: pb.OperationRecord, progress: api.OperationProgress) -> float:
    """As REST and `penstock operation` have it."""
    if progress.bytes_total:
        return min(1.0, progress.bytes_done / progress.bytes_total)
    if progress.moves_total:
        return min(1.0, (progress.moves_done + progress.moves_skipped) / progress.moves_total)
    if record.steps:
        left = (pb.OPERATION_STEP_STATE_TODO, pb.OPERATION_STEP_STATE_RUNNING)
        return sum(step.state not in left for step in record.steps) / len(record.steps)
    return 0.0


__all__ = ["ClusterMetrics"]
