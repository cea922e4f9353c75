"""More and fewer storage nodes, in the order that data needs: see `scale`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from penstock.cli import plans
from penstock.cli.admin import Admin
from penstock.cli.follow import follow
from penstock.cli.output import note
from penstock.cli.planned import Asked, How, begin, compare, plan_question, plan_request
from penstock.cli.scale_choice import Candidate, choices, highest
from penstock.cli.scale_state import Ended, Scaling, confirm, show
from penstock.cli.via.compose import NODE
from penstock.cli.via.scaling import LIVE_TIMEOUT_S, Scaler
from penstock.cli.via.ways import ProcessName
from penstock.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from penstock_proto.v1 import operations_pb2

TOLD_TIMEOUT_S: Final = 20.0
"""How long new nodes have to tell of their disks; they do every 5 s."""
POLL_S: Final = 0.5
_FENCED: Final = "fenced"


def scale_nodes(admin: Admin, scaler: Scaler, how: How, scaling: Scaling) -> None:
    """Until there are as many as asked for. Raises CommandError, and Ended where something was done before."""
    nodes = [_candidate(node) for node in admin.nodes()]
    scaling.before = len(nodes)
    if scaling.count < len(nodes):
        _fewer_nodes(admin, scaler, how, scaling, nodes)
        return
    live = sum(node.condition != _FENCED for node in nodes)
    extra = scaler.spares([node.node_id for node in nodes], lambda: removed_nodes(admin))
    if scaling.count > len(nodes) or live < scaling.count:
        _more_nodes(admin, scaler, how, scaling, nodes, extra)
        return
    if extra:
        _stop_spares(scaler, how, scaling, extra)
    is_filled = not scaler.is_numbered and _fill(admin, how, scaling)
    if not (extra or is_filled):
        note(f"there are {scaling.count} storage nodes already")


def removed_nodes(admin: Admin) -> set[int]:
    """Ids of nodes that operations have removed, as far back as the cluster remembers."""
    from penstock_proto.v1 import metadata_pb2

    return {
        node_id
        for operation in admin.operations(ended=True)
        if operation.record.state == metadata_pb2.OPERATION_STATE_DONE
        and (
            operation.record.kind == "node-remove"
            or (operation.record.kind == "node-replace" and operation.record.parameters.replacement_node_id)
        )
        for node_id in operation.record.parameters.node_ids
    }


def _more_nodes(
    admin: Admin,
    scaler: Scaler,
    how: How,
    scaling: Scaling,
    nodes: Sequence[Candidate],
    extra: Sequence[ProcessName],
) -> None:
    if how.plan_id:
        raise CommandError(
            "--plan-id: nodes that are not there yet have no plan; give it to `penstock node add`",
            ExitCode.USAGE,
        )
    highest_id = max((node.node_id for node in nodes), default=0)
    missing = scaling.count - len(nodes)
    guessed = list(range(highest_id + 1, highest_id + 1 + missing))
    scaling.command = scaler.command(NODE, scaling.count, guessed, ())
    starting = scaling.count - sum(node.condition != _FENCED for node in nodes)
    show(scaling, how, f"start {plans.counted(starting, 'storage node')}, then give new ones their share")
    if how.dry_run or scaler.is_numbered:
        return
    confirm(how, f"Start {plans.counted(starting, 'storage node')} by {scaler.via}?")
    if extra:
        # What is left of a node that was removed takes part no more: a new one comes in its place.
        scaler.stop(extra)
        scaling.stopped += [process.name for process in extra]
    # One that is not live may run nevertheless.
    starting = scaling.count - (scaler.running(NODE) or 0)
    if starting > 0:
        scaling.started += scaler.start_more(NODE, starting)
        scaler.wait_until_well(NODE, scaling.started, LIVE_TIMEOUT_S)
    new = _await_live(admin, scaling, nodes)
    new = sorted({*new, *_without_share(admin)})
    if not new:
        note(f"{scaling.count} storage nodes are live; none of them is new")
        return
    note(f"live: {', '.join(f'node {node_id}' for node_id in new)}")
    asked = Asked("node-add", {"node_ids": new})
    _carry_out(admin, asked, how, scaling, follows=how.wait_s is not None or how.watch)


def _fill(admin: Admin, how: How, scaling: Scaling) -> bool:
    """Give nodes their share that a command which was cut short has started; whether there was anything to give."""
    empty = _without_share(admin)
    if not empty:
        return False
    asked = Asked("node-add", {"node_ids": empty})
    plan = _plan_of_new(admin, plan_request(asked, how))
    if plan.runnable and not plan.moves:
        return False
    show(scaling, how, f"give {_named(empty)}, which hold{'s' * (len(empty) == 1)} nothing yet, their share")
    if how.dry_run:
        from penstock_core.operation_documents import plan_document

        scaling.plans.append(plan_document(plan))
        if not how.as_json:
            plans.show_plan(scaling.plans[-1])
        why = plans.refusal(scaling.plans[-1])
        if why is not None:
            raise Ended(CommandError(why, ExitCode.REFUSED))
        return True
    _carry_out(admin, asked, how, scaling, follows=how.wait_s is not None or how.watch)
    return True


def _without_share(admin: Admin) -> list[int]:
    """Live nodes that hold nothing, where others do, and that no operation is about."""
    nodes = admin.nodes()
    empty = {node.node_id for node in nodes if node.condition == "ok" and not node.replicas}
    if not empty or not any(node.replicas for node in nodes):
        return []
    for operation in admin.operations(ended=False):
        parameters = operation.record.parameters
        empty.difference_update(parameters.node_ids, [parameters.replacement_node_id])
    return sorted(empty)


def _await_live(admin: Admin, scaling: Scaling, before: Sequence[Candidate]) -> list[int]:
    """Until as many nodes as wanted are live; the ids of those that are new. Raises Ended when the time is over."""
    known = {node.node_id for node in before}
    deadline = time.monotonic() + LIVE_TIMEOUT_S
    while True:
        try:
            live = [node.node_id for node in admin.nodes() if node.condition != _FENCED]
        except CommandError as error:
            if error.exit_code != ExitCode.UNREACHABLE or time.monotonic() > deadline:
                raise
            live = []
        if len(live) >= scaling.count:
            return sorted(set(live) - known)
        if time.monotonic() > deadline:
            raise Ended(
                CommandError(
                    f"{len(live)} of {scaling.count} storage nodes are live {LIVE_TIMEOUT_S:.0f} s after "
                    f"{', '.join(scaling.started) or 'they'} had been started; look at their logs, then give the "
                    "same command again"
                )
            )
        time.sleep(POLL_S)


def _fewer_nodes(
    admin: Admin, scaler: Scaler, how: How, scaling: Scaling, nodes: Sequence[Candidate]
) -> None:
    leaving, plan = _choose(admin, scaler, how, nodes, len(nodes) - scaling.count)
    from penstock_core.operation_documents import plan_document

    compare(plan, how.plan_id)
    document = plan_document(plan)
    scaling.command = scaler.command(NODE, scaling.count, (), leaving)
    if not how.as_json:
        plans.show_plan(document)
        click.echo()
    show(scaling, how, f"remove {_named(leaving)}, then stop {'it' if len(leaving) == 1 else 'them'}")
    why = plans.refusal(document)
    if why is not None or how.dry_run or scaler.is_numbered:
        scaling.plans.append(document)
        if why is not None:
            raise Ended(CommandError(why, ExitCode.REFUSED))
        return
    confirm(how, plan_question(document))
    asked = Asked("node-remove", {"node_ids": leaving})
    _carry_out(admin, asked, how, scaling, follows=True, planned=plan)
    scaling.removed_nodes = leaving
    processes = [ProcessName(NODE, f"node-{node_id}") for node_id in leaving]
    scaler.stop(processes)
    scaling.stopped += [process.name for process in processes]
    note(f"stopped: {', '.join(scaling.stopped)}; {scaling.count} storage nodes are left")


def _choose(
    admin: Admin, scaler: Scaler, how: How, nodes: Sequence[Candidate], count: int
) -> tuple[list[int], operations_pb2.Plan]:
    """The first choice that no gate refuses, or that has the plan which was approved; else the best one."""
    ways = [highest(nodes, count)] if scaler.is_numbered else list(choices(nodes, count))
    first: tuple[list[int], operations_pb2.Plan] | None = None
    for leaving in ways:
        plan = admin.plan(plan_request(Asked("node-remove", {"node_ids": leaving}), how))
        if plan.plan_id == how.plan_id or (plan.runnable and not how.plan_id):
            return leaving, plan
        first = first or (leaving, plan)
    assert first is not None
    return first


def _plan_of_new(admin: Admin, request: operations_pb2.PlanRequest) -> operations_pb2.Plan:
    """The plan, once new nodes have told how much room they have."""
    deadline = time.monotonic() + TOLD_TIMEOUT_S
    while True:
        plan = admin.plan(request)
        waits = {gate.name for gate in plan.gates if gate.blocking} == {"disk-room"}
        if not waits or time.monotonic() > deadline:
            return plan
        time.sleep(POLL_S)


def _stop_spares(scaler: Scaler, how: How, scaling: Scaling, extra: Sequence[ProcessName]) -> None:
    scaling.command = scaler.command(NODE, scaling.count, (), ())
    show(scaling, how, f"stop {plans.counted(len(extra), 'process')} that no node of the cluster has")
    if how.dry_run:
        return
    confirm(how, f"Stop {plans.counted(len(extra), 'process')} by {scaler.via}?")
    scaler.stop(extra)
    scaling.stopped += [process.name for process in extra]


def _carry_out(
    admin: Admin,
    asked: Asked,
    how: How,
    scaling: Scaling,
    *,
    follows: bool,
    planned: operations_pb2.Plan | None = None,
) -> None:
    """Plan it unless that was done, begin it, and follow it to its end. Raises Ended unless all is well."""
    from penstock_core.operation_documents import operation_document, plan_document

    request = plan_request(asked, how)
    plan = planned or _plan_of_new(admin, request)
    scaling.plans.append(plan_document(plan))
    if planned is None:
        document = scaling.plans[-1]
        if not how.as_json:
            plans.show_plan(document)
        why = plans.refusal(document)
        if why is not None:
            ids = ",".join(map(str, asked.parameters["node_ids"]))
            raise Ended(
                CommandError(
                    f"the nodes run and hold nothing yet: {why}; later: `penstock node add {ids}`",
                    ExitCode.FAILED,
                )
            )
        confirm(how, plan_question(document))
    operation, other = begin(admin, request, plan, how)
    if operation is None:
        scaling.plans[-1] = plan_document(other)
        why = plans.refusal(scaling.plans[-1]) or "refused; nothing was changed"
        raise Ended(CommandError(why, ExitCode.REFUSED))
    begun = operation_document(operation)
    scaling.operations.append(begun)
    number = begun["operation_id"]
    if not follows:
        note(
            f"operation {number} ({begun['kind']}) is {begun['state']}; `penstock operation watch {number}` shows it"
        )
        return
    try:
        code = follow(admin, begun, wait_s=how.wait_s, watch=how.watch and not how.as_json)
    except CommandError as error:
        if error.exit_code == ExitCode.GOES_ON and asked.kind == "node-remove":
            error = CommandError(
                f"{error.message}; give the same command again then, to stop the processes", ExitCode.GOES_ON
            )
        raise Ended(error) from None
    finally:
        with suppress(CommandError):
            scaling.operations[-1] = operation_document(admin.operation(number))
    if code != ExitCode.OK:
        raise Ended(CommandError("interrupted; give the same command again to go on", ExitCode(code)))


def _candidate(node: operations_pb2.NodeCondition) -> Candidate:
    told = node.log_bytes if node.HasField("log_bytes") else None
    return Candidate(node.node_id, node.rack, node.condition, told, node.replicas)


def _named(node_ids: Sequence[int]) -> str:
    return f"node{'' if len(node_ids) == 1 else 's'} {', '.join(map(str, node_ids))}"
