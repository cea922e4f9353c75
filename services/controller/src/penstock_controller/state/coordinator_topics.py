"""The topics in which coordinators keep groups and transactional ids: what they get, and what they need for good.

Sources: offsets.topic.* and transaction.state.log.* of Kafka 4.3 (GroupCoordinatorConfig, TransactionLogConfig,
TransactionStateManager.transactionStateTopicConfigs).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock_controller.state.generation import Context
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock_proto.v1 import controller_pb2 as api

CLUSTER_DEFAULT: Final = -1
"""Asks for the number that the cluster gives."""
DEFAULT_REPLICAS: Final = 3
_SEGMENT_BYTES: Final = str(100 * 1024 * 1024)

COORDINATOR_TOPICS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        OFFSETS_TOPIC: {"cleanup.policy": "compact", "segment.bytes": _SEGMENT_BYTES},
        TRANSACTIONS_TOPIC: {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            # A topic of one replica has a least of one all the same.
            "min.insync.replicas": "2",
            "penstock.durability": "fsync",
            "segment.bytes": _SEGMENT_BYTES,
            "unclean.leader.election.enable": "false",
        },
    }
)
"""Settings of each where its creator asks for none."""


def with_defaults(ctx: Context, asked: api.NewTopic) -> api.NewTopic:
    """What a coordinators' topic gets where its creator asks for nothing; any other topic as it is.

    Replicas are counted by registered nodes, not live ones: whoever comes first while a cluster
    starts must not leave it with a single copy for ever.
    """
    settings = COORDINATOR_TOPICS.get(asked.name)
    if settings is None:
        return asked
    wanted = api.NewTopic()
    wanted.CopyFrom(asked)
    if not wanted.assignments:
        if wanted.partition_count == CLUSTER_DEFAULT:
            offsets, transactions = (
                ctx.defaults.offsets_partition_count,
                ctx.defaults.transactions_partition_count,
            )
            wanted.partition_count = offsets if asked.name == OFFSETS_TOPIC else transactions
        if wanted.replication_factor == CLUSTER_DEFAULT:
            wanted.replication_factor = max(1, min(DEFAULT_REPLICAS, len(ctx.image.nodes)))
    for key, value in settings.items():
        if key not in wanted.configs:
            wanted.configs[key] = value
    return wanted


def check_may_grow(name: str) -> None:
    """Raise INVALID_PARTITIONS for a topic that more partitions would tear apart: ids would be looked for elsewhere."""
    if name in COORDINATOR_TOPICS:
        raise PenstockError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {name} never gets more partitions: where a group or transactional id is kept follows from their "
            "number",
        )
