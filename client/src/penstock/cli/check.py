"""`penstock cluster check` and `penstock cluster capacity`: is it well, what would mend it, how long there is room."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final

import click

from penstock.cli.admin import Admin, Where, gateway_option
from penstock.cli.kafka import json_option
from penstock.cli.output import note, print_facts, print_json, print_table, spinner
from penstock.cli.rates import rate_text, size_text, span_text
from penstock.errors import CommandError, ExitCode

Json = dict[str, Any]

POLL_S: Final = 1.0
BAR_WIDTH: Final = 20
FAR_S: Final = 10 * 365 * 86_400
"""Beyond that nobody looks at when a disk is full."""


def _wait_value(_ctx: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and value != value:  # NaN is in every range
        raise CommandError("--wait nan: give seconds, such as 60", ExitCode.USAGE)
    return value


@click.command()
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    callback=_wait_value,
    metavar="SECONDS",
    help="Look again until nothing is amiss, or so long.",
)
@gateway_option
@json_option
def check(wait_s: float | None, gateway: str | None, bootstrap: str, as_json: bool) -> int:
    """Tell what is not as it should be, gravest first, with what mends it.

    Exit code 0 when there is no error and no warning, 1 when there is one. With --wait it looks again until there
    is none, also while no gateway answers yet.

    \b
    Examples:
      penstock cluster check
      penstock cluster check --wait 60
      penstock cluster check --json | jq -r '.findings[] | select(.code == "domain-unsafe") | .subject'
    """
    where = Where.of(click.get_current_context(), gateway, bootstrap)
    with Admin.at(where) as admin:
        from penstock_core.observation_documents import check_document

        with spinner("looking at the cluster"):
            found = look(lambda: check_document(admin.check()), wait_s)
    if as_json:
        print_json(found)
    else:
        _show_findings(found)
    return ExitCode.OK if found["ok"] else ExitCode.FAILED


def look(
    ask: Callable[[], Json],
    wait_s: float | None,
    clock_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Json:
    """What `ask` tells, asked again until it is well or `wait_s` is over. Raises CommandError where none answers."""
    end_s = clock_s() + (wait_s or 0.0)
    while True:
        left_s = end_s - clock_s()
        try:
            found = ask()
            if found["ok"] or left_s <= 0:
                return found
        except CommandError as error:
            if error.exit_code != ExitCode.UNREACHABLE or left_s <= 0:
                raise
        sleep(max(0.0, min(POLL_S, left_s)))


def _show_findings(found: Json) -> None:
    findings = found["findings"]
    if not findings:
        note("nothing is amiss")
        return
    print_table(
        ("severity", "code", "subject", "detail", "what mends it"),
        [[each[key] for key in ("severity", "code", "subject", "detail", "hint")] for each in findings],
    )
    if found["ok"]:
        note("no error and no warning")


@click.command()
@gateway_option
@json_option
def capacity(gateway: str | None, bootstrap: str, as_json: bool) -> None:
    """Room, growth and load of storage nodes, and whether all that is there would fit with some of them lost.

    Growth is that of the last hour, rates are of the last minute, as far as the active controller has heard: it
    forgets when another one takes over.

    \b
    Examples:
      penstock cluster capacity
      penstock cluster capacity --json | jq '.nodes[] | {node_id, full_in_s}'
    """
    with Admin.at(Where.of(click.get_current_context(), gateway, bootstrap)) as admin:
        from penstock_core.observation_documents import capacity_document

        found = capacity_document(admin.capacity())
    if as_json:
        print_json(found)
        return
    print_table(
        ("node", "disk used", "free", "logs", "growth", "full in", "in", "out", "loop busy"),
        [capacity_row(each, bars=sys.stdout.isatty()) for each in found["nodes"]],
    )
    click.echo()
    survives = found["survives"]
    print_facts([(f"fits without any one {level}", survives_text(survives[level])) for level in survives])


def capacity_row(node: Json, *, bars: bool) -> list[object]:
    """Cells of a node."""
    growth, full_in_s, busy = node["growth_bytes_per_s"], node["full_in_s"], node["loop_busy_ratio"]
    return [
        node["node_id"],
        _used(node, bars=bars),
        _size(node["disk_free_bytes"]),
        _size(node["log_bytes"]),
        None if growth is None else f"{'-' if growth < 0 else ''}{rate_text(abs(growth))}",
        None if full_in_s is None else span_text(full_in_s) if full_in_s < FAR_S else "years",
        _rate(node["in_bytes_per_s"]),
        _rate(node["out_bytes_per_s"]),
        None if busy is None else f"{busy:.0%}",
    ]


def survives_text(value: bool | None) -> str:
    """For people."""
    return "not known, or there is none" if value is None else "yes" if value else "no"


def _used(node: Json, *, bars: bool) -> str | None:
    total, free = node["disk_total_bytes"], node["disk_free_bytes"]
    if not total or free is None:
        return None
    ratio = min(1.0, max(0.0, 1 - free / total))
    if not bars:
        return f"{ratio:.0%}"
    filled = round(ratio * BAR_WIDTH)
    return f"{'█' * filled}{'░' * (BAR_WIDTH - filled)} {ratio:.0%}"


def _size(value: int | None) -> str | None:
    return None if value is None else size_text(value)


def _rate(value: int | None) -> str | None:
    return None if value is None else rate_text(value)
