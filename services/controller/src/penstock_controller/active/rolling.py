"""Rolling operations on the event loop of the active controller: it asks the other controllers how they are, knows
which command carries out an operation, and tells that command what to restart. Controllers with a new disk are
judged by the same answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from penstock_controller.active.command_queue import CommandQueue, NotActive
from penstock_controller.state.generation import Context, Generated, make_error
from penstock_controller.state.operations.engine.admission import next_admission, waits_for
from penstock_controller.state.operations.engine.kinds import CONTROLLER_REPLACE, is_rolling
from penstock_controller.state.operations.engine.rolling import (
    RollingMemory,
    RollingView,
    next_restart,
    step_under_way,
)
from penstock_controller.state.operations.executors import Executors
from penstock_controller.state.operations.processes import NOT_ASKED, QuorumSeen, boot_id_of, http_of
from penstock_core.errors import ErrorCode
from penstock_core.failpoints import hit
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.operations import ENDED
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api
from penstock_runtime.ports import Clocks

Quorum = Callable[[], Awaitable[QuorumSeen]]

ASK_AGAIN_MS: Final = 1_000
"""How often a command asks for work."""
ASK_CONTROLLERS_MS: Final = 1_000
"""How old what controllers said may be."""


async def _nobody() -> QuorumSeen:
    return NOT_ASKED


class Rolling:
    """The rolling operations of one controller while it is active."""

    def __init__(self, clocks: Clocks, alive: Callable[[NodeId], bool]) -> None:
        self.ask_controllers: Quorum = _nobody
        """Set by the role."""
        self._clock_ms = clocks.ms
        self._wall_ms = clocks.wall_ms
        self._alive = alive
        self._worker: CommandQueue
        self._executors = Executors()
        self._memory: dict[int, RollingMemory] = {}
        self._quorum = NOT_ASKED
        self._asked_ms = 0

    def connect(self, worker: CommandQueue) -> None:
        """Give it the queue that its steps go through."""
        self._worker = worker

    def begin(self) -> None:
        """A term as the active controller begins."""
        self._executors.begin()
        self._memory.clear()
        self._quorum = NOT_ASKED

    async def look(self) -> QuorumSeen:
        """Every controller as it says it is, asked now. One that does not answer takes 2 s."""
        self._quorum = await self.ask_controllers()
        self._asked_ms = self._clock_ms()
        return self._quorum

    def waiting_for(self, record: pb.OperationRecord) -> str:
        """What an operation that runs waits for, for people; empty when nothing."""
        if record.kind == CONTROLLER_REPLACE:
            return waits_for(self._worker.image, record, self._quorum)
        memory = self._memory.get(record.operation_id)
        return "" if memory is None else memory.waiting_for

    # --- steps ------------------------------------------------------------------------------

    async def step(self, operation_id: int) -> None:
        """Do what an operation has to do next. Raises NotActive, or PenstockError as the queue does."""
        if self._clock_ms() - self._asked_ms >= ASK_CONTROLLERS_MS or not self._quorum.members:
            await self.look()
        image = self._worker.image
        now = Context(image, self._worker.rng, alive=self._alive)
        wanted = self._next(now, operation_id)
        if wanted.records:
            hit("operation.step.before_propose")
            await self._worker.submit(lambda ctx: self._next(ctx, operation_id))
            hit("operation.step.after_apply")
        after = self._worker.image.operations.operations.get(operation_id)
        if after is None or after.state in ENDED:
            self._memory.pop(operation_id, None)
            self._executors.forget(operation_id)

    def _next(self, ctx: Context, operation_id: int) -> Generated[bool]:
        record = ctx.image.operations.operations.get(operation_id)
        if record is None:
            return Generated(False)
        if record.kind == CONTROLLER_REPLACE:
            return next_admission(ctx, operation_id, self._quorum, self._wall_ms())
        now_ms = self._clock_ms()
        view = RollingView(
            alive=self._alive,
            quorum=self._quorum,
            executor_there=self._executors.is_there(record, now_ms),
            executor_gone=self._executors.is_gone(record, now_ms),
        )
        memory = self._memory.setdefault(operation_id, RollingMemory())
        return next_restart(ctx, operation_id, view, memory, self._wall_ms())

    # --- the command ------------------------------------------------------------------------

    async def execute(self, request: api.ExecuteOperationRequest) -> api.ExecuteOperationResponse:
        """What the command is to restart now. Raises as `step`."""
        if not self._worker.active:
            raise NotActive
        record = self._worker.image.operations.operations.get(request.operation_id)
        if (refused := self._refusal(record, request)) is not None or record is None:
            return refused or api.ExecuteOperationResponse()
        if request.leaving:
            self._executors.leave(request.operation_id, request.executor_id)
        elif record.state not in ENDED:
            self._executors.ask(request.operation_id, request.executor_id, self._clock_ms())
            if record.executor.executor_id != request.executor_id:
                await self._worker.submit(lambda ctx: _carried_out_by(ctx, request, self._wall_ms()))
        image = self._worker.image
        newest = image.operations.operations.get(request.operation_id, record)
        return _told(image, newest, request, self._quorum)

    def _refusal(
        self, record: pb.OperationRecord | None, request: api.ExecuteOperationRequest
    ) -> api.ExecuteOperationResponse | None:
        if record is None:
            code = ErrorCode.RESOURCE_NOT_FOUND
            why = f"there is no operation {request.operation_id}; see `penstock operation list --all`"
        elif not is_rolling(record):
            code = ErrorCode.INVALID_REQUEST
            why = f"operation {record.operation_id} ({record.kind}) restarts nothing: it goes on by itself"
        elif not 0 < len(request.executor_id) <= 100:
            code, why = ErrorCode.INVALID_REQUEST, "executor_id needs 1 to 100 characters"
        elif record.state not in ENDED and (
            busy_ms := self._executors.busy_ms(record, request.executor_id, self._clock_ms())
        ):
            code = ErrorCode.REBALANCE_IN_PROGRESS
            why = (
                f"operation {record.operation_id} is carried out by another command (via {record.executor.via}); it "
                f"may be taken over once that one is gone, in {busy_ms // 1000 + 1} s at the soonest"
            )
        else:
            return None
        return api.ExecuteOperationResponse(error=make_error(code, why), ask_again_ms=ASK_AGAIN_MS)


def _carried_out_by(ctx: Context, request: api.ExecuteOperationRequest, now_ms: int) -> Generated[bool]:
    old = ctx.image.operations.operations.get(request.operation_id)
    if old is None or old.state in ENDED or old.executor.executor_id == request.executor_id:
        return Generated(False)
    new = pb.OperationRecord()
    new.CopyFrom(old)
    new.executor.CopyFrom(
        pb.OperationExecutor(executor_id=request.executor_id, via=request.via, since_ms=now_ms)
    )
    return Generated(True, [pb.MetadataRecord(operation=new)])


def _told(
    image: MetadataImage,
    record: pb.OperationRecord,
    request: api.ExecuteOperationRequest,
    quorum: QuorumSeen,
) -> api.ExecuteOperationResponse:
    response = api.ExecuteOperationResponse(ask_again_ms=ASK_AGAIN_MS)
    response.operation.record.CopyFrom(record)
    step = step_under_way(record)
    mine = record.executor.executor_id == request.executor_id
    # One that took too long is not told again: who resumes the operation says that it is to be tried once more.
    told = step is not None and mine and not request.leaving and not step.reason and record.state not in ENDED
    if step is not None and told and not _is_another(image, quorum, step):
        response.step.CopyFrom(step)
        response.http = http_of(image, step.role, step.name)
    return response


def _is_another(image: MetadataImage, quorum: QuorumSeen, step: pb.OperationStep) -> bool:
    """Whether its process is another one by now: somebody started it who then resumed the operation, which gave the
    step its whole time again, from now on; a start of before is not told from that of the process of before by time."""
    now = boot_id_of(image, quorum, step.role, step.name)
    return bool(now) and bool(step.boot_id_before) and now != step.boot_id_before
