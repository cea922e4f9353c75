"""Every setting that clients may see or set: of topics, storage nodes, the cluster, groups.

Rules
  * A topic's setting has a name at the nodes too (Kafka's synonyms, `log.retention.ms` for
    `retention.ms`). Set for a node or for the whole cluster it is the default of topics that
    do not set it themselves; the topic's own value comes first, then the node's, then the
    cluster's (`topic_config`).
  * What decides who may lead is the controllers' to judge and has to be one for all nodes:
    such a setting is taken for the cluster and refused for a node (CLUSTER_WIDE).
  * A setting that nothing acts on is not taken, but for `preallocate`, `file.delete.delay.ms` and
    `*.replication.throttled.replicas`, which change nothing that a client could tell and which
    Kafka's tools set. Removing what is not set is never an error: they remove throttles that nobody set.
  * What the topics of coordinators need (FIXED) holds whatever is set, and nothing else is taken for them.
  * Codes are Kafka's: INVALID_CONFIG for topics and groups, INVALID_REQUEST for nodes and the
    cluster (KAFKA-13609).

Sources: LogConfig, ServerTopicConfigSynonyms, DynamicBrokerConfig, GroupConfig and ConfigHelper
of Apache Kafka 4.3; KIP-226, KIP-339, KIP-1043.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from penstock_core.config.topic import (
    INT_MAX,
    LONG_MAX,
    TOPIC_CONFIG_DEFAULTS,
    default_min_insync_replicas,
    parse_integer,
    parse_topic_config,
    validate_topic_config,
    validate_topic_configs,
)
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId
from penstock_core.metadata.image import MetadataImage, SetBy
from penstock_core.racks import client_rack
from penstock_core.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

TOPIC: Final = "topic"
NODE: Final = "node"
CLUSTER: Final = "cluster"
GROUP: Final = "group"

VALUE_LENGTH_MAX: Final = 32_767
"""Characters of a setting's value (Kafka: ConfigurationControlManager)."""


class ConfigType(IntEnum):
    """How a value is to be read (Kafka: DescribeConfigsResponse.ConfigType)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """Where a value comes from (Kafka: DescribeConfigsResponse.ConfigSource)."""

    TOPIC = 1
    NODE = 2
    CLUSTER = 3
    STATIC = 4
    DEFAULT = 5
    GROUP = 8


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `node_name` is what a topic's setting is called at the nodes, "" for none."""

    type: ConfigType
    text: str
    default: str | None = None
    node_name: str = ""


def _topic(kind: ConfigType, node_name: str, text: str) -> Setting:
    return Setting(kind, text, None, node_name)


_INT, _LONG, _TEXT = ConfigType.INT, ConfigType.LONG, ConfigType.STRING
_LIST, _BOOL, _DOUBLE = ConfigType.LIST, ConfigType.BOOLEAN, ConfigType.DOUBLE

