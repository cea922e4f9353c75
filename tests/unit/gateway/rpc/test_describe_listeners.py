"""Which of a node's own Kafka listeners Describe names, and to whom."""

from __future__ import annotations

from penstock_core.metadata.image import Endpoint, MetadataImage
from penstock_gateway.rpc.describe import describe, node_listeners
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import gateway_pb2 as pb
from penstock_proto.v1 import metadata_pb2

LISTENERS = (
    common.Endpoint(listener="DIRECT", host="10.0.0.1", port=9192),
    common.Endpoint(listener="INSIDE", host="127.0.0.1", port=9193, security="PLAINTEXT"),
    common.Endpoint(listener="SECURE", host="node-1", port=9194, security="SASL_SSL"),
)
DIRECT = {"DIRECT": "PLAINTEXT", "INSIDE": "PLAINTEXT", "SECURE": "SASL_SSL"}


def image(*listeners: common.Endpoint) -> MetadataImage:
    record = metadata_pb2.NodeRecord(
        node_id=1, grpc=common.Endpoint(host="node-1", port=7002), listeners=listeners
    )
    return MetadataImage.from_records([metadata_pb2.MetadataRecord(node=record)], 1)


def named(
    direct: dict[str, str], client_host: str, *listeners: common.Endpoint
) -> list[tuple[str, str, int, str]]:
    found = describe(
        image(*listeners),
        pb.DescribeRequest(),
        [Endpoint("", "127.0.0.1", 9094)],
        lambda names: names,
        lambda node: node_listeners(node, direct, client_host),
    )
    (node,) = found.nodes
    return [(e.listener, e.host, e.port, e.security) for e in node.kafka]


def test_those_of_the_gateways_own_direct_listeners() -> None:
    assert named(DIRECT, "127.0.0.1", *LISTENERS) == [
        ("DIRECT", "10.0.0.1", 9192, "PLAINTEXT"),
        ("INSIDE", "127.0.0.1", 9193, "PLAINTEXT"),
        ("SECURE", "node-1", 9194, "SASL_SSL"),
    ]
    assert named({"SECURE": "SASL_SSL"}, "127.0.0.1", *LISTENERS) == [("SECURE", "node-1", 9194, "SASL_SSL")]


def test_none_where_only_gateways_reach_the_node() -> None:
    assert named({}, "127.0.0.1", *LISTENERS) == []
    assert named(DIRECT, "127.0.0.1") == []


def test_a_listener_of_another_security_is_named_to_nobody() -> None:
    assert named({"DIRECT": "SASL_SSL", "SECURE": "PLAINTEXT"}, "127.0.0.1", *LISTENERS) == []


def test_loopback_is_not_named_to_clients_from_outside() -> None:
    assert [name for name, *_ in named(DIRECT, "10.0.0.9", *LISTENERS)] == ["DIRECT", "SECURE"]
    assert [name for name, *_ in named(DIRECT, "", *LISTENERS)] == ["DIRECT", "SECURE"]
