"""A rolling restart: one process after another, each only while the cluster can do without it.

What a step has come to is judged, never counted: a process is restarted when one with another boot id has its place,
and the step is done when that one is as useful as the one before. So it does not matter who restarted it, how often the
command was killed meanwhile, or which controller is active: nobody is restarted twice for one step.

The command that restarts processes is told of a step by its state, RUNNING. Without the command nothing is begun, and
what it had begun is still judged to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from penstock_controller.state.generation import Context, Generated, partition_record
from penstock_controller.state.nodes import is_last_choice, rules_for
from penstock_controller.state.operations.engine import endings
from penstock_controller.state.operations.engine.changes import Records
from penstock_controller.state.operations.engine.kinds import EXECUTOR_GONE, has_turn
from penstock_controller.state.operations.engine.reassigned import some_of
from penstock_controller.state.operations.plans.gates import HEALTH, MIN_ISR, QUORUM, SINGLE_REPLICA
from penstock_controller.state.operations.processes import (
    CONTROLLER,
    GATEWAY,
    NODE,
    QuorumSeen,
    boot_id_of,
    controller_id_of,
    node_id_of,
    node_of,
)
from penstock_controller.state.operations.stops import Found, StopLook
from penstock_controller.state.partitions import change_partition
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_core.metadata.operations import ENDED
from penstock_proto.v1 import metadata_pb2 as pb

STEP_TIMEOUT_S: Final = 300
"""Unless the operation says otherwise."""
UNMET_MS_MAX: Final = 3_000
"""How long a gate may be closed before the operation pauses: the cluster settles after each step."""
ELECTIONS_AT_ONCE: Final = 20
BEGINNING: Final = "beginning"

_TODO: Final = pb.OPERATION_STEP_STATE_TODO
_RUNNING: Final = pb.OPERATION_STEP_STATE_RUNNING
_DONE: Final = pb.OPERATION_STEP_STATE_DONE
_SKIPPED: Final = pb.OPERATION_STEP_STATE_SKIPPED


@dataclass(frozen=True, slots=True)
class RollingView:
    """What a step depends on and is not in the image."""

    alive: Callable[[NodeId], bool]
    """Whether a node's session is alive."""
    quorum: QuorumSeen
    executor_there: bool
    """The command has asked for work lately."""
    executor_gone: bool
    """Nobody has asked for so long that nobody will."""


class RollingMemory:
    """What one active controller remembers of one rolling operation: a new one is a little slower, nothing else."""

    def __init__(self) -> None:
        self.waiting_for = ""
        """As of the last look, for people."""
        self._look: StopLook | None = None
        self._unmet_since_ms: int | None = None

    def look(self, image: MetadataImage, node_id: NodeId) -> Found | None:
        """Partitions as they concern a node; None while it takes another look."""
        if self._look is None or self._look.node_id != node_id:
            self._look = StopLook(node_id)
        return self._look.look(image)

    def unmet_ms(self, now_ms: int) -> int:
        """How long a gate has been closed."""
        if self._unmet_since_ms is None:
            self._unmet_since_ms = now_ms
        return now_ms - self._unmet_since_ms

    def met(self) -> None:
        """It is open."""
        self._unmet_since_ms = None


def next_restart(
    ctx: Context, operation_id: int, view: RollingView, memory: RollingMemory, now_ms: int
) -> Generated[bool]:
    """The next records of a rolling restart; the reply says whether there are any. `now_ms`: wall clock."""
    record = ctx.image.operations.operations.get(operation_id)
    if record is None or record.state in ENDED:
        return Generated(False)
    records = _Restart(ctx.image, record, view, memory, now_ms).records()
    return Generated(bool(records), records)


def step_under_way(record: pb.OperationRecord) -> pb.OperationStep | None:
    """The step that is handed to the command; there is never more than one."""
    return next((step for step in record.steps if step.state == _RUNNING), None)


def timeout_ms(record: pb.OperationRecord) -> int:
    """How long a step may take."""
    return (record.parameters.step_timeout_s or STEP_TIMEOUT_S) * 1000