TOPIC_SETTINGS: Final[Mapping[str, Setting]] = {
    "cleanup.policy": _topic(
        _LIST,
        "log.cleanup.policy",
        "What becomes of old segments: delete drops them, compact keeps the last record of each key.",
    ),
    "compression.gzip.level": _topic(
        _INT,
        "compression.gzip.level",
        "Level where batches are written anew as gzip; -1 is gzip's own choice.",
    ),
    "compression.lz4.level": _topic(
        _INT, "compression.lz4.level", "Level where batches are written anew as lz4."
    ),
    "compression.type": _topic(
        _TEXT, "compression.type", "Compression of stored batches; producer keeps them as they come."
    ),
    "compression.zstd.level": _topic(
        _INT, "compression.zstd.level", "Level where batches are written anew as zstd."
    ),
    "delete.retention.ms": _topic(
        _LONG, "log.cleaner.delete.retention.ms", "How long compaction keeps tombstones, in ms."
    ),
    "file.delete.delay.ms": _topic(
        _LONG, "log.segment.delete.delay.ms", "Taken for Kafka's sake: whoever reads a file keeps it open."
    ),
    "flush.messages": _topic(
        _LONG,
        "log.flush.interval.messages",
        "Records between two flushes where an ack does not wait for one.",
    ),
    "flush.ms": _topic(
        _LONG, "log.flush.interval.ms", "Time between two flushes where an ack does not wait for one, in ms."
    ),
    "follower.replication.throttled.replicas": _topic(
        _LIST, "", "Taken for Kafka's sake: every replica that is being rebuilt is throttled."
    ),
    "index.interval.bytes": _topic(
        _INT, "log.index.interval.bytes", "Bytes of log for each entry of the offset index."
    ),
    "leader.replication.throttled.replicas": _topic(
        _LIST, "", "Taken for Kafka's sake: every replica that is being rebuilt is throttled."
    ),
    "max.compaction.lag.ms": _topic(
        _LONG, "log.cleaner.max.compaction.lag.ms", "Longest time that a record stays uncompacted, in ms."
    ),
    "max.message.bytes": _topic(_INT, "message.max.bytes", "Largest record batch that is taken, in bytes."),
    "message.timestamp.after.max.ms": _topic(
        _LONG,
        "log.message.timestamp.after.max.ms",
        "How far a record's timestamp may lie ahead of the leader's clock, in ms.",
    ),
    "message.timestamp.before.max.ms": _topic(
        _LONG,
        "log.message.timestamp.before.max.ms",
        "How far a record's timestamp may lie behind the leader's clock, in ms.",
    ),
    "message.timestamp.type": _topic(
        _TEXT,
        "log.message.timestamp.type",
        "CreateTime keeps the producer's timestamps, LogAppendTime writes the leader's.",
    ),
    "min.cleanable.dirty.ratio": _topic(
        _DOUBLE,
        "log.cleaner.min.cleanable.ratio",
        "Uncompacted share of a log that makes it worth compacting.",
    ),
    "min.compaction.lag.ms": _topic(
        _LONG, "log.cleaner.min.compaction.lag.ms", "How long a record stays uncompacted at least, in ms."
    ),
    "min.insync.replicas": _topic(
        _INT,
        "min.insync.replicas",
        "In-sync replicas that acks=all needs; by default 2 where the replication factor is 3 or more.",
    ),
    "penstock.durability": _topic(
        _TEXT,
        "penstock.durability",
        "What an ack means: fsync is flushed to disk, replicated is in the page caches (Kafka's meaning).",
    ),
    "preallocate": _topic(
        _BOOL, "log.preallocate", "Taken for Kafka's sake: files grow as they are written."
    ),
    "retention.bytes": _topic(
        _LONG,
        "log.retention.bytes",
        "Size at which a partition's oldest segments go, in bytes; -1 is no limit.",
    ),
    "retention.ms": _topic(
        _LONG, "log.retention.ms", "Age at which a partition's segments go, in ms; -1 is no limit."
    ),
    "segment.bytes": _topic(_INT, "log.segment.bytes", "Size at which a segment is closed, in bytes."),
    "segment.index.bytes": _topic(
        _INT,
        "log.index.size.max.bytes",
        "Most bytes of a segment's offset index; a full one closes the segment.",
    ),
    "segment.jitter.ms": _topic(
        _LONG, "log.roll.jitter.ms", "Most time by which segment.ms is shortened by chance, in ms."
    ),
    "segment.ms": _topic(_LONG, "log.roll.ms", "Age at which a segment is closed, in ms."),
    "unclean.leader.election.enable": _topic(
        _BOOL,
        "unclean.leader.election.enable",
        "Whether a replica that may lack acknowledged records may lead when no other is left.",
    ),
}
"""Settings that a topic takes; defaults are in `TOPIC_CONFIG_DEFAULTS`."""

CLUSTER_WIDE: Final = frozenset(
    {"min.insync.replicas", "unclean.leader.election.enable", "penstock.durability"}
)
"""Defaults of topics that a single node cannot have."""

