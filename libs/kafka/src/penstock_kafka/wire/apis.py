"""The Kafka APIs: their keys, the versions that this build answers, their routes.

Rules: a version is in `SUPPORTED` only when a test decodes and encodes it; one table
(`ROUTES`) states the route of every API, the unbuilt ones included, so that a gateway
never guesses. APIs that are addressed to a node without its id in the body (NODE)
are not to be advertised by a proxy.

Produce is advertised from version 0 although 0-2 are refused: librdkafka 2.0 drops
compression, and others refuse to talk, when they see a higher minimum (KAFKA-18659).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from types import MappingProxyType


class ApiKey(IntEnum):
    """Numbers of Kafka's request types (org.apache.kafka.common.protocol.ApiKeys)."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


class Route(Enum):
    """Where a request has to go, seen from the process that a client talks to."""

    PARTITION_LEADER = "partition_leader"
    """To the leaders of the partitions in the body; split and joined when they differ."""
    GATEWAY = "gateway"
    """Answered on the spot, from metadata."""
    CONTROLLER = "controller"
    """Turned into a call to the active controller."""
    GROUP_COORDINATOR = "group_coordinator"
    """To the leader of the group's partition."""
    TRANSACTION_COORDINATOR = "transaction_coordinator"
    """To the leader of the transactional id's partition."""
    SCATTER = "scatter"
    """To every node, the answers joined."""
    NODE = "node"
    """To one node that only the connection names: never through a proxy."""


class _Api:
    """One row of the table: versions answered (None: not built), first flexible version, route."""

    __slots__ = ("flexible_since", "route", "versions")

    def __init__(self, versions: tuple[int, int] | None, flexible_since: int, route: Route) -> None:
        self.versions = versions
        self.flexible_since = flexible_since
        self.route = route


_NEVER = 32767
"""For an API that has no flexible version."""

