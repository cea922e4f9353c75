"""What the gateway's handler makes of requests, before any is sent: who relays which API."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import pytest

from penstock_core.errors import InvariantBroken
from penstock_core.metadata.image import MetadataImage, NodeImage
from penstock_frontend.authorizer import AllowAll
from penstock_frontend.cluster.apis import ClusterApis
from penstock_frontend.listener.listener import Connection
from penstock_frontend.producer_ids import ProducerIdAllocator
from penstock_gateway.kafka.handler import RELAYED, GatewayHandler
from penstock_kafka.wire.apis import RELAYED_ROUTES, SPECS, SUPPORTED, ApiKey, Route
from penstock_runtime.controller_client import ControllerClient
from support.kafka_specs import change_spec
from unit.gateway.conftest import RelayRig


class Nowhere:
    def node_address(self, connection: Connection, node: NodeImage) -> tuple[str, int] | None:
        return None

    def view_key(self, connection: Connection) -> Hashable:
        return None

    def apis(self, image: MetadataImage) -> Mapping[int, tuple[int, int]]:
        return SUPPORTED


def cluster_apis(rig: RelayRig) -> ClusterApis:
    client = ControllerClient(["127.0.0.1:1"], "test", rig.channels)
    ids = ProducerIdAllocator(client, "test")
    return ClusterApis(rig.metadata, client, ids, Nowhere(), AllowAll(), rig.metrics.kafka)


@pytest.mark.parametrize("key", [ApiKey.DELETE_RECORDS, ApiKey.LEAVE_GROUP, ApiKey.LIST_GROUPS])
async def test_an_api_of_storage_nodes_that_no_class_relays_is_found_at_the_start(
    rig: RelayRig, monkeypatch: pytest.MonkeyPatch, key: ApiKey
) -> None:
    cluster = cluster_apis(rig)
    GatewayHandler(rig.relay, cluster, cluster)
    monkeypatch.delitem(RELAYED, key)
    wanted = f"^requests that the gateway relays: {SPECS[key].name} .* has no entry"
    with pytest.raises(InvariantBroken, match=wanted):
        GatewayHandler(rig.relay, cluster, cluster)


@pytest.mark.parametrize("route", [route for route in Route if route in RELAYED_ROUTES])
async def test_an_api_that_is_only_described_is_found_at_the_start(
    rig: RelayRig, monkeypatch: pytest.MonkeyPatch, route: Route
) -> None:
    cluster = cluster_apis(rig)
    change_spec(monkeypatch, ApiKey.METADATA, route=route)
    with pytest.raises(InvariantBroken, match=r"Metadata .* has no entry"):
        GatewayHandler(rig.relay, cluster, cluster)


async def test_nothing_is_relayed_that_is_answered_here(
    rig: RelayRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = cluster_apis(rig)
    monkeypatch.setitem(RELAYED, ApiKey.METADATA, RELAYED[ApiKey.FETCH])
    with pytest.raises(InvariantBroken, match=r"Metadata \(route gateway\) has an entry too many"):
        GatewayHandler(rig.relay, cluster, cluster)
