"""`penstock node strays`: logs that a storage node has set aside, and the deletion of one."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.admin import Admin, Where, gateway_option
from penstock.cli.kafka import json_option
from penstock.cli.output import note, print_json, print_table
from penstock.cli.rates import size_text
from penstock.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from penstock_proto.v1.operations_pb2 import Stray


@click.command("strays")
@click.argument("node_id", metavar="ID", type=click.IntRange(1, 2**31 - 1))
@click.option("--delete", "name", metavar="NAME", help="Delete this one, for good. Asks first.")
@click.option("--yes", is_flag=True, help="Do not ask whether to delete it.")
@gateway_option
@json_option
def strays(
    node_id: int, name: str | None, yes: bool, gateway: str | None, bootstrap: str, as_json: bool
) -> None:
    """Logs that a node has set aside, because the cluster's metadata do not give them to it.

    Those that the metadata prove superfluous go by themselves after stray_retention_ms, a day by default. The others
    stay until they are deleted here: of a topic that the metadata do not know nobody can tell what is lost with it.

    \b
    Examples:
      penstock node strays 3
      penstock node strays 3 --delete orders-0.1760000000000.0123456789abcdef0123456789abcdef-stray
      penstock node strays 3 --json | jq '.[] | select(.superfluous | not)'
    """
    if name is not None and not (yes or sys.stdin.isatty()):
        raise CommandError("no terminal to ask at: give --yes to delete it", ExitCode.USAGE)
    with Admin.at(Where.of(click.get_current_context(), gateway, bootstrap)) as admin:
        if name is None:
            _list(node_id, [_document(each) for each in admin.strays(node_id)], as_json)
            return
        known = {each.name: _document(each) for each in admin.strays(node_id)}
        if name not in known:
            raise CommandError(
                f"node {node_id} has set no log {name} aside; see `penstock node strays {node_id}`"
            )
        if not yes:
            found = known[name]
            question = (
                f"{name}: {size_text(found['bytes'])}, {found['reason']}\ndelete it from node {node_id}?"
            )
            if not click.confirm(question, err=True):
                raise CommandError("nothing is deleted", ExitCode.FAILED)
        freed_bytes = admin.delete_stray(node_id, name)
    if as_json:
        print_json({"node_id": node_id, "deleted": name, "freed_bytes": freed_bytes})
    else:
        note(f"{name} is deleted from node {node_id}: {size_text(freed_bytes)} are free")


def _list(node_id: int, found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(found)
    elif found:
        print_table(
            ("name", "topic", "partition", "size", "set aside", "what becomes of it"),
            [
                (
                    each["name"],
                    each["topic"] or "?",
                    "?" if each["partition"] is None else each["partition"],
                    size_text(each["bytes"]),
                    _time_text(each["set_aside_ms"]),
                    each["reason"],
                )
                for each in found
            ],
        )
    else:
        note(f"node {node_id} has set nothing aside")


def _document(stray: Stray) -> dict[str, Any]:
    return {
        "name": stray.name,
        "topic": stray.topic or None,
        "topic_id": stray.topic_id.hex() or None,
        "partition": stray.partition if stray.partition >= 0 else None,
        "bytes": stray.size_bytes,
        "set_aside_ms": stray.set_aside_ms or None,
        "superfluous": stray.superfluous,
        "reason": stray.reason,
    }


def _time_text(time_ms: int | None) -> str:
    if time_ms is None:
        return "?"
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
