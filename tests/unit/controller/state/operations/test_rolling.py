"""Rolling restarts as decided: order, gates, what makes a step done, and that nobody is restarted twice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_controller.active.rolling import _told
from penstock_controller.state.generation import Context
from penstock_controller.state.operations.engine.kinds import EXECUTOR_GONE
from penstock_controller.state.operations.engine.rolling import (
    UNMET_MS_MAX,
    RollingMemory,
    RollingView,
    _Restart,
    next_restart,
    step_under_way,
)
from penstock_controller.state.operations.engine.start import control_operation, start_operation
from penstock_controller.state.operations.executors import LEASE_MS, Executors
from penstock_controller.state.operations.plans.plan import PlanView, plan_steps
from penstock_controller.state.operations.processes import ControllerSeen, QuorumSeen
from penstock_controller.state.operations.reports import Reports
from penstock_core.errors import PenstockError
from penstock_core.ids import NodeId
from penstock_core.metadata.operations import ENDED
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_proto.v1 import operations_pb2 as api
from penstock_runtime.turns import all_at_once
from support.moved_cluster import MovedCluster, Replicas

SPREAD: Replicas = {("t", 0): (1, 2, 3), ("t", 1): (2, 3, 1), ("t", 2): (3, 1, 2)}
ALL = ["gateway-1", "gateway-2", "node-1", "node-2", "node-3", "controller-2", "controller-3", "controller-1"]
TIMEOUT_S = 60


class Restarted(MovedCluster):
    """3 controllers, 3 nodes and 2 gateways, whose processes are restarted when somebody says so."""

    def __init__(self, spread: Replicas = SPREAD, rng: random.Random | None = None) -> None:
        super().__init__(spread, node_count=3, rng=rng)
        self.boots: dict[str, int] = {}
        self.active_id = 1
        self.silent: set[int] = set()
        """Controllers that do not answer."""
        self.asked = True
        self.gone = False
        self.memory = RollingMemory()
        for n in (1, 2, 3):
            self.boots[f"controller-{n}"] = 1
            self.register(f"node-{n}")
        for n in (1, 2):
            self.register(f"gateway-{n}")

    def boot_id(self, name: str) -> bytes:
        return f"{name}/{self.boots[name]}".encode()

    def register(self, name: str) -> None:
        """A process starts: it has another boot id, and is there at once."""
        self.boots[name] = self.boots.get(name, 0) + 1
        process = common.ProcessInfo(boot_id=self.boot_id(name), feature_level=3)
        if name.startswith("gateway"):
            gateway = pb.GatewayRecord(gateway_id=name, gateway_epoch=self.image.version + 1, process=process)
            self._apply([pb.MetadataRecord(gateway=gateway)])
            return
        node = replace(self.image.nodes[NodeId(int(name[5:]))], fenced=True, boot_id=process.boot_id)
        self._apply([pb.MetadataRecord(node=node.to_pb())])
        self.rise(node.node_id)

    def stop(self, name: str) -> None:
        if name.startswith("gateway"):
            self._apply([pb.MetadataRecord(gateway_removed=pb.GatewayRemovedRecord(gateway_id=name))])
        elif name.startswith("node"):
            self.die(int(name[5:]))
        else:
            self.silent.add(int(name[11:]))

    def start_process(self, name: str) -> None:
        if name.startswith("controller"):
            self.boots[name] += 1
            self.silent.discard(int(name[11:]))
        else:
            self.register(name)

    def restart(self, name: str) -> None:
        self.stop(name)
        self.start_process(name)
        self.catch_up()
        if name == f"controller-{self.active_id}":
            self.active_id = self.active_id % 3 + 1
            self.failover()

    def failover(self) -> None:
        super().failover()
        self.memory = RollingMemory()

    @property
    def quorum(self) -> QuorumSeen:
        answers = {
            n: ControllerSeen(self.boot_id(f"controller-{n}")) for n in (1, 2, 3) if n not in self.silent
        }
        return QuorumSeen(frozenset({1, 2, 3}), self.active_id, answers)

    def alive(self, node_id: NodeId) -> bool:
        return not self.image.nodes[node_id].fenced

    def make_plan(self, *allowed: str, **parameters: object) -> api.Plan:
        request = api.PlanRequest(kind="rolling-restart", allowed_gates=allowed)
        request.parameters.CopyFrom(pb.OperationParameters(**parameters))  # type: ignore[arg-type]
        view = PlanView(reports=Reports(), alive=self.alive, quorum=self.quorum)
        return all_at_once(plan_steps(self.image, request, view))

    def begin(self, *allowed: str, **parameters: object) -> int:
        parameters.setdefault("step_timeout_s", TIMEOUT_S)
        plan = self.make_plan(*allowed, **parameters)
        request = api.StartOperationRequest(principal="User:admin", plan_id=plan.plan_id)
        request.request.allowed_gates.extend(allowed)
        made = start_operation(self.ctx, request, plan, self.now_ms, self.quorum)
        assert not made.reply.error.code, made.reply.error.message
        self._apply(made.all_records())
        return self.image.version

    def look(self, operation_id: int) -> bool:
        """One look; a repeated one says the same."""
        view = RollingView(self.alive, self.quorum, executor_there=self.asked, executor_gone=self.gone)
        ctx = Context(self.image, self.rng)
        made = next_restart(ctx, operation_id, view, self.memory, self.now_ms)
        again = next_restart(ctx, operation_id, view, self.memory, self.now_ms)
        assert made.records == again.records
        self._apply(made.all_records(), ours=True)
        running = [
            s for s in self.operation(operation_id).steps if s.state == pb.OPERATION_STEP_STATE_RUNNING
        ]
        assert len(running) <= 1, "one process at a time"
        return bool(made.records)

    def looks(self, operation_id: int) -> pb.OperationRecord:
        """Until there is nothing to do for now."""
        for _ in range(50):
            if not self.look(operation_id):
                return self.operation(operation_id)
        raise AssertionError("it does not settle")

    def under_way(self, operation_id: int) -> str:
        step = step_under_way(self.operation(operation_id))
        return "" if step is None else step.name


def run_to_end(cluster: Restarted, number: int) -> list[str]:
    """Restart whatever is handed out; the names in that order."""
    restarted: list[str] = []
    for _ in range(50):
        if cluster.looks(number).state in ENDED:
            return restarted
        name = cluster.under_way(number)
        if name and (not restarted or restarted[-1] != name):
            restarted.append(name)
            cluster.restart(name)
        cluster.now_ms += 1_000
    raise AssertionError(f"it does not end:\n{cluster.operation(number)}")


def states(record: pb.OperationRecord) -> dict[str, int]:
    return {step.name: step.state for step in record.steps}


def test_gateways_then_nodes_then_controllers_the_active_one_last() -> None:
    cluster = Restarted()
    plan = cluster.make_plan()
    assert [step.name for step in plan.steps] == ALL
    assert plan.runnable and {gate.name for gate in plan.gates if not gate.ok} == set()
    number = cluster.begin()
    assert run_to_end(cluster, number) == ALL
    ended = cluster.operation(number)
    assert ended.state == pb.OPERATION_STATE_DONE
    assert set(states(ended).values()) == {pb.OPERATION_STEP_STATE_DONE}
    assert all(step.finished_ms >= step.started_ms > 0 for step in ended.steps)
    assert all(p.leader == p.replicas[0] for p in cluster.partitions()), "preferred leaders lead again"


def test_a_controller_that_became_active_meanwhile_is_the_last() -> None:
    cluster = Restarted()
    number = cluster.begin(roles=["controller"])
    cluster.active_id = 2
    assert run_to_end(cluster, number) == ["controller-3", "controller-1", "controller-2"]


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ({"roles": ["gateway"]}, ALL[:2]),
        ({"roles": ["storage-node", "gateway"]}, ALL[:5]),
        ({"process_names": ["node-3", "gateway-2"]}, ["gateway-2", "node-3"]),
        ({"roles": ["controller"], "process_names": ["controller-1"]}, ["controller-1"]),
    ],
)
def test_roles_and_names_choose(parameters: dict[str, Sequence[str]], names: list[str]) -> None:
    plan = Restarted().make_plan(**parameters)
    assert [step.name for step in plan.steps] == names


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({"roles": ["broker"]}, "broker"),
        ({"process_names": ["node-9"]}, "node-9"),
        ({"roles": ["gateway"], "process_names": ["node-1"]}, "gateway-1"),
        ({"node_ids": [1]}, "node_ids"),
        ({"step_timeout_s": 1_000_000}, "step_timeout_s"),
    ],
)
def test_what_is_not_there_is_refused_by_name(parameters: dict[str, object], word: str) -> None:
    with pytest.raises(PenstockError, match=word):
        Restarted().make_plan(**parameters)


def test_plans_differ_by_their_steps() -> None:
    cluster = Restarted()
    ids = {cluster.make_plan(process_names=[name]).plan_id for name in ALL} | {cluster.make_plan().plan_id}
    assert len(ids) == len(ALL) + 1
    assert cluster.make_plan().plan_id == cluster.make_plan().plan_id


def closed(plan: api.Plan) -> set[str]:
    return {gate.name for gate in plan.gates if gate.blocking}


def test_gates_of_the_plan() -> None:
    cluster = Restarted({**SPREAD, ("single", 0): (2,)})
    assert closed(cluster.make_plan()) == {"single-replica"}
    assert closed(cluster.make_plan("single-replica")) == set()
    assert closed(cluster.make_plan(process_names=["node-1"])) == set(), "it has nothing alone"
    cluster.stop("node-3")
    assert closed(cluster.make_plan("single-replica")) == {"min-isr", "health"}
    assert closed(cluster.make_plan(roles=["gateway"])) == set()
    cluster = Restarted()
    cluster.silent = {2}
    assert closed(cluster.make_plan()) == {"quorum"}
    with pytest.raises(PenstockError, match="cannot be allowed away"):
        cluster.make_plan("quorum")
    cluster = Restarted()
    cluster.begin()
    assert closed(cluster.make_plan()) == {"conflict"}


def test_a_process_that_is_up_with_the_same_boot_id_is_not_restarted() -> None:
    cluster = Restarted()
    number = cluster.begin(process_names=["node-2", "node-3"])
    cluster.looks(number)
    assert cluster.under_way(number) == "node-2"
    cluster.die(2)
    cluster.rise(2)
    cluster.catch_up()
    cluster.looks(number)
    assert cluster.under_way(number) == "node-2", "it was away, and is the same process as before"
    cluster.restart("node-2")
    cluster.looks(number)
    assert cluster.under_way(number) == "node-3"


def test_without_the_comparison_of_boot_ids_processes_would_be_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The planted bug: "it is up" taken for "it was restarted". What the other tests look at would show it."""
    monkeypatch.setattr(_Restart, "_same", lambda *_: "")
    cluster = Restarted()
    first = dict(cluster.boots)
    number = cluster.begin()
    assert cluster.looks(number).state == pb.OPERATION_STATE_DONE
    assert cluster.boots == first, "done, and nobody was restarted"


