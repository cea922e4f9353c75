"""Settings of topics, nodes, the cluster and groups by three stock admin clients, at both kinds of address."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource as AioResource
from aiokafka.admin.config_resource import ConfigResourceType as AioType
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from kafka.admin import ConfigResource as KafkaPythonResource
from kafka.admin import ConfigResourceType as KafkaPythonType
from kafka.admin import KafkaAdminClient

from penstock.cli import wire
from penstock.local.cluster import LocalCluster
from support.kafka import client_config, create_topic, node_address
from support.waiting import wait_for

TIMEOUT_S = 90.0
BROKER = ResourceType.BROKER
TOPIC = ResourceType.TOPIC
MISSING = "no-such-topic"


@pytest.fixture(params=["proxy", "direct"])
def bootstrap(shared_cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    """A gateway's address, and a storage node's own."""
    return (
        shared_cluster.bootstrap
        if request.param == "proxy"
        else node_address(shared_cluster.direct_bootstrap)
    )


@pytest.fixture
def topic(shared_cluster: LocalCluster) -> str:
    """A topic of one partition and three replicas that sets retention.ms, and that every node knows."""
    name = f"settings-{uuid.uuid4().hex[:8]}"
    create_topic(shared_cluster.bootstrap, name, 1, 3, retention_ms="86400000")
    client = admin(shared_cluster.direct_bootstrap)

    def known(node: int) -> bool:
        (future,) = client.describe_configs(
            [ConfigResource(TOPIC, name)], request_timeout=TIMEOUT_S, broker=node
        ).values()
        return future.exception(TIMEOUT_S) is None

    for node in (1, 2, 3):
        wait_for(partial(known, node), f"node {node} knows {name}", TIMEOUT_S)
    return name


def admin(bootstrap: str) -> AdminClient:
    return AdminClient(client_config(bootstrap))


def described(client: AdminClient, kind: Any, name: str) -> dict[str, Any]:
    (future,) = client.describe_configs([ConfigResource(kind, name)], request_timeout=TIMEOUT_S).values()
    result: dict[str, Any] = future.result(TIMEOUT_S)
    return result


def settled(client: AdminClient, kind: Any, name: str, key: str, value: str | None) -> Any:
    """The setting once it has that value wherever the client asks: who did not do it hears of it soon."""

    def there() -> Any:
        entry = described(client, kind, name).get(key)
        return entry if entry is not None and entry.value == value else None

    return wait_for(there, f"{key}={value} of {name or 'the cluster'}", TIMEOUT_S)


def alter(client: AdminClient, kind: Any, name: str, *entries: ConfigEntry, check: bool = False) -> None:
    resource = ConfigResource(kind, name, incremental_configs=list(entries))
    (future,) = client.incremental_alter_configs(
        [resource], request_timeout=TIMEOUT_S, validate_only=check
    ).values()
    future.result(TIMEOUT_S)


def put(key: str, value: str) -> ConfigEntry:
    return ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)


def unset(key: str) -> ConfigEntry:
    return ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE)


def for_all(bootstrap: str, key: str, value: str | None) -> None:
    """The cluster's default; librdkafka has no way to name it."""
    wire.alter_configs(bootstrap, "cluster", "", [(key, value)])


@contextmanager
def refused(code: int) -> Iterator[None]:
    with pytest.raises(KafkaException) as caught:
        yield
    assert caught.value.args[0].code() == code, caught.value


def test_topic_settings_with_sources_and_synonyms(bootstrap: str, topic: str) -> None:
    client = admin(bootstrap)
    found = described(client, TOPIC, topic)
    own, default = found["retention.ms"], found["segment.bytes"]
    assert (own.value, own.source, own.is_read_only) == (
        "86400000",
        ConfigSource.DYNAMIC_TOPIC_CONFIG.value,
        False,
    )
    assert (default.value, default.source) == ("1073741824", ConfigSource.DEFAULT_CONFIG.value)
    assert list(own.synonyms) == ["retention.ms"]
    # Ours is 2 where there are three replicas.
    assert found["min.insync.replicas"].value == "2"

    alter(client, TOPIC, topic, put("max.message.bytes", "2000"), unset("retention.ms"))
    settled(client, TOPIC, topic, "max.message.bytes", "2000")
    settled(client, TOPIC, topic, "retention.ms", "604800000")
    wait_for(lambda: too_large(bootstrap, topic, 5_000), "the leader refuses what is too large", TIMEOUT_S)
    # Checked only: nothing changes.
    alter(client, TOPIC, topic, put("max.message.bytes", "3000"), check=True)
    settled(client, TOPIC, topic, "max.message.bytes", "2000")
    # Lists: what is not set begins with its default.
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
    alter(client, TOPIC, topic, entry)
    settled(client, TOPIC, topic, "cleanup.policy", "delete,compact")


def too_large(bootstrap: str, topic: str, size: int) -> bool:
    """Whether the leader refuses a record of that size."""
    outcome: list[KafkaError | None] = []
    producer = Producer(client_config(bootstrap))
    producer.produce(topic, b"x" * size, on_delivery=lambda error, _: outcome.append(error))
    producer.flush(TIMEOUT_S)
    assert len(outcome) == 1
    if outcome[0] is None:
        return False
    assert outcome[0].code() == KafkaError.MSG_SIZE_TOO_LARGE, outcome[0]
    return True


