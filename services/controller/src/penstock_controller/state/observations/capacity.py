"""Room, growth and load of storage nodes, and whether what is there would fit if some of them were lost."""

from __future__ import annotations

from typing import Final

from penstock_controller.state.observations.history import Histories
from penstock_controller.state.observations.spread import HOST, NODE, RACK, Spread
from penstock_controller.state.operations.reports import NodeState, Reports
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import operations_pb2 as pb

FULL_RATIO: Final = 0.85
"""Of a disk, as for the target of a move: beyond it nothing is put."""


def capacity(image: MetadataImage, reports: Reports, histories: Histories) -> pb.DescribeCapacityResponse:
    """Of all registered nodes, by id; what a node did not tell is left out."""
    response = pb.DescribeCapacityResponse()
    for node_id in sorted(image.nodes):
        told = response.nodes.add(node_id=node_id)
        # What a node told before it went away is not how it is now.
        state = None if image.nodes[node_id].fenced else reports.node(node_id)
        if state is None:
            continue
        told.log_bytes = state.log_bytes
        if state.disk_total_bytes:
            told.disk_total_bytes = state.disk_total_bytes
            told.disk_free_bytes = state.disk_free_bytes
        history = histories.node(node_id)
        if history is None:
            continue
        growth = history.growth_bytes_per_s()
        if growth is not None:
            told.growth_bytes_per_s = growth
            if growth > 0 and state.disk_total_bytes:
                told.full_in_s = state.disk_free_bytes / growth
        rates = history.rates()
        if rates is not None:
            told.in_bytes_per_s, told.out_bytes_per_s, told.loop_busy_ratio = rates
    for level, outlives in _outlived(image, reports).items():
        setattr(response, f"survives_{level}", outlives)
    return response


def _outlived(image: MetadataImage, reports: Reports) -> dict[str, bool]:
    """By node, host and rack: whether the logs of the largest one would fit on the others. Nothing while a live node
    has not told its room, and of levels that there are not."""
    live = {n: node.rack for n, node in image.nodes.items() if not node.fenced}
    states = {n: state for n in live if (state := reports.node(n)) is not None and state.disk_total_bytes}
    if not live or len(states) < len(live):
        return {}
    spread = Spread(live)
    return {
        name: all(_fits(image, states, lost) for lost in spread.domains(level).values())
        for level, name in enumerate(spread.levels)
        if name in (NODE, HOST, RACK)
    }


def _fits(image: MetadataImage, states: dict[NodeId, NodeState], lost: list[NodeId]) -> bool:
    """Whether the rest has room for as much as those have, FULL_RATIO of each disk at most."""
    rest = [n for n in states if n not in lost and not image.operations.is_cordoned(n)]
    room = sum(_room_bytes(states[n]) for n in rest)
    # With nobody left nothing fits, not even nothing.
    return bool(rest) and sum(states[n].log_bytes for n in lost) <= room


def _room_bytes(state: NodeState) -> float:
    used_bytes = state.disk_total_bytes - state.disk_free_bytes
    return max(0.0, FULL_RATIO * state.disk_total_bytes - used_bytes)


__all__ = ["FULL_RATIO", "capacity"]
