"""`__consumer_offsets` and `__transaction_state`: how they are made, and what cannot be changed of them."""

from __future__ import annotations

import random

import pytest

from penstock_controller.state import configs, topics
from penstock_controller.state.generation import Context, Defaults, topic_settings
from penstock_core.config.catalog import ConfigSource, describe_topic
from penstock_core.errors import ErrorCode
from penstock_core.metadata import MetadataImage
from penstock_core.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb

BOTH = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)


def context(of: MetadataImage) -> Context:
    return Context(of, random.Random(5), Defaults(offsets_partition_count=4, transactions_partition_count=7))


def nodes(count: int) -> MetadataImage:
    records = [pb.MetadataRecord(cluster=pb.ClusterRecord(cluster_id=b"c" * 16))]
    for n in range(1, count + 1):
        records.append(pb.MetadataRecord(node=pb.NodeRecord(node_id=n, directory_id=bytes([n]) * 16)))
    return MetadataImage.from_records(records, 10)


def create(of: MetadataImage, name: str, **settings: str) -> tuple[MetadataImage, api.CreatedTopic]:
    topic = api.NewTopic(name=name, partition_count=-1, replication_factor=-1)
    for key, value in settings.items():
        topic.configs[key.replace("_", ".")] = value
    made = topics.create_topics(context(of), api.CreateTopicsRequest(topics=[topic]))
    return (of.apply(made.all_records(), of.version + 1) if made.further else of), made.reply.topics[0]


def alter(of: MetadataImage, kind: str, name: str, key: str, value: str | None) -> tuple[MetadataImage, int]:
    change = api.ConfigChange(key=key) if value is None else api.ConfigChange(key=key, value=value)
    resource = api.ConfigResource(resource_type=kind, resource_name=name, changes=[change])
    made = configs.alter_configs(context(of), api.AlterConfigsRequest(resources=[resource]))
    records = made.all_records()
    return (of.apply(records, of.version + 1) if records else of), made.reply.results[0].code


@pytest.mark.parametrize(("node_count", "factor", "least"), [(1, 1, 1), (2, 2, 2), (5, 3, 2)])
def test_transaction_state_as_it_is_made(node_count: int, factor: int, least: int) -> None:
    of, reply = create(nodes(node_count), TRANSACTIONS_TOPIC)
    assert (reply.partition_count, reply.replication_factor) == (7, factor)
    topic = of.topic(TRANSACTIONS_TOPIC)
    assert topic is not None
    settings = topic_settings(of, topic)
    assert settings.is_compacted and not settings.is_deleted_by_retention
    assert settings.compression_type == "uncompressed"
    assert settings.segment_bytes == 104857600
    assert settings.min_insync_replicas == least
    assert settings.is_fsync and not settings.unclean_leader_election_enable


def test_offsets_as_they_are_made() -> None:
    of, reply = create(nodes(3), OFFSETS_TOPIC)
    assert (reply.partition_count, reply.replication_factor) == (4, 3)
    assert of.config("topic", OFFSETS_TOPIC) == {"cleanup.policy": "compact", "segment.bytes": "104857600"}


@pytest.mark.parametrize("name", BOTH)
def test_they_never_get_more_partitions(name: str) -> None:
    of, _ = create(nodes(3), name)
    request = api.CreatePartitionsRequest(topics=[api.NewPartitions(name=name, total_count=60)])
    made = topics.create_partitions(context(of), request)
    assert made.reply.topics[0].error.code == ErrorCode.INVALID_PARTITIONS
    assert name in made.reply.topics[0].error.message
    assert not made.further


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        (OFFSETS_TOPIC, "penstock.durability", "replicated"),
        (TRANSACTIONS_TOPIC, "penstock.durability", "replicated"),
        (TRANSACTIONS_TOPIC, "unclean.leader.election.enable", " TRUE"),
    ],
)
def test_what_they_need_cannot_be_taken_off_them(name: str, key: str, value: str) -> None:
    of, reply = create(nodes(3), name, **{key: value})
    assert reply.error.code == ErrorCode.INVALID_CONFIG
    of, _ = create(nodes(3), name)
    after, code = alter(of, "topic", name, key, value)
    assert code == ErrorCode.INVALID_CONFIG
    assert after is of
    # Neither by removing what they were made with, nor by a default of the cluster.
    of, code = alter(of, "topic", name, key, None)
    assert code == 0
    of, code = alter(of, "cluster", "", key, value.strip().lower())
    assert code == 0
    topic = of.topic(name)
    assert topic is not None
    settings = topic_settings(of, topic)
    assert settings.is_fsync
    assert name == OFFSETS_TOPIC or not settings.unclean_leader_election_enable
    shown = next(entry for entry in describe_topic(of, name) if entry.name == key)
    assert shown.value in ("fsync", "false") and shown.source is ConfigSource.DEFAULT


@pytest.mark.parametrize("name", BOTH)
def test_other_settings_of_them_may_be_changed(name: str) -> None:
    of, _ = create(nodes(3), name)
    of, code = alter(of, "topic", name, "segment.bytes", "1000000")
    assert code == 0
    of, code = alter(of, "topic", name, "penstock.durability", "fsync")
    assert code == 0
    assert of.config("topic", name)["segment.bytes"] == "1000000"


def test_what_an_earlier_build_let_be_set_counts_no_more() -> None:
    of, _ = create(nodes(3), OFFSETS_TOPIC)
    row = pb.ConfigRecord(
        resource_type="topic", resource_name=OFFSETS_TOPIC, key="penstock.durability", value="replicated"
    )
    of = of.apply([pb.MetadataRecord(config=row)], of.version + 1)
    topic = of.topic(OFFSETS_TOPIC)
    assert topic is not None
    assert topic_settings(of, topic).is_fsync
    # It is in the way of no other change.
    _, code = alter(of, "topic", OFFSETS_TOPIC, "segment.bytes", "1000000")
    assert code == 0
