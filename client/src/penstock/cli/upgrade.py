"""`penstock cluster upgrade`: raises the level of the metadata once every process understands it.

It is an operation like any other: a gateway is asked for the plan, and the active controller decides again when it
begins. Where gateways or controllers are of a build that knows no operations, or --controllers names whom to ask, the
controllers are asked themselves (upgrade_directly).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli import plans
from penstock.cli.admin import Admin, UnknownThere
from penstock.cli.controller import certificate_option, controllers_option, with_client
from penstock.cli.output import note, print_json, print_table
from penstock.cli.planned import Asked, How, HowOf, begin, compare, plan_request, with_plan_options
from penstock.cli.upgrade_directly import (
    IN_THE_WAY,
    READY,
    Plan,
    Process,
    plan_directly,
    problem_of,
    raise_directly,
)
from penstock.errors import CommandError, ExitCode
from penstock.text import harmless

if TYPE_CHECKING:
    from penstock_proto.v1 import operations_pb2

Json = dict[str, Any]
_ROLES: Final = {"controller": ("controller", "controller-"), "storage-node": ("storage node", "node-")}


@click.command()
@click.option(
    "--level",
    type=click.IntRange(min=1),
    help="Level to reach; by default the highest that the controllers know.",
)
@click.option(
    "--downgrade",
    is_flag=True,
    help="Go back, by default by one, where nothing of the higher level is in use.",
)
@controllers_option
@certificate_option
@with_plan_options
def upgrade(
    how_of: HowOf,
    level: int | None,
    downgrade: bool,
    controllers: str | None,
    certificate: Path | None,
) -> int:
    """Raise the level of the cluster's metadata after every process runs a newer build.

    Install the new build on controllers, storage nodes and gateways first, one after another; what it
    brought is switched on by this command. Older builds are refused from then on. A level falls only with
    --downgrade, and only while nothing that came with it is in use.
    Asks first; where there is no terminal, --yes or --dry-run has to be given.

    \b
    Examples:
      penstock cluster upgrade --dry-run
      penstock cluster upgrade
      penstock cluster upgrade --level 2 --yes --json --controllers ctl-1:5001
      penstock cluster upgrade --downgrade --dry-run
    """
    how = how_of(changes=True)

    def directly() -> int:
        return _directly(how, level, controllers, certificate, downgrade=downgrade)

    named = how.where.gateways or how.where.bootstrap
    if controllers or (certificate and not named):
        return directly()
    try:
        with Admin.at(how.where) as admin:
            return _by_gateway(admin, how, level, downgrade=downgrade)
    except UnknownThere as older:
        return _instead(directly, how, older)
    except CommandError as error:
        # Nobody was told which gateway: that of a local cluster whose gateways are down can be done without.
        if error.exit_code is not ExitCode.UNREACHABLE or named:
            raise
        return _instead(directly, how, error)


def _instead(directly: Callable[[], int], how: How, error: CommandError) -> int:
    """Ask the controllers, where they are known."""
    from penstock.local.store import Store

    if not Store(how.where.directory).exists():
        raise error
    return directly()


# --- by a gateway -------------------------------------------------------------------------------


def _by_gateway(admin: Admin, how: How, level: int | None, *, downgrade: bool) -> int:
    from penstock_core.operation_documents import operation_document, plan_document

    asked = Asked("upgrade", {"level": level or 0, "downgrade": downgrade})
    request = plan_request(asked, how)
    plan = admin.plan(request)
    compare(plan, how.plan_id)
    found = _plan_of(plan)
    document = plan_document(plan)
    if not how.as_json:
        _show(found)
        for warning in plan.warnings if found.wanted != found.now else ():
            click.echo(f"warning: {harmless(warning)}")
    why = plans.refusal(document)
    if why is not None or how.dry_run or found.wanted == found.now:
        if how.as_json:
            print_json(document | _outcome(found, raised=False))
        if why is not None:
            raise _refused(found, why)
        _say(found, raised=False)
        return ExitCode.OK
    _ask(how, found)
    # Whoever answers next plans for this level, whatever its own is.
    request.parameters.CopyFrom(plan.parameters)
    operation, other_plan = begin(admin, request, plan, how)
    if operation is None:
        why = plans.refusal(plan_document(other_plan)) or "refused; nothing was changed"
        raise _refused(_plan_of(other_plan), why)
    if how.as_json:
        print_json(operation_document(operation) | _outcome(found, raised=True))
    _say(found, raised=True)
    return ExitCode.OK


def _plan_of(plan: operations_pb2.Plan) -> Plan:
    wanted = plan.parameters.level

    def process(step: operations_pb2.PlannedStep) -> Process:
        role, prefix = _ROLES.get(step.role, (step.role, ""))
        state = READY if step.feature_level >= wanted else IN_THE_WAY
        name = harmless(step.name.removeprefix(prefix))
        return Process(role, name, harmless(step.version) or None, step.feature_level or None, state)

    return Plan(plan.metadata_level, wanted, [process(step) for step in plan.steps])


def _refused(found: Plan, why: str) -> CommandError:
    """The processes in the way, else the gates."""
    behind = problem_of(found) if found.in_the_way else None
    return CommandError(why if behind is None else behind.message, ExitCode.REFUSED)


# --- by the controllers --------------------------------------------------------------------------


def _directly(
    how: How, level: int | None, controllers: str | None, certificate: Path | None, *, downgrade: bool
) -> int:
    if downgrade or how.plan_id:
        option = "--downgrade" if downgrade else "--plan-id"
        raise CommandError(
            f"{option} needs a gateway and controllers of this build: give --gateway HOST:PORT, not --controllers"
        )
    found = with_client(controllers, certificate, how.where.directory, lambda c: plan_directly(c, level))
    raised = False
    if not how.as_json:
        _show(found)
    problem = problem_of(found)
    if problem is None and found.wanted > found.now and not how.dry_run:
        _ask(how, found)
        with_client(controllers, certificate, how.where.directory, lambda c: raise_directly(c, found.wanted))
        raised = True
    if how.as_json:
        print_json(_outcome(found, raised=raised))
    if problem is not None:
        raise problem
    _say(found, raised=raised)
    return ExitCode.OK


# --- what people and programs are told -------------------------------------------------------------


def _show(found: Plan) -> None:
    print_table(
        ("role", "name", "version", "level", "state"),
        [[p.role, p.name, p.version, p.level, p.state] for p in found.processes],
    )


def _ask(how: How, found: Plan) -> None:
    verb = "Raise" if found.wanted > found.now else "Lower"
    question = f"{verb} metadata.level from {found.now} to {found.wanted}?"
    if not how.yes and not click.confirm(question, err=True):
        raise CommandError(f"nothing was changed: metadata.level stays {found.now}")


def _outcome(found: Plan, *, raised: bool) -> Json:
    return {
        "level": found.wanted if raised else found.now,
        "wanted": found.wanted,
        "raised": raised,
        "processes": [asdict(p) for p in found.processes],
        "in_the_way": [f"{p.role} {p.name}" for p in found.in_the_way],
    }


def _say(found: Plan, *, raised: bool) -> None:
    if raised:
        note(f"metadata.level is {found.wanted} now; it was {found.now}")
    elif found.wanted == found.now:
        note(f"metadata.level is {found.now} already")
    else:
        note(f"metadata.level would go from {found.now} to {found.wanted}")
