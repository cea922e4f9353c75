"""Rows of `penstock node list`: nodes by Kafka's protocol, and their condition by gRPC where a gateway is known.

A gateway is looked for at addresses that are named or of this machine, and counts only if it is of the same cluster:
elsewhere the command would wait for addresses that nobody has. Where none tells conditions they are None.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, Final

import click
from click.core import ParameterSource

from penstock.cli import reach
from penstock.cli.admin import Admin, Where
from penstock.cli.gateways import cluster_id_at
from penstock.cli.kafka import admin_client, cluster_metadata
from penstock.errors import CommandError

Row = dict[str, Any]

CONDITION_KEYS: Final = (
    "condition",
    "rack",
    "version",
    "feature_level",
    "bytes",
    "disk_total_bytes",
    "disk_free_bytes",
    "operation_id",
)
"""What controllers tell of a node."""


def rows_of(ctx: click.Context, gateway: str | None, bootstrap: str) -> list[Row]:
    """Nodes by id. Raises CommandError where the cluster that was named does not answer."""
    where = Where.of(ctx, gateway, bootstrap)
    named = ctx.get_parameter_source("gateway") is ParameterSource.COMMANDLINE
    kafka_named = ctx.get_parameter_source("bootstrap") is ParameterSource.COMMANDLINE
    if named and not kafka_named:
        return _native_rows(where)
    if named:
        where.find()  # it says so where nobody answers
    found = cluster_metadata(admin_client(bootstrap), bootstrap)
    addresses = {node_id: f"{each.host}:{each.port}" for node_id, each in found.brokers.items()}
    parts = [
        (part.leader, part.replicas, part.isrs)
        for topic in found.topics.values()
        for part in topic.partitions.values()
    ]
    return _rows(addresses, parts, _conditions(where, found.cluster_id or ""))


def _native_rows(where: Where) -> list[Row]:
    """All from one gateway."""
    with Admin.at(where) as admin:
        conditions = _told(admin)
        found = admin.cluster()
    addresses = {n.node_id: f"{n.grpc.host}:{n.grpc.port}" for n in found.nodes if not n.fenced}
    parts = [(part.leader, part.replicas, part.isr) for topic in found.topics for part in topic.partitions]
    return _rows(addresses, parts, {**{n.node_id: {} for n in found.nodes}, **conditions})


def _rows(
    addresses: Mapping[int, str],
    parts: Iterable[tuple[int, Iterable[int], Iterable[int]]],
    conditions: Mapping[int, Row],
) -> list[Row]:
    """`addresses`: of live nodes; `parts`: leader, replicas and ISR of each partition."""
    counts = {node_id: [0, 0, 0] for node_id in (*addresses, *conditions)}
    for leader, replicas, isr in parts:
        if leader >= 0:
            counts.setdefault(leader, [0, 0, 0])[0] += 1
        for index, nodes in ((1, replicas), (2, isr)):
            for node_id in nodes:
                counts.setdefault(node_id, [0, 0, 0])[index] += 1
    return [
        {
            "id": node_id,
            "address": addresses.get(node_id),
            "state": "alive" if node_id in addresses else "absent",
            "leads": leads,
            "replicas": replicas,
            "in_sync": in_sync,
            "node_id": node_id,
            **dict.fromkeys(CONDITION_KEYS),
            **conditions.get(node_id, {}),
        }
        for node_id, (leads, replicas, in_sync) in sorted(counts.items())
    ]


def _conditions(where: Where, cluster_id: str) -> dict[int, Row]:
    """What controllers tell, by node; nothing where no gateway of the cluster is found."""
    file = where.connector.file
    named = where.gateways or ("" if file is None else file.gateway)
    if not named and where.bootstrap is not None and not _is_of_this_machine(where.bootstrap):
        return {}
    try:
        address = where.find()
        if cluster_id_at(address, where.connector) != cluster_id:
            return {}
        with Admin(lambda: address, where.connector) as admin:
            return _told(admin)
    except CommandError:
        return {}


def _told(admin: Admin) -> dict[int, Row]:
    """By node; nothing from a gateway that knows no conditions, or does not tell them to this user."""
    from penstock_core.operation_documents import condition_document

    admin.gateway()
    try:
        return {node.node_id: condition_document(node) for node in admin.nodes()}
    except CommandError:
        return {}


def _is_of_this_machine(bootstrap: str) -> bool:
    hosts = [reach.split_address(address)[0] for address in reach.addresses_of(bootstrap, "--bootstrap")]
    return all(_is_loopback(host) for host in hosts)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