def test_the_next_step_waits_until_a_node_is_in_sync_and_leads() -> None:
    cluster = Restarted()
    number = cluster.begin(process_names=["node-1", "node-2"])
    cluster.looks(number)
    cluster.stop("node-1")
    cluster.register("node-1")
    cluster.looks(number)
    assert cluster.under_way(number) == "node-1", "it has to fetch what it missed"
    assert "in sync" in cluster.memory.waiting_for
    cluster.catch_up()
    cluster.looks(number)
    assert cluster.under_way(number) == "node-2"
    assert cluster.partition("t", 0).leader == 1


def test_a_gate_that_closes_pauses_and_goes_on_by_itself() -> None:
    cluster = Restarted()
    number = cluster.begin(process_names=["node-1", "node-2"])
    cluster.looks(number)
    cluster.restart("node-1")
    cluster.stop("node-3")
    cluster.looks(number)
    record = cluster.operation(number)
    assert (record.state, cluster.under_way(number)) == (pb.OPERATION_STATE_RUNNING, "")
    cluster.now_ms += UNMET_MS_MAX
    record = cluster.looks(number)
    assert record.state == pb.OPERATION_STATE_PAUSED
    assert record.reason.startswith("min-isr")
    cluster.start_process("node-3")
    cluster.catch_up()
    cluster.looks(number)
    assert cluster.under_way(number) == "node-2"


