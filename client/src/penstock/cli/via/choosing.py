"""Which way of restarting processes a command means, by its options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from penstock.cli.admin import Where
from penstock.cli.local_gateways import local_gateways
from penstock.cli.reach import addresses_of
from penstock.cli.via.ways import Way
from penstock.errors import CommandError, ExitCode

Command = TypeVar("Command", bound=Callable[..., Any])

VIAS: Final = ("local", "compose", "exec")


@dataclass(frozen=True)
class WayAsked:
    """What the options say."""

    via: str | None
    command: str | None = None
    recreate: bool = False
    files: Sequence[str] = ()
    project: str | None = None


def way_options(command: Command) -> Command:
    """`--via` and what goes with it; the command is told by `via`, `command`, `recreate`, `files` and `project`."""
    for option in reversed(
        (
            click.option(
                "--via",
                type=click.Choice(VIAS),
                help="Who restarts processes: the local cluster, a compose project, or --command. By default local, "
                "where the gateway is the local cluster's.",
            ),
            click.option(
                "--command",
                metavar="CMD",
                help="With --via exec: what restarts one process; {role}, {name}, {id} and {http} stand for it. No "
                "shell sees it.",
            ),
            click.option(
                "--recreate",
                is_flag=True,
                help="With --via compose: new containers, from the image that the file names.",
            ),
            click.option(
                "--compose-file",
                "files",
                multiple=True,
                metavar="F",
                help="With --via compose: the compose file; may be given several times, as -f of compose.",
            ),
            click.option("--project", metavar="P", help="With --via compose: the project, as -p of compose."),
        )
    ):
        command = option(command)
    return command


def choose_way(asked: WayAsked, where: Where) -> Way:
    """Raises a usage error where the options do not say it, or do not fit together."""
    for given, name, of in (
        (asked.command is not None, "--command", "exec"),
        (asked.recreate, "--recreate", "compose"),
        (bool(asked.files), "--compose-file", "compose"),
        (asked.project is not None, "--project", "compose"),
    ):
        if given and asked.via not in (None, of):
            raise CommandError(f"{name} is for --via {of}, not for --via {asked.via}", ExitCode.USAGE)
        if given and asked.via is None:
            raise CommandError(f"{name} is for --via {of}; say so", ExitCode.USAGE)
    if asked.via == "exec":
        from penstock.cli.via.exec_command import ExecWay

        if asked.command is None:
            raise CommandError("--via exec needs --command, what restarts one process", ExitCode.USAGE)
        return ExecWay(asked.command)
    if asked.via == "compose":
        from penstock.cli.via.compose import ComposeWay

        return ComposeWay(list(asked.files) or None, asked.project, asked.recreate)
    local = is_local(where)
    if asked.via is None and not local:
        raise CommandError(
            "who restarts processes? The gateway is not the local cluster's: give --via compose, or --via exec with "
            "--command",
            ExitCode.USAGE,
        )
    if not local:
        raise CommandError(
            f"--via local: the gateway is not one of the local cluster in {where.directory}; --dir names another one",
            ExitCode.USAGE,
        )
    from penstock.cli.via.local import LocalWay

    return LocalWay(where.directory)


def is_local(where: Where) -> bool:
    """Whether the gateways that are asked are those of the local cluster."""
    if where.gateways is None and where.bootstrap is None:
        return bool(local_gateways(where.directory, "grpc").addresses)
    uses = ("grpc",) if where.gateways is not None else ("kafka", "direct")
    named = addresses_of(where.gateways or where.bootstrap or "", "--gateway")
    own = {_plain(each) for use in uses for each in local_gateways(where.directory, use).addresses}
    return any(_plain(each) in own for each in named)


def _plain(address: str) -> str:
    return address.replace("localhost:", "127.0.0.1:")
