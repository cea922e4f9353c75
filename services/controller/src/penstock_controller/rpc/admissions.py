"""Controllers with a new disk: planned and admitted by what the quorum sees of them now."""

from __future__ import annotations

from collections.abc import Callable

from penstock_controller.active.command_queue import NotActive
from penstock_controller.active.controller import Controller
from penstock_controller.state.generation import Context, Generated, error_pb
from penstock_controller.state.operations.plans.admission import plan_admission, start_admission
from penstock_core.errors import PenstockError
from penstock_core.failpoints import hit
from penstock_proto.v1 import operations_pb2 as pb


class Admissions:
    """Operations of the kind "controller-replace", on the active controller."""

    def __init__(self, core: Controller, wall_ms: Callable[[], int]) -> None:
        self._core = core
        self._wall_ms = wall_ms

    async def plan(self, request: pb.PlanRequest) -> pb.PlanResponse:
        """Which directory would vote, and whether it may. Raises NotActive."""
        if not self._core.active:
            raise NotActive
        try:
            return pb.PlanResponse(plan=plan_admission(self._core.image, request, self._core.quorum_view()))
        except PenstockError as error:
            return pb.PlanResponse(error=error_pb(error))

    async def start(self, request: pb.StartOperationRequest) -> pb.StartOperationResponse:
        """Admit it. Raises NotActive, or PenstockError when the controller is overloaded."""
        planned = await self.plan(request.request)
        if planned.error.code:
            return pb.StartOperationResponse(error=planned.error)
        core, now_ms = self._core, self._wall_ms()
        if any(gate.name == "quorum" and gate.blocking for gate in planned.plan.gates):
            # Without the others nothing is committed, not even what a refusal would have to wait for.
            return start_admission(
                Context(core.image, core.worker.rng), request, core.quorum_view(), now_ms
            ).reply

        def generate(ctx: Context) -> Generated[pb.StartOperationResponse]:
            try:
                return start_admission(ctx, request, core.quorum_view(), now_ms)
            except PenstockError as error:
                return Generated(pb.StartOperationResponse(error=error_pb(error)))

        controller_id = planned.plan.parameters.controller_id
        old = core.image.controllers.get(controller_id, b"")
        reply = await core.submit(generate)
        if reply.HasField("operation"):
            hit("operation.start.applied")
            new = core.image.controllers.get(controller_id, b"")
            core.log_replaced(controller_id, old, new, request.principal)
        return reply
