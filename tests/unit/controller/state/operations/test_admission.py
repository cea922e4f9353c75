"""Controllers with a new disk: planned by what the quorum sees, admitted in one command, judged until they vote."""

from __future__ import annotations

import pytest

from penstock_controller.state import controllers
from penstock_controller.state.controllers import Connected, QuorumView
from penstock_controller.state.operations.engine.admission import (
    COPYING,
    PATIENCE_S,
    next_admission,
    waits_for,
)
from penstock_controller.state.operations.engine.kinds import CONTROLLER_REPLACE
from penstock_controller.state.operations.engine.start import control_operation
from penstock_controller.state.operations.plans.admission import plan_admission, start_admission
from penstock_controller.state.operations.processes import NOT_ASKED, ControllerSeen, QuorumSeen
from penstock_core.errors import ErrorCode, PenstockError
from penstock_proto.v1 import metadata_pb2 as meta
from penstock_proto.v1 import operations_pb2 as pb
from unit.controller.state.test_nodes import Cluster

OLD, NEW = b"o" * 16, b"n" * 16
NOW_MS = 1_700_000_000_000


class Quorum:
    """Three controllers, of which the third one is back with an empty disk."""

    def __init__(self, level: int = 3) -> None:
        self.cluster = Cluster(level=level)
        self.connected = {
            1: Connected(b"1" * 16, True),
            2: Connected(b"2" * 16, True),
            3: Connected(NEW, False),
        }
        directories = {1: b"1" * 16, 2: b"2" * 16, 3: OLD}
        self.cluster.do(controllers.record_controllers(self.cluster.context, directories))
        self.answers = {
            i: ControllerSeen(b"", directory_id=s.directory_id) for i, s in self.connected.items()
        }
        self.answers[3] = ControllerSeen(b"", False, 40, NEW)
        self.now_ms = NOW_MS

    @property
    def view(self) -> QuorumView:
        return QuorumView(1, frozenset({1, 2, 3}), self.connected)

    @property
    def seen(self) -> QuorumSeen:
        return QuorumSeen(frozenset({1, 2, 3}), 1, self.answers)

    def plan(self, controller_id: int = 3) -> pb.Plan:
        return plan_admission(self.cluster.image, wanted(controller_id), self.view)

    def start(self, plan_id: str = "") -> pb.StartOperationResponse:
        request = pb.StartOperationRequest(request=wanted(3), plan_id=plan_id, principal="User:admin")
        made = start_admission(self.cluster.context, request, self.view, self.now_ms)
        assert not (made.reply.error.code and made.records)
        self.cluster.do(made)
        return made.reply

    def begin(self) -> int:
        return self.start().operation.record.operation_id

    def look(self, number: int, seen: QuorumSeen | None = None) -> meta.OperationRecord:
        """A look, after which a second one has nothing to do."""
        for _ in range(2):
            made = next_admission(self.cluster.context, number, seen or self.seen, self.now_ms)
            self.cluster.do(made)
        assert not made.records
        return self.record(number)

    def record(self, number: int) -> meta.OperationRecord:
        return self.cluster.image.operations.operations[number]

    def control(self, number: int, what: pb.OperationControl.ValueType) -> None:
        request = pb.ControlOperationRequest(operation_id=number, control=what, principal="User:admin")
        self.cluster.do(control_operation(self.cluster.context, request, self.now_ms))


def wanted(controller_id: int) -> pb.PlanRequest:
    parameters = meta.OperationParameters(controller_id=controller_id)
    return pb.PlanRequest(kind=CONTROLLER_REPLACE, parameters=parameters)


def closed(plan: pb.Plan) -> list[str]:
    return [gate.name for gate in plan.gates if gate.blocking]


def test_the_plan_names_the_directory_and_another_one_is_another_plan() -> None:
    quorum = Quorum()
    plan = quorum.plan()
    assert plan.runnable
    assert [(s.name, s.role, s.action) for s in plan.steps] == [
        ("controller-3", "controller", f"votes with directory {NEW.hex()}")
    ]
    assert [gate.name for gate in plan.gates] == ["quorum", "conflict", "versions"]
    assert any(OLD.hex() in warning for warning in plan.warnings)
    assert quorum.plan() == plan
    quorum.connected[3] = Connected(b"x" * 16, False)
    assert quorum.plan().plan_id != plan.plan_id
    assert closed(quorum.start(plan.plan_id).plan) == ["plan-changed"]


def test_it_is_admitted_in_the_command_that_begins_and_done_once_it_votes() -> None:
    quorum = Quorum()
    reply = quorum.start(quorum.plan().plan_id)
    record = reply.operation.record
    number = record.operation_id
    assert quorum.record(number) == record and number == quorum.cluster.image.version
    assert (record.state, record.phase, record.created_by) == (
        meta.OPERATION_STATE_RUNNING,
        COPYING,
        "User:admin",
    )
    assert quorum.cluster.image.controllers[3] == NEW
    assert quorum.look(number).state == meta.OPERATION_STATE_RUNNING
    assert quorum.look(number, NOT_ASKED).state == meta.OPERATION_STATE_RUNNING
    waits = waits_for(quorum.cluster.image, record, quorum.seen)
    assert waits == "controller-3, which has yet to copy the log: it lacks 40 entries"
    quorum.answers[3] = ControllerSeen(b"", True, 0, NEW)
    ended = quorum.look(number)
    assert (ended.state, ended.phase) == (meta.OPERATION_STATE_DONE, "done")
    assert ended.steps[0].state == meta.OPERATION_STEP_STATE_DONE
    quorum.connected[3] = Connected(NEW, True)
    with pytest.raises(PenstockError, match="nothing is to be replaced"):
        quorum.plan()


