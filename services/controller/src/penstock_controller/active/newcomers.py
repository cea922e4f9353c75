"""Gives nodes that are new their share by themselves, while `penstock.rebalance.auto` is set.

It begins operations like those that people begin. Who is meant is decided by `state.operations.newcomers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock_controller.active.command_queue import CommandQueue, NotActive
from penstock_controller.active.operations import Operations
from penstock_controller.state.operations.newcomers import (
    CREATED_BY,
    count_replicas,
    may_fill,
    nodes_to_fill,
    obstacle,
)
from penstock_core.errors import PenstockError
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.ports import Clocks

LOOK_MS: Final = 5_000
AGAIN_MS: Final = 60_000
"""After a plan that moves nothing, or that a gate refused."""

Steady = Callable[[NodeId, int], bool]


class Newcomers:
    """Of one controller while it is active."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        clocks: Clocks,
        steady: Callable[[NodeId, int, int], bool],
        operations: Operations,
    ) -> None:
        """`steady`: whether a node has been live for so many ms, as of a time."""
        self._lifecycle = lifecycle
        self._clock_ms = clocks.ms
        self._wall_ms = clocks.wall_ms
        self._steady = steady
        self._operations = operations
        self._worker: CommandQueue
        self._looking: asyncio.Task[None] | None = None
        self._next_ms = 0
        self._told = ""

    def connect(self, worker: CommandQueue) -> None:
        """Give it the queue whose image it looks at."""
        self._worker = worker

    def begin(self) -> None:
        """A term as the active controller begins."""
        self._next_ms = 0
        self._told = ""

    def tick(self, now_ms: int) -> None:
        """While active: look when it is time."""
        if now_ms < self._next_ms or (self._looking is not None and not self._looking.done()):
            return
        self._next_ms = now_ms + LOOK_MS
        if may_fill(self._worker.image):
            self._looking = self._lifecycle.create_task(self._look(), "newcomers")

    async def _look(self) -> None:
        try:
            image = self._worker.image
            replicas = await self._operations.in_slices(count_replicas(image))
            now_ms = self._clock_ms()
            found = nodes_to_fill(image, replicas, lambda n, ms: self._steady(n, ms, now_ms), self._wall_ms())
            if found:
                await self._fill(found)
        except (NotActive, PenstockError):
            # Whoever is active then, or the next look, comes to the same.
            return

    async def _fill(self, node_ids: tuple[NodeId, ...]) -> None:
        request = api.PlanRequest(
            kind="node-add",
            parameters=pb.OperationParameters(node_ids=node_ids),
            throttle=pb.OperationThrottle(auto=True),
        )
        planned = await self._operations.plan(request)
        why = planned.error.message
        if not why and not planned.plan.runnable:
            why = "; ".join(f"{g.name}: {g.detail}" for g in planned.plan.gates if g.blocking)
        if why or not planned.plan.moves:
            self._next_ms = self._clock_ms() + AGAIN_MS
            self._tell(node_ids, why or "the plan moves nothing")
            return

        def unless(image: MetadataImage) -> str:
            return obstacle(image, node_ids, self._wall_ms())

        start = api.StartOperationRequest(request=request, plan_id=planned.plan.plan_id, principal=CREATED_BY)
        begun = await self._operations.start(start, unless)
        if begun.HasField("operation"):
            self._told = ""
        else:
            self._tell(node_ids, begun.error.message)

    def _tell(self, node_ids: tuple[NodeId, ...], why: str) -> None:
        """Once, as long as it is the same."""
        if why != self._told:
            self._told = why
            self._lifecycle.log.info(
                "nodes wait for their share", nodes=",".join(map(str, node_ids)), reason=why
            )


__all__ = ["Newcomers"]
