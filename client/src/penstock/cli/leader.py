"""`penstock leader`."""

from __future__ import annotations

import click

from penstock.cli.planned import Asked, planned
from penstock.errors import CommandError, ExitCode


@click.group("leader")
def COMMAND() -> None:  # noqa: N802 (the name that cli.main looks for)
    """Leaders of partitions."""


@COMMAND.command()
@click.option("--topic", "-t", help="Only partitions of this topic; default: all.")
@click.option(
    "--partition", "-p", "partitions", multiple=True, type=click.IntRange(0), help="Only these of the topic."
)
@planned
def elect(topic: str | None, partitions: tuple[int, ...]) -> Asked:
    """Have preferred leaders lead: the first replica of each partition, where it is in sync. Copies nothing.

    \b
    Examples:
      penstock leader elect --dry-run
      penstock leader elect --topic flights --yes
      penstock leader elect --topic flights --partition 0 --partition 3 --yes --wait 30
    """
    if partitions and topic is None:
        raise CommandError("--partition goes with --topic: say of which topic", ExitCode.USAGE)
    return Asked(
        "leader-elect", {"topics": [] if topic is None else [topic], "partitions": dict.fromkeys(partitions)}
    )
