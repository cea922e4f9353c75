"""Differences from Kafka that stay, each with its reason: they are shown as such, and are not red."""

from __future__ import annotations

from conformance.targets import DIRECT, PROXY

_NOT_BY_PROXY = (
    "DescribeLogDirs names no node in its body, so a proxy cannot tell whom to ask, and does not advertise it"
)

KNOWN: dict[tuple[str, str, str], str] = {
    ("log-dirs", "java", PROXY): _NOT_BY_PROXY,
    ("log-dirs", "kafka-python", PROXY): _NOT_BY_PROXY,
    ("log-dirs", "kafka-python", DIRECT): (
        "it takes what its first connection speaks for what all nodes speak, and that is a gateway, which has no logs"
    ),
    ("groups-list-describe-delete", "kafka-python", PROXY): (
        "it asks every node for its groups and joins the lists itself; behind one address each node's answer"
        " has all groups, so each is there once per node"
    ),
}
"""By scenario, client and target."""
