"""What an operation does next, decided from the image alone.

Progress is read from the image, never counted: a move is done when its partition has the wanted replicas and nothing is
reassigning, on its way when it is aimed at them, and to do otherwise. So a step may be repeated, and whoever is active
next goes on where the one before stopped. What `EngineState` keeps only saves looking twice.

A step changes few partitions. Call it on each new image, and now and then without one: nodes that stay away, and looks
at very many partitions, take more than one call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock_controller.state.causes import of_operation
from penstock_controller.state.generation import Context, Generated, partition_record
from penstock_controller.state.nodes import is_active, is_last_choice
from penstock_controller.state.operations.engine import endings, policies
from penstock_controller.state.operations.engine.changes import Changes, Records
from penstock_controller.state.operations.engine.kinds import (
    LEADER_ELECT,
    REASSIGNMENT,
    REBALANCE,
    drained_by,
    has_turn,
    judged_by_controllers,
    refilled_by,
    waits_for_a_person,
)
from penstock_controller.state.operations.engine.memory import EngineState
from penstock_controller.state.operations.engine.reassigned import REPLICAS, TAKEN, conflict_over, some_of
from penstock_controller.state.operations.engine.stages import Slot, Stage, target_of
from penstock_controller.state.operations.engine.window import LIMITS, Limits, Window, unfit
from penstock_controller.state.operations.plans.gates import HEALTH
from penstock_controller.state.operations.reports import Reports
from penstock_controller.state.partitions import change_partition
from penstock_core.ids import NodeId, TopicId
from penstock_core.metadata import MetadataImage, TopicImage
from penstock_core.metadata.operations import ENDED
from penstock_proto.v1 import metadata_pb2 as pb

BEGINNING = "beginning"
LEADERS = "moving leaders"
BACK = "moving replicas back"
REFILLING = "making replicas again"
OTHERS = "waiting for what others are taking off the node"


def next_steps(
    ctx: Context,
    operation_id: int,
    reports: Reports,
    now_ms: int,
    state: EngineState | None = None,
    limits: Limits = LIMITS,
) -> Generated[bool]:
    """The next records of one operation; the reply says whether there are any. `now_ms`: wall clock, since 1970."""
    state = state or EngineState(scan_partitions=None)
    record = ctx.image.operations.operations.get(operation_id)
    if record is None or record.state in ENDED:
        state.forget(operation_id)
        return Generated(False)
    if judged_by_controllers(record):
        # What it depends on is not all in the image: see `rolling` and `admission`.
        return Generated(False)
    records = _Step(ctx.image, record, reports, now_ms, state, limits).records()
    return Generated(bool(records), records, causes=of_operation(record, operation_id))


class _Step:
    """One look at one operation."""

    def __init__(
        self,
        image: MetadataImage,
        record: pb.OperationRecord,
        reports: Reports,
        now_ms: int,
        state: EngineState,
        limits: Limits,
    ) -> None:
        self._image = image
        self._record = record
        self._reports = reports
        self._now_ms = now_ms
        self._state = state
        self._limits = limits
        self._ledger = state.ledgers.of(image, record)
        self._make = Changes(image, record)

    def records(self) -> Records:
        """What is next."""
        state = self._record.state
        if state == pb.OPERATION_STATE_CANCELLING:
            return self._go_back()
        if found := self._interfered():
            return found
        if state == pb.OPERATION_STATE_PENDING:
            if not has_turn(self._image, self._record):
                return []
            return self._make.now(pb.OPERATION_STATE_RUNNING, phase=BEGINNING, started_ms=self._now_ms)
        if state == pb.OPERATION_STATE_PAUSED:
            return self._go_on()
        return self._run()

    # --- states -------------------------------------------------------------------------------

    def _go_on(self) -> Records:
        """Paused: by itself only where a gate stopped it, and that gate holds again or has nothing left to stop."""
        if waits_for_a_person(self._record):
            return []
        if self._ledger.count(Stage.TODO) and self._ill():
            return []
        return self._make.now(pb.OPERATION_STATE_RUNNING, started_ms=self._now_ms)

    def _run(self) -> Records:
        if self._record.kind == LEADER_ELECT:
            return self._elect()
        if not self._ledger.open:
            return self._finish()
        if self._ledger.count(Stage.TODO) and (why := self._ill()):
            return self._make.now(pb.OPERATION_STATE_PAUSED, reason=why)
        if found := self._leave():
            return found if self._record.phase == REPLICAS else self._make.phase(LEADERS) + found
        if found := self._give_up():
            return found
        return self._move()

    def _finish(self) -> Records:
        if not drained_by(self._record) and not refilled_by(self._record):
            return endings.done(self._image, self._ledger, self._now_ms)
        held = self._state.scan(self._image, self._record).look(self._image.topics)
        if held is None:
            return []
        refilled = [self._image.nodes.get(n) for n in refilled_by(self._record)]
        # One that is down, or about to be, is yet to come, though others have nothing of what it held.
        if not held and not any(node is not None and not node.active for node in refilled):
            return endings.done(self._image, self._ledger, self._now_ms)
        if refilled:
            return self._make.phase(REFILLING)
        drained = drained_by(self._record)
        stays = [p for p in held if not {*target_of(p)}.isdisjoint(drained)]
        if not stays:
            # Others had begun to take it off the node when this was planned, so it is no part of the plan.
            return self._make.phase(OTHERS)
        return endings.left_over(self._image, self._ledger, stays, self._now_ms)

    def _go_back(self) -> Records:
        """Cancelling: what is on its way returns to where it was."""
        records: Records = []
        for slot in self._ledger.stages[Stage.RUNNING].values():
            records += self._make.aim(slot, slot.move.replicas_before)
            if len(records) >= self._limits.changes_per_step:
                break
        if records:
            return self._make.phase(BACK) + records
        if self._ledger.stages[Stage.RUNNING] or self._ledger.stages[Stage.BACK]:
            return policies.lifted(self._image, self._record)
        return endings.cancelled(self._image, self._ledger, self._now_ms)

    # --- what it does -------------------------------------------------------------------------

    def _leave(self) -> Records:
        """Leadership leaves nodes that are to be emptied, before any byte moves."""
        records: Records = []
        for node_id in drained_by(self._record):
            for slot in self._ledger.led.get(node_id, {}).values():
                old = slot.partition
                if old is None or len(old.isr) < 2 or slot.stage is Stage.SKIPPED:
                    continue
                new = change_partition(old, self._make.rules_of(old.topic_id))
                if new is not None and new.leader != node_id:
                    records.append(partition_record(new))
                if len(records) >= self._limits.changes_per_step:
                    return records
        return records

    def _give_up(self) -> Records:
        """Moves to nodes that are gone; a rebalance also leaves out those that stay unfit."""
        reasons = {n: why for n in self._ledger.targets if (why := unfit(self._image, n))}
        operation_id = self._record.operation_id
        self._state.fit_again(operation_id, reasons)
        lost = set()
        for node_id in reasons:
            waited_ms = self._state.unfit_ms(operation_id, node_id, self._now_ms)
            late = self._record.kind == REBALANCE and waited_ms >= self._limits.skip_after_ms
            if late or node_id not in self._image.nodes:
                lost.add(node_id)
        records: Records = []
        if lost:
            for stage in (Stage.TODO, Stage.RUNNING):
                for slot in self._ledger.stages[stage].values():
                    if not lost.isdisjoint(slot.added):
                        records += self._without(slot, lost, reasons)
                    if len(records) >= self._limits.changes_per_step:
                        return records
        return records

    def _without(self, slot: Slot, lost: Iterable[NodeId], reasons: Mapping[NodeId, str]) -> Records:
        """The move is skipped, and what is on its way to a node that is lost goes back."""
        partition = slot.partition
        missing = {n for n in slot.added if n in lost and (partition is None or n not in partition.isr)}
        if not missing:
            return []
        records: Records = []
        if slot.stage is Stage.RUNNING and not (records := self._make.aim(slot, slot.move.replicas_before)):
            return []
        node_id = min(missing)
        why = f"node {node_id}, which was to get a replica, {reasons[node_id]}"
        return [*records, self._make.skip(slot, why)]

    def _move(self) -> Records:
        if not self._ledger.count(Stage.TODO):
            return []
        if self._record.kind == REASSIGNMENT:
            chosen = list(self._ledger.stages[Stage.TODO].values())[: self._limits.changes_per_step]
        else:
            ledgers = self._state.ledgers.in_window(self._image)
            chosen = Window(self._image, ledgers, self._reports, self._limits).choose(self._ledger)
        records: Records = []
        for slot in chosen:
            records += self._make.aim(slot, slot.move.replicas)
        return self._make.phase(REPLICAS) + records if records else []

    def _elect(self) -> Records:
        """Preferred leaders lead where they are in sync."""
        found = self._state.scan(self._image, self._record).look(self._named_topics())
        if found is None:
            return []
        records: Records = []
        only = set(self._record.parameters.partitions)
        for old in found:
            first = old.replicas[0]
            if (only and old.partition not in only) or not is_active(self._image, first):
                continue
            if is_last_choice(self._image, first):
                continue
            new = change_partition(old, self._make.rules_of(old.topic_id), prefer_first=True)
            if new is not None and new.leader == first:
                records.append(partition_record(new))
            if len(records) >= self._limits.changes_per_step:
                break
        if records:
            return self._make.phase(LEADERS) + records
        return endings.done(self._image, self._ledger, self._now_ms)

    def _named_topics(self) -> Mapping[TopicId, TopicImage]:
        names = self._record.parameters.topics
        if not names:
            return self._image.topics
        found = (self._image.topic(name) for name in names)
        return {topic.topic_id: topic for topic in found if topic is not None}

    # --- what comes between ---------------------------------------------------------------------

    def _interfered(self) -> Records:
        """Deleted topics; and partitions that somebody else gave other replicas: it does not fight for them."""
        stages, most = self._ledger.stages, self._limits.changes_per_step
        gone = list(stages[Stage.GONE].values())[:most]
        records = [self._make.skip(slot, "the topic was deleted") for slot in gone]
        taken = list(stages[Stage.FOREIGN].values())
        taken += [slot for slot in stages[Stage.BACK].values() if not slot.move.skipped]
        records += [self._make.skip(slot, TAKEN) for slot in taken[:most]]
        if taken and self._record.kind != REASSIGNMENT and not self._record.paused_by_hand:
            reason = conflict_over([slot.name for slot in taken])
            records += self._make.now(pb.OPERATION_STATE_PAUSED, reason=reason)
        return records

    def _ill(self) -> str:
        """Why no move may begin: partitions of the operation that need the replicas they have."""
        allowed = HEALTH in self._record.allowed_gates or self._record.kind == REASSIGNMENT
        if allowed or not self._ledger.unwell:
            return ""
        ill = named(list(self._ledger.unwell.values()))
        return f"{HEALTH}: {ill} offline or below min.insync.replicas; it goes on by itself once they are in sync"


def named(slots: list[Slot]) -> str:
    """Their partitions, the first few by name."""
    return some_of([slot.name for slot in slots])


__all__ = ["EngineState", "named", "next_steps"]
