"""What a scrape is told of a node's parts, each read by a function when it is asked; nothing is kept here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock_storage_node.cluster.node_reporter import NodeReporter
from penstock_storage_node.disk.pool import DiskPool
from penstock_storage_node.disk.space import reserve_bytes
from penstock_storage_node.groups.host import GroupHost
from penstock_storage_node.metrics import NodeMetrics
from penstock_storage_node.replica.background import BackgroundJobs
from penstock_storage_node.replica.manager import ReplicaManager
from penstock_storage_node.rpc.replicate_follower import FollowerStreams

_ByFunction = dict[str, tuple[str, Callable[[], float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """Whose numbers they are."""

    manager: ReplicaManager
    pool: DiskPool
    links: FollowerStreams
    background: BackgroundJobs
    reporter: NodeReporter
    groups: GroupHost
    metadata_age_ms: Callable[[], int]
    disk_reserve_bytes: int
    """The setting."""


def add_gauges(metrics: NodeMetrics, parts: NodeParts) -> None:
    """Have them told with `metrics`."""
    metrics.gauges |= _replica_gauges(parts) | _disk_gauges(parts) | _cluster_gauges(parts)
    metrics.counters |= _counters(parts)


def _replica_gauges(parts: NodeParts) -> _ByFunction:
    manager, background, links = parts.manager, parts.background, parts.links
    return {
        "partitions": ("Replicas on this node.", lambda: len(manager.registry.partitions)),
        "leaders": ("Partitions that this node leads.", lambda: len(manager.registry.leading)),
        "staged_bytes": ("Appended bytes that are not written yet.", lambda: manager.budget.staged_bytes),
        "catching_up_replicas": (
            "Replicas of this node that are being rebuilt.",
            lambda: links.catching_up_count,
        ),
        "stray_directories": (
            "Logs that were set aside because no topic owns them.",
            lambda: background.strays.count,
        ),
        "stray_logs": (
            "Logs that were set aside because no topic owns them.",
            lambda: background.strays.count,
        ),
        "stray_bytes": ("What these take on the disk.", lambda: background.strays.size_bytes),
        "log_bytes": (
            "Bytes of all replicas' segments on disk, as of a few seconds ago.",
            lambda: manager.sizes.total_bytes,
        ),
    }


def _disk_gauges(parts: NodeParts) -> _ByFunction:
    health, pool, reporter = parts.manager.health, parts.pool, parts.reporter
    return {
        "disk_jobs_waiting": ("Jobs in the disk pool.", lambda: pool.jobs_waiting),
        "disk_failed": ("1 when the disk failed.", lambda: float(health.failed)),
        "unclaimed_slots": (
            "Slots of the same directory that are a node's and that no process has opened.",
            lambda: len(reporter.unclaimed_slots),
        ),
        "disk_total_bytes": (
            "Size of the file system with the data directory; 0 until it is known.",
            lambda: reporter.disk_total_bytes,
        ),
        "disk_free_bytes": (
            "What is free on it for this node's user; 0 until it is known.",
            lambda: reporter.disk_free_bytes,
        ),
        "disk_reserve_bytes": (
            "What is to be free: with less the disk counts as full.",
            lambda: reserve_bytes(parts.disk_reserve_bytes, reporter.disk_total_bytes),
        ),
        "disk_full": (
            "1 while the disk has no space left, and for a while after.",
            lambda: float(health.space.full),
        ),
    }


def _cluster_gauges(parts: NodeParts) -> _ByFunction:
    groups = parts.groups
    return {
        "metadata_age_seconds": ("Age of this node's metadata.", lambda: parts.metadata_age_ms() / 1000),
        "group_partitions": (
            "Partitions of __consumer_offsets that this node coordinates.",
            lambda: sum(1 for _ in groups.shards()),
        ),
        "group_partitions_loading": (
            "Such partitions that are still being read.",
            lambda: groups.loading_count,
        ),
    }


def _counters(parts: NodeParts) -> _ByFunction:
    groups, effects, pool = parts.groups, parts.manager.drain.effects, parts.pool
    return {
        "group_records_loaded": (
            "Records of __consumer_offsets read to take over groups.",
            lambda: groups.loaded_records,
        ),
        "group_records_bad": (
            "Records of __consumer_offsets that could not be read.",
            lambda: groups.bad_records,
        ),
        "isr_shrinks": ("ISR shrinks proposed.", lambda: effects.isr_shrink_count),
        "isr_expands": ("ISR expansions proposed.", lambda: effects.isr_expand_count),
        "disk_jobs": ("Jobs that the disk pool has done.", lambda: pool.jobs_done),
    }
