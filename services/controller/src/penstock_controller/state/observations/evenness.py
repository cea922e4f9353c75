"""Whether nodes hold and lead equally much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock_controller.state.observations.findings import INFO, WARNING, finding
from penstock_controller.state.observations.partitions import Seen
from penstock_controller.state.observations.spread import Spread, even_groups
from penstock_controller.state.operations.cluster_counts import sharing_nodes
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import operations_pb2 as pb

_SLACK: Final = 0.1
"""Of the mean: less of a difference is not worth a word, and where topics differ in replicas it cannot be none."""
_MUCH: Final = 0.5
"""Of the mean, above or below it: so much is worth a warning."""
_FEW: Final = 5
"""A difference that is never much, however few there are."""


def evenness(image: MetadataImage, spread: Spread, seen: Seen) -> list[pb.Finding]:
    """Of nodes that share: live ones that are neither cordoned nor drained, and of domains that are alike."""
    nodes = sorted(sharing_nodes(image))
    found = []
    replicas = _unevenness(spread, nodes, seen.replicas)
    if replicas is not None:
        severity, detail = replicas
        hint = "`penstock cluster rebalance` evens it out"
        found.append(finding(severity, "uneven-replicas", "cluster", f"replicas: {detail}", hint))
    leaders = _unevenness(spread, nodes, seen.leaders)
    if leaders is not None:
        severity, detail = leaders
        hint = "`penstock cluster rebalance --goal leaders` evens it out"
        if _unevenness(spread, nodes, seen.preferred) is None:
            severity, hint = (
                INFO,
                "preferred leaders lead again by themselves; `penstock leader elect` does it at once",
            )
        found.append(finding(severity, "uneven-leaders", "cluster", f"leaders: {detail}", hint))
    return found


def _unevenness(
    spread: Spread, nodes: Sequence[NodeId], held: Mapping[NodeId, int]
) -> tuple[str, str] | None:
    """Severity and detail of the worst group; None where all are even."""
    worst: tuple[int, str, str] | None = None
    for group in even_groups(spread, nodes):
        most = max(group, key=lambda n: held.get(n, 0))
        least = min(group, key=lambda n: held.get(n, 0))
        high, low = held.get(most, 0), held.get(least, 0)
        mean = sum(held.get(n, 0) for n in group) / len(group)
        if high - low <= max(1, _SLACK * mean) or (worst is not None and high - low <= worst[0]):
            continue
        is_much = high - low > _FEW and (high > (1 + _MUCH) * mean or low < (1 - _MUCH) * mean)
        detail = (
            f"node {most} has {high:,}, node {least} {low:,}, on the mean of {len(group)} nodes {mean:,.1f}"
        )
        worst = high - low, WARNING if is_much else INFO, detail
    return None if worst is None else worst[1:]


__all__ = ["evenness"]