def test_refusals_have_kafkas_codes(bootstrap: str, topic: str) -> None:
    client = admin(bootstrap)
    with refused(KafkaError.UNKNOWN_TOPIC_OR_PART):
        described(client, TOPIC, MISSING)
    with refused(KafkaError.INVALID_CONFIG):
        alter(client, TOPIC, topic, put("no.such.setting", "1"))
    with refused(KafkaError.INVALID_CONFIG):
        alter(client, TOPIC, topic, put("retention.ms", "soon"))
    with refused(KafkaError.INVALID_CONFIG):
        alter(
            client,
            TOPIC,
            topic,
            ConfigEntry("retention.ms", "5", incremental_operation=AlterConfigOpType.APPEND),
        )
    with refused(KafkaError.UNKNOWN_TOPIC_OR_PART):
        alter(client, TOPIC, MISSING, put("retention.ms", "5"))
    # A node's own, and what must be one for all nodes.
    with refused(KafkaError.INVALID_REQUEST):
        alter(client, BROKER, "1", put("log.dirs", "/elsewhere"))
    with refused(KafkaError.INVALID_REQUEST):
        alter(client, BROKER, "1", put("min.insync.replicas", "1"))


def test_a_node_shows_what_it_runs_with(bootstrap: str) -> None:
    found = described(admin(bootstrap), BROKER, "2")
    assert (found["node.id"].value, found["node.id"].is_read_only) == ("2", True)
    assert found["log.dirs"].value
    assert (found["log.retention.ms"].value, found["log.retention.ms"].is_read_only) == ("604800000", False)


def test_cluster_and_node_settings_are_defaults_of_topics(
    shared_cluster: LocalCluster, bootstrap: str, topic: str
) -> None:
    client = admin(bootstrap)
    # A value that no other test of the shared cluster minds.
    try:
        for_all(bootstrap, "message.max.bytes", "900000")
        entry = settled(client, TOPIC, topic, "max.message.bytes", "900000")
        assert entry.source == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG.value
        assert list(entry.synonyms) == ["message.max.bytes"]
        for node in ("1", "2", "3"):
            alter(client, BROKER, node, put("message.max.bytes", "950000"))
        entry = settled(client, BROKER, "3", "message.max.bytes", "950000")
        assert entry.source == ConfigSource.DYNAMIC_BROKER_CONFIG.value
        # A node describes a topic as it counts there.
        direct = admin(shared_cluster.direct_bootstrap)
        entry = settled(direct, TOPIC, topic, "max.message.bytes", "950000")
        assert entry.source == ConfigSource.DYNAMIC_BROKER_CONFIG.value
        wait_for(lambda: not too_large(bootstrap, topic, 920_000), "the leader takes more", TIMEOUT_S)
        wait_for(lambda: too_large(bootstrap, topic, 960_000), "and not too much", TIMEOUT_S)
    finally:
        for node in ("1", "2", "3"):
            alter(client, BROKER, node, unset("message.max.bytes"))
        for_all(bootstrap, "message.max.bytes", None)
    settled(client, TOPIC, topic, "max.message.bytes", "1048588")


def test_kafka_python(bootstrap: str, topic: str) -> None:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        found = client.describe_configs([kafka_python_resource("TOPIC", topic)])
        assert "retention.ms" in str(found)
        client.alter_configs([kafka_python_resource("TOPIC", topic, {"segment.ms": "7200000"})])

        def changed() -> bool:
            return "7200000" in str(client.describe_configs([kafka_python_resource("TOPIC", topic)]))

        wait_for(changed, "the new setting is shown", TIMEOUT_S)
        assert "log.retention.ms" in str(
            client.describe_configs([kafka_python_resource("BROKER", "1")], config_filter="all")
        )
    finally:
        client.close()


def kafka_python_resource(kind: str, name: str, configs: dict[str, str] | None = None) -> Any:
    return KafkaPythonResource(KafkaPythonType[kind], name, configs=configs)


def test_aiokafka_replaces_all_that_is_set(bootstrap: str, topic: str) -> None:
    async def scenario() -> str:
        client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await client.start()
        try:
            resource = AioResource(AioType.TOPIC, topic, configs={"segment.ms": "7200000"})
            await client.alter_configs([resource])
            return str(await client.describe_configs([AioResource(AioType.TOPIC, topic)]))
        finally:
            await client.close()

    assert "segment.ms" in asyncio.run(scenario())
    settled(admin(bootstrap), TOPIC, topic, "segment.ms", "7200000")
    # Not named, so no longer set: the default again.
    settled(admin(bootstrap), TOPIC, topic, "retention.ms", "604800000")


def test_group_settings(bootstrap: str) -> None:
    client, group = admin(bootstrap), f"billing-{uuid.uuid4().hex[:8]}"
    name = "consumer.session.timeout.ms"
    assert described(client, ResourceType.GROUP, group)[name].value == "45000"
    alter(client, ResourceType.GROUP, group, put(name, "60000"))
    entry = settled(client, ResourceType.GROUP, group, name, "60000")
    assert list(entry.synonyms) == [name, "group.consumer.session.timeout.ms"]
    with refused(KafkaError.INVALID_CONFIG):
        alter(client, ResourceType.GROUP, group, put(name, "4000"))
    with refused(KafkaError.INVALID_CONFIG):
        alter(client, ResourceType.GROUP, group, put("share.auto.offset.reset", "latest"))
