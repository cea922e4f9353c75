"""Metrics of the quorum as one controller sees it, told at a scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from penstock_controller.quorum import Quorum, QuorumStatus

_PREFIX = "penstock_controller_raft_"


class RaftMetrics:
    """Of one controller. Lives on the event loop."""

    def __init__(
        self,
        quorum: Quorum,
        status: Callable[[], QuorumStatus],
        peers_count: int,
        wall_ms: Callable[[], int],
    ) -> None:
        """`peers_count`: members of the quorum beside this one."""
        self._quorum = quorum
        self._status = status
        self._peers_count = peers_count
        self._wall_ms = wall_ms

    def families(self) -> Iterator[Metric]:
        """For a scrape. Files are not looked at: their sizes are known."""
        status, quorum = self._status(), self._quorum
        for name, text, value in (
            ("term", "Raft's term.", status.term),
            ("commit_index", "Last entry of the log that is known to be committed.", status.commit_index),
            ("applied_index", "Last entry of the log that is applied here.", status.applied_index),
            ("last_index", "Last entry of the log that is here.", status.last_log_index),
            ("is_voter", "1 when this controller votes.", not status.not_voting_reason),
            ("peers", "Other controllers of the quorum.", self._peers_count),
            ("peers_connected", "Those of them that this one is connected with.", len(status.reachable)),
            (
                "leader_contact_age_seconds",
                "Time since the leader was last heard; on the leader, since a majority was.",
                quorum.leader_contact()[0] / 1000,
            ),
            ("journal_bytes", "Size of the log on the disk.", quorum.journal_bytes),
            ("snapshot_bytes", "Size of the newest snapshot; 0 when there is none.", quorum.snapshot_bytes),
        ):
            yield GaugeMetricFamily(_PREFIX + name, text, value=value)
        written_s = quorum.snapshot_written_s
        if written_s:
            yield GaugeMetricFamily(
                _PREFIX + "snapshot_age_seconds",
                "How old the newest snapshot is. Absent until there is one.",
                value=max(0.0, self._wall_ms() / 1000 - written_s),
            )
        yield CounterMetricFamily(
            _PREFIX + "elections", "Elections that this controller stood in.", value=quorum.elections
        )


__all__ = ["RaftMetrics"]
