"""Upgrades: planned and begun by what every controller says of itself now."""

from __future__ import annotations

from collections.abc import Callable

from penstock_controller.active.command_queue import NotActive
from penstock_controller.active.controller import Controller
from penstock_controller.quorum.raft import ENTRIES_KEPT
from penstock_controller.rpc.peer_levels import PeerLevels
from penstock_controller.state.generation import Context, Generated, error_pb
from penstock_controller.state.operations.plans.upgrade import Controllers, plan_upgrade, start_upgrade
from penstock_core.errors import PenstockError
from penstock_core.failpoints import hit
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import operations_pb2 as pb


class Upgrades:
    """Operations of the kind "upgrade", on the active controller."""

    def __init__(
        self, core: Controller, levels: PeerLevels, process: common.ProcessInfo, wall_ms: Callable[[], int]
    ) -> None:
        """`process`: this controller, as it says it is."""
        self._core = core
        self._levels = levels
        self._process = process
        self._wall_ms = wall_ms

    async def plan(self, request: pb.PlanRequest) -> pb.PlanResponse:
        """Which level, and whether everybody understands it. Raises NotActive."""
        controllers = await self._controllers()
        try:
            return pb.PlanResponse(plan=plan_upgrade(self._core.image, request, controllers))
        except PenstockError as error:
            return pb.PlanResponse(error=error_pb(error))

    async def start(self, request: pb.StartOperationRequest) -> pb.StartOperationResponse:
        """Set the level. Raises NotActive, or PenstockError when the controller is overloaded."""
        controllers, now_ms = await self._controllers(), self._wall_ms()

        def generate(ctx: Context) -> Generated[pb.StartOperationResponse]:
            try:
                return start_upgrade(ctx, request, controllers, now_ms)
            except PenstockError as error:
                return Generated(pb.StartOperationResponse(error=error_pb(error)))

        reply = await self._core.submit(generate)
        if reply.HasField("operation"):
            hit("upgrade.level.applied")
        if reply.HasField("operation") and request.request.parameters.downgrade:
            # The log keeps its last entries, whatever they are: let those be none that a lower level cannot read.
            for _ in range(ENTRIES_KEPT):
                await self._core.submit(lambda _: Generated(True))
        return reply

    async def _controllers(self) -> Controllers:
        if not self._core.active:
            raise NotActive
        me, said = self._core.settings.controller_id, await self._levels.describe()
        found: dict[int, common.ProcessInfo | None] = {me: self._process}
        for controller_id in self._levels.others:
            found[controller_id] = said[controller_id].process if controller_id in said else None
        return found
