"""Two small clusters that decide by ACLs and have listeners at which clients sign in: Kafka's and ours.

One broker on either side, so that every request has one place to go. Both have a plaintext listener whose
User:ANONYMOUS may do everything (what prepares scenarios uses it) and, for the scenarios, a listener SASL and a
listener REAUTH whose sessions end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peer import KafkaCluster

from penstock.local import ports
from penstock.local.cluster import LocalCluster
from penstock.local.plan import GATEWAY, NODE
from support.cluster import running_cluster
from support.kafka_tools import ports_in_a_row
from support.listener_ports import choose_listener_ports

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
MAX_REAUTH_MS = 3_000
PLAIN_USERS = tuple(f"plain-{scenario}" for scenario in ("order", "words", "sizes", "again", "again-2"))
"""Those who sign in by PLAIN: Kafka has them in its configuration. One for each scenario, since what changes a
credential ends the connections that rely on it here (decision 0034)."""
PASSWORD = "pencil"
"""Of every user."""
SUPER_USERS = ("User:ANONYMOUS", "User:admin")


@dataclass(frozen=True)
class Doors:
    """Addresses of one target."""

    plain: str
    """For preparation: everybody may do everything."""
    sasl: str
    reauth: str
    """Sessions end after MAX_REAUTH_MS."""
    witnesses: tuple[str, ...]
    """Plaintext addresses of every process that decides about rights."""


def kafka_settings(port: int) -> dict[str, str]:
    """Of one broker with ports from `port` on; the first two are those of `KafkaCluster`."""
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1},"
        f"SASL://127.0.0.1:{port + 2},REAUTH://127.0.0.1:{port + 3}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "SASL:SASL_PLAINTEXT,REAUTH:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ";".join(SUPER_USERS),
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    users = " ".join(f'user_{name}="{PASSWORD}"' for name in PLAIN_USERS)
    for listener in ("sasl", "reauth"):
        for mechanism in MECHANISMS:
            name = f"listener.name.{listener}.{mechanism.lower()}"
            settings[f"{name}.sasl.jaas.config"] = f"{plain} {users};" if mechanism == "PLAIN" else scram
            if listener == "reauth":
                settings[f"{name}.connections.max.reauth.ms"] = str(MAX_REAUTH_MS)
    return settings


@contextmanager
def secure_kafka(folder: Path) -> Iterator[tuple[KafkaCluster, Doors]]:
    """Started, and not asked yet whether it is ready."""
    port = ports_in_a_row(4)
    cluster = KafkaCluster(folder, 1, first_port=port, heap="512M", settings=kafka_settings(port))
    cluster.start()
    try:
        here = f"127.0.0.1:{port}"
        yield (
            cluster,
            Doors(here, f"127.0.0.1:{port + 2}", f"127.0.0.1:{port + 3}", (here,)),
        )
    finally:
        cluster.stop()


@contextmanager
def secure_penstock(folder: Path) -> Iterator[tuple[LocalCluster, Doors, Doors]]:
    """The cluster, its doors by a gateway, and those of the storage node itself."""
    base = ports.choose_base()
    proxy_sasl, proxy_reauth, *direct = choose_listener_ports(5, base)
    sasl = {"security": "SASL_PLAINTEXT", "sasl_mechanisms": list(MECHANISMS)}
    reauth = {**sasl, "max_reauth_ms": MAX_REAUTH_MS}

    def listener(name: str, port: int, **more: Any) -> dict[str, Any]:
        return {"name": name, "bind": f"127.0.0.1:{port}", **more}

    gateway = [
        listener("PROXY", base),
        listener("SASL", proxy_sasl, **sasl),
        listener("REAUTH", proxy_reauth, **reauth),
        *(
            listener(name, 0, mode="direct", **more)
            for name, more in (("DIRECT", {}), ("STRAIGHT", sasl), ("STRAIGHT_REAUTH", reauth))
        ),
    ]
    node = [
        listener("DIRECT", direct[0], mode="direct"),
        listener("STRAIGHT", direct[1], mode="direct", **sasl),
        listener("STRAIGHT_REAUTH", direct[2], mode="direct", **reauth),
    ]
    common = {
        "authorizer": "acl",
        "super_users": json.dumps(SUPER_USERS),
        "new_connections_per_address_burst": "100000",
    }
    settings = {
        GATEWAY: {**common, "listeners": json.dumps(gateway)},
        NODE: {**common, "listeners": json.dumps(node), "group_initial_rebalance_delay_ms": "0"},
    }
    with running_cluster(
        folder, controllers=1, nodes=1, settings=settings, steady=True, port=base
    ) as cluster:
        at = [f"127.0.0.1:{port}" for port in (base, proxy_sasl, proxy_reauth, *direct)]
        witnesses = (at[0], at[3])
        yield cluster, Doors(at[0], at[1], at[2], witnesses), Doors(at[3], at[4], at[5], witnesses)
