"""CreateTopic over real gRPC: rights, quotas, and what the controllers say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock_core.metadata.image import Endpoint
from penstock_frontend.authorizer import AllowAll, Identity, Operation, ResourceType
from penstock_gateway.rpc.service import GatewayService
from penstock_proto.v1 import controller_pb2, gateway_pb2_grpc
from penstock_proto.v1 import gateway_pb2 as pb
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.grpc_server import serve
from penstock_runtime.grpc_tools import ChannelPool
from unit.runtime.fake_controllers import FakeController, controllers

Rig = Any
Stub = Any


class Nobody(AllowAll):
    """Who may do nothing but what `may` has."""

    is_enabled = True

    def __init__(self, may: set[tuple[Operation, ResourceType]]) -> None:
        self.may = may

    def allows(self, who: Identity, operation: Operation, kind: ResourceType, name: str) -> bool:
        return (operation, kind) in self.may

    authorize = allows


@asynccontextmanager
async def gateway(rig: Rig, addresses: list[str] | None) -> AsyncIterator[Stub]:
    channels = ChannelPool()
    client = None if addresses is None else ControllerClient(addresses, "gateway-1", channels)
    service = GatewayService(rig.relay, lambda: Endpoint("", "127.0.0.1", 9094), controllers=client)
    server, endpoint = await serve("127.0.0.1:0", service.add_to, allow_insecure_bind=False)
    try:
        async with grpc.aio.insecure_channel(endpoint.address) as channel:
            yield gateway_pb2_grpc.GatewayStub(channel)
    finally:
        await server.stop(None)
        await channels.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[controller_pb2.CreateTopicsRequest]:
    """What the controllers were asked for."""
    requests: list[controller_pb2.CreateTopicsRequest] = []
    create = FakeController.CreateTopics

    async def noted(self: FakeController, request: Any, context: Any) -> Any:
        requests.append(request)
        return await create(self, request, context)

    monkeypatch.setattr(FakeController, "CreateTopics", noted)
    return requests


async def test_a_topic_is_made_once(rig: Rig, asked: list[controller_pb2.CreateTopicsRequest]) -> None:
    async with controllers(1) as (cluster, members), gateway(rig, [members[0].endpoint.address]) as stub:
        made = await stub.CreateTopic(pb.CreateTopicRequest(name="copy", partitions=12))
        assert (made.error.code, made.partitions) == (0, 12)
        assert made.topic_id == cluster.image.topic_ids["copy"]
        again = await stub.CreateTopic(pb.CreateTopicRequest(name="copy", partitions=12))
        assert (again.error.code, again.error.message) == (36, "it exists")
        await stub.CreateTopic(pb.CreateTopicRequest(name="other"))
    wanted = [(item.name, item.partition_count, item.replication_factor) for r in asked for item in r.topics]
    assert wanted == [("copy", 12, -1), ("copy", 12, -1), ("other", -1, -1)]
    assert {request.principal for request in asked} == {"User:ANONYMOUS"}
    assert not any(request.HasField("quota") for request in asked)


async def test_a_quota_is_told_whose_it_is(
    rig: Rig, asked: list[controller_pb2.CreateTopicsRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Active:
        is_active = True

    monkeypatch.setattr(rig.relay, "quotas", Active())
    async with controllers(1) as (_, members), gateway(rig, [members[0].endpoint.address]) as stub:
        await stub.CreateTopic(pb.CreateTopicRequest(name="copy"))
    assert asked[0].quota == controller_pb2.MutationQuota(user="ANONYMOUS", strict=True)


async def test_either_right_will_do_and_without_one_nothing_is_asked(
    rig: Rig, asked: list[controller_pb2.CreateTopicsRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with controllers(1) as (_, members), gateway(rig, [members[0].endpoint.address]) as stub:
        monkeypatch.setattr(rig.relay, "authorizer", Nobody(set()))
        refused = await stub.CreateTopic(pb.CreateTopicRequest(name="copy"))
        assert (refused.error.code, refused.error.message) == (
            29, "User:ANONYMOUS has no right to make topic 'copy': Create on it, or on the cluster",
        )  # fmt: skip
        assert asked == []
        for number, kind in enumerate((ResourceType.TOPIC, ResourceType.CLUSTER)):
            monkeypatch.setattr(rig.relay, "authorizer", Nobody({(Operation.CREATE, kind)}))
            made = await stub.CreateTopic(pb.CreateTopicRequest(name=f"copy-{number}"))
            assert made.error.code == 0


async def test_without_controllers_it_is_unavailable(rig: Rig) -> None:
    async with gateway(rig, None) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.CreateTopic(pb.CreateTopicRequest(name="copy"))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert rig.metrics.native_calls["CreateTopic", "UNAVAILABLE"] == 1
