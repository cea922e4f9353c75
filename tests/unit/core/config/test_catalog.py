"""What may be set where, what counts, and how it is shown."""

from __future__ import annotations

import pytest

from penstock_core.config import catalog as catalog
from penstock_core.config.catalog import CLUSTER, GROUP, NODE, TOPIC, ConfigSource, ConfigType
from penstock_core.config.topic import LONG_MAX, TOPIC_CONFIG_DEFAULTS, TopicConfig, parse_topic_config
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.ids import NodeId
from penstock_core.metadata.image import MetadataImage
from penstock_proto.v1 import common_pb2
from penstock_proto.v1 import metadata_pb2 as pb

ONE = NodeId(1)


def image(*configs: tuple[str, str, str, str], replicas: int = 3) -> MetadataImage:
    records = [
        pb.MetadataRecord(
            node=pb.NodeRecord(
                node_id=1,
                node_epoch=1,
                rack="r1/h1",
                settings={
                    "log.dirs": "/data",
                    "group.max.size": "7",
                    "group.consumer.heartbeat.interval.ms": "2000",
                },
                listeners=[common_pb2.Endpoint(listener="DIRECT", host="h", port=9)],
            )
        ),
        pb.MetadataRecord(topic=pb.TopicRecord(topic_id=b"t" * 16, name="t")),
        pb.MetadataRecord(
            partition=pb.PartitionRecord(
                topic_id=b"t" * 16, replicas=range(1, replicas + 1), isr=[1], leader=1
            )
        ),
    ]
    records += [
        pb.MetadataRecord(config=pb.ConfigRecord(resource_type=k, resource_name=n, key=key, value=value))
        for k, n, key, value in configs
    ]
    return MetadataImage().apply(records, 1)


def entry(entries: list[catalog.Entry], name: str) -> catalog.Entry:
    (found,) = (e for e in entries if e.name == name)
    return found


