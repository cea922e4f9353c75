"""`penstock node add`, `drain`, `uncordon`, `replace` and `remove`: what storage nodes hold, and which there are."""

from __future__ import annotations

from typing import Final

import click

from penstock.cli.planned import Asked, planned
from penstock.errors import CommandError, ExitCode

NODE_ID_MAX: Final = 2**31 - 1

_node_argument = click.argument("node_id", metavar="ID", type=click.IntRange(1, NODE_ID_MAX))


def parse_node_ids(text: str) -> list[int]:
    """`4,5,6`. Raises a usage error."""
    words = [word.strip() for word in text.split(",")]
    if not all(
        word.isascii() and word.isdigit() and len(word) <= 10 and 1 <= int(word) <= NODE_ID_MAX
        for word in words
    ):
        raise CommandError(f"node ids {text!r}: write them with commas, as 4,5,6", ExitCode.USAGE)
    return list(dict.fromkeys(int(word) for word in words))


@click.command()
@click.argument("node_ids", metavar="ID[,ID...]")
@planned
def add(node_ids: str) -> Asked:
    """Give nodes their share of the cluster's replicas and leaders. They have to run.

    \b
    Examples:
      penstock node add 4 --dry-run
      penstock node add 4,5 --throttle 50MB/s --watch
      penstock node add 4 --yes --wait 3600 --json
    """
    return Asked("node-add", {"node_ids": parse_node_ids(node_ids)})


@click.command()
@_node_argument
@planned
def drain(node_id: int) -> Asked:
    """Empty a node: leaders first, then replicas. It stays in the cluster, cordoned, and gets nothing new.

    \b
    Examples:
      penstock node drain 3 --dry-run
      penstock node drain 3 --yes --wait 3600
      penstock node uncordon 3                   it may be used again
    """
    return Asked("node-drain", {"node_ids": [node_id]})


@click.command()
@_node_argument
@planned
def uncordon(node_id: int) -> Asked:
    """Let a node that was drained take replicas and leaders again. `node add` gives it its share.

    \b
    Examples:
      penstock node uncordon 3
      penstock node uncordon 3 --yes
    """
    return Asked("node-uncordon", {"node_ids": [node_id]})


@click.command()
@click.argument("node_id", metavar="OLD", type=click.IntRange(1, NODE_ID_MAX))
@click.option(
    "--with",
    "replacement",
    metavar="NEW",
    type=click.IntRange(1, NODE_ID_MAX),
    help="Another node that takes its place; default: it comes back itself, with an empty directory.",
)
@planned
def replace(node_id: int, replacement: int | None) -> Asked:
    """Replace a node that lost its disk or its machine.

    Its old data directory is refused from then on.

    \b
    Examples:
      penstock node replace 3                    started again with the same id and an empty directory
      penstock node replace 3 --with 7 --yes --wait 3600
    """
    return Asked("node-replace", {"node_ids": [node_id], "replacement_node_id": replacement or 0})


@click.command()
@click.argument("node_ids", metavar="ID[,ID...]")
@planned
def remove(node_ids: str) -> Asked:
    """Empty nodes and take them out of the cluster: their data directories are refused from then on.

    Their processes end, or become spares where they have slots. No other node is given their ids.

    \b
    Examples:
      penstock node remove 3 --dry-run
      penstock node remove 3 --yes --wait 3600
      penstock node remove 4,5                   together: nothing moves twice
    """
    return Asked("node-remove", {"node_ids": parse_node_ids(node_ids)})


COMMANDS = (add, drain, uncordon, replace, remove)
