"""What the gateway's handler makes of requests, before any is sent: who relays which API."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Hashable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from penstock_core.errors import InvariantBroken
from penstock_core.metadata.image import MetadataImage, NodeImage
from penstock_frontend.authorizer import AllowAll
from penstock_frontend.cluster.apis import ClusterApis
from penstock_frontend.listener.listener import Connection
from penstock_frontend.producer_ids import ProducerIdAllocator
from penstock_gateway.kafka import handler as handler_module
from penstock_gateway.kafka.handler import RELAYED, GatewayHandler
from penstock_gateway.relay.request import HopTimes
from penstock_kafka.wire.apis import RELAYED_ROUTES, SPECS, SUPPORTED, ApiKey, Route
from penstock_kafka.wire.frames import RequestHeader
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


class AskedNodes:
    """A client's relay, which keeps what it was given."""

    waiting_count = 0

    def __init__(self) -> None:
        self.requests: list[Asked] = []

    def submit(self, request: Asked) -> None:
        self.requests.append(request)


class Asked:
    """A relayed request."""

    def __init__(self, header: RequestHeader, frame: bytearray, finish: Callable[[bytes], None]) -> None:
        self.finish = finish
        self.times = HopTimes()


async def test_an_answer_is_freed_as_soon_as_it_is_written(
    rig: RelayRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the garbage collector: megabytes of answers to consumers doubled a gateway's memory until it came."""
    monkeypatch.setitem(RELAYED, ApiKey.FETCH, Asked)
    monkeypatch.setattr(handler_module, "admit", lambda *_: RequestHeader(ApiKey.FETCH, 12, 7, None, 0))
    cluster, nodes = cluster_apis(rig), AskedNodes()
    connection: Any = SimpleNamespace(state={"relay": nodes})
    gc.disable()
    try:
        answer: Any = GatewayHandler(rig.relay, cluster, cluster).handle(connection, bytearray())
        nodes.requests.pop().finish(b"records")
        assert await answer == b"records"
        answer.on_written()
        left = weakref.ref(answer)
        del answer
        assert left() is None
    finally:
        gc.enable()