def test_a_step_that_takes_too_long_pauses_and_names_the_process() -> None:
    cluster = Restarted()
    number = cluster.begin(process_names=["node-1", "node-2"])
    cluster.looks(number)
    cluster.stop("node-1")
    cluster.now_ms += TIMEOUT_S * 1_000 + 1
    record = cluster.looks(number)
    assert record.state == pb.OPERATION_STATE_PAUSED
    assert record.reason.startswith("node-1 is not back")
    assert not cluster.control(number, api.OPERATION_CONTROL_RESUME)
    record = cluster.looks(number)
    assert record.state == pb.OPERATION_STATE_RUNNING, "it has its whole time again"
    cluster.now_ms += TIMEOUT_S * 1_000 + 1
    assert cluster.looks(number).state == pb.OPERATION_STATE_PAUSED
    # Its command ends for that: the reason is still the process.
    cluster.asked, cluster.gone = False, True
    assert cluster.looks(number).reason.startswith("node-1 is not back")
    cluster.asked, cluster.gone = True, False
    cluster.start_process("node-1")
    cluster.catch_up()
    cluster.looks(number)
    assert cluster.under_way(number) == "node-2", "it is back: nobody has to say so"


def test_a_late_process_that_is_back_without_its_command_leaves_the_missing_command_as_the_reason() -> None:
    cluster = Restarted()
    number = cluster.begin(process_names=["node-1", "node-2"])
    cluster.looks(number)
    cluster.stop("node-1")
    cluster.now_ms += TIMEOUT_S * 1_000 + 1
    cluster.asked, cluster.gone = False, True
    assert cluster.looks(number).reason.startswith("node-1 is not back")
    cluster.start_process("node-1")
    cluster.catch_up()
    record = cluster.looks(number)
    assert states(record)["node-1"] == pb.OPERATION_STEP_STATE_DONE
    assert (record.state, record.reason.startswith(EXECUTOR_GONE)) == (pb.OPERATION_STATE_PAUSED, True)


