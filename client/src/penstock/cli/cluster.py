"""`penstock cluster`."""

from __future__ import annotations

import click

from penstock.cli.backup import export_, import_, recover
from penstock.cli.check import capacity, check
from penstock.cli.kafka import admin_client, bootstrap_option, cluster_metadata, json_option
from penstock.cli.output import print_facts, print_json
from penstock.cli.rebalance import rebalance
from penstock.cli.replicas import under_replicated
from penstock.cli.rolling_restart import rolling_restart
from penstock.cli.upgrade import upgrade


@click.group("cluster")
def COMMAND() -> None:  # noqa: N802 (the name that cli.main looks for)
    """The cluster as a whole."""


@COMMAND.command()
@bootstrap_option
@json_option
def describe(bootstrap: str, as_json: bool) -> None:
    """Id, live storage nodes, topics, and how many partitions lack a leader or a replica.

    \b
    Examples:
      penstock cluster describe
      penstock cluster describe --json --bootstrap broker.example.org:9092
    """
    found = cluster_metadata(admin_client(bootstrap), bootstrap)
    parts = [part for topic in found.topics.values() for part in topic.partitions.values()]
    facts = {
        "cluster_id": found.cluster_id,
        "nodes": sorted(found.brokers),
        "topics": len(found.topics),
        "partitions": len(parts),
        "under_replicated": sum(under_replicated(bootstrap, found.topics).values()),
        "leaderless": sum(part.leader < 0 for part in parts),
    }
    if as_json:
        print_json(facts)
    else:
        print_facts([(name.replace("_", " "), value) for name, value in facts.items()])


COMMAND.add_command(export_)
COMMAND.add_command(import_)
COMMAND.add_command(check)
COMMAND.add_command(capacity)
COMMAND.add_command(rebalance)
COMMAND.add_command(rolling_restart)
COMMAND.add_command(recover)
COMMAND.add_command(upgrade)