def test_a_vote_with_another_directory_than_the_admitted_one_does_not_count() -> None:
    quorum = Quorum()
    number = quorum.begin()
    quorum.answers[3] = ControllerSeen(b"", True, 0, OLD)
    assert quorum.look(number).state == meta.OPERATION_STATE_RUNNING
    assert f"{NEW.hex()} was admitted" in waits_for(quorum.cluster.image, quorum.record(number), quorum.seen)


def test_one_that_takes_too_long_pauses_and_ends_by_itself() -> None:
    quorum = Quorum()
    number = quorum.begin()
    del quorum.answers[3]
    quorum.now_ms += PATIENCE_S * 1000 + 1
    paused = quorum.look(number)
    assert paused.state == meta.OPERATION_STATE_PAUSED
    assert paused.reason.startswith("controller-3 does not answer")
    quorum.answers[3] = ControllerSeen(b"", True, 0, NEW)
    ended = quorum.look(number)
    assert (ended.state, ended.reason) == (meta.OPERATION_STATE_DONE, "")


def test_a_pause_by_hand_lasts_and_a_cancel_says_what_stays() -> None:
    quorum = Quorum()
    number = quorum.begin()
    quorum.control(number, pb.OPERATION_CONTROL_PAUSE)
    quorum.answers[3] = ControllerSeen(b"", True, 0, NEW)
    assert quorum.look(number).state == meta.OPERATION_STATE_PAUSED
    quorum.control(number, pb.OPERATION_CONTROL_RESUME)
    assert quorum.look(number).state == meta.OPERATION_STATE_DONE

    quorum = Quorum()
    number = quorum.begin()
    quorum.control(number, pb.OPERATION_CONTROL_CANCEL)
    ended = quorum.look(number)
    assert ended.state == meta.OPERATION_STATE_CANCELLED
    assert "controller 3 stays admitted" in ended.reason
    assert quorum.cluster.image.controllers[3] == NEW


def test_without_a_majority_of_other_voters_the_gate_is_closed_and_cannot_be_allowed_away() -> None:
    quorum = Quorum()
    del quorum.connected[2]
    plan = quorum.plan()
    assert closed(plan) == ["quorum"] and not plan.runnable
    reply = quorum.start()
    assert (reply.error.code, reply.HasField("operation")) == (ErrorCode.POLICY_VIOLATION, False)
    assert quorum.cluster.image.controllers[3] == OLD
    request = wanted(3)
    request.allowed_gates.append("quorum")
    with pytest.raises(PenstockError, match="cannot be allowed away"):
        plan_admission(quorum.cluster.image, request, quorum.view)


def test_one_at_a_time_also_where_the_same_one_is_asked_for_twice() -> None:
    quorum = Quorum()
    number = quorum.begin()
    again = quorum.start()
    assert closed(again.plan) == ["conflict"]
    assert f"controller 3 (operation {number})" in again.error.message
    quorum.connected[3] = Connected(NEW, True)
    quorum.connected[2] = Connected(b"y" * 16, False)
    assert "conflict" in closed(quorum.plan(2))


def test_it_goes_on_beside_a_rolling_restart_that_waits_for_it() -> None:
    quorum = Quorum()
    step = meta.OperationStep(name="controller-2", role="controller")
    rolling = meta.OperationRecord(
        operation_id=1, kind="rolling-restart", state=meta.OPERATION_STATE_PAUSED, steps=[step]
    )
    image = quorum.cluster.image
    quorum.cluster.image = image.apply([meta.MetadataRecord(operation=rolling)], image.version + 1)
    assert quorum.start().HasField("operation")


def test_a_level_without_operations_names_the_upgrade() -> None:
    assert closed(Quorum(level=2).plan()) == ["versions"]


@pytest.mark.parametrize(
    ("controller_id", "said"),
    [
        (0, "needs the id of a controller"),
        (9, "is not in raft_peers (1, 2, 3)"),
        (1, "nothing is to be replaced"),
    ],
)
def test_what_cannot_be_replaced_is_said_in_a_line(controller_id: int, said: str) -> None:
    with pytest.raises(PenstockError) as caught:
        Quorum().plan(controller_id)
    assert said in caught.value.message
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_one_that_is_not_there_has_to_be_started_first() -> None:
    quorum = Quorum()
    del quorum.connected[3]
    with pytest.raises(PenstockError, match="start it with an empty data_dir"):
        quorum.plan()


def test_other_parameters_are_refused() -> None:
    request = wanted(3)
    request.parameters.node_ids.append(1)
    with pytest.raises(PenstockError, match="has no parameter node_ids"):
        plan_admission(Quorum().cluster.image, request, Quorum().view)
