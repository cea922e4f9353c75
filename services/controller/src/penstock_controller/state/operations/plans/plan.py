"""Plans: what an operation would move and whether it may, from one image, what nodes reported, and a request."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock_controller.state.nodes import is_last_choice
from penstock_controller.state.operations.planner.moves import Goal, PlannedMove
from penstock_controller.state.operations.plans import gates
from penstock_controller.state.operations.plans.cautions import (
    cautions_of,
    evenness_caution,
    no_leader_caution,
    refill_caution,
    too_slow_caution,
)
from penstock_controller.state.operations.plans.eta import RATE_BYTES_PER_S_MAX, Work, rate_of
from penstock_controller.state.operations.plans.gates import Finding
from penstock_controller.state.operations.plans.requests import Asked, Kind, check_request, may_serve
from penstock_controller.state.operations.plans.rolling import plan_rolling
from penstock_controller.state.operations.plans.shares import node_shares
from penstock_controller.state.operations.plans.situation import Situation, look
from penstock_controller.state.operations.plans.targets import Targets, choose_targets, domains_of, name_of
from penstock_controller.state.operations.processes import NOT_ASKED, QuorumSeen
from penstock_controller.state.operations.reports import Reports
from penstock_core.ids import NO_NODE, NodeId
from penstock_core.metadata import MetadataImage, PartitionImage
from penstock_proto.v1 import metadata_pb2 as meta
from penstock_proto.v1 import operations_pb2 as pb

_PLAN_ID_DIGITS: Final = 16
_A_STEP: Final = 64
"""Moves told, or partitions looked at, between two steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """What a plan depends on and is not in the image."""

    reports: Reports
    alive: Callable[[NodeId], bool]
    """Whether a node's session is alive."""
    quorum_ok: tuple[bool, str] = (True, "")
    """Whether enough controllers are there and up to date; if not, why, for people."""
    auto_bytes_per_s: int = RATE_BYTES_PER_S_MAX
    """What the throttle "auto" is thought to come to, by what is known of producers."""
    quorum: QuorumSeen = NOT_ASKED
    """Every controller as it was found when it was asked, for plans that are about them."""


def plan_steps(
    image: MetadataImage, request: pb.PlanRequest, view: PlanView
) -> Generator[None, None, pb.Plan]:
    """The plan, in steps of about a millisecond. The same for the same input.

    Raises PenstockError when there is no such plan; its message says what would help.
    """
    asked = check_request(image, request, view.alive)
    yield
    if asked.kind is Kind.ROLLING_RESTART:
        plan = yield from plan_rolling(image, request, view.alive, view.quorum)
        plan.plan_id = yield from _plan_id_steps(plan.kind, plan.parameters, (), plan.steps)
        return plan
    now = yield from look(image, asked, view.reports, view.alive)
    targets = yield from choose_targets(asked, now)
    moves = yield from _moves(now, targets)
    plan = pb.Plan(
        kind=request.kind,
        metadata_version=image.version,
        parameters=request.parameters,
        throttle=request.throttle,
        warnings=cautions_of(image, asked, now),
    )
    yield from _tell_moves(plan, image, asked, now, moves, view)
    if asked.kind is Kind.LEADER_ELECT:
        plan.totals.leader_changes = yield from _not_preferred(image, asked, now, view)
    plan.plan_id = yield from _plan_id_steps(plan.kind, plan.parameters, plan.moves)
    plan.nodes.extend((yield from node_shares(now, moves, view.reports)))
    for finding in (yield from _findings(image, asked, now, moves, view)):
        plan.gates.append(finding.to_pb(request.allowed_gates))
    plan.runnable = not any(gate.blocking for gate in plan.gates)
    return plan


def plan_id(
    kind: str,
    parameters: meta.OperationParameters,
    moves: Iterable[pb.PlannedMove],
    planned: Iterable[pb.PlannedStep] = (),
) -> str:
    """First 16 hex digits of SHA-256 over kind, parameters that are set, moves, and steps if there are any, in
    canonical JSON."""
    steps = _plan_id_steps(kind, parameters, sorted(moves, key=lambda m: (m.topic, m.partition)), planned)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: str = end.value
            return found


def _plan_id_steps(
    kind: str,
    parameters: meta.OperationParameters,
    moves: Iterable[pb.PlannedMove],
    planned: Iterable[pb.PlannedStep] = (),
) -> Generator[None, None, str]:
    """Of sorted moves, a piece of the text at a time; its keys are in the order of their names."""
    digest = hashlib.sha256(f'{{"kind":{_canonical(kind)},"moves":['.encode())
    for count, move in enumerate(moves):
        row = [move.topic, move.partition, list(getattr(move, "from")), list(move.to)]
        digest.update(f"{',' if count else ''}{_canonical(row)}".encode())
        if count % _A_STEP == 0:
            yield
    given = {
        field.name: value if isinstance(value, int | str) else list(value)
        for field, value in parameters.ListFields()
    }
    digest.update(f'],"parameters":{_canonical(given)}'.encode())
    rows = [[step.name, step.role, step.action] for step in planned]
    digest.update(f',"steps":{_canonical(rows)}}}'.encode() if rows else b"}")
    return digest.hexdigest()[:_PLAN_ID_DIGITS]


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _moves(now: Situation, targets: Targets) -> Generator[None, None, list[PlannedMove]]:
    """By topic and partition."""
    moves = []
    for count, partition in enumerate(now.partitions, 1):
        after = targets.get(partition.key)
        if after is not None:
            moves.append(PlannedMove(partition, after))
        if count % _A_STEP == 0:
            yield
    return moves


