"""`penstock debug`."""

from __future__ import annotations

import click

from penstock.cli.bundle import bundle


@click.group("debug")
def COMMAND() -> None:  # noqa: N802 (the name that cli.main looks for)
    """For those who look for a fault: what a cluster tells of itself, in one file."""


COMMAND.add_command(bundle)