FIXED: Final[Mapping[str, Mapping[str, str]]] = {
    OFFSETS_TOPIC: {"penstock.durability": "fsync"},
    TRANSACTIONS_TOPIC: {"penstock.durability": "fsync", "unclean.leader.election.enable": "false"},
}
"""What holds for the topics of coordinators whatever is set for them or for the cluster: what a coordinator
answered must outlast a power cut of all machines."""

TOPIC_NAMES: Final[Mapping[str, str]] = {s.node_name: n for n, s in TOPIC_SETTINGS.items() if s.node_name}
"""Topic setting by its name at the nodes."""

LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"

PRODUCER_EXPIRATION: Final = "producer.id.expiration.ms"
VERIFICATION: Final = "transaction.partition.verification.enable"

NODE_DYNAMIC: Final[Mapping[str, Setting]] = {
    LEADER_RATE: Setting(
        _LONG, "How fast a node feeds a replica that another one rebuilds, in bytes/s.", str(LONG_MAX)
    ),
    FOLLOWER_RATE: Setting(
        _LONG, "How fast a node is fed with a replica that it rebuilds, in bytes/s.", str(LONG_MAX)
    ),
    PRODUCER_EXPIRATION: Setting(
        _INT,
        "How long a partition remembers a producer that writes nothing, in ms; one with an open transaction stays.",
        "86400000",
    ),
    VERIFICATION: Setting(
        _BOOL,
        "Whether leaders ask coordinators about partitions that producers have added themselves (KIP-890).",
        "true",
    ),
}
"""Settings of nodes that count at once and are no defaults of topics."""

AUTO_REBALANCE: Final = "penstock.rebalance.auto"

CLUSTER_DYNAMIC: Final[Mapping[str, Setting]] = {
    AUTO_REBALANCE: Setting(
        _BOOL, "Whether a node that is new gets its share of replicas by itself, after 60 s.", "false"
    ),
}
"""Settings of the cluster as a whole, which no node has."""

_DEFAULT_ELSEWHERE: Final = frozenset({"flush.ms", "retention.ms", "segment.jitter.ms", "segment.ms"})
"""Topic settings whose default Kafka keeps under a name of another unit: it tells no synonym for it (measured)."""

NODE_STATIC: Final[Mapping[str, Setting]] = {
    "advertised.listeners": Setting(_TEXT, "Addresses that clients of direct listeners are told."),
    "auto.create.topics.enable": Setting(
        _BOOL,
        "Whether topics that clients ask this node for are made; gateways have a setting of their own.",
        "false",
    ),
    "broker.rack": Setting(_TEXT, "Failure domain of the node."),
    "group.consumer.heartbeat.interval.ms": Setting(
        _INT, "Heartbeat interval of members of the consumer protocol, in ms.", "5000"
    ),
    "group.consumer.session.timeout.ms": Setting(
        _INT, "Session timeout of members of the consumer protocol, in ms.", "45000"
    ),
    "group.initial.rebalance.delay.ms": Setting(
        _INT, "How long a new group waits for more members, in ms.", "3000"
    ),
    "group.max.session.timeout.ms": Setting(
        _INT, "Most session timeout that a member may ask for, in ms.", "1800000"
    ),
    "group.max.size": Setting(_INT, "Most members of one group.", "10000"),
    "group.min.session.timeout.ms": Setting(
        _INT, "Least session timeout that a member may ask for, in ms.", "6000"
    ),
    "log.dirs": Setting(_LIST, "Data directory of the node."),
    "log.retention.check.interval.ms": Setting(
        _LONG, "How often old segments are looked for, in ms.", "60000"
    ),
    "node.id": Setting(_INT, "Id of the node."),
    "offset.metadata.max.bytes": Setting(_INT, "Most metadata beside a committed offset.", "4096"),
    "offsets.retention.check.interval.ms": Setting(
        _LONG, "How often offsets past their retention are looked for, in ms.", "600000"
    ),
    "offsets.retention.minutes": Setting(
        _INT, "How long offsets of a group without members are kept, in minutes.", "10080"
    ),
    "replica.lag.time.max.ms": Setting(
        _LONG, "A follower that is behind for that long leaves the ISR, in ms.", "10000"
    ),
    "socket.request.max.bytes": Setting(
        _INT,
        "Largest request that this node takes, in bytes; gateways have a setting of their own.",
        "104857600",
    ),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": Setting(
        _INT,
        "A transaction that lasts longer than its timeout is aborted half of that later, in ms.",
        "10000",
    ),
    "transaction.max.timeout.ms": Setting(
        _INT, "Most transaction timeout that a producer may ask for, in ms.", "900000"
    ),
    "transaction.remove.expired.transaction.cleanup.interval.ms": Setting(
        _INT, "How often transactional ids past their expiration are looked for, in ms.", "3600000"
    ),
    "transactional.id.expiration.ms": Setting(
        _INT, "How long a transactional id is kept that nobody uses, in ms.", "604800000"
    ),
}
"""Settings of a storage node's process: shown, and changed by a restart with another value."""

