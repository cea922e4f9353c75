"""Settings of a topic: Kafka's names and defaults, checked in one place.

Rules: controllers check with `validate_topic_config` before a setting is written;
roles read with `TopicConfig.from_config`, which falls back to the default for a value
that it cannot read (written by a newer version) rather than stop serving. A setting
that Penstock takes but need not act on is in `_TABLE` without a field (`preallocate`: files
grow as they are written; `file.delete.delay.ms`: who reads a file keeps it open;
`*.replication.throttled.replicas`: every replica that is being rebuilt is throttled); one that
it would have to act on to be honest (tiered storage) is refused.

Source: LogConfig, TopicConfig and ServerLogConfigs of Apache Kafka 4.3. Deviations:
`min.insync.replicas` is 2 by default where the replication factor is 3 or more, and is
never above the replication factor; `max.message.bytes` ends at 1 GiB; `segment.bytes` begins at 1 KiB;
`penstock.durability` is ours. Values are read as Kafka reads them (ConfigDef.parseType): trimmed,
numbers of ASCII digits with a sign or none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.limits import BATCH_BYTES_MAX

Durability: TypeAlias = Literal["fsync", "replicated"]

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What a log and its leader need to know of their topic. Below 0 means "no limit" for retention."""

    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = -1
    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * _DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = _DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    min_cleanable_dirty_ratio: float = 0.5
    max_message_bytes: int = 1024 * 1024 + 12
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    min_insync_replicas: int = 1
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    unclean_leader_election_enable: bool = False
    durability: Durability = "fsync"

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_deleted_by_retention(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def is_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def roll_ms(self) -> int:
        """Age at which a segment is closed: a compacted one in time for max.compaction.lag.ms (KIP-354)."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def is_fsync(self) -> bool:
        """Acknowledged means flushed to disk."""
        return self.durability == "fsync"

    @classmethod
    def from_config(cls, config: Mapping[str, str], replication_factor: int) -> TopicConfig:
        """The settings that `config` (a topic's dynamic settings) gives.

        Unknown keys and unreadable values are passed over. `min_insync_replicas` is
        the effective one: the set value, else 2 where `replication_factor` is 3 or
        more, else 1; and never above the replication factor.
        """
        values: dict[str, object] = {}
        for key, text in config.items():
            rule = _TABLE.get(key)
            if rule is None or rule.field is None:
                continue
            try:
                values[rule.field] = rule.parse(text)
            except ValueError:
                continue
        wanted = values.get("min_insync_replicas")
        if not isinstance(wanted, int):
            wanted = default_min_insync_replicas(replication_factor)
        values["min_insync_replicas"] = max(1, min(wanted, replication_factor))
        return cls(**values)  # type: ignore[arg-type]


def default_min_insync_replicas(replication_factor: int) -> int:
    """`min.insync.replicas` of a topic that does not set it."""
    return 2 if replication_factor >= 3 else 1


@dataclass(frozen=True, slots=True)
class _Rule:
    """How one setting is read. `field` None: taken, and shown, but nothing acts on it."""

    field: str | None
    default: str
    parse: Callable[[str], object]


_BLANKS: Final = "".join(map(chr, range(0x21)))
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_DECIMAL: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_DIGITS_MAX: Final = 40
"""Of a number: Python's own bound is thousands, and each costs time."""


def trim(text: str) -> str:
    """Without what Java's String.trim takes away: control characters and spaces at both ends."""
    return text.strip(_BLANKS)


def parse_integer(text: str, low: int, high: int) -> int:
    """An integer as Java reads it, in a range. Raises ValueError with the mend."""
    text = trim(text)
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"not an integer: use {low}..{high}")
    if len(text) > _DIGITS_MAX or not low <= int(text) <= high:
        raise ValueError(f"out of range: use {low}..{high}")
    return int(text)


def _integer(low: int, high: int) -> Callable[[str], int]:
    return lambda text: parse_integer(text, low, high)


def _ratio(text: str) -> float:
    found = _DECIMAL.fullmatch(trim(text))
    if found is None:
        raise ValueError("not a number: use 0..1")
    value = float(found[1])
    if not 0 <= value <= 1:
        raise ValueError("out of range: use 0..1")
    return value


def _boolean(text: str) -> bool:
    lowered = trim(text).lower()
    if lowered not in ("true", "false"):
        raise ValueError("not a boolean: use true or false")
    return lowered == "true"


def _one_of(*allowed: str, why: str = "") -> Callable[[str], str]:
    def parse(text: str) -> str:
        text = trim(text)
        if text not in allowed:
            raise ValueError(f"use {' or '.join(allowed)}{why}")
        return text

    return parse


def _policy(text: str) -> frozenset[str]:
    text = trim(text)
    parts = [trim(part) for part in text.split(",")] if text else []
    if any(part not in ("delete", "compact") for part in parts):
        raise ValueError("use delete, compact, delete,compact, or nothing to keep all for ever")
    return frozenset(parts)


def _throttled(text: str) -> tuple[str, ...]:
    """Kafka: ThrottledReplicaListValidator."""
    parts = tuple(trim(part) for part in text.split(",") if trim(part))
    if parts in (("*",), ("none",)):
        return parts
    if not all(re.fullmatch(r"[0-9]+:[0-9]+", part) for part in parts):
        raise ValueError("use *, none, or partition:node,partition:node,...")
    return parts


def _gzip_level(text: str) -> int:
    value = _integer(-1, 9)(text)
    if value == 0:
        raise ValueError("out of range: use 1..9, or -1 for gzip's own choice")
    return value


COMPRESSION_TYPES: Final = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")

_LONG = _integer(0, LONG_MAX)
_LONG_FROM_1 = _integer(1, LONG_MAX)
_NO_LIMIT_OR_LONG = _integer(-1, LONG_MAX)

_TABLE: Final[Mapping[str, _Rule]] = {
    "cleanup.policy": _Rule("cleanup_policy", "delete", _policy),
    "compression.gzip.level": _Rule("compression_gzip_level", "-1", _gzip_level),
    "compression.lz4.level": _Rule("compression_lz4_level", "9", _integer(1, 17)),
    "compression.type": _Rule(
        "compression_type",
        "producer",
        _one_of(*COMPRESSION_TYPES, why=" (producer keeps batches as they come)"),
    ),
    "compression.zstd.level": _Rule("compression_zstd_level", "3", _integer(-131072, 22)),
    "delete.retention.ms": _Rule("delete_retention_ms", str(_DAY_MS), _LONG),
    "file.delete.delay.ms": _Rule(None, "60000", _LONG),
    "flush.messages": _Rule("flush_messages", str(LONG_MAX), _LONG_FROM_1),
    "flush.ms": _Rule("flush_ms", str(LONG_MAX), _LONG),
    "follower.replication.throttled.replicas": _Rule(None, "", _throttled),
    "index.interval.bytes": _Rule("index_interval_bytes", "4096", _integer(0, INT_MAX)),
    "leader.replication.throttled.replicas": _Rule(None, "", _throttled),
    "max.compaction.lag.ms": _Rule("max_compaction_lag_ms", str(LONG_MAX), _LONG_FROM_1),
    "max.message.bytes": _Rule("max_message_bytes", "1048588", _integer(0, BATCH_BYTES_MAX)),
    "message.timestamp.after.max.ms": _Rule("message_timestamp_after_max_ms", "3600000", _LONG),
    "message.timestamp.before.max.ms": _Rule("message_timestamp_before_max_ms", str(LONG_MAX), _LONG),
    "message.timestamp.type": _Rule(
        "message_timestamp_type", "CreateTime", _one_of("CreateTime", "LogAppendTime")
    ),
    "min.cleanable.dirty.ratio": _Rule("min_cleanable_dirty_ratio", "0.5", _ratio),
    "min.compaction.lag.ms": _Rule("min_compaction_lag_ms", "0", _LONG),
    "min.insync.replicas": _Rule("min_insync_replicas", "1", _integer(1, INT_MAX)),
    "penstock.durability": _Rule("durability", "fsync", _one_of("fsync", "replicated")),
    "preallocate": _Rule(None, "false", _boolean),
    "retention.bytes": _Rule("retention_bytes", "-1", _integer(-LONG_MAX - 1, LONG_MAX)),
    "retention.ms": _Rule("retention_ms", str(7 * _DAY_MS), _NO_LIMIT_OR_LONG),
    "segment.bytes": _Rule("segment_bytes", str(1024**3), _integer(1024, INT_MAX)),
    "segment.index.bytes": _Rule("segment_index_bytes", str(10 * 1024**2), _integer(4, INT_MAX)),
    "segment.jitter.ms": _Rule("segment_jitter_ms", "0", _LONG),
    "segment.ms": _Rule("segment_ms", str(7 * _DAY_MS), _LONG_FROM_1),
    "unclean.leader.election.enable": _Rule("unclean_leader_election_enable", "false", _boolean),
}

TOPIC_CONFIG_DEFAULTS: Final[Mapping[str, str]] = {key: rule.default for key, rule in _TABLE.items()}
"""Every setting that a topic takes, with its default as Kafka writes it.

That of `min.insync.replicas` holds for fewer than three replicas: see
`default_min_insync_replicas`.
"""


def parse_topic_config(key: str, value: str) -> object:
    """The value of a known setting; raises ValueError with the mend."""
    return _TABLE[key].parse(value)


def validate_topic_config(key: str, value: str) -> None:
    """Raise INVALID_CONFIG, naming key, value and mend, unless a topic may be set so."""
    rule = _TABLE.get(key)
    if rule is None:
        raise PenstockError(
            ErrorCode.INVALID_CONFIG, f"unknown topic setting {key!r}: use one of {', '.join(sorted(_TABLE))}"
        )
    try:
        rule.parse(value)
    except ValueError as error:
        raise PenstockError(ErrorCode.INVALID_CONFIG, f"topic setting {key}={value!r}: {error}") from None


def validate_topic_configs(configs: Mapping[str, str]) -> None:
    """Raise INVALID_CONFIG when a topic's settings, right one by one, contradict each other.

    What it does not set counts by the defaults above (Kafka: LogConfig.validateValues).
    """
    settings = TopicConfig.from_config(configs, 1)
    if settings.min_compaction_lag_ms > settings.max_compaction_lag_ms:
        raise PenstockError(
            ErrorCode.INVALID_CONFIG,
            f"topic setting min.compaction.lag.ms={settings.min_compaction_lag_ms} is more than"
            f" max.compaction.lag.ms={settings.max_compaction_lag_ms}: use {settings.max_compaction_lag_ms} at most",
        )
