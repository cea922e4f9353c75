"""What a gateway advertises, its settings, its REST documents."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from penstock_core.metadata.image import MetadataImage
from penstock_frontend.authorizer import AllowAll
from penstock_gateway.http.rest import cluster_document, routes, topic_document, topics_document
from penstock_gateway.role import advertised_apis, has_shrunk
from penstock_gateway.settings import GatewaySettings
from penstock_kafka.wire.apis import SUPPORTED, ApiKey
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.addresses import StartupError
from penstock_runtime.settings import load_settings


def node(node_id: int, **ranges: tuple[int, int]) -> pb.MetadataRecord:
    apis = dict(SUPPORTED) | {int(ApiKey[name.upper()]): r for name, r in ranges.items()}
    return pb.MetadataRecord(
        node=pb.NodeRecord(
            node_id=node_id,
            grpc=common.Endpoint(host="127.0.0.1", port=5000 + node_id),
            process=common.ProcessInfo(version="0.1.0"),
            apis=[common.ApiRange(api_key=k, min_version=a, max_version=b) for k, (a, b) in apis.items()],
        )
    )


def cluster(*records: pb.MetadataRecord) -> MetadataImage:
    topic = pb.MetadataRecord(topic=pb.TopicRecord(topic_id=b"t" * 16, name="flights"))
    partition = pb.MetadataRecord(
        partition=pb.PartitionRecord(topic_id=b"t" * 16, partition=0, leader=1, replicas=[1, 2], isr=[1])
    )
    config = pb.MetadataRecord(
        config=pb.ConfigRecord(resource_type="topic", resource_name="flights", key="retention.ms", value="5")
    )
    gateway = pb.MetadataRecord(
        gateway=pb.GatewayRecord(
            gateway_id="gateway-1",
            grpc=common.Endpoint(host="127.0.0.1", port=9094),
            listeners=[
                pb.GatewayListener(
                    name="PROXY",
                    mode="proxy",
                    advertised=[pb.AdvertisedAddress(network="*", host="", port=9092)],
                )
            ],
        )
    )
    head = pb.MetadataRecord(cluster=pb.ClusterRecord(cluster_id=b"c" * 16))
    return MetadataImage.from_records([head, *records, gateway, topic, partition, config], 7)


def test_versions_are_what_every_node_answers() -> None:
    alone = advertised_apis(MetadataImage())
    assert alone[ApiKey.FETCH] == SUPPORTED[ApiKey.FETCH]
    mixed = advertised_apis(cluster(node(1), node(2, fetch=(4, 12), metadata=(0, 1))))
    assert mixed[ApiKey.FETCH] == (4, 12)
    assert mixed[ApiKey.METADATA] == SUPPORTED[ApiKey.METADATA]  # answered here
    assert ApiKey.LIST_OFFSETS not in advertised_apis(cluster(node(1, list_offsets=(90, 91))))
    assert not has_shrunk(mixed, alone)
    assert has_shrunk(alone, mixed)
    assert has_shrunk(mixed, {})


def test_documents() -> None:
    image = cluster(node(1), node(2))
    document = cluster_document(image, 12)
    assert json.loads(json.dumps(document)) == document
    assert [n["state"] for n in document["nodes"]] == ["live", "live"]
    assert document["gateways"][0]["listeners"][0]["advertised"] == [{"network": "*", "address": "auto"}]
    assert topics_document(image, ["flights"])["topics"][0]["under_replicated_partition_count"] == 1
    topic = image.topic("flights")
    assert topic is not None
    assert topic_document(image, topic)["config"] == {"retention.ms": "5"}


async def test_rest_answers_and_says_what_is_wrong() -> None:
    image = MetadataImage()
    app = web.Application()
    app.add_routes(routes(lambda: image, lambda: 0, AllowAll()))

    async def get(client: Any, path: str) -> tuple[int, Any]:
        async with client.get(path) as response:
            return response.status, await response.json()

    async with TestClient(TestServer(app)) as client:
        assert (await get(client, "/v1/cluster"))[0] == 503
        image = cluster(node(1))
        assert (await get(client, "/v1/cluster"))[1]["metadata_version"] == 7
        status, body = await get(client, "/v1/topics/flights")
        assert (status, body["partitions"][0]["leader"]) == (200, 1)
        for path, status in (("/v1/topics/nope", 404), ("/v1/topics/no%20pe", 400), ("/v1/what", 404)):
            got, body = await get(client, path)
            assert got == status
            assert set(body) == {"error", "hint"}


def test_settings() -> None:
    settings = load_settings(GatewaySettings, ["--controllers", "127.0.0.1:1"], "gateway")
    assert [(s.name, s.bind, s.mode) for s in settings.listeners] == [
        ("PROXY", "127.0.0.1:9092", "proxy"),
        ("DIRECT", "127.0.0.1:9192", "direct"),
    ]
    table = '[{"name": "PROXY", "bind": "0.0.0.0:9092", "advertised": {"host-gateway": "localhost:9092", "*": "auto"}}]'
    assert load_settings(GatewaySettings, ["--listeners", table], "gateway").listeners[0].name == "PROXY"
    for flags, words in (
        (["--listeners", "[]"], "a gateway needs a listener"),
        (["--gateway-id", "a b"], "gateway-id"),
        (
            ["--listeners", '[{"name": "P", "bind": "127.0.0.1:1", "security": "SSL"}]'],
            "security = SSL needs tls",
        ),
    ):
        with pytest.raises(StartupError, match=words):
            load_settings(GatewaySettings, flags, "gateway")
