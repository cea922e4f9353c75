"""The driver of `bench.groups` on a handful of groups: that it runs and finds no trouble. No time is asserted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest
from bench.groups.cost import KINDS, MEMBERS_PER_GROUP, CostPlan, measure_costs
from bench.groups.live import LivePlan, measure_live
from bench.groups.rebalance import RebalancePlan, measure_rebalance
from bench.groups.systems import System, create_topic

from penstock.local.cluster import LocalCluster
from support.cluster import running_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PARTITIONS = 6
WAY = "proxy"


def system_of(cluster: LocalCluster) -> System:
    processes = {row.name: psutil.Process(row.pid) for row in cluster.state.processes if row.pid}
    return System("penstock", {WAY: cluster.bootstrap}, processes)


def test_every_part_that_needs_no_other_program(tmp_path: Path) -> None:
    notes: list[str] = []

    async def run(system: System) -> None:
        plan = CostPlan(groups=1, rate_per_s=50, seconds=0.5, rounds=1, rest_s=0.2, warm_up_s=0.2)
        costs = await measure_costs(system, WAY, "three", plan, notes.append)
        assert [cost.kind for cost in costs] == list(KINDS)
        assert all(cost.requests for cost in costs)
        live = await measure_live(
            system, WAY, "t", LivePlan(4, seconds=3, heartbeat_s=0.3, commit_s=0.3, warm_up_s=0), notes.append
        )
        assert (live.members, live.errors) == (12, 0)
        assert live.heartbeats
        assert live.commits
        assert live.node_mb > 0
        plans = RebalancePlan(members=5, partitions=PARTITIONS, rounds=1, heartbeat_ms=100)
        rebalances = await measure_rebalance(system, WAY, "t", plans, notes.append)
        assert [len(one.after_last_join_s) for one in rebalances] == [1] * 4
        assert notes

    settings = {"storage-node": {"group_initial_rebalance_delay_ms": "100"}}
    with running_cluster(tmp_path / "cluster", controllers=1, settings=settings, steady=True) as cluster:
        create_topic(cluster.bootstrap, "t", PARTITIONS)
        create_topic(cluster.bootstrap, "three", MEMBERS_PER_GROUP)
        asyncio.run(run(system_of(cluster)))