class _Restart:
    """One look at one operation."""

    def __init__(
        self,
        image: MetadataImage,
        record: pb.OperationRecord,
        view: RollingView,
        memory: RollingMemory,
        now_ms: int,
    ) -> None:
        self._image = image
        self._old = record
        self._new = pb.OperationRecord()
        self._new.CopyFrom(record)
        self._view = view
        self._memory = memory
        self._now_ms = now_ms
        self._elected: Records = []
        self._replaced_by = ""

    def records(self) -> Records:
        """What is next."""
        self._memory.waiting_for = ""
        self._judge()
        state = self._new.state
        if state == pb.OPERATION_STATE_PENDING:
            if has_turn(self._image, self._new):
                self._run_on(BEGINNING)
        elif state == pb.OPERATION_STATE_CANCELLING:
            self._cancel()
        elif state == pb.OPERATION_STATE_PAUSED:
            self._go_on()
        else:
            self._run()
        new = self._new
        changed = [] if new == self._old else [pb.MetadataRecord(operation=new)]
        if new.state in ENDED:
            changed += endings.forgotten(self._image, new.operation_id)
        return changed + self._elected

    # --- states -------------------------------------------------------------------------------

    def _run(self) -> None:
        obstacle = self._obstacle()
        if obstacle is None:
            return
        if obstacle:
            self._pause(obstacle)
        elif step_under_way(self._new) is None:
            self._begin_next()

    def _go_on(self) -> None:
        """Paused: by itself once nothing is in the way, unless a person paused it."""
        if self._new.paused_by_hand or not (self._view.executor_there or self._view.executor_gone):
            return
        obstacle = self._obstacle(patient=False)
        if obstacle is None:
            return
        if obstacle:
            # One that is closed for the same reason with other partitions is no news.
            if obstacle.partition(":")[0] != self._new.reason.partition(":")[0]:
                self._new.reason = obstacle
        elif has_turn(self._image, self._new):
            self._run_on(self._new.phase)
        else:
            self._new.state = pb.OPERATION_STATE_PENDING
            self._new.reason = ""

    def _cancel(self) -> None:
        """The step under way ends first; one that nobody carries out any more ends as it is, once it is well."""
        step = step_under_way(self._new)
        if step is not None:
            lacks = self._lacks(step) if self._view.executor_gone else None
            if not step.reason and not (self._view.executor_gone and lacks in ("", _SAME)):
                return
            step.state, step.started_ms = _TODO, 0
        self._end(pb.OPERATION_STATE_CANCELLED, "cancelled")

    def _begin_next(self) -> None:
        step = self._next()
        if step is None:
            self._end(pb.OPERATION_STATE_DONE, "done")
        elif self._view.executor_there:
            step.state = _RUNNING
            step.started_ms = self._now_ms
            step.reason = ""
            step.boot_id_before = self._boot_id(step)
            self._new.phase = f"restarting {step.name}"
        else:
            self._memory.waiting_for = "the command that restarts processes to ask for the next one"

    def _run_on(self, phase: str) -> None:
        self._new.state = pb.OPERATION_STATE_RUNNING
        self._new.phase = phase
        self._new.reason = ""
        self._new.started_ms = self._new.started_ms or self._now_ms

    def _pause(self, reason: str) -> None:
        self._new.state = pb.OPERATION_STATE_PAUSED
        self._new.reason = reason

    def _end(self, state: pb.OperationState.ValueType, phase: str) -> None:
        self._new.state = state
        self._new.phase = phase
        self._new.reason = ""
        self._new.paused_by_hand = False
        self._new.finished_ms = self._now_ms

    # --- what is in the way ---------------------------------------------------------------------

    def _obstacle(self, *, patient: bool = True) -> str | None:
        """Why it may not go on; None while that is not known yet, or only for a moment."""
        step = step_under_way(self._new)
        following = self._next() if step is None else None
        # With nothing left to restart nobody lacks the command.
        is_wanted = following is not None or (step is not None and not step.reason)
        if self._view.executor_gone and is_wanted:
            return (
                f"{EXECUTOR_GONE}: the command that restarts processes was ended; "
                f"`penstock operation resume {self._new.operation_id} --via ...` goes on"
            )
        if step is not None:
            # That it is late is why the command ended, too.
            return step.reason
        closed = "" if following is None else self._closed(following)
        if closed == "":
            self._memory.met()
        elif closed:
            self._memory.waiting_for = closed
            if patient and self._memory.unmet_ms(self._now_ms) < UNMET_MS_MAX:
                return None
        return closed

    def _closed(self, step: pb.OperationStep) -> str | None:
        """The gate that this step must not pass; empty where all are open, None where that is not known yet."""
        if not self._view.quorum.members:
            return None
        if trouble := self._view.quorum.trouble():
            return f"{QUORUM}: {trouble}"
        if step.role != NODE:
            return ""
        found = self._memory.look(self._image, node_id_of(step.name))
        if found is None:
            return None
        allowed = self._new.allowed_gates
        for gate, names, said in (
            (HEALTH, found.ill, "offline or below min.insync.replicas"),
            (MIN_ISR, found.short, f"would be below min.insync.replicas without {step.name}"),
            (SINGLE_REPLICA, found.dark, f"would be offline without {step.name}, which has the only replica"),
        ):
            if names and gate not in allowed:
                return f"{gate}: {some_of(names)} {said}; it goes on by itself once that has changed"
        return ""

    # --- steps --------------------------------------------------------------------------------

    def _next(self) -> pb.OperationStep | None:
        """The step whose turn it is. Such as have nothing to do any more are skipped on the way."""
        waiting: list[pb.OperationStep] = []
        for step in self._new.steps:
            if step.state != _TODO:
                continue
            if why := self._superfluous(step):
                step.state, step.reason = _SKIPPED, why
                continue
            if step.role != CONTROLLER or controller_id_of(step.name) != self._view.quorum.active_id:
                return step
            waiting.append(step)
        return waiting[0] if waiting else None

    def _superfluous(self, step: pb.OperationStep) -> str:
        if step.role == GATEWAY and step.name not in self._image.gateways:
            return "it is not there any more"
        if step.role == NODE and node_of(self._image, step.name) is None:
            return "it was removed"
        boot_id = self._boot_id(step)
        if step.boot_id_before and boot_id and boot_id != step.boot_id_before:
            return "it was restarted before its turn came"
        return ""

    def _boot_id(self, step: pb.OperationStep) -> bytes:
        return boot_id_of(self._image, self._view.quorum, step.role, step.name)

    def _judge(self) -> None:
        """What the step under way has come to."""
        step = step_under_way(self._new)
        if step is None:
            return
        if step.role == NODE and node_of(self._image, step.name) is None:
            step.state, step.reason, step.finished_ms = _SKIPPED, "it was removed", self._now_ms
            return
        lacks = self._lacks(step)
        if lacks is None:
            return
        if not lacks:
            why = f"{_REPLACED}{self._replaced_by}" if self._replaced_by else ""
            step.state, step.reason, step.finished_ms = _DONE, why, self._now_ms
            return
        self._memory.waiting_for = f"{step.name}, which {lacks}"
        if not step.reason and self._now_ms - step.started_ms > timeout_ms(self._new):
            seconds = timeout_ms(self._new) // 1000
            step.reason = f"{step.name} {lacks}, {seconds} s after its restart began; see its log"

    def _lacks(self, step: pb.OperationStep) -> str | None:
        """What a process needs yet to be as useful as the one before; empty for nothing, None while not known."""
        boot_id = self._boot_id(step)
        if step.role == GATEWAY:
            return self._gateway_lacks(step, boot_id)
        if step.role == CONTROLLER:
            return self._controller_lacks(step, boot_id)
        return self._node_lacks(step, boot_id)

    def _same(self, step: pb.OperationStep, boot_id: bytes) -> str:
        return _SAME if boot_id == step.boot_id_before else ""

    def _gateway_lacks(self, step: pb.OperationStep, boot_id: bytes) -> str:
        if boot_id:
            return self._same(step, boot_id)
        # A container that is made anew may have another name, by which its gateway is called.
        named = {other.name for other in self._new.steps}
        named |= {other.reason.removeprefix(_REPLACED) for other in self._new.steps}
        for gateway_id, gateway in sorted(self._image.gateways.items()):
            if gateway_id not in named and gateway.gateway_epoch > self._new.operation_id:
                self._replaced_by = gateway_id
                return ""
        return "is not back"

    def _controller_lacks(self, step: pb.OperationStep, boot_id: bytes) -> str | None:
        quorum = self._view.quorum
        if not quorum.members:
            return None
        if not boot_id:
            return "does not answer"
        # What ails another one is in the way of the next step, and there is none where it is cancelled.
        is_last = self._new.state == pb.OPERATION_STATE_CANCELLING
        trouble = quorum.trouble_of(controller_id_of(step.name)) if is_last else quorum.trouble()
        return f"is not up to date ({trouble})" if trouble else self._same(step, boot_id)

    def _node_lacks(self, step: pb.OperationStep, boot_id: bytes) -> str | None:
        node = node_of(self._image, step.name)
        if node is None or not node.active or not self._view.alive(node.node_id):
            return "is not back" if boot_id == step.boot_id_before else "is not live"
        found = self._memory.look(self._image, node.node_id)
        if found is None:
            return None
        if found.behind:
            return f"is not in sync for {some_of(found.behind)}"
        if same := self._same(step, boot_id):
            return same
        if found.unled and not is_last_choice(self._image, node.node_id):
            self._elect(found.unled)
            if self._elected:
                names = [f"{self._image.topics[p.topic_id].name}-{p.partition}" for p in found.unled]
                return f"does not lead {some_of(names)} yet"
        return ""

    def _elect(self, unled: Iterable[PartitionImage]) -> None:
        """Give leadership back to who is preferred, a few partitions at a time."""
        self._elected = []
        for old in unled:
            rules = rules_for(self._image, self._image.topics[old.topic_id])
            new = change_partition(old, rules, prefer_first=True)
            if new is not None and new.leader == old.replicas[0]:
                self._elected.append(partition_record(new))
            if len(self._elected) >= ELECTIONS_AT_ONCE:
                return


_SAME: Final = "has not been restarted"
_REPLACED: Final = "replaced by "

__all__ = ["RollingMemory", "RollingView", "next_restart", "step_under_way"]
