"""The Kafka APIs: their keys, the versions that this build answers, their routes.

Rules: a version is in `SUPPORTED` only when a test decodes and encodes it; `SPECS` is the
one description of every API, the unbuilt ones included. Whoever has a table of APIs
of its own (who answers, who relays, how a whole request fails) holds it against that
description when it is built, with `require_entries`: an API that is advertised and has no
handler is found at the start, not by the client that sends it. APIs that are addressed to
a node without its id in the body (NODE) are not to be advertised by a proxy.

Produce is advertised from version 0 although 0-2 are refused: librdkafka 2.0 drops
compression, and others refuse to talk, when they see a higher minimum (KAFKA-18659).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Final

from penstock_core.errors import InvariantBroken


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


LOCAL_ROUTES: Final = frozenset({Route.GATEWAY, Route.CONTROLLER})
"""What any process with metadata answers, gateway and storage node alike."""

RELAYED_ROUTES: Final = frozenset(
    {Route.PARTITION_LEADER, Route.GROUP_COORDINATOR, Route.TRANSACTION_COORDINATOR, Route.SCATTER}
)
"""What storage nodes answer, and gateways relay to them."""


class OnLoss(Enum):
    """What a gateway does with a relayed request when its node is lost, or leads no more, before it has answered.

    It follows from what the request would do if it came twice (rule "Maybe written, never 6").
    """

    MAYBE_WRITTEN = "maybe_written"
    """Once sent, it is answered REQUEST_TIMED_OUT: it may be written, and twice would be a duplicate. For the
    same reason those of one partition keep their order."""
    ASK_CLIENT = "ask_client"
    """It is answered at once, sent or not, with the code at which clients look for the leader or coordinator
    and ask again."""
    ASK_AGAIN = "ask_again"
    """It is sent to the next leader: twice, it changes nothing more than once."""


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """What there is to know of one Kafka API before any handler of it.

    Versions and `flexible_since` are those of Kafka's <Name>Request.json (`validVersions`,
    `flexibleVersions`).
    """

    key: ApiKey
    versions: tuple[int, int] | None
    """Versions that this build answers, both ends inclusive; None when it answers none."""
    flexible_since: int
    """First version with compact lengths and tagged fields (KIP-482)."""
    route: Route
    refused_below: int = 0
    """Lower versions are advertised and refused all the same."""
    on_loss: OnLoss | None = None
    """What a lost node means: for every answered API whose route is one of `RELAYED_ROUTES`, and for
    InitProducerId, which goes to the coordinator of the id that it names."""

    @property
    def readable(self) -> range:
        """Versions that have to be decoded and answered."""
        if self.versions is None:
            return range(0)
        low, high = self.versions
        return range(max(low, self.refused_below), high + 1)

    @property
    def name(self) -> str:
        """Kafka's name of the API, e.g. `ListOffsets`: of its messages, in metrics and in logs."""
        return "".join(word.capitalize() for word in self.key.name.split("_"))


_NEVER = 32767
"""For an API that has no flexible version."""

PRODUCE_VERSION_MIN = 3
"""Lowest Produce version that is really answered: older ones carry no RecordBatch v2."""