def test_without_its_command_it_pauses_and_goes_on_with_another() -> None:
    cluster = Restarted()
    number = cluster.begin(process_names=["node-1", "node-2", "node-3"])
    cluster.looks(number)
    cluster.asked, cluster.gone = False, True
    record = cluster.looks(number)
    assert (record.state, record.reason.startswith(EXECUTOR_GONE)) == (pb.OPERATION_STATE_PAUSED, True)
    # What was begun is judged to its end, and what somebody restarts meanwhile needs no restart any more.
    cluster.restart("node-1")
    cluster.restart("node-3")
    record = cluster.looks(number)
    assert states(record)["node-1"] == pb.OPERATION_STEP_STATE_DONE
    assert record.state == pb.OPERATION_STATE_PAUSED
    cluster.asked, cluster.gone = True, False
    assert run_to_end(cluster, number) == ["node-2"]
    assert states(cluster.operation(number))["node-3"] == pb.OPERATION_STEP_STATE_SKIPPED


@pytest.mark.parametrize("last", ["under way", "restarted by somebody else"])
def test_with_nothing_left_to_restart_it_needs_no_command(last: str) -> None:
    cluster = Restarted()
    number = cluster.begin(process_names=["node-1", "node-2"] if last != "under way" else ["node-1"])
    cluster.looks(number)
    cluster.asked, cluster.gone = False, True
    record = cluster.looks(number)
    assert (record.state, record.reason.startswith(EXECUTOR_GONE)) == (pb.OPERATION_STATE_PAUSED, True)
    cluster.restart("node-1")
    if last != "under way":
        assert cluster.looks(number).state == pb.OPERATION_STATE_PAUSED
        cluster.restart("node-2")
    record = cluster.looks(number)
    assert (record.state, record.reason) == (pb.OPERATION_STATE_DONE, "")


def test_nothing_is_begun_before_the_command_has_asked_this_controller() -> None:
    cluster = Restarted()
    number = cluster.begin()
    cluster.asked = False
    cluster.looks(number)
    assert cluster.under_way(number) == ""
    assert cluster.operation(number).state == pb.OPERATION_STATE_RUNNING


def test_what_is_gone_for_good_is_skipped() -> None:
    cluster = Restarted({("t", 0): (1, 2)})
    number = cluster.begin(process_names=["gateway-1", "node-2", "node-3"])
    cluster.stop("gateway-1")
    cluster._apply([pb.MetadataRecord(node_removed=pb.NodeRemovedRecord(node_id=3))])
    assert run_to_end(cluster, number) == ["node-2"]
    assert states(cluster.operation(number)) == {
        "gateway-1": pb.OPERATION_STEP_STATE_SKIPPED,
        "node-2": pb.OPERATION_STEP_STATE_DONE,
        "node-3": pb.OPERATION_STEP_STATE_SKIPPED,
    }


