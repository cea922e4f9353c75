"""What Kafka's broker configurations are called here, for those who bring a server.properties along.

Rule: a name of Kafka's is never taken for ours, even where only the dots differ: values and units may
not be the same. It is an error that says what to write.

Source of the names: Apache Kafka 4.3's documentation, section 3.1, Broker Configs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock_core.config.catalog import CLUSTER_DYNAMIC, NODE_DYNAMIC, TOPIC_NAMES, TOPIC_SETTINGS


@dataclass(frozen=True)
class Ours:
    """Settings of roles that do what one of Kafka's does; `remark` says how they differ."""

    settings: tuple[str, ...]
    remark: str = ""


KAFKA_NAMES: Final[Mapping[str, Ours]] = {
    "advertised.listeners": Ours(("listeners",), 'each with its "advertised"'),
    "auto.create.topics.enable": Ours(("auto_create_topics",)),
    "auto.leader.rebalance.enable": Ours(("leader_rebalance_interval_ms",), "0 is never"),
    "broker.heartbeat.interval.ms": Ours(("node_heartbeat_interval_ms",)),
    "broker.id": Ours(("node_id",)),
    "broker.rack": Ours(("rack",)),
    "broker.session.timeout.ms": Ours(("node_session_timeout_ms",)),
    "controller.quorum.bootstrap.servers": Ours(("controllers",)),
    "controller.quorum.fetch.timeout.ms": Ours(("raft_silence_ms",)),
    "controller.quorum.voters": Ours(("raft_peers", "controllers"), "Raft and gRPC addresses"),
    "default.replication.factor": Ours(("default_replication_factor",)),
    "group.consumer.heartbeat.interval.ms": Ours(("group_consumer_heartbeat_interval_ms",)),
    "group.consumer.session.timeout.ms": Ours(("group_consumer_session_timeout_ms",)),
    "group.initial.rebalance.delay.ms": Ours(("group_initial_rebalance_delay_ms",)),
    "group.max.session.timeout.ms": Ours(("group_max_session_timeout_ms",)),
    "group.max.size": Ours(("group_max_size",)),
    "group.min.session.timeout.ms": Ours(("group_min_session_timeout_ms",)),
    "leader.imbalance.check.interval.seconds": Ours(("leader_rebalance_interval_ms",), "in ms"),
    "log.cleaner.backoff.ms": Ours(("compaction_interval_ms",)),
    "log.cleaner.dedupe.buffer.size": Ours(("compaction_map_bytes",)),
    "log.cleaner.io.max.bytes.per.second": Ours(("compaction_bytes_per_second",), "0 is no bound"),
    "log.dir": Ours(("data_dir",)),
    "log.dirs": Ours(("data_dir",), "one directory"),
    "log.flush.offset.checkpoint.interval.ms": Ours(("checkpoint_interval_ms",)),
    "log.retention.check.interval.ms": Ours(("retention_check_interval_ms",)),
    "max.connections": Ours(("connections_max",)),
    "max.connections.per.ip": Ours(("connections_per_address_max",)),
    "metadata.log.dir": Ours(("data_dir",)),
    "node.id": Ours(("node_id", "controller_id")),
    "num.partitions": Ours(("default_partition_count",)),
    "offset.metadata.max.bytes": Ours(("offset_metadata_max_bytes",)),
    "offsets.retention.check.interval.ms": Ours(("offsets_retention_check_interval_ms",)),
    "offsets.retention.minutes": Ours(("offsets_retention_minutes",)),
    "offsets.topic.num.partitions": Ours(("offsets_topic_num_partitions",)),
    "replica.high.watermark.checkpoint.interval.ms": Ours(("checkpoint_interval_ms",)),
    "replica.lag.time.max.ms": Ours(("replica_lag_time_max_ms",)),
    "socket.request.max.bytes": Ours(("socket_request_max_bytes",)),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": Ours(
        ("transaction_abort_timed_out_transaction_cleanup_interval_ms",)
    ),
    "transaction.max.timeout.ms": Ours(("transaction_max_timeout_ms",)),
    "transaction.remove.expired.transaction.cleanup.interval.ms": Ours(
        ("transaction_remove_expired_transaction_cleanup_interval_ms",)
    ),
    "transaction.state.log.num.partitions": Ours(("transaction_state_log_num_partitions",)),
    "transactional.id.expiration.ms": Ours(("transactional_id_expiration_ms",)),
}
"""Kafka's name to what a process is told here when it starts."""

OTHER_UNITS: Final[Mapping[str, str]] = {
    "log.retention.hours": "log.retention.ms",
    "log.retention.minutes": "log.retention.ms",
    "log.roll.hours": "log.roll.ms",
    "log.roll.jitter.hours": "log.roll.jitter.ms",
}
"""Names that Kafka has beside those of `penstock_core.config.catalog`, which are the ones in ms."""


def hint(name: str, known: Collection[str], spell: Callable[[str], str] = str) -> str | None:
    """What to write in the place of a name that nobody here knows, None when it is not Kafka's either.

    `known` are the settings of those who were asked; `spell` makes of a setting what the user is to write.
    """
    dotted = name.lower().replace("_", ".").replace("-", ".")
    ours = KAFKA_NAMES.get(dotted)
    if ours is not None and name.replace("-", "_") not in ours.settings:
        own = [setting for setting in ours.settings if setting in known]
        text = f"{dotted} is Kafka's name; here it is {' and '.join(map(spell, own or ours.settings))}"
        remark = f" ({ours.remark})" if ours.remark else ""
        return f"{text}{remark}" if own else f"{text}{remark}, which another role has"
    cluster_name = OTHER_UNITS.get(dotted, dotted)
    if dotted in TOPIC_SETTINGS:
        cluster_name = TOPIC_SETTINGS[dotted].node_name or dotted
    if cluster_name in TOPIC_NAMES or cluster_name in NODE_DYNAMIC or cluster_name in CLUSTER_DYNAMIC:
        return f"{dotted} is a setting of the running cluster: `penstock config set cluster {cluster_name}=VALUE`"
    return None


def dotted_names(key: str, value: object) -> Iterable[str]:
    """Names that a TOML key stands for: unquoted dots in it have made tables of it."""
    if not isinstance(value, Mapping):
        yield key
        return
    for inner, below in value.items():
        yield from dotted_names(f"{key}.{inner}", below)
