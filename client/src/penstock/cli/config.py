"""`penstock config`: settings of topics, nodes, the cluster and groups."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from penstock.cli import wire
from penstock.cli.kafka import bootstrap_option, check_reachable, json_option
from penstock.cli.output import note, print_json, print_table
from penstock.errors import CommandError, ExitCode
from penstock.text import harmless

_KINDS = ("topic", "node", "cluster", "group")


@click.group("config")
def COMMAND() -> None:  # noqa: N802 (the name that cli.main looks for)
    """Show and change settings of topics, nodes, the cluster and groups.

    A topic's own setting comes first, then that of the node, then that of the cluster: set
    `log.retention.ms` for the cluster and it is `retention.ms` of every topic that has none of its own.
    """


_kind_argument = click.argument("kind", type=click.Choice(_KINDS))


@COMMAND.command()
@_kind_argument
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Also what stands at its default.")
@click.option("--explain", is_flag=True, help="Say what each setting is for.")
@bootstrap_option
@json_option
def describe(
    kind: str, name: str | None, everything: bool, explain: bool, bootstrap: str, as_json: bool
) -> None:
    """Settings of one topic, node or group, or of the whole cluster: where each comes from, who set it, since when.

    What is read only stands in a process's own settings file and counts after its restart.

    \b
    Examples:
      penstock config describe topic flights
      penstock config describe topic flights --all --explain
      penstock config describe node 1
      penstock config describe cluster
      penstock config describe group billing --all --json | jq -r '.[].name'
    """
    of = _name(kind, name)
    check_reachable(bootstrap)
    found = [
        s
        for s in wire.describe_configs(bootstrap, kind, of)
        if everything or (s.source != "default" and s.value is not None)
    ]
    rows: list[dict[str, Any]] = [
        {
            "name": s.name,
            "value": s.value,
            "set_by": s.source,
            "read_only": s.read_only,
            "about": s.text,
            "author": s.author,
            "set_ms": s.set_ms,
            "needs_restart": s.read_only,
        }
        for s in sorted(found, key=lambda s: s.name)
    ]
    if as_json:
        print_json(rows)
        return
    if not rows:
        note(f"nothing is set; --all shows the defaults, `penstock config set {kind} ...` sets something")
        return
    columns = ["name", "value", "set by", "who", "since", "read only", *(["about"] if explain else [])]
    print_table(
        columns,
        [
            [
                r["name"],
                r["value"],
                r["set_by"],
                harmless(r["author"] or ""),
                since_text(r["set_ms"]),
                "yes, needs a restart" if r["read_only"] else "",
                *([r["about"]] if explain else []),
            ]
            for r in rows
        ],
    )


def since_text(set_ms: int | None) -> str:
    """A time to the second, in UTC; empty where there is none."""
    if set_ms is None:
        return ""
    return datetime.fromtimestamp(set_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


@COMMAND.command("set")
@_kind_argument
@click.argument("words", metavar="[NAME] KEY=VALUE...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Only check that it would be taken.")
@bootstrap_option
def set_settings(kind: str, words: tuple[str, ...], dry_run: bool, bootstrap: str) -> None:
    """Set settings of one resource, all of them or none. They count at once.

    \b
    Examples:
      penstock config set topic flights retention.ms=86400000 cleanup.policy=delete
      penstock config set cluster log.retention.ms=259200000
      penstock config set node 2 message.max.bytes=2097152
      penstock config set group billing consumer.session.timeout.ms=60000
    """
    of, pairs = _split(kind, words)
    changes: list[tuple[str, str | None]] = []
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise CommandError(f"{pair!r}: write it as KEY=VALUE", ExitCode.USAGE)
        changes.append((key, value))
    _alter(bootstrap, kind, of, changes, dry_run=dry_run)


@COMMAND.command()
@_kind_argument
@click.argument("words", metavar="[NAME] KEY...", nargs=-1, required=True)
@bootstrap_option
def unset(kind: str, words: tuple[str, ...], bootstrap: str) -> None:
    """Remove settings of one resource: what comes next counts again.

    \b
    Examples:
      penstock config unset topic flights retention.ms
      penstock config unset cluster log.retention.ms
    """
    of, keys = _split(kind, words)
    _alter(bootstrap, kind, of, [(key, None) for key in keys], dry_run=False)


def _alter(
    bootstrap: str, kind: str, name: str, changes: list[tuple[str, str | None]], *, dry_run: bool
) -> None:
    check_reachable(bootstrap)
    wire.alter_configs(bootstrap, kind, name, changes, check=dry_run)
    what = f"{kind} {name}".strip()
    done = "would be taken for" if dry_run else "changed for"
    note(f"{', '.join(key for key, _ in changes)}: {done} {what}")


def _name(kind: str, name: str | None) -> str:
    if kind == "cluster":
        if name:
            raise CommandError("the cluster has no name: leave it out", ExitCode.USAGE)
        return ""
    if not name:
        raise CommandError(f"say which {kind}: `penstock config describe {kind} NAME`", ExitCode.USAGE)
    return name


def _split(kind: str, words: tuple[str, ...]) -> tuple[str, list[str]]:
    """Name and the rest; the cluster has no name."""
    if kind == "cluster":
        return "", list(words)
    if len(words) < 2 or "=" in words[0]:
        raise CommandError(f"say which {kind}, and then the settings: {kind} NAME KEY...", ExitCode.USAGE)
    return words[0], list(words[1:])