_TABLE: dict[ApiKey, _Api] = {
    ApiKey.PRODUCE: _Api((0, 11), 9, Route.PARTITION_LEADER),
    ApiKey.FETCH: _Api((4, 16), 12, Route.PARTITION_LEADER),
    ApiKey.LIST_OFFSETS: _Api((1, 11), 6, Route.PARTITION_LEADER),
    ApiKey.METADATA: _Api((0, 13), 9, Route.GATEWAY),
    ApiKey.OFFSET_COMMIT: _Api((2, 10), 8, Route.GROUP_COORDINATOR),
    ApiKey.OFFSET_FETCH: _Api((1, 10), 6, Route.GROUP_COORDINATOR),
    ApiKey.FIND_COORDINATOR: _Api((0, 6), 3, Route.GATEWAY),
    ApiKey.JOIN_GROUP: _Api((0, 9), 6, Route.GROUP_COORDINATOR),
    ApiKey.HEARTBEAT: _Api((0, 4), 4, Route.GROUP_COORDINATOR),
    ApiKey.LEAVE_GROUP: _Api((0, 5), 4, Route.GROUP_COORDINATOR),
    ApiKey.SYNC_GROUP: _Api((0, 5), 4, Route.GROUP_COORDINATOR),
    ApiKey.DESCRIBE_GROUPS: _Api((0, 6), 5, Route.GROUP_COORDINATOR),
    ApiKey.LIST_GROUPS: _Api((0, 5), 3, Route.SCATTER),
    ApiKey.SASL_HANDSHAKE: _Api(None, _NEVER, Route.GATEWAY),
    ApiKey.API_VERSIONS: _Api((0, 4), 3, Route.GATEWAY),
    ApiKey.CREATE_TOPICS: _Api((2, 7), 5, Route.CONTROLLER),
    ApiKey.DELETE_TOPICS: _Api((1, 6), 4, Route.CONTROLLER),
    ApiKey.DELETE_RECORDS: _Api((0, 2), 2, Route.PARTITION_LEADER),
    # Without a transactional id any process answers from its own block of ids.
    ApiKey.INIT_PRODUCER_ID: _Api((0, 5), 2, Route.GATEWAY),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _Api((2, 4), 4, Route.PARTITION_LEADER),
    ApiKey.ADD_PARTITIONS_TO_TXN: _Api(None, 3, Route.TRANSACTION_COORDINATOR),
    ApiKey.ADD_OFFSETS_TO_TXN: _Api(None, 3, Route.TRANSACTION_COORDINATOR),
    ApiKey.END_TXN: _Api(None, 3, Route.TRANSACTION_COORDINATOR),
    ApiKey.WRITE_TXN_MARKERS: _Api(None, 1, Route.PARTITION_LEADER),
    ApiKey.TXN_OFFSET_COMMIT: _Api(None, 3, Route.GROUP_COORDINATOR),
    ApiKey.DESCRIBE_ACLS: _Api(None, 2, Route.GATEWAY),
    ApiKey.CREATE_ACLS: _Api(None, 2, Route.CONTROLLER),
    ApiKey.DELETE_ACLS: _Api(None, 2, Route.CONTROLLER),
    ApiKey.DESCRIBE_CONFIGS: _Api((1, 4), 4, Route.GATEWAY),
    ApiKey.ALTER_CONFIGS: _Api((0, 2), 2, Route.CONTROLLER),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _Api((1, 2), 2, Route.NODE),
    # A gateway cannot tell which node is meant and says so; nodes answer for themselves.
    ApiKey.DESCRIBE_LOG_DIRS: _Api((1, 5), 2, Route.GATEWAY),
    ApiKey.SASL_AUTHENTICATE: _Api(None, 2, Route.GATEWAY),
    ApiKey.CREATE_PARTITIONS: _Api((0, 3), 2, Route.CONTROLLER),
    ApiKey.DELETE_GROUPS: _Api((0, 2), 2, Route.GROUP_COORDINATOR),
    ApiKey.ELECT_LEADERS: _Api((0, 2), 2, Route.CONTROLLER),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _Api((0, 1), 1, Route.CONTROLLER),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _Api((0, 1), 0, Route.CONTROLLER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _Api((0, 0), 0, Route.GATEWAY),
    ApiKey.OFFSET_DELETE: _Api((0, 0), _NEVER, Route.GROUP_COORDINATOR),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _Api((0, 1), 1, Route.GATEWAY),
    ApiKey.ALTER_CLIENT_QUOTAS: _Api((0, 1), 1, Route.CONTROLLER),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _Api(None, 0, Route.GATEWAY),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _Api(None, 0, Route.CONTROLLER),
    ApiKey.DESCRIBE_QUORUM: _Api((0, 2), 0, Route.CONTROLLER),
    ApiKey.UPDATE_FEATURES: _Api((0, 2), 0, Route.CONTROLLER),
    ApiKey.DESCRIBE_CLUSTER: _Api((0, 2), 0, Route.GATEWAY),
    ApiKey.DESCRIBE_PRODUCERS: _Api((0, 0), 0, Route.PARTITION_LEADER),
    ApiKey.UNREGISTER_BROKER: _Api((0, 0), 0, Route.CONTROLLER),
    ApiKey.DESCRIBE_TRANSACTIONS: _Api(None, 0, Route.TRANSACTION_COORDINATOR),
    ApiKey.LIST_TRANSACTIONS: _Api(None, 0, Route.SCATTER),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _Api((0, 1), 0, Route.GROUP_COORDINATOR),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _Api((0, 1), 0, Route.GROUP_COORDINATOR),
    ApiKey.LIST_CONFIG_RESOURCES: _Api((0, 1), 0, Route.GATEWAY),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _Api((0, 0), 0, Route.GATEWAY),
}

SUPPORTED: Mapping[int, tuple[int, int]] = MappingProxyType(
    {int(key): api.versions for key, api in _TABLE.items() if api.versions is not None}
)
"""Versions that this build answers by api key, both ends inclusive: what is advertised."""

ROUTES: Mapping[int, Route] = MappingProxyType({int(key): api.route for key, api in _TABLE.items()})
"""Route of every API in `ApiKey`, built or not."""

FLEXIBLE_SINCE: Mapping[int, int] = MappingProxyType(
    {int(key): api.flexible_since for key, api in _TABLE.items()}
)
"""First version of each API with compact lengths and tagged fields (KIP-482)."""

PRODUCE_VERSION_MIN = 3
"""Lowest Produce version that is really answered: older ones carry no RecordBatch v2."""


def is_supported(api_key: int, api_version: int) -> bool:
    """Whether a request of that version can be decoded and answered here.

    False for Produce 0-2, which are advertised all the same. An unsupported version of
    ApiVersions is answered in version 0 (`api_versions.encode_api_versions_response`), of
    any other API the connection is closed (Kafka: RequestContext.parseRequest).
    """
    versions = SUPPORTED.get(api_key)
    if versions is None or not versions[0] <= api_version <= versions[1]:
        return False
    return api_key != ApiKey.PRODUCE or api_version >= PRODUCE_VERSION_MIN


def intersect(ranges: Iterable[Mapping[int, tuple[int, int]]]) -> dict[int, tuple[int, int]]:
    """Versions that all of `ranges` have: what a proxy in front of them may advertise.

    APIs that one of them lacks, or that have no common version, are left out. Of no
    ranges at all the intersection is empty.
    """
    result: dict[int, tuple[int, int]] | None = None
    for mapping in ranges:
        if result is None:
            result = dict(mapping)
            continue
        common: dict[int, tuple[int, int]] = {}
        for key, (low, high) in result.items():
            other = mapping.get(key)
            if other is None:
                continue
            both = (max(low, other[0]), min(high, other[1]))
            if both[0] <= both[1]:
                common[key] = both
        result = common
    return result or {}