def test_a_gateway_in_a_new_container_may_have_another_name() -> None:
    cluster = Restarted()
    number = cluster.begin(roles=["gateway"])
    cluster.looks(number)
    for old, new in (("gateway-1", "gateway-8"), ("gateway-2", "gateway-9")):
        assert cluster.under_way(number) == old
        cluster.stop(old)
        cluster.looks(number)
        assert cluster.under_way(number) == old
        cluster.register(new)
        cluster.looks(number)
    assert cluster.operation(number).state == pb.OPERATION_STATE_DONE


def test_cancel_ends_after_the_step_under_way() -> None:
    cluster = Restarted()
    number = cluster.begin(roles=["storage-node"])
    cluster.looks(number)
    cluster.stop("node-1")
    assert not cluster.control(number, api.OPERATION_CONTROL_CANCEL)
    assert cluster.looks(number).state == pb.OPERATION_STATE_CANCELLING
    cluster.start_process("node-1")
    cluster.catch_up()
    ended = cluster.looks(number)
    assert ended.state == pb.OPERATION_STATE_CANCELLED
    assert list(states(ended).values()) == [
        pb.OPERATION_STEP_STATE_DONE,
        pb.OPERATION_STEP_STATE_TODO,
        pb.OPERATION_STEP_STATE_TODO,
    ]


def test_cancel_does_not_wait_for_what_ails_another_controller() -> None:
    cluster = Restarted()
    number = cluster.begin(roles=["controller"])
    cluster.looks(number)
    assert cluster.under_way(number) == "controller-2"
    cluster.stop("controller-2")
    cluster.stop("controller-3")
    assert not cluster.control(number, api.OPERATION_CONTROL_CANCEL)
    assert cluster.looks(number).state == pb.OPERATION_STATE_CANCELLING
    cluster.start_process("controller-2")
    ended = cluster.looks(number)
    assert ended.state == pb.OPERATION_STATE_CANCELLED
    assert list(states(ended).values()) == [
        pb.OPERATION_STEP_STATE_DONE,
        pb.OPERATION_STEP_STATE_TODO,
        pb.OPERATION_STEP_STATE_TODO,
    ]


def test_a_person_pauses_and_resumes() -> None:
    cluster = Restarted()
    number = cluster.begin(process_names=["node-1", "node-2"])
    cluster.looks(number)
    assert not cluster.control(number, api.OPERATION_CONTROL_PAUSE)
    cluster.restart("node-1")
    record = cluster.looks(number)
    assert (record.state, cluster.under_way(number)) == (pb.OPERATION_STATE_PAUSED, "")
    assert not cluster.control(number, api.OPERATION_CONTROL_RESUME)
    cluster.looks(number)
    assert cluster.under_way(number) == "node-2"


def test_who_was_started_before_the_operation_was_resumed_is_not_handed_out_again() -> None:
    """The step begins anew by the clock, so the command cannot tell by its time that the process is another one."""
    cluster = Restarted()
    number = cluster.begin(process_names=["node-1"])
    cluster.looks(number)
    cluster.stop("node-1")
    cluster.now_ms += (TIMEOUT_S + 1) * 1_000
    assert cluster.looks(number).state == pb.OPERATION_STATE_PAUSED
    cluster.start_process("node-1")
    assert not cluster.control(number, api.OPERATION_CONTROL_RESUME)
    record = pb.OperationRecord()
    record.CopyFrom(cluster.operation(number))
    record.executor.executor_id = "e"
    request = api.ExecuteOperationRequest(operation_id=number, executor_id="e", via="local")
    assert cluster.under_way(number) == "node-1"
    assert not _told(cluster.image, record, request, cluster.quorum).HasField("step")
    step_under_way(record).boot_id_before = cluster.boot_id("node-1")  # type: ignore[union-attr]
    assert _told(cluster.image, record, request, cluster.quorum).step.name == "node-1", (
        "it is the one of before"
    )


def test_it_runs_alone() -> None:
    cluster = Restarted({**SPREAD, ("moved", 0): (1, 2)})
    moving = cluster.start(cluster.plan("rebalance", {("moved", 0): (1, 3)}))
    number = cluster.begin()
    cluster.looks(number)
    assert cluster.operation(number).state == pb.OPERATION_STATE_PENDING
    cluster.finish(moving)
    cluster.looks(number)
    assert cluster.operation(number).state == pb.OPERATION_STATE_RUNNING
    later = cluster.start(cluster.plan("rebalance", {("moved", 0): (1, 2)}))
    cluster.settle(later)
    assert cluster.operation(later).state == pb.OPERATION_STATE_PENDING
    run_to_end(cluster, number)
    assert cluster.finish(later).state == pb.OPERATION_STATE_DONE


