"""`penstock operation`: planned changes of the cluster, looked at and steered."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import click

from penstock.cli.admin import Admin, Where, gateway_option
from penstock.cli.follow import follow, progress_text
from penstock.cli.kafka import json_option
from penstock.cli.output import note, print_facts, print_json, print_table
from penstock.cli.planned import throttle_pb, wait_option
from penstock.cli.plans import subject, throttle_text
from penstock.cli.rates import parse_throttle, span_text
from penstock.cli.restarting import Restarts
from penstock.cli.via.choosing import WayAsked, choose_way, way_options
from penstock.errors import CommandError, ExitCode

Json = dict[str, Any]

ROLLING_RESTART: Final = "rolling-restart"

operation_argument = click.argument("operation_id", metavar="ID", type=click.IntRange(1, 2**63 - 1))


@click.group("operation")
def COMMAND() -> None:  # noqa: N802 (the name that cli.main looks for)
    """Operations: planned changes of the cluster, how far they are, and pause, resume, cancel."""


@COMMAND.command("list")
@click.option("--all", "ended", is_flag=True, help="Also those that have ended.")
@gateway_option
@json_option
def list_operations(ended: bool, gateway: str | None, bootstrap: str, as_json: bool) -> None:
    """Operations, newest first.

    \b
    Examples:
      penstock operation list
      penstock operation list --all --json | jq '.[].state'
    """
    with _admin(gateway, bootstrap) as admin:
        from penstock_core.operation_documents import operation_document

        found = [operation_document(each) for each in admin.operations(ended=ended)]
    if as_json:
        print_json(found)
    elif found:
        print_table(
            ("id", "kind", "of", "state", "done", "moves", "time left", "began", "by"),
            [_row(each) for each in found],
        )
    else:
        note(
            "there are no operations" if ended else "no operation goes on; --all shows those that have ended"
        )


@COMMAND.command()
@operation_argument
@gateway_option
@json_option
def show(operation_id: int, gateway: str | None, bootstrap: str, as_json: bool) -> None:
    """An operation: what it does, how far it is, and what it waits for.

    \b
    Examples:
      penstock operation show 1204
      penstock operation show 1204 --json | jq .progress
    """
    with _admin(gateway, bootstrap) as admin:
        from penstock_core.operation_documents import operation_document

        found = operation_document(admin.operation(operation_id))
    _tell(found, as_json)


@COMMAND.command()
@operation_argument
@wait_option
@gateway_option
@json_option
def watch(operation_id: int, wait_s: float | None, gateway: str | None, bootstrap: str, as_json: bool) -> int:
    """Show how far an operation is until it ends; Ctrl-C only stops watching.

    \b
    Examples:
      penstock operation watch 1204
      penstock operation watch 1204 --wait 600 --json
    """
    with _admin(gateway, bootstrap) as admin:
        from penstock_core.operation_documents import operation_document

        found = operation_document(admin.operation(operation_id))
        return follow(admin, found, wait_s=wait_s, watch=True, as_json=as_json)


@COMMAND.command()
@operation_argument
@click.option("--yes", is_flag=True, help="Accepted for scripts; nothing is asked.")
@gateway_option
@json_option
def pause(operation_id: int, yes: bool, gateway: str | None, bootstrap: str, as_json: bool) -> None:
    """Begin no further moves; those under way finish.

    \b
    Examples:
      penstock operation pause 1204
    """
    del yes
    _control("PAUSE", operation_id, gateway, bootstrap, as_json)


@COMMAND.command()
@operation_argument
@click.option("--yes", is_flag=True, help="Accepted for scripts; nothing is asked.")
@way_options
@gateway_option
@json_option
def resume(
    operation_id: int, yes: bool, gateway: str | None, bootstrap: str, as_json: bool, **way: Any
) -> int:
    """Go on after a pause. A rolling restart needs a command that restarts processes: this one, until its end.

    \b
    Examples:
      penstock operation resume 1204
      penstock operation resume 1204 --via local     a rolling restart of the local cluster
    """
    del yes
    where = Where.of(click.get_current_context(), gateway, bootstrap)
    with Admin.at(where) as admin:
        record = admin.operation(operation_id).record
        if record.kind == ROLLING_RESTART:
            restarts = Restarts(admin, choose_way(WayAsked(**way), where), operation_id)
            return restarts.run(as_json=as_json, resume=True)
    if any(way.values()):
        raise CommandError(
            f"operation {operation_id} ({record.kind}) restarts nothing and goes on by itself: leave --via out",
            ExitCode.USAGE,
        )
    return _control("RESUME", operation_id, gateway, bootstrap, as_json)


@COMMAND.command()
@operation_argument
@click.option("--yes", is_flag=True, help="Accepted for scripts; nothing is asked.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Return when it has ended: 0 if it is cancelled, 1 if not, 5 if it goes on after so long.",
)
@gateway_option
@json_option
def cancel(
    operation_id: int,
    yes: bool,
    wait_s: float | None,
    gateway: str | None,
    bootstrap: str,
    as_json: bool,
) -> int:
    """End an operation: moves under way go back, what is done stays, cordons that it made are lifted.

    \b
    Examples:
      penstock operation cancel 1204
      penstock operation cancel 1204 --wait 60
    """
    del yes
    return _control("CANCEL", operation_id, gateway, bootstrap, as_json, wait_s=wait_s)


@COMMAND.command()
@operation_argument
@click.argument("rate", metavar="auto|RATE")
@gateway_option
@json_option
def throttle(operation_id: int, rate: str, gateway: str | None, bootstrap: str, as_json: bool) -> None:
    """Change how fast each node may copy for an operation, in each direction.

    \b
    Examples:
      penstock operation throttle 1204 20MB/s
      penstock operation throttle 1204 auto
    """
    _control(
        "THROTTLE", operation_id, gateway, bootstrap, as_json, bytes_per_s=parse_throttle(rate, "throttle")
    )


def _admin(gateway: str | None, bootstrap: str) -> Admin:
    return Admin.at(Where.of(click.get_current_context(), gateway, bootstrap))


def _control(
    what: str,
    operation_id: int,
    gateway: str | None,
    bootstrap: str,
    as_json: bool,
    *,
    bytes_per_s: int | None = None,
    wait_s: float | None = None,
) -> int:
    with _admin(gateway, bootstrap) as admin:
        from penstock_core.operation_documents import operation_document
        from penstock_proto.v1 import operations_pb2

        request = operations_pb2.ControlOperationRequest(
            operation_id=operation_id,
            control=operations_pb2.OperationControl.Value(f"OPERATION_CONTROL_{what}"),
            throttle=throttle_pb(bytes_per_s) if what == "THROTTLE" else None,
        )
        found = operation_document(admin.control(request).operation)
        if wait_s is not None:
            return follow(admin, found, wait_s=wait_s, as_json=as_json, good="cancelled")
    if as_json:
        print_json(found)
    elif what == "THROTTLE":
        note(f"operation {operation_id}: throttle {throttle_text(found['throttle'])}")
    else:
        note(f"operation {operation_id} is {found['state']}")
    return ExitCode.OK


def _tell(operation: Json, as_json: bool) -> None:
    if as_json:
        print_json(operation)
    else:
        print_facts(operation_facts(operation))


def operation_facts(operation: Json) -> list[tuple[str, object]]:
    """Name and value, in the order to show them."""
    p99 = operation["produce_p99_ms"]
    facts: list[tuple[str, object]] = [
        ("operation", operation["operation_id"]),
        ("what", f"{operation['kind']} {subject(operation['parameters'])}".strip()),
        ("plan", operation["plan_id"]),
        ("progress", progress_text(operation)),
        ("throttle", throttle_text(operation["throttle"])),
        ("created", f"{time_text(operation['created_ms'])} by {operation['created_by'] or 'nobody'}"),
        ("started", time_text(operation["started_ms"])),
        ("finished", time_text(operation["finished_ms"])),
    ]
    for step in operation["steps"]:
        why = f" ({step['reason']})" if step["reason"] else ""
        facts.append((step["name"], f"{step['state']}{why}"))
    if operation["reason"]:
        facts.append(("reason", operation["reason"]))
    if operation["waiting_for"]:
        facts.append(("waits for", operation["waiting_for"]))
    if any(value is not None for value in p99.values()):
        words = [f"{value:.1f} ms {name}" for name, value in p99.items() if value is not None]
        facts.append(("produce p99", ", ".join(words)))
    return facts


def time_text(time_ms: int | None) -> str:
    """`2026-01-31 12:00:00 UTC`."""
    if time_ms is None:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _row(operation: Json) -> list[object]:
    progress, eta_s = operation["progress"], operation["eta_s"]
    return [
        operation["operation_id"],
        operation["kind"],
        subject(operation["parameters"]),
        operation["state"],
        f"{progress['ratio'] * 100:.0f}%",
        f"{progress['moves_done']}/{progress['moves_total']}",
        None if eta_s is None else span_text(eta_s),
        time_text(operation["created_ms"]),
        operation["created_by"],
    ]
