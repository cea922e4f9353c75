"""Topic settings: Kafka's names, defaults, ranges, and messages that name the mend."""

import pytest

from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.topic_settings import TOPIC_CONFIG_DEFAULTS, TopicSettings, validate_topic_config


def test_the_table_of_defaults_and_the_class_agree() -> None:
    assert TopicSettings.from_config(TOPIC_CONFIG_DEFAULTS, 1) == TopicSettings()
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
    assert TopicSettings.from_config(config, replicas).min_insync_replicas == expected


def test_values_are_read() -> None:
    settings = TopicSettings.from_config(
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
        ("max.message.bytes", str(1 << 30), "8388608"),
        ("cleanup.policy", "shred", "delete, compact"),
        ("cleanup.policy", "", "delete, compact"),
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