GROUP_SETTINGS: Final[Mapping[str, Setting]] = {
    "consumer.heartbeat.interval.ms": Setting(
        _INT,
        "How often members of the consumer protocol send heartbeats, in ms.",
        None,
        "group.consumer.heartbeat.interval.ms",
    ),
    "consumer.session.timeout.ms": Setting(
        _INT,
        "Silence after which a member of the consumer protocol is taken out, in ms.",
        None,
        "group.consumer.session.timeout.ms",
    ),
}

_GROUP_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "consumer.heartbeat.interval.ms": (1_000, 15_000),
    "consumer.session.timeout.ms": (6_000, 600_000),
}


def topic_config(image: MetadataImage, topic: str, node_id: NodeId | None = None) -> Mapping[str, str]:
    """What is set for a topic on a node: by the topic itself, the node, or the cluster.

    Without `node_id` as the controllers see it. Give it to `TopicConfig.from_config`.
    """
    own = image.config(TOPIC, topic)
    fixed = FIXED.get(topic)
    if fixed is not None:
        own = {**own, **fixed}
    cluster = image.config(CLUSTER, "")
    node = image.config(NODE, str(node_id)) if node_id is not None else {}
    if not cluster and not node:
        return own
    result: dict[str, str] = {}
    for layer in (cluster, node):
        for key, value in layer.items():
            name = TOPIC_NAMES.get(key)
            if name is not None:
                result[name] = value
    result.update(own)
    return result


@dataclass(frozen=True, slots=True)
class Synonym:
    """A place that a value may come from."""

    name: str
    value: str | None
    source: ConfigSource


_RESOURCE_OF: Final = {
    ConfigSource.TOPIC: TOPIC,
    ConfigSource.NODE: NODE,
    ConfigSource.CLUSTER: CLUSTER,
    ConfigSource.GROUP: GROUP,
}


def author_of(image: MetadataImage, entry: Entry, name: str, node_id: NodeId | None) -> SetBy | None:
    """Who set what counts now; None where it is not set while the cluster runs, or nobody is known.

    `name`: of the resource that is described; `node_id`: the node whose settings count there.
    """
    kind = _RESOURCE_OF.get(entry.source)
    if kind is None:
        return None
    resource = {CLUSTER: "", NODE: "" if node_id is None else str(node_id)}.get(kind, name)
    key = entry.synonyms[0].name if entry.synonyms else entry.name
    return image.config_author(kind, resource, key)


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting of a resource as clients see it; `synonyms[0]` is where the value comes from."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    type: ConfigType
    text: str
    synonyms: tuple[Synonym, ...]


def _entry(name: str, setting: Setting, synonyms: list[Synonym], *, read_only: bool = False) -> Entry:
    first = synonyms[0] if synonyms else Synonym(name, None, ConfigSource.DEFAULT)
    return Entry(name, first.value, first.source, read_only, setting.type, setting.text, tuple(synonyms))


def _dynamic(image: MetadataImage, name: str, node_id: NodeId | None) -> list[Synonym]:
    found = []
    node = None if node_id is None else image.config(NODE, str(node_id)).get(name)
    if node is not None:
        found.append(Synonym(name, node, ConfigSource.NODE))
    cluster = image.config(CLUSTER, "").get(name)
    if cluster is not None:
        found.append(Synonym(name, cluster, ConfigSource.CLUSTER))
    return found


