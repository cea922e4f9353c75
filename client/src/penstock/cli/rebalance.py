"""`penstock cluster rebalance` and `penstock topic set-replication-factor`: where replicas are, and how many."""

from __future__ import annotations

from typing import Final

import click

from penstock.cli.node_change import NODE_ID_MAX
from penstock.cli.planned import Asked, planned
from penstock.cli.rates import parse_size
from penstock.errors import CommandError, ExitCode

GOALS: Final = ("replicas", "leaders", "bytes")
GOALS_DEFAULT: Final = "replicas,leaders"


def parse_goals(text: str) -> list[str]:
    """Goals in the order of GOALS. Raises a usage error."""
    words = {word.strip() for word in text.split(",")}
    if not words <= set(GOALS):
        raise CommandError(f"--goal {text!r}: give some of {','.join(GOALS)}", ExitCode.USAGE)
    return [goal for goal in GOALS if goal in words]


@click.command()
@click.option(
    "--goal",
    "goals",
    default=GOALS_DEFAULT,
    show_default=True,
    metavar="GOAL[,GOAL...]",
    help="What is to become even: replicas, leaders, bytes.",
)
@click.option("--topic", "-t", "topics", multiple=True, help="Only this topic; may be given for each.")
@click.option(
    "--exclude-node",
    "excluded",
    multiple=True,
    metavar="ID",
    type=click.IntRange(1, NODE_ID_MAX),
    help="A node that gets nothing and loses nothing.",
)
@click.option(
    "--max-bytes", metavar="SIZE", help="Most that the goal bytes may move, such as 10GB or 512MiB."
)
@planned
def rebalance(goals: str, topics: tuple[str, ...], excluded: tuple[int, ...], max_bytes: str | None) -> Asked:
    """Even out what nodes hold and lead, with as few bytes moved as that takes.

    \b
    Examples:
      penstock cluster rebalance --dry-run
      penstock cluster rebalance --goal leaders --yes
      penstock cluster rebalance --goal replicas,leaders,bytes --max-bytes 10GB --throttle 50MB/s --watch
    """
    return Asked(
        "rebalance",
        {
            "goals": parse_goals(goals),
            "topics": dict.fromkeys(topics),
            "excluded_node_ids": dict.fromkeys(excluded),
            "max_bytes": None if max_bytes is None else parse_size(max_bytes, "--max-bytes"),
        },
    )


@click.command("set-replication-factor")
@click.argument("topics", metavar="TOPIC[,TOPIC...]")
@click.argument("factor", metavar="N", type=click.IntRange(1, 100))
@planned
def set_replication_factor(topics: str, factor: int) -> Asked:
    """Give every partition of some topics N replicas: as many racks as can be, never fewer in sync than needed.

    \b
    Examples:
      penstock topic set-replication-factor flights 3 --dry-run
      penstock topic set-replication-factor flights,audit 3 --yes --wait 600
    """
    names = [name for name in dict.fromkeys(word.strip() for word in topics.split(",")) if name]
    if not names:
        raise CommandError("which topics? write their names with commas", ExitCode.USAGE)
    return Asked("set-replication-factor", {"topics": names, "replication_factor": factor})
