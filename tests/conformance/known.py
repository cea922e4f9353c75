"""Differences from Kafka that stay, each with its reason: they are shown as such, and are not red."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from conformance.targets import DIRECT, PROXY

_NOT_BY_PROXY = (
    "DescribeLogDirs names no node in its body, so a proxy cannot tell whom to ask, and does not advertise it"
)
_ONCE_PER_NODE = (
    "it asks every node for its transactional ids and joins the lists itself; behind one address each node's answer"
    " has all ids, so each is there once per node"
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
    **{("txn-list", client, PROXY): _ONCE_PER_NODE for client in ("kafka-python", "java", "java-3.9")},
}
"""By scenario, client and target."""


@dataclass(frozen=True)
class Explained:
    """Cells of one scenario's outcome that differ, and the page that says why. All patterns are searched for."""

    cells: str
    """In "scenario/key of the outcome"."""
    kafkas: str
    """In what Kafka gave, as JSON."""
    ours: str
    page: str
    targets: tuple[str, ...] = (PROXY, DIRECT)


_SIGN_IN = "decisions/0034"
_RIGHTS = "decisions/0045"
_CHALLENGE = r'"a challenge"'
EXPLAINED = (
    Explained(r"^rights.*alter-replica-log-dirs", "", '^"not offered"$', "decisions/0017", (PROXY,)),
    Explained(r"^rights.*describe-log-dirs", r'"results"', r"^\{\}$", "decisions/0017", (PROXY,)),
    Explained(r"^rights.*alter-configs-alter-configs-cluster", "", "INVALID_REQUEST", "decisions/0017"),
    Explained(
        r"^rights.*(describe-configs|list-config-resources)-describe-configs-cluster",
        r'"resource_type": 8',
        "",
        f"{_RIGHTS}#no-loggers",
    ),
    Explained(r"sign-in-(order|again)/a request (after|between)", r'\["answered"\]', "closed", _SIGN_IN),
    Explained(r"sign-in-again/.*another user", "Cannot change princi", "Cannot change princi", _SIGN_IN),
    Explained(
        r"sign-in-again/(another mechanism|the other SCRAM|an unknown mechanism)",
        "closed",
        "SASL_AUTHENTICATION_FAILED|UNSUPPORTED_SASL_MECHANISM",
        f"{_RIGHTS}#signing-in",
    ),
    Explained(r"sign-in-plain/not UTF-8", "FAILED", "FAILED", f"{_RIGHTS}#signing-in"),
    Explained(r"sign-in-sizes/a token of 100,000", "FAILED", "closed", _SIGN_IN),
    Explained(
        r"sign-in-scram/(begins: )?unknown user",
        "SASL_AUTHENTICATION_FAILED",
        _CHALLENGE,
        f"{_RIGHTS}#signing-in",
    ),
    Explained(
        r"sign-in-scram/begins: tokens are asked for",
        "SASL_AUTHENTICATION_FAILED",
        _CHALLENGE,
        f"{_RIGHTS}#signing-in",
    ),
    Explained(
        r"sign-in-scram/(begins: a mandatory|ends: an) extension",
        "",
        "SASL_AUTHENTICATION_FAILED",
        f"{_RIGHTS}#signing-in",
    ),
    Explained(
        r"sign-in-scram/(ends: a (long|short) proof|the proof of the other mechanism)",
        "closed",
        "SASL_AUTHENTICATION_FAILED",
        f"{_RIGHTS}#signing-in",
    ),
    Explained(
        r"acl-create/((operation|pattern type|permission|resource type) [012]|no host)$",
        "closed|UNKNOWN_SERVER_ERROR|NONE",
        "INVALID_REQUEST",
        f"{_RIGHTS}#requests-of-administrators",
    ),
    Explained(
        r"acl-describe/.*\b(operation|permission|type|pattern) (-1|0|[4-9]|1\d)\b",
        r"^\[\]$|closed",
        "INVALID_REQUEST",
        f"{_RIGHTS}#requests-of-administrators",
    ),
    Explained(
        r"quota-alter/(.* = (nan|inf)\b|of a user twice|of the address '10\.1\.2')",
        "NONE",
        "INVALID_REQUEST",
        f"{_RIGHTS}#requests-of-administrators",
    ),
    Explained(
        r"scram-users/set and deleted$",
        "RESOURCE_NOT_FOUND",
        "DUPLICATE_RESOURCE",
        f"{_RIGHTS}#requests-of-administrators",
    ),
)
"""What differs in the matrix of rights and in the order of signing in, cell by cell."""


def explanation(cell: str, target: str, kafkas: Any, ours: Any) -> str:
    """The page that says why these differ; "" if none does."""
    for one in EXPLAINED:
        if (
            target in one.targets
            and re.search(one.cells, cell)
            and re.search(one.kafkas, json.dumps(kafkas))
            and re.search(one.ours, json.dumps(ours))
        ):
            return one.page
    return ""