def describe_topic(image: MetadataImage, topic: str, node_id: NodeId | None = None) -> list[Entry]:
    """Every setting of a topic that exists, as it counts on a node (None: for the cluster)."""
    found = image.topic(topic)
    first = None if found is None else found.partitions.get(0)
    factor = 1 if first is None else first.factor
    return describe_configs(image, image.config(TOPIC, topic), factor, node_id, FIXED.get(topic, {}))


def describe_configs(
    image: MetadataImage,
    own: Mapping[str, str],
    replication_factor: int,
    node_id: NodeId | None = None,
    fixed: Mapping[str, str] = MappingProxyType({}),
) -> list[Entry]:
    """Every setting of a topic that has `own` and that many replicas, whether it exists or not; no default of the
    cluster counts for what is `fixed`."""
    least = str(default_min_insync_replicas(replication_factor))
    entries = []
    for name, setting in TOPIC_SETTINGS.items():
        counts = name in own and fixed.get(name, own[name]) == own[name]
        synonyms = [Synonym(name, own[name], ConfigSource.TOPIC)] if counts else []
        if not setting.node_name:
            default = Synonym(name, TOPIC_CONFIG_DEFAULTS[name], ConfigSource.DEFAULT)
            entries.append(_entry(name, setting, [*synonyms, default]))
            continue
        if name not in fixed:
            synonyms += _dynamic(image, setting.node_name, node_id)
        synonyms += _defaults(name, least if name == "min.insync.replicas" else None)
        entries.append(_shown(name, name, synonyms))
    return entries


def _defaults(name: str, value: str | None = None) -> list[Synonym]:
    if name in _DEFAULT_ELSEWHERE:
        return []
    text = TOPIC_CONFIG_DEFAULTS[name] if value is None else value
    return [Synonym(TOPIC_SETTINGS[name].node_name, text, ConfigSource.DEFAULT)]


def _shown(name: str, topic_name: str, synonyms: list[Synonym]) -> Entry:
    """A setting that topics have and nodes give a default for, under one of its two names."""
    setting = TOPIC_SETTINGS[topic_name]
    first = (
        synonyms[0] if synonyms else Synonym(name, TOPIC_CONFIG_DEFAULTS[topic_name], ConfigSource.DEFAULT)
    )
    return Entry(name, first.value, first.source, False, setting.type, setting.text, tuple(synonyms))


def describe_node(image: MetadataImage, node_id: NodeId) -> list[Entry]:
    """Every setting of a registered node: those of its process, read-only, and defaults of topics."""
    node = image.nodes[node_id]
    entries = []
    static = {"node.id": str(node_id), "broker.rack": client_rack(node.rack) or None, **node.settings}
    static["advertised.listeners"] = ",".join(
        f"{name}://{e.host}:{e.port}" for name, e in node.listeners.items()
    )
    for name, setting in NODE_STATIC.items():
        synonyms = []
        if static.get(name):
            synonyms.append(Synonym(name, static[name], ConfigSource.STATIC))
        if setting.default is not None:
            synonyms.append(Synonym(name, setting.default, ConfigSource.DEFAULT))
        entries.append(_entry(name, setting, synonyms, read_only=True))
    for name, setting in NODE_DYNAMIC.items():
        default = Synonym(name, setting.default, ConfigSource.DEFAULT)
        entries.append(_entry(name, setting, [*_dynamic(image, name, node_id), default]))
    for name, topic_name in TOPIC_NAMES.items():
        entries.append(_shown(name, topic_name, [*_dynamic(image, name, node_id), *_defaults(topic_name)]))
    return sorted(entries, key=lambda e: e.name)


def describe_cluster(image: MetadataImage) -> list[Entry]:
    """What is set for all nodes; nothing else, as Kafka has it."""
    entries = []
    for name in sorted(image.config(CLUSTER, "")):
        setting = (
            CLUSTER_DYNAMIC.get(name)
            or NODE_DYNAMIC.get(name)
            or TOPIC_SETTINGS.get(TOPIC_NAMES.get(name, ""))
        )
        if setting is not None:
            entries.append(_entry(name, setting, _dynamic(image, name, None)))
    return entries