def _tell_moves(
    plan: pb.Plan,
    image: MetadataImage,
    asked: Asked,
    now: Situation,
    moves: Sequence[PlannedMove],
    view: PlanView,
) -> Generator[None, None, None]:
    """Moves, totals and how long it takes."""
    work = Work()
    known = True
    stuck: list[str] = []
    emptied = 0
    takers = now.takers
    for count, move in enumerate(moves, 1):
        partition, after = move.partition, move.after
        told = plan.moves.add(
            topic=partition.topic,
            topic_id=partition.key.topic_id,
            partition=partition.key.partition,
            to=after,
            bytes=move.bytes_to_copy,
        )
        getattr(told, "from").extend(move.before)
        emptied += len(asked.leaving.intersection(move.before))
        plan.totals.moves += 1
        plan.totals.replicas_added += move.added
        plan.totals.replicas_removed += len(set(move.before) - set(after))
        plan.totals.leader_changes += move.before[0] != after[0]
        plan.totals.bytes += move.bytes_to_copy
        if move.added:
            known = known and partition.key not in now.untold
            found = image.partition(*partition.key)
            source = _source(found, after, takers)
            written = 0.0 if found is None else view.reports.written_bytes_per_s(found)
            work.add(source, [n for n in after if n not in move.before], partition.size_bytes, written)
            if source == NO_NODE:
                stuck.append(name_of(partition))
        if count % _A_STEP == 0:
            yield
    if asked.leaving and plan.totals.replicas_added > emptied:
        plan.warnings.append(evenness_caution(plan.totals.replicas_added - emptied))
    if stuck:
        plan.warnings.append(no_leader_caution(stuck))
    if asked.refilled:
        known = yield from _tell_refill(plan, asked, now, work)
    if known:
        eta_s = work.seconds(rate_of(plan.throttle, view.auto_bytes_per_s))
        if math.isfinite(eta_s):
            plan.eta_s = eta_s
        else:
            plan.warnings.append(too_slow_caution())


def _tell_refill(plan: pb.Plan, asked: Asked, now: Situation, work: Work) -> Generator[None, None, bool]:
    """What a node that comes back with an empty directory fetches again, all side by side; whether its size is known.

    When it comes back nobody knows: the time is from then on.
    """
    replicas, known = 0, True
    for count, (partition, image) in enumerate(zip(now.partitions, now.images, strict=True), 1):
        again = asked.refilled.intersection(partition.replicas)
        if again:
            source = next((n for n in (image.leader, *image.isr) if n not in (*again, NO_NODE)), NO_NODE)
            work.add(source, again, partition.size_bytes, counted=replicas == 0)
            replicas += len(again)
            plan.totals.bytes += len(again) * partition.size_bytes
            known = known and partition.key not in now.untold
        if count % _A_STEP == 0:
            yield
    plan.warnings.extend(refill_caution(asked.refilled, replicas))
    return known


def _source(image: PartitionImage | None, after: Sequence[NodeId], takers: frozenset[NodeId]) -> NodeId:
    """Who sends what is copied: the leader, or who leads before a leader that is to go sends anything."""
    if image is None:
        return NO_NODE
    if image.leader in after:
        return image.leader
    return next((n for n in after if n in image.isr and n in takers), image.leader)


def _not_preferred(
    image: MetadataImage, asked: Asked, now: Situation, view: PlanView
) -> Generator[None, None, int]:
    """Partitions that their preferred leader could lead and does not."""
    found = 0
    for count, (planned, partition) in enumerate(zip(now.partitions, now.images, strict=True), 1):
        first = partition.replicas[0]
        if (
            asked.covers(planned.topic)
            and (not asked.partitions or partition.partition in asked.partitions)
            and partition.leader != first
            and first in partition.isr
            and may_serve(image, first, view.alive)
            and not is_last_choice(image, first)
        ):
            found += 1
        if count % _A_STEP == 0:
            yield
    return found


def _findings(
    image: MetadataImage, asked: Asked, now: Situation, moves: Sequence[PlannedMove], view: PlanView
) -> Generator[None, None, list[Finding]]:
    """All gates, in the order they are told in."""
    names = {move.partition.key: name_of(move.partition) for move in moves}
    about = asked.node_ids if asked.replacement is None else asked.node_ids | {asked.replacement}
    undecided: list[str] = []
    if Goal.BYTES in asked.goals and now.untold:
        undecided = [name_of(p) for p in now.partitions if p.key in now.untold and asked.covers(p.topic)]
        yield
    room = yield from gates.disk_room(now.nodes, moves, now.untold, undecided)
    conflict = yield from gates.conflict(image, names, about, asked.leaving)
    spread = yield from gates.racks(domains_of(now.nodes, [move.partition for move in moves]), moves)
    health = Finding(gates.HEALTH)
    if asked.moves_replicas or asked.kind is Kind.NODE_REPLACE:
        emptied = asked.mended - asked.leaving
        health = yield from gates.health(image, asked.mended, emptied)
    return [
        gates.quorum(view.quorum_ok),
        room,
        conflict,
        gates.versions(image),
        Finding(gates.MIN_ISR),
        spread,
        health,
        Finding(gates.SINGLE_REPLICA),
    ]


__all__ = ["PlanView", "plan_id", "plan_steps"]
