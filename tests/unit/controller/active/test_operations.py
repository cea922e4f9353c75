"""Operations on the event loop of the active controller: what nodes are told, and what waits until they are."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from penstock_controller.active.command_queue import CommandQueue
from penstock_controller.active.operations import LOOK_MS, STEP_MS, Operations
from penstock_controller.state.operations.engine.throttle import RATE_MIN
from penstock_core.metadata.operations import OperationMove
from penstock_proto.v1 import controller_pb2
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.ports import RolePorts
from unit.controller.state.operations.images import cluster, ids

AUTO = pb.OperationThrottle(auto=True)


class Worker(CommandQueue):
    """Active; notes what is submitted, and does none of it."""

    def __init__(self) -> None:
        self.active = True
        self.rng = random.Random(1)
        self.submitted = 0

    async def submit(self, _generate: Any) -> Any:
        self.submitted += 1


class World:
    """Three nodes with sessions."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.lifecycle = Lifecycle("controller")
        clocks = replace(RolePorts().clocks, ms=lambda: self.now_ms)
        self.operations = Operations(self.lifecycle, clocks, lambda _: True, lambda: (True, ""))
        self.worker = Worker()
        self.worker.image = cluster([1, 2, 3], {"a": [(1, 2)]})
        self.operations.connect(self.worker)
        self.operations.begin()

    def becomes(self, state: pb.OperationState.ValueType, **fields: Any) -> None:
        """The one operation there is, which moves a replica from 2 to 3."""
        image = self.worker.image
        (key,) = [p.key for topic in image.topics.values() for p in topic.partitions.values()]
        record = pb.OperationRecord(operation_id=9, kind="rebalance", moves_total=1, state=state, **fields)
        records = [pb.MetadataRecord(operation=record)]
        if 9 not in image.operations.moves:
            move = OperationMove(key, ids((1, 3)), ids((1, 2)), 100)
            records.append(pb.MetadataRecord(operation_move=move.to_pb(9)))
        self.worker.image = image.apply(records, image.version + 1)

    async def tick(self, passed_ms: int = STEP_MS) -> int:
        """How many steps were taken."""
        before = self.worker.submitted
        self.now_ms += passed_ms
        self.operations.tick(self.now_ms)
        for _ in range(20):
            await asyncio.sleep(0)
        return self.worker.submitted - before

    def heartbeats(self) -> set[int]:
        """The rates that nodes are told."""
        told = set()
        for node_id in (1, 2, 3):
            reply = controller_pb2.NodeHeartbeatReply()
            self.operations.heartbeat(controller_pb2.NodeHeartbeat(node_id=node_id, node_epoch=1), reply)
            told.add(reply.catch_up_bytes_per_s)
        return told


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.lifecycle.end_tasks()


async def test_nodes_never_hear_that_there_is_no_bound_while_an_operation_has_one(world: World) -> None:
    """A node that hears so copies at full speed until it hears something else."""
    for throttle, rate in ((AUTO, RATE_MIN), (pb.OperationThrottle(bytes_per_s=5_000), 5_000)):
        world.becomes(pb.OPERATION_STATE_RUNNING, throttle=throttle)
        world.operations.begin()
        assert world.heartbeats() == {rate}, (
            "another controller has become the active one, and has looked at nothing"
        )
        await world.tick()
        assert world.heartbeats() == {rate}
    world.becomes(pb.OPERATION_STATE_DONE)
    assert world.heartbeats() == {0}


async def test_an_operation_that_has_its_turn_waits_until_nodes_know_its_rate(world: World) -> None:
    for waiting in (pb.OPERATION_STATE_PENDING, pb.OPERATION_STATE_PAUSED):
        world.becomes(
            waiting, throttle=AUTO, paused_by_hand=waiting == pb.OPERATION_STATE_PAUSED, started_ms=1
        )
        await world.tick(LOOK_MS)
        await world.tick(LOOK_MS)
        assert world.heartbeats() == {0}
        world.becomes(pb.OPERATION_STATE_RUNNING, throttle=AUTO, started_ms=1)
        assert await world.tick(100) == 0, "a move would be copied at full speed"
        assert world.heartbeats() == {RATE_MIN}
        assert await world.tick() == 1
