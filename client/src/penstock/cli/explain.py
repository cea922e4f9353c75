"""`penstock explain`: what is now, what would make it well, and how it came to that."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.admin import Admin, Where, gateway_option
from penstock.cli.kafka import json_option
from penstock.cli.operation import operation_argument, time_text
from penstock.cli.output import note, print_json
from penstock.errors import CommandError, ExitCode
from penstock.text import harmless

if TYPE_CHECKING:
    from penstock_proto.v1 import operations_pb2

_SPAN: Final = re.compile(r"([0-9]{1,9})(s|m|min|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}

since_option = click.option(
    "--since",
    default="2h",
    show_default=True,
    metavar="SPAN|TIME",
    help="How far back: a span such as 30m, 2h or 7d, or a time such as 2026-01-31T12:00 (UTC unless it says so).",
)


@click.group("explain")
def COMMAND() -> None:  # noqa: N802 (the name that cli.main looks for)
    """What is the matter with a partition, a node or an operation, and how it came to that.

    First what is now and what would make it well, then what happened, newest last. All controllers are asked what they
    remember: at most 7 days.
    """


@COMMAND.command()
@click.argument("partition", metavar="TOPIC-N")
@since_option
@gateway_option
@json_option
def partition(partition: str, since: str, gateway: str | None, bootstrap: str, as_json: bool) -> None:
    """Why a partition is as it is: its leader, who is in sync, and what changed that.

    \b
    Examples:
      penstock explain partition flights-3
      penstock explain partition flights-3 --since 30m --json | jq -r '.story[].detail'
    """
    topic, _, number = partition.rpartition("-")
    if not topic or not number.isdecimal() or len(number) > 9:
        raise CommandError(f"{partition!r} is no partition: say TOPIC-N, e.g. flights-3", ExitCode.USAGE)
    _explain(since, gateway, bootstrap, as_json, topic=topic, partition=int(number))


@COMMAND.command()
@click.argument("node_id", metavar="ID", type=click.IntRange(1, 2**31 - 1))
@since_option
@gateway_option
@json_option
def node(node_id: int, since: str, gateway: str | None, bootstrap: str, as_json: bool) -> None:
    """How a storage node is, which operation is at it, and what befell it.

    \b
    Examples:
      penstock explain node 2
      penstock explain node 2 --since 2026-01-31T12:00
    """
    _explain(since, gateway, bootstrap, as_json, node_id=node_id)


@COMMAND.command()
@operation_argument
@since_option
@gateway_option
@json_option
def operation(operation_id: int, since: str, gateway: str | None, bootstrap: str, as_json: bool) -> None:
    """What an operation waits for, who may help, and what it did so far.

    \b
    Examples:
      penstock explain operation 1204
      penstock explain operation 1204 --since 1d --json
    """
    _explain(since, gateway, bootstrap, as_json, operation_id=operation_id)


def _explain(since: str, gateway: str | None, bootstrap: str, as_json: bool, **what: Any) -> None:
    since_ms = parse_since(since, time.time_ns() // 1_000_000)
    with Admin.at(Where.of(click.get_current_context(), gateway, bootstrap)) as admin:
        from penstock_core.history.document import explain_document
        from penstock_proto.v1 import operations_pb2

        answer = admin.explain(operations_pb2.ExplainRequest(since_ms=since_ms, **what))
        if as_json:
            print_json(explain_document(answer))
        else:
            _tell(answer, since_ms)


def _tell(answer: operations_pb2.ExplainResponse, since_ms: int) -> None:
    """For people: now, then the story with the day wherever it changes."""
    click.echo(harmless(f"{answer.summary}."))
    for line in answer.now:
        click.echo(harmless(f"  {line}"))
    if not answer.story:
        note(f"nothing is known to have changed since {time_text(since_ms)}")
    day = ""
    for told in answer.story:
        at = datetime.fromtimestamp(told.time_ms / 1000, UTC)
        if (this_day := at.strftime("%Y-%m-%d")) != day:
            day = this_day
            click.echo(f"\n{day} (UTC)")
        click.echo(harmless(f"{at.strftime('%H:%M:%S')} {told.detail}"))
    if answer.incomplete_before_ms > since_ms:
        note(f"before {time_text(answer.incomplete_before_ms)} not everything is known")


def parse_since(text: str, now_ms: int) -> int:
    """ms since 1970 of a span back from `now_ms`, or of a time. Raises a usage error."""
    word = text.strip()
    if (found := _SPAN.fullmatch(word)) is not None:
        return max(1, now_ms - int(found[1]) * _SECONDS[found[2]] * 1000)
    try:
        at = datetime.fromisoformat(word)
        since_ms = int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        since_ms = 0
    if since_ms < 1:
        raise CommandError(
            f"--since {text!r}: give a span such as 30m, 2h or 7d, or a time such as 2026-01-31T12:00",
            ExitCode.USAGE,
        )
    if since_ms > now_ms:
        raise CommandError(f"--since {text!r} is yet to come; give a time that has passed", ExitCode.USAGE)
    return since_ms
