"""What the active controller tells of the cluster at a scrape, and that nobody else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from penstock_controller.active.cluster_metrics import LOOK_MS, ClusterMetrics
from penstock_controller.active.command_queue import CommandQueue
from penstock_controller.active.operations import Operations
from penstock_controller.metrics import ControllerMetrics
from penstock_controller.role import run
from penstock_controller.settings import ControllerSettings
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.operations import ENDED, OperationMove
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.ports import RolePorts
from penstock_runtime.settings import load_settings
from support.controllers import free_ports
from support.waiting import eventually
from unit.controller.state.operations.images import cluster, ids, node, partition, reported, under_way


class World:
    """The metrics of one controller, and whoever scrapes it."""

    def __init__(self, image: MetadataImage) -> None:
        self.now_ms = 0
        self.image = image
        self.lifecycle = Lifecycle("controller")
        clocks = replace(RolePorts().clocks, ms=lambda: self.now_ms)
        self.operations = Operations(self.lifecycle, clocks, lambda _: True, lambda: (True, ""))
        self.worker = Worker()
        self.worker.image = image
        self.operations.connect(self.worker)
        self.metrics = ClusterMetrics(self.lifecycle, self.operations)
        self.registry = CollectorRegistry()
        ControllerMetrics(self.registry).families_by_part.append(self.metrics.families)

    def begin(self) -> None:
        self.operations.begin()
        self.metrics.begin(self.image)

    def tick(self, image: MetadataImage | None = None, passed_ms: int = LOOK_MS) -> None:
        self.now_ms += passed_ms
        self.image = self.worker.image = image or self.image
        self.metrics.tick(self.image, self.now_ms)

    def told(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"penstock_{name}", labels)

    def names(self) -> set[str]:
        return {
            family.name
            for family in self.registry.collect()
            if family.name.startswith(("penstock_cluster_", "penstock_operation"))
        }


class Worker(CommandQueue):
    """Active, and nobody submits."""

    def __init__(self) -> None:
        self.active = True


@pytest.fixture
async def world() -> AsyncIterator[World]:
    unwell = partition("a", 2, (1, 2, 3), isr=(2,), leader=2)
    moving = replace(partition("a", 3, (1, 2, 3)), adding_replicas=ids((3,)))
    image = cluster(
        [1, 2, node(3, fenced=True), 4],
        {"a": [(1, 2, 3), (2, 1, 3), unwell, moving], "b": [partition("b", 0, (3,), isr=(), leader=-1)]},
        cordoned=(4,),
    )
    made = World(image)
    yield made
    await made.lifecycle.end_tasks()


async def test_the_active_controller_tells_and_no_other(world: World) -> None:
    world.tick()
    assert world.names() == set()
    world.begin()
    world.tick()
    assert {
        name: world.told(f"cluster_{name}")
        for name in (
            "topics",
            "partitions",
            "offline_partitions",
            "under_replicated_partitions",
            "under_min_isr_partitions",
            "at_min_isr_partitions",
            "not_preferred_partitions",
            "reassigning_partitions",
        )
    } == {
        "topics": 2,
        "partitions": 5,
        "offline_partitions": 1,
        "under_replicated_partitions": 2,
        # min ISR is 2 of three replicas, and of the two that the moved one has.
        "under_min_isr_partitions": 2,
        "at_min_isr_partitions": 0,
        "not_preferred_partitions": 2,
        "reassigning_partitions": 1,
    }
    states = {s: world.told("cluster_nodes", state=s) for s in ("live", "fenced", "cordoned", "draining")}
    assert states == {"live": 2, "fenced": 1, "cordoned": 1, "draining": 0}
    assert world.told("cluster_replica_imbalance_ratio") == 0
    assert world.told("cluster_leader_imbalance_ratio") == 0
    assert world.told("operations", state="running") == 0
    world.metrics.end()
    assert world.names() == set()


async def test_a_change_is_told_at_the_next_look(world: World) -> None:
    world.begin()
    world.tick()
    healed = pb.MetadataRecord(partition=partition("b", 0, (3,)).to_pb())
    changed = world.image.apply([healed], world.image.version + 1)
    world.tick(changed, passed_ms=LOOK_MS - 1)
    assert world.told("cluster_offline_partitions") == 1
    world.tick(passed_ms=1)
    assert world.told("cluster_offline_partitions") == 0


async def test_bytes_are_told_once_all_have_told(world: World) -> None:
    world.begin()
    world.tick()
    world.operations.reports = reported(world.image, silent=(2,))
    assert world.told("cluster_bytes_imbalance_ratio") is None
    world.operations.reports = reported(world.image, {partition("a", 0, (1,)).key: 10})
    assert world.told("cluster_bytes_imbalance_ratio") == 0


async def test_a_long_look_goes_on_beside_everything_else_and_ends_whole(world: World) -> None:
    many = cluster([1, 2, 3], {"a": [(1, 2)] * 2_000})
    world.begin()
    world.tick(many)
    assert world.told("cluster_partitions") is None
    # While it goes on there is no other, and one of an earlier term does not disturb this one's.
    other = cluster([1, 2, 3], {"a": [(1, 2)] * 4_000})
    world.begin()

    def told() -> bool:
        world.tick(other)
        return world.told("cluster_partitions") is not None

    await eventually(told, "the counts")
    assert world.told("cluster_partitions") == 4_000
    assert world.told("cluster_replica_imbalance_ratio") == 0.5
    world.tick(cluster([1, 2, 3], {"a": []}))
    await eventually(lambda: world.told("cluster_partitions") == 0, "the counts of the next image")


async def test_operations_that_go_on_are_told_with_how_far_they_are(world: World) -> None:
    key = partition("a", 0, (1,)).key
    done = OperationMove(key, ids((1, 2, 3)), ids((1, 2)), 300)
    to_do = OperationMove(key._replace(partition=1), ids((2, 1, 4)), ids((2, 1, 3)), 100)
    image = under_way(world.image, 7, "rebalance", [done, to_do])
    record = image.operations.operations[7]
    record.moves_total, record.bytes_total, record.throttle.bytes_per_s = 2, 400, 5_000
    for operation_id in range(100, 115):
        image = under_way(image, operation_id, "leader-elect", state=pb.OPERATION_STATE_PENDING)
    world.begin()
    world.tick(image)
    # As if its moves had been looked at for the first time; no step is made of what follows.
    world.operations._prepared.update(image.operations.operations)
    world.operations.tick(world.now_ms)
    world.worker.active = False
    told = {"kind": "rebalance", "operation": "7"}
    assert world.told("operation_progress_ratio", **told) == 0.75
    assert world.told("operation_moved_bytes_total", **told) == 300
    assert world.told("operation_limit_bytes_per_second", **told) == 5_000
    assert world.told("operation_eta_seconds", **told) is None
    assert world.told("operations", state="running") == 1
    assert world.told("operations", state="pending") == 15
    (family,) = [f for f in world.registry.collect() if f.name == "penstock_operation_progress_ratio"]
    assert len(family.samples) == 10
    # One that has ended is counted, and no more told of.
    ended = pb.OperationRecord(operation_id=7, kind="rebalance", state=pb.OPERATION_STATE_DONE)
    assert ended.state in ENDED
    world.tick(image.apply([pb.MetadataRecord(operation=ended)], image.version + 1))
    assert world.told("operation_progress_ratio", **told) is None
    assert world.told("operations", state="done") == 1


# --- controllers, whole -----------------------------------------------------------------------


class Quorum:
    """Three controllers inside the test's event loop."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.raft_ports, self.grpc_ports = free_ports(3), free_ports(3)
        self.lives: dict[int, Lifecycle] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    def start(self, controller_id: int) -> None:
        flags = {
            "controller-id": str(controller_id),
            "raft-peers": ",".join(f"{i}@127.0.0.1:{p}" for i, p in enumerate(self.raft_ports, 1)),
            "raft-bind": f"127.0.0.1:{self.raft_ports[controller_id - 1]}",
            "controllers": ",".join(f"{i}@127.0.0.1:{p}" for i, p in enumerate(self.grpc_ports, 1)),
            "grpc-bind": f"127.0.0.1:{self.grpc_ports[controller_id - 1]}",
            "http-bind": "",
            "data-dir": str(self.directory / str(controller_id)),
        }
        words = [part for key, value in flags.items() for part in (f"--{key}", value)]
        settings = load_settings(ControllerSettings, words, "controller")
        life = self.lives[controller_id] = Lifecycle("controller")
        self.tasks[controller_id] = asyncio.create_task(run(settings, life))

    async def stop(self, controller_id: int) -> None:
        life = self.lives.pop(controller_id)
        life.request_stop("test")
        await self.tasks.pop(controller_id)
        await life.end_tasks()

    def tellers(self) -> list[int]:
        """Controllers whose /metrics has something of the cluster."""
        return [
            controller_id
            for controller_id, life in self.lives.items()
            if any(
                f.name.startswith(("penstock_cluster_", "penstock_operation"))
                for f in life.registry.collect()
            )
        ]

    def active(self) -> list[int]:
        return [
            controller_id
            for controller_id, life in self.lives.items()
            if life.registry.get_sample_value("penstock_controller_is_active")
        ]


async def test_the_next_active_controller_tells_in_its_place_until_it_is_that_no_more(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path)
    try:
        for controller_id in (1, 2, 3):
            quorum.start(controller_id)
        await eventually(lambda: quorum.tellers() and quorum.active() == quorum.tellers(), "one that tells")
        (first,) = quorum.tellers()
        await quorum.stop(first)
        await eventually(lambda: quorum.tellers() and quorum.active() == quorum.tellers(), "another")
        (second,) = quorum.tellers()
        assert second != first
        # Alone it cannot know whether there is another by now.
        await quorum.stop(next(each for each in quorum.lives if each != second))
        await eventually(lambda: not quorum.tellers() and not quorum.active(), "none that tells")
    finally:
        for controller_id in list(quorum.lives):
            await quorum.stop(controller_id)
