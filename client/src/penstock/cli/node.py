"""`penstock node`."""

from __future__ import annotations

import click

from penstock.cli import wire
from penstock.cli.kafka import (
    admin_client,
    bootstrap_option,
    check_reachable,
    cluster_metadata,
    json_option,
)
from penstock.cli.output import note, print_json, print_table


@click.group("node")
def COMMAND() -> None:  # noqa: N802 (the name that cli.main looks for)
    """Storage nodes."""


@COMMAND.command("list")
@bootstrap_option
@json_option
def list_nodes(bootstrap: str, as_json: bool) -> None:
    """Live storage nodes: address as this listener tells it, partitions led, held and in sync.

    Through a gateway's proxy port the addresses are gateways'; through its direct port
    they are the nodes' own.

    \b
    Examples:
      penstock node list
      penstock node list --bootstrap 127.0.0.1:9192      addresses of the nodes themselves
    """
    found = cluster_metadata(admin_client(bootstrap), bootstrap)
    parts = [part for topic in found.topics.values() for part in topic.partitions.values()]
    known = set(found.brokers) | {node for part in parts for node in part.replicas}
    rows = []
    for node in sorted(known):
        broker = found.brokers.get(node)
        rows.append(
            {
                "id": node,
                "address": f"{broker.host}:{broker.port}" if broker else None,
                "state": "alive" if broker else "absent",
                "leads": sum(part.leader == node for part in parts),
                "replicas": sum(node in part.replicas for part in parts),
                "in_sync": sum(node in part.isrs for part in parts),
            }
        )
    if as_json:
        print_json(rows)
    else:
        print_table(
            ("id", "address", "state", "leads", "replicas", "in sync"), [list(r.values()) for r in rows]
        )


@COMMAND.command()
@click.argument("node_id", type=click.IntRange(1))
@bootstrap_option
def forget(node_id: int, bootstrap: str) -> None:
    """Have the cluster forget a node that is gone for good, so that its id is free.

    Refused while the node runs or holds replicas: move them with `penstock topic reassign TOPIC --off-node ID`.

    \b
    Examples:
      penstock node forget 4
    """
    check_reachable(bootstrap)
    wire.unregister_node(bootstrap, node_id)
    note(f"node {node_id} is forgotten")
