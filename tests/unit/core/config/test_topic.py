"""Topic settings: Kafka's names, defaults, ranges, and messages that name the mend."""

import pytest

from penstock_core.config.topic import (
    TOPIC_CONFIG_DEFAULTS,
    TopicConfig,
    parse_topic_config,
    validate_topic_config,
    validate_topic_configs,
)
from penstock_core.errors import ErrorCode, PenstockError


def test_the_table_of_defaults_and_the_class_agree() -> None:
    assert TopicConfig.from_config(TOPIC_CONFIG_DEFAULTS, 1) == TopicConfig()
    for key, value in TOPIC_CONFIG_DEFAULTS.items():
        validate_topic_config(key, value)


@pytest.mark.parametrize(
    ("config", "replicas", "expected"),
    [
        ({}, 1, 1),
        ({}, 2, 1),
        ({}, 3, 2),
        ({}, 5, 2),
        ({"min.insync.replicas": "3"}, 3, 3),
        ({"min.insync.replicas": "3"}, 2, 2),
        ({"min.insync.replicas": "1"}, 3, 1),
        ({"min.insync.replicas": "many"}, 3, 2),
    ],
)
def test_min_insync_replicas(config: dict[str, str], replicas: int, expected: int) -> None:
    assert TopicConfig.from_config(config, replicas).min_insync_replicas == expected


def test_values_are_read() -> None:
    settings = TopicConfig.from_config(
        {
            "retention.ms": "-1",
            "segment.bytes": "2048",
            "cleanup.policy": "compact, delete",
            "message.timestamp.type": "LogAppendTime",
            "penstock.durability": "replicated",
            "unclean.leader.election.enable": "TRUE",
            "from.the.future": "1",
            "flush.ms": "5",
        },
        3,
    )
    assert settings.retention_ms == -1
    assert settings.segment_bytes == 2048
    assert settings.is_compacted
    assert settings.is_deleted_by_retention
    assert settings.is_log_append_time
    assert not settings.is_fsync
    assert settings.unclean_leader_election_enable


@pytest.mark.parametrize(
    ("key", "value", "mend"),
    [
        ("retention.ms", "-2", "-1.."),
        ("retention.ms", "a week", "integer"),
        ("segment.bytes", "10", "1024"),
        ("max.message.bytes", str((1 << 30) + 1), "1073741824"),
        ("cleanup.policy", "shred", "delete, compact"),
        ("cleanup.policy", "delete,", "delete, compact"),
        ("cleanup.policy", "Delete", "delete, compact"),
        ("retention.ms", "1_000", "integer"),
        ("retention.ms", "\u0661\u0660\u0660", "integer"),
        ("retention.ms", "\u00a05", "integer"),
        ("retention.ms", "", "integer"),
        ("retention.ms", "9" * 5000, "out of range"),
        ("retention.bytes", str(1 << 63), "out of range"),
        ("min.cleanable.dirty.ratio", "1_0e-1", "0..1"),
        ("min.cleanable.dirty.ratio", "nan", "0..1"),
        ("min.cleanable.dirty.ratio", "\u0660", "0..1"),
        ("leader.replication.throttled.replicas", "\u0660:1", "partition:node"),
        ("compression.type", "brotli", "producer or uncompressed or gzip"),
        ("compression.gzip.level", "0", "1..9"),
        ("compression.zstd.level", "23", "22"),
        ("remote.storage.enable", "true", "unknown topic setting"),
        ("message.timestamp.type", "createtime", "CreateTime"),
        ("min.insync.replicas", "0", "1.."),
        ("min.cleanable.dirty.ratio", "2", "0..1"),
        ("penstock.durability", "disk", "fsync"),
        ("unclean.leader.election.enable", "yes", "true or false"),
        ("retention", "1", "retention.ms"),
    ],
)
def test_bad_values_name_key_value_and_mend(key: str, value: str, mend: str) -> None:
    with pytest.raises(PenstockError) as caught:
        validate_topic_config(key, value)
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    assert key in caught.value.message
    assert mend in caught.value.message


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("retention.ms", " \t+0005\x00", 5),
        ("retention.bytes", "-5", -5),
        ("compression.type", " zstd", "zstd"),
        ("message.timestamp.type", "LogAppendTime ", "LogAppendTime"),
        ("cleanup.policy", " compact ,delete ", {"compact", "delete"}),
        ("cleanup.policy", "", set()),
        ("cleanup.policy", "delete,delete", {"delete"}),
        ("min.cleanable.dirty.ratio", "5e-1f", 0.5),
        ("min.cleanable.dirty.ratio", " .25", 0.25),
        ("preallocate", " TRUE ", True),
    ],
)
def test_values_are_read_as_kafka_reads_them(key: str, value: str, expected: object) -> None:
    validate_topic_config(key, value)
    assert parse_topic_config(key, value) == expected


def test_the_least_compaction_lag_is_not_above_the_largest() -> None:
    lags = {"min.compaction.lag.ms": "1001", "max.compaction.lag.ms": "1000"}
    with pytest.raises(
        PenstockError, match=r"min.compaction.lag.ms=1001 is more than .*=1000: use"
    ) as caught:
        validate_topic_configs(lags)
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    for name in lags:
        validate_topic_configs({name: lags[name]})  # the other one is the default
    validate_topic_configs({**lags, "min.compaction.lag.ms": "1000"})
    validate_topic_configs({**lags, "min.compaction.lag.ms": "of a newer version"})
