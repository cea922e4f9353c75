"""`penstock node`."""

from __future__ import annotations

import click

from penstock.cli import node_change, node_rows, strays, wire
from penstock.cli.admin import gateway_option
from penstock.cli.kafka import bootstrap_option, check_reachable, json_option
from penstock.cli.output import note, print_json, print_table


@click.group("node")
def COMMAND() -> None:  # noqa: N802 (the name that cli.main looks for)
    """Storage nodes."""


@COMMAND.command("list")
@gateway_option
@json_option
def list_nodes(gateway: str | None, bootstrap: str, as_json: bool) -> None:
    """Storage nodes: address as this listener tells it, partitions led, held and in sync, and the condition.

    Through a gateway's proxy port the addresses are gateways'; through its direct port
    they are the nodes' own. With --gateway and without --bootstrap they are those of gRPC.

    Conditions: ok, cordoned, draining, drained, disk-full, disk-failed, fenced. They come by gRPC; where no
    gateway of the cluster is found that tells them, they are left out.

    \b
    Examples:
      penstock node list
      penstock node list --bootstrap 127.0.0.1:9192      addresses of the nodes themselves
      penstock node list --gateway 127.0.0.1:9094 --json
    """
    rows = node_rows.rows_of(click.get_current_context(), gateway, bootstrap)
    if as_json:
        print_json(rows)
    else:
        columns = ("id", "address", "state", "leads", "replicas", "in_sync", "condition")
        print_table(
            [name.replace("_", " ") for name in columns], [[row[name] for name in columns] for row in rows]
        )


@COMMAND.command()
@click.argument("node_id", type=click.IntRange(1))
@bootstrap_option
def forget(node_id: int, bootstrap: str) -> None:
    """Have the cluster forget a node that is gone for good, so that its id is free.

    Refused while the node runs or holds replicas: `penstock node remove ID` does it all.

    \b
    Examples:
      penstock node forget 4
    """
    check_reachable(bootstrap)
    wire.unregister_node(bootstrap, node_id)
    note(f"node {node_id} is forgotten")


for _command in (*node_change.COMMANDS, strays.strays):
    COMMAND.add_command(_command)