def describe_group(image: MetadataImage, group: str) -> list[Entry]:
    """Every setting of a group, whether there is such a group or not."""
    own = image.config(GROUP, group)
    # Every node may coordinate it; they are meant to be set up alike.
    first = min(image.nodes, default=None)
    static = {} if first is None else image.nodes[first].settings
    entries = []
    for name, setting in GROUP_SETTINGS.items():
        synonyms = [Synonym(name, own[name], ConfigSource.GROUP)] if name in own else []
        if setting.node_name in static:
            synonyms.append(Synonym(setting.node_name, static[setting.node_name], ConfigSource.STATIC))
        default = NODE_STATIC[setting.node_name].default
        synonyms.append(Synonym(setting.node_name, default, ConfigSource.DEFAULT))
        entries.append(_entry(name, setting, synonyms))
    return entries


def throttled_rate(image: MetadataImage, node_id: NodeId, key: str) -> int:
    """LEADER_RATE or FOLLOWER_RATE of a node: what rebuilding replicas may take of it in that direction, in bytes/s;
    LONG_MAX without a bound. At least 1."""
    text = image.config(NODE, str(node_id)).get(key) or image.config(CLUSTER, "").get(key)
    return LONG_MAX if text is None else max(1, _count(text, LONG_MAX, default=LONG_MAX))


def producer_expiration_ms(image: MetadataImage, node_id: NodeId) -> int:
    """After which a node's partitions forget an idle producer."""
    text = image.config(NODE, str(node_id)).get(PRODUCER_EXPIRATION) or image.config(CLUSTER, "").get(
        PRODUCER_EXPIRATION
    )
    default_ms = int(NODE_DYNAMIC[PRODUCER_EXPIRATION].default or 0)
    return default_ms if text is None else max(1, _count(text, INT_MAX, default=default_ms))


def verifies_partitions(image: MetadataImage, node_id: NodeId) -> bool:
    """Whether a node asks about partitions that producers have added themselves."""
    own = image.config(NODE, str(node_id)).get(VERIFICATION)
    text = own if own is not None else image.config(CLUSTER, "").get(VERIFICATION, "true")
    return text.strip().lower() != "false"


def auto_rebalance(image: MetadataImage) -> bool:
    """Whether nodes that are new get their share by themselves."""
    return image.config(CLUSTER, "").get(AUTO_REBALANCE, "").strip().lower() == "true"


def group_interval_ms(image: MetadataImage, group: str, name: str, default_ms: int) -> int:
    """A group's own setting in ms, else `default_ms`."""
    text = image.config(GROUP, group).get(name)
    return default_ms if text is None else _count(text, INT_MAX, default=default_ms)


def is_list(kind: str, key: str) -> bool:
    """Whether APPEND and SUBTRACT make sense."""
    name = TOPIC_NAMES.get(key) if kind in (NODE, CLUSTER) else key
    setting = TOPIC_SETTINGS.get(name or "") if kind != GROUP else None
    return setting is not None and setting.type is ConfigType.LIST


def default_of(kind: str, key: str) -> str:
    """What a list begins with when nothing is set."""
    name = TOPIC_NAMES.get(key, key) if kind in (NODE, CLUSTER) else key
    return TOPIC_CONFIG_DEFAULTS.get(name, "")


def validate(kind: str, key: str, value: str) -> None:
    """Raise unless a resource of that kind may be set so; names key, value and mend."""
    if len(value) > VALUE_LENGTH_MAX:
        raise PenstockError(
            ErrorCode.INVALID_CONFIG,
            f"setting {key} has {len(value)} characters; use {VALUE_LENGTH_MAX} at most",
        )
    if kind == TOPIC:
        validate_topic_config(key, value)
    elif kind == GROUP:
        _validate_group(key, value)
    else:
        _validate_default(kind, key, value)


