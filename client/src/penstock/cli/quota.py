"""`penstock quota`: what users, client ids and addresses may take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from penstock.cli import security_wire
from penstock.cli.kafka import bootstrap_option, check_reachable, json_option
from penstock.cli.output import note, print_json, print_table
from penstock.cli.security_wire import Entity, QuotaComponent
from penstock.errors import CommandError, ExitCode

_KINDS: Final = ("user", "client-id", "ip")
_EXACT, _DEFAULT = 0, 1


@click.group("quota")
def COMMAND() -> None:  # noqa: N802 (the name that cli.main looks for)
    """Client quotas: set, list and unset. They are kept, and nothing acts on them yet.

    Keys of users and client ids: producer_byte_rate and consumer_byte_rate (bytes a second), request_percentage
    (100 is one event loop), controller_mutation_rate (partitions a second). Key of addresses:
    connection_creation_rate (a second).
    """


def _entity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option("--user", metavar="NAME", help="A user."),
        click.option("--default-user", is_flag=True, help="Users that have no quota of their own."),
        click.option("--client-id", metavar="NAME", help="A client id; with --user that user's."),
        click.option("--default-client-id", is_flag=True, help="Client ids that have none of their own."),
        click.option("--ip", metavar="ADDRESS", help="An address from which clients connect."),
        click.option("--default-ip", is_flag=True, help="Addresses that have none of their own."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _entity(chosen: dict[str, Any]) -> Entity:
    """What the options say, in the order of the kinds."""
    found: list[tuple[str, str | None]] = []
    for kind in _KINDS:
        name = chosen[kind.replace("-", "_")]
        if chosen[f"default_{kind.replace('-', '_')}"]:
            if name is not None:
                raise CommandError(f"--{kind} and --default-{kind}: give one of them", ExitCode.USAGE)
            found.append((kind, None))
        elif name is not None:
            found.append((kind, name))
    return tuple(found)


def _required(chosen: dict[str, Any]) -> Entity:
    entity = _entity(chosen)
    if not entity:
        raise CommandError(
            "say whose quota: --user, --client-id or --ip NAME, or --default-user and so on", ExitCode.USAGE
        )
    return entity


def _words(entity: Entity) -> str:
    return ", ".join(f"{kind} {'<default>' if name is None else name}" for kind, name in entity)


@COMMAND.command("set")
@click.argument("pairs", metavar="KEY=VALUE...", nargs=-1, required=True)
@_entity_options
@click.option("--dry-run", is_flag=True, help="Only check that it would be taken.")
@bootstrap_option
def set_quotas(pairs: tuple[str, ...], dry_run: bool, bootstrap: str, **chosen: Any) -> None:
    """Set quotas of one user, client id, pair of them, or address: all of them or none.

    \b
    Examples:
      penstock quota set producer_byte_rate=1048576 consumer_byte_rate=2097152 --user alice
      penstock quota set request_percentage=50 --user alice --client-id loader
      penstock quota set connection_creation_rate=20 --default-ip
    """
    entity = _required(chosen)
    values: dict[str, float | None] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        try:
            values[key] = float(text)
        except ValueError:
            separator = ""
        if not separator or not key:
            raise CommandError(f"{pair!r}: write it as KEY=NUMBER", ExitCode.USAGE)
    check_reachable(bootstrap)
    security_wire.alter_quotas(bootstrap, entity, values, check=dry_run)
    note(f"{', '.join(values)}: {'would be taken' if dry_run else 'set'} for {_words(entity)}")


@COMMAND.command()
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@_entity_options
@bootstrap_option
def unset(keys: tuple[str, ...], bootstrap: str, **chosen: Any) -> None:
    """Remove quotas: what comes next counts again, a default or none.

    \b
    Examples:
      penstock quota unset producer_byte_rate --user alice
      penstock quota unset connection_creation_rate --default-ip
    """
    entity = _required(chosen)
    check_reachable(bootstrap)
    security_wire.alter_quotas(bootstrap, entity, dict.fromkeys(keys))
    note(f"{', '.join(dict.fromkeys(keys))}: removed for {_words(entity)}")


@COMMAND.command("list")
@_entity_options
@bootstrap_option
@json_option
def list_quotas(bootstrap: str, as_json: bool, **chosen: Any) -> None:
    """List quotas: all, or those in which a user, client id or address stands.

    \b
    Examples:
      penstock quota list
      penstock quota list --user alice
      penstock quota list --default-user --json
    """
    wanted = [
        QuotaComponent(kind, _DEFAULT if name is None else _EXACT, name) for kind, name in _entity(chosen)
    ]
    check_reachable(bootstrap)
    found = sorted(
        security_wire.describe_quotas(bootstrap, wanted),
        key=lambda one: [(kind, name is not None, name or "") for kind, name in one[0]],
    )
    if as_json:
        print_json([{"entity": dict(entity), "quotas": values} for entity, values in found])
    elif found:
        print_table(
            (*_KINDS, "quota", "value"),
            [
                [*_names(entity), key, f"{value:.15g}"]
                for entity, values in found
                for key, value in sorted(values.items())
            ],
        )
    else:
        note("there are no such quotas; `penstock quota set` sets one")


def _names(entity: Entity) -> list[str | None]:
    names = dict(entity)
    return [
        ("<default>" if names[kind] is None else names[kind]) if kind in names else None for kind in _KINDS
    ]
