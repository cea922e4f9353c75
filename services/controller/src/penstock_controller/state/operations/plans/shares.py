"""What each node has before a plan and would have after it: replicas, preferred leaders, bytes, room on its disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from typing import Final

from penstock_controller.state.operations.planner.moves import PlannedMove
from penstock_controller.state.operations.plans.situation import Situation
from penstock_controller.state.operations.reports import Reports
from penstock_core.ids import NodeId
from penstock_proto.v1 import operations_pb2 as pb

_A_STEP: Final = 256
"""Partitions or moves counted between two steps."""


def node_shares(
    now: Situation, moves: Sequence[PlannedMove], reports: Reports
) -> Generator[None, None, list[pb.PlannedNode]]:
    """All nodes, by id."""
    replicas: Counter[NodeId] = Counter()
    leaders: Counter[NodeId] = Counter()
    size: Counter[NodeId] = Counter()
    for count, partition in enumerate(now.partitions, 1):
        leaders[partition.replicas[0]] += 1
        for node_id in partition.replicas:
            replicas[node_id] += 1
            size[node_id] += partition.size_bytes
        if count % _A_STEP == 0:
            yield
    comes: Counter[NodeId] = Counter()
    goes: Counter[NodeId] = Counter()
    replicas_after, leaders_after = Counter(replicas), Counter(leaders)
    for count, move in enumerate(moves, 1):
        before, after = set(move.before), set(move.after)
        leaders_after[move.before[0]] -= 1
        leaders_after[move.after[0]] += 1
        for node_id in after - before:
            replicas_after[node_id] += 1
            comes[node_id] += move.partition.size_bytes
        for node_id in before - after:
            replicas_after[node_id] -= 1
            goes[node_id] += move.partition.size_bytes
        if count % _A_STEP == 0:
            yield
    found = []
    for node in now.nodes:
        n = node.node_id
        state = reports.node(n)
        had = size[n] if state is None else state.log_bytes
        told = pb.PlannedNode(
            node_id=n,
            rack=node.rack,
            replicas_before=replicas[n],
            replicas_after=replicas_after[n],
            leaders_before=leaders[n],
            leaders_after=leaders_after[n],
            bytes_before=had,
            bytes_after=max(0, had + comes[n] - goes[n]),
        )
        if state is not None and state.disk_total_bytes:
            free = state.disk_free_bytes
            told.disk_free_bytes_before = free
            told.disk_free_bytes_after = max(0, free - comes[n] + goes[n])
            told.disk_free_bytes_least = max(0, free - comes[n])
        found.append(told)
    return found