def test_every_topic_setting_has_a_text_a_type_and_a_name_at_the_nodes() -> None:
    assert catalog.TOPIC_SETTINGS.keys() == TOPIC_CONFIG_DEFAULTS.keys()
    without = {"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
    assert set(catalog.TOPIC_NAMES.values()) == catalog.TOPIC_SETTINGS.keys() - without
    kinds = {
        tuple: ConfigType.LIST,
        bool: ConfigType.BOOLEAN,
        float: ConfigType.DOUBLE,
        frozenset: ConfigType.LIST,
    }
    for name, setting in catalog.TOPIC_SETTINGS.items():
        assert setting.text.endswith("."), name
        value = parse_topic_config(name, TOPIC_CONFIG_DEFAULTS[name])
        expected = kinds.get(type(value))
        if expected is None:
            expected = (
                setting.type if setting.type in (ConfigType.INT, ConfigType.LONG) else ConfigType.STRING
            )
            assert isinstance(value, str) == (expected is ConfigType.STRING), name
        assert setting.type is expected, name


def test_the_topics_own_value_comes_first_then_the_nodes_then_the_clusters() -> None:
    of = image(
        (CLUSTER, "", "log.retention.ms", "3"),
        (CLUSTER, "", "log.segment.bytes", "4096"),
        (CLUSTER, "", "log.roll.ms", "99"),
        (NODE, "1", "log.retention.ms", "2"),
        (NODE, "1", "log.segment.bytes", "2048"),
        (NODE, "2", "log.segment.bytes", "1111"),
        (TOPIC, "t", "retention.ms", "1"),
    )
    here = TopicConfig.from_config(catalog.topic_config(of, "t", ONE), 3)
    assert (here.retention_ms, here.segment_bytes, here.segment_ms) == (1, 2048, 99)
    everywhere = TopicConfig.from_config(catalog.topic_config(of, "t"), 3)
    assert (everywhere.retention_ms, everywhere.segment_bytes) == (1, 4096)
    entries = catalog.describe_topic(of, "t", ONE)
    shown = entry(entries, "segment.bytes")
    assert (shown.value, shown.source, shown.read_only) == ("2048", ConfigSource.NODE, False)
    assert [(s.name, s.value, s.source) for s in entry(entries, "retention.ms").synonyms] == [
        ("retention.ms", "1", ConfigSource.TOPIC),
        ("log.retention.ms", "2", ConfigSource.NODE),
        ("log.retention.ms", "3", ConfigSource.CLUSTER),
    ]


@pytest.mark.parametrize(("replicas", "expected"), [(1, "1"), (2, "1"), (3, "2")])
def test_the_default_min_isr_is_that_of_the_topic(replicas: int, expected: str) -> None:
    shown = entry(catalog.describe_topic(image(replicas=replicas), "t"), "min.insync.replicas")
    assert (shown.value, shown.source) == (expected, ConfigSource.DEFAULT)


def test_defaults_that_kafka_keeps_in_hours_are_shown_in_ms_without_a_synonym() -> None:
    shown = entry(catalog.describe_topic(image(), "t"), "segment.ms")
    assert (shown.value, shown.source, shown.synonyms) == ("604800000", ConfigSource.DEFAULT, ())
    assert entry(catalog.describe_node(image(), ONE), "log.roll.ms").value == "604800000"


def test_a_node_shows_its_process_and_its_defaults_of_topics() -> None:
    entries = catalog.describe_node(image((NODE, "1", "message.max.bytes", "5")), ONE)
    for name, value, source, read_only in (
        ("node.id", "1", ConfigSource.STATIC, True),
        ("broker.rack", "r1", ConfigSource.STATIC, True),
        ("log.dirs", "/data", ConfigSource.STATIC, True),
        ("advertised.listeners", "DIRECT://h:9", ConfigSource.STATIC, True),
        ("group.max.size", "7", ConfigSource.STATIC, True),
        ("offsets.retention.minutes", "10080", ConfigSource.DEFAULT, True),
        ("message.max.bytes", "5", ConfigSource.NODE, False),
    ):
        shown = entry(entries, name)
        assert (shown.value, shown.source, shown.read_only) == (value, source, read_only), name
    assert [s.value for s in entry(entries, "group.max.size").synonyms] == ["7", "10000"]


def test_the_cluster_shows_what_is_set() -> None:
    assert catalog.describe_cluster(image()) == []
    (shown,) = catalog.describe_cluster(image((CLUSTER, "", "log.retention.ms", "5")))
    assert (shown.name, shown.value, shown.source) == ("log.retention.ms", "5", ConfigSource.CLUSTER)


def test_new_nodes_get_their_share_by_themselves_only_where_it_is_set() -> None:
    catalog.validate(CLUSTER, "penstock.rebalance.auto", "true")
    assert not catalog.auto_rebalance(image())
    assert not catalog.auto_rebalance(image((CLUSTER, "", "penstock.rebalance.auto", "false")))
    of = image((CLUSTER, "", "penstock.rebalance.auto", "true"))
    assert catalog.auto_rebalance(of)
    (shown,) = catalog.describe_cluster(of)
    assert (shown.name, shown.value, shown.source) == (
        "penstock.rebalance.auto",
        "true",
        ConfigSource.CLUSTER,
    )


def test_groups_have_settings_before_they_exist() -> None:
    of = image((GROUP, "g", "consumer.session.timeout.ms", "60000"))
    assert catalog.group_interval_ms(of, "g", "consumer.session.timeout.ms", 1) == 60_000
    assert catalog.group_interval_ms(of, "h", "consumer.session.timeout.ms", 1) == 1
    assert entry(catalog.describe_group(of, "h"), "consumer.session.timeout.ms").value == "45000"
    assert entry(catalog.describe_group(of, "g"), "consumer.session.timeout.ms").source is ConfigSource.GROUP
    shown = entry(catalog.describe_group(of, "g"), "consumer.heartbeat.interval.ms")
    assert (shown.value, shown.source) == ("2000", ConfigSource.STATIC)


@pytest.mark.parametrize(
    ("kind", "key", "value", "code", "words"),
    [
        (TOPIC, "log.retention.ms", "5", ErrorCode.INVALID_CONFIG, "unknown topic setting"),
        (TOPIC, "retention.ms", "x" * 40_000, ErrorCode.INVALID_CONFIG, "characters"),
        (NODE, "retention.ms", "5", ErrorCode.INVALID_REQUEST, "log.retention.ms"),
        (NODE, "log.dirs", "/x", ErrorCode.INVALID_REQUEST, "restart"),
        (NODE, "unclean.leader.election.enable", "true", ErrorCode.INVALID_REQUEST, "cluster"),
        (NODE, "penstock.rebalance.auto", "true", ErrorCode.INVALID_REQUEST, "set it for the cluster"),
        (CLUSTER, "penstock.rebalance.auto", "yes", ErrorCode.INVALID_REQUEST, "use true or false"),
        (CLUSTER, "log.retention.ms", "soon", ErrorCode.INVALID_REQUEST, "not an integer"),
        (CLUSTER, "num.io.threads", "9", ErrorCode.INVALID_REQUEST, "unknown setting"),
        (GROUP, "share.auto.offset.reset", "latest", ErrorCode.INVALID_CONFIG, "unknown group setting"),
        (GROUP, "consumer.session.timeout.ms", "1", ErrorCode.INVALID_CONFIG, "6000..600000"),
    ],
)
def test_refusals_name_the_mend(kind: str, key: str, value: str, code: ErrorCode, words: str) -> None:
    with pytest.raises(PenstockError, match=words) as caught:
        catalog.validate(kind, key, value)
    assert caught.value.code is code
    assert "\n" not in caught.value.message


def test_what_is_right_passes() -> None:
    catalog.validate(CLUSTER, "min.insync.replicas", "1")
    catalog.validate(NODE, "log.retention.ms", "-1")
    catalog.validate(GROUP, "consumer.heartbeat.interval.ms", "3000")
    catalog.validate_together(GROUP, {"consumer.heartbeat.interval.ms": "15000"})
    with pytest.raises(PenstockError, match="must be more than"):
        catalog.validate_together(
            GROUP, {"consumer.heartbeat.interval.ms": "9000", "consumer.session.timeout.ms": "8000"}
        )


def test_lists() -> None:
    assert catalog.is_list(TOPIC, "cleanup.policy")
    assert catalog.is_list(CLUSTER, "log.cleanup.policy")
    assert not catalog.is_list(TOPIC, "retention.ms")
    assert not catalog.is_list(GROUP, "cleanup.policy")
    assert catalog.default_of(CLUSTER, "log.cleanup.policy") == "delete"


def test_a_node_feeds_and_takes_as_fast_as_its_own_settings_or_the_clusters_allow() -> None:
    of = image(
        (CLUSTER, "", catalog.LEADER_RATE, "500"),
        (NODE, "1", catalog.LEADER_RATE, "300"),
        (NODE, "2", catalog.FOLLOWER_RATE, "200"),
    )
    assert catalog.throttled_rate(of, ONE, catalog.LEADER_RATE) == 300
    assert catalog.throttled_rate(of, NodeId(2), catalog.LEADER_RATE) == 500
    assert catalog.throttled_rate(of, NodeId(2), catalog.FOLLOWER_RATE) == 200
    assert catalog.throttled_rate(of, ONE, catalog.FOLLOWER_RATE) == LONG_MAX
    assert entry(catalog.describe_node(of, ONE), catalog.LEADER_RATE).value == "300"
    catalog.validate(NODE, catalog.LEADER_RATE, "0")
    catalog.validate(TOPIC, "leader.replication.throttled.replicas", "0:1,1:2")
    with pytest.raises(PenstockError, match="partition:node"):
        catalog.validate(TOPIC, "leader.replication.throttled.replicas", "everywhere")


def test_settings_of_transactions_count_at_once_for_a_node_or_for_all() -> None:
    day_ms = 86_400_000
    assert catalog.producer_expiration_ms(image(), ONE) == day_ms
    assert catalog.verifies_partitions(image(), ONE)
    of = image(
        (CLUSTER, "", catalog.PRODUCER_EXPIRATION, "5000"),
        (NODE, "1", catalog.PRODUCER_EXPIRATION, "3000"),
        (CLUSTER, "", catalog.VERIFICATION, "FALSE"),
        (NODE, "1", catalog.VERIFICATION, "true"),
    )
    assert [catalog.producer_expiration_ms(of, NodeId(n)) for n in (1, 2)] == [3_000, 5_000]
    assert [catalog.verifies_partitions(of, NodeId(n)) for n in (1, 2)] == [True, False]
    assert entry(catalog.describe_node(of, ONE), catalog.VERIFICATION).value == "true"
    for key, value in (
        (catalog.PRODUCER_EXPIRATION, "0"),
        (catalog.PRODUCER_EXPIRATION, str(2**31)),
        (catalog.VERIFICATION, "maybe"),
        ("transaction.max.timeout.ms", "1"),
    ):
        with pytest.raises(PenstockError) as refused:
            catalog.validate(NODE, key, value)
        assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_what_is_taken_counts_as_it_was_read() -> None:
    """Blanks and signs that the check lets through count no less when the value is used."""
    for text in (" 7 ", "+7"):
        catalog.validate(NODE, catalog.LEADER_RATE, text)
        of = image((NODE, "1", catalog.LEADER_RATE, text))
        assert catalog.throttled_rate(of, ONE, catalog.LEADER_RATE) == 7
    catalog.validate(GROUP, "consumer.session.timeout.ms", " 7000")
    of = image((GROUP, "g", "consumer.session.timeout.ms", " 7000"))
    assert catalog.group_interval_ms(of, "g", "consumer.session.timeout.ms", 1) == 7000
    for text in ("\u0667", "7_0", ""):
        with pytest.raises(PenstockError):
            catalog.validate(NODE, catalog.LEADER_RATE, text)


def test_a_topics_settings_must_agree() -> None:
    with pytest.raises(PenstockError, match=r"max\.compaction\.lag\.ms=5"):
        catalog.validate_together(TOPIC, {"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})