def check_fixed(topic: str, settings: Mapping[str, str]) -> None:
    """Raise INVALID_CONFIG when `settings` of a coordinators' topic would change what has to hold for it."""
    for key, needed in FIXED.get(topic, {}).items():
        value = settings.get(key, needed)
        if parse_topic_config(key, value) != parse_topic_config(key, needed):
            raise PenstockError(
                ErrorCode.INVALID_CONFIG,
                f"setting {key}={value!r}: topic {topic} needs {needed}; leave it as it is",
            )


def _count(text: str, high: int, *, default: int) -> int:
    try:
        return parse_integer(text, 0, high)
    except ValueError:
        return default


def _validate_default(kind: str, key: str, value: str) -> None:
    if key in NODE_STATIC:
        raise PenstockError(
            ErrorCode.INVALID_REQUEST,
            f"setting {key} cannot be changed while the node runs; give it another value and restart the node",
        )
    name = TOPIC_NAMES.get(key)
    if key in CLUSTER_DYNAMIC:
        if kind == NODE:
            raise _not_of_a_node(key)
        _validate_dynamic(key, CLUSTER_DYNAMIC[key], value)
        return
    if key in NODE_DYNAMIC:
        _validate_dynamic(key, NODE_DYNAMIC[key], value)
        return
    if name is None:
        hint = TOPIC_SETTINGS.get(key)
        raise PenstockError(
            ErrorCode.INVALID_REQUEST,
            f"unknown setting {key!r}: use "
            + (
                hint.node_name
                if hint is not None and hint.node_name
                else f"one of {', '.join(sorted({*TOPIC_NAMES, *NODE_DYNAMIC, *CLUSTER_DYNAMIC}))}"
            ),
        )
    if kind == NODE and name in CLUSTER_WIDE:
        raise _not_of_a_node(key)
    try:
        parse_topic_config(name, value)
    except ValueError as error:
        raise PenstockError(ErrorCode.INVALID_REQUEST, f"setting {key}={value!r}: {error}") from None


def _validate_dynamic(key: str, setting: Setting, value: str) -> None:
    if setting.type is ConfigType.BOOLEAN:
        if value.strip().lower() not in ("true", "false"):
            raise PenstockError(ErrorCode.INVALID_REQUEST, f"setting {key}={value!r}: use true or false")
        return
    low, high = (1, INT_MAX) if setting.type is ConfigType.INT else (0, LONG_MAX)
    if _count(value, high, default=-1) < low:
        raise PenstockError(ErrorCode.INVALID_REQUEST, f"setting {key}={value!r}: use {low}..{high}")


def _not_of_a_node(key: str) -> PenstockError:
    return PenstockError(
        ErrorCode.INVALID_REQUEST,
        f"setting {key} must be the same on every node; set it for the cluster (an empty node name)",
    )


def _validate_group(key: str, value: str) -> None:
    limits = _GROUP_RANGES.get(key)
    if limits is None:
        raise PenstockError(
            ErrorCode.INVALID_CONFIG,
            f"unknown group setting {key!r}: use one of {', '.join(sorted(_GROUP_RANGES))}",
        )
    if not limits[0] <= _count(value, INT_MAX, default=-1) <= limits[1]:
        raise PenstockError(
            ErrorCode.INVALID_CONFIG, f"group setting {key}={value!r}: use {limits[0]}..{limits[1]}"
        )


def validate_together(kind: str, settings: Mapping[str, str]) -> None:
    """Raise INVALID_CONFIG when settings that are right one by one contradict each other."""
    if kind == TOPIC:
        validate_topic_configs(settings)
    if kind != GROUP:
        return
    heartbeat, session = "consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"
    values = {}
    for name in (heartbeat, session):
        default = int(NODE_STATIC[GROUP_SETTINGS[name].node_name].default or "0")
        values[name] = _count(settings.get(name, ""), INT_MAX, default=default)
    if values[session] <= values[heartbeat]:
        raise PenstockError(
            ErrorCode.INVALID_CONFIG,
            f"{session}={values[session]} must be more than {heartbeat}={values[heartbeat]}",
        )
