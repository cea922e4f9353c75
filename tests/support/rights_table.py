"""The rights that each Kafka API asks for, as a table: a request, what it needs, and how a denial looks.

From KafkaApis and ControllerApis of Apache Kafka 4.3. A row that needs any of several rights has one of them as
`needs` and the others as `instead`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

from conformance.build import request as build_request
from penstock_core.metadata.image import MetadataImage
from penstock_core.security.acl import CLUSTER_NAME
from penstock_core.security.acl import AclOperation as Op
from penstock_core.security.acl import ResourceType as Kind
from penstock_core.security.principal import Identity, user
from penstock_frontend.acl_authorizer import AclAuthorizer
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import SUPPORTED, ApiKey
from penstock_kafka.wire.frames import request_header
from penstock_proto.v1 import metadata_pb2
from support.acls import acl

TOPIC: Final = "topic-1"
TOPIC_ID: Final = UUID(bytes=TOPIC.encode().rjust(16, b"\0"))
GROUP: Final = "group-1"
TRANSACTION: Final = "transaction-1"

Need = tuple[Op, Kind, str]
CLUSTER: Final = CLUSTER_NAME


@dataclass(frozen=True)
class Row:
    """One API and one right that it asks for, all others being allowed."""

    api: ApiKey
    values: dict[str, Any]
    needs: Need
    code: int
    """How a denial is answered; 0: the thing is left out."""
    instead: tuple[Need, ...] = ()
    """Rights any of which will do as well."""
    also: tuple[Need, ...] = ()
    """Rights that the request needs beside, allowed in every case."""
    least: int = 0
    """The first version with that request."""
    most: int = 32_767
    """The last one."""

    def versions(self) -> tuple[int, ...]:
        """The lowest and the highest version that are answered."""
        low, high = SUPPORTED[self.api]
        return tuple(sorted({max(low, self.least), min(high, self.most)}))

    def __str__(self) -> str:
        return f"{self.api.name}-{self.needs[1].name}-{self.needs[0].name}"


def _topic(op: Op) -> Need:
    return op, Kind.TOPIC, TOPIC


def _group(op: Op) -> Need:
    return op, Kind.GROUP, GROUP


def _cluster(op: Op) -> Need:
    return op, Kind.CLUSTER, CLUSTER


def _transaction(op: Op) -> Need:
    return op, Kind.TRANSACTIONAL_ID, TRANSACTION


_ACTS: Final = (_cluster(Op.CLUSTER_ACTION),)
_BATCH: Final = build_batch([NewRecord(None, b"x", 1)])
_IN_TRANSACTION: Final = build_batch(
    [NewRecord(None, b"x", 1)], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
)


def _produce(records: bytes, transactional_id: str | None = None) -> dict[str, Any]:
    partition = {"index": 0, "records": records}
    return {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout": 1000,
        "topic_data": [{"name": TOPIC, "topic_id": TOPIC_ID, "partition_data": [partition]}],
    }


_COMMIT: Final = {
    "group_id": GROUP,
    "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    "generation_id_or_member_epoch": -1,
}

PARTITION_ROWS: Final = (
    Row(ApiKey.PRODUCE, _produce(_BATCH), _topic(Op.WRITE), 29, least=3),
    Row(
        ApiKey.PRODUCE,
        _produce(_IN_TRANSACTION, TRANSACTION),
        _transaction(Op.WRITE),
        53,
        also=(_topic(Op.WRITE),),
        least=3,
    ),
    Row(
        ApiKey.FETCH,
        {
            "replica_id": -1,
            "topics": [{"topic": TOPIC, "topic_id": TOPIC_ID, "partitions": [{"partition": 0}]}],
            "session_epoch": -1,
        },
        _topic(Op.READ),
        29,
    ),
    Row(
        ApiKey.LIST_OFFSETS,
        {"replica_id": -1, "topics": [{"name": TOPIC, "partitions": [{"timestamp": -1}]}]},
        _topic(Op.DESCRIBE),
        29,
    ),
    Row(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        {"replica_id": -1, "topics": [{"topic": TOPIC, "partitions": [{"partition": 0}]}]},
        _topic(Op.DESCRIBE),
        29,
        instead=_ACTS,
    ),
    Row(
        ApiKey.DELETE_RECORDS,
        {"topics": [{"name": TOPIC, "partitions": [{"offset": 0}]}], "timeout": 1},
        _topic(Op.DELETE),
        29,
    ),
    Row(
        ApiKey.DESCRIBE_PRODUCERS,
        {"topics": [{"name": TOPIC, "partition_indexes": [0]}]},
        _topic(Op.READ),
        29,
    ),
)

GROUP_ROWS: Final = (
    Row(ApiKey.JOIN_GROUP, {"group_id": GROUP, "session_timeout": 10_000}, _group(Op.READ), 30),
    Row(
        ApiKey.SYNC_GROUP,
        {"group_id": GROUP, "protocol_type": "consumer", "protocol_name": "range"},
        _group(Op.READ),
        30,
    ),
    Row(ApiKey.HEARTBEAT, {"group_id": GROUP}, _group(Op.READ), 30),
    Row(ApiKey.LEAVE_GROUP, {"group_id": GROUP}, _group(Op.READ), 30),
    Row(ApiKey.OFFSET_COMMIT, _COMMIT, _group(Op.READ), 30, also=(_topic(Op.READ),)),
    Row(
        ApiKey.OFFSET_FETCH,
        {"group_id": GROUP, "topics": None, "groups": [{"group_id": GROUP, "topics": None}]},
        _group(Op.DESCRIBE),
        30,
        least=2,
    ),
    Row(ApiKey.OFFSET_DELETE, {"group_id": GROUP}, _group(Op.DELETE), 30),
    Row(ApiKey.DESCRIBE_GROUPS, {"groups": [GROUP]}, _group(Op.DESCRIBE), 30),
    Row(ApiKey.CONSUMER_GROUP_DESCRIBE, {"group_ids": [GROUP]}, _group(Op.DESCRIBE), 30),
    Row(ApiKey.DELETE_GROUPS, {"groups_names": [GROUP]}, _group(Op.DELETE), 30),
    Row(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        {"group_id": GROUP, "member_id": "m", "member_epoch": 1},
        _group(Op.READ),
        30,
    ),
)

_PLACES: Final = [{"name": TOPIC, "partitions": [0]}]
_OFFSETS: Final = {
    "transactional_id": TRANSACTION,
    "group_id": GROUP,
    "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
    "generation_id": -1,
}

TRANSACTION_ROWS: Final = (
    Row(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        {"v3_and_below_transactional_id": TRANSACTION, "v3_and_below_topics": _PLACES},
        _transaction(Op.WRITE),
        53,
        also=(_topic(Op.WRITE),),
        most=3,
    ),
    Row(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        {"transactions": [{"transactional_id": TRANSACTION, "topics": _PLACES}]},
        _cluster(Op.CLUSTER_ACTION),
        31,
        also=(_transaction(Op.WRITE), _topic(Op.WRITE)),
        least=4,
    ),
    Row(
        ApiKey.ADD_OFFSETS_TO_TXN,
        {"transactional_id": TRANSACTION, "group_id": GROUP},
        _transaction(Op.WRITE),
        53,
        also=(_group(Op.READ),),
    ),
    Row(
        ApiKey.ADD_OFFSETS_TO_TXN,
        {"transactional_id": TRANSACTION, "group_id": GROUP},
        _group(Op.READ),
        30,
        also=(_transaction(Op.WRITE),),
    ),
    Row(ApiKey.END_TXN, {"transactional_id": TRANSACTION}, _transaction(Op.WRITE), 53),
    Row(
        ApiKey.TXN_OFFSET_COMMIT,
        _OFFSETS,
        _transaction(Op.WRITE),
        53,
        also=(_group(Op.READ), _topic(Op.READ)),
    ),
    Row(
        ApiKey.TXN_OFFSET_COMMIT,
        _OFFSETS,
        _group(Op.READ),
        30,
        also=(_transaction(Op.WRITE), _topic(Op.READ)),
    ),
    Row(ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": [TRANSACTION]}, _transaction(Op.DESCRIBE), 53),
    Row(
        ApiKey.WRITE_TXN_MARKERS,
        {"markers": [{"topics": [{"name": TOPIC, "partition_indexes": [0]}]}]},
        _cluster(Op.CLUSTER_ACTION),
        31,
        instead=(_cluster(Op.ALTER),),
    ),
)

TOPICS_OF_GROUPS_ROWS: Final = (
    Row(ApiKey.OFFSET_COMMIT, _COMMIT, _topic(Op.READ), 29, also=(_group(Op.READ),)),
    Row(
        ApiKey.OFFSET_FETCH,
        {
            "group_id": GROUP,
            "topics": [{"name": TOPIC, "partition_indexes": [0]}],
            "groups": [{"group_id": GROUP, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}],
        },
        _topic(Op.DESCRIBE),
        29,
        also=(_group(Op.DESCRIBE),),
    ),
    Row(
        ApiKey.OFFSET_DELETE,
        {"group_id": GROUP, "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0}]}]},
        _topic(Op.READ),
        29,
        also=(_group(Op.DELETE),),
    ),
    Row(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        {"group_id": GROUP, "member_id": "m", "member_epoch": 1, "subscribed_topic_names": [TOPIC]},
        _topic(Op.DESCRIBE),
        29,
        also=(_group(Op.READ),),
    ),
)
"""Asked of the coordinator alone."""

NODE_ROWS: Final = (
    Row(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None}, _cluster(Op.DESCRIBE), 31, least=3),
    Row(
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        {"dirs": [{"path": "/x", "topics": [{"name": TOPIC, "partitions": [0]}]}]},
        _cluster(Op.ALTER),
        31,
    ),
)

_CONFIG: Final = {"configs": [{"name": "retention.ms", "value": "1", "config_operation": 0}]}


def _resource(kind: int, name: str) -> dict[str, Any]:
    return {
        "resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None} | _CONFIG]
    }


_NEW_ACL: Final = {
    "resource_type": 2,
    "resource_pattern_type": 3,
    "resource_name": TOPIC,
    "principal": "User:bob",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
_ANY_ACL: Final = {
    "resource_type_filter": 1,
    "pattern_type_filter": 1,
    "operation": 1,
    "permission_type": 1,
}

CLUSTER_ROWS: Final = (
    Row(ApiKey.METADATA, {"topics": [{"name": TOPIC}]}, _topic(Op.DESCRIBE), 29),
    Row(ApiKey.DESCRIBE_TOPIC_PARTITIONS, {"topics": [{"name": TOPIC}]}, _topic(Op.DESCRIBE), 29),
    Row(ApiKey.FIND_COORDINATOR, {"key": GROUP, "coordinator_keys": [GROUP]}, _group(Op.DESCRIBE), 30),
    Row(
        ApiKey.FIND_COORDINATOR,
        {"key": TRANSACTION, "coordinator_keys": [TRANSACTION], "key_type": 1},
        _transaction(Op.DESCRIBE),
        53,
        least=1,
    ),
    Row(
        ApiKey.INIT_PRODUCER_ID,
        {"transactional_id": None},
        _cluster(Op.IDEMPOTENT_WRITE),
        31,
        instead=(_topic(Op.WRITE),),
    ),
    Row(ApiKey.INIT_PRODUCER_ID, {"transactional_id": TRANSACTION}, _transaction(Op.WRITE), 53),
    Row(
        ApiKey.CREATE_TOPICS,
        {"topics": [{"name": TOPIC, "num_partitions": 1, "replication_factor": 1}]},
        _topic(Op.CREATE),
        29,
        instead=(_cluster(Op.CREATE),),
    ),
    Row(
        ApiKey.DELETE_TOPICS,
        {"topic_names": [TOPIC], "topics": [{"name": TOPIC}]},
        _topic(Op.DELETE),
        29,
        instead=(_cluster(Op.DELETE),),
    ),
    Row(ApiKey.CREATE_PARTITIONS, {"topics": [{"name": TOPIC, "count": 9}]}, _topic(Op.ALTER), 29),
    Row(ApiKey.DESCRIBE_CONFIGS, _resource(2, TOPIC), _topic(Op.DESCRIBE_CONFIGS), 29),
    Row(ApiKey.DESCRIBE_CONFIGS, _resource(32, GROUP), _group(Op.DESCRIBE_CONFIGS), 30),
    Row(ApiKey.DESCRIBE_CONFIGS, _resource(4, "1"), _cluster(Op.DESCRIBE_CONFIGS), 31),
    Row(ApiKey.DESCRIBE_CONFIGS, _resource(8, "1"), _cluster(Op.DESCRIBE_CONFIGS), 31),
    *(
        Row(api, _resource(kind, name), need, code)
        for api in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS)
        for kind, name, need, code in (
            (2, TOPIC, _topic(Op.ALTER_CONFIGS), 29),
            (32, GROUP, _group(Op.ALTER_CONFIGS), 30),
            (4, "", _cluster(Op.ALTER_CONFIGS), 31),
        )
    ),
    Row(ApiKey.LIST_CONFIG_RESOURCES, {}, _cluster(Op.DESCRIBE_CONFIGS), 31),
    Row(ApiKey.ALTER_PARTITION_REASSIGNMENTS, {"topics": []}, _cluster(Op.ALTER), 31),
    Row(ApiKey.LIST_PARTITION_REASSIGNMENTS, {"topics": None}, _cluster(Op.DESCRIBE), 31),
    Row(
        ApiKey.ELECT_LEADERS,
        {"topic_partitions": [{"topic": TOPIC, "partitions": [0]}]},
        _cluster(Op.ALTER),
        31,
    ),
    Row(ApiKey.UNREGISTER_BROKER, {"broker_id": 1}, _cluster(Op.ALTER), 31),
    Row(ApiKey.DESCRIBE_QUORUM, {}, _cluster(Op.DESCRIBE), 31),
    Row(ApiKey.UPDATE_FEATURES, {"feature_updates": [{"feature": "f"}]}, _cluster(Op.ALTER), 31),
    Row(ApiKey.DESCRIBE_CLIENT_QUOTAS, {}, _cluster(Op.DESCRIBE_CONFIGS), 31),
    Row(
        ApiKey.DESCRIBE_ACLS,
        {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1},
        _cluster(Op.DESCRIBE),
        31,
    ),
    Row(ApiKey.CREATE_ACLS, {"creations": [_NEW_ACL]}, _cluster(Op.ALTER), 31),
    Row(ApiKey.DELETE_ACLS, {"filters": [_ANY_ACL]}, _cluster(Op.ALTER), 31),
    Row(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None}, _cluster(Op.DESCRIBE), 31),
    Row(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        {"deletions": [{"name": "alice", "mechanism": 1}]},
        _cluster(Op.ALTER),
        31,
    ),
    Row(ApiKey.ALTER_CLIENT_QUOTAS, {"entries": [{}]}, _cluster(Op.ALTER_CONFIGS), 31),
)

IMPLIED_BY: Final = {
    Op.DESCRIBE: (Op.READ, Op.WRITE, Op.DELETE, Op.ALTER),
    Op.DESCRIBE_CONFIGS: (Op.ALTER_CONFIGS,),
}


def error_codes(value: Any, name: str = "") -> list[int]:
    """Every error code in a response, wherever it stands."""
    if dataclasses.is_dataclass(value):
        return [
            code for f in dataclasses.fields(value) for code in error_codes(getattr(value, f.name), f.name)
        ]
    if isinstance(value, tuple):
        return [code for one in value for code in error_codes(one)]
    return [int(value)] if name in ("error_code", "partition_error_code") else []


ALICE: Final = Identity(user("alice"), "10.0.0.1")

Entry = metadata_pb2.AclRecord


def rules(row: Row) -> Iterator[tuple[str, list[Entry], bool]]:
    """Every way in which a right may be given or not: its name, the entries, and whether they allow."""
    operation, kind, name = row.needs
    mine = partial(acl, principal="User:alice")
    right = partial(mine, operation, kind, name)
    yield "none", [], False
    yield "allow", [right()], True
    yield "all", [mine(Op.ALL, kind, name)], True
    for implying in IMPLIED_BY.get(operation, ()):
        yield f"implied by {implying.name}", [mine(implying, kind, name)], True
        denial = mine(implying, kind, name, deny=True)
        yield f"not denied by {implying.name}", [right(), denial], True
    yield "deny over allow", [right(), right(deny=True)], False
    yield "deny of all over allow", [right(), mine(Op.ALL, kind, name, deny=True)], False
    yield "prefix", [mine(operation, kind, name[:3], prefixed=True)], True
    yield "denied by prefix", [right(), mine(operation, kind, name[:3], prefixed=True, deny=True)], False
    yield "another prefix", [mine(operation, kind, "zzz", prefixed=True)], False
    yield "wildcard", [acl(operation, kind, "*", principal="User:*")], True
    yield "the host", [right(host="10.0.0.1")], True
    yield "another host", [right(host="10.0.0.2")], False
    yield "denied at the host", [right(), right(host="10.0.0.1", deny=True)], False
    yield "another user", [acl(operation, kind, name, principal="User:bob")], False
    yield "another type", [mine(operation, Kind.DELEGATION_TOKEN, name)], False
    for other, of, named in row.instead:
        yield f"{other.name} of {of.name}", [mine(other, of, named)], True


def authorizer_of(row: Row, entries: Iterable[Entry]) -> tuple[AclAuthorizer, list[Need]]:
    """An authorizer with these entries and what the row needs beside; and what it will tell of."""
    told: list[Need] = []
    made = AclAuthorizer(on_denied=lambda _, *denied: told.append(denied))
    beside = [acl(*need, principal="User:alice") for need in row.also]
    records = [metadata_pb2.MetadataRecord(acl=entry) for entry in (*beside, *entries)]
    empty = MetadataImage()
    made.metadata_changed(empty, empty.apply(records, 1), records)
    return made, told


def frame_of(row: Row, version: int) -> bytearray:
    """The request."""
    request = build_request(row.api.name.lower(), version, row.values)
    return bytearray(request_header(row.api, version, 7, "test") + codec.encode_body(request))


def codes_of(row: Row, version: int, response: bytes) -> set[int]:
    """Every code in a response that has to do with rights."""
    _, entity = codec.decode_response(row.api, version, response)
    return set(error_codes(entity)) & {29, 30, 31, 53}


__all__ = [
    "ALICE",
    "CLUSTER_ROWS",
    "GROUP_ROWS",
    "IMPLIED_BY",
    "NODE_ROWS",
    "PARTITION_ROWS",
    "TOPICS_OF_GROUPS_ROWS",
    "TRANSACTION_ROWS",
    "Need",
    "Row",
    "authorizer_of",
    "codes_of",
    "error_codes",
    "frame_of",
    "rules",
]