def test_an_operation_that_waits_for_a_command_lets_others_go() -> None:
    cluster = Restarted({**SPREAD, ("moved", 0): (1, 2)})
    number = cluster.begin()
    cluster.asked, cluster.gone = False, True
    cluster.looks(number)
    moving = cluster.start(cluster.plan("rebalance", {("moved", 0): (1, 3)}))
    assert cluster.operation(moving).state == pb.OPERATION_STATE_RUNNING
    cluster.asked, cluster.gone = True, False
    cluster.looks(number)
    assert cluster.operation(number).state == pb.OPERATION_STATE_PENDING, "what moves data goes first now"
    cluster.finish(moving)
    assert run_to_end(cluster, number) == ALL


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_whatever_happens_one_at_a_time_and_nobody_twice(seed: int) -> None:
    """Commands and active controllers come and go at every moment: each process is restarted once, and never while a
    partition would fall below min ISR."""
    rng = random.Random(seed)
    cluster = Restarted(rng=rng)
    first = dict(cluster.boots)
    number = cluster.begin()
    told: set[tuple[str, bytes]] = set()
    down: list[str] = []
    for _ in range(600):
        cluster.look(number)
        if cluster.operation(number).state in ENDED:
            break
        step = step_under_way(cluster.operation(number))
        what = rng.random()
        if what < 0.1:
            cluster.memory = RollingMemory()
        elif what < 0.2:
            cluster.asked, cluster.gone = rng.choice([(True, False), (False, False), (False, True)])
        elif what < 0.25:
            told.clear()  # another command: it knows nothing of what the one before did
        elif what < 0.35 and not down:
            cluster.active_id = rng.choice((1, 2, 3))
        elif down and what < 0.7:
            cluster.start_process(down.pop())
        elif what < 0.8:
            cluster.catch_up(1)
        elif step is not None and cluster.asked and not down and (step.name, step.boot_id_before) not in told:
            told.add((step.name, step.boot_id_before))
            if cluster.boot_id(step.name) == step.boot_id_before:
                cluster.stop(step.name)
                down.append(step.name)
                for partition in cluster.partitions():
                    assert len(partition.isr) >= cluster.min_isr(partition), (seed, step.name)
        else:
            cluster.asked, cluster.gone = True, False
        cluster.now_ms += 100
    record = cluster.operation(number)
    assert record.state == pb.OPERATION_STATE_DONE, (seed, record)
    assert cluster.boots == {name: count + 1 for name, count in first.items()}, seed


def test_leases() -> None:
    executors = Executors()
    record = pb.OperationRecord(operation_id=7)
    assert not executors.is_gone(record, 1_000), "whoever has begun it gets the time to ask"
    assert executors.is_gone(record, 1_001 + LEASE_MS)
    record.executor.executor_id = "a"
    executors.ask(7, "a", 20_000)
    assert executors.is_there(record, 20_000 + LEASE_MS)
    assert not executors.is_there(record, 20_001 + LEASE_MS)
    assert executors.is_gone(record, 20_001 + LEASE_MS)
    assert executors.busy_ms(record, "a", 20_000) == 0
    assert executors.busy_ms(record, "b", 21_000) == LEASE_MS - 1_000
    assert executors.busy_ms(record, "b", 20_000 + LEASE_MS) == 0
    executors.begin()
    assert not executors.is_there(record, 22_000), "another controller hands out nothing before it is asked"
    assert not executors.is_gone(record, 22_000 + LEASE_MS), "and waits a whole lease"
    executors.ask(7, "a", 23_000)
    executors.leave(7, "a")
    assert executors.is_gone(record, 23_000)
    assert executors.busy_ms(record, "b", 23_000) == 0


def test_what_an_operator_says_of_an_ended_one_is_refused() -> None:
    cluster = Restarted()
    number = cluster.begin(process_names=["gateway-1"])
    run_to_end(cluster, number)
    request = api.ControlOperationRequest(operation_id=number, control=api.OPERATION_CONTROL_RESUME)
    assert "has ended" in control_operation(cluster.ctx, request, 1).reply.error.message
