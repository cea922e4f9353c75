"""What is amiss with storage nodes and their disks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock_controller.state.observations.findings import ERROR, INFO, WARNING, finding, some
from penstock_controller.state.observations.partitions import Seen
from penstock_controller.state.observations.spread import Spread
from penstock_controller.state.operations.reports import NodeState, Reports
from penstock_core.metadata import MetadataImage, NodeImage
from penstock_proto.v1 import operations_pb2 as pb

LOW_RATIO: Final = 0.10
"""Of a disk: with less of it free, it is low."""
_GB: Final = 10**9


def is_low(state: NodeState | None) -> bool:
    """Whether a node told that little of its disk is free."""
    if state is None or not state.disk_total_bytes:
        return False
    return state.disk_free_bytes < LOW_RATIO * state.disk_total_bytes


def node_findings(image: MetadataImage, spread: Spread, reports: Reports, seen: Seen) -> Iterator[pb.Finding]:
    """Of each node, and of all as a whole."""
    for node_id in sorted(image.nodes):
        node = image.nodes[node_id]
        state = reports.node(node_id)
        yield from _disk(node, state)
        if node.fenced and not node.disk_failed:
            yield _missing(node, seen.replicas[node_id])
        if state is not None and state.stray_logs and not node.fenced:
            yield finding(
                INFO,
                "strays",
                f"node {node_id}",
                f"{state.stray_logs:,} logs that it has set aside take {_bytes(state.stray_bytes)}",
                f"`penstock node strays {node_id}` shows them, and which go by themselves",
            )
    if all(node.fenced for node in image.nodes.values()):
        yield finding(
            ERROR,
            "node-missing",
            "cluster",
            "no storage node is there",
            "start storage nodes; `penstock node list`",
        )
    yield from _slots(image, reports)
    yield from _one_domain(spread)


def _disk(node: NodeImage, state: NodeState | None) -> Iterator[pb.Finding]:
    subject = f"node {node.node_id}"
    if node.disk_failed:
        yield finding(
            ERROR,
            "disk-failed",
            subject,
            "its disk failed, and it has given up what it held",
            f"mend the disk and start it again, or empty it and watch `penstock node replace {node.node_id}`",
        )
    elif node.disk_full:
        yield finding(
            ERROR,
            "disk-full",
            subject,
            "its disk has no space left: it leads only what nobody else can",
            f"make room there, shorten retention, or move data away: `penstock node drain {node.node_id}`",
        )
    elif is_low(state) and state is not None and not node.fenced:
        yield finding(
            WARNING,
            "disk-low",
            subject,
            f"{_bytes(state.disk_free_bytes)} of {_bytes(state.disk_total_bytes)} are free, less than "
            f"{LOW_RATIO:.0%}: new topics go elsewhere where they can",
            "`penstock cluster capacity` shows who has room; `penstock cluster rebalance --goal bytes` uses it",
        )


def _missing(node: NodeImage, replica_count: int) -> pb.Finding:
    subject = f"node {node.node_id}"
    if not replica_count:
        return finding(
            WARNING,
            "node-missing",
            subject,
            "it is registered, away, and holds nothing",
            f"start it, or have it forgotten: `penstock node remove {node.node_id}`",
        )
    return finding(
        ERROR,
        "node-missing",
        subject,
        f"it is away, and {replica_count:,} replicas with it",
        f"start it again; when it is lost for good, `penstock node replace {node.node_id} --with ID`",
    )


def _slots(image: MetadataImage, reports: Reports) -> Iterator[pb.Finding]:
    live = [n for n, node in image.nodes.items() if not node.fenced]
    names = sorted(
        {name for n in live if (state := reports.node(n)) is not None for name in state.unclaimed_slots}
    )
    if names:
        count = len(live) + len(names)
        yield finding(
            WARNING,
            "slot-unclaimed",
            f"slot{'s' * (len(names) > 1)} {some(names)}",
            f"they hold data, and no process has opened {'them' if len(names) > 1 else 'it'}",
            f"scale storage-node to {count} (`penstock scale storage-node={count}`), "
            "or where copies are elsewhere, `penstock node remove`",
        )


def _one_domain(spread: Spread) -> Iterator[pb.Finding]:
    """Nothing outlives the loss of a domain that has no other beside it: said once, not of each topic."""
    for level, count in enumerate(spread.domain_counts):
        if count != 1:
            return
        where = spread.domain(level, next(iter(spread.racks)))
        what = (
            "there is no other storage node"
            if level == len(spread.levels) - 1
            else "all storage nodes are in it"
        )
        yield finding(
            INFO,
            "domain-unsafe",
            where,
            f"{what}: nothing outlives its loss",
            f"start storage nodes in another {spread.levels[level]}"
            if level < len(spread.levels) - 1
            else "start more storage nodes",
        )


def _bytes(size_bytes: int) -> str:
    if size_bytes < _GB:
        return f"{size_bytes / 10**6:,.1f} MB"
    return f"{size_bytes / _GB:,.1f} GB"


__all__ = ["LOW_RATIO", "is_low", "node_findings"]
