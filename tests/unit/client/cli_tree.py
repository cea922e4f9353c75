"""The commands of `penstock`, found in the tree that the command itself is made of."""

from __future__ import annotations

from collections.abc import Iterator

import click

from penstock.cli.main import cli


def commands(group: click.Group = cli, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command and group with its full name, `topic create`."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{prefix}{name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")


def leaves() -> dict[str, click.Command]:
    """Those that do something, by full name."""
    return {name: command for name, command in commands() if not isinstance(command, click.Group)}
