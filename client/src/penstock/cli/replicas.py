"""Which partitions lack replicas, as KIP-352 counts: those that a move adds do not count before they are in sync."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.cli import wire
from penstock.errors import CommandError


def under_replicated(bootstrap: str, topics: Mapping[str, Any]) -> dict[str, int]:
    """By topic, how many of its partitions have fewer replicas in sync than they have.

    Metadata do not tell what a move adds; it is asked for only where something seems to lack. Who may not ask
    (DESCRIBE of the cluster) sees moves as lacks.
    """
    lacking = {
        name: [p for p, part in topic.partitions.items() if len(part.isrs) < len(part.replicas)]
        for name, topic in topics.items()
    }
    if not any(lacking.values()):
        return dict.fromkeys(topics, 0)
    adding: dict[tuple[str, int], int] = {}
    try:
        for one in wire.ongoing_reassignments(bootstrap):
            adding[one.topic, one.partition] = len(one.adding)
    except CommandError:
        pass
    counts = {}
    for name, partitions in lacking.items():
        parts = topics[name].partitions
        counts[name] = sum(
            len(parts[p].isrs) < len(parts[p].replicas) - adding.get((name, p), 0) for p in partitions
        )
    return counts
