"""Lag as metrics: asked in bulk of those who lead, only while somebody scrapes, and never without bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.harness import KEY, TOPIC, MiniCluster, eventually
from penstock_storage_node.groups.records import OffsetValue
from penstock_storage_node.reporting import group_lag
from penstock_storage_node.reporting.group_lag import LagExporter
from penstock_storage_node.rpc.log_ends import LogEnds, LogEndsService

LATER_MS = 60_000
"""By how much the clock of who tells the lag is ahead."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    cluster = await MiniCluster(tmp_path).start(3)
    cluster.make_topic()
    nodes = cluster.nodes.values()
    await eventually(lambda: all(KEY in node.manager.registry.partitions for node in nodes))
    await eventually(lambda: cluster.nodes[1].partition.replica.leadership is not None)
    yield cluster
    await cluster.stop()


def watch(
    cluster: MiniCluster, offsets: dict[str, dict[tuple[str, int], int]], interval_ms: int = 60_000
) -> LagExporter:
    """Of groups that node 1 coordinates, with these committed offsets."""
    node = cluster.nodes[1]
    shard = SimpleNamespace(
        offsets={
            group: {place: OffsetValue(offset, -1, "", 0) for place, offset in places.items()}
            for group, places in offsets.items()
        }
    )
    groups: Any = SimpleNamespace(shards=lambda: iter([shard]))
    return LagExporter(
        node.manager.registry,
        groups,
        LogEnds(node.manager.registry, LogEndsService(node.manager.registry), node.channels),
        interval_ms,
        node.manager.clock_ms,
        lambda: node.manager.wall_ms() + LATER_MS,
    )


def told(watch: LagExporter) -> dict[tuple[str, ...], float]:
    return {
        (family.name.removeprefix("penstock_group_lag_"), *sample.labels.values()): sample.value
        for family in watch.collect()
        for sample in family.samples
    }


async def test_lag_by_group_and_topic(cluster: MiniCluster) -> None:
    for _ in range(5):
        await cluster.nodes[1].produce(b"x")
    watching = watch(
        cluster, {"slow": {(TOPIC, 0): 1, ("gone", 0): 3}, "done": {(TOPIC, 0): 5}, "new": {(TOPIC, 0): 0}}
    )
    await watching.refresh()
    found = told(watching)
    assert found["records", "slow", TOPIC] == 4
    # The oldest record that is not committed waits, though nothing newer came: without another look it waits longer.
    assert found["seconds", "slow", TOPIC] >= 60
    assert (found["records", "done", TOPIC], found["seconds", "done", TOPIC]) == (0, 0)
    assert found["records", "new", TOPIC] == 5
    assert found["seconds", "new", TOPIC] >= found["seconds", "slow", TOPIC]
    assert found[("left_out",)] == 0


async def test_a_leader_that_does_not_answer_is_left_out(cluster: MiniCluster) -> None:
    await cluster.nodes[1].produce(b"x")
    cluster.elect(2, (1, 2, 3))  # these nodes do not answer Positions
    watching = watch(cluster, {"g": {(TOPIC, 0): 0}})
    await watching.refresh()
    assert told(watching) == {("left_out",): 0}


async def test_rows_are_bounded(cluster: MiniCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster.nodes[1].produce(b"x", b"y", b"z")
    monkeypatch.setattr(group_lag, "SERIES_MAX", 2)
    watching = watch(cluster, {f"g{n}": {(TOPIC, 0): n} for n in range(4)})
    await watching.refresh()
    found = told(watching)
    assert {key[1] for key in found if key[0] == "records"} == {"g0", "g1"}
    assert found[("left_out",)] == 2
    monkeypatch.setattr(group_lag, "PLACES_MAX", 3)
    await watching.refresh()
    assert told(watching)[("left_out",)] == 2


async def test_nothing_is_asked_until_somebody_scrapes(cluster: MiniCluster) -> None:
    await cluster.nodes[1].produce(b"x")
    watching = watch(cluster, {"g": {(TOPIC, 0): 0}}, interval_ms=20)
    task = asyncio.ensure_future(watching.run())
    try:
        await asyncio.sleep(0)
        assert not watching._rows
        told(watching)
        await eventually(lambda: told(watching).get(("records", "g", TOPIC)) == 1)
    finally:
        task.cancel()
        await asyncio.wait([task])
