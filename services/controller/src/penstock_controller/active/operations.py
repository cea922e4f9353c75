"""Operations on the event loop of the active controller: plans in slices, steps one after another.

What is to be done is decided by `state.operations`; here it is asked twice a second, and after each change of the
metadata, what each operation that goes on has to do next. An answer goes through the command queue as everybody's
requests do: it is generated from the image that it is applied to, so steps of a deposed controller change nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from penstock_controller.active.command_queue import SLICE_MS, CommandQueue, NotActive
from penstock_controller.active.rolling import Rolling
from penstock_controller.state.generation import Context, Generated, error_pb, make_error
from penstock_controller.state.operations.conditions import describe_nodes
from penstock_controller.state.operations.engine.kinds import ROLLING_RESTART, judged_by_controllers
from penstock_controller.state.operations.engine.start import control_operation, start_operation
from penstock_controller.state.operations.engine.steps import next_steps
from penstock_controller.state.operations.meters import OperationMeters
from penstock_controller.state.operations.plans.plan import PlanView, plan_steps
from penstock_controller.state.operations.processes import NOT_ASKED, QuorumSeen
from penstock_controller.state.operations.reports import Reports
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.failpoints import hit
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.operations import ENDED, OperationsImage
from penstock_proto.v1 import controller_pb2
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.ports import Clocks
from penstock_runtime.tracing import Attributes, tracing_of

R = TypeVar("R")

STEP_MS: Final = 500
"""How often an operation is looked at while nothing changes."""
LOOK_MS: Final = 1_000
"""How often rates and latencies are looked at."""
REPORT_MS: Final = 5_000
"""How often nodes report while no operation goes on."""
REPORT_BUSY_MS: Final = 1_000
MEASURED_MAX: Final = 10
PLANS_TRIED_MAX: Final = 5
"""Plans made anew for a start whose metadata changed meanwhile."""


@dataclass(frozen=True, slots=True)
class Measured:
    """How far an operation was when it was looked at."""

    record: pb.OperationRecord
    progress: api.OperationProgress
    """Without what it waits for."""
    moved_bytes: int
    """Never goes back while this controller is active."""


class Operations:
    """The operations of one controller while it is active."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        clocks: Clocks,
        alive: Callable[[NodeId], bool],
        quorum_ok: Callable[[], tuple[bool, str]],
    ) -> None:
        self.reports = Reports()
        self.rolling = Rolling(clocks, alive)
        self._lifecycle = lifecycle
        self._clock_ms = clocks.ms
        self._clock_s = clocks.s
        self._tracing = tracing_of(lifecycle)
        self._wall_ms = clocks.wall_ms
        self._alive = alive
        self._quorum_ok = quorum_ok
        self._worker: CommandQueue
        self._meters = OperationMeters()
        self.measured: list[Measured] = []
        """Of operations that go on, as of the last look: a second old at most, and the oldest MEASURED_MAX."""
        self._told: dict[NodeId, int] = {}
        """The rate that each node heard last; 0 without bound."""
        self._prepared: set[int] = set()
        """Operations of which every move was looked at once."""
        self._stepping: asyncio.Task[None] | None = None
        self._next_step_ms = self._next_look_ms = 0
        self._stepped_version = -1
        self._known: tuple[OperationsImage | None, tuple[int, ...]] = (None, ())

    def connect(self, worker: CommandQueue) -> None:
        """Give it the queue that its steps go through."""
        self._worker = worker
        self.rolling.connect(worker)

    def begin(self) -> None:
        """A term as the active controller begins: what nodes told an earlier one is not known."""
        self.reports.clear()
        self.rolling.begin()
        self._meters = OperationMeters()
        self.measured = []
        self._told.clear()
        self._prepared.clear()
        self._next_step_ms = self._next_look_ms = 0
        self._stepped_version = -1

    # --- nodes ------------------------------------------------------------------------------

    def heartbeat(self, beat: controller_pb2.NodeHeartbeat, reply: controller_pb2.NodeHeartbeatReply) -> None:
        """A node with a session was heard: take its report, and tell it how to go on."""
        node_id, now_ms = NodeId(beat.node_id), self._clock_ms()
        if beat.HasField("report"):
            self.reports.take(node_id, beat.node_epoch, beat.report, now_ms)
        going_on = self._going_on()
        reply.report_interval_ms = REPORT_BUSY_MS if going_on else REPORT_MS
        reply.want_all_sizes = self.reports.wants_all(node_id, beat.node_epoch)
        limit = self._meters.limit_to_tell(self._worker.image) if going_on else 0
        reply.catch_up_bytes_per_s = self._told[node_id] = limit

    # --- requests ---------------------------------------------------------------------------

    async def plan(self, request: api.PlanRequest) -> api.PlanResponse:
        """What an operation would do. Raises NotActive."""
        try:
            return api.PlanResponse(plan=await self._plan(request, await self._quorum_for(request)))
        except PenstockError as error:
            return api.PlanResponse(error=error_pb(error))

    async def start(
        self, request: api.StartOperationRequest, unless: Callable[[MetadataImage], str] = lambda _: ""
    ) -> api.StartOperationResponse:
        """Plan and begin. Raises NotActive, or PenstockError when the controller is overloaded.

        `unless`: why not after all, as of the image that it would begin in; empty when it may.
        """
        for _ in range(PLANS_TRIED_MAX):
            try:
                quorum = await self._quorum_for(request.request)
                plan = await self._plan(request.request, quorum)
            except PenstockError as error:
                return api.StartOperationResponse(error=error_pb(error))
            response = await self._worker.submit(
                lambda ctx, plan=plan, quorum=quorum: (
                    _refused_by(unless(ctx.image))  # type: ignore[misc]
                    or start_operation(ctx, request, plan, self._wall_ms(), quorum)
                )
            )
            if not _is_outrun(request, response):
                break
        if response.HasField("operation"):
            hit("operation.start.applied")
            self._tell(response.operation.record)
            self._next_step_ms = 0
        return response

    async def control(self, request: api.ControlOperationRequest) -> api.ControlOperationResponse:
        """Pause, resume, cancel, throttle. Raises as `start`."""
        response = await self._worker.submit(lambda ctx: control_operation(ctx, request, self._wall_ms()))
        if response.HasField("operation"):
            self._tell(response.operation.record)
            self._next_step_ms = 0
            self._fill_progress(response.operation)
        return response

    async def describe(self, request: api.DescribeOperationsRequest) -> api.DescribeOperationsResponse:
        """Operations with their progress, newest first. Raises NotActive."""
        image = self._active_image()
        response = api.DescribeOperationsResponse()
        for operation_id in sorted(image.operations.operations, reverse=True):
            record = image.operations.operations[operation_id]
            if request.operation_id:
                wanted = operation_id == request.operation_id
            else:
                wanted = request.ended or record.state not in ENDED
            if wanted:
                self._fill_progress(response.operations.add(record=record))
        if request.operation_id and not response.operations:
            response.error.code = ErrorCode.RESOURCE_NOT_FOUND
            response.error.message = (
                f"there is no operation {request.operation_id}; see `penstock operation list --all`"
            )
        return response

    async def execute(self, request: api.ExecuteOperationRequest) -> api.ExecuteOperationResponse:
        """The next process that a command is to restart. Raises as `start`."""
        response = await self.rolling.execute(request)
        if response.HasField("operation"):
            self._next_step_ms = 0
            self._fill_progress(response.operation)
        return response

    async def nodes(self) -> api.DescribeNodesResponse:
        """All storage nodes. Raises NotActive."""
        return await self.in_slices(describe_nodes(self._active_image(), self.reports))

    def _fill_progress(self, operation: api.Operation) -> None:
        operation.progress.CopyFrom(
            self._meters.progress(self._worker.image, operation.record, self.reports, self._clock_ms())
        )
        if operation.record.state == pb.OPERATION_STATE_RUNNING and judged_by_controllers(operation.record):
            operation.progress.waiting_for = self.rolling.waiting_for(operation.record)

    def _active_image(self) -> MetadataImage:
        if not self._worker.active:
            raise NotActive
        return self._worker.image

    async def _quorum_for(self, request: api.PlanRequest) -> QuorumSeen:
        """How the controllers are, where a plan is about them."""
        self._active_image()
        return await self.rolling.look() if request.kind == ROLLING_RESTART else NOT_ASKED

    async def _plan(self, request: api.PlanRequest, quorum: QuorumSeen) -> api.Plan:
        image = self._active_image()
        view = PlanView(
            reports=self.reports,
            alive=self._alive,
            quorum_ok=self._quorum_ok(),
            auto_bytes_per_s=self._meters.auto_bytes_per_s,
            quorum=quorum,
        )
        return await self.in_slices(plan_steps(image, request, view))

    async def in_slices(self, steps: Generator[None, None, R]) -> R:
        """Run it to its end without holding the loop. Raises NotActive once this controller is no longer active."""
        loop = asyncio.get_running_loop()
        slice_end = loop.time() + SLICE_MS / 1000
        while True:
            try:
                next(steps)
            except StopIteration as ended:
                result: R = ended.value
                return result
            if loop.time() >= slice_end:
                await asyncio.sleep(0)
                if not self._worker.active:
                    raise NotActive
                slice_end = loop.time() + SLICE_MS / 1000

    # --- steps ------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """While active: look at operations when it is time, or when something changed."""
        if self._stepping is not None and not self._stepping.done():
            return
        going_on = self._going_on()
        self._prepared.intersection_update(going_on)
        if now_ms >= self._next_look_ms and self._prepared.issuperset(going_on):
            self._next_look_ms = now_ms + LOOK_MS
            self.reports.keep(self._worker.image.nodes)
            self._meters.observe(self._worker.image, self.reports, now_ms)
            self.measured = self._measure(going_on[:MEASURED_MAX])
        if not going_on:
            return
        version = self._worker.image.version
        if now_ms < self._next_step_ms and version == self._stepped_version:
            return
        self._next_step_ms = now_ms + STEP_MS
        self._stepped_version = version
        self._stepping = self._lifecycle.create_task(self._step(going_on), "operations")

    def _measure(self, operation_ids: Iterable[int]) -> list[Measured]:
        image = self._worker.image
        records = (image.operations.operations[i] for i in operation_ids)
        return [Measured(record, *self._meters.measured(image, record, self.reports)) for record in records]

    async def _step(self, operation_ids: tuple[int, ...]) -> None:
        # All before the first rate and the first step: both look at the moves of every operation.
        if not self._prepared.issuperset(operation_ids):
            if not await self._each(operation_ids, self._prepare):
                return
            # What they set as a rate counts from now on.
            self._meters.observe(self._worker.image, self.reports, self._clock_ms())
        # One that has just got its turn, or was resumed, brings a rate that nobody has heard of.
        self._meters.rerate(self._worker.image)
        if self._is_told():
            await self._each(operation_ids, self._step_one)

    async def _each(self, operation_ids: tuple[int, ...], do: Callable[[int], Awaitable[None]]) -> bool:
        """False once this controller is no longer active."""
        for operation_id in operation_ids:
            if not self._worker.active:
                return False
            try:
                await do(operation_id)
            except NotActive:
                return False
            except PenstockError as error:
                # The next look comes to the same.
                self._lifecycle.log.debug("operation step refused", operation=operation_id, reason=str(error))
            await asyncio.sleep(0)
        return self._worker.active

    async def _prepare(self, operation_id: int) -> None:
        """The first look at all moves of an operation, in slices: very many take a tenth of a second."""
        if operation_id in self._prepared:
            return
        record = self._worker.image.operations.operations.get(operation_id)
        if record is not None:
            await self.in_slices(self._meters.engine.ledgers.prepare(self._worker.image, record))
            self._prepared.add(operation_id)

    def _is_told(self) -> bool:
        """Whether every live node keeps to the rate of now: before it does, one move would be copied at full speed."""
        limit = self._meters.limit_bytes_per_s
        return limit == 0 or all(
            0 < self._told.get(node_id, 0) <= limit
            for node_id, node in self._worker.image.nodes.items()
            if not node.fenced and self._alive(node_id)
        )

    async def _step_one(self, operation_id: int) -> None:
        before = self._worker.image.operations.operations.get(operation_id)
        if before is not None and judged_by_controllers(before):
            await self.rolling.step(operation_id)
            self._tell_change(before)
            return
        # A look with nothing to do commits no barrier.
        now = Context(self._worker.image, self._worker.rng, alive=self._alive)
        wanted = next_steps(now, operation_id, self.reports, self._wall_ms(), self._meters.engine)
        if not wanted.records and wanted.further is None:
            return
        hit("operation.step.before_propose")
        began_s = self._clock_s()
        await self._worker.submit(
            lambda ctx: next_steps(ctx, operation_id, self.reports, self._wall_ms(), self._meters.engine)
        )
        hit("operation.step.after_apply")
        if self._tracing is not None and before is not None:
            about: Attributes = {"penstock.operation": operation_id, "penstock.operation_kind": before.kind}
            self._tracing.tell("controller.operation_step", began_s, self._clock_s(), about)
        if before is not None:
            self._tell_change(before)

    def _going_on(self) -> tuple[int, ...]:
        """Ids of operations that have not ended, oldest first; looked up once for each change of them."""
        operations = self._worker.image.operations
        if self._known[0] is not operations:
            ids = tuple(i for i, o in sorted(operations.operations.items()) if o.state not in ENDED)
            self._known = operations, ids
        return self._known[1]

    def _tell_change(self, before: pb.OperationRecord) -> None:
        after = self._worker.image.operations.operations.get(before.operation_id)
        if after is not None and _looks(before) != _looks(after):
            self._tell(after)

    def _tell(self, record: pb.OperationRecord) -> None:
        self._lifecycle.log.info(
            "operation",
            operation=record.operation_id,
            kind=record.kind,
            state=pb.OperationState.Name(record.state).removeprefix("OPERATION_STATE_").lower(),
            phase=record.phase,
            reason=record.reason,
        )


def _refused_by(why: str) -> Generated[api.StartOperationResponse] | None:
    if not why:
        return None
    return Generated(api.StartOperationResponse(error=make_error(ErrorCode.POLICY_VIOLATION, why)))


def _looks(record: pb.OperationRecord) -> tuple[int, str, str]:
    return record.state, record.phase, record.reason


def _is_outrun(request: api.StartOperationRequest, response: api.StartOperationResponse) -> bool:
    """Whether another change came between plan and start, and whoever asked would take any plan."""
    changed = any(gate.name == "plan-changed" and gate.blocking for gate in response.plan.gates)
    return changed and not request.plan_id and not response.HasField("operation")