_ROWS: Final = (
    ApiSpec(
        ApiKey.PRODUCE,
        (0, 13),
        9,
        Route.PARTITION_LEADER,
        refused_below=PRODUCE_VERSION_MIN,
        on_loss=OnLoss.MAYBE_WRITTEN,
    ),
    ApiSpec(ApiKey.FETCH, (4, 16), 12, Route.PARTITION_LEADER, on_loss=OnLoss.ASK_CLIENT),
    ApiSpec(ApiKey.LIST_OFFSETS, (1, 11), 6, Route.PARTITION_LEADER, on_loss=OnLoss.ASK_AGAIN),
    ApiSpec(ApiKey.METADATA, (0, 13), 9, Route.GATEWAY),
    ApiSpec(ApiKey.OFFSET_COMMIT, (2, 10), 8, Route.GROUP_COORDINATOR, on_loss=OnLoss.ASK_CLIENT),
    ApiSpec(ApiKey.OFFSET_FETCH, (1, 10), 6, Route.GROUP_COORDINATOR, on_loss=OnLoss.ASK_CLIENT),
    ApiSpec(ApiKey.FIND_COORDINATOR, (0, 6), 3, Route.GATEWAY),
    ApiSpec(ApiKey.JOIN_GROUP, (0, 9), 6, Route.GROUP_COORDINATOR, on_loss=OnLoss.ASK_CLIENT),
    ApiSpec(ApiKey.HEARTBEAT, (0, 4), 4, Route.GROUP_COORDINATOR, on_loss=OnLoss.ASK_CLIENT),
    ApiSpec(ApiKey.LEAVE_GROUP, (0, 5), 4, Route.GROUP_COORDINATOR, on_loss=OnLoss.ASK_CLIENT),
    ApiSpec(ApiKey.SYNC_GROUP, (0, 5), 4, Route.GROUP_COORDINATOR, on_loss=OnLoss.ASK_CLIENT),
    ApiSpec(ApiKey.DESCRIBE_GROUPS, (0, 6), 5, Route.GROUP_COORDINATOR, on_loss=OnLoss.ASK_CLIENT),
    ApiSpec(ApiKey.LIST_GROUPS, (0, 5), 3, Route.SCATTER, on_loss=OnLoss.ASK_CLIENT),
    ApiSpec(ApiKey.SASL_HANDSHAKE, (0, 1), _NEVER, Route.GATEWAY),
    ApiSpec(ApiKey.API_VERSIONS, (0, 4), 3, Route.GATEWAY),
    ApiSpec(ApiKey.CREATE_TOPICS, (2, 7), 5, Route.CONTROLLER),
    ApiSpec(ApiKey.DELETE_TOPICS, (1, 6), 4, Route.CONTROLLER),
    ApiSpec(ApiKey.DELETE_RECORDS, (0, 2), 2, Route.PARTITION_LEADER, on_loss=OnLoss.ASK_AGAIN),
    # Without a transactional id any process answers from its own block of ids.
    ApiSpec(ApiKey.INIT_PRODUCER_ID, (0, 5), 2, Route.GATEWAY, on_loss=OnLoss.ASK_CLIENT),
    ApiSpec(ApiKey.OFFSET_FOR_LEADER_EPOCH, (2, 4), 4, Route.PARTITION_LEADER, on_loss=OnLoss.ASK_AGAIN),
    ApiSpec(
        ApiKey.ADD_PARTITIONS_TO_TXN, (0, 5), 3, Route.TRANSACTION_COORDINATOR, on_loss=OnLoss.ASK_CLIENT
    ),
    ApiSpec(ApiKey.ADD_OFFSETS_TO_TXN, (0, 4), 3, Route.TRANSACTION_COORDINATOR, on_loss=OnLoss.ASK_CLIENT),
    ApiSpec(ApiKey.END_TXN, (0, 5), 3, Route.TRANSACTION_COORDINATOR, on_loss=OnLoss.ASK_CLIENT),
    ApiSpec(ApiKey.WRITE_TXN_MARKERS, (1, 2), 1, Route.PARTITION_LEADER, on_loss=OnLoss.ASK_CLIENT),
    ApiSpec(ApiKey.TXN_OFFSET_COMMIT, (0, 5), 3, Route.GROUP_COORDINATOR, on_loss=OnLoss.ASK_CLIENT),
    ApiSpec(ApiKey.DESCRIBE_ACLS, (1, 3), 2, Route.GATEWAY),
    ApiSpec(ApiKey.CREATE_ACLS, (1, 3), 2, Route.CONTROLLER),
    ApiSpec(ApiKey.DELETE_ACLS, (1, 3), 2, Route.CONTROLLER),
    ApiSpec(ApiKey.DESCRIBE_CONFIGS, (1, 4), 4, Route.GATEWAY),
    ApiSpec(ApiKey.ALTER_CONFIGS, (0, 2), 2, Route.CONTROLLER),
    ApiSpec(ApiKey.ALTER_REPLICA_LOG_DIRS, (1, 2), 2, Route.NODE),
    # A gateway cannot tell which node is meant and says so; nodes answer for themselves.
    ApiSpec(ApiKey.DESCRIBE_LOG_DIRS, (1, 5), 2, Route.GATEWAY),
    ApiSpec(ApiKey.SASL_AUTHENTICATE, (0, 2), 2, Route.GATEWAY),
    ApiSpec(ApiKey.CREATE_PARTITIONS, (0, 3), 2, Route.CONTROLLER),
    ApiSpec(ApiKey.DELETE_GROUPS, (0, 2), 2, Route.GROUP_COORDINATOR, on_loss=OnLoss.ASK_CLIENT),
    ApiSpec(ApiKey.ELECT_LEADERS, (0, 2), 2, Route.CONTROLLER),
    ApiSpec(ApiKey.INCREMENTAL_ALTER_CONFIGS, (0, 1), 1, Route.CONTROLLER),
    ApiSpec(ApiKey.ALTER_PARTITION_REASSIGNMENTS, (0, 1), 0, Route.CONTROLLER),
    ApiSpec(ApiKey.LIST_PARTITION_REASSIGNMENTS, (0, 0), 0, Route.GATEWAY),
    ApiSpec(ApiKey.OFFSET_DELETE, (0, 0), _NEVER, Route.GROUP_COORDINATOR, on_loss=OnLoss.ASK_CLIENT),
    ApiSpec(ApiKey.DESCRIBE_CLIENT_QUOTAS, (0, 1), 1, Route.GATEWAY),
    ApiSpec(ApiKey.ALTER_CLIENT_QUOTAS, (0, 1), 1, Route.CONTROLLER),
    ApiSpec(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, (0, 0), 0, Route.GATEWAY),
    ApiSpec(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, (0, 0), 0, Route.CONTROLLER),
    ApiSpec(ApiKey.DESCRIBE_QUORUM, (0, 2), 0, Route.CONTROLLER),
    ApiSpec(ApiKey.UPDATE_FEATURES, (0, 2), 0, Route.CONTROLLER),
    ApiSpec(ApiKey.DESCRIBE_CLUSTER, (0, 2), 0, Route.GATEWAY),
    ApiSpec(ApiKey.DESCRIBE_PRODUCERS, (0, 0), 0, Route.PARTITION_LEADER, on_loss=OnLoss.ASK_AGAIN),
    ApiSpec(ApiKey.UNREGISTER_BROKER, (0, 0), 0, Route.CONTROLLER),
    ApiSpec(
        ApiKey.DESCRIBE_TRANSACTIONS, (0, 0), 0, Route.TRANSACTION_COORDINATOR, on_loss=OnLoss.ASK_CLIENT
    ),
    ApiSpec(ApiKey.LIST_TRANSACTIONS, (0, 2), 0, Route.SCATTER, on_loss=OnLoss.ASK_CLIENT),
    ApiSpec(ApiKey.CONSUMER_GROUP_HEARTBEAT, (0, 1), 0, Route.GROUP_COORDINATOR, on_loss=OnLoss.ASK_CLIENT),
    ApiSpec(ApiKey.CONSUMER_GROUP_DESCRIBE, (0, 1), 0, Route.GROUP_COORDINATOR, on_loss=OnLoss.ASK_CLIENT),
    ApiSpec(ApiKey.LIST_CONFIG_RESOURCES, (0, 1), 0, Route.GATEWAY),
    ApiSpec(ApiKey.DESCRIBE_TOPIC_PARTITIONS, (0, 0), 0, Route.GATEWAY),
)

