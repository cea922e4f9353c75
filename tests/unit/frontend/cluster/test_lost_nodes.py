"""librdkafka is named nodes that died: at a gateway while they are registered, at a node's listener for a while."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, cast

import pytest

from penstock_core.metadata.image import MetadataImage, NodeImage
from penstock_frontend.cluster.lost_nodes import NAMED_MS, LostNodes
from penstock_frontend.listener.connection import Connection
from penstock_proto.v1 import common_pb2, metadata_pb2

PYTHON = "confluent-kafka-python 2.16.1-rdkafka-2.16.0"
JAVA = "apache-kafka-java 4.3.1"


def image(*fenced: int, nodes: tuple[int, ...] = (1, 2, 3)) -> MetadataImage:
    return MetadataImage.from_records(
        [
            metadata_pb2.MetadataRecord(
                node=metadata_pb2.NodeRecord(
                    node_id=node_id,
                    fenced=node_id in fenced,
                    listeners=[common_pb2.Endpoint(listener="DIRECT", host="node", port=9000 + node_id)],
                )
            )
            for node_id in nodes
        ],
        1,
    )


def client(software: str = PYTHON) -> Connection:
    class Client:
        """As much of a connection as is looked at."""

        def __init__(self) -> None:
            self.state: dict[str, Any] = {"client_software": software}

    return cast(Connection, Client())


class Gateway:
    """One address for all nodes."""

    def node_address(self, connection: Connection, node: NodeImage) -> tuple[str, int] | None:
        return "gateway", 9092

    def view_key(self, connection: Connection) -> Hashable:
        return ""

    def apis(self, image: MetadataImage) -> Mapping[int, tuple[int, int]]:
        return {}


class Direct(Gateway):
    """Each node's own; the third has none on this listener."""

    def node_address(self, connection: Connection, node: NodeImage) -> tuple[str, int] | None:
        found = node.listeners["DIRECT"]
        return None if node.node_id == 3 else (found.host, found.port)


class Rig:
    """The object and its clock."""

    def __init__(self, addresses: Gateway) -> None:
        self.now_ms = 1_000
        self.image = image()
        self.lost = LostNodes(addresses, lambda: self.now_ms)
        self.change(image())

    def change(self, new: MetadataImage) -> None:
        self.lost.metadata_changed(self.image, new)
        self.image = new


@pytest.fixture
def gateway() -> Rig:
    return Rig(Gateway())


@pytest.fixture
def direct() -> Rig:
    return Rig(Direct())


def test_a_gateway_names_a_dead_node_to_librdkafka_while_it_is_registered(gateway: Rig) -> None:
    assert gateway.lost.named(client()) == frozenset()
    gateway.change(image(2))
    assert gateway.lost.named(client()) == {2}
    assert gateway.lost.named(client(JAVA)) == frozenset()
    gateway.now_ms += 10 * NAMED_MS
    assert gateway.lost.named(client()) == {2}
    gateway.change(image(nodes=(1, 3)))
    assert gateway.lost.named(client()) == frozenset()


def test_a_node_names_a_dead_one_for_a_while(direct: Rig) -> None:
    direct.change(image(2))
    direct.now_ms += NAMED_MS - 1
    direct.change(image(2, nodes=(1, 2, 3, 4)))
    assert direct.lost.named(client()) == {2}
    direct.now_ms += 1
    assert direct.lost.named(client()) == frozenset()


def test_each_death_counts_for_itself(direct: Rig) -> None:
    direct.change(image(2))
    direct.now_ms += NAMED_MS
    direct.change(image())
    direct.change(image(2))
    assert direct.lost.named(client()) == {2}


def test_a_node_without_an_address_for_the_client_is_not_named(direct: Rig) -> None:
    direct.change(image(3))
    assert direct.lost.named(client()) == frozenset()
