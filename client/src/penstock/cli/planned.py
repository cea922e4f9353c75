"""Commands that change the cluster by a plan: shown first, asked for, begun, and followed if wanted.

Such a command says what it asks for (`Asked`) and is decorated with `planned`, which brings the options that all of
them have. Off a terminal nothing is changed without --yes. Whoever says yes to a plan begins that plan and no other;
with --yes alone it is whatever the controllers plan when it begins.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from penstock.cli import plans
from penstock.cli.admin import Admin, Lost, Where, gateway_option
from penstock.cli.follow import follow
from penstock.cli.kafka import json_option
from penstock.cli.output import note, print_json
from penstock.cli.rates import AUTO, parse_throttle, size_text, span_text
from penstock.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from penstock_proto.v1 import metadata_pb2, operations_pb2

ALLOWABLE: Final = ("min-isr", "racks", "health", "single-replica")
"""Gates that may be allowed away."""
_PLAN_ID: Final = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Asked:
    """What a command asks for: a kind of operation, and fields of OperationParameters."""

    kind: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class How:
    """What the common options say."""

    where: Where
    dry_run: bool
    yes: bool
    throttle_bytes_per_s: int | None
    allowed: tuple[str, ...]
    plan_id: str
    wait_s: float | None
    watch: bool
    as_json: bool


def _throttle_value(_ctx: click.Context, _parameter: click.Parameter, value: str) -> int | None:
    return parse_throttle(value)


def _plan_id_value(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    if value is not None and not _PLAN_ID.fullmatch(value.lower()):
        raise CommandError(
            f"--plan-id {value!r}: give the 16 hex digits that --dry-run showed", ExitCode.USAGE
        )
    return (value or "").lower()


def _wait_value(_ctx: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and value != value:  # NaN is in every range
        raise CommandError("--wait nan: give seconds, such as 60", ExitCode.USAGE)
    return value


wait_option = click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    callback=_wait_value,
    metavar="SECONDS",
    help="Return when it has ended: 0 if it is done, 1 if not, 5 if it goes on after so long.",
)

_OPTIONS: Final = (
    click.option("--dry-run", is_flag=True, help="Only show the plan."),
    click.option("--yes", is_flag=True, help="Do not ask whether to go on."),
    click.option(
        "--throttle",
        default=AUTO,
        show_default=True,
        metavar="auto|RATE",
        callback=_throttle_value,
        help="How fast each node may copy, in each direction: auto, which is as fast as producers allow, or a "
        "rate such as 50MB/s, 48MiB/s or bytes per second.",
    ),
    click.option(
        "--allow",
        "allowed",
        multiple=True,
        type=click.Choice(ALLOWABLE),
        help="A gate that is not to stop it; may be given for each.",
    ),
    click.option(
        "--plan-id", callback=_plan_id_value, metavar="HEX", help="Go on only if the plan is still this one."
    ),
    wait_option,
    click.option(
        "--watch", is_flag=True, help="Show how far it is until it ends; Ctrl-C only stops watching."
    ),
    gateway_option,
    json_option,
)


def planned(command: Callable[..., Asked]) -> Callable[..., int]:
    """The command with the common options; `command` itself takes its own alone and says what it asks for."""

    @functools.wraps(command)
    def carried_out(how_of: HowOf, **own: Any) -> int:
        asked = command(**own)
        how = how_of(changes=True)
        with Admin.at(how.where) as admin:
            return carry_out(admin, asked, how)

    return with_plan_options(carried_out)


class HowOf(Protocol):
    """What the common options say."""

    def __call__(self, *, changes: bool) -> How:
        """`changes`: raises a usage error where somebody has to be asked first and nobody can be."""


def with_plan_options(command: Callable[..., int]) -> Callable[..., int]:
    """The command with the common options, of which it is told by its first argument, a HowOf."""

    @functools.wraps(command)
    def called(
        *,
        dry_run: bool,
        yes: bool,
        throttle: int | None,
        allowed: tuple[str, ...],
        plan_id: str,
        wait_s: float | None,
        watch: bool,
        gateway: str | None,
        bootstrap: str,
        as_json: bool,
        **own: Any,
    ) -> int:
        def how_of(*, changes: bool) -> How:
            if changes and not (yes or dry_run or sys.stdin.isatty()):
                raise CommandError(
                    "no terminal to ask at: give --yes to go on, or --dry-run to see the plan", ExitCode.USAGE
                )
            where = Where.of(click.get_current_context(), gateway, bootstrap)
            return How(where, dry_run, yes, throttle, allowed, plan_id, wait_s, watch, as_json)

        return command(how_of, **own)

    found: Callable[..., int] = called
    for option in reversed(_OPTIONS):
        found = option(found)
    return found


def carry_out(
    admin: Admin, asked: Asked, how: How, then: Callable[[dict[str, Any]], int] | None = None
) -> int:
    """Plan, ask, begin, follow; the exit code. Raises CommandError.

    `then`: what to do with the document of the begun operation instead of following it.
    """
    from penstock_core.operation_documents import operation_document, plan_document

    request = plan_request(asked, how)
    plan = admin.plan(request)
    compare(plan, how.plan_id)
    document = plan_document(plan)
    if not how.as_json:
        plans.show_plan(document)
    why = plans.refusal(document)
    if why is not None or how.dry_run:
        return _unchanged(document, why, how)
    if not how.yes and not click.confirm(plan_question(document), err=True):
        raise CommandError("nothing was changed")
    operation, other_plan = begin(admin, request, plan, how)
    if operation is None:
        document = plan_document(other_plan)
        return _unchanged(document, plans.refusal(document) or "refused; nothing was changed", how)
    begun = operation_document(operation)
    if begun["plan_id"] not in (None, document["plan_id"]):
        note(f"the cluster changed meanwhile: what was begun is plan {begun['plan_id']}")
    if then is not None:
        return then(begun)
    if how.wait_s is not None or how.watch:
        return follow(admin, begun, wait_s=how.wait_s, watch=how.watch, as_json=how.as_json)
    if how.as_json:
        print_json(begun)
    else:
        number = begun["operation_id"]
        note(
            f"operation {number} ({begun['kind']}) is {begun['state']}; "
            f"`penstock operation watch {number}` shows how far it is"
        )
    return ExitCode.OK


def throttle_pb(bytes_per_s: int | None) -> metadata_pb2.OperationThrottle:
    """None is auto."""
    from penstock_proto.v1 import metadata_pb2

    return metadata_pb2.OperationThrottle(auto=bytes_per_s is None, bytes_per_s=bytes_per_s or 0)


def plan_request(asked: Asked, how: How) -> operations_pb2.PlanRequest:
    """What the controllers are asked to plan."""
    from penstock_proto.v1 import metadata_pb2, operations_pb2

    return operations_pb2.PlanRequest(
        kind=asked.kind,
        parameters=metadata_pb2.OperationParameters(**asked.parameters),
        throttle=throttle_pb(how.throttle_bytes_per_s),
        allowed_gates=dict.fromkeys(how.allowed),
    )


def compare(plan: operations_pb2.Plan, wanted_id: str) -> None:
    """Close the gate `plan-changed` of a plan that is not the wanted one."""
    if wanted_id and plan.plan_id != wanted_id:
        plan.runnable = False
        plan.gates.add(
            name="plan-changed",
            blocking=True,
            detail=f"the plan is {plan.plan_id} now, not {wanted_id}; look at it with --dry-run",
        )


def plan_question(plan: dict[str, Any]) -> str:
    """Whether to begin it."""
    totals, eta_s = plan["totals"], plan["eta_s"]
    about = plans.subject(plan["parameters"])
    words = [plans.counted(totals["moves"], "move"), size_text(totals["bytes"])]
    if plan["steps"]:
        words = [plans.counted(len(plan["steps"]), "process", "processes")]
    if eta_s is not None:
        words.append(f"about {span_text(eta_s)}")
    return f"Begin {plan['kind']}{f' of {about}' if about else ''} ({', '.join(words)})?"


def _unchanged(plan: dict[str, Any], why: str | None, how: How) -> int:
    """Tell of a plan that was not begun. Raises CommandError REFUSED where a gate is why."""
    if how.as_json:
        print_json(plan)
    if why is not None:
        raise CommandError(why, ExitCode.REFUSED)
    note("nothing was changed; leave --dry-run out to do it")
    return ExitCode.OK


def begin(
    admin: Admin, request: operations_pb2.PlanRequest, plan: operations_pb2.Plan, how: How
) -> tuple[operations_pb2.Operation | None, operations_pb2.Plan]:
    """The operation, None where a gate refused it; and the plan that was begun or refused."""
    from penstock_proto.v1 import operations_pb2

    approved = how.plan_id or ("" if how.yes else plan.plan_id)
    try:
        response = admin.start(operations_pb2.StartOperationRequest(request=request, plan_id=approved))
    except Lost as lost:
        found = _begun_already(admin, request, plan, approved)
        if found is None:
            raise CommandError(
                f"{lost.message}; it may have begun or not: `penstock operation list --all` shows it",
                ExitCode.UNREACHABLE,
            ) from None
        return found, plan
    if response.HasField("operation"):
        return response.operation, response.plan
    # A call that was sent twice, since a controller was lost in the middle of it, is refused for its own doing.
    return _begun_already(admin, request, plan, approved), response.plan


def _begun_already(
    admin: Admin, request: operations_pb2.PlanRequest, plan: operations_pb2.Plan, approved: str
) -> operations_pb2.Operation | None:
    """The same operation, begun after the plan was made: ids are versions of the metadata."""
    for operation in admin.operations(ended=True):
        record = operation.record
        if (
            record.operation_id > plan.metadata_version
            and record.kind == request.kind
            and record.parameters == request.parameters
            and approved in ("", record.plan_id)
        ):
            return operation
    return None
