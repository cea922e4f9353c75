"""Room, growth and load, from what nodes report."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from penstock_controller.state.observations.capacity import capacity
from penstock_controller.state.observations.history import GRAIN_MS, HOUR_MS, Histories, NodeHistory
from penstock_controller.state.operations.reports import Reports
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import operations_pb2 as pb
from unit.controller.state.operations.images import cluster, node

GB = 10**9
NODE = NodeId(1)


class World:
    """One node that reports, and its history."""

    def __init__(self) -> None:
        self.image = cluster([1], {})
        self.reports = Reports()
        self.histories = Histories()
        self.now_ms = 1_000
        self.epoch = 1
        self.told = pb.NodeReport(disk_total_bytes=100 * GB, disk_free_bytes=50 * GB)

    def report(self, after_ms: int, **more: int) -> None:
        self.now_ms += after_ms
        for name, value in more.items():
            setattr(self.told, name, value)
        self.reports.take(NODE, self.epoch, self.told, self.now_ms)
        self.histories.observe(self.reports, self.image.nodes)

    def node(self) -> pb.NodeCapacity:
        (found,) = capacity(self.image, self.reports, self.histories).nodes
        return found

    @property
    def history(self) -> NodeHistory:
        found = self.histories.node(NODE)
        assert found is not None
        return found


@pytest.fixture
def world() -> World:
    return World()


def test_nothing_is_made_up(world: World) -> None:
    assert list(capacity(world.image, world.reports, world.histories).nodes) == [pb.NodeCapacity(node_id=1)]
    world.report(0, log_bytes=5)
    told = world.node()
    assert (told.disk_total_bytes, told.disk_free_bytes, told.log_bytes) == (100 * GB, 50 * GB, 5)
    for name in ("growth_bytes_per_s", "full_in_s", "in_bytes_per_s", "out_bytes_per_s", "loop_busy_ratio"):
        assert not told.HasField(name)


def test_growth_and_when_the_disk_is_full(world: World) -> None:
    for minute in range(30):
        world.report(GRAIN_MS, log_bytes=minute * 60 * 10**7)
    told = world.node()
    assert told.growth_bytes_per_s == pytest.approx(10**7)
    assert told.full_in_s == pytest.approx(5_000)
    for _ in range(90):
        world.report(GRAIN_MS)
    told = world.node()
    assert told.growth_bytes_per_s == 0, "the last hour alone counts"
    assert not told.HasField("full_in_s")


def test_a_segment_that_goes_is_no_end_of_growth(world: World) -> None:
    size = 0
    for minute in range(60):
        size += 60 * 10**6
        if minute % 20 == 19:
            size -= 600 * 10**6
        world.report(GRAIN_MS, log_bytes=size)
    assert 0.2 * 10**6 < world.node().growth_bytes_per_s < 1.2 * 10**6


def test_what_shrinks_is_never_full(world: World) -> None:
    world.report(0, log_bytes=10**9)
    world.report(100_000, log_bytes=0)
    told = world.node()
    assert told.growth_bytes_per_s == pytest.approx(-(10**7))
    assert not told.HasField("full_in_s")


def test_rates_are_those_of_the_last_minute(world: World) -> None:
    for second in range(0, 300, 5):
        world.report(
            5_000, received_bytes=second * 1_000, sent_bytes=second * 2_000, loop_cpu_ms=second * 250
        )
    told = world.node()
    assert told.in_bytes_per_s == pytest.approx(1_000)
    assert told.out_bytes_per_s == pytest.approx(2_000)
    assert told.loop_busy_ratio == pytest.approx(0.25)
    for _ in range(14):
        world.report(5_000)
    assert world.node().in_bytes_per_s == 0


def test_a_restart_begins_the_counters_anew_but_not_the_logs(world: World) -> None:
    world.report(0, received_bytes=10**9, loop_cpu_ms=10**6, log_bytes=0)
    world.report(10_000, received_bytes=10**9 + 10_000)
    world.epoch = 2
    world.report(10_000, received_bytes=5, loop_cpu_ms=0, log_bytes=2 * 10**6)
    told = world.node()
    assert not told.HasField("in_bytes_per_s")
    assert told.growth_bytes_per_s > 0
    world.report(10_000, received_bytes=1_005)
    assert world.node().in_bytes_per_s == pytest.approx(100)


def test_what_is_remembered_is_bounded(world: World) -> None:
    rng = random.Random(1)
    for _ in range(20_000):
        world.report(rng.randrange(200, 2_000))
    history = world.history
    assert len(history._minutes) <= HOUR_MS // GRAIN_MS + 1
    assert len(history._recent) <= 60_000 // 200 + 2
    world.histories.observe(world.reports, [])
    assert world.histories.node(NODE) is None


# --- what outlives a loss -----------------------------------------------------------------------


def outlives(image: MetadataImage, used_gb: Mapping[int, int], total_gb: int = 100) -> dict[str, bool | None]:
    """Of disks that hold nothing but logs."""
    reports = Reports()
    for node_id, used in used_gb.items():
        report = pb.NodeReport(
            disk_total_bytes=total_gb * GB, disk_free_bytes=(total_gb - used) * GB, log_bytes=used * GB
        )
        reports.take(NodeId(node_id), 1, report, 0)
    told = capacity(image, reports, Histories())
    return {
        level: getattr(told, f"survives_{level}") if told.HasField(f"survives_{level}") else None  # type: ignore[arg-type]
        for level in ("node", "host", "rack")
    }


def test_without_racks_there_are_nodes_alone() -> None:
    image = cluster(range(1, 5), {})
    assert outlives(image, dict.fromkeys(range(1, 5), 50)) == {"node": True, "host": None, "rack": None}
    assert outlives(image, dict.fromkeys(range(1, 5), 70))["node"] is False


def test_a_host_is_more_than_a_node_and_a_rack_more_than_a_host() -> None:
    racks = ("a/h1", "a/h1", "a/h2", "b/h3", "b/h3", "b/h4")
    image = cluster([node(n, rack) for n, rack in enumerate(racks, 1)], {})
    assert outlives(image, dict.fromkeys(range(1, 7), 40)) == {"node": True, "host": True, "rack": True}
    assert outlives(image, dict.fromkeys(range(1, 7), 50)) == {"node": True, "host": True, "rack": False}
    assert outlives(image, dict.fromkeys(range(1, 7), 60)) == {"node": True, "host": False, "rack": False}


def test_who_takes_nothing_and_who_is_away_have_no_room() -> None:
    image = cluster(range(1, 4), {}, cordoned=[3])
    assert outlives(image, {1: 40, 2: 40, 3: 0})["node"] is True
    assert outlives(image, {1: 50, 2: 40, 3: 0})["node"] is False
    away = cluster([node(1), node(2), node(3, fenced=True)], {})
    assert outlives(away, {1: 50, 2: 40})["node"] is False


def test_what_is_not_known_is_not_said() -> None:
    image = cluster(range(1, 4), {})
    assert outlives(image, {1: 1, 2: 1})["node"] is None
    assert outlives(replace(image, nodes={}), {})["node"] is None
    assert outlives(cluster([1], {}), {1: 0})["node"] is False, "there is nobody else"
