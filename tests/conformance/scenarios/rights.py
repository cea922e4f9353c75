"""What every API does when a right is there, and when it is not: Kafka's StandardAuthorizer says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from conformance.client import Client
from conformance.frame import Case, Outcome, scenario
from conformance.rights import play_row
from conformance.scenarios.raw import RAW
from conformance.targets import SECURE
from penstock_core.security.acl import CLUSTER_NAME
from penstock_core.security.acl import AclOperation as Op
from penstock_core.security.acl import ResourceType as Kind
from penstock_kafka.wire.apis import ApiKey
from support.rights_table import (
    CLUSTER_ROWS,
    GROUP,
    GROUP_ROWS,
    NODE_ROWS,
    PARTITION_ROWS,
    TOPIC,
    TOPIC_ID,
    TOPICS_OF_GROUPS_ROWS,
    TRANSACTION,
    TRANSACTION_ROWS,
    Row,
)

SECTION = "Rights"

_DESCRIBE_TOPIC = (Op.DESCRIBE, Kind.TOPIC, TOPIC)
_DESCRIBE_GROUP = (Op.DESCRIBE, Kind.GROUP, GROUP)
_CLUSTER = (Op.DESCRIBE, Kind.CLUSTER, CLUSTER_NAME)
_TOLD = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}

MORE_ROWS = (
    Row(ApiKey.API_VERSIONS, {"client_software_name": "raw", "client_software_version": "1"}, _CLUSTER, 0),
    Row(ApiKey.METADATA, {"topics": None, **_TOLD}, _DESCRIBE_TOPIC, 0, least=1),
    Row(ApiKey.METADATA, {"topics": [{"name": TOPIC}], **_TOLD}, _DESCRIBE_TOPIC, 29, least=8),
    Row(ApiKey.METADATA, {"topics": [{"name": TOPIC}], **_TOLD}, _CLUSTER, 0, least=8),
    Row(ApiKey.METADATA, {"topics": [{"name": None, "topic_id": TOPIC_ID}]}, _DESCRIBE_TOPIC, 29, least=12),
    Row(ApiKey.LIST_GROUPS, {}, _DESCRIBE_GROUP, 0, instead=(_CLUSTER,)),
    Row(
        ApiKey.DESCRIBE_CLUSTER,
        {"include_cluster_authorized_operations": True, "endpoint_type": 1},
        _CLUSTER,
        0,
    ),
    Row(
        ApiKey.DESCRIBE_GROUPS,
        {"groups": [GROUP], "include_authorized_operations": True},
        _DESCRIBE_GROUP,
        30,
        least=3,
    ),
    Row(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        {"group_ids": [GROUP], "include_authorized_operations": True},
        _DESCRIBE_GROUP,
        30,
    ),
    Row(
        ApiKey.DELETE_TOPICS,
        {"topics": [{"name": None, "topic_id": TOPIC_ID}]},
        (Op.DELETE, Kind.TOPIC, TOPIC),
        29,
        instead=((Op.DELETE, Kind.CLUSTER, CLUSTER_NAME),),
        least=6,
    ),
    Row(
        ApiKey.OFFSET_FETCH,
        {
            "group_id": GROUP,
            "topics": [{"name": TOPIC, "partition_indexes": [0]}],
            "groups": [{"group_id": GROUP, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}],
        },
        _DESCRIBE_GROUP,
        30,
        also=(_DESCRIBE_TOPIC,),
    ),
)
"""What the table of the unit tests has not: lists, what may be done, topics by id."""

LISTS_OF_TRANSACTIONS = (
    Row(ApiKey.LIST_TRANSACTIONS, {}, (Op.DESCRIBE, Kind.TRANSACTIONAL_ID, TRANSACTION), 0),
)

_TIMES = {"timeout": 30_000, "transaction_timeout": 60_000}
_HARMLESS: dict[ApiKey, dict[str, Any]] = {
    ApiKey.UNREGISTER_BROKER: {"broker_id": 999},
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: {"users": [{"name": "User:bob"}]},
}
"""In place of what would take the only broker away, or shows the users of others."""
ROWS = tuple(
    replace(row, values=_TIMES | row.values | _HARMLESS.get(row.api, {}))
    for row in (
        *PARTITION_ROWS,
        *GROUP_ROWS,
        *TOPICS_OF_GROUPS_ROWS,
        *NODE_ROWS,
        *CLUSTER_ROWS,
        *MORE_ROWS,
        *TRANSACTION_ROWS,
        *LISTS_OF_TRANSACTIONS,
    )
)


PARTS = 6
"""Of the subset, which run side by side."""


def named_rows() -> Iterator[tuple[str, Row]]:
    """Rows by the names of their scenarios."""
    count = Counter[str]()
    for row in ROWS:
        operation, kind, _ = row.needs
        name = f"rights-{row.api.name}-{operation.name}-{kind.name}".lower().replace("_", "-")
        count[name] += 1
        yield (name if count[name] == 1 else f"{name}-{count[name]}"), row


def _all_of(row: Row, _client: Client, t: Case) -> Outcome:
    return play_row(t, row)


class _Part:
    """A case whose names are those of a row."""

    def __init__(self, case: Case, prefix: str) -> None:
        self._case, self._prefix = case, prefix
        self.doors = case.doors

    def name(self, suffix: str = "x") -> str:
        return self._case.name(f"{self._prefix}.{suffix}")


def _some_of(rows: dict[str, Row], _client: Client, t: Case) -> Outcome:
    found: dict[str, Any] = {}
    for number, (name, row) in enumerate(rows.items()):
        cells = play_row(_Part(t, str(number)), row, few=True)
        # Without what all of them begin with: keys of outcomes have 80 characters at most.
        found |= {f"{name.removeprefix('rights-')}/{cell}": seen for cell, seen in cells.items()}
    return found


def _register() -> None:
    rows = dict(named_rows())
    for name, row in rows.items():
        play = partial(_all_of, row)
        play.__doc__ = f"{row.api.name} asks for {row.needs[0].name} of {row.needs[1].name}"
        scenario(name, SECTION, clients=RAW, world=SECURE, seconds=300)(play)
    names = list(rows)
    for part in range(PARTS):
        some = partial(_some_of, {name: rows[name] for name in names[part::PARTS]})
        some.__doc__ = (
            f"a subset of all that, part {part + 1} of {PARTS}: some ways, the lowest and the highest version"
        )
        scenario(f"rights-some-{part + 1}", SECTION, clients=RAW, world=SECURE, seconds=600, fast=True)(some)


_register()