SPECS: Mapping[int, ApiSpec] = MappingProxyType({int(spec.key): spec for spec in _ROWS})
"""The description of every API in `ApiKey`, built or not."""

SUPPORTED: Mapping[int, tuple[int, int]] = MappingProxyType(
    {key: spec.versions for key, spec in SPECS.items() if spec.versions is not None}
)
"""Versions that this build answers by api key, both ends inclusive: what is advertised."""

BY_TRANSACTIONAL_ID: Final = frozenset({ApiKey.INIT_PRODUCER_ID})
"""Requests that go to the coordinator of the transactional id in their body; one without an id goes by its route."""

ROUTES: Mapping[int, Route] = MappingProxyType({key: spec.route for key, spec in SPECS.items()})
"""Route of every API in `ApiKey`, built or not."""

ON_LOSS: Mapping[int, OnLoss] = MappingProxyType(
    {
        key: spec.on_loss
        for key, spec in SPECS.items()
        if spec.on_loss is not None and spec.versions is not None
    }
)
"""What becomes of each relayed API's requests when their node is lost."""

FLEXIBLE_SINCE: Mapping[int, int] = MappingProxyType(
    {key: spec.flexible_since for key, spec in SPECS.items()}
)
"""First version of each API with compact lengths and tagged fields (KIP-482)."""


def answered() -> Iterator[ApiSpec]:
    """The APIs that this build answers."""
    return (spec for spec in SPECS.values() if spec.versions is not None)


def require_entries(
    table: str,
    entries: Collection[int],
    routes: Iterable[Route],
    *,
    also: Iterable[ApiKey] = (),
    but: Collection[int] = (),
) -> None:
    """Hold a table by api key against the specs.

    It has to have the answered APIs of `routes` less those of `but`, those of `also`, and no other.
    Raises InvariantBroken that names `table` and every API that is missing or too many.
    """
    chosen = frozenset(routes)
    wanted = {int(spec.key) for spec in answered() if spec.route in chosen and spec.key not in but}
    wanted |= {int(key) for key in also}
    wrong = [f"{_spell(key)} has no entry" for key in sorted(wanted.difference(entries))]
    wrong += [f"{_spell(key)} has an entry too many" for key in sorted(set(entries) - wanted)]
    if wrong:
        raise InvariantBroken(f"{table}: {', '.join(wrong)} (see penstock_kafka.wire.apis.SPECS)")


def _spell(key: int) -> str:
    spec = SPECS.get(key)
    if spec is None:
        return f"api key {key} (no spec)"
    return f"{spec.name} ({'not answered' if spec.versions is None else f'route {spec.route.value}'})"


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
